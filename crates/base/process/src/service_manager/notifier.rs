//! The datagrams to the service manager (sd_notify(3)).

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use super::given_error::GivenError;

/// A socket to the service manager.
#[derive(Debug)]
pub(crate) struct Notifier {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl Notifier {
    /// Makes a notifier for the address in `NOTIFY_SOCKET`: an absolute path, or `@` followed by
    /// the name of a socket without a file.
    pub(crate) fn new(address: &OsStr) -> Result<Self, GivenError> {
        let wrong = || GivenError::NotifySocket(address.to_string_lossy().into_owned());
        let parsed = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            [b'/', ..] => SocketAddr::from_pathname(address),
            _ => return Err(wrong()),
        };
        let socket = UnixDatagram::unbound().map_err(|_| wrong())?;
        socket.set_nonblocking(true).map_err(|_| wrong())?;
        Ok(Self { socket, address: parsed.map_err(|_| wrong())? })
    }

    /// Sends without waiting. Errors are ignored, because the node can serve even if the service
    /// manager does not read.
    pub(crate) fn send(&self, state: &str) {
        let _ = self.socket.send_to_addr(state.as_bytes(), &self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_arrive_at_paths_and_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("@mote-notifier-{}", std::process::id());
        let at_path = UnixDatagram::bind(&path).unwrap();
        let at_name = SocketAddr::from_abstract_name(&name[1..]).unwrap();
        let at_name = UnixDatagram::bind_addr(&at_name).unwrap();
        for (address, receiver) in [(path.as_os_str(), at_path), (OsStr::new(&name), at_name)] {
            let notifier = Notifier::new(address).unwrap();
            notifier.send("READY=1\nSTATUS=text");
            let mut buffer = [0; 64];
            let length = receiver.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1\nSTATUS=text");
            // The receiver is gone. Sending must not fail because of that.
            drop(receiver);
            notifier.send("STOPPING=1");
        }
        for wrong in ["", "notify", "vsock:2:1", &format!("/{}", "x".repeat(200))] {
            let error = Notifier::new(OsStr::new(wrong)).unwrap_err();
            assert!(error.to_string().contains(&format!("\"{wrong}\"")), "{error}");
        }
    }

    #[test]
    fn a_receiver_that_does_not_read_blocks_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let receiver = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::new(path.as_os_str()).unwrap();
        (0..10_000).for_each(|_| notifier.send("WATCHDOG=1"));
        drop(receiver);
    }
}
