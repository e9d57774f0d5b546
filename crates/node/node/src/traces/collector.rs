//! Sends records to a collector, in batches: OTLP over HTTP with protobuf, or over gRPC.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bytes::{BufMut as _, Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use hyper::{Method, Request, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use mote_outgoing::{Outgoing, Reach};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::call::Call;
use super::otlp;

/// The maximum number of records that wait. Further ones are left out, and counted.
const WAITING_MAX: usize = 4_096;
/// The maximum number of records in one request.
const BATCH: usize = 512;
/// How long records wait, so that one request takes many of them.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after a failed request.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two messages about the same trouble in the node's own log.
const TELL_EVERY: Duration = Duration::from_secs(60);
const ANSWER_BYTES_MAX: usize = 64 << 10;
const HTTP_PATH: &str = "/v1/traces";
const GRPC_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Checks the address of a collector. The error says what is wanted.
pub(crate) fn check(url: &str) -> Result<(), String> {
    let wanted = || "http://HOST:4318, https://HOST or grpc://HOST:4317".to_owned();
    let uri: Uri = url.parse().map_err(|_| wanted())?;
    let is_known = matches!(uri.scheme_str(), Some("http" | "https" | "grpc"));
    let has_host = uri.host().is_some_and(|host| !host.is_empty());
    (is_known && has_host).then_some(()).ok_or_else(wanted)
}

/// The records that wait to be sent.
#[derive(Debug)]
pub(super) struct Collector(Arc<Queue>);

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    /// Notified when the first record waits, and when somebody waits for all of them to be sent.
    work: Notify,
    sent: Notify,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<Arc<Call>>,
    left_out: u64,
    is_urgent: bool,
    is_sending: bool,
}

impl Collector {
    pub(super) fn start(url: String, runtime: &Handle) -> Self {
        let queue = Arc::new(Queue::default());
        runtime.spawn(run(queue.clone(), url));
        Self(queue)
    }

    /// Takes a record. Never waits.
    pub(super) fn send(&self, call: Arc<Call>) {
        let mut state = self.0.state.lock();
        if state.calls.len() >= WAITING_MAX {
            state.left_out += 1;
            return;
        }
        state.calls.push(call);
        if state.calls.len() == 1 {
            self.0.work.notify_one();
        }
    }

    /// Waits until all records so far are sent.
    pub(super) async fn flush(&self) {
        loop {
            let sent = self.0.sent.notified();
            {
                let mut state = self.0.state.lock();
                if state.calls.is_empty() && !state.is_sending {
                    return;
                }
                state.is_urgent = true;
            }
            self.0.work.notify_one();
            sent.await;
        }
    }
}

async fn run(queue: Arc<Queue>, url: String) {
    let mut pause = PAUSE;
    let mut told: Option<Instant> = None;
    loop {
        queue.work.notified().await;
        if !queue.state.lock().is_urgent {
            let _ = tokio::time::timeout(pause, queue.work.notified()).await;
        }
        loop {
            let (batch, left_out) = {
                let mut state = queue.state.lock();
                let count = state.calls.len().min(BATCH);
                state.is_sending = count > 0;
                let batch: Vec<_> = state.calls.drain(..count).collect();
                (batch, std::mem::take(&mut state.left_out))
            };
            if batch.is_empty() {
                break;
            }
            let failed = export(&url, &batch).await.err();
            pause = if failed.is_some() { (2 * pause).min(PAUSE_MAX) } else { PAUSE };
            let is_due = told.is_none_or(|told| told.elapsed() >= TELL_EVERY);
            if (failed.is_some() || left_out > 0) && is_due {
                told = Some(Instant::now());
                let lost = left_out + failed.as_ref().map_or(0, |_| batch.len() as u64);
                let why = match failed {
                    Some(error) => format!("{error:#}"),
                    None => "they come faster than it takes them".to_owned(),
                };
                tracing::warn!(lost, "records of calls did not reach the collector {url}: {why}");
            }
        }
        let mut state = queue.state.lock();
        (state.is_urgent, state.is_sending) = (false, false);
        drop(state);
        queue.sent.notify_waiters();
    }
}

async fn export(url: &str, batch: &[Arc<Call>]) -> Result<()> {
    let message = otlp::request(batch);
    let uri: Uri = url.parse()?;
    let sent = async {
        match uri.scheme_str() {
            Some("grpc") => grpc(&uri, &message).await,
            _ => http(&uri, &message).await,
        }
    };
    tokio::time::timeout(TIMEOUT, sent).await.context("it did not answer in time")?
}

async fn http(uri: &Uri, message: &otlp::ExportRequest) -> Result<()> {
    let target = match uri.path() {
        "" | "/" => format!("{}{HTTP_PATH}", uri.to_string().trim_end_matches('/')).parse()?,
        _ => uri.clone(),
    };
    let mut fields = HeaderMap::new();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    // The operator names the collector, so it may be anywhere.
    let anywhere = Outgoing { reach: Reach::Machine, ..Outgoing::default() };
    let body = message.encode_to_vec().into();
    let (status, _, answer) =
        mote_outgoing::send(Method::POST, &target, fields, body, &anywhere, ANSWER_BYTES_MAX)
            .await?;
    if !(200..300).contains(&status) {
        let text = String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned();
        bail!("it answered {status}: {}", text.trim());
    }
    Ok(())
}

/// One call with one message (gRPC over HTTP/2): a byte that says "not compressed", the length, and
/// the message.
async fn grpc(uri: &Uri, message: &otlp::ExportRequest) -> Result<()> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(4317))).await?;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let mut body = BytesMut::with_capacity(5 + message.encoded_len());
    body.put_u8(0);
    body.put_u32(u32::try_from(message.encoded_len())?);
    message.encode(&mut body)?;
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let request = Request::post(format!("http://{authority}{GRPC_PATH}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .body(Full::<Bytes>::new(body.freeze()))?;
    let response = sender.send_request(request).await?;
    let (head, body) = response.into_parts();
    let collected = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    let collected = collected.map_err(|error| anyhow::anyhow!("{error}"))?;
    connection.abort();
    // An answer without a body has its status in the first fields.
    let fields = collected.trailers().unwrap_or(&head.headers);
    let code = fields.get("grpc-status").map(|code| code.as_bytes());
    if head.status != 200 || code != Some(b"0") {
        let text = fields.get("grpc-message").and_then(|text| text.to_str().ok()).unwrap_or("");
        let code = code.map_or("none".into(), String::from_utf8_lossy);
        bail!("it answered {} with grpc-status {code} {text}", head.status);
    }
    Ok(())
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
}
