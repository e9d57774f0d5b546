//! Turns a message into an invocation and its answer into a message, and decides what follows a
//! failure.

use std::borrow::Cow;

use bytes::Bytes;
use mote_core::invocation::{Head, headers};
use mote_core::trace::{TRACEPARENT, TRACESTATE};
use mote_core::{Fault, FaultClass};
use mote_spec::mqtt::{Acknowledge, MqttTrigger, is_topic, reply_topic};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode, percent_encode};

use crate::packet::Publish;

/// How often a message is tried while its function fails. After that, the message is given up.
pub const ATTEMPTS_MAX: u32 = 5;
/// The name of the user property, and of the header field, that holds the idempotency key of a
/// message.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The longest idempotency key, in bytes. A longer key is ignored.
const KEY_BYTES_MAX: usize = 255;
/// The longest path, in bytes, which is the same as for HTTP. A message with a longer topic gets
/// the path `/`.
const PATH_BYTES_MAX: usize = 8 << 10;
/// The most user properties that become header fields.
const PROPERTIES_MAX: usize = 64;
/// The most bytes of all header fields that come from a message's user properties.
const PROPERTIES_BYTES_MAX: usize = 16 << 10;

/// The characters that are not percent-encoded in a path: RFC 3986's unreserved characters and
/// sub-delimiters, `:`, `@` and `/`.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

/// The characters that are percent-encoded in a field's value. Languages read fields in different
/// character sets, so everything that is not ASCII is encoded, too.
const IN_FIELD: &AsciiSet = &CONTROLS.add(b'%');

/// The head of the invocation for a message.
pub fn head(message: &Publish) -> Head {
    let mut path = String::with_capacity(message.topic.len() + 1);
    path.push('/');
    let topic = message.topic.as_bytes();
    path.extend(percent_encode(topic.strip_prefix(b"/").unwrap_or(topic), IN_PATH));
    if path.len() > PATH_BYTES_MAX {
        path.truncate(1);
    }
    let mut head = Head::builder(b"POST", path.as_bytes(), b"");
    let mut field = |name: &str, value: &str| {
        let value: Cow<'_, str> = percent_encode(value.as_bytes(), IN_FIELD).into();
        head.header(name.as_bytes(), value.as_bytes());
    };
    field("mqtt-topic", &message.topic);
    field("mqtt-qos", ["0", "1", "2"][usize::from(message.qos.min(2))]);
    field("mqtt-retain", if message.retain { "true" } else { "false" });
    field("mqtt-duplicate", if message.dup { "true" } else { "false" });
    if let Some(text) = &message.content_type {
        field("content-type", text);
    }
    if let Some(text) = &message.response_topic {
        field("mqtt-response-topic", text);
    }
    if let Some(bytes) = &message.correlation {
        field("mqtt-correlation-data", &mote_core::base64::encode(bytes));
    }
    if let Some(key) = idempotency_key(message) {
        field(IDEMPOTENCY_KEY, key);
    }
    // W3C Trace Context for MQTT (a working draft) uses user properties with these names.
    for name in [TRACEPARENT, TRACESTATE] {
        if let Some((_, value)) = message.user.iter().find(|(other, _)| other == name) {
            field(name, value);
        }
    }
    let mut bytes = 0;
    for (name, value) in message.user.iter().take(PROPERTIES_MAX) {
        bytes += name.len() + value.len();
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        if bytes <= PROPERTIES_BYTES_MAX && !name.is_empty() && name.bytes().all(is_token) {
            field(&format!("mqtt-user-{name}"), value);
        }
    }
    head.finish()
}

/// The idempotency key of a message, taken from its user property with that name.
pub fn idempotency_key(message: &Publish) -> Option<&str> {
    let found = message.user.iter().find(|(name, _)| name.eq_ignore_ascii_case(IDEMPOTENCY_KEY));
    let key = found.map(|(_, value)| value.as_str())?;
    (!key.is_empty() && key.len() <= KEY_BYTES_MAX).then_some(key)
}

/// The topic to which the answer to a message is published: the message's response topic, or
/// otherwise the `reply` of the trigger.
///
/// At the node's own broker, the node may publish anywhere. But a publisher must not be able to
/// make the node write to a topic to which the publisher itself may not publish. So a response
/// topic counts only if `allowed` says that the function may publish to it. Otherwise the message
/// is answered as if it had no response topic.
pub fn reply_to(
    trigger: &MqttTrigger,
    message: &Publish,
    allowed: impl Fn(&str) -> bool,
) -> Option<String> {
    if trigger.acknowledge == Acknowledge::Stored {
        return None;
    }
    let asked = message.response_topic.as_ref().filter(|topic| may_receive(topic, allowed));
    if let Some(topic) = asked {
        return Some(topic.clone());
    }
    reply_topic(trigger.reply.as_deref()?, &trigger.filter, &message.topic)
}

/// The response topic of a message, if the function may not publish an answer to it.
pub fn refused_topic<'a>(
    trigger: &MqttTrigger,
    message: &'a Publish,
    allowed: impl Fn(&str) -> bool,
) -> Option<&'a str> {
    let topic = message.response_topic.as_deref()?;
    let is_answered = trigger.acknowledge == Acknowledge::Answered;
    (is_answered && !may_receive(topic, allowed)).then_some(topic)
}

/// Whether an answer may be published to a response topic. A broker ends the connection of a client
/// that publishes to a filter.
fn may_receive(topic: &str, allowed: impl Fn(&str) -> bool) -> bool {
    is_topic(topic) && allowed(topic)
}

/// The message that carries the answer of a function. `None` if no answer is published. An answer
/// to a response topic is always published, because the publisher waits for it. An answer to the
/// `reply` topic is published only if its status is 200 to 299 and it has a body. If the answer is
/// a CloudEvent, its attributes, which are fields with the prefix `ce-`, become user properties
/// without the prefix.
pub fn reply(
    topic: Option<String>,
    message: &Publish,
    status: u16,
    fields: &[u8],
    body: Bytes,
) -> Option<Publish> {
    let is_awaited = topic.is_some() && topic == message.response_topic;
    if !is_awaited && (!(200..300).contains(&status) || body.is_empty()) {
        return None;
    }
    let content_type = headers(fields).find(|(name, _)| *name == b"content-type");
    let content_type = content_type.and_then(|(_, value)| std::str::from_utf8(value).ok());
    let mut user = vec![("status".to_owned(), status.to_string())];
    user.extend(headers(fields).filter_map(|(name, value)| {
        let name = std::str::from_utf8(name.strip_prefix(b"ce-")?).ok()?;
        let value = percent_decode(value).decode_utf8().ok()?;
        let fits = value.len() <= usize::from(u16::MAX) && !value.contains(char::is_control);
        fits.then(|| (name.to_owned(), value.into_owned()))
    }));
    Some(Publish {
        qos: message.qos.min(1),
        topic: topic?,
        payload: body,
        content_type: content_type.map(str::to_owned),
        correlation: message.correlation.clone(),
        user,
        ..Publish::default()
    })
}

/// What to do with a message after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Acknowledge,
    /// There was no room. The message runs again after a pause, as often as necessary.
    Pause,
    /// The run failed. The message runs again after a pause, up to [`ATTEMPTS_MAX`] times.
    Retry,
    /// The message can never succeed.
    GiveUp,
    /// The function or the node is ending. The broker keeps the message.
    Leave,
}

/// What to do after an answer with this status.
pub fn after_status(status: u16) -> Next {
    match status {
        429 | 503 => Next::Pause,
        500.. => Next::Retry,
        _ => Next::Acknowledge,
    }
}

/// What to do after this fault. If a function does not start, the message is not to blame, so it is
/// not given up.
pub fn after_fault(fault: &Fault) -> Next {
    match fault {
        Fault::NoSuchFunction | Fault::Stopping => Next::Leave,
        Fault::BodyTooLarge { .. } => Next::GiveUp,
        Fault::StartFailed { .. } | Fault::DeadlineStarting { .. } => Next::Pause,
        fault if fault.class() == FaultClass::Capacity => Next::Pause,
        _ => Next::Retry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(head: &Head) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        headers(head.headers()).map(|(name, value)| (text(name), text(value))).collect()
    }

    #[test]
    fn the_function_sees_the_message() {
        let message = Publish {
            topic: "s/k 1/ö?".into(),
            qos: 1,
            retain: true,
            content_type: Some("text/plain".into()),
            response_topic: Some("r".into()),
            correlation: Some(Bytes::from_static(b"\x01")),
            user: [("A", "b"), ("bad name", "c"), ("lf", "a\nb%"), ("Idempotency-Key", "k")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..Publish::default()
        };
        let head = head(&message);
        assert_eq!((head.method(), head.path()), (&b"POST"[..], &b"/s/k%201/%C3%B6%3F"[..]));
        let expected = [
            ("mqtt-topic", "s/k 1/%C3%B6?"),
            ("mqtt-qos", "1"),
            ("mqtt-retain", "true"),
            ("mqtt-duplicate", "false"),
            ("content-type", "text/plain"),
            ("mqtt-response-topic", "r"),
            ("mqtt-correlation-data", "AQ=="),
            ("idempotency-key", "k"),
            ("mqtt-user-a", "b"),
            ("mqtt-user-lf", "a%0Ab%25"),
            ("mqtt-user-idempotency-key", "k"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(fields(&head), expected);
    }

    #[test]
    fn a_hostile_topic_adds_no_field() {
        let message = Publish { topic: "a\nx: 1\n".into(), ..Publish::default() };
        let head = head(&message);
        assert!(!head.path().contains(&b'\n'));
        assert_eq!(fields(&head)[0], ("mqtt-topic".to_owned(), "a%0Ax: 1%0A".to_owned()));
        assert_eq!(fields(&head)[1].0, "mqtt-qos");
        let long = Publish { topic: "ö".repeat(9_000), ..Publish::default() };
        assert_eq!(super::head(&long).path(), b"/");
    }

    #[test]
    fn answers_go_where_they_are_expected() {
        let mut trigger = MqttTrigger::new("s/+/t");
        let mut message = Publish { topic: "s/1/t".into(), qos: 2, ..Publish::default() };
        assert_eq!(reply_to(&trigger, &message, |_| true), None);
        trigger.reply = Some("s/{1}/alert".into());
        assert_eq!(reply_to(&trigger, &message, |_| true).as_deref(), Some("s/1/alert"));
        let answer = |message: &Publish, status, body: &'static str| {
            let fields = b"content-type\ntext/x\n";
            reply(reply_to(&trigger, message, |_| true), message, status, fields, body.into())
        };
        assert_eq!(answer(&message, 204, ""), None);
        assert_eq!(answer(&message, 404, "x"), None);
        let found = answer(&message, 200, "x").unwrap();
        assert_eq!((found.qos, found.topic.as_str()), (1, "s/1/alert"));
        assert_eq!(found.content_type.as_deref(), Some("text/x"));
        message.response_topic = Some("me".into());
        message.correlation = Some(Bytes::from_static(b"7"));
        let found = answer(&message, 404, "").unwrap();
        assert_eq!((found.topic.as_str(), found.correlation), ("me", message.correlation.clone()));
        assert_eq!(found.user, [("status".to_owned(), "404".to_owned())]);
        let fields = b"ce-id\n1\nx-a\nb\nce-subject\ngr%C3%BCn%20x\nce-bad\n%ff\nce-lf\n%0A\n";
        let event = reply(Some("me".into()), &message, 200, fields, Bytes::new()).unwrap();
        let user = [("status", "200"), ("id", "1"), ("subject", "grün x")];
        assert_eq!(event.user, user.map(|(name, value)| (name.to_owned(), value.to_owned())));
        // If nothing may be published to the response topic, the answer goes where it would go
        // without a response topic.
        message.response_topic = Some("me/#".into());
        let other = answer(&message, 200, "x").unwrap();
        assert_eq!(
            (other.topic.as_str(), other.correlation),
            ("s/1/alert", message.correlation.clone())
        );
        assert_eq!(answer(&message, 404, "x"), None);
        assert_eq!(refused_topic(&trigger, &message, |_| true), Some("me/#"));
        message.response_topic = Some("me".into());
        assert_eq!(refused_topic(&trigger, &message, |_| true), None);
        assert_eq!(refused_topic(&trigger, &message, |_| false), Some("me"));
        assert_eq!(reply_to(&trigger, &message, |_| false).as_deref(), Some("s/1/alert"));
        trigger.acknowledge = Acknowledge::Stored;
        assert_eq!(refused_topic(&trigger, &message, |_| false), None, "nothing is answered");
    }

    #[test]
    fn what_is_full_is_tried_again_and_what_fails_is_given_up() {
        assert_eq!(after_status(200), Next::Acknowledge);
        assert_eq!(after_status(404), Next::Acknowledge);
        assert_eq!(after_status(429), Next::Pause);
        assert_eq!(after_status(503), Next::Pause);
        assert_eq!(after_status(500), Next::Retry);
        assert_eq!(after_fault(&Fault::QueueFull), Next::Pause);
        assert_eq!(after_fault(&Fault::Stopping), Next::Leave);
        assert_eq!(after_fault(&Fault::NoSuchFunction), Next::Leave);
        assert_eq!(after_fault(&Fault::BodyTooLarge { limit_bytes: 1 }), Next::GiveUp);
        assert_eq!(after_fault(&Fault::StartFailed { message: String::new() }), Next::Pause);
        assert_eq!(after_fault(&Fault::HandlerError { message: String::new() }), Next::Retry);
    }

    #[test]
    fn callers_of_other_fronts_cannot_send_what_a_message_says() {
        let mut message = Publish { topic: "a".into(), ..Publish::default() };
        message.user.push(("x-mqtt-sender".into(), "lamp".into()));
        message.response_topic = Some("r".into());
        message.correlation = Some(Bytes::from_static(b"c"));
        let head = head(&message);
        let all = fields(&head);
        assert!(all.iter().any(|(name, _)| name == "mqtt-user-x-mqtt-sender"));
        for (name, _) in all {
            assert!(mote_spec::fields::is_set_by_node(name.as_bytes()), "{name}");
        }
    }
}
