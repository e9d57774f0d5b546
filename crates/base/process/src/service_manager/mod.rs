//! The sockets and settings that a service manager such as systemd passes to a node, and the
//! messages that the node sends back.
//!
//! This is the protocol of sd_listen_fds(3), sd_notify(3) and sd_watchdog_enabled(3). It consists
//! of environment variables, descriptors from 3 on, and datagrams. [`ServiceManager::take`] reads
//! the variables and removes them, so that no other program inherits them. This module must not
//! know what a socket serves or when a node is ready. Start reading at `take`; `sockets.rs` lists
//! the sockets that a node takes.

#![allow(
    unsafe_code,
    reason = "variables are removed, and descriptors are adopted by their number"
)]

mod given_error;
mod notifier;
mod sockets;

use std::env;
use std::ffi::OsString;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::time::Duration;

use given_error::FDS_MAX;
pub use given_error::GivenError;
use notifier::Notifier;
pub use sockets::Sockets;

/// The first descriptor that the service manager passes (`SD_LISTEN_FDS_START`).
const FIRST_FD: RawFd = 3;
/// The variables of the protocol.
const VARIABLES: [&str; 7] = [
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PIDFDID",
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
];

/// The sockets and settings that the service manager passed. Empty if something else started the
/// node.
#[derive(Debug, Default)]
pub struct ServiceManager {
    /// Sockets that are already bound.
    pub sockets: Sockets,
    /// The watchdog's timeout: the service manager ends a node that is silent for this long.
    pub watchdog: Option<Duration>,
    notifier: Option<Notifier>,
}

impl ServiceManager {
    /// Takes the sockets and settings that were passed to this process, and removes the variables
    /// that describe them. The descriptors are closed when another program is executed.
    ///
    /// Call this once, while the process has only one thread.
    pub fn take() -> Result<Self, GivenError> {
        let values = VARIABLES.map(env::var_os);
        if values.iter().all(Option::is_none) {
            return Ok(Self::default());
        }
        remove_variables()?;
        let [listen_pid, count, names, _, notify, watchdog_usec, watchdog_pid] = values;
        let own = |pid: &Option<OsString>| {
            pid.as_ref().is_some_and(|pid| *pid == *std::process::id().to_string())
        };
        let mut manager = Self::default();
        // If the pid differs, the variables were meant for the process that started this one.
        if own(&listen_pid)
            && let Some(count) = count
        {
            let names = names.unwrap_or_default();
            let count = count.to_string_lossy();
            let names = names.to_string_lossy();
            for (fd, name) in named(&count, &names)? {
                manager.sockets.add(fd, name, adopt(fd)?)?;
            }
        }
        if let Some(address) = notify {
            manager.notifier = Some(Notifier::new(&address)?);
        }
        if let Some(usec) = watchdog_usec
            && (watchdog_pid.is_none() || own(&watchdog_pid))
        {
            let usec = usec.to_string_lossy();
            let parsed = usec.parse::<u64>().ok().filter(|usec| *usec > 0);
            let parsed = parsed.ok_or_else(|| GivenError::Watchdog(usec.into_owned()))?;
            manager.watchdog = Some(Duration::from_micros(parsed));
        }
        Ok(manager)
    }

    /// Reports that the node serves. `status` says in a few words what the node does. Like the
    /// other methods, this one never blocks.
    pub fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}"));
    }

    /// Reports that the node begins to stop. `status` says what the node waits for.
    pub fn stopping(&self, status: &str) {
        self.tell(&format!("STOPPING=1\nSTATUS={status}"));
    }

    /// Reports twice per watchdog timeout that the node works, until the future is dropped. The
    /// loop that the watchdog watches must poll this future, because only then do the reports stop
    /// when the loop hangs.
    pub async fn pet_in_time(&self) {
        let Some(watchdog) = self.watchdog else { return };
        let mut times = tokio::time::interval(watchdog / 2);
        times.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            times.tick().await;
            self.tell("WATCHDOG=1");
        }
    }

    fn tell(&self, state: &str) {
        if let Some(notifier) = &self.notifier {
            notifier.send(state);
        }
    }
}

/// Pairs each descriptor with its name.
fn named<'a>(count: &str, names: &'a str) -> Result<Vec<(RawFd, &'a str)>, GivenError> {
    let parsed = count.parse::<RawFd>().ok().filter(|count| (0..=FDS_MAX).contains(count));
    let count = parsed.ok_or_else(|| GivenError::Count(count.to_owned()))?;
    // A descriptor without a name gets an empty name.
    let names = names.split(':').chain(std::iter::repeat(""));
    Ok((FIRST_FD..FIRST_FD + count).zip(names).collect())
}

/// Takes ownership of a descriptor that the service manager passed.
fn adopt(fd: RawFd) -> Result<OwnedFd, GivenError> {
    if std::fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_err() {
        return Err(GivenError::Closed(fd));
    }
    // SAFETY: the descriptor is open. The process that started this one passed the descriptor under
    // this number (`LISTEN_PID` is this process), so nothing else here owns it. `take` removes the
    // variables, so each descriptor is adopted only once.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    let flags = rustix::io::FdFlags::CLOEXEC;
    rustix::io::fcntl_setfd(&owned, flags).map_err(|_| GivenError::Closed(fd))?;
    Ok(owned)
}

#[expect(clippy::disallowed_methods, reason = "there are no threads yet, as is checked")]
fn remove_variables() -> Result<(), GivenError> {
    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    match threads {
        Ok(1) => {}
        Ok(threads) => return Err(GivenError::Threads(format!("there are {threads} threads"))),
        Err(error) => return Err(GivenError::Threads(error.to_string())),
    }
    for name in VARIABLES {
        // SAFETY: no other thread exists that could read the environment at the same time.
        unsafe { env::remove_var(name) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_have_the_names_at_their_places() {
        let check = |count, names, expected: &[(RawFd, &str)]| {
            assert_eq!(named(count, names).unwrap(), expected, "{count} {names}");
        };
        check("1", "http", &[(3, "http")]);
        check("3", "http:coap:x", &[(3, "http"), (4, "coap"), (5, "x")]);
        check("2", "http", &[(3, "http"), (4, "")]);
        check("1", "", &[(3, "")]);
        check("0", "", &[]);
        for count in ["-1", "", "two", "65", "99999999999999"] {
            let error = named(count, "http").unwrap_err();
            assert!(error.to_string().contains(&format!("\"{count}\"")), "{error}");
        }
    }

    #[test]
    fn a_loop_that_hangs_falls_silent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let receiver = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        receiver.set_nonblocking(true).unwrap();
        let manager = ServiceManager {
            watchdog: Some(Duration::from_millis(20)),
            notifier: Some(Notifier::new(path.as_os_str()).unwrap()),
            ..ServiceManager::default()
        };
        let told = || std::iter::from_fn(|| receiver.recv(&mut [0; 16]).ok()).count();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.unwrap().block_on(async {
            let manager = std::sync::Arc::new(manager);
            let petting = manager.clone();
            tokio::spawn(async move { petting.pet_in_time().await });
            let mut seen = 0;
            while seen < 5 {
                tokio::task::yield_now().await;
                seen += told();
            }
            // This sleep is the measurement: no notification may be sent while the loop hangs.
            std::thread::sleep(Duration::from_millis(200));
            assert_eq!(told(), 0);
            while told() == 0 {
                tokio::task::yield_now().await;
            }
        });
    }

    #[test]
    fn a_process_that_was_given_nothing_has_nothing() {
        // The test runner has threads, so this also shows that nothing is removed.
        let manager = ServiceManager::take().unwrap();
        assert!(manager.watchdog.is_none() && manager.notifier.is_none());
        manager.ready("nobody is told");
    }
}
