//! The packets of MQTT 3.1.1 and 5, as a client sends and receives them.
//!
//! This module knows neither sockets nor time. The reader never allocates more bytes than the
//! packet has, and refuses packets that the standards call malformed. Payloads are slices of the
//! bytes that were read.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use mote_spec::mqtt::MqttVersion;

/// The longest remaining length that the format can express.
pub const REMAINING_MAX: usize = 268_435_455;

/// Why the bytes are not a valid packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the broker sent a malformed packet: {0}")]
pub struct Malformed(pub &'static str);

/// A packet from the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet {
    ConnAck(ConnAck),
    Publish(Publish),
    /// PUBACK: packet id and reason.
    PubAck(u16, u8),
    /// PUBREC: packet id and reason.
    PubRec(u16, u8),
    /// PUBREL: packet id.
    PubRel(u16),
    /// PUBCOMP: packet id.
    PubComp(u16),
    /// SUBACK: packet id, and the reason code of the only subscription.
    SubAck(u16, u8),
    /// UNSUBACK: packet id.
    UnsubAck(u16),
    PingResp,
    /// DISCONNECT (MQTT 5): the reason code.
    Disconnect(u8),
}

/// The broker's answer to CONNECT.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnAck {
    /// Whether the broker has a session for this client.
    pub session_present: bool,
    /// The reason code. 0 is success; the other codes differ between the two versions.
    pub code: u8,
    /// How many unacknowledged messages the broker accepts.
    pub receive_maximum: Option<u16>,
    /// The keep-alive that the broker requires, in seconds.
    pub keep_alive_s: Option<u16>,
    /// The highest quality of service that the broker offers.
    pub qos_max: Option<u8>,
    /// Whether the broker keeps messages for later subscribers.
    pub retain: Option<bool>,
    /// The largest packet that the broker accepts.
    pub packet_bytes_max: Option<u32>,
    /// The broker's text about a refusal.
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Publish {
    /// Whether the sender may have sent the message before.
    pub dup: bool,
    /// The quality of service: 0, 1 or 2.
    pub qos: u8,
    /// Whether the broker had retained the message.
    pub retain: bool,
    pub topic: String,
    /// The packet id. 0 at QoS 0.
    pub id: u16,
    pub payload: Bytes,
    /// The content type (MQTT 5).
    pub content_type: Option<String>,
    /// The topic on which the sender expects an answer (MQTT 5).
    pub response_topic: Option<String>,
    /// Data that the answer must repeat (MQTT 5).
    pub correlation: Option<Bytes>,
    /// User properties (MQTT 5).
    pub user: Vec<(String, String)>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// More bytes are needed.
    More,
    /// A packet. It has been removed from the buffer.
    Packet(Packet),
    /// A message with more bytes than permitted. The caller must skip `skip` bytes, and can
    /// acknowledge the message with `qos` and `id`.
    TooLarge {
        /// The number of bytes that belong to the packet, whether they are already in the buffer or
        /// still to come.
        skip: usize,
        topic: String,
        /// The quality of service.
        qos: u8,
        /// The packet id. 0 at QoS 0.
        id: u16,
    },
}

/// Reads the next packet from `buffer` and removes it. If the packet of a message is longer than
/// `bytes_max`, only the head is read.
pub fn read(
    buffer: &mut BytesMut,
    version: MqttVersion,
    bytes_max: usize,
) -> Result<Read, Malformed> {
    let Some((first, remaining, header)) = fixed_header(buffer)? else { return Ok(Read::More) };
    let is_publish = first >> 4 == 3;
    if remaining > bytes_max {
        if !is_publish {
            return Err(Malformed("a packet is too long"));
        }
        return read_head_only(buffer, first, remaining, header);
    }
    if buffer.len() < header + remaining {
        buffer.reserve(header + remaining - buffer.len());
        return Ok(Read::More);
    }
    let mut packet = buffer.split_to(header + remaining).freeze();
    packet.advance(header);
    body(first, packet, version).map(Read::Packet)
}

/// Returns the first byte, the remaining length, and the length of both. `None` if they have not
/// arrived completely.
fn fixed_header(buffer: &[u8]) -> Result<Option<(u8, usize, usize)>, Malformed> {
    let Some((&first, rest)) = buffer.split_first() else { return Ok(None) };
    let mut length = 0;
    for at in 0..4 {
        let Some(&byte) = rest.get(at) else { return Ok(None) };
        length |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((first, length, at + 2)));
        }
    }
    Err(Malformed("a length has more than four bytes"))
}

fn read_head_only(
    buffer: &mut BytesMut,
    first: u8,
    remaining: usize,
    header: usize,
) -> Result<Read, Malformed> {
    let qos = qos(first)?;
    let id_bytes = if qos > 0 { 2 } else { 0 };
    let Some(length) = buffer.get(header..header + 2) else { return Ok(Read::More) };
    let topic_bytes = usize::from(u16::from_be_bytes([length[0], length[1]]));
    let head = 2 + topic_bytes + id_bytes;
    if head > remaining {
        return Err(Malformed("a message is shorter than its topic"));
    }
    if buffer.len() < header + head {
        return Ok(Read::More);
    }
    buffer.advance(header);
    let mut head_bytes = buffer.split_to(head).freeze();
    let topic = text(&mut head_bytes)?;
    let id = if qos > 0 { number(&mut head_bytes)? } else { 0 };
    Ok(Read::TooLarge { skip: remaining - head, topic, qos, id })
}

fn qos(first: u8) -> Result<u8, Malformed> {
    match first >> 1 & 3 {
        3 => Err(Malformed("a message has QoS 3")),
        qos => Ok(qos),
    }
}

fn body(first: u8, mut from: Bytes, version: MqttVersion) -> Result<Packet, Malformed> {
    let v5 = version == MqttVersion::V5;
    let packet = match first >> 4 {
        2 => {
            let mut ack =
                ConnAck { session_present: byte(&mut from)? & 1 == 1, ..ConnAck::default() };
            ack.code = byte(&mut from)?;
            if v5 && from.has_remaining() {
                properties(&mut from, |property| match property {
                    Property::ReceiveMaximum(n) => ack.receive_maximum = Some(n),
                    Property::ServerKeepAlive(n) => ack.keep_alive_s = Some(n),
                    Property::RetainAvailable(n) => ack.retain = Some(n != 0),
                    Property::MaximumQos(n) => ack.qos_max = Some(n),
                    Property::MaximumPacketSize(n) => ack.packet_bytes_max = Some(n),
                    Property::ReasonString(text) => ack.reason = Some(text),
                    _ => {}
                })?;
            }
            Packet::ConnAck(ack)
        }
        3 => {
            let mut message = Publish {
                dup: first & 8 != 0,
                qos: qos(first)?,
                retain: first & 1 != 0,
                topic: text(&mut from)?,
                ..Publish::default()
            };
            if message.qos > 0 {
                message.id = id(&mut from)?;
            }
            if v5 {
                properties(&mut from, |property| match property {
                    Property::ContentType(text) => message.content_type = Some(text),
                    Property::ResponseTopic(text) => message.response_topic = Some(text),
                    Property::Correlation(bytes) => message.correlation = Some(bytes),
                    Property::User(name, value) => message.user.push((name, value)),
                    _ => {}
                })?;
            }
            // This client announces no topic aliases, so each message must have its topic.
            if message.topic.is_empty() {
                return Err(Malformed("a message has no topic"));
            }
            message.payload = from;
            Packet::Publish(message)
        }
        kind @ 4..=7 => {
            let id = id(&mut from)?;
            let reason = if v5 && from.has_remaining() { byte(&mut from)? } else { 0 };
            match kind {
                4 => Packet::PubAck(id, reason),
                5 => Packet::PubRec(id, reason),
                6 => Packet::PubRel(id),
                _ => Packet::PubComp(id),
            }
        }
        kind @ (9 | 11) => {
            let id = id(&mut from)?;
            if v5 {
                properties(&mut from, |_| {})?;
            }
            match kind {
                9 => Packet::SubAck(id, byte(&mut from)?),
                _ => Packet::UnsubAck(id),
            }
        }
        13 => Packet::PingResp,
        14 if v5 => Packet::Disconnect(if from.has_remaining() { byte(&mut from)? } else { 0 }),
        _ => return Err(Malformed("a packet has a type that brokers do not send")),
    };
    Ok(packet)
}

/// The properties that this client uses.
enum Property {
    ContentType(String),
    ResponseTopic(String),
    Correlation(Bytes),
    ServerKeepAlive(u16),
    ReasonString(String),
    ReceiveMaximum(u16),
    MaximumQos(u8),
    RetainAvailable(u8),
    User(String, String),
    MaximumPacketSize(u32),
    Other,
}

fn properties(from: &mut Bytes, mut each: impl FnMut(Property)) -> Result<(), Malformed> {
    let length = variable(from)?;
    if length > from.remaining() {
        return Err(Malformed("properties are longer than their packet"));
    }
    let mut from = from.split_to(length);
    while from.has_remaining() {
        each(match byte(&mut from)? {
            0x03 => Property::ContentType(text(&mut from)?),
            0x08 => Property::ResponseTopic(text(&mut from)?),
            0x09 => Property::Correlation(binary(&mut from)?),
            0x13 => Property::ServerKeepAlive(number(&mut from)?),
            0x1f => Property::ReasonString(text(&mut from)?),
            0x21 => Property::ReceiveMaximum(number(&mut from)?),
            0x24 => Property::MaximumQos(byte(&mut from)?),
            0x25 => Property::RetainAvailable(byte(&mut from)?),
            0x26 => Property::User(text(&mut from)?, text(&mut from)?),
            0x27 => Property::MaximumPacketSize(long(&mut from)?),
            0x01 | 0x17 | 0x19 | 0x28..=0x2a => {
                byte(&mut from)?;
                Property::Other
            }
            0x22 | 0x23 => {
                number(&mut from)?;
                Property::Other
            }
            0x02 | 0x11 | 0x18 => {
                long(&mut from)?;
                Property::Other
            }
            0x0b => {
                variable(&mut from)?;
                Property::Other
            }
            0x12 | 0x15 | 0x16 | 0x1a | 0x1c => {
                binary(&mut from)?;
                Property::Other
            }
            _ => return Err(Malformed("a property is unknown")),
        });
    }
    Ok(())
}

const SHORT: Malformed = Malformed("a packet ends early");

fn byte(from: &mut Bytes) -> Result<u8, Malformed> {
    from.try_get_u8().map_err(|_| SHORT)
}

fn number(from: &mut Bytes) -> Result<u16, Malformed> {
    from.try_get_u16().map_err(|_| SHORT)
}

fn long(from: &mut Bytes) -> Result<u32, Malformed> {
    from.try_get_u32().map_err(|_| SHORT)
}

fn id(from: &mut Bytes) -> Result<u16, Malformed> {
    match number(from)? {
        0 => Err(Malformed("a packet id is 0")),
        id => Ok(id),
    }
}

fn variable(from: &mut Bytes) -> Result<usize, Malformed> {
    let mut length = 0;
    for at in 0..4 {
        let next = byte(from)?;
        length |= usize::from(next & 0x7f) << (7 * at);
        if next & 0x80 == 0 {
            return Ok(length);
        }
    }
    Err(Malformed("a length has more than four bytes"))
}

fn binary(from: &mut Bytes) -> Result<Bytes, Malformed> {
    let length = usize::from(number(from)?);
    if length > from.remaining() {
        return Err(SHORT);
    }
    Ok(from.split_to(length))
}

fn text(from: &mut Bytes) -> Result<String, Malformed> {
    let bytes = binary(from)?;
    match std::str::from_utf8(&bytes) {
        Ok(text) if !text.contains('\0') => Ok(text.to_owned()),
        _ => Err(Malformed("a text is not UTF-8")),
    }
}

#[derive(Debug, Clone)]
pub struct Connect<'a> {
    pub version: MqttVersion,
    pub client_id: &'a str,
    /// Whether the broker must forget an earlier session of this client.
    pub clean: bool,
    /// How many seconds the broker keeps the session after the connection has ended (MQTT 5).
    pub expiry_s: u32,
    pub keep_alive_s: u16,
    /// How many unacknowledged messages the broker may send (MQTT 5).
    pub receive_maximum: u16,
    pub username: Option<&'a str>,
    pub password: Option<&'a [u8]>,
}

pub fn connect(to: &mut BytesMut, connect: &Connect<'_>) {
    let v5 = connect.version == MqttVersion::V5;
    let mut body = BytesMut::new();
    put(&mut body, b"MQTT");
    body.put_u8(if v5 { 5 } else { 4 });
    let mut flags = u8::from(connect.clean) << 1;
    flags |= u8::from(connect.username.is_some()) << 7;
    flags |= u8::from(connect.password.is_some()) << 6;
    body.put_u8(flags);
    body.put_u16(connect.keep_alive_s);
    if v5 {
        let mut properties = BytesMut::new();
        properties.put_u8(0x11);
        properties.put_u32(connect.expiry_s);
        properties.put_u8(0x21);
        properties.put_u16(connect.receive_maximum);
        put_variable(&mut body, properties.len());
        body.put(properties);
    }
    put(&mut body, connect.client_id.as_bytes());
    for field in [connect.username.map(str::as_bytes), connect.password].into_iter().flatten() {
        put(&mut body, field);
    }
    put_packet(to, 0x10, &body);
}

/// Writes SUBSCRIBE for one filter. `own` says whether the broker may send this client's own
/// messages back to it.
pub fn subscribe(
    to: &mut BytesMut,
    version: MqttVersion,
    id: u16,
    filter: &str,
    qos: u8,
    own: bool,
) {
    let v5 = version == MqttVersion::V5;
    let mut body = BytesMut::new();
    body.put_u16(id);
    let mut options = qos;
    if v5 {
        body.put_u8(0);
        // Retained messages are sent only if the subscription is new.
        options |= u8::from(!own) << 2 | 1 << 4;
    }
    put(&mut body, filter.as_bytes());
    body.put_u8(options);
    put_packet(to, 0x82, &body);
}

pub fn unsubscribe(to: &mut BytesMut, version: MqttVersion, id: u16, filter: &str) {
    let mut body = BytesMut::new();
    body.put_u16(id);
    if version == MqttVersion::V5 {
        body.put_u8(0);
    }
    put(&mut body, filter.as_bytes());
    put_packet(to, 0xa2, &body);
}

pub fn publish(to: &mut BytesMut, version: MqttVersion, message: &Publish) {
    let mut head = BytesMut::new();
    put(&mut head, message.topic.as_bytes());
    if message.qos > 0 {
        head.put_u16(message.id);
    }
    if version == MqttVersion::V5 {
        let mut properties = BytesMut::new();
        if let Some(text) = &message.content_type {
            properties.put_u8(0x03);
            put(&mut properties, text.as_bytes());
        }
        if let Some(topic) = &message.response_topic {
            properties.put_u8(0x08);
            put(&mut properties, topic.as_bytes());
        }
        if let Some(bytes) = &message.correlation {
            properties.put_u8(0x09);
            put(&mut properties, bytes);
        }
        for (name, value) in &message.user {
            properties.put_u8(0x26);
            put(&mut properties, name.as_bytes());
            put(&mut properties, value.as_bytes());
        }
        put_variable(&mut head, properties.len());
        head.put(properties);
    }
    let flags = u8::from(message.dup) << 3 | message.qos << 1 | u8::from(message.retain);
    to.put_u8(0x30 | flags);
    put_variable(to, head.len() + message.payload.len());
    to.put(head);
    to.put_slice(&message.payload);
}

pub fn puback(to: &mut BytesMut, id: u16) {
    put_packet(to, 0x40, &id.to_be_bytes());
}

pub fn pubrec(to: &mut BytesMut, id: u16) {
    put_packet(to, 0x50, &id.to_be_bytes());
}

pub fn pubrel(to: &mut BytesMut, id: u16) {
    put_packet(to, 0x62, &id.to_be_bytes());
}

pub fn pubcomp(to: &mut BytesMut, id: u16) {
    put_packet(to, 0x70, &id.to_be_bytes());
}

pub fn pingreq(to: &mut BytesMut) {
    to.put_slice(&[0xc0, 0]);
}

/// Writes DISCONNECT. With `end`, it also ends the session (MQTT 5).
pub fn disconnect(to: &mut BytesMut, version: MqttVersion, end: bool) {
    if version == MqttVersion::V5 && end {
        to.put_slice(&[0xe0, 7, 0, 5, 0x11, 0, 0, 0, 0]);
    } else {
        to.put_slice(&[0xe0, 0]);
    }
}

fn put_packet(to: &mut BytesMut, first: u8, body: &[u8]) {
    to.put_u8(first);
    put_variable(to, body.len());
    to.put_slice(body);
}

/// Writes a length followed by the bytes. Callers keep the bytes below 64 KiB; longer ones are cut.
fn put(to: &mut BytesMut, bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(usize::from(u16::MAX))];
    to.put_u16(bytes.len() as u16);
    to.put_slice(bytes);
}

fn put_variable(to: &mut BytesMut, mut length: usize) {
    loop {
        let low = (length & 0x7f) as u8;
        length >>= 7;
        if length == 0 {
            to.put_u8(low);
            return;
        }
        to.put_u8(low | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MqttVersion::{V5, V311};

    fn one(bytes: &[u8], version: MqttVersion) -> Result<Read, Malformed> {
        read(&mut BytesMut::from(bytes), version, 1024)
    }

    fn message() -> Publish {
        Publish {
            dup: true,
            qos: 2,
            retain: true,
            topic: "a/b".into(),
            id: 7,
            payload: Bytes::from_static(b"hello"),
            ..Publish::default()
        }
    }

    #[test]
    fn messages_read_back_as_they_were_written() {
        let mut bytes = BytesMut::new();
        publish(&mut bytes, V311, &message());
        assert_eq!(bytes[..], *b"\x3d\x0c\x00\x03a/b\x00\x07hello");
        assert_eq!(one(&bytes, V311), Ok(Read::Packet(Packet::Publish(message()))));
        let full = Publish {
            content_type: Some("text/plain".into()),
            response_topic: Some("r".into()),
            correlation: Some(Bytes::from_static(b"\x00\xff")),
            user: vec![("a".into(), "b".into()), ("a".into(), "c".into())],
            ..message()
        };
        let mut bytes = BytesMut::new();
        publish(&mut bytes, V5, &full);
        assert_eq!(one(&bytes, V5), Ok(Read::Packet(Packet::Publish(full))));
        // Every shorter piece is incomplete and waits for more bytes.
        for end in 0..bytes.len() {
            assert_eq!(one(&bytes[..end], V5), Ok(Read::More), "{end}");
        }
    }

    #[test]
    fn answers_of_brokers() {
        let packet = |bytes: &[u8], version| match one(bytes, version) {
            Ok(Read::Packet(packet)) => packet,
            other => panic!("{other:?}"),
        };
        let ack = ConnAck { session_present: true, ..ConnAck::default() };
        assert_eq!(packet(b"\x20\x02\x01\x00", V311), Packet::ConnAck(ack));
        let ack = ConnAck {
            code: 0x87,
            receive_maximum: Some(20),
            reason: Some("no".into()),
            ..ConnAck::default()
        };
        let bytes = b"\x20\x0b\x00\x87\x08\x21\x00\x14\x1f\x00\x02no";
        assert_eq!(packet(bytes, V5), Packet::ConnAck(ack));
        assert_eq!(packet(b"\x40\x02\x00\x01", V5), Packet::PubAck(1, 0));
        assert_eq!(packet(b"\x40\x03\x00\x01\x10", V5), Packet::PubAck(1, 0x10));
        assert_eq!(packet(b"\x62\x02\x00\x01", V5), Packet::PubRel(1));
        assert_eq!(packet(b"\x90\x03\x00\x01\x80", V311), Packet::SubAck(1, 0x80));
        assert_eq!(packet(b"\x90\x04\x00\x01\x00\x02", V5), Packet::SubAck(1, 2));
        assert_eq!(packet(b"\xd0\x00", V5), Packet::PingResp);
        assert_eq!(packet(b"\xe0\x01\x8e", V5), Packet::Disconnect(0x8e));
    }

    #[test]
    fn what_is_malformed_is_refused() {
        for bytes in [
            &b"\x30\xff\xff\xff\xff\x01"[..],
            b"\x36\x05\x00\x01a\x00\x01",
            b"\x32\x05\x00\x01a\x00\x00",
            b"\x30\x03\x00\x09a",
            b"\x30\x03\x00\x01\xff",
            b"\x30\x02\x00\x00",
            b"\x40\x01\x00",
            b"\x00\x00",
            b"\xf0\x00",
            b"\x10\x00",
        ] {
            assert!(one(bytes, V311).is_err(), "{bytes:x?}");
        }
        assert!(one(b"\x30\x05\x00\x01a\x01\xee", V5).is_err());
        assert!(one(b"\x30\x04\x00\x01a\x09", V5).is_err());
    }

    #[test]
    fn noise_neither_panics_nor_loops() {
        let mut bytes = BytesMut::new();
        let full = Publish {
            content_type: Some("x".into()),
            correlation: Some(Bytes::from_static(b"y")),
            user: vec![("a".into(), "b".into())],
            ..message()
        };
        publish(&mut bytes, V5, &full);
        let mut state = 7u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut noisy = bytes.clone();
            let at = (state >> 33) as usize % noisy.len();
            noisy[at] = (state >> 56) as u8;
            for version in [V311, V5] {
                let mut rest = noisy.clone();
                while let Ok(Read::Packet(_)) = read(&mut rest, version, 64) {}
                assert!(rest.len() <= noisy.len());
            }
        }
    }

    #[test]
    fn a_long_message_can_be_skipped_and_acknowledged() {
        let long = Publish { payload: vec![0; 2_000].into(), ..message() };
        let mut bytes = BytesMut::new();
        publish(&mut bytes, V5, &long);
        let whole = bytes.len();
        let mut first = bytes.split_to(11);
        let found = read(&mut first, V5, 1024);
        let skip = whole - 3 - 5 - 2;
        assert_eq!(found, Ok(Read::TooLarge { skip, topic: "a/b".into(), qos: 2, id: 7 }));
        assert_eq!(first.len() + bytes.len(), skip);
        assert_eq!(
            read(&mut BytesMut::from(&b"\x20\xff\xff\x01"[..]), V5, 9),
            Err(Malformed("a packet is too long"))
        );
    }

    #[test]
    fn a_client_introduces_itself() {
        let mut to = BytesMut::new();
        let plain = Connect {
            version: V311,
            client_id: "c",
            clean: false,
            expiry_s: 9,
            keep_alive_s: 30,
            receive_maximum: 64,
            username: Some("u"),
            password: Some(b"p"),
        };
        connect(&mut to, &plain);
        assert_eq!(to[..], *b"\x10\x13\x00\x04MQTT\x04\xc0\x00\x1e\x00\x01c\x00\x01u\x00\x01p");
        to.clear();
        connect(
            &mut to,
            &Connect { version: V5, clean: true, username: None, password: None, ..plain },
        );
        let expected =
            b"\x10\x16\x00\x04MQTT\x05\x02\x00\x1e\x08\x11\x00\x00\x00\x09\x21\x00\x40\x00\x01c";
        assert_eq!(to[..], *expected);
        to.clear();
        subscribe(&mut to, V5, 1, "a/+", 1, false);
        assert_eq!(to[..], *b"\x82\x09\x00\x01\x00\x00\x03a/+\x15");
        to.clear();
        subscribe(&mut to, V311, 1, "a/+", 1, false);
        assert_eq!(to[..], *b"\x82\x08\x00\x01\x00\x03a/+\x01");
    }
}
