//! The protocol between a node and `mote-nats`.
//!
//! A frame consists of its length (four bytes), the number of its request (eight bytes), its kind
//! (one byte), and its fields. The node begins with [`Request::Begin`]. Then it sends requests with
//! numbers of its choice. `mote-nats` answers each request once, in any order.

use bytes::Bytes;
use mote_core::state::{Namespace, Operation, Outcome, Quota, StateError, Usage};

use crate::nats::codec::{Malformed, Reader, Writer};
use crate::nats::state_codec as state;

/// Longest frame, without the length itself.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Bytes of the head of a frame: length, number and kind.
pub const HEAD_BYTES: usize = 13;

/// How `mote-nats` reaches its servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Addresses: `nats://HOST:PORT` or `tls://HOST:PORT`, without credentials.
    pub servers: Vec<String>,
    /// The text of a file with credentials: NATS's own form (`.creds`), or a line `USER:PASSWORD`.
    pub credentials: Option<String>,
    /// Certificates (PEM) of the authorities that sign the servers' certificates, in place of the
    /// system's authorities.
    pub authorities: Option<String>,
    /// Number of copies of each stream in a cluster of servers.
    pub replicas: u8,
    /// The user id to which the process changes if it was started as root.
    pub uid: u32,
}

/// A message to store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Publishing {
    pub subject: String,
    pub body: Bytes,
}

/// A message of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The message's place in the stream.
    pub sequence: u64,
    /// When the server stored the message, in milliseconds since 1970.
    pub time_unix_ms: u64,
    pub subject: String,
    /// Header fields.
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
}

/// Selects the messages to read from a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageOf {
    pub stream: String,
    /// Reads only messages of these subjects, which may have wildcards; `None` reads all.
    pub subjects: Option<String>,
    /// The first place to read.
    pub from: u64,
    pub most: u32,
}

/// A request of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The first frame. It has no answer.
    Begin(Settings),
    /// Creates a stream for [`Request::Append`] unless it exists. The stream keeps the last message
    /// of each subject.
    EnsureLog { name: String, subjects: String },
    /// Stores messages in this order, all of them or none, and only if the stream's last place is
    /// the expected one. The stream forgets messages without a body after some seconds.
    Append {
        /// The messages; at most 1,000.
        messages: Vec<Publishing>,
        /// The last place of the stream before the first message is stored.
        expected_last: u64,
    },
    /// Reads messages in the order of their places.
    Read(PageOf),
    /// Reads the last message of a subject.
    Last { stream: String, subject: String },
    /// Asks whether the servers answer.
    Check,
    /// An operation on the state of functions.
    State {
        namespace: Namespace,
        operation: Operation,
        /// The limits of the namespace.
        quota: Quota,
        now_unix_ms: u64,
    },
    /// Asks how much state each namespace holds.
    Usage,
    /// Removes a namespace of the state.
    Clear(Namespace),
}

/// An answer of `mote-nats`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Done,
    /// Messages of a stream.
    Page {
        messages: Vec<Stored>,
        /// The last place of the stream at the time of the read; 0 if the stream never held a
        /// message. The reader has reached the end if the last message of the page has this place,
        /// or if the page is empty.
        last_sequence: u64,
    },
    /// The last message of a subject, if there is one.
    Last(Option<Stored>),
    /// The servers answer.
    Server(ServerStatus),
    /// The result of an operation on the state.
    State(Result<Outcome, StateError>),
    /// How much each namespace holds.
    Usage(Vec<Usage>),
    Failed(NatsError),
}

/// A server that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerStatus {
    pub address: String,
    pub version: String,
    /// Number of streams of the server's account.
    pub streams: u64,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NatsError {
    /// The servers do not answer. They may have carried out the request.
    #[error("{0}")]
    Unreachable(String),
    /// The server refused the request. Nothing has changed.
    #[error("{0}")]
    Refused(String),
    /// The last place of the stream is not the expected one. Nothing has changed.
    #[error("the stream has another last message than was expected")]
    OtherLast,
    /// There is no such stream.
    #[error("there is no stream {0}")]
    NoStream(String),
}

fn write_headers(writer: &mut Writer, headers: &[(String, String)]) {
    writer.list(headers, |writer, (name, value)| {
        writer.text(name);
        writer.text(value);
    });
}

fn read_headers(reader: &mut Reader) -> Result<Vec<(String, String)>, Malformed> {
    reader.list(|reader| Ok((reader.text()?, reader.text()?)))
}

fn write_stored(writer: &mut Writer, stored: &Stored) {
    writer.u64(stored.sequence);
    writer.u64(stored.time_unix_ms);
    writer.text(&stored.subject);
    write_headers(writer, &stored.headers);
    writer.bytes(&stored.body);
}

fn read_stored(reader: &mut Reader) -> Result<Stored, Malformed> {
    Ok(Stored {
        sequence: reader.u64()?,
        time_unix_ms: reader.u64()?,
        subject: reader.text()?,
        headers: read_headers(reader)?,
        body: reader.bytes()?,
    })
}

fn write_optional_text(writer: &mut Writer, text: Option<&str>) {
    writer.flag(text.is_some());
    writer.text(text.unwrap_or_default());
}

fn read_optional_text(reader: &mut Reader) -> Result<Option<String>, Malformed> {
    let is_some = reader.flag()?;
    let text = reader.text()?;
    Ok(is_some.then_some(text))
}

/// Builds a frame from the request's number, the kind, and the fields that `write` appends.
fn frame(number: u64, kind: u8, write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer(vec![0; 4]);
    writer.u64(number);
    writer.u8(kind);
    write(&mut writer);
    let length = u32::try_from(writer.0.len() - 4).unwrap_or(u32::MAX);
    writer.0[..4].copy_from_slice(&length.to_le_bytes());
    writer.0
}

impl Request {
    pub fn frame(&self, number: u64) -> Vec<u8> {
        match self {
            Request::Begin(settings) => frame(number, 0, |writer| {
                writer.list(&settings.servers, |writer, server| writer.text(server));
                write_optional_text(writer, settings.credentials.as_deref());
                write_optional_text(writer, settings.authorities.as_deref());
                writer.u8(settings.replicas);
                writer.u32(settings.uid);
            }),
            Request::Read(page) => frame(number, 1, |writer| {
                writer.text(&page.stream);
                write_optional_text(writer, page.subjects.as_deref());
                writer.u64(page.from);
                writer.u32(page.most);
            }),
            Request::Last { stream, subject } => frame(number, 2, |writer| {
                writer.text(stream);
                writer.text(subject);
            }),
            Request::Check => frame(number, 3, |_| {}),
            Request::State { namespace, operation, quota, now_unix_ms } => {
                frame(number, 4, |writer| {
                    state::write_namespace(writer, namespace);
                    writer.u64(quota.bytes);
                    writer.u64(quota.keys);
                    writer.u64(*now_unix_ms);
                    state::write_operation(writer, operation);
                })
            }
            Request::Usage => frame(number, 5, |_| {}),
            Request::EnsureLog { name, subjects } => frame(number, 7, |writer| {
                writer.text(name);
                writer.text(subjects);
            }),
            Request::Append { messages, expected_last } => frame(number, 8, |writer| {
                writer.u64(*expected_last);
                writer.list(messages, |writer, message| {
                    writer.text(&message.subject);
                    writer.bytes(&message.body);
                });
            }),
            Request::Clear(namespace) => {
                frame(number, 6, |writer| state::write_namespace(writer, namespace))
            }
        }
    }

    /// Reads a frame, without its length. Returns the request and its number.
    pub fn read(frame: Bytes) -> Result<(u64, Self), Malformed> {
        let mut reader = Reader(frame);
        let number = reader.u64()?;
        let kind = reader.u8()?;
        let reader = &mut reader;
        let request = match kind {
            0 => Request::Begin(Settings {
                servers: reader.list(Reader::text)?,
                credentials: read_optional_text(reader)?,
                authorities: read_optional_text(reader)?,
                replicas: reader.u8()?,
                uid: reader.u32()?,
            }),
            1 => Request::Read(PageOf {
                stream: reader.text()?,
                subjects: read_optional_text(reader)?,
                from: reader.u64()?,
                most: reader.u32()?,
            }),
            2 => Request::Last { stream: reader.text()?, subject: reader.text()? },
            3 => Request::Check,
            4 => {
                let namespace = state::read_namespace(reader)?;
                let quota =
                    Quota { bytes: reader.u64()?, keys: reader.u64()?, together_bytes: None };
                let now_unix_ms = reader.u64()?;
                let operation = state::read_operation(reader)?;
                Request::State { namespace, operation, quota, now_unix_ms }
            }
            5 => Request::Usage,
            6 => Request::Clear(state::read_namespace(reader)?),
            7 => Request::EnsureLog { name: reader.text()?, subjects: reader.text()? },
            8 => Request::Append {
                expected_last: reader.u64()?,
                messages: reader.list(|reader| {
                    let subject = reader.text()?;
                    let body = reader.bytes()?;
                    Ok(Publishing { subject, body })
                })?,
            },
            _ => return Err(Malformed),
        };
        reader.end()?;
        Ok((number, request))
    }
}

impl Reply {
    pub fn frame(&self, number: u64) -> Vec<u8> {
        match self {
            Reply::Done => frame(number, 0, |_| {}),
            Reply::Page { messages, last_sequence } => frame(number, 1, |writer| {
                writer.u64(*last_sequence);
                writer.list(messages, write_stored);
            }),
            Reply::Last(message) => frame(number, 2, |writer| {
                writer.list(message.as_slice(), write_stored);
            }),
            Reply::Server(status) => frame(number, 3, |writer| {
                writer.text(&status.address);
                writer.text(&status.version);
                writer.u64(status.streams);
            }),
            Reply::State(result) => frame(number, 4, |writer| state::write_result(writer, result)),
            Reply::Usage(usage) => frame(number, 5, |writer| {
                writer.list(usage, |writer, usage| {
                    state::write_namespace(writer, &usage.namespace);
                    writer.u64(usage.keys);
                    writer.u64(usage.bytes);
                });
            }),
            Reply::Failed(error) => frame(number, 6, |writer| {
                let (kind, text) = match error {
                    NatsError::Unreachable(text) => (0, text.as_str()),
                    NatsError::Refused(text) => (1, text.as_str()),
                    NatsError::OtherLast => (2, ""),
                    NatsError::NoStream(name) => (3, name.as_str()),
                };
                writer.u8(kind);
                writer.text(text);
            }),
        }
    }

    /// Reads a frame, without its length. Returns the reply and the number of its request.
    pub fn read(frame: Bytes) -> Result<(u64, Self), Malformed> {
        let mut reader = Reader(frame);
        let number = reader.u64()?;
        let kind = reader.u8()?;
        let reader = &mut reader;
        let reply = match kind {
            0 => Reply::Done,
            1 => Reply::Page { last_sequence: reader.u64()?, messages: reader.list(read_stored)? },
            2 => Reply::Last(reader.list(read_stored)?.pop()),
            3 => Reply::Server(ServerStatus {
                address: reader.text()?,
                version: reader.text()?,
                streams: reader.u64()?,
            }),
            4 => Reply::State(state::read_result(reader)?),
            5 => Reply::Usage(reader.list(|reader| {
                Ok(Usage {
                    namespace: state::read_namespace(reader)?,
                    keys: reader.u64()?,
                    bytes: reader.u64()?,
                })
            })?),
            6 => {
                let kind = reader.u8()?;
                let text = reader.text()?;
                Reply::Failed(match kind {
                    0 => NatsError::Unreachable(text),
                    1 => NatsError::Refused(text),
                    2 => NatsError::OtherLast,
                    3 => NatsError::NoStream(text),
                    _ => return Err(Malformed),
                })
            }
            _ => return Err(Malformed),
        };
        reader.end()?;
        Ok((number, reply))
    }
}

/// Takes the first whole frame, without its length, from the bytes read so far.
pub fn take_frame(read: &mut bytes::BytesMut) -> Result<Option<Bytes>, Malformed> {
    let Some(head) = read.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*head) as usize;
    if !(HEAD_BYTES - 4..=FRAME_BYTES_MAX).contains(&length) {
        return Err(Malformed);
    }
    if read.len() < 4 + length {
        read.reserve(4 + length - read.len());
        return Ok(None);
    }
    let mut frame = read.split_to(4 + length).freeze();
    Ok(Some(frame.split_off(4)))
}
