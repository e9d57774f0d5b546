//! The connection to the servers: how it is made and restored, and the text that says why there is
//! none.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{
    Client, ConnectErrorKind, ConnectOptions, Event, HeaderMap, Message, Request, RequestErrorKind,
    ServerAddr,
};
use bytes::Bytes;
use mote_journal::nats::{NatsError, Settings};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// How long one attempt to connect may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(3);
/// How long a request may wait for a connection and for its answer. This is long enough for the
/// restart of a server.
pub(crate) const PATIENCE: Duration = Duration::from_secs(6);
/// The longest pause between attempts to connect.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The most requests that wait for the socket.
const CAPACITY: usize = 16_384;

/// The client, whether it is connected, and how many times a connection was lost.
#[derive(Debug, Clone, Default)]
struct Link {
    client: Option<Client>,
    is_up: bool,
    /// Increases each time a connection is lost.
    losses: u64,
}

#[derive(Clone)]
pub(crate) struct Connection(Arc<Shared>);

struct Shared {
    settings: Settings,
    link: watch::Sender<Link>,
    /// Why there is no connection. Empty if there is one.
    problem: Mutex<String>,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Lost {
    /// There is no receiver for the subject.
    NoResponders,
    /// The request was refused before it was sent.
    Refused(String),
    /// The request may have arrived.
    Unknown(String),
}

impl Connection {
    /// Starts connecting in the background.
    pub(crate) fn start(settings: Settings, authorities: Option<PathBuf>) -> io::Result<Self> {
        let mut servers = Vec::new();
        for server in &settings.servers {
            servers.push(server.parse::<ServerAddr>()?);
        }
        // Checked here, because an error in the credentials or the file would otherwise appear only
        // at the first attempt to connect.
        options(&settings, authorities.as_ref())?;
        let connection = Self(Arc::new(Shared {
            settings,
            link: watch::Sender::default(),
            problem: Mutex::new("not connected yet".to_owned()),
        }));
        tokio::spawn(connection.clone().connect(servers, authorities));
        Ok(connection)
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    async fn connect(self, servers: Vec<ServerAddr>, authorities: Option<PathBuf>) {
        let mut pause = Duration::from_millis(50);
        loop {
            let connected = match options(&self.0.settings, authorities.as_ref()) {
                Ok(options) => {
                    let shared = self.0.clone();
                    let options = options.event_callback(move |event| {
                        shared.saw(&event);
                        std::future::ready(())
                    });
                    options.connect(&servers).await
                }
                Err(error) => {
                    self.fails(&error.to_string());
                    return;
                }
            };
            match connected {
                Ok(client) => {
                    self.0.problem.lock().clear();
                    tracing::info!("connected to {}", self.servers());
                    self.0.link.send_modify(|link| {
                        link.client = Some(client);
                        link.is_up = true;
                    });
                    return;
                }
                Err(error) => self.fails(&explain(error.kind(), &error)),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn fails(&self, problem: &str) {
        let mut known = self.0.problem.lock();
        if *known != problem {
            tracing::warn!("cannot reach {}: {problem}; trying again", self.servers());
            *known = problem.to_owned();
        }
    }

    fn servers(&self) -> String {
        self.0.settings.servers.join(", ")
    }

    /// The error that the node receives if a request cannot be answered.
    pub(crate) fn unreachable(&self, problem: &str) -> NatsError {
        let servers = self.servers();
        NatsError::Unreachable(format!(
            "the NATS server {servers} does not answer ({problem}); start it, or correct the \
             settings nats and nats_credentials of the node"
        ))
    }

    /// The error that the node receives if a request was not answered in time. It says why there is
    /// no connection, or `otherwise` if there is a connection.
    pub(crate) fn problem(&self, otherwise: &str) -> NatsError {
        let problem = self.0.problem.lock().clone();
        self.unreachable(if problem.is_empty() { otherwise } else { &problem })
    }

    /// The client, and the number of connections lost so far.
    pub(crate) async fn client_and_losses(
        &self,
        until: Instant,
    ) -> Result<(Client, u64), NatsError> {
        let client = self.client(until).await?;
        Ok((client, self.0.link.borrow().losses))
    }

    /// Waits until more connections have been lost than `losses`.
    pub(crate) async fn lost(&self, losses: u64) {
        let mut link = self.0.link.subscribe();
        // The sender is part of this connection, so it exists as long as this wait.
        let _ = link.wait_for(|link| link.losses > losses).await;
    }

    /// Returns the client once there is a connection.
    pub(crate) async fn client(&self, until: Instant) -> Result<Client, NatsError> {
        let mut link = self.0.link.subscribe();
        let up = timeout_at(until, link.wait_for(|link| link.is_up)).await;
        if let Ok(Ok(link)) = up
            && let Some(client) = &link.client
        {
            return Ok(client.clone());
        }
        Err(self.problem("it did not answer in time"))
    }

    /// Sends a request and waits for its answer.
    pub(crate) async fn request(
        &self,
        subject: String,
        headers: Option<HeaderMap>,
        body: Bytes,
        until: Instant,
    ) -> Result<Message, Lost> {
        let client = match self.client(until).await {
            Ok(client) => client,
            Err(error) => return Err(Lost::Unknown(error.to_string())),
        };
        let losses = self.0.link.borrow().losses;
        let mut request = Request::new().payload(body).timeout(Some(PATIENCE));
        if let Some(headers) = headers {
            request = request.headers(headers);
        }
        let answer = timeout_at(until, async {
            tokio::select! {
                biased;
                answer = client.send_request(subject, request) => Some(answer),
                () = self.lost(losses) => None,
            }
        });
        match answer.await {
            Ok(Some(Ok(message))) => Ok(message),
            Ok(Some(Err(error))) => Err(match error.kind() {
                RequestErrorKind::NoResponders => Lost::NoResponders,
                RequestErrorKind::MaxPayloadExceeded => Lost::Refused(format!(
                    "the message is longer than the server takes ({error}); raise max_payload there"
                )),
                RequestErrorKind::InvalidSubject => Lost::Refused(error.to_string()),
                _ => Lost::Unknown(error.to_string()),
            }),
            Ok(None) => Err(Lost::Unknown("the connection was lost".to_owned())),
            Err(_) => Err(Lost::Unknown("it did not answer in time".to_owned())),
        }
    }
}

impl Shared {
    /// Handles an event that the library reports.
    fn saw(&self, event: &Event) {
        match event {
            Event::Connected => {
                self.problem.lock().clear();
                // During the first connection there is no client yet; `connect` sets it.
                self.link.send_if_modified(|link| {
                    let is_new = link.client.is_some() && !link.is_up;
                    link.is_up |= is_new;
                    if is_new {
                        tracing::info!("connected again");
                    }
                    is_new
                });
            }
            Event::Disconnected | Event::Closed => {
                *self.problem.lock() = "the connection was lost".to_owned();
                tracing::warn!("the connection was lost; trying again");
                self.link.send_modify(|link| {
                    link.is_up = false;
                    link.losses += 1;
                });
            }
            Event::ServerError(error) => *self.problem.lock() = error.to_string(),
            Event::ClientError(error) => {
                let text = error.to_string();
                let text = text.replace("IO error", "the connection is refused");
                *self.problem.lock() = text;
            }
            _ => {}
        }
    }
}

fn options(settings: &Settings, authorities: Option<&PathBuf>) -> io::Result<ConnectOptions> {
    let mut options = ConnectOptions::new()
        .name("mote")
        .connection_timeout(CONNECT_PATIENCE)
        .request_timeout(Some(PATIENCE))
        .ping_interval(Duration::from_secs(5))
        .client_capacity(CAPACITY)
        .subscription_capacity(CAPACITY)
        .max_reconnects(None)
        .reconnect_delay_callback(|attempts| {
            let shift = u32::try_from(attempts.min(5)).unwrap_or(5);
            (Duration::from_millis(25) * (1 << shift)).min(PAUSE_MAX)
        });
    if let Some(path) = authorities {
        options = options.add_root_certificates(path.clone());
    }
    let Some(credentials) = &settings.credentials else { return Ok(options) };
    if credentials.contains("-----BEGIN") {
        return options.credentials(credentials);
    }
    match credentials.trim().split_once(':') {
        Some((user, password)) if !credentials.trim().contains('\n') => {
            Ok(options.user_and_password(user.to_owned(), password.to_owned()))
        }
        _ => Err(io::Error::other(
            "the file of nats_credentials has neither NATS credentials nor one line USER:PASSWORD",
        )),
    }
}

/// Explains why an attempt to connect failed, without revealing what was sent.
fn explain(kind: ConnectErrorKind, error: &dyn std::error::Error) -> String {
    let what = match kind {
        ConnectErrorKind::Dns => "the name of the host is not known",
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            return "the server refuses the credentials; see nats_credentials".to_owned();
        }
        ConnectErrorKind::TimedOut => return "it did not accept the connection in time".to_owned(),
        ConnectErrorKind::Tls => "TLS failed",
        _ => "the connection failed",
    };
    match error.source() {
        Some(source) => format!("{what}: {source}"),
        None => what.to_owned(),
    }
}
