//! Sends records to a collector, in batches: OTLP over HTTP with protobuf, or over gRPC.
//!
//! Records wait in a bounded queue while the collector does not answer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use bytes::{BufMut as _, Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use hyper::{Method, Request, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use mote_outgoing::{Outgoing, Reach};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// The maximum number of waiting records, and of their bytes. Further records are left out, but
/// counted.
const WAITING_MAX: usize = 4_096;
const WAITING_BYTES_MAX: usize = 4 << 20;
/// The maximum number of records in one request, and of their bytes. Collectors take at most 4 MiB
/// over gRPC.
const BATCH: usize = 512;
const BATCH_BYTES: usize = 1 << 20;
/// How long records wait, so that one request takes many of them.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after a failed request.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two messages about the same trouble in the node's own log.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// The shortest pause after a failed request, even when the node stops.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Statuses of gRPC after which a later request may succeed: deadline exceeded, resource exhausted,
/// unavailable.
const GRPC_TEMPORARY: [&str; 3] = ["4", "8", "14"];
const GRPC_UNIMPLEMENTED: &str = "12";
/// How the path of an address ends if it names the path for traces.
const TRACES_PATH: &str = "/v1/traces";

/// Checks the address of a collector. The error says which form is expected.
pub(crate) fn check(url: &str) -> Result<(), String> {
    let wanted = || "http://HOST:4318, https://HOST or grpc://HOST:4317".to_owned();
    let uri: Uri = url.parse().map_err(|_| wanted())?;
    let is_known = matches!(uri.scheme_str(), Some("http" | "https" | "grpc"));
    let has_host = uri.host().is_some_and(|host| !host.is_empty());
    (is_known && has_host).then_some(()).ok_or_else(wanted)
}

/// What is sent to a collector.
pub(crate) trait Record: Send + Sync + Sized + 'static {
    /// What the records are, for messages.
    const NAME: &'static str;
    /// The paths to which they are sent.
    const HTTP_PATH: &'static str;
    const GRPC_PATH: &'static str;
    /// Whether nothing more is sent to a collector that does not know such records.
    const IS_OPTIONAL: bool;

    /// The approximate size of the record.
    fn bytes(&self) -> usize;

    /// The message for a batch, encoded.
    fn message(batch: &[Self]) -> Vec<u8>;
}

/// The records that wait to be sent.
#[derive(Debug)]
pub(crate) struct Collector<R>(Arc<Queue<R>>);

#[derive(Debug)]
struct Queue<R> {
    state: Mutex<State<R>>,
    /// Notified when the first record waits, and when somebody waits until all records are sent.
    work: Notify,
    sent: Notify,
}

#[derive(Debug)]
struct State<R> {
    records: VecDeque<R>,
    bytes: usize,
    left_out: u64,
    is_urgent: bool,
    is_sending: bool,
    /// The collector takes no such records.
    is_closed: bool,
}

/// Why a batch was not taken.
enum Failure {
    /// A later request may succeed.
    Unreachable(anyhow::Error),
    Refused(anyhow::Error),
    /// The collector has no receiver for such records.
    Unknown(anyhow::Error),
}

impl<R: Record> Collector<R> {
    pub(crate) fn start(url: String, runtime: &Handle) -> Self {
        let state = State {
            records: VecDeque::new(),
            bytes: 0,
            left_out: 0,
            is_urgent: false,
            is_sending: false,
            is_closed: false,
        };
        let queue = Queue { state: Mutex::new(state), work: Notify::new(), sent: Notify::new() };
        let queue = Arc::new(queue);
        runtime.spawn(run(queue.clone(), url));
        Self(queue)
    }

    /// Takes a record. Never waits.
    pub(crate) fn send(&self, record: R) {
        let mut state = self.0.state.lock();
        if state.is_closed {
            return;
        }
        let bytes = state.bytes + record.bytes();
        if state.records.len() >= WAITING_MAX || bytes > WAITING_BYTES_MAX {
            state.left_out += 1;
            return;
        }
        state.bytes = bytes;
        state.records.push_back(record);
        if state.records.len() == 1 {
            self.0.work.notify_one();
        }
    }

    /// Waits until all records so far are sent.
    pub(crate) async fn flush(&self) {
        loop {
            let sent = self.0.sent.notified();
            {
                let mut state = self.0.state.lock();
                if state.records.is_empty() && !state.is_sending {
                    return;
                }
                state.is_urgent = true;
            }
            self.0.work.notify_one();
            sent.await;
        }
    }
}

impl<R: Record> State<R> {
    /// The next records to send, and how many records were left out before them.
    fn batch(&mut self) -> (Vec<R>, u64) {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < BATCH
            && bytes < BATCH_BYTES
            && let Some(record) = self.records.pop_front()
        {
            bytes += record.bytes();
            batch.push(record);
        }
        self.bytes -= bytes;
        self.is_sending = !batch.is_empty();
        (batch, std::mem::take(&mut self.left_out))
    }

    /// Puts back records that the collector did not take, as far as there is room.
    fn put_back(&mut self, batch: Vec<R>) {
        for record in batch.into_iter().rev() {
            let bytes = self.bytes + record.bytes();
            if self.records.len() >= WAITING_MAX || bytes > WAITING_BYTES_MAX {
                self.left_out += 1;
                continue;
            }
            self.bytes = bytes;
            self.records.push_front(record);
        }
    }
}

async fn run<R: Record>(queue: Arc<Queue<R>>, url: String) {
    let mut pause = PAUSE;
    let mut told: Option<Instant> = None;
    loop {
        if queue.state.lock().records.is_empty() {
            queue.work.notified().await;
        }
        if !queue.state.lock().is_urgent {
            let _ = tokio::time::timeout(pause, queue.work.notified()).await;
        }
        loop {
            let (batch, mut lost) = queue.state.lock().batch();
            if batch.is_empty() {
                queue.state.lock().left_out += lost;
                break;
            }
            let failure = export(&url, &batch).await.err();
            pause = if failure.is_some() { (2 * pause).min(PAUSE_MAX) } else { PAUSE };
            let is_unreachable = matches!(failure, Some(Failure::Unreachable(_)));
            let why = match failure {
                None => "they come faster than it takes them".to_owned(),
                Some(Failure::Unknown(error)) if R::IS_OPTIONAL => {
                    tracing::info!("the collector {url} takes no {}: {error:#}", R::NAME);
                    let mut state = queue.state.lock();
                    (state.is_closed, state.is_sending) = (true, false);
                    state.records = VecDeque::new();
                    drop(state);
                    queue.sent.notify_waiters();
                    return;
                }
                Some(Failure::Unreachable(error)) => {
                    queue.state.lock().put_back(batch);
                    format!("{error:#}")
                }
                Some(Failure::Refused(error) | Failure::Unknown(error)) => {
                    lost += batch.len() as u64;
                    format!("{error:#}")
                }
            };
            let is_due = told.is_none_or(|told| told.elapsed() >= TELL_EVERY);
            if (is_unreachable || lost > 0) && is_due {
                told = Some(Instant::now());
                let name = R::NAME;
                tracing::warn!(lost, "{name} did not reach the collector {url}: {why}");
            } else {
                queue.state.lock().left_out += lost;
            }
            if is_unreachable {
                tokio::time::sleep(PAUSE_MIN).await;
                break;
            }
        }
        let mut state = queue.state.lock();
        (state.is_urgent, state.is_sending) = (false, false);
        drop(state);
        queue.sent.notify_waiters();
    }
}

async fn export<R: Record>(url: &str, batch: &[R]) -> Result<(), Failure> {
    let message = R::message(batch);
    let uri: Uri = url.parse().map_err(|error| Failure::Refused(anyhow!("{error}")))?;
    let sent = async {
        match uri.scheme_str() {
            Some("grpc") => grpc(&uri, R::GRPC_PATH, &message).await,
            _ => http(&uri, R::HTTP_PATH, message).await,
        }
    };
    let in_time = tokio::time::timeout(TIMEOUT, sent).await;
    let late = |_| Failure::Unreachable(anyhow!("it did not answer in time"));
    in_time.map_err(late)?
}

/// The address to which records go, if the collector's address has no path or the path for traces.
/// Any other path is meant only for traces.
fn target(uri: &Uri, path: &str) -> Option<Uri> {
    let text = uri.to_string();
    let base = match uri.path() {
        "" | "/" => text.trim_end_matches('/'),
        _ if path == TRACES_PATH => return Some(uri.clone()),
        _ => text.strip_suffix(TRACES_PATH)?,
    };
    format!("{base}{path}").parse().ok()
}

async fn http(uri: &Uri, path: &str, message: Vec<u8>) -> Result<(), Failure> {
    let unknown =
        || Failure::Unknown(anyhow!("its address names a path that is not {TRACES_PATH}"));
    let target = target(uri, path).ok_or_else(unknown)?;
    let mut fields = HeaderMap::new();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    // The operator names the collector, so it may be anywhere.
    let anywhere = Outgoing { reach: Reach::Machine, ..Outgoing::default() };
    let sent = mote_outgoing::send(
        Method::POST,
        &target,
        fields,
        message.into(),
        &anywhere,
        ANSWER_BYTES_MAX,
    );
    let (status, _, answer) = sent.await.map_err(|error| Failure::Unreachable(error.into()))?;
    let text = String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned();
    let error = || anyhow!("it answered {status}: {}", text.trim());
    match status {
        200..300 => Ok(()),
        404 | 405 | 501 => Err(Failure::Unknown(error())),
        429 | 502..=504 => Err(Failure::Unreachable(error())),
        _ => Err(Failure::Refused(error())),
    }
}

async fn grpc(uri: &Uri, path: &str, message: &[u8]) -> Result<(), Failure> {
    let (status, code, text) = grpc_call(uri, path, message).await.map_err(Failure::Unreachable)?;
    let error = || anyhow!("it answered {status} with grpc-status {code} {text}");
    match (status, code.as_str()) {
        (200, "0") => Ok(()),
        (404, _) | (_, GRPC_UNIMPLEMENTED) => Err(Failure::Unknown(error())),
        (429 | 502..=504, _) => Err(Failure::Unreachable(error())),
        (_, code) if GRPC_TEMPORARY.contains(&code) => Err(Failure::Unreachable(error())),
        _ => Err(Failure::Refused(error())),
    }
}

/// One call with one message (gRPC over HTTP/2): a byte that says "not compressed", the length, and
/// the message. Returns the HTTP status, the gRPC status, and the text of the latter.
async fn grpc_call(uri: &Uri, path: &str, message: &[u8]) -> Result<(u16, String, String)> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(4317))).await?;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let mut body = BytesMut::with_capacity(5 + message.len());
    body.put_u8(0);
    body.put_u32(u32::try_from(message.len())?);
    body.put_slice(message);
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let request = Request::post(format!("http://{authority}{path}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .body(Full::<Bytes>::new(body.freeze()))?;
    let response = sender.send_request(request).await?;
    let (head, body) = response.into_parts();
    let collected = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    let collected = collected.map_err(|error| anyhow!("{error}"))?;
    connection.abort();
    // An answer without a body has its status in the first fields.
    let fields = collected.trailers().unwrap_or(&head.headers);
    let field = |name: &str| fields.get(name).and_then(|text| text.to_str().ok());
    let code = field("grpc-status").unwrap_or("none").to_owned();
    Ok((head.status.as_u16(), code, field("grpc-message").unwrap_or_default().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_collectors() {
        for right in ["http://127.0.0.1:4318", "https://o.example/otlp/v1/traces", "grpc://c:4317"]
        {
            assert_eq!(check(right), Ok(()), "{right}");
        }
        for wrong in ["", "127.0.0.1:4318", "ftp://x", "http://", "udp://h:1"] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn paths_of_collectors() {
        let target = |url: &str, path| {
            target(&url.parse().unwrap(), path).map(|uri| uri.to_string()).unwrap_or_default()
        };
        for (url, traces, logs) in [
            ("http://c:4318", "http://c:4318/v1/traces", "http://c:4318/v1/logs"),
            ("http://c:4318/", "http://c:4318/v1/traces", "http://c:4318/v1/logs"),
            ("https://o/otlp/v1/traces", "https://o/otlp/v1/traces", "https://o/otlp/v1/logs"),
            ("https://o/own", "https://o/own", ""),
        ] {
            assert_eq!(
                (target(url, TRACES_PATH), target(url, "/v1/logs")),
                (traces.into(), logs.into())
            );
        }
    }

    struct Big;

    impl Record for Big {
        const NAME: &'static str = "records";
        const HTTP_PATH: &'static str = "";
        const GRPC_PATH: &'static str = "";
        const IS_OPTIONAL: bool = true;

        fn bytes(&self) -> usize {
            8 << 10
        }

        fn message(_: &[Self]) -> Vec<u8> {
            Vec::new()
        }
    }

    #[tokio::test]
    async fn what_waits_is_bounded() {
        // Nobody runs the task before the first wait.
        let collector = Collector::start("http://127.0.0.1:1".to_owned(), &Handle::current());
        for _ in 0..1_000 {
            collector.send(Big);
        }
        let mut state = collector.0.state.lock();
        assert_eq!((state.records.len(), state.bytes), (512, WAITING_BYTES_MAX));
        let (batch, left_out) = state.batch();
        assert_eq!((batch.len(), left_out), (128, 488));
        state.put_back(batch);
        assert_eq!((state.records.len(), state.left_out), (512, 0));
    }
}
