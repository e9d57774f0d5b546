//! Reads `[[trigger]]` sections with `mqtt = "FILTER"`.

use toml::de::DeTable;

use super::read_word;
use crate::toml_reader::{Lined, Section, TomlReader};

/// The keys of an MQTT trigger, except `mqtt`.
pub(super) const MQTT_KEYS: [&str; 13] = [
    "broker",
    "qos",
    "version",
    "username",
    "password",
    "ca",
    "certificate",
    "key",
    "session",
    "inflight",
    "acknowledge",
    "order",
    "reply",
];

/// The keys that say how the node connects to a broker. Triggers and `[mqtt]` have the same ones.
pub(super) const CONNECTION_KEYS: [&str; 7] =
    ["broker", "version", "username", "password", "ca", "certificate", "key"];

/// `[mqtt]`: the broker at which a function publishes. A key that the manifest does not contain is
/// `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectionManifest {
    /// The line of the section.
    pub line: usize,
    /// `broker`.
    pub broker: Option<String>,
    /// `version`.
    pub version: Option<MqttVersionName>,
    /// `username`.
    pub username: Option<String>,
    /// The name of the secret in `password`.
    pub password: Option<String>,
    /// The name of the secret in `ca`.
    pub ca: Option<String>,
    /// The name of the secret in `certificate`.
    pub certificate: Option<String>,
    /// The name of the secret in `key`.
    pub key: Option<String>,
}

/// Reads `[mqtt]`.
pub(super) fn read_connection(
    reader: &mut TomlReader<'_>,
    at: &Section<'_>,
    line: usize,
) -> ConnectionManifest {
    reader.check_keys(at, &CONNECTION_KEYS, &[], &super::TOP_KEYS);
    let value = |lined: Option<Lined<String>>| lined.map(|lined| lined.value);
    ConnectionManifest {
        line,
        broker: value(reader.string(at, "broker", BROKER_WANTED)),
        version: read_word(reader, at, "version", &VERSIONS),
        username: value(reader.string(at, "username", "a string")),
        password: value(read_secret(reader, at, "password")),
        ca: value(read_secret(reader, at, "ca")),
        certificate: value(read_secret(reader, at, "certificate")),
        key: value(read_secret(reader, at, "key")),
    }
}

const BROKER_WANTED: &str = "an address, e.g. \"mqtt://127.0.0.1:1883\"";

/// An MQTT trigger. A key that the manifest does not contain is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MqttManifest {
    /// The topic filter, not yet checked.
    pub filter: Lined<String>,
    /// `broker`.
    pub broker: Option<Lined<String>>,
    /// `qos`.
    pub qos: Option<u8>,
    /// `version`.
    pub version: Option<MqttVersionName>,
    /// `username`.
    pub username: Option<Lined<String>>,
    /// The name of the secret in `password`.
    pub password: Option<Lined<String>>,
    /// The name of the secret in `ca`.
    pub ca: Option<Lined<String>>,
    /// The name of the secret in `certificate`.
    pub certificate: Option<Lined<String>>,
    /// The name of the secret in `key`.
    pub key: Option<Lined<String>>,
    /// `session`.
    pub session: Option<SessionName>,
    /// `inflight`.
    pub inflight: Option<u16>,
    /// `acknowledge`.
    pub acknowledge: Option<AcknowledgeName>,
    /// `order`.
    pub order: Option<OrderName>,
    /// `reply`.
    pub reply: Option<Lined<String>>,
}

/// The versions of MQTT a manifest may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MqttVersionName {
    /// `3.1.1`.
    V311,
    /// `5`.
    V5,
}

pub(super) const VERSIONS: [(&str, MqttVersionName); 2] =
    [("3.1.1", MqttVersionName::V311), ("5", MqttVersionName::V5)];

/// The kinds of sessions a manifest may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionName {
    /// `persistent`.
    Persistent,
    /// `clean`.
    Clean,
}

pub(super) const SESSIONS: [(&str, SessionName); 2] =
    [("persistent", SessionName::Persistent), ("clean", SessionName::Clean)];

/// The times of acknowledgement that a manifest may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcknowledgeName {
    /// `answered`.
    Answered,
    /// `stored`.
    Stored,
}

pub(super) const ACKNOWLEDGES: [(&str, AcknowledgeName); 2] =
    [("answered", AcknowledgeName::Answered), ("stored", AcknowledgeName::Stored)];

/// The orders of messages that a manifest may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderName {
    /// `topic`.
    Topic,
    /// `none`.
    None,
}

pub(super) const ORDERS: [(&str, OrderName); 2] =
    [("topic", OrderName::Topic), ("none", OrderName::None)];

impl MqttManifest {
    /// The line of `key`, or of `mqtt` if the manifest does not contain `key`.
    pub fn line_of(&self, key: &str) -> usize {
        let found = match key {
            "broker" => &self.broker,
            "username" => &self.username,
            "password" => &self.password,
            "certificate" => {
                if self.certificate.is_some() {
                    &self.certificate
                } else {
                    &self.key
                }
            }
            "reply" => &self.reply,
            _ => &None,
        };
        found.as_ref().map_or(self.filter.line, |found| found.line)
    }
}

/// Reads the keys of a trigger whose filter is `filter`.
pub(super) fn read_mqtt(
    reader: &mut TomlReader<'_>,
    at: &Section<'_>,
    filter: Lined<String>,
) -> MqttManifest {
    let narrow = |value: Option<Lined<u64>>| value.and_then(|value| value.value.try_into().ok());
    MqttManifest {
        filter,
        broker: reader.string(at, "broker", BROKER_WANTED),
        qos: reader.integer(at, "qos", 0..=2).and_then(|qos| u8::try_from(qos.value).ok()),
        version: read_word(reader, at, "version", &VERSIONS),
        username: reader.string(at, "username", "a string"),
        password: read_secret(reader, at, "password"),
        ca: read_secret(reader, at, "ca"),
        certificate: read_secret(reader, at, "certificate"),
        key: read_secret(reader, at, "key"),
        session: read_word(reader, at, "session", &SESSIONS),
        inflight: narrow(reader.integer(at, "inflight", 1..=4096)),
        acknowledge: read_word(reader, at, "acknowledge", &ACKNOWLEDGES),
        order: read_word(reader, at, "order", &ORDERS),
        reply: reader.string(at, "reply", "a topic, e.g. \"sensors/{1}/alert\""),
    }
}

/// Reads `password = { secret = "NAME" }`. The password itself is not accepted, because a manifest
/// is often in a repository.
fn read_secret(reader: &mut TomlReader<'_>, at: &Section<'_>, key: &str) -> Option<Lined<String>> {
    let (value, line) = reader.get(at, key)?;
    let wanted = "{ secret = \"NAME\" }";
    let Some(table): Option<&DeTable<'_>> = value.as_table() else {
        reader.wrong_type(key, line, wanted, value);
        return None;
    };
    let label = format!("{key} of the broker");
    let section = reader.section(table, &label, &label);
    reader.check_keys(&section, &["secret"], &[], &[]);
    let secret = reader.string(&section, "secret", "a name, e.g. \"mqtt-password\"");
    if secret.is_none() && !table.contains_key("secret") {
        reader.mistake("M0303", line, &format!("{key}: {wanted}"), None);
    }
    secret.map(|secret| Lined { value: secret.value, line })
}
