//! Publishing a message at an MQTT broker.
//!
//! The parts of a node that publish (functions through their node, results of accepted invocations,
//! chains) know only [`Publish`]; `mote-mqtt` implements it.

use std::pin::Pin;

use bytes::Bytes;

use crate::spec::mqtt::{Connection, is_topic};

/// Longest topic of a message in bytes.
pub const TOPIC_BYTES_MAX: usize = 1_024;
/// Largest payload of a message. A request of a function to its node has the same bound.
pub const PAYLOAD_BYTES_MAX: usize = 960 << 10;
/// User properties of a message at most, and the bytes of their names and values.
pub const PROPERTIES_MAX: usize = 32;
/// Bytes of all user properties, of the content type and of the correlation data.
pub const PROPERTY_BYTES_MAX: usize = 8 << 10;

/// A message to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who publishes: the name of a function or of a chain. Bounds are shared by this name, and
    /// problems are logged under it.
    pub owner: String,
    /// The broker, and how the node introduces itself there.
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
    /// Where an answer is expected (MQTT 5).
    pub response_topic: Option<String>,
    /// What an answer repeats (MQTT 5).
    pub correlation: Option<Bytes>,
    /// User properties (MQTT 5).
    pub user: Vec<(String, String)>,
}

impl Message {
    /// A message with QoS 1 and without properties, for the broker of `connection`.
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

    /// The first reason why no broker can take it. `Publish::publish` checks this, too.
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

    /// The bytes that it occupies while it waits.
    pub fn bytes(&self) -> usize {
        let user: usize = self.user.iter().map(|(name, value)| name.len() + value.len()).sum();
        let texts = [&self.content_type, &self.response_topic].into_iter().flatten();
        let texts: usize = texts.map(String::len).sum();
        let correlation = self.correlation.as_ref().map_or(0, Bytes::len);
        256 + self.topic.len() + self.payload.len() + user + texts + correlation
    }
}

/// Checks a topic to which a message is published. Topics that begin with `$` belong to the
/// broker.
pub fn check_topic(topic: &str) -> Result<(), String> {
    if topic.is_empty() || topic.len() > TOPIC_BYTES_MAX {
        return Err(format!("1 to {TOPIC_BYTES_MAX} bytes"));
    }
    if topic.starts_with('$') {
        return Err("a topic that begins with $ belongs to the broker".to_owned());
    }
    if !is_topic(topic) || topic.contains(is_forbidden) {
        return Err("no wildcards (+, #) and no control characters".to_owned());
    }
    Ok(())
}

/// Characters that a broker may refuse (MQTT 5, 1.5.4).
fn is_forbidden(c: char) -> bool {
    let code = u32::from(c);
    c.is_control() || matches!(code, 0xfdd0..=0xfdef) || code & 0xfffe == 0xfffe
}

/// Why a message was not published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// No broker can take such a message.
    #[error("{0}")]
    Invalid(String),
    /// The broker took the message and refused it.
    #[error("the broker refused the message: {0}")]
    Refused(String),
    /// Too many messages wait for this broker. The message was not sent.
    #[error("{0}")]
    Full(String),
    /// The broker did not acknowledge the message in time: it cannot be reached, or refuses the
    /// node. It may have received the message all the same.
    #[error("{0}")]
    Unavailable(String),
    /// The node is stopping, or publishes nothing.
    #[error("the node is stopping")]
    Stopping,
}

impl PublishError {
    /// Whether another attempt with the same message ends in the same way.
    pub fn is_final(&self) -> bool {
        matches!(self, PublishError::Invalid(_) | PublishError::Refused(_))
    }
}

/// A future of this module.
pub type PublishFuture = Pin<Box<dyn Future<Output = Result<(), PublishError>> + Send>>;

/// Publishes messages at brokers.
pub trait Publish: Send + Sync + 'static {
    /// Publishes a message. With QoS 1 and 2 the future resolves to `Ok` when the broker has
    /// acknowledged the message, and with QoS 0 when it was handed to the connection. It resolves
    /// within half a minute in any case. The message may be sent even if the future is dropped.
    /// Never blocks; may be called from any runtime.
    fn publish(&self, message: Message) -> PublishFuture;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(topic: &str) -> Message {
        Message::new("f", Connection::default(), topic, Bytes::new())
    }

    #[test]
    fn topics_are_checked() {
        for good in ["a", "/", "a//b", "a b/ü", "a/$x"] {
            assert_eq!(check_topic(good), Ok(()), "{good:?}");
        }
        let long = "x".repeat(TOPIC_BYTES_MAX + 1);
        for bad in [
            "",
            "#",
            "a/+",
            "a#",
            "$SYS/a",
            "$share/g/a",
            "a\0",
            "a\nb",
            "a\u{fffe}",
            "\u{fdd0}",
            &long,
        ] {
            assert!(check_topic(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn messages_are_checked() {
        assert_eq!(message("a").mistake(), None);
        assert!(message("$SYS").mistake().is_some());
        assert!(Message { qos: 3, ..message("a") }.mistake().is_some());
        let payload = Bytes::from(vec![0; PAYLOAD_BYTES_MAX + 1]);
        assert!(Message { payload, ..message("a") }.mistake().is_some());
        let response_topic = Some("a/#".to_owned());
        assert!(Message { response_topic, ..message("a") }.mistake().is_some());
        let user = vec![("a".to_owned(), "b\nc".to_owned())];
        assert!(Message { user, ..message("a") }.mistake().is_some());
        let user = vec![("a".to_owned(), "b".repeat(PROPERTY_BYTES_MAX))];
        assert!(Message { user, ..message("a") }.mistake().is_some());
        let user = vec![("a".to_owned(), "b".to_owned()); PROPERTIES_MAX + 1];
        assert!(Message { user, ..message("a") }.mistake().is_some());
    }
}
