//! Requests of functions to their node: the services that a worker reaches with REQUEST frames.
//!
//! The engine reads the frames, holds a worker to its limits, and hands each request to
//! [`Services`]. The engine does not know what a service does: a store behind
//! [`crate::state::State`] keeps the state, and calls go back to the engine through its `Invoker`.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use mote_spec::FunctionSpec;

use crate::chain::Chain;
use crate::invocation::InvocationId;
use crate::publish::Message;
use crate::state::{self, Condition, Operation};
use crate::wire::{FrameKind, WireError};

/// The maximum number of requests that one instance may have under way at once. A worker that sends
/// more violates the protocol.
pub const REQUESTS_MAX: u32 = 256;
/// The maximum number of bytes in all requests that one instance has under way.
pub const REQUEST_BYTES_MAX: usize = 4 << 20;
/// The maximum number of calls that one invocation may have under way at once.
pub const CALLS_MAX: usize = 64;
/// Largest body of a call, and of the answer to a call.
pub const CALL_BODY_BYTES_MAX: usize = 960 << 10;
/// Fixed part of every REQUEST payload.
pub const REQUEST_FIXED_BYTES: usize = 8;
/// Fixed part of a request for the state.
pub const STATE_FIXED_BYTES: usize = 32;
/// Fixed part of a call.
pub const CALL_FIXED_BYTES: usize = 40;
/// Largest body of a notice, in which a function publishes a resource's state to observers.
pub const NOTICE_BODY_BYTES_MAX: usize = 256 << 10;
/// Longest key of a record in a run.
pub const RECORD_KEY_BYTES_MAX: usize = 1_024;
/// Fixed part of a notice.
pub const NOTIFY_FIXED_BYTES: usize = 16;
/// Fixed part of every RESPONSE payload.
pub const RESPONSE_FIXED_BYTES: usize = 8;

/// The environment variable with the address of the services, for programs that cannot send REQUEST
/// frames: servers, and programs that run once per call.
pub const URL_VARIABLE: &str = "MOTE_SERVICES";

/// The word in LOAD for the state, and its number in REQUEST.
pub const STATE: (&str, u8) = ("state", 1);
/// The word in LOAD for calls of other functions, and its number in REQUEST.
pub const FUNCTIONS: (&str, u8) = ("functions", 2);
/// The word in LOAD for the records of runs, and its number in REQUEST. Only chains have it.
pub const RUNS: (&str, u8) = ("runs", 5);
/// The word in LOAD for notices to observers, and its number in REQUEST.
pub const NOTIFY: (&str, u8) = ("notify", 3);
/// The word in LOAD for messages to MQTT brokers, and its number in REQUEST.
pub const PUBLISH: (&str, u8) = ("publish", 4);

/// Flag of a request for the state: the change may be lost in a power cut.
const FLAG_NOT_DURABLE: u16 = 1;
/// Flag of a request for the state: the number is the version that the entry must have.
const FLAG_CONDITION: u16 = 2;
/// Flag of a listing: the values are left out.
const FLAG_KEYS_ONLY: u16 = 4;
/// Flag of a notice: only observers with this query receive it.
const FLAG_QUERY: u16 = 1;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// It was done.
    Done = 0,
    /// There is no such entry.
    NotFound = 1,
    /// The entry has another version. The content is that version.
    Conflict = 2,
    /// A quota is used up.
    Full = 3,
    /// The request itself cannot be carried out, whatever the node's state.
    Invalid = 4,
    /// The manifest does not allow it.
    Denied = 5,
    /// The node cannot carry out the request now.
    Unavailable = 6,
    /// The caller of the invocation that sent the request has left.
    Cancelled = 7,
    /// The called function did not answer. The content begins with the HTTP status that a caller
    /// over HTTP would receive.
    Failed = 8,
}

/// The answer to a request: the content of a RESPONSE in two parts, so that a value is copied only
/// once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// How the request ended.
    pub status: Status,
    /// The first part of the content.
    pub head: Vec<u8>,
    /// The rest of the content.
    pub body: Bytes,
}

impl Answer {
    /// An answer with content.
    pub fn new(status: Status, head: Vec<u8>, body: Bytes) -> Self {
        Self { status, head, body }
    }

    /// An answer whose content is a text for people.
    pub fn text(status: Status, text: impl Into<String>) -> Self {
        Self { status, head: Vec::new(), body: Bytes::from(text.into()) }
    }

    /// The answer to a call that failed.
    pub fn failed(status: u16, text: &str) -> Self {
        let mut head = status.to_le_bytes().to_vec();
        head.extend_from_slice(text.as_bytes());
        Self { status: Status::Failed, head, body: Bytes::new() }
    }

    /// Bytes of the answer's RESPONSE payload.
    pub fn payload_bytes(&self) -> usize {
        RESPONSE_FIXED_BYTES + self.head.len() + self.body.len()
    }

    /// Appends the answer as a RESPONSE frame.
    pub fn put(&self, out: &mut Vec<u8>, stream: u32, id: u32) {
        out.reserve(crate::wire::HEADER_BYTES + self.payload_bytes());
        crate::wire::put_header(out, FrameKind::Response, 0, stream, self.payload_bytes());
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&[self.status as u8, 0, 0, 0]);
        out.extend_from_slice(&self.head);
        out.extend_from_slice(&self.body);
    }
}

/// A request as the worker sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The number under which the worker waits for the answer.
    pub id: u32,
    /// What the worker requests.
    pub asked: Asked,
}

/// What a worker requests from its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// An operation on the state.
    State {
        /// The shared namespace; `None` for the function's own namespace.
        shared: Option<String>,
        /// The operation.
        operation: Operation,
        /// Whether the change must be on disk before the request is answered.
        durable: bool,
    },
    /// A call of another function.
    Call(Call),
    /// Reads the records of a run, beginning after this key.
    Records {
        /// The last key that the worker knows; empty for none.
        after: String,
    },
    /// Keeps a record of a run.
    Record {
        /// The key of the step.
        key: String,
        /// The value as JSON.
        value: Bytes,
    },
    /// A notice to the observers of one of the function's resources.
    Notify(Notice),
    /// A message for the MQTT broker of the function. Owner and connection are not set.
    Publish(Box<Message>),
    /// This build does not have the service or the operation, or a value is out of range. The text
    /// says which.
    Unusable(String),
}

/// A notice to the observers of one of the function's resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Path below the function, with its leading `/`.
    pub path: Bytes,
    /// Only observers with this query receive the notice; `None` for all observers of the path.
    pub query: Option<Bytes>,
    /// Header block of the resource's state, not yet checked.
    pub headers: Bytes,
    /// The resource's state. With `None`, the node asks the function for the state.
    pub body: Option<Bytes>,
}

/// A call of another function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The function, or `NAME@TAG`.
    pub function: String,
    /// Whether the caller waits for the answer; otherwise the call is accepted and runs later.
    pub waits: bool,
    /// How long the caller waits at most, in milliseconds; 0 for the caller's own deadline.
    pub timeout_ms: u32,
    /// How long an accepted call waits before it begins, in milliseconds.
    pub delay_ms: u64,
    /// Idempotency key of an accepted call; empty for none.
    pub key: String,
    /// Order key of an accepted call; empty for none.
    pub order: String,
    /// Request method.
    pub method: Bytes,
    /// Path below the function, with its leading `/`.
    pub path: Bytes,
    /// Query without `?`.
    pub query: Bytes,
    /// Header block, not yet checked.
    pub headers: Bytes,
    /// The request body.
    pub body: Bytes,
}

fn malformed(why: &'static str) -> WireError {
    WireError::Malformed(FrameKind::Request, why)
}

fn text(bytes: &Bytes) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

impl Request {
    /// Parses a REQUEST payload. An error means that the worker broke the protocol. A request that
    /// is well-formed but cannot be carried out is not an error: it is parsed as
    /// [`Asked::Unusable`] and answered.
    pub fn parse(mut payload: Bytes) -> Result<Self, WireError> {
        if payload.len() < REQUEST_FIXED_BYTES {
            return Err(malformed("too short"));
        }
        let id = payload.get_u32_le();
        let (service, operation, flags) =
            (payload.get_u8(), payload.get_u8(), payload.get_u16_le());
        let asked = match service {
            number if number == STATE.1 => state_request(operation, flags, payload)?,
            number if number == FUNCTIONS.1 => call_request(operation, payload)?,
            number if number == RUNS.1 => run_request(operation, payload)?,
            number if number == NOTIFY.1 => notify_request(operation, flags, payload)?,
            number if number == PUBLISH.1 => match Message::parse(operation, payload) {
                None => return Err(malformed("lengths pass its end")),
                Some(Ok(message)) => Asked::Publish(Box::new(message)),
                Some(Err(text)) => Asked::Unusable(text),
            },
            other => Asked::Unusable(format!("this node has no service {other}")),
        };
        Ok(Self { id, asked })
    }
}

/// ```text
/// 0 namespace length u8 | 1 zero u8 | 2 key length u16 | 4 limit u32 | 8 number u64
/// 16 time to live ms u64 | 24 namespace, key, rest
/// ```
fn state_request(number: u8, flags: u16, mut payload: Bytes) -> Result<Asked, WireError> {
    if payload.len() < STATE_FIXED_BYTES - REQUEST_FIXED_BYTES {
        return Err(malformed("too short"));
    }
    let namespace_len = usize::from(payload.get_u8());
    payload.advance(1);
    let key_len = usize::from(payload.get_u16_le());
    let limit = payload.get_u32_le();
    let value_number = payload.get_u64_le();
    let ttl_ms = payload.get_u64_le();
    if payload.len() < namespace_len + key_len {
        return Err(malformed("lengths pass its end"));
    }
    let namespace = payload.split_to(namespace_len);
    let key = payload.split_to(key_len);
    let (Some(namespace), Some(key)) = (text(&namespace), text(&key)) else {
        return Ok(Asked::Unusable("keys and namespaces are UTF-8".to_owned()));
    };
    let condition = match flags & FLAG_CONDITION {
        0 => Condition::None,
        _ if value_number == 0 => Condition::Absent,
        _ => Condition::Version(value_number),
    };
    let ttl_ms = (ttl_ms > 0).then_some(ttl_ms);
    let operation = match number {
        1 => Operation::Get { key },
        2 => Operation::Put { key, value: payload, condition, ttl_ms },
        3 => Operation::Delete { key, condition },
        4 => {
            let Some(after) = text(&payload) else {
                return Ok(Asked::Unusable("keys and namespaces are UTF-8".to_owned()));
            };
            let after = (!after.is_empty()).then_some(after);
            Operation::List { prefix: key, after, limit, values: flags & FLAG_KEYS_ONLY == 0 }
        }
        5 => Operation::Increment { key, by: value_number as i64, ttl_ms },
        other => {
            return Ok(Asked::Unusable(format!("the state has no operation {other}")));
        }
    };
    if let Err(problem) = operation.check() {
        return Ok(Asked::Unusable(problem));
    }
    let shared = (!namespace.is_empty()).then_some(namespace);
    Ok(Asked::State { shared, operation, durable: flags & FLAG_NOT_DURABLE == 0 })
}

/// ```text
/// 0 timeout ms u32 | 4 name length u8 | 5 method length u8 | 6 path length u16 | 8 query length u16
/// 10 key length u16 | 12 headers length u32 | 16 delay ms u64 | 24 order length u16 | 26 zero [6]
/// 32 name, method, path, query, key, order, headers, body
/// ```
fn call_request(number: u8, mut payload: Bytes) -> Result<Asked, WireError> {
    if payload.len() < CALL_FIXED_BYTES - REQUEST_FIXED_BYTES {
        return Err(malformed("too short"));
    }
    let timeout_ms = payload.get_u32_le();
    let name_len = usize::from(payload.get_u8());
    let method_len = usize::from(payload.get_u8());
    let path_len = usize::from(payload.get_u16_le());
    let query_len = usize::from(payload.get_u16_le());
    let key_len = usize::from(payload.get_u16_le());
    let headers_len = payload.get_u32_le() as usize;
    let delay_ms = payload.get_u64_le();
    let order_len = usize::from(payload.get_u16_le());
    payload.advance(6);
    let lengths = name_len + method_len + path_len + query_len + key_len + order_len;
    if payload.len() < lengths.saturating_add(headers_len) {
        return Err(malformed("lengths pass its end"));
    }
    let name = payload.split_to(name_len);
    let method = payload.split_to(method_len);
    let path = payload.split_to(path_len);
    let query = payload.split_to(query_len);
    let key = payload.split_to(key_len);
    let order = payload.split_to(order_len);
    let headers = payload.split_to(headers_len);
    let (Some(function), Some(key), Some(order)) = (text(&name), text(&key), text(&order)) else {
        return Ok(Asked::Unusable("names and keys are UTF-8".to_owned()));
    };
    let waits = match number {
        1 => true,
        2 => false,
        other => return Ok(Asked::Unusable(format!("functions have no operation {other}"))),
    };
    if payload.len() > CALL_BODY_BYTES_MAX {
        return Ok(Asked::Unusable("the body of a call has at most 960 KiB".to_owned()));
    }
    if !is_method(&method) || !is_target(&path, true) || !is_target(&query, false) {
        let problem = "a call needs a method such as POST, a path that begins with / and no spaces";
        return Ok(Asked::Unusable(problem.to_owned()));
    }
    if let Err(refused) = crate::path::check(&path) {
        return Ok(Asked::Unusable(format!("the path of a call is refused: {refused}")));
    }
    let body = payload;
    Ok(Asked::Call(Call {
        function,
        waits,
        timeout_ms,
        delay_ms,
        key,
        order,
        method,
        path,
        query,
        headers,
        body,
    }))
}

/// Operation 1 carries a key. Operation 2 carries `key length u32 | key, value`.
fn run_request(number: u8, mut payload: Bytes) -> Result<Asked, WireError> {
    let not_text = || Ok(Asked::Unusable("keys are UTF-8".to_owned()));
    match number {
        1 => match text(&payload) {
            Some(after) => Ok(Asked::Records { after }),
            None => not_text(),
        },
        2 => {
            if payload.len() < 4 {
                return Err(malformed("too short"));
            }
            let length = payload.get_u32_le() as usize;
            if payload.len() < length {
                return Err(malformed("lengths pass its end"));
            }
            let key = payload.split_to(length);
            let Some(key) = text(&key) else { return not_text() };
            if !(1..=RECORD_KEY_BYTES_MAX).contains(&key.len()) {
                let text = format!("the key of a record has 1 to {RECORD_KEY_BYTES_MAX} bytes");
                return Ok(Asked::Unusable(text));
            }
            Ok(Asked::Record { key, value: payload })
        }
        other => Ok(Asked::Unusable(format!("runs have no operation {other}"))),
    }
}

/// ```text
/// 0 path length u16 | 2 query length u16 | 4 headers length u32 | 8 path, query, headers, body
/// ```
fn notify_request(number: u8, flags: u16, mut payload: Bytes) -> Result<Asked, WireError> {
    if payload.len() < NOTIFY_FIXED_BYTES - REQUEST_FIXED_BYTES {
        return Err(malformed("too short"));
    }
    let path_len = usize::from(payload.get_u16_le());
    let query_len = usize::from(payload.get_u16_le());
    let headers_len = payload.get_u32_le() as usize;
    if payload.len() < (path_len + query_len).saturating_add(headers_len) {
        return Err(malformed("lengths pass its end"));
    }
    let path = payload.split_to(path_len);
    let query = payload.split_to(query_len);
    let headers = payload.split_to(headers_len);
    let body = match number {
        1 => Some(payload),
        2 => None,
        other => return Ok(Asked::Unusable(format!("notices have no operation {other}"))),
    };
    if body.as_ref().is_some_and(|body| body.len() > NOTICE_BODY_BYTES_MAX) {
        return Ok(Asked::Unusable("the body of a notice has at most 256 KiB".to_owned()));
    }
    if !is_target(&path, true) || !is_target(&query, false) {
        let problem = "a notice needs a path that begins with / and has no spaces";
        return Ok(Asked::Unusable(problem.to_owned()));
    }
    let query = (flags & FLAG_QUERY != 0).then_some(query);
    Ok(Asked::Notify(Notice { path, query, headers, body }))
}

fn is_method(method: &[u8]) -> bool {
    (1..=32).contains(&method.len()) && method.iter().all(u8::is_ascii_uppercase)
}

/// Whether these bytes can be a path or a query: visible ASCII, the rule that the fronts apply.
fn is_target(bytes: &[u8], is_path: bool) -> bool {
    bytes.len() <= 8 << 10
        && bytes.iter().all(u8::is_ascii_graphic)
        && !bytes.contains(&b'#')
        && (!is_path || (bytes.first() == Some(&b'/') && !bytes.contains(&b'?')))
}

/// The sender of a request.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// The function that sends the request.
    pub spec: &'a FunctionSpec,
    /// The invocation that sends the request; 0 if the request belongs to no invocation.
    pub invocation: InvocationId,
    /// The time by which the invocation's answer must have begun, in monotonic nanoseconds.
    pub deadline_ns: u64,
    /// The functions whose calls led to the invocation.
    pub chain: Option<&'a Arc<Chain>>,
}

/// The future of an answer.
pub type AnswerFuture = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A request that was begun.
pub enum Begun {
    /// The request is done.
    Done(Answer),
    /// The request is under way. Dropping the future of a call cancels the call. A change of the
    /// state is made even if its future is dropped.
    Later(AnswerFuture),
}

/// The services that a node offers to its functions.
pub trait Services: Send + Sync + 'static {
    /// The words that LOAD announces.
    fn announced(&self) -> Vec<String>;

    /// The words that LOAD announces to a chain.
    fn announced_to_chains(&self) -> Vec<String>;

    /// Begins a request. Called on the data path, so it must not block.
    fn begin(&self, caller: Caller<'_>, asked: Asked) -> Begun;
}

/// Encodes the answer to [`Asked::Records`]: `more u8 | zero [3] | count u32 | began ms u64`, then
/// for each record `key length u32 | value length u32 | key, value`.
pub fn records_answer(began_ms: u64, records: &[(String, Bytes)], more: bool) -> Answer {
    let mut head = vec![u8::from(more), 0, 0, 0];
    head.extend_from_slice(&(records.len() as u32).to_le_bytes());
    head.extend_from_slice(&began_ms.to_le_bytes());
    for (key, value) in records {
        head.extend_from_slice(&(key.len() as u32).to_le_bytes());
        head.extend_from_slice(&(value.len() as u32).to_le_bytes());
        head.extend_from_slice(key.as_bytes());
        head.extend_from_slice(value);
    }
    Answer::new(Status::Done, head, Bytes::new())
}

/// Encodes the result of a state operation as an answer.
pub fn state_answer(result: Result<state::Outcome, state::StateError>) -> Answer {
    use state::{Outcome, StateError};
    match result {
        Ok(Outcome::Entry(Some(entry))) => {
            let mut head = entry.version.to_le_bytes().to_vec();
            head.extend_from_slice(&entry.expires_unix_ms.unwrap_or(0).to_le_bytes());
            Answer::new(Status::Done, head, entry.value)
        }
        Ok(Outcome::Entry(None) | Outcome::Deleted(false)) => {
            Answer::new(Status::NotFound, Vec::new(), Bytes::new())
        }
        Ok(Outcome::Written { version }) => {
            Answer::new(Status::Done, version.to_le_bytes().to_vec(), Bytes::new())
        }
        Ok(Outcome::Deleted(true)) => Answer::new(Status::Done, Vec::new(), Bytes::new()),
        Ok(Outcome::Counted { version, value }) => {
            let mut head = version.to_le_bytes().to_vec();
            head.extend_from_slice(&value.to_le_bytes());
            Answer::new(Status::Done, head, Bytes::new())
        }
        Ok(Outcome::Listed { entries, more }) => {
            let mut head = vec![u8::from(more), 0, 0, 0];
            head.extend_from_slice(&(entries.len() as u32).to_le_bytes());
            for (key, entry) in entries {
                head.extend_from_slice(&entry.version.to_le_bytes());
                head.extend_from_slice(&(entry.value.len() as u32).to_le_bytes());
                head.extend_from_slice(&(key.len() as u32).to_le_bytes());
                head.extend_from_slice(key.as_bytes());
                head.extend_from_slice(&entry.value);
            }
            Answer::new(Status::Done, head, Bytes::new())
        }
        Err(StateError::Conflict { version }) => {
            Answer::new(Status::Conflict, version.to_le_bytes().to_vec(), Bytes::new())
        }
        Err(error) => {
            let status = match &error {
                StateError::Full(_) => Status::Full,
                StateError::Invalid(_) => Status::Invalid,
                _ => Status::Unavailable,
            };
            Answer::text(status, error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(operation: u8, flags: u16, number: u64, key: &str, rest: &[u8]) -> Vec<u8> {
        let mut payload = 7_u32.to_le_bytes().to_vec();
        payload.extend([STATE.1, operation]);
        payload.extend(flags.to_le_bytes());
        payload.extend([0, 0]);
        payload.extend((key.len() as u16).to_le_bytes());
        payload.extend(10_u32.to_le_bytes());
        payload.extend(number.to_le_bytes());
        payload.extend(0_u64.to_le_bytes());
        payload.extend(key.as_bytes());
        payload.extend(rest);
        payload
    }

    fn operation(payload: Vec<u8>) -> Operation {
        match Request::parse(payload.into()).unwrap().asked {
            Asked::State { operation, .. } => operation,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_to_the_state_are_read() {
        let put = |flags, number| operation(state(2, flags, number, "k", b"v"));
        let expected = |condition| Operation::Put {
            key: "k".into(),
            value: Bytes::from_static(b"v"),
            condition,
            ttl_ms: None,
        };
        assert_eq!(put(0, 5), expected(Condition::None));
        assert_eq!(put(FLAG_CONDITION, 5), expected(Condition::Version(5)));
        assert_eq!(put(FLAG_CONDITION, 0), expected(Condition::Absent));
        let by = operation(state(5, 0, -3_i64 as u64, "k", b""));
        assert_eq!(by, Operation::Increment { key: "k".into(), by: -3, ttl_ms: None });
        let listed = operation(state(4, FLAG_KEYS_ONLY, 0, "a/", b"a/7"));
        let after = Some("a/7".to_owned());
        assert_eq!(
            listed,
            Operation::List { prefix: "a/".into(), after, limit: 10, values: false }
        );
    }

    #[test]
    fn notices_are_read() {
        let notice = |operation: u8, flags: u16, path: &str, query: &str, body: &[u8]| {
            let mut payload = 7_u32.to_le_bytes().to_vec();
            payload.extend([NOTIFY.1, operation]);
            payload.extend(flags.to_le_bytes());
            payload.extend((path.len() as u16).to_le_bytes());
            payload.extend((query.len() as u16).to_le_bytes());
            payload.extend(4_u32.to_le_bytes());
            payload.extend([path.as_bytes(), query.as_bytes(), b"a\nb\n", body].concat());
            payload
        };
        let read = |payload: Vec<u8>| Request::parse(payload.into()).unwrap().asked;
        let expected = |query: Option<&'static str>, body: Option<&'static str>| {
            Asked::Notify(Notice {
                path: Bytes::from_static(b"/t"),
                query: query.map(Bytes::from),
                headers: Bytes::from_static(b"a\nb\n"),
                body: body.map(Bytes::from),
            })
        };
        assert_eq!(read(notice(1, 0, "/t", "", b"21")), expected(None, Some("21")));
        assert_eq!(read(notice(1, FLAG_QUERY, "/t", "", b"")), expected(Some(""), Some("")));
        assert_eq!(read(notice(2, FLAG_QUERY, "/t", "u=f", b"")), expected(Some("u=f"), None));
        for (operation, path, body) in [
            (3, "/t", vec![]),
            (1, "t", vec![]),
            (1, "/a b", vec![]),
            (1, "/t", vec![0; 300 << 10]),
        ] {
            let asked = read(notice(operation, 0, path, "", &body));
            assert!(matches!(asked, Asked::Unusable(_)), "{operation} {path}");
        }
        let whole = notice(1, 0, "/t", "q", b"");
        for cut in 0..whole.len() {
            assert!(Request::parse(Bytes::copy_from_slice(&whole[..cut])).is_err(), "{cut}");
        }
    }

    #[test]
    fn paths_of_calls_are_in_normal_form() {
        let asked = |path: &str| {
            let mut payload = 0_u32.to_le_bytes().to_vec();
            payload.extend([1, 4]);
            payload.extend((path.len() as u16).to_le_bytes());
            payload.extend([0; 2 + 2 + 4 + 8 + 2 + 6]);
            payload.extend([b"f", &b"POST"[..], path.as_bytes()].concat());
            call_request(1, payload.into()).unwrap()
        };
        for path in ["/", "/a/b%20c", "/%C3%A4"] {
            assert!(matches!(asked(path), Asked::Call(_)), "{path}");
        }
        for path in ["/../../call/victim/", "/%2e%2e/x", "/a%2fb", "/a\\b", "/%00", "x", "/a b"] {
            assert!(matches!(asked(path), Asked::Unusable(_)), "{path}");
        }
    }

    #[test]
    fn short_requests_break_the_protocol_and_odd_ones_are_answered() {
        let whole = state(2, 0, 0, "key", b"");
        for cut in 0..whole.len() {
            let error = Request::parse(Bytes::copy_from_slice(&whole[..cut]));
            assert!(matches!(error, Err(WireError::Malformed(FrameKind::Request, _))), "{cut}");
        }
        let unusable = |payload: Vec<u8>| match Request::parse(payload.into()).unwrap().asked {
            Asked::Unusable(text) => text,
            other => panic!("{other:?}"),
        };
        assert_eq!(unusable(state(99, 0, 0, "k", b"")), "the state has no operation 99");
        assert!(unusable(state(1, 0, 0, "", b"")).contains("1 to 512 bytes"));
        let mut other = state(1, 0, 0, "k", b"");
        other[4] = 77;
        assert_eq!(unusable(other), "this node has no service 77");
        let mut latin = state(1, 0, 0, "k", b"");
        *latin.last_mut().unwrap() = 0xe9;
        assert_eq!(unusable(latin), "keys and namespaces are UTF-8");
    }
}
