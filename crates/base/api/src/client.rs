//! An async client of the management API. It connects to the node's Unix socket, or over TCP with a
//! token.
//!
//! Each call makes a new connection. That costs little, because the command line makes few calls,
//! and a new connection is never stale.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Body;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

pub use crate::endpoint::{Endpoint, NotAnAddress};
use crate::error::Problem;
use crate::exit;
use crate::invocations::{AcceptedInvocation, AcceptedInvocations, CancelledInvocation};
use crate::openwhisk::{WhiskManifest, WhiskResult};
use crate::paths;
use crate::recording::{self, RecordedCall};
use crate::types::{
    DeployProgress, DeployResult, DoctorReport, Function, FunctionList, InvokeAnswer,
    InvokeRequest, LogLine, NodeStatus, RegistryLogin, RevisionList, ScaleRequest, ScaleResult,
    ScheduleList, Secret, SecretList, TrafficRequest, TrafficResult,
};

/// The largest answer that the client holds in memory, in bytes.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The longest log line that the client accepts, in bytes.
const LOG_LINE_BYTES_MAX: usize = 1 << 20;
/// The time limit of a call, unless the user of the client sets another. Deploys have the limit
/// [`DEPLOY_TIMEOUT`].
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// The time limit of a deploy. It is long because installing packages on a small board takes minutes.
pub const DEPLOY_TIMEOUT: Duration = Duration::from_secs(900);

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The text is not the address of a node.
    #[error(transparent)]
    Address(#[from] NotAnAddress),
    /// No node listens at the address, or the connection was refused.
    #[error("no node answers at {endpoint}: {reason}")]
    Unreachable {
        /// The address that was tried.
        endpoint: String,
        /// The system's error message.
        reason: String,
    },
    /// The certificate of the other end does not prove that it is the node.
    #[error("the certificate of {endpoint} is not trusted: {reason}")]
    Untrusted {
        /// The address that was tried.
        endpoint: String,
        /// The reason, which includes the SHA-256 of the certificate.
        reason: String,
    },
    /// The connection was made, but no answer arrived within the time limit.
    #[error("{endpoint} did not answer in {} s", .timeout.as_secs())]
    Timeout {
        /// The address that was tried.
        endpoint: String,
        /// The time limit.
        timeout: Duration,
    },
    /// The connection ended before the whole answer had arrived.
    #[error("the connection to the node at {endpoint} broke before it answered: {reason}")]
    Lost {
        /// The address of the node.
        endpoint: String,
        /// The reason why the connection ended.
        reason: String,
    },
    /// The node refused the request for this reason.
    #[error("{}", .0.detail)]
    Problem(Box<Problem>),
    /// This client does not understand the answer.
    #[error("{endpoint} sent an unexpected answer: {reason}")]
    Unexpected {
        /// The address of the node.
        endpoint: String,
        /// The reason why the answer cannot be understood.
        reason: String,
    },
    /// The request cannot be sent, for example because a header contains a line break.
    #[error("{0}")]
    Request(String),
}

impl ClientError {
    /// The code that messages show and `mote explain` explains.
    pub fn code(&self) -> &str {
        match self {
            ClientError::Address(_) | ClientError::Request(_) => "M0101",
            ClientError::Unreachable { .. } => "M0201",
            ClientError::Timeout { .. } => "M0204",
            ClientError::Untrusted { .. } => "M0208",
            ClientError::Lost { .. } => "M0205",
            ClientError::Unexpected { .. } => "M0202",
            ClientError::Problem(problem) => &problem.code,
        }
    }

    /// The exit code of a command that ends with this error.
    pub fn exit_code(&self) -> u8 {
        crate::explain(self.code()).map_or(exit::FAILED, |row| row.exit)
    }
}

/// Selects the log lines to return.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Whether to keep the stream open for new lines.
    pub follow: bool,
    /// Only lines since this time. The value is an RFC 3339 time or a duration such as `10m`.
    pub since: Option<String>,
    /// Only this many of the latest lines.
    pub tail: Option<u64>,
    /// Only the lines of this invocation.
    pub invocation: Option<String>,
    /// Only lines whose message contains this text.
    pub grep: Option<String>,
    /// Only lines of at least this level: `debug`, `info`, `warn` or `error`.
    pub level: Option<String>,
}

/// The options of a deploy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeployOptions {
    /// Whether to check everything but change nothing.
    pub dry_run: bool,
    /// Whether the new revision receives no share of the traffic.
    pub no_traffic: bool,
    /// A tag for the new revision. As with `no_traffic`, the revision receives no share of the traffic;
    /// callers reach it by the tag.
    pub tag: Option<String>,
    /// Whether to skip the deploy if a revision with this code and these settings receives traffic, or
    /// is the newest one that ever has.
    pub if_changed: bool,
    /// The login at the registry of a container image.
    pub registry_login: Option<RegistryLogin>,
}

/// Selects the accepted invocations to list.
#[derive(Debug, Clone, Copy, Default)]
pub struct InvocationFilter<'a> {
    /// Only the invocations of this function.
    pub function: Option<&'a str>,
    /// Only the invocations in this state.
    pub state: Option<&'a str>,
    /// At most this many invocations.
    pub limit: Option<usize>,
    /// Whether to list only the runs of chains.
    pub runs: bool,
}

/// A connection that the client can read and write.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// The future of a TLS handshake. It returns the secured connection.
pub type Securing = Pin<Box<dyn Future<Output = std::io::Result<Box<dyn Stream>>> + Send>>;

/// Makes connections secure. The implementation knows TLS and the trusted certificates. A program that
/// only reaches nodes on its own machine needs no implementation.
pub trait Secure: std::fmt::Debug + Send + Sync {
    /// Performs the handshake with the other end, whose name or address is `host`. If the certificate
    /// of the other end is not trusted, the error has the kind `InvalidData` and gives the reason.
    fn secure(&self, host: &str, stream: TcpStream) -> Securing;
}

/// A client of one node. A clone is cheap.
#[derive(Debug, Clone)]
pub struct Client {
    endpoint: Endpoint,
    secure: Option<Arc<dyn Secure>>,
    namespace: Option<Arc<str>>,
    pub(crate) timeout: Duration,
}

impl Client {
    /// Makes a client with the default time limit. The client connects only when a call is made.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, secure: None, namespace: None, timeout: TIMEOUT_DEFAULT }
    }

    /// Sets the time limit of each call.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the way to make connections secure, which addresses with `https://` need.
    #[must_use]
    pub fn with_secure(mut self, secure: Arc<dyn Secure>) -> Self {
        self.secure = Some(secure);
        self
    }

    /// Sets the namespace of names that are written without one.
    #[must_use]
    pub fn with_namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// The address to which the client connects.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the node's properties and current state.
    pub async fn status(&self) -> Result<NodeStatus, ClientError> {
        self.get(paths::STATUS).await
    }

    /// Returns the checks of the node's machine.
    pub async fn doctor(&self) -> Result<DoctorReport, ClientError> {
        self.get(paths::DOCTOR).await
    }

    /// Returns all functions.
    pub async fn functions(&self) -> Result<FunctionList, ClientError> {
        self.get(paths::FUNCTIONS).await
    }

    /// Returns one function.
    pub async fn function(&self, name: &str) -> Result<Function, ClientError> {
        self.get(&function_path(name)).await
    }

    /// Deploys `tar` as a new revision of `name`. Waits until the revision is ready or the node refuses
    /// it.
    pub async fn deploy(
        &self,
        name: &str,
        tar: Bytes,
        options: &DeployOptions,
    ) -> Result<DeployResult, ClientError> {
        let mut query = format!("dry_run={}", options.dry_run);
        if options.no_traffic {
            query.push_str("&no_traffic=true");
        }
        if options.if_changed {
            query.push_str("&if_changed=true");
        }
        if let Some(tag) = &options.tag {
            query.push_str(&format!("&tag={}", encode(tag)));
        }
        let path = format!("{}?{query}", function_path(name));
        let mut request =
            self.request(Method::PUT, &path)?.header("content-type", "application/x-tar");
        if let Some(login) = &options.registry_login {
            let mut value = HeaderValue::from_str(&login.encode())
                .map_err(|error| ClientError::Request(error.to_string()))?;
            value.set_sensitive(true);
            request = request.header(paths::HEADER_REGISTRY_LOGIN, value);
        }
        let request = built(request.body(Full::new(tar)))?;
        let limit = self.timeout.max(DEPLOY_TIMEOUT);
        let (status, _, body) = self.call(request, limit).await?;
        self.decode(status, &body)
    }

    /// Returns the progress of a deploy that waits for a container image.
    pub async fn deploy_progress(&self, name: &str) -> Result<DeployProgress, ClientError> {
        self.get(&format!("{}/progress", function_path(name))).await
    }

    /// Returns the stored revisions of a function, newest first.
    pub async fn revisions(&self, name: &str) -> Result<RevisionList, ClientError> {
        self.get(&format!("{}/revisions", function_path(name))).await
    }

    /// Splits a function's traffic. Waits until every revision in the split is ready, or the node
    /// refuses the split.
    pub async fn traffic(
        &self,
        name: &str,
        wish: &TrafficRequest,
    ) -> Result<TrafficResult, ClientError> {
        let path = format!("{}/traffic", function_path(name));
        self.send_json(Method::PUT, &path, wish, self.timeout.max(DEPLOY_TIMEOUT)).await
    }

    /// Sends all traffic back to `revision`. If `revision` is `None`, the traffic goes to the revision
    /// that was live before. Waits until the revision is ready and receives the traffic, or until the
    /// node refuses.
    pub async fn rollback(
        &self,
        name: &str,
        revision: Option<u64>,
    ) -> Result<TrafficResult, ClientError> {
        let query = revision.map_or_else(String::new, |number| format!("?revision={number}"));
        let path = format!("{}/rollback{query}", function_path(name));
        let request = built(self.request(Method::POST, &path)?.body(Full::default()))?;
        let (status, _, body) = self.call(request, self.timeout.max(DEPLOY_TIMEOUT)).await?;
        self.decode(status, &body)
    }

    /// Creates the entities of an OpenWhisk manifest. If one of them cannot be created, returns the
    /// reason.
    pub async fn apply_openwhisk(
        &self,
        manifest: &WhiskManifest,
    ) -> Result<WhiskResult, ClientError> {
        self.send_json(Method::PUT, paths::OPENWHISK, manifest, self.timeout).await
    }

    /// Removes a function.
    pub async fn remove(&self, name: &str) -> Result<(), ClientError> {
        self.delete(&function_path(name)).await
    }

    /// Returns accepted invocations, newest first, without their answers.
    pub async fn invocations(
        &self,
        filter: &InvocationFilter<'_>,
    ) -> Result<AcceptedInvocations, ClientError> {
        let mut query = String::new();
        let mut add = |name: &str, value: &str| {
            query.push(if query.is_empty() { '?' } else { '&' });
            query.push_str(&format!("{name}={}", encode(value)));
        };
        if let Some(function) = filter.function {
            add("function", function);
        }
        if let Some(state) = filter.state {
            add("state", state);
        }
        if let Some(limit) = filter.limit {
            add("limit", &limit.to_string());
        }
        if filter.runs {
            add("runs", "true");
        }
        self.get(&format!("{}{query}", paths::INVOCATIONS)).await
    }

    /// Returns one accepted invocation, with its answer if it has ended.
    pub async fn invocation(&self, id: &str) -> Result<AcceptedInvocation, ClientError> {
        self.get(&format!("{}/{}", paths::INVOCATIONS, encode(id))).await
    }

    /// Cancels an accepted invocation.
    pub async fn cancel_invocation(&self, id: &str) -> Result<CancelledInvocation, ClientError> {
        let path = format!("{}/{}", paths::INVOCATIONS, encode(id));
        let request = built(self.request(Method::DELETE, &path)?.body(Full::default()))?;
        let (status, _, body) = self.call(request, self.timeout).await?;
        self.decode(status, &body)
    }

    /// Runs a dead letter again.
    pub async fn retry_invocation(&self, id: &str) -> Result<(), ClientError> {
        let path = format!("{}/{}/retry", paths::INVOCATIONS, encode(id));
        let request = built(self.request(Method::POST, &path)?.body(Full::default()))?;
        let (status, _, body) = self.call(request, self.timeout).await?;
        if status.is_success() { Ok(()) } else { Err(self.refusal(status, &body)) }
    }

    /// Removes a dead letter.
    pub async fn delete_dead_letter(&self, id: &str) -> Result<(), ClientError> {
        self.delete(&format!("{}/{}", paths::DEAD_LETTERS, encode(id))).await
    }

    /// Returns the schedules of all functions.
    pub async fn schedules(&self) -> Result<ScheduleList, ClientError> {
        self.get(paths::SCHEDULES).await
    }

    /// Returns all secrets, without their values.
    pub async fn secrets(&self) -> Result<SecretList, ClientError> {
        self.get(paths::SECRETS).await
    }

    /// Creates or replaces a secret.
    pub async fn put_secret(&self, name: &str, value: String) -> Result<Secret, ClientError> {
        let request = self.request(Method::PUT, &secret_path(name))?;
        let request = request.header("content-type", "text/plain; charset=utf-8");
        let request = built(request.body(Full::new(Bytes::from(value))))?;
        let (status, _, body) = self.call(request, self.timeout).await?;
        self.decode(status, &body)
    }

    /// Removes a secret.
    pub async fn remove_secret(&self, name: &str) -> Result<(), ClientError> {
        self.delete(&secret_path(name)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<(), ClientError> {
        let request = self.request(Method::DELETE, path)?;
        let request = built(request.body(Full::default()))?;
        let (status, _, body) = self.call(request, self.timeout).await?;
        if status.is_success() {
            return Ok(());
        }
        Err(self.refusal(status, &body))
    }

    /// Starts or stops instances of a function now, or sets how many there may be.
    pub async fn scale(&self, name: &str, wish: &ScaleRequest) -> Result<ScaleResult, ClientError> {
        let path = format!("{}/scale", function_path(name));
        self.send_json(Method::POST, &path, wish, self.timeout).await
    }

    /// Runs a function once and returns the function's own answer, whatever its status. A fault of
    /// the platform is returned as [`ClientError::Problem`].
    pub async fn invoke(
        &self,
        name: &str,
        invocation: InvokeRequest,
    ) -> Result<InvokeAnswer, ClientError> {
        let path = format!("{}/invoke", function_path(name));
        let request = self
            .request(Method::POST, &path)?
            .header(paths::HEADER_METHOD, &invocation.method)
            .header(paths::HEADER_PATH, &invocation.path);
        let request = with_headers(request, &invocation.headers)?;
        let request = built(request.body(Full::new(Bytes::from(invocation.body))))?;
        let (status, headers, body) = self.call(request, self.timeout).await?;
        let answer = answer(status, &headers, &body);
        let is_problem = headers
            .get("content-type")
            .is_some_and(|value| value.as_bytes().starts_with(b"application/problem+json"));
        // A function may also answer with a problem document. Without the fault header, the document is
        // a refusal by the management API only if its type is one of `mote`'s error codes.
        let is_refusal = answer.fault.is_some()
            || (answer.invocation.is_none()
                && serde_json::from_slice::<Problem>(&body)
                    .is_ok_and(|problem| problem.kind.starts_with("urn:mote:error:")));
        if is_problem && is_refusal {
            return Err(self.refusal(status, &body));
        }
        Ok(answer)
    }

    /// Opens the log stream of a function.
    pub async fn logs(&self, name: &str, query: &LogQuery) -> Result<LogLines, ClientError> {
        let mut pairs = vec![format!("follow={}", query.follow)];
        if let Some(since) = &query.since {
            pairs.push(format!("since={}", encode(since)));
        }
        if let Some(tail) = query.tail {
            pairs.push(format!("tail={tail}"));
        }
        if let Some(invocation) = &query.invocation {
            pairs.push(format!("invocation={}", encode(invocation)));
        }
        if let Some(text) = &query.grep {
            pairs.push(format!("grep={}", encode(text)));
        }
        if let Some(level) = &query.level {
            pairs.push(format!("level={}", encode(level)));
        }
        let path = format!("{}/logs?{}", function_path(name), pairs.join("&"));
        let request = built(self.request(Method::GET, &path)?.body(Full::default()))?;
        let response = self.limited(self.timeout, self.send(request)).await?;
        let status = response.status();
        if !status.is_success() {
            let body = self.collect(response.into_body()).await?;
            return Err(self.refusal(status, &body));
        }
        Ok(self.lines(response.into_body(), LOG_LINE_BYTES_MAX))
    }

    fn lines<T>(&self, body: Incoming, line_bytes_max: usize) -> Lines<T> {
        let (endpoint, buffer) = (self.endpoint.to_string(), BytesMut::new());
        Lines { endpoint, body, buffer, line_bytes_max, of: PhantomData }
    }

    /// Records the calls of a function from now on, until the result is dropped.
    pub async fn recording(&self, name: &str) -> Result<Lines<RecordedCall>, ClientError> {
        let path = format!("{}/recording", function_path(name));
        let request = built(self.request(Method::GET, &path)?.body(Full::default()))?;
        let response = self.limited(self.timeout, self.send(request)).await?;
        let status = response.status();
        if !status.is_success() {
            let body = self.collect(response.into_body()).await?;
            return Err(self.refusal(status, &body));
        }
        Ok(self.lines(response.into_body(), recording::LINE_BYTES_MAX))
    }

    /// Sends a value as JSON and reads the answer.
    pub(crate) async fn send_json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        value: &impl Serialize,
        limit: Duration,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(value).map_err(|e| ClientError::Request(e.to_string()))?;
        let request = self.request(method, path)?.header("content-type", "application/json");
        let request = built(request.body(Full::new(Bytes::from(body))))?;
        let (status, _, body) = self.call(request, limit).await?;
        self.decode(status, &body)
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let request = built(self.request(Method::GET, path)?.body(Full::default()))?;
        let (status, _, body) = self.call(request, self.timeout).await?;
        self.decode(status, &body)
    }

    pub(crate) fn decode<T: DeserializeOwned>(
        &self,
        status: StatusCode,
        body: &[u8],
    ) -> Result<T, ClientError> {
        if !status.is_success() {
            return Err(self.refusal(status, body));
        }
        serde_json::from_slice(body).map_err(|error| self.unexpected(error))
    }

    pub(crate) fn refusal(&self, status: StatusCode, body: &[u8]) -> ClientError {
        match serde_json::from_slice::<Problem>(body) {
            Ok(problem) => ClientError::Problem(Box::new(problem)),
            Err(_) => {
                // The HTTP front's answer for an unknown function is not a complete problem document.
                let front = serde_json::from_slice::<serde_json::Value>(body);
                let is_front = front.is_ok_and(|answer| answer["code"] == "M0501");
                self.unexpected(if is_front {
                    "functions are called there; the management API is at the address of the node's \
                     setting admin"
                        .to_owned()
                } else {
                    format!("status {}; it is not the management API of a node", status.as_u16())
                })
            }
        }
    }

    pub(crate) fn unexpected(&self, reason: impl std::fmt::Display) -> ClientError {
        ClientError::Unexpected { endpoint: self.endpoint.to_string(), reason: reason.to_string() }
    }

    /// Returns the error for a connection that failed: either the data cannot be parsed, or no more
    /// data arrived.
    fn broken(&self, error: &hyper::Error) -> ClientError {
        if error.is_parse() {
            return self.unexpected(error);
        }
        ClientError::Lost { endpoint: self.endpoint.to_string(), reason: error.to_string() }
    }

    pub(crate) fn request(
        &self,
        method: Method,
        path: &str,
    ) -> Result<hyper::http::request::Builder, ClientError> {
        let (host, token) = match &self.endpoint {
            Endpoint::Unix(_) => ("localhost", None),
            Endpoint::Tcp { authority, token, .. } => (authority.as_str(), token.as_ref()),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", host)
            .header("user-agent", concat!("mote/", env!("CARGO_PKG_VERSION")));
        if let Some(namespace) = &self.namespace {
            request = request.header(paths::HEADER_NAMESPACE, &**namespace);
        }
        if let Some(token) = token {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
                ClientError::Request("the token contains illegal characters".to_owned())
            })?;
            value.set_sensitive(true);
            request = request.header("authorization", value);
        }
        Ok(request)
    }

    pub(crate) async fn call(
        &self,
        request: Request<Full<Bytes>>,
        limit: Duration,
    ) -> Result<(StatusCode, hyper::HeaderMap, Bytes), ClientError> {
        self.limited(limit, async {
            let (head, body) = self.send(request).await?.into_parts();
            Ok((head.status, head.headers, self.collect(body).await?))
        })
        .await
    }

    pub(crate) async fn limited<T>(
        &self,
        timeout: Duration,
        work: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| {
            Err(ClientError::Timeout { endpoint: self.endpoint.to_string(), timeout })
        })
    }

    /// Reads the whole body. If its length is known, it is read into one piece of memory.
    pub(crate) async fn collect(&self, body: Incoming) -> Result<Bytes, ClientError> {
        let length = body.size_hint().exact().and_then(|length| usize::try_from(length).ok());
        let mut whole = BytesMut::with_capacity(length.unwrap_or(0).min(ANSWER_BYTES_MAX));
        let mut body = Limited::new(body, ANSWER_BYTES_MAX);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| self.unexpected(error))?;
            frame.into_data().into_iter().for_each(|data| whole.extend_from_slice(&data));
        }
        Ok(whole.freeze())
    }

    pub(crate) async fn send<B>(
        &self,
        request: Request<B>,
    ) -> Result<Response<Incoming>, ClientError>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let unreachable = |error: std::io::Error| ClientError::Unreachable {
            endpoint: self.endpoint.to_string(),
            reason: plain_reason(&error),
        };
        match &self.endpoint {
            Endpoint::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(unreachable)?;
                self.exchange(stream, request).await
            }
            Endpoint::Tcp { authority, tls, .. } => {
                let stream = TcpStream::connect(authority).await.map_err(unreachable)?;
                if !tls {
                    return self.exchange(stream, request).await;
                }
                let secure = self.secure.as_ref().ok_or_else(|| {
                    ClientError::Request(format!("this program cannot use {}", self.endpoint))
                })?;
                let host = authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host);
                let stream = secure.secure(host, stream).await.map_err(|error| {
                    let endpoint = self.endpoint.to_string();
                    match error.kind() {
                        std::io::ErrorKind::InvalidData => {
                            ClientError::Untrusted { endpoint, reason: error.to_string() }
                        }
                        _ => unreachable(error),
                    }
                })?;
                self.exchange(stream, request).await
            }
        }
    }

    async fn exchange<S, B>(
        &self,
        stream: S,
        request: Request<B>,
    ) -> Result<Response<Incoming>, ClientError>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.broken(&error))?;
        // The task ends when the body of the answer is dropped or has been read to its end.
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(|error| self.broken(&error))
    }
}

/// Calls a function at its own HTTP address, in the same way as any other client. `url` is
/// `http://host:port/path`, and the path of the request is appended to it.
pub async fn call_url(
    url: &str,
    invocation: InvokeRequest,
    timeout: Duration,
) -> Result<InvokeAnswer, ClientError> {
    let rest = url.strip_prefix("http://").ok_or_else(|| NotAnAddress(url.to_owned()))?;
    let (authority, base) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let client = Client::new(Endpoint::parse(&format!("http://{authority}"), None)?);
    if base.contains(['?', '#']) {
        return Err(NotAnAddress(url.to_owned()).into());
    }
    let path = joined(base, &invocation.path);
    let method = Method::from_bytes(invocation.method.as_bytes())
        .map_err(|_| ClientError::Request(format!("not a method: {}", invocation.method)))?;
    let request = with_headers(client.request(method, &path)?, &invocation.headers)?;
    let request = built(request.body(Full::new(Bytes::from(invocation.body))))?;
    let (status, headers, body) = client.call(request, timeout).await?;
    Ok(answer(status, &headers, &body))
}

/// The part of a request's path that follows the function's address. The address itself stands for
/// the path `/`.
fn joined(base: &str, path: &str) -> String {
    let base = base.trim_end_matches('/');
    match path.strip_prefix('/') {
        Some(rest) if !base.is_empty() && (rest.is_empty() || rest.starts_with('?')) => {
            format!("{base}{rest}")
        }
        _ => format!("{base}{path}"),
    }
}

fn with_headers(
    mut request: hyper::http::request::Builder,
    headers: &[(String, String)],
) -> Result<hyper::http::request::Builder, ClientError> {
    for (name, value) in headers {
        let bad = || ClientError::Request(format!("not a header: {}", name.escape_debug()));
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
        request = request.header(header, HeaderValue::from_str(value).map_err(|_| bad())?);
    }
    Ok(request)
}

fn answer(status: StatusCode, headers: &hyper::HeaderMap, body: &Bytes) -> InvokeAnswer {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    InvokeAnswer {
        status: status.as_u16(),
        invocation: headers.get(paths::HEADER_INVOCATION).map(text),
        fault: headers.get(paths::HEADER_FAULT).map(text),
        headers: headers
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), text(value)))
            .collect(),
        body: body.to_vec(),
    }
}

/// The lines of a log, in the order in which they arrive.
pub type LogLines = Lines<LogLine>;

/// JSON values, one per line, in the order in which they arrive.
#[derive(Debug)]
pub struct Lines<T> {
    endpoint: String,
    body: Incoming,
    buffer: BytesMut,
    line_bytes_max: usize,
    of: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Lines<T> {
    /// Waits for the next line; `None` when the node ends the stream. There is no time limit.
    /// Dropping the future between two lines loses no line.
    pub async fn next(&mut self) -> Result<Option<T>, ClientError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue; // a keep-alive
                }
                return serde_json::from_slice(&line)
                    .map(Some)
                    .map_err(|error| self.unexpected(&error));
            }
            if self.buffer.len() > self.line_bytes_max {
                return Err(self.unexpected(&"a line has no end"));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
                Some(Err(error)) => return Err(self.unexpected(&error)),
            }
        }
    }

    fn unexpected(&self, reason: &dyn std::fmt::Display) -> ClientError {
        ClientError::Unexpected { endpoint: self.endpoint.clone(), reason: reason.to_string() }
    }
}

pub(crate) fn built<T>(
    request: Result<Request<T>, hyper::http::Error>,
) -> Result<Request<T>, ClientError> {
    request.map_err(|error| ClientError::Request(error.to_string()))
}

pub(crate) fn function_path(name: &str) -> String {
    paths::function(&encode(name))
}

fn secret_path(name: &str) -> String {
    format!("{}/{}", paths::SECRETS, encode(name))
}

/// Percent-encodes every character except the unreserved ones (RFC 3986).
pub(crate) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Returns the system's error message without the error number.
fn plain_reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    let end = text.find(" (os error").unwrap_or(text.len());
    text[..end].to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_stay_in_their_place() {
        assert_eq!(function_path("../x?y"), "/v1/functions/..%2Fx%3Fy");
    }

    #[test]
    fn a_path_is_below_the_address() {
        for (base, path, expected) in [
            ("", "/", "/"),
            ("", "/a/", "/a/"),
            ("/f", "/", "/f"),
            ("/f/", "/", "/f"),
            ("/f/", "/?a=1", "/f?a=1"),
            ("/f", "/a/?b=/", "/f/a/?b=/"),
        ] {
            assert_eq!(joined(base, path), expected, "{base} {path}");
        }
    }
}
