//! Runs the process of a node: the zygote, the log, the node, and the exit code.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use mote_api::exit;
use mote_process::service_manager::ServiceManager;
use mote_store::StoreError;
use tracing_subscriber::filter::LevelFilter;

use crate::config::Config;
use crate::develop::Guest;
use crate::run::Purpose;
use crate::unusable::{AddressError, SettingError};

/// Starts the node and serves until it is stopped. `deploy` are the projects to deploy once the
/// node is ready.
///
/// The process must have only one thread when this is called, because the first step is to fork the
/// zygote, which makes sandboxes. Before the fork, the node takes what the service manager handed
/// over, so that the zygote inherits none of it.
pub fn run(config: Config, deploy: &[PathBuf]) -> ExitCode {
    start(config, Purpose::Serve(deploy.to_vec()))
}

/// Starts a node for one developer, and serves until its guest returns. As with [`run`], the
/// process must have only one thread.
pub fn develop(config: Config, guest: Guest) -> ExitCode {
    start(config, Purpose::Develop(guest))
}

fn start(config: Config, mut purpose: Purpose) -> ExitCode {
    // Each sandbox reads its function's code as another user, which a stricter umask would prevent.
    // Files with secrets are made with a mode that lets only their owner read them.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    raise_open_files();
    mote_store::seal::forbid_core_files();
    let given = ServiceManager::take();
    let given = given.and_then(|given| given.sockets.check_reach(config.lan).map(|()| given));
    let mut manager = match given {
        Ok(manager) => manager,
        Err(error) => {
            tell(format_args!("error[M0211]: {error}"));
            return ExitCode::from(exit::CONFIG);
        }
    };
    if let Purpose::Develop(guest) = &mut purpose {
        let (http, coap) = std::mem::take(&mut guest.sockets);
        manager.sockets.http = http.or(manager.sockets.http.take());
        manager.sockets.coap = coap.or(manager.sockets.coap.take());
    }
    let zygote = match mote_sandbox::Zygote::fork() {
        Ok(zygote) => zygote,
        Err(error) => {
            tell(format_args!("error: cannot start the zygote: {error}"));
            return ExitCode::from(exit::FAILED);
        }
    };
    let (level, verb) = match purpose {
        Purpose::Serve(_) => (LevelFilter::INFO, "up"),
        // The guest shows what happens.
        Purpose::Develop(_) => (LevelFilter::ERROR, "dev"),
    };
    start_log(level);
    match crate::run::run(config, purpose, zygote, manager) {
        Ok(code) => code,
        Err(error) => {
            let (text, code) = explain(&error, verb);
            tell(format_args!("{text}"));
            ExitCode::from(code)
        }
    }
}

/// Writes a line to stderr, and ignores the error if nobody reads stderr any longer.
fn tell(text: std::fmt::Arguments<'_>) {
    use io::Write as _;
    let _ = writeln!(io::stderr(), "{text}");
}

/// Raises the soft limit of open files to the hard limit, which needs no privilege.
///
/// Every connection is a descriptor. The usual soft limit of 1024 exists for programs that use
/// select(2), and this program does not. Instances have their own limits, which do not depend on
/// the node's.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If the kernel refuses, the limit stays unchanged, and the only effect is that the node can
    // hold fewer connections.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Starts the node's own log, which goes to stderr: as text on a terminal, as JSON lines otherwise.
///
/// If nothing reads stderr any longer, the lines are lost, but nothing else happens. With the
/// default, the subscriber would try to print its own error, and that failure would end the task
/// that logged the line.
fn start_log(level: LevelFilter) {
    use std::io::IsTerminal as _;
    let builder = tracing_subscriber::fmt()
        .with_writer(|| Harmless(io::stderr()))
        .with_max_level(level)
        .log_internal_errors(false);
    if io::stderr().is_terminal() {
        builder.init();
    } else {
        builder.json().init();
    }
}

/// Writes text in which no character can control the terminal that shows it, because log lines
/// quote texts from strangers. The subscriber escapes C0 characters, and uses them for colours on a
/// terminal. This type replaces C1 characters and Unicode's bidirectional controls.
struct Harmless<W>(W);

impl<W: io::Write> io::Write for Harmless<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let steers = |c: char| {
            ('\u{80}'..='\u{9f}').contains(&c) || mote_api::text::is_bidirectional_control(c)
        };
        match std::str::from_utf8(bytes) {
            Ok(text) if text.contains(steers) => {
                let text: String = text.chars().map(|c| if steers(c) { '?' } else { c }).collect();
                self.0.write_all(text.as_bytes())?;
            }
            _ => self.0.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Returns the text of a verb's error, with a remedy, and the exit code.
fn explain(error: &anyhow::Error, verb: &str) -> (String, u8) {
    if let Some(busy) = error.downcast_ref::<AddressError>() {
        let AddressError { key, address, source, others } = busy;
        if source.kind() == io::ErrorKind::AddrInUse {
            let all = || std::iter::once((*key, *address)).chain(others.iter().copied());
            let lines = all().map(|(_, address)| {
                let port = address.port();
                let ip = address.ip();
                format!("error[M0210]: port {port} is already in use on {ip}\n")
            });
            // Only the addresses that are in use have to change, so only their flags are shown.
            let flags = all().map(|(key, address)| {
                format!("--{} :{}", key.replace('_', "-"), address.port().saturating_add(1))
            });
            let flags = flags.collect::<Vec<_>>().join(" ");
            let lines: String = lines.collect();
            let text =
                format!("{lines}  try:  mote {verb} {flags}    or stop the program that uses it");
            return (text, exit::BUSY);
        }
        let code = "M0203";
        return (format!("error[{code}]: cannot listen on {address}: {source}"), exit::CONFIG);
    }
    if error.downcast_ref::<SettingError>().is_some() {
        return (format!("error[M0203]: {error}"), exit::CONFIG);
    }
    if let Some(store) = error.downcast_ref::<StoreError>() {
        let hint = store.hint().map(|hint| format!("\n  {hint}")).unwrap_or_default();
        // This code makes a service manager start the node again. It is used if another start may
        // succeed: after the other node has ended, or when the disk has room.
        let exit = match store {
            StoreError::InUse { .. } => exit::BUSY,
            StoreError::DiskFull { .. } | StoreError::Io { .. } => exit::FAILED,
            _ => exit::CONFIG,
        };
        return (format!("error[{}]: {error:#}{hint}", store.code()), exit);
    }
    (format!("error: {error:#}"), exit::FAILED)
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, getrlimit, setrlimit};

    #[test]
    fn the_log_does_not_steer_a_terminal() {
        use std::io::Write as _;
        let mut log = super::Harmless(Vec::new());
        log.write_all("\x1b[2m\u{e9}\u{202e}x\u{9b}y\n".as_bytes()).expect("memory");
        assert_eq!(String::from_utf8(log.0).expect("text"), "\x1b[2m\u{e9}?x?y\n");
    }

    #[test]
    fn open_files_are_raised_to_what_is_allowed() {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = Some(limit.maximum.unwrap_or(4_096).min(512));
        setrlimit(Resource::Nofile, limit).expect("lowering is always allowed");
        super::raise_open_files();
        assert_eq!(getrlimit(Resource::Nofile).current, limit.maximum);
    }
}
