//! Publishing messages to an MQTT broker.
//!
//! The parts of a node that publish (functions through their node, results of accepted invocations,
//! chains) know only [`Publish`]. `mote-mqtt` implements it.

use std::pin::Pin;

use bytes::{Buf as _, Bytes};
use mote_spec::mqtt::{Connection, check_topic, is_forbidden};

/// Largest payload of a message. Requests from a function to its node have the same limit.
pub const PAYLOAD_BYTES_MAX: usize = 960 << 10;
/// The maximum number of user properties of a message.
pub const PROPERTIES_MAX: usize = 32;
/// The maximum number of bytes in all user properties, the content type and the correlation data
/// together.
pub const PROPERTY_BYTES_MAX: usize = 8 << 10;

/// Fixed part of the content of a worker's request to publish.
pub const REQUEST_FIXED_BYTES: usize = 16;

/// A message to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The name of the function or chain that publishes. Limits are counted, and problems logged,
    /// under this name.
    pub owner: String,
    /// The broker, and how the node identifies itself there.
    pub connection: Connection,
    /// The topic, without wildcards.
    pub topic: String,
    /// The content.
    pub payload: Bytes,
    /// The quality of service: 0, 1 or 2.
    pub qos: u8,
    /// Whether the broker keeps the message for later subscribers.
    pub retain: bool,
    /// The content type (MQTT 5).
    pub content_type: Option<String>,
    /// The topic on which the sender expects an answer (MQTT 5).
    pub response_topic: Option<String>,
    /// Data that an answer must repeat (MQTT 5).
    pub correlation: Option<Bytes>,
    /// User properties (MQTT 5).
    pub user: Vec<(String, String)>,
}

impl Message {
    /// A message with QoS 1 and without properties, for the broker in `connection`.
    pub fn new(
        owner: impl Into<String>,
        connection: Connection,
        topic: impl Into<String>,
        payload: Bytes,
    ) -> Self {
        Self {
            owner: owner.into(),
            connection,
            topic: topic.into(),
            payload,
            qos: 1,
            retain: false,
            content_type: None,
            response_topic: None,
            correlation: None,
            user: Vec::new(),
        }
    }

    /// Parses the content of a worker's request to publish. Does not set owner and connection.
    /// Returns `None` if the content is shorter than its lengths say, and an error if the content
    /// is complete but cannot be published.
    ///
    /// ```text
    /// 0 QoS u8 | 1 retain u8 | 2 topic length u16 | 4 content type length u16
    /// 6 response topic length u16 | 8 correlation length u16 | 10 user properties length u16
    /// 12 zero [4] | 16 topic, content type, response topic, correlation, user properties, payload
    /// ```
    /// User properties are encoded like a header block.
    pub fn parse(operation: u8, mut content: Bytes) -> Option<Result<Self, String>> {
        if content.len() < REQUEST_FIXED_BYTES {
            return None;
        }
        let qos = content.get_u8();
        let retain = content.get_u8() != 0;
        let lengths: [u16; 5] = std::array::from_fn(|_| content.get_u16_le());
        content.advance(4);
        if lengths.iter().map(|length| usize::from(*length)).sum::<usize>() > content.len() {
            return None;
        }
        let parts = lengths.map(|length| content.split_to(usize::from(length)));
        let [topic, kind, response, correlation, user] = parts;
        Some(Self::read(operation, qos, [topic, kind, response, user]).and_then(|message| {
            let correlation = (!correlation.is_empty()).then_some(correlation);
            let message = Self { retain, correlation, payload: content, ..message };
            message.mistake().map_or(Ok(message), Err)
        }))
    }

    fn read(operation: u8, qos: u8, texts: [Bytes; 4]) -> Result<Self, String> {
        if operation != 1 {
            return Err(format!("publish has no operation {operation}"));
        }
        let text = |bytes: &Bytes| std::str::from_utf8(bytes).map(str::to_owned);
        let read = || texts.each_ref().map(text);
        let [Ok(topic), Ok(kind), Ok(response), Ok(user)] = read() else {
            return Err("topics and properties are UTF-8".to_owned());
        };
        let mut parts = user.split_terminator('\n');
        let mut properties = Vec::new();
        while let Some(name) = parts.next() {
            let value = parts.next().ok_or("each user property has a name and a value")?;
            properties.push((name.to_owned(), value.to_owned()));
        }
        let some = |text: String| (!text.is_empty()).then_some(text);
        let message = Self::new(String::new(), Connection::default(), topic, Bytes::new());
        let content_type = some(kind);
        let response_topic = some(response);
        Ok(Self { qos, content_type, response_topic, user: properties, ..message })
    }

    /// The first reason why no broker can accept the message. `Publish::publish` checks this as
    /// well.
    pub fn mistake(&self) -> Option<String> {
        if let Err(text) = check_topic(&self.topic) {
            return Some(format!("topic: {text}"));
        }
        if let Some(Err(text)) = self.response_topic.as_deref().map(check_topic) {
            return Some(format!("response topic: {text}"));
        }
        if self.qos > 2 {
            return Some("the QoS is 0, 1 or 2".to_owned());
        }
        if self.payload.len() > PAYLOAD_BYTES_MAX {
            return Some(format!("the payload has at most {} KiB", PAYLOAD_BYTES_MAX >> 10));
        }
        let user = || self.user.iter().flat_map(|(name, value)| [name, value]);
        let mut texts = user().chain(&self.content_type);
        if texts.any(|text| text.contains(is_forbidden)) {
            return Some("properties contain no control characters".to_owned());
        }
        let bytes = user().chain(&self.content_type).map(String::len).sum::<usize>()
            + self.correlation.as_ref().map_or(0, Bytes::len);
        if self.user.len() > PROPERTIES_MAX || bytes > PROPERTY_BYTES_MAX {
            let kib = PROPERTY_BYTES_MAX >> 10;
            let text = format!("at most {PROPERTIES_MAX} user properties, and {kib} KiB of them");
            return Some(text);
        }
        None
    }

    /// Bytes of memory that the message occupies while it waits.
    pub fn bytes(&self) -> usize {
        let user: usize = self.user.iter().map(|(name, value)| name.len() + value.len()).sum();
        let texts = [&self.content_type, &self.response_topic].into_iter().flatten();
        let texts: usize = texts.map(String::len).sum();
        let correlation = self.correlation.as_ref().map_or(0, Bytes::len);
        256 + self.topic.len() + self.payload.len() + user + texts + correlation
    }
}

/// Why a message was not published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// No broker can accept this message.
    #[error("{0}")]
    Invalid(String),
    /// The broker received the message and refused it.
    #[error("the broker refused the message: {0}")]
    Refused(String),
    /// Too many messages wait for this broker, so the message was not sent.
    #[error("{0}")]
    Full(String),
    /// The broker did not acknowledge the message in time, because the broker cannot be reached or
    /// refuses the node. The broker may have received the message nevertheless.
    #[error("{0}")]
    Unavailable(String),
    /// The node is stopping, or publishes nothing.
    #[error("the node is stopping")]
    Stopping,
}

impl PublishError {
    /// Whether another attempt to send this message would end in the same way.
    pub fn is_final(&self) -> bool {
        matches!(self, PublishError::Invalid(_) | PublishError::Refused(_))
    }
}

/// The future that [`Publish::publish`] returns.
pub type PublishFuture = Pin<Box<dyn Future<Output = Result<(), PublishError>> + Send>>;

/// Publishes messages to brokers.
pub trait Publish: Send + Sync + 'static {
    /// Publishes a message. With QoS 1 and 2, the future resolves to `Ok` once the broker has
    /// acknowledged the message; with QoS 0, once the message was handed to the connection. The
    /// future always resolves within half a minute. The message may be sent even if the future is
    /// dropped. Never blocks; may be called from any runtime.
    fn publish(&self, message: Message) -> PublishFuture;
}
