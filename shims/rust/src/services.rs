//! The requests of a function to its node: state, calls of other functions, notices and messages.

use std::fmt;
use std::time::Duration;

use crate::event::Event;
use crate::wire::{block, pairs, u16_at, u32_at, u64_at};
use crate::worker::Response;

const STATE: u8 = 1;
const FUNCTIONS: u8 = 2;
const NOTIFY: u8 = 3;
const PUBLISH: u8 = 4;
/// The names of the services in LOAD, in the order of their numbers.
pub(crate) const NAMES: [&str; 4] = ["state", "functions", "notify", "publish"];

const DONE: u8 = 0;
const NOT_FOUND: u8 = 1;
const CONFLICT: u8 = 2;
const FAILED: u8 = 8;
const TEXT: &str = "text/plain; charset=utf-8";
const BYTES: &str = "application/octet-stream";

/// Why the node did not carry out a function's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// `full`, `invalid`, `denied`, `unavailable`, `failed`, `cancelled` or `conflict`.
    pub code: &'static str,
    pub message: String,
    /// For a conflict: the version of the entry, 0 if there is none.
    pub version: u64,
    /// For a call that failed: the status that a caller over HTTP would get; otherwise 0.
    pub status: u16,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl Error {
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), version: 0, status: 0 }
    }
}

/// An entry of the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub value: Vec<u8>,
    pub version: u64,
    /// When the entry expires, in milliseconds since 1970; 0 for never.
    pub ends_unix_ms: u64,
}

/// How an entry is written.
#[derive(Debug, Clone, Default)]
pub struct PutOptions {
    /// How long until the entry expires; `None` for never.
    pub ttl: Option<Duration>,
    /// Writes only if the entry has this version; 0 if there must be no entry.
    pub version: Option<u64>,
    /// Does not wait until the entry is on disk.
    pub not_durable: bool,
}

/// The state of a function, or a shared one.
pub struct Kv<'a> {
    pub(crate) event: &'a Event,
    pub(crate) namespace: String,
}

struct StateRequest<'a> {
    operation: u8,
    flags: u16,
    key: &'a str,
    rest: &'a [u8],
    limit: u32,
    number: u64,
    ttl_ms: u64,
}

impl<'a> Kv<'a> {
    /// A state that functions share, which the manifest must allow.
    pub fn shared(&self, namespace: &str) -> Kv<'a> {
        Kv { event: self.event, namespace: namespace.to_owned() }
    }

    /// The entry with this key.
    pub fn get(&self, key: &str) -> Result<Option<Entry>, Error> {
        let Some(content) = self.ask(&StateRequest::new(1, key))? else { return Ok(None) };
        if content.len() < 16 {
            return Err(odd());
        }
        Ok(Some(Entry {
            version: u64_at(&content, 0),
            ends_unix_ms: u64_at(&content, 8),
            value: content[16..].to_vec(),
        }))
    }

    /// Writes an entry. Returns its version.
    pub fn put(
        &self,
        key: &str,
        value: impl AsRef<[u8]>,
        options: &PutOptions,
    ) -> Result<u64, Error> {
        const NOT_DURABLE: u16 = 1;
        const WITH_VERSION: u16 = 2;
        let flags = if options.not_durable { NOT_DURABLE } else { 0 }
            | if options.version.is_some() { WITH_VERSION } else { 0 };
        let ttl_ms = options.ttl.map_or(0, |ttl| ttl.as_millis() as u64);
        let number = options.version.unwrap_or(0);
        let rest = value.as_ref();
        self.version(&StateRequest { flags, rest, number, ttl_ms, ..StateRequest::new(2, key) })
    }

    /// Removes an entry. Returns whether there was one.
    pub fn delete(&self, key: &str) -> Result<bool, Error> {
        Ok(self.ask(&StateRequest::new(3, key))?.is_some())
    }

    /// At most `limit` keys with this prefix that come after `after`, and whether there are more.
    pub fn keys(
        &self,
        prefix: &str,
        after: &str,
        limit: u32,
    ) -> Result<(Vec<String>, bool), Error> {
        const WITHOUT_VALUES: u16 = 4;
        let rest = after.as_bytes();
        let new = StateRequest::new(4, prefix);
        let content = self.ask(&StateRequest { flags: WITHOUT_VALUES, rest, limit, ..new })?;
        let content = content.filter(|content| content.len() >= 8).ok_or_else(odd)?;
        let mut keys = Vec::new();
        let mut at = 8;
        for _ in 0..u32_at(&content, 4) {
            let head = content.get(at..at + 16).ok_or_else(odd)?;
            let (value, key) = (u32_at(head, 8) as usize, u32_at(head, 12) as usize);
            let key = content.get(at + 16..at + 16 + key).ok_or_else(odd)?;
            keys.push(String::from_utf8_lossy(key).into_owned());
            at += 16 + key.len() + value;
        }
        Ok((keys, content[0] != 0))
    }

    /// Adds to a number, which is 0 if there is no entry. Returns the sum.
    pub fn increment(&self, key: &str, by: i64) -> Result<i64, Error> {
        let new = StateRequest::new(5, key);
        let content = self.ask(&StateRequest { number: by as u64, ..new })?;
        let content = content.filter(|content| content.len() >= 16).ok_or_else(odd)?;
        Ok(u64_at(&content, 8) as i64)
    }

    fn version(&self, request: &StateRequest<'_>) -> Result<u64, Error> {
        let content = self.ask(request)?.filter(|content| content.len() >= 8).ok_or_else(odd)?;
        Ok(u64_at(&content, 0))
    }

    fn ask(&self, request: &StateRequest<'_>) -> Result<Option<Vec<u8>>, Error> {
        let namespace = short(&self.namespace, u8::MAX.into(), "the namespace")?;
        let key = short(request.key, u16::MAX.into(), "the key")?;
        let mut content = vec![namespace.len() as u8, 0];
        content.extend_from_slice(&(key.len() as u16).to_le_bytes());
        content.extend_from_slice(&request.limit.to_le_bytes());
        content.extend_from_slice(&request.number.to_le_bytes());
        content.extend_from_slice(&request.ttl_ms.to_le_bytes());
        for part in [namespace, key, request.rest] {
            content.extend_from_slice(part);
        }
        let answer = self.event.ask(STATE, request.operation, request.flags, &content)?;
        match answer.status {
            DONE => Ok(Some(answer.content)),
            NOT_FOUND => Ok(None),
            _ => Err(refused(&answer)),
        }
    }
}

impl<'a> StateRequest<'a> {
    fn new(operation: u8, key: &'a str) -> Self {
        Self { operation, flags: 0, key, rest: &[], limit: 0, number: 0, ttl_ms: 0 }
    }
}

/// How a function is called.
#[derive(Debug, Clone)]
pub struct CallOptions {
    pub method: String,
    /// The path below the function's own address.
    pub path: String,
    pub query: String,
    pub headers: Vec<(String, String)>,
    /// `None` for the rest of the caller's deadline.
    pub timeout: Option<Duration>,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            method: "POST".to_owned(),
            path: "/".to_owned(),
            query: String::new(),
            headers: Vec::new(),
            timeout: None,
        }
    }
}

/// The answer of a called function.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    /// The first field with this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(field, _)| field.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

pub(crate) fn call(
    event: &Event,
    function: &str,
    body: &[u8],
    options: &CallOptions,
) -> Result<Reply, Error> {
    const CALL: u8 = 1;
    let name = short(function, u8::MAX.into(), "the name of the function")?;
    let method = short(&options.method, u8::MAX.into(), "the method")?;
    let path = short(&options.path, u16::MAX.into(), "the path")?;
    let query = short(&options.query, u16::MAX.into(), "the query")?;
    let headers = block(&options.headers).map_err(|why| Error::new("invalid", why))?;
    let timeout = options.timeout.map_or(0, |time| time.as_millis().max(1));
    let mut content = u32::try_from(timeout).unwrap_or(u32::MAX).to_le_bytes().to_vec();
    content.extend_from_slice(&[name.len() as u8, method.len() as u8]);
    content.extend_from_slice(&(path.len() as u16).to_le_bytes());
    content.extend_from_slice(&(query.len() as u16).to_le_bytes());
    // The call has no idempotency key.
    content.extend_from_slice(&0_u16.to_le_bytes());
    content.extend_from_slice(&(headers.len() as u32).to_le_bytes());
    // Neither delay nor order.
    content.extend_from_slice(&[0; 16]);
    for part in [name, method, path, query, &headers, body] {
        content.extend_from_slice(part);
    }
    let answer = event.ask(FUNCTIONS, CALL, 0, &content)?;
    if answer.status != DONE {
        return Err(refused(&answer));
    }
    let content = answer.content;
    if content.len() < 8 || content.len() - 8 < u32_at(&content, 4) as usize {
        return Err(odd());
    }
    let body_at = 8 + u32_at(&content, 4) as usize;
    let block: String = content[8..body_at].iter().map(|byte| char::from(*byte)).collect();
    let headers = pairs(&block).map_err(|_| odd())?;
    Ok(Reply { status: u16_at(&content, 0), headers, body: content[body_at..].to_vec() })
}

/// How a state is published to observers.
#[derive(Debug, Clone, Default)]
pub struct NotifyOptions {
    /// The type of the state. The default is text if the state is UTF-8, otherwise bytes.
    pub content_type: Option<String>,
    /// How long the state is fresh.
    pub max_age: Option<Duration>,
}

pub(crate) fn notify(
    event: &Event,
    path: &str,
    state: Option<&[u8]>,
    options: &NotifyOptions,
) -> Result<u32, Error> {
    const STATE_GIVEN: u8 = 1;
    const ASK: u8 = 2;
    const WITH_QUERY: u16 = 1;
    let (path, query) =
        path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    let flags = if query.is_some() { WITH_QUERY } else { 0 };
    let path = short(path, u16::MAX.into(), "the path")?;
    let query = short(query.unwrap_or_default(), u16::MAX.into(), "the query")?;
    let mut fields = Vec::new();
    if let Some(state) = state {
        fields.push(("content-type".to_owned(), kind_of(options.content_type.as_deref(), state)));
        if let Some(age) = options.max_age {
            fields.push(("cache-control".to_owned(), format!("max-age={}", age.as_secs())));
        }
    }
    let headers = block(&fields).map_err(|why| Error::new("invalid", why))?;
    let mut content = (path.len() as u16).to_le_bytes().to_vec();
    content.extend_from_slice(&(query.len() as u16).to_le_bytes());
    content.extend_from_slice(&(headers.len() as u32).to_le_bytes());
    for part in [path, query, &headers, state.unwrap_or_default()] {
        content.extend_from_slice(part);
    }
    let operation = if state.is_some() { STATE_GIVEN } else { ASK };
    let answer = event.ask(NOTIFY, operation, flags, &content)?;
    match answer.status {
        DONE if answer.content.len() >= 4 => Ok(u32_at(&answer.content, 0)),
        DONE => Err(odd()),
        _ => Err(refused(&answer)),
    }
}

/// A message for MQTT.
#[derive(Debug, Clone, Default)]
pub struct Publish<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    /// 0, 1 or 2.
    pub qos: u8,
    pub retain: bool,
    /// The default is text if the payload is UTF-8, otherwise bytes.
    pub content_type: Option<&'a str>,
    pub response_topic: &'a str,
    pub correlation: &'a [u8],
    pub user: Vec<(String, String)>,
}

pub(crate) fn publish(event: &Event, message: &Publish<'_>) -> Result<(), Error> {
    const PUBLISH_ONE: u8 = 1;
    let longest = usize::from(u16::MAX);
    let topic = short(message.topic, longest, "the topic")?;
    let kind = kind_of(message.content_type, message.payload);
    let kind = short(&kind, longest, "the content type")?;
    let response = short(message.response_topic, longest, "the response topic")?;
    let mut user = Vec::new();
    for (name, value) in &message.user {
        if [name, value].into_iter().any(|text| text.contains('\n')) {
            return Err(Error::new("invalid", format!("a line break in the property {name:?}")));
        }
        user.extend_from_slice(format!("{name}\n{value}\n").as_bytes());
    }
    if message.correlation.len() > longest || user.len() > longest {
        return Err(Error::new("invalid", "the properties are too long"));
    }
    let mut content = vec![message.qos, u8::from(message.retain)];
    for part in [topic, kind, response, message.correlation, &user] {
        content.extend_from_slice(&(part.len() as u16).to_le_bytes());
    }
    content.extend_from_slice(&[0; 4]);
    for part in [topic, kind, response, message.correlation, &user, message.payload] {
        content.extend_from_slice(part);
    }
    let answer = event.ask(PUBLISH, PUBLISH_ONE, 0, &content)?;
    if answer.status == DONE {
        Ok(())
    } else {
        Err(refused(&answer))
    }
}

fn kind_of(given: Option<&str>, content: &[u8]) -> String {
    let usual = if std::str::from_utf8(content).is_ok() { TEXT } else { BYTES };
    given.unwrap_or(usual).to_owned()
}

fn short<'a>(text: &'a str, max: usize, what: &str) -> Result<&'a [u8], Error> {
    match text.len() > max {
        true => Err(Error::new("invalid", format!("{what} is longer than {max} bytes"))),
        false => Ok(text.as_bytes()),
    }
}

fn odd() -> Error {
    Error::new("unavailable", "the node sent an answer of another form")
}

fn refused(answer: &Response) -> Error {
    let content = &answer.content;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match answer.status {
        CONFLICT => {
            let version = if content.len() >= 8 { u64_at(content, 0) } else { 0 };
            let message = match version {
                0 => "there is no such entry".to_owned(),
                version => format!("the entry has version {version}"),
            };
            Error { version, ..Error::new("conflict", message) }
        }
        FAILED if content.len() >= 2 => {
            Error { status: u16_at(content, 0), ..Error::new("failed", text(&content[2..])) }
        }
        3 => Error::new("full", text(content)),
        4 => Error::new("invalid", text(content)),
        5 => Error::new("denied", text(content)),
        7 => Error::new("cancelled", "the caller is gone"),
        _ => Error::new("unavailable", text(content)),
    }
}
