//! The CoAP front over DTLS. The process `mote-dtls` holds the DTLS sessions, and the front here
//! serves them.

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use mote_access::{Guard, Key};
use mote_coap::CheckCertificate;
use mote_coap::dtls_frames::{CERTIFICATE_BYTES_MAX, Message, Psk, ServerCertificate, all_keys};
use mote_process::companion::Role;
use mote_process::companion::supervision::{self, Companion, Serving};
use mote_tls::Certificates;
use mote_tls::handover::Handover;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::net::UnixDatagram;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::fronts::{Calls, Served};

/// What the CoAP front over DTLS needs.
pub struct Settings {
    /// The socket that clients reach.
    pub socket: UdpSocket,
    /// The user id under which the process runs, if the node runs as root.
    pub uid: u32,
    /// Holds the keys of callers, which are also their pre-shared keys.
    pub guard: Guard,
    /// The certificates, for clients without a pre-shared key.
    pub certificates: Handover,
    /// The runtime on which the front runs.
    pub data_path: Handle,
}

/// Runs the process and the front until `stop` becomes true.
pub fn coap_dtls(
    settings: Settings,
    invoker: Calls,
    config: mote_coap::Config,
    stop: watch::Receiver<bool>,
) -> Served {
    let front = Front { settings, invoker, config, link: None };
    Box::pin(async move {
        mote_coap::prepare(&front.settings.socket)?;
        supervision::keep(front, stop).await;
        Ok(())
    })
}

/// Whether DTLS can use one of the node's certificates. If it cannot, only clients with a
/// pre-shared key get a session.
pub fn has_certificate(certificates: &Certificates) -> bool {
    certificates.has_ecdsa(CERTIFICATE_BYTES_MAX)
}

struct Front {
    settings: Settings,
    invoker: Calls,
    config: mote_coap::Config,
    /// The node's end of the socket to a process that was started and is not yet served.
    link: Option<OwnedFd>,
}

impl Companion for Front {
    fn label(&self) -> &'static str {
        "DTLS"
    }

    fn pauses(&self) -> (Duration, Duration) {
        (Duration::from_millis(100), Duration::from_secs(10))
    }

    fn command(&mut self) -> io::Result<Command> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        self.link = Some(own);
        let mut command = supervision::command(Role::Dtls, Path::new("/"));
        // The process ends when its input ends, so it ends however the node ends.
        command
            .args(["--uid", &self.settings.uid.to_string()])
            .stdin(Stdio::from(other))
            .stdout(Stdio::from(OwnedFd::from(self.settings.socket.try_clone()?)));
        Ok(command)
    }

    fn serve<'a>(
        &'a mut self,
        child: &'a mut Child,
        stopped: &'a mut watch::Receiver<bool>,
    ) -> Serving<'a> {
        Box::pin(self.serve_process(child, stopped))
    }

    fn ended(&mut self, ended: &io::Result<String>, is_stopping: bool) {
        self.link = None;
        let problem = match ended {
            _ if is_stopping => return,
            Ok(status) => format!("mote-dtls ended ({status})"),
            Err(error) => format!("mote-dtls cannot run: {error}"),
        };
        tracing::error!("[M1217] {problem}; the node starts it again");
    }
}

impl Front {
    async fn serve_process(
        &mut self,
        child: &mut Child,
        stopped: &watch::Receiver<bool>,
    ) -> io::Result<()> {
        let link = self.link.take().ok_or_else(|| io::Error::other("it was not started"))?;
        let for_keys = UnixDatagram::from_std(link.try_clone()?.into())?;
        let invoker = self.invoker.clone();
        let config = self.config.clone();
        let check = self.settings.certificates.clients().map(|clients| -> CheckCertificate {
            Arc::new(move |certificate: &[u8]| clients.names_if_signed(certificate))
        });
        let front = mote_coap::serve_sessions(link, invoker, config, check, stopped.clone());
        let mut front = self.settings.data_path.spawn(front);
        let served = tokio::select! {
            served = &mut front => served.map_err(io::Error::other)?,
            never = send_keys(&for_keys, &self.settings.guard) => never,
            never = send_certificates(&for_keys, &self.settings.certificates) => never,
            ended = child.wait() => ended.map(|_| ()),
        };
        front.abort();
        match served {
            // The process has ended. Its exit status gives the reason.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(()),
            served => served,
        }
    }
}

/// Sends all keys to the process, and again whenever they change.
async fn send_keys<T>(link: &UnixDatagram, guard: &Guard) -> T {
    let mut replaced = guard.replaced();
    loop {
        for message in all_keys(guard.ring().keys().map(psk)) {
            if link.send(&message).await.is_err() {
                // The process has ended. Its exit status gives the reason.
                return std::future::pending().await;
            }
        }
        if replaced.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Sends the process the first certificate that DTLS can use. Sends it again whenever the
/// certificates, or the authorities of clients' certificates, change.
async fn send_certificates<T>(link: &UnixDatagram, certificates: &Handover) -> T {
    let mut changes = certificates.changes();
    let authorities = || certificates.clients().map(|clients| clients.text());
    let mut before = authorities();
    loop {
        let now = authorities();
        let own = certificates.ecdsa(CERTIFICATE_BYTES_MAX).map(|(certificate, key)| {
            ServerCertificate { certificate, key, asks_clients: now.is_some() }
        });
        if own.is_none() {
            tracing::warn!(
                "CoAP over DTLS has no certificate, only pre-shared keys: its library needs a key on the \
                 curve P-256 or P-384"
            );
        }
        let mut message = Vec::new();
        Message::Certificate { own, ends_sessions: now != before }.encode(&mut message);
        before = now;
        if link.send(&message).await.is_err() || changes.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

fn psk(key: &Key) -> Psk {
    Psk {
        identity: key.psk_identity(),
        key: key.psk().into_bytes(),
        expires_unix_ms: key.expires_unix_ms,
    }
}
