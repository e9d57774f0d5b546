//! The systemd service `mote.service`: whether it runs, its restart, and the version that answers
//! on the management socket.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::failure::{FILE, Failure, UNFIT};

const UNIT: &str = "mote.service";
/// The units that keep the sockets open during a restart.
pub(crate) const SOCKETS: [&str; 3] = ["mote.socket", "mote-coap.socket", "mote-management.socket"];
/// How long to wait for the old node to stop. It is longer than 90 s, after which the unit kills
/// the node.
const STOP_PATIENCE: Duration = Duration::from_secs(120);
const PROBE_PATIENCE: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const ANSWER_BYTES_MAX: u64 = 1 << 20;
const LOG_HINT: &str = "read why with: journalctl -u mote -n 50";

#[derive(Debug)]
pub(crate) struct Service {
    /// The management socket.
    socket: PathBuf,
    /// The data folder.
    pub(crate) data: PathBuf,
    /// How long a version may take to become ready.
    ready_within: Duration,
}

/// The state of the unit, as systemd reports it.
#[derive(Debug, Default)]
struct State {
    active: String,
    sub: String,
    main_pid: u32,
    /// When the unit last became active.
    active_since: String,
}

/// A version that did not become ready in time.
#[derive(Debug)]
pub(crate) struct NotReady {
    pub(crate) failure: Failure,
    /// Whether the version has told systemd that it serves. If so, it may have accepted work.
    pub(crate) has_served: bool,
}

impl From<Failure> for NotReady {
    fn from(failure: Failure) -> Self {
        Self { failure, has_served: false }
    }
}

impl Service {
    /// `program` is the installed program. It is asked for the configuration, which names the
    /// management socket and the data folder.
    pub(crate) fn new(
        program: &Path,
        socket: Option<&Path>,
        ready_within: Duration,
    ) -> Result<Self, Failure> {
        let (configured, data) = configured(program)?;
        let socket = socket.map_or(configured, Path::to_owned);
        Ok(Self { socket, data, ready_within })
    }

    /// Whether the service has been started. A service that fails again and again counts as
    /// started.
    pub(crate) fn is_wanted(&self) -> Result<bool, Failure> {
        Ok(state()?.active != "inactive")
    }

    /// The version of the node that answers on the management socket.
    pub(crate) fn version(&self) -> Option<String> {
        let (status, body) = self.ask("/v1/status").ok()?;
        let status_of: serde_json::Value = serde_json::from_str(&body).ok()?;
        (status == 200).then(|| status_of["version"].as_str().map(str::to_owned))?
    }

    /// Lifts the start limit of these socket units until [`Self::set_limits`] is called. systemd
    /// closes a socket whose service has failed 20 times within 2 s, and each waiting connection
    /// starts the service again. The change takes effect with [`Self::reload`].
    fn lift_limits(&self, sockets: &[String]) -> Result<(), Failure> {
        for unit in sockets {
            let path = exception(unit);
            let folder = path.parent().unwrap_or(Path::new("/"));
            let text = "[Socket]\nTriggerLimitIntervalSec=0\n";
            let made = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text));
            made.map_err(|error| Failure::file(&path, &error))?;
        }
        Ok(())
    }

    /// Restores the start limit of the socket units.
    pub(crate) fn set_limits(&self) -> Result<(), Failure> {
        for unit in SOCKETS {
            let path = exception(unit);
            let _ = std::fs::remove_file(&path);
            // The folder stays if it contains other files.
            let _ = path.parent().map(std::fs::remove_dir);
        }
        self.reload()
    }

    /// Opens socket units that systemd has closed. Stops the service first, because the units
    /// cannot be opened while it runs.
    pub(crate) fn open_sockets(&self, sockets: &[String]) -> Result<(), Failure> {
        let active = active_sockets();
        let units: Vec<&str> = sockets.iter().map(String::as_str).collect();
        if units.iter().all(|unit| active.contains(unit)) {
            return Ok(());
        }
        self.stop()?;
        systemctl(&[&["reset-failed"], &units[..]].concat())?;
        systemctl(&[&["start"], &units[..]].concat()).map(|_| ())
    }

    /// Makes systemd read the unit files again.
    pub(crate) fn reload(&self) -> Result<(), Failure> {
        systemctl(&["daemon-reload"]).map(|_| ())
    }

    /// Stops the service. With socket units, the next connection starts it again.
    pub(crate) fn stop(&self) -> Result<(), Failure> {
        systemctl(&["stop", UNIT]).map(|_| ())
    }

    /// Restarts the service, and waits until this version is ready. `sockets` are the socket units
    /// that were active.
    pub(crate) fn restart(&self, version: &str, sockets: &[String]) -> Result<(), NotReady> {
        let before = state()?;
        self.lift_limits(sockets)?;
        self.reload()?;
        systemctl(&["reset-failed", UNIT])?;
        systemctl(&["restart", "--no-block", UNIT])?;
        // The node's running calls may end before its process does, so this waits for the process.
        let old = Path::new("/proc").join(before.main_pid.to_string());
        let stopped = wait_for(STOP_PATIENCE, || {
            let is_running = before.main_pid != 0 && old.exists();
            (!is_running || state().is_ok_and(|now| now.main_pid != before.main_pid)).then_some(())
        });
        if stopped.is_none() {
            let text = format!("the old node did not stop within {} s", STOP_PATIENCE.as_secs());
            return Err(Failure::new(UNFIT, text, LOG_HINT).into());
        }
        self.wait_ready(version).map_err(|why| NotReady {
            failure: Failure::new(UNFIT, format!("mote {version} is not ready: {why}"), LOG_HINT),
            has_served: state().is_ok_and(|now| now.active_since != before.active_since),
        })
    }

    fn wait_ready(&self, version: &str) -> Result<(), String> {
        let found = wait_for(self.ready_within, || {
            let now = match state() {
                Ok(now) => now,
                Err(failure) => return Some(Err(failure.text().to_owned())),
            };
            match (now.active.as_str(), now.sub.as_str()) {
                ("failed", _) | (_, "auto-restart") => {
                    Some(Err("it ended at its start".to_owned()))
                }
                ("active", _) if self.version().as_deref() == Some(version) => {
                    let is_ready = self.ask("/readyz").is_ok_and(|(status, _)| status == 200);
                    is_ready.then_some(Ok(()))
                }
                _ => None,
            }
        });
        found.unwrap_or_else(|| {
            let other = match self.version() {
                Some(other) => format!("mote {other} answers"),
                None => "nothing answers".to_owned(),
            };
            let socket = self.socket.display();
            let seconds = self.ready_within.as_secs();
            Err(format!("after {seconds} s, {other} on {socket}"))
        })
    }

    /// Sends one request to the management socket. Returns status and body.
    fn ask(&self, path: &str) -> std::io::Result<(u16, String)> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PROBE_PATIENCE))?;
        stream.set_write_timeout(Some(PROBE_PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: node\r\n\r\n")?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
        let status = answer.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok((status, body.to_owned()))
    }
}

/// The drop-in file that changes a socket unit until the machine is next started.
fn exception(unit: &str) -> PathBuf {
    Path::new("/run/systemd/system").join(format!("{unit}.d")).join("90-mote-upgrade.conf")
}

/// Whether systemd runs on this machine.
pub(crate) fn has_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// The socket units that are active now.
pub(crate) fn active_sockets() -> Vec<&'static str> {
    let is_active = |unit: &&str| {
        let status = Command::new("systemctl").args(["is-active", "--quiet", unit]).status();
        status.is_ok_and(|status| status.success())
    };
    SOCKETS.into_iter().filter(is_active).collect()
}

/// The management socket and the data folder that the configuration names.
fn configured(program: &Path) -> Result<(PathBuf, PathBuf), Failure> {
    let output = Command::new(program).args(["config", "show", "--output", "json"]).output();
    let output = output.map_err(|error| Failure::file(program, &error))?;
    let settings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let settings = settings.as_array().map_or(&[][..], Vec::as_slice);
    let value = |key: &str| {
        let found = settings.iter().find(|setting| setting["key"] == key);
        found.and_then(|setting| setting["value"].as_str()).map(PathBuf::from)
    };
    value("socket").zip(value("data")).ok_or_else(|| {
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let text = format!("{} does not show its settings: {why}", program.display());
        Failure::new(UNFIT, text, "correct the settings: mote config check")
    })
}

fn state() -> Result<State, Failure> {
    let text = systemctl(&[
        "show",
        UNIT,
        "--property=ActiveState,SubState,MainPID,ActiveEnterTimestampMonotonic",
    ])?;
    let value = |key: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        found.unwrap_or_default().to_owned()
    };
    let main_pid = value("MainPID").parse().unwrap_or(0);
    let active_since = value("ActiveEnterTimestampMonotonic");
    Ok(State { active: value("ActiveState"), sub: value("SubState"), main_pid, active_since })
}

fn systemctl(words: &[&str]) -> Result<String, Failure> {
    let hint = "check that systemd runs: systemctl status";
    let output = Command::new("systemctl").args(words).output();
    let output = output.map_err(|error| Failure::new(FILE, format!("systemctl: {error}"), hint))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Failure::new(UNFIT, format!("systemctl {}: {why}", words.join(" ")), hint));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn wait_for<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + patience;
    loop {
        if let Some(found) = ask() {
            return Some(found);
        }
        if Instant::now() >= until {
            return None;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
