//! `mote dashboard`: opens the dashboard of a node in a browser, or shows how to reach it.

use std::process::Stdio;
use std::time::Duration;

use mote_api::client::{Client, Endpoint};
use mote_api::sessions::SessionCode;
use tokio::process::Command;

use super::args::Format;
use super::failure::Failure;
use super::output::{Output, harmless};

/// How long the desktop may take to report that it cannot open an address. On some desktops, the
/// program runs as long as the browser.
const PATIENCE: Duration = Duration::from_secs(3);

/// Makes a code that logs one browser in, and opens the dashboard with it. Without a display, or if
/// the output is for a program, prints the address.
pub(super) async fn run(client: &Client, output: &Output) -> Result<(), Failure> {
    let made = client.session_code().await?;
    if output.format == Format::Table && has_display() && open(&made.url).await {
        let address = made.url.split('#').next().unwrap_or_default();
        output.say(&format!("opened {address} in a browser"));
        return Ok(());
    }
    output.say("open this address in a browser within a minute; it works once:");
    output.result(&made, &[&made.url], || format!("{}\n", harmless(&made.url)))?;
    if let (Endpoint::Unix(_), Some(port)) = (client.endpoint(), port(&made)) {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        output.say(&format!(
            "on another machine, first run there: ssh -L {port}:127.0.0.1:{port} {host}"
        ));
    }
    Ok(())
}

/// The port of an address on this machine.
fn port(made: &SessionCode) -> Option<u16> {
    let (_, rest) = made.url.split_once("://127.0.0.1:")?;
    rest.split('/').next()?.parse().ok()
}

fn has_display() -> bool {
    ["WAYLAND_DISPLAY", "DISPLAY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// Whether the desktop has opened the address.
async fn open(url: &str) -> bool {
    let mut command = Command::new("xdg-open");
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut opening) = command.spawn() else { return false };
    let ended = tokio::time::timeout(PATIENCE, opening.wait()).await;
    ended.map_or(true, |ended| ended.is_ok_and(|status| status.success()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_needs_the_port_of_an_address_on_this_machine() {
        let of = |url: &str| {
            let expires_at = mote_api::Timestamp::from_unix_ms(0);
            port(&SessionCode { url: url.to_owned(), code: String::new(), expires_at })
        };
        assert_eq!(of("http://127.0.0.1:6684/dashboard/#code=a"), Some(6_684));
        assert_eq!(of("https://10.0.0.7:6680/dashboard/#code=a"), None);
    }
}
