//! Translates a broker's reason codes into words.

use mote_spec::mqtt::MqttVersion;

use crate::packet::ConnAck;

/// Why a broker refuses a client.
pub(crate) fn refusal(ack: &ConnAck, version: MqttVersion) -> String {
    let text = match (version, ack.code) {
        (MqttVersion::V311, 1) => "it does not speak MQTT 3.1.1".to_owned(),
        (MqttVersion::V311, 2) => "it does not accept the client id".to_owned(),
        (MqttVersion::V311, 3) => "it is not available".to_owned(),
        (MqttVersion::V311, 4) => "wrong user name or password".to_owned(),
        (MqttVersion::V311, 5) => "not authorized; check username and password".to_owned(),
        (MqttVersion::V5, 0x01 | 0x84) => {
            "it does not speak MQTT 5; write version = \"3.1.1\"".to_owned()
        }
        (MqttVersion::V5, 0x04) => "wrong user name or password".to_owned(),
        (MqttVersion::V5, 0x05 | 0x87) => "not authorized; check username and password".to_owned(),
        (_, code) => reason_text(code),
    };
    match &ack.reason {
        Some(reason) => format!("{text} ({})", reason.escape_debug()),
        None => text,
    }
}

/// A reason code of MQTT 5 in words.
pub(crate) fn reason_text(code: u8) -> String {
    let text = match code {
        0x83 => "it gives no reason",
        0x85 => "it does not accept the client id",
        0x86 => "wrong user name or password",
        0x87 => "not authorized",
        0x88 => "it is not available",
        0x89 => "it is busy",
        0x8a => "the client is banned",
        0x8b => "it is shutting down",
        0x8d => "the client was silent for too long",
        0x8e => "another client has the same client id",
        0x8f => "it does not accept the topic filter",
        0x90 => "it does not accept the topic",
        0x93 => "more messages than it permits",
        0x95 => "a packet is too large",
        0x97 => "a quota is used up",
        0x98 => "an administrator ended the connection",
        0x9c | 0x9d => "the clients have to use another broker",
        0x9e => "it has no shared subscriptions",
        0x9f => "too many connections at once",
        0xa1 => "it has no subscription identifiers",
        0xa2 => "it has no wildcard subscriptions",
        code => return format!("reason {code:#04x}"),
    };
    text.to_owned()
}
