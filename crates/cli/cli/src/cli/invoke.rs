//! `mote invoke`.

use std::io::{IsTerminal, Read};
use std::time::Duration;

use mote_api::client::{self, Client};
use mote_api::exit;
use mote_api::types::{Function, InvokeAnswer, InvokeRequest, Urls};

use super::args::{Format, Invoke, Via};
use super::failure::Failure;
use super::output::Output;

/// The time limit of a call through the management API. It is longer than every deadline that a
/// function can have.
const CALL_TIMEOUT: Duration = Duration::from_secs(3700);

pub(super) async fn run(client: &Client, args: &Invoke, output: &Output) -> Result<(), Failure> {
    let mut request = request(args).await?;
    if args.background {
        request.headers.push(("prefer".to_owned(), "respond-async".to_owned()));
    }
    if args.show {
        let function = function(client, &args.name).await?;
        let line = equal_line(&function, args, &request)?;
        return output.print(format!("{line}\n").as_bytes());
    }
    let answer = match args.via {
        Via::Admin => client.invoke(&args.name, request).await?,
        Via::Http => {
            let function = function(client, &args.name).await?;
            let url = front(function.urls.http.as_deref(), "HTTP")?;
            client::call_url(url, request, CALL_TIMEOUT).await?
        }
        Via::Coap => {
            let mut failure = Failure::new("M0305", "--via coap is not supported yet");
            failure.exit = exit::USAGE;
            return Err(failure.with_hint(format!(
                "print the equivalent command: mote invoke {} --via coap --show",
                args.name
            )));
        }
    };
    if args.background {
        return show_accepted(&answer, output);
    }
    show_answer(&answer, output)
}

/// Prints the id of an accepted invocation.
fn show_accepted(answer: &InvokeAnswer, output: &Output) -> Result<(), Failure> {
    let body = serde_json::from_slice::<serde_json::Value>(&answer.body).ok();
    let id = body.as_ref().and_then(|body| body["id"].as_str());
    let (Some(body), Some(id), 202) = (&body, id, answer.status) else {
        return show_answer(answer, output);
    };
    output.say(&format!("accepted; its state: mote invocation show {id}"));
    output.result(body, &[id], || format!("{id}\n"))
}

/// Prints an answer. If the answer has an error status, the command ends with an error.
pub(super) fn show_answer(answer: &InvokeAnswer, output: &Output) -> Result<(), Failure> {
    let id = answer.invocation.as_deref().unwrap_or("-");
    if output.verbose {
        output.say(&format!("{} (invocation {id})", answer.status));
        for (name, value) in &answer.headers {
            output.say(&format!("{name}: {value}"));
        }
    }
    if output.format == Format::Table {
        output.print(&answer.body)?;
        if std::io::stdout().is_terminal() && !answer.body.ends_with(b"\n") {
            output.print(b"\n")?;
        }
    } else {
        let value = serde_json::json!({
            "status": answer.status,
            "headers": answer.headers,
            "invocation": answer.invocation,
            "body": String::from_utf8_lossy(&answer.body),
        });
        output.result(&value, &[id], String::new)?;
    }
    if let Some(row) = answer.fault.as_deref().and_then(mote_api::explain) {
        return Err(Failure::new(row.code, row.title));
    }
    if answer.status >= 400 {
        output.say(&format!("the function answered {}", answer.status));
        return Err(Failure::quiet(exit::FUNCTION));
    }
    Ok(())
}

pub(super) async fn request(args: &Invoke) -> Result<InvokeRequest, Failure> {
    let body = match args.data.as_deref() {
        None => Vec::new(),
        Some("-") => {
            // Standard input is read on another thread, so that Ctrl-C works while no input
            // arrives.
            let reading = tokio::task::spawn_blocking(|| {
                let mut body = Vec::new();
                std::io::stdin().read_to_end(&mut body).map(|_| body)
            });
            reading
                .await
                .map_err(std::io::Error::other)
                .and_then(|body| body)
                .map_err(|error| Failure::new("M0102", format!("standard input: {error}")))?
        }
        Some(data) => match data.strip_prefix('@') {
            Some(path) => {
                std::fs::read(path).map_err(|error| Failure::of_file("M0102", path, &error))?
            }
            None => data.as_bytes().to_vec(),
        },
    };
    let mut headers = Vec::new();
    for header in &args.headers {
        let pair = header.split_once(':').map(|(name, value)| (name.trim(), value.trim()));
        match pair {
            Some((name, value)) if !name.is_empty() => {
                headers.push((name.to_owned(), value.to_owned()));
            }
            _ => {
                let shown: String = header.chars().take(64).flat_map(char::escape_debug).collect();
                let failure = Failure::new("M0101", format!("-H: NAME: VALUE; found `{shown}`"));
                return Err(failure);
            }
        }
    }
    if !args.path.starts_with('/') {
        let failure = Failure::new("M0101", "--path must begin with /");
        return Err(failure.with_hint(format!("did you mean /{}?", args.path)));
    }
    let method = args.method.clone().unwrap_or_else(|| {
        let default = if args.data.is_some() { "POST" } else { "GET" };
        default.to_owned()
    });
    let method = method.to_uppercase();
    if method.is_empty() || !method.bytes().all(|b| b.is_ascii_alphabetic() || b == b'-') {
        return Err(Failure::new("M0101", "-m: a method such as GET"));
    }
    Ok(InvokeRequest { method, path: args.path.clone(), headers, body })
}

/// Returns the function of `NAME` or `NAME@TAG`. For `NAME@TAG`, its addresses reach exactly that
/// revision.
pub(super) async fn function(client: &Client, name: &str) -> Result<Function, Failure> {
    let Some((base, tag)) = name.split_once('@') else { return Ok(client.function(name).await?) };
    let mut function = client.function(base).await?;
    let Urls { http, coap, coaps, .. } = &mut function.urls;
    for url in [http, coap, coaps].into_iter().flatten() {
        url.push_str(&format!("@{tag}"));
    }
    Ok(function)
}

fn front<'u>(url: Option<&'u str>, name: &str) -> Result<&'u str, Failure> {
    // `mote` cannot call a front over HTTPS.
    url.filter(|url| !url.starts_with("https:")).ok_or_else(|| {
        Failure::new("M0201", format!("the {name} front of the node is off"))
            .with_hint("call it through the node: --via admin")
    })
}

/// Returns the command line of curl or coap-client that makes the same call.
fn equal_line(
    function: &Function,
    args: &Invoke,
    request: &InvokeRequest,
) -> Result<String, Failure> {
    let path = request.path.trim_end_matches('/');
    if args.via == Via::Coap {
        let url = front(function.urls.coap.as_deref(), "CoAP")?;
        let mut line = format!("coap-client -m {}", request.method.to_lowercase());
        match args.data.as_deref().map(|data| (data, data.strip_prefix('@'))) {
            Some((_, Some(file))) => line.push_str(&format!(" -f {}", quoted(file))),
            Some(("-", _)) => line.push_str(" -f -"),
            Some((data, None)) => line.push_str(&format!(" -e {}", quoted(data))),
            None => {}
        }
        line.push_str(&format!(" {}", quoted(&format!("{url}{path}"))));
        return Ok(line);
    }
    let url = front(function.urls.http.as_deref(), "HTTP")?;
    let mut line = format!("curl -X {}", request.method);
    for (name, value) in &request.headers {
        line.push_str(&format!(" -H {}", quoted(&format!("{name}: {value}"))));
    }
    match args.data.as_deref() {
        Some("-") => line.push_str(" --data-binary @-"),
        Some(data) => line.push_str(&format!(" --data-binary {}", quoted(data))),
        None => {}
    }
    line.push_str(&format!(" {}", quoted(&format!("{url}{path}"))));
    Ok(line)
}

/// Quotes an argument for a shell. A plain argument is unchanged; any other is put in single quotes.
fn quoted(text: &str) -> String {
    let plain = !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~/:@%+=,".contains(&b));
    if plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}
