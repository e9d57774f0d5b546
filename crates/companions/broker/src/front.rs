//! The listeners for clients, with and without TLS.
//!
//! The library counts clients only after their first message, and refuses new clients at its limit.
//! It performs one TLS handshake after the other, and never changes its certificate. Clients that
//! connect and send nothing could therefore keep all others out. For this reason this program
//! accepts connections itself. When others need seats, it ends connections whose clients have
//! proved nothing (`mote_core::seats`). It hands a connection to the library after the TLS
//! handshake, if there is one. Handshakes take long, so they run on a separate thread and do not
//! delay messages.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use mote_core::seats::{Seat, Seats, Standing};
use mote_core::shares::address_owner;
use mqtt5::broker::client_handler::ClientHandler;
use mqtt5::broker::router::MessageRouter;
use mqtt5::broker::sys_topics::BrokerStats;
use mqtt5::broker::tls_acceptor::TlsStreamWrapper;
use mqtt5::broker::transport::BrokerTransport;
use mqtt5::broker::{
    AuthProvider, AuthResult, BrokerConfig, DynamicStorage, MqttBroker, ResourceMonitor,
};
use mqtt5::error::Result;
use mqtt5::packet::connect::ConnectPacket;
use parking_lot::Mutex;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite,
    AsyncWriteExt as _,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::auth::{Holder, Rules};

/// The protocol that a client must list if it lists protocols (ALPN).
pub(crate) const ALPN: &str = "mqtt";
/// How long a client may take for the handshake. The library allows the same time for the CONNECT.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connections may take to end. Afterwards the library waits 5 s for its own connections,
/// and the node kills the program after 8 s.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// Pause after accepting a connection failed, for example because too many files are open.
const PAUSE: Duration = Duration::from_millis(100);

/// What the library needs to serve a connection. Its own listener uses the same parts.
pub(crate) struct Service {
    config: Arc<BrokerConfig>,
    rules: Arc<Rules>,
    router: Arc<MessageRouter>,
    storage: Option<Arc<DynamicStorage>>,
    stats: Arc<BrokerStats>,
    monitor: Arc<ResourceMonitor>,
    /// The seats for connections. The library counts clients only after their CONNECT. These seats
    /// also count handshakes, and clients that send nothing.
    seats: Seats<Holder>,
    /// When the log last named a client with an unsupported protocol version.
    version_logged: Mutex<Option<Instant>>,
}

impl Service {
    /// Takes the parts from a broker that was made with `config` and these rules.
    pub(crate) fn of(
        broker: &MqttBroker,
        config: BrokerConfig,
        rules: Arc<Rules>,
        seats: Seats<Holder>,
    ) -> Self {
        Self {
            seats,
            version_logged: Mutex::new(None),
            config: Arc::new(config),
            rules,
            router: broker.router(),
            storage: broker.storage(),
            stats: broker.stats(),
            monitor: broker.resource_monitor(),
        }
    }

    /// Serves a client at `from` until it leaves, `stop` ends, others need its seat, or its user is
    /// removed. `names` are the names in the client's certificate; empty if it has shown no
    /// certificate.
    async fn serve(
        &self,
        transport: BrokerTransport,
        names: Vec<String>,
        (from, seat): (SocketAddr, Arc<Seat<Holder>>),
        mut stop: broadcast::Receiver<()>,
    ) {
        let rules: Arc<dyn AuthProvider> = match &names[..] {
            [] => self.rules.clone(),
            _ => Arc::new(Certified { rules: self.rules.clone(), names }),
        };
        let (end, ending) = broadcast::channel(1);
        let handler = ClientHandler::new(
            transport,
            from,
            self.config.clone(),
            self.router.clone(),
            rules,
            self.storage.clone(),
            self.stats.clone(),
            self.monitor.clone(),
            ending,
        );
        let revoked = self.rules.enter(from, seat.clone());
        // An error concerns only this client, and the library reports it.
        let mut run = pin!(handler.run());
        let is_over = tokio::select! {
            _ = &mut run => true,
            _ = stop.recv() => false,
            () = seat.ended() => {
                self.rules.note_displaced(from, |holder| self.seats.taken_by(holder));
                // A client that was not admitted leaves nothing to clean up.
                seat.standing() == Standing::Unproven
            }
            () = revoked.notified() => false,
        };
        if !is_over {
            let _ = end.send(());
            let _ = timeout(END_PATIENCE, run).await;
        }
        self.rules.leave(from);
    }

    /// Refuses a client that speaks MQTT 3.1, and logs this.
    async fn refuse_version(&self, stream: impl AsyncRead + AsyncWrite + Unpin, from: SocketAddr) {
        let is_new = {
            let mut logged = self.version_logged.lock();
            let is_new = logged.is_none_or(|at| at.elapsed() >= VERSION_LOG_EVERY);
            if is_new {
                *logged = Some(Instant::now());
            }
            is_new
        };
        if is_new {
            tracing::warn!(%from, "a client that speaks MQTT 3.1 is refused: it must speak 3.1.1 or 5");
        }
        let _ = timeout(END_PATIENCE, refuse_version(stream)).await;
    }
}

/// The holder for an address. Different loopback addresses count as different programs of this
/// machine.
fn owner(from: SocketAddr) -> Holder {
    Holder::Address(match from.ip().to_canonical() {
        v4 @ IpAddr::V4(_) => v4,
        v6 @ IpAddr::V6(_) => address_owner(v6),
    })
}

/// The answer to a client that speaks MQTT 3.1: unacceptable protocol version (MQTT 3.1.1,
/// 3.2.2.3). The library would close the connection without an answer.
const WRONG_VERSION: [u8; 4] = [0x20, 2, 0, 1];

/// How often the log names a client with such a version.
const VERSION_LOG_EVERY: Duration = Duration::from_secs(60);

/// Whether the first message of a client is a CONNECT of MQTT 3.1. The message stays in the socket.
async fn speaks_version_3_1(stream: &TcpStream) -> bool {
    let mut head = [0; 16];
    let count = stream.peek(&mut head).await.unwrap_or(0);
    is_connect_3_1(&head[..count])
}

/// Whether the first message of a client over TLS is a CONNECT of MQTT 3.1. The message stays in
/// the buffer of the session.
async fn speaks_version_3_1_over_tls(session: &mut (impl AsyncBufRead + Unpin)) -> bool {
    session.fill_buf().await.is_ok_and(is_connect_3_1)
}

/// Answers a client that speaks MQTT 3.1, and reads until the client closes. Closing a socket that
/// still has unread bytes resets the connection, and the answer could be lost.
async fn refuse_version(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    stream.write_all(&WRONG_VERSION).await?;
    stream.shutdown().await?;
    let mut rest = [0; 1_024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

fn is_connect_3_1(head: &[u8]) -> bool {
    let Some((0x10, rest)) = head.split_first() else { return false };
    // The length of the message has one to four bytes. All of them except the last have the high
    // bit set.
    let length = rest.iter().position(|byte| byte & 0x80 == 0).map_or(4, |last| last + 1);
    rest.get(length..).is_some_and(|name| name.starts_with(b"\0\x06MQIsdp"))
}

/// Accepts connections without TLS and serves them until `stop` ends.
pub(crate) async fn accept_plain(
    listener: TcpListener,
    service: Arc<Service>,
    mut to_stop: oneshot::Receiver<()>,
) {
    let (ending, _) = broadcast::channel(1);
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut to_stop => break,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::error!("a connection cannot be accepted: {error}");
                sleep(PAUSE).await;
                continue;
            }
        };
        let Ok(seat) = service.seats.take(owner(from)) else { continue };
        let _ = stream.set_nodelay(true);
        let service = service.clone();
        let open = open.clone();
        let stop = ending.subscribe();
        let mut to_end = ending.subscribe();
        tokio::spawn(async move {
            let is_old = tokio::select! {
                is_old = timeout(HANDSHAKE_TIMEOUT, speaks_version_3_1(&stream)) => is_old.unwrap_or(false),
                _ = to_end.recv() => return,
                () = seat.ended() => return,
            };
            if is_old {
                return service.refuse_version(stream, from).await;
            }
            let transport = BrokerTransport::tcp(stream);
            service.serve(transport, Vec::new(), (from, Arc::new(seat)), stop).await;
            drop(open);
        });
    }
    drop((listener, open));
    let _ = ending.send(());
    let _ = timeout(END_PATIENCE, all_closed.recv()).await;
}

/// The thread that accepts connections.
pub(crate) struct Front {
    stop: oneshot::Sender<()>,
    stopped: oneshot::Receiver<()>,
}

impl Front {
    /// Starts to accept connections. They are served on the runtime of the caller.
    pub(crate) fn start(
        listener: TcpListener,
        server: Arc<ServerConfig>,
        service: Arc<Service>,
    ) -> io::Result<Self> {
        let (stop, to_stop) = oneshot::channel();
        let (ended, stopped) = oneshot::channel();
        let messages = Handle::current();
        let listener = listener.into_std()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("tls".to_owned()).spawn(move || {
            // The sockets of the connections belong to this runtime, so it must last as long as
            // they do.
            if let Err(error) =
                runtime.block_on(accept(listener, server, service, messages, to_stop))
            {
                tracing::error!("there is no listener for TLS: {error}");
            }
            let _ = ended.send(());
        })?;
        Ok(Self { stop, stopped })
    }

    /// Ends all connections. Returns when their sessions are in the storage.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.stopped.await;
    }
}

async fn accept(
    listener: std::net::TcpListener,
    server: Arc<ServerConfig>,
    service: Arc<Service>,
    messages: Handle,
    mut to_stop: oneshot::Receiver<()>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let acceptor = TlsAcceptor::from(server);
    let (ending, _) = broadcast::channel(1);
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    let mut handshakes = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut to_stop => break,
        };
        while handshakes.try_join_next().is_some() {}
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::error!("a connection with TLS cannot be accepted: {error}");
                sleep(PAUSE).await;
                continue;
            }
        };
        let Ok(seat) = service.seats.take(owner(from)) else { continue };
        let acceptor = acceptor.clone();
        let service = service.clone();
        let messages = messages.clone();
        let ending = ending.clone();
        let open = open.clone();
        let seat = Arc::new(seat);
        handshakes.spawn(async move {
            let _ = stream.set_nodelay(true);
            let handshake = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
            let session = tokio::select! {
                session = handshake => session,
                () = seat.ended() => return,
            };
            let Ok(Ok(mut session)) = session else { return };
            let stop = ending.subscribe();
            let mut to_end = ending.subscribe();
            messages.spawn(async move {
                let asked = speaks_version_3_1_over_tls(&mut session);
                let is_old = tokio::select! {
                    is_old = timeout(HANDSHAKE_TIMEOUT, asked) => is_old.unwrap_or(false),
                    _ = to_end.recv() => return,
                    () = seat.ended() => return,
                };
                if is_old {
                    return service.refuse_version(session, from).await;
                }
                let chain = session.get_ref().1.peer_certificates();
                let names = chain.and_then(|all| all.first()).map(mote_tls::names);
                let transport = BrokerTransport::tls(TlsStreamWrapper::new(session));
                let names = names.unwrap_or_default();
                service.serve(transport, names, (from, seat), stop).await;
                drop(open);
            });
        });
    }
    handshakes.shutdown().await;
    drop(open);
    let _ = ending.send(());
    let _ = timeout(END_PATIENCE, all_closed.recv()).await;
    Ok(())
}

/// Rules for one client that has shown a valid certificate.
struct Certified {
    rules: Arc<Rules>,
    names: Vec<String>,
}

impl AuthProvider for Certified {
    fn authenticate<'a>(
        &'a self,
        connect: &'a ConnectPacket,
        from: SocketAddr,
    ) -> Pin<Box<dyn Future<Output = Result<AuthResult>> + Send + 'a>> {
        Box::pin(self.rules.admit(connect, from, &self.names))
    }

    fn authorize_publish<'a>(
        &'a self,
        client_id: &str,
        user: Option<&'a str>,
        topic: &'a str,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        self.rules.authorize_publish(client_id, user, topic)
    }

    fn authorize_subscribe<'a>(
        &'a self,
        client_id: &str,
        user: Option<&'a str>,
        filter: &'a str,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        self.rules.authorize_subscribe(client_id, user, filter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_message_over_tls_stays_for_its_reader() {
        let message = b"\x10\x0f\0\x06MQIsdp\x03\x02\0\x3c\0\x01a";
        let mut session = tokio::io::BufReader::new(&message[..]);
        assert!(speaks_version_3_1_over_tls(&mut session).await);
        let mut read = Vec::new();
        session.read_to_end(&mut read).await.expect("in memory");
        assert_eq!(read, message);
        assert!(!speaks_version_3_1_over_tls(&mut session).await, "it has ended");
    }

    #[test]
    fn clients_of_version_3_1_are_known_by_their_first_message() {
        assert!(is_connect_3_1(b"\x10\x17\0\x06MQIsdp\x03\x02"));
        assert!(is_connect_3_1(b"\x10\x97\x01\0\x06MQIsdp\x03"));
        for other in [
            &b"\x10\x10\0\x04MQTT\x04\x02"[..],
            b"\x10",
            b"",
            b"\x10\xff\xff\xff\xff",
            b"GET / HTTP/1.1\r\n",
        ] {
            assert!(!is_connect_3_1(other), "{other:?}");
        }
    }
}
