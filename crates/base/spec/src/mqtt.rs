//! MQTT triggers of a function: what they subscribe to, and how messages are acknowledged.
//!
//! Specs are stored in the form of these structs, so a new field must have a default.

use serde::{Deserialize, Serialize};

use crate::secret::is_secret_name;

/// Most MQTT triggers of one function. Each trigger has its own connection.
pub const MQTT_TRIGGERS_MAX: usize = 16;
/// Default for the messages that may be unacknowledged at once. This is enough to keep one instance
/// of every runtime busy over a network with a few milliseconds of delay.
pub const MQTT_INFLIGHT_DEFAULT: u16 = 64;
/// The maximum number of messages that may be unacknowledged at once. A broker holds each of them
/// in memory.
pub const MQTT_INFLIGHT_MAX: u16 = 4_096;
/// Longest topic filter, reply topic, broker address and user name, in bytes.
pub const MQTT_TEXT_BYTES_MAX: usize = 1_024;

/// Longest topic of a message in bytes.
pub const TOPIC_BYTES_MAX: usize = 1_024;

/// Why two triggers of one function cannot subscribe to the same topics: the broker would take them
/// for the same client.
pub const SAME_FILTER: &str = "another trigger of this function has the same filter and broker";

/// A subscription. Each of its messages becomes an invocation of the function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MqttTrigger {
    /// The topic filter, which may begin with `$share/GROUP/`.
    pub filter: String,
    /// The broker's address, or [`LOCAL`]. `None` means the broker in the node's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker: Option<String>,
    /// The quality of service that the subscription asks for: 0, 1 or 2.
    pub qos: u8,
    /// The version of the protocol.
    pub version: MqttVersion,
    /// The user name for the broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// The name of the secret that holds the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// The name of the secret with the authorities (PEM), one of which must have signed the
    /// broker's certificate, directly or indirectly. `None` means the authorities that the machine
    /// trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// The name of the secret that holds the client's certificate (PEM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The name of the secret that holds the key of the client's certificate (PEM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whether the broker keeps the subscription and its messages while the node is away.
    pub session: MqttSession,
    /// Messages that may be unacknowledged at once.
    pub inflight: u16,
    /// When a message is acknowledged.
    pub acknowledge: Acknowledge,
    /// Which messages run one after another.
    pub order: MqttOrder,
    /// The topic to which answers are published. `{1}` stands for the text that matched the first
    /// wildcard of the filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<String>,
}

/// How the node connects to the broker at which a function publishes: `[mqtt]` of its manifest. The
/// keys are the same as those of a trigger.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connection {
    /// The broker's address, or [`LOCAL`]. `None` means the broker in the node's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker: Option<String>,
    /// The version of the protocol.
    #[serde(default)]
    pub version: MqttVersion,
    /// The user name for the broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// The name of the secret that holds the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// The name of the secret with the authorities (PEM), one of which must have signed the
    /// broker's certificate, directly or indirectly. `None` means the authorities that the machine
    /// trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// The name of the secret that holds the client's certificate (PEM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The name of the secret that holds the key of the client's certificate (PEM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The word for the node's own broker, used in place of an address.
pub const LOCAL: &str = "local";
/// The maximum number of topic filters of `[allow] mqtt`.
pub const PUBLISH_FILTERS_MAX: usize = 64;

/// What a function publishes, and where.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Publishing {
    /// The broker for everything that the function publishes, including its results: `[mqtt]`.
    pub connection: Connection,
    /// The topic filters of `[allow] mqtt`. The function itself may publish to a topic that one of
    /// them matches.
    pub topics: Vec<String>,
}

impl Publishing {
    /// Whether nothing is set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the function may publish to this topic. The topic must be valid.
    pub fn allows(&self, topic: &str) -> bool {
        self.topics.iter().any(|filter| matches(filter, topic))
    }

    /// The first mistake: the section of the manifest, the key, and what is wrong with its value.
    pub fn mistake(&self) -> Option<(&'static str, &'static str, String)> {
        if let Some((key, text)) = self.connection.mistake() {
            return Some(("mqtt", key, text));
        }
        let wrong = |text| Some(("allow.mqtt", "mqtt", text));
        if self.topics.len() > PUBLISH_FILTERS_MAX {
            return wrong(format!("at most {PUBLISH_FILTERS_MAX} topic filters"));
        }
        self.topics.iter().find_map(|filter| match check_filter(filter) {
            Err(text) => wrong(text),
            Ok(()) if filter.starts_with('$') => {
                wrong("topics that begin with $ belong to the broker".to_owned())
            }
            Ok(()) => None,
        })
    }
}

impl Connection {
    /// Names of the secrets that the node reads to connect to the broker. The function does not see
    /// them.
    pub fn secret_names(&self) -> impl Iterator<Item = &str> {
        [&self.password, &self.ca, &self.certificate, &self.key]
            .into_iter()
            .filter_map(Option::as_deref)
    }

    /// The first mistake: the key of the manifest, and what is wrong with its value.
    pub fn mistake(&self) -> Option<(&'static str, String)> {
        let at = |key, text: Result<(), String>| text.err().map(|text| (key, text));
        let plain = |text: &Option<String>| match text {
            Some(text) if text.len() > MQTT_TEXT_BYTES_MAX || text.contains(char::is_control) => {
                Err(format!("at most {MQTT_TEXT_BYTES_MAX} bytes, without control characters"))
            }
            _ => Ok(()),
        };
        let needs = |ok: bool, text: &str| if ok { Ok(()) } else { Err(text.to_owned()) };
        let is_local = self.broker.as_deref() == Some(LOCAL);
        let address = self.broker.as_deref().filter(|text| *text != LOCAL);
        at("broker", address.map_or(Ok(()), |text| Broker::parse(text).map(|_| ())))
            .or_else(|| at("username", plain(&self.username)))
            .or_else(|| {
                let ok = self.password.is_none() || self.username.is_some();
                at("password", needs(ok, "needs a username"))
            })
            .or_else(|| {
                let ok = self.certificate.is_some() == self.key.is_some();
                at("certificate", needs(ok, "certificate and key belong together"))
            })
            .or_else(|| {
                let names = "1 to 253 of a-z, A-Z, 0-9, -, _ and ., not beginning with .";
                at("password", needs(self.secret_names().all(is_secret_name), names))
            })
            .or_else(|| {
                let ok = !is_local || (self.username.is_none() && self.secret_names().count() == 0);
                let text = "\"local\" needs no user, password or certificate";
                at("broker", needs(ok, text))
            })
    }
}

/// A version of MQTT.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MqttVersion {
    /// 3.1.1.
    #[serde(rename = "3.1.1")]
    V311,
    /// 5.0.
    #[default]
    #[serde(rename = "5")]
    V5,
}

/// Whether the broker keeps a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MqttSession {
    /// The broker keeps messages for the function while the node is away.
    Persistent,
    /// The broker keeps nothing while the node is not connected.
    Clean,
}

/// When a message is acknowledged to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Acknowledge {
    /// When the function has answered.
    Answered,
    /// When the node's journal has stored the message.
    Stored,
}

/// Which messages of a trigger must run one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MqttOrder {
    /// Messages of the same topic run one after another.
    Topic,
    /// Messages never wait for each other.
    None,
}

impl MqttTrigger {
    /// A trigger with every default.
    pub fn new(filter: impl Into<String>) -> Self {
        Self {
            filter: filter.into(),
            broker: None,
            qos: 1,
            version: MqttVersion::V5,
            username: None,
            password: None,
            ca: None,
            certificate: None,
            key: None,
            session: MqttSession::Persistent,
            inflight: MQTT_INFLIGHT_DEFAULT,
            acknowledge: Acknowledge::Answered,
            order: MqttOrder::Topic,
            reply: None,
        }
    }

    /// Whether one of `others` subscribes to the same topics at the same broker.
    pub fn is_among(&self, others: &[Self]) -> bool {
        others.iter().any(|other| (&other.filter, &other.broker) == (&self.filter, &self.broker))
    }

    /// How the node connects to the trigger's broker.
    pub fn connection(&self) -> Connection {
        Connection {
            broker: self.broker.clone(),
            version: self.version,
            username: self.username.clone(),
            password: self.password.clone(),
            ca: self.ca.clone(),
            certificate: self.certificate.clone(),
            key: self.key.clone(),
        }
    }

    /// Names of the secrets that the node reads to connect to the broker. The function does not see
    /// them.
    pub fn secret_names(&self) -> impl Iterator<Item = &str> {
        [&self.password, &self.ca, &self.certificate, &self.key]
            .into_iter()
            .filter_map(Option::as_deref)
    }

    /// The first mistake: the key of the manifest, and what is wrong with its value.
    pub fn mistake(&self) -> Option<(&'static str, String)> {
        let at = |key, text: Result<(), String>| text.err().map(|text| (key, text));
        let needs = |ok: bool, text: &str| if ok { Ok(()) } else { Err(text.to_owned()) };
        at("mqtt", check_filter(&self.filter))
            .or_else(|| at("qos", needs(self.qos <= 2, "0, 1 or 2")))
            .or_else(|| self.connection().mistake())
            .or_else(|| {
                let text = format!("1 to {MQTT_INFLIGHT_MAX}");
                at("inflight", needs((1..=MQTT_INFLIGHT_MAX).contains(&self.inflight), &text))
            })
            .or_else(|| {
                let reply = self.reply.as_deref()?;
                at("reply", check_reply(reply, &self.filter))
            })
            .or_else(|| {
                let ok = self.reply.is_none() || self.acknowledge == Acknowledge::Answered;
                let text = "needs acknowledge = \"answered\", because the journal keeps no answer";
                at("reply", needs(ok, text))
            })
    }
}

/// The address of a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broker {
    /// Whether the connection uses TLS.
    pub tls: bool,
    /// A name or an address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl Broker {
    /// Reads `mqtt://HOST[:PORT]` or `mqtts://HOST[:PORT]`. The ports are 1883 and 8883 by default.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wanted = "mqtt://HOST:PORT or mqtts://HOST:PORT";
        if text.len() > MQTT_TEXT_BYTES_MAX {
            return Err(wanted.to_owned());
        }
        let (tls, rest) = match text.split_once("://") {
            Some(("mqtt", rest)) => (false, rest),
            Some(("mqtts", rest)) => (true, rest),
            _ => return Err(wanted.to_owned()),
        };
        if rest.contains('@') {
            let text = format!("{wanted}; the user belongs in username and password");
            return Err(text);
        }
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, after)) => {
                (host, after.strip_prefix(':').or(after.is_empty().then_some("")))
            }
            None => match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, Some("")),
            },
        };
        let port = match port {
            Some("") => Some(if tls { 8883 } else { 1883 }),
            Some(port) => port.parse::<u16>().ok().filter(|port| *port != 0),
            None => None,
        };
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._:".contains(&b);
        match port {
            Some(port) if !host.is_empty() && host.len() <= 253 && host.bytes().all(plain) => {
                Ok(Self { tls, host: host.to_owned(), port })
            }
            _ => Err(wanted.to_owned()),
        }
    }
}

/// Returns the filter without `$share/GROUP/`. Topics are compared with this part.
pub fn matched_part(filter: &str) -> &str {
    let shared = filter.strip_prefix("$share/").and_then(|rest| rest.split_once('/'));
    shared.map_or(filter, |(_, filter)| filter)
}

/// Checks a topic filter (MQTT 5, 4.7 and 4.8.2).
pub fn check_filter(filter: &str) -> Result<(), String> {
    let wrong = |text: &str| Err(text.to_owned());
    if filter.is_empty() || filter.len() > MQTT_TEXT_BYTES_MAX || filter.contains('\0') {
        return Err(format!("a topic filter of 1 to {MQTT_TEXT_BYTES_MAX} bytes, without NUL"));
    }
    if let Some(rest) = filter.strip_prefix("$share/") {
        let group = rest.split_once('/');
        if group.is_none_or(|(group, _)| group.is_empty() || group.contains(['+', '#'])) {
            return wrong("a shared subscription is $share/GROUP/FILTER");
        }
    }
    let part = matched_part(filter);
    if part.is_empty() {
        return wrong("a shared subscription is $share/GROUP/FILTER");
    }
    let levels: Vec<&str> = part.split('/').collect();
    for (at, level) in levels.iter().enumerate() {
        if level.contains('#') && (*level != "#" || at + 1 < levels.len()) {
            return wrong("# is the last level of a filter, alone: \"sensors/#\"");
        }
        if level.contains('+') && *level != "+" {
            return wrong("+ is a level of its own: \"sensors/+/temp\"");
        }
    }
    Ok(())
}

/// Whether a filter (without `$share/…`) matches a topic.
pub fn matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut topics = topic.split('/');
    for level in filter.split('/') {
        match (level, topics.next()) {
            ("#", _) => return true,
            (_, None) => return false,
            ("+", Some(_)) => {}
            (level, Some(found)) if level == found => {}
            _ => return false,
        }
    }
    topics.next().is_none()
}

/// Whether a text can be the topic of a message. A broker ends the connection of a client that
/// publishes to any other text.
pub fn is_topic(topic: &str) -> bool {
    !topic.is_empty() && topic.len() <= usize::from(u16::MAX) && !topic.contains(['+', '#', '\0'])
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
pub fn is_forbidden(c: char) -> bool {
    let code = u32::from(c);
    c.is_control() || matches!(code, 0xfdd0..=0xfdef) || code & 0xfffe == 0xfffe
}

fn check_reply(reply: &str, filter: &str) -> Result<(), String> {
    let filter = matched_part(filter);
    let wildcards = filter.split('/').filter(|level| matches!(*level, "+" | "#")).count();
    if reply.len() > MQTT_TEXT_BYTES_MAX {
        return Err(format!("at most {MQTT_TEXT_BYTES_MAX} bytes"));
    }
    let mut rest = reply;
    while let Some((_, after)) = rest.split_once('{') {
        let number = after.split_once('}').map(|(number, after)| (number.parse::<usize>(), after));
        match number {
            Some((Ok(number), after)) if (1..=wildcards).contains(&number) => rest = after,
            _ => {
                let text = match wildcards {
                    0 => "{…}: the filter has no wildcard".to_owned(),
                    1 => "{1} stands for the wildcard of the filter".to_owned(),
                    _ => format!("{{1}} to {{{wildcards}}} stand for the wildcards of the filter"),
                };
                return Err(text);
            }
        }
    }
    // In this example topic, a text that no real topic contains replaces each wildcard.
    let example = filter.replace(['+', '#'], "\u{1}");
    let topic = reply_topic(reply, filter, &example).unwrap_or_default();
    if !is_topic(&topic) {
        return Err("a topic, without wildcards".to_owned());
    }
    if matches(filter, &topic) {
        return Err("the filter matches it, so each answer would call the function again".into());
    }
    Ok(())
}

/// Returns `reply` with `{1}` and so on replaced by the parts of `topic` that match the wildcards
/// of `filter`. Returns `None` if the result is not a topic.
pub fn reply_topic(reply: &str, filter: &str, topic: &str) -> Option<String> {
    let mut matched = Vec::new();
    let mut rest = topic;
    for level in matched_part(filter).split('/') {
        if level == "#" {
            matched.push(rest);
            break;
        }
        let (here, after) = rest.split_once('/').unwrap_or((rest, ""));
        if level == "+" {
            matched.push(here);
        }
        rest = after;
    }
    let mut text = String::with_capacity(reply.len() + topic.len());
    let mut rest = reply;
    while let Some((before, after)) = rest.split_once('{') {
        let (number, after) = after.split_once('}')?;
        text += before;
        text += matched.get(number.parse::<usize>().ok()?.checked_sub(1)?)?;
        rest = after;
    }
    text += rest;
    is_topic(&text).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_checked() {
        for good in ["a", "/", "a/+/b", "#", "+/#", "$share/g/a/+", "$SYS/#", "a//b"] {
            assert_eq!(check_filter(good), Ok(()), "{good}");
        }
        for bad in ["", "a#", "a/#/b", "a+/b", "$share/g", "$share//a", "$share/+/a", "\0"] {
            assert!(check_filter(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn filters_match_as_the_standard_says() {
        for (filter, topic) in [
            ("sport/tennis/player1/#", "sport/tennis/player1"),
            ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon"),
            ("sport/+", "sport/"),
            ("+/+", "/finance"),
            ("#", "a/b"),
            ("$SYS/#", "$SYS/x"),
        ] {
            assert!(matches(filter, topic), "{filter} {topic}");
        }
        for (filter, topic) in [
            ("sport/+", "sport"),
            ("+", "/finance"),
            ("#", "$SYS/x"),
            ("+/x", "$SYS/x"),
            ("a", "b"),
        ] {
            assert!(!matches(filter, topic), "{filter} {topic}");
        }
    }

    #[test]
    fn replies_name_what_the_wildcards_matched() {
        let reply = |reply, filter, topic| reply_topic(reply, filter, topic);
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(reply("s/{1}/alert", "s/+/temp", "s/k 1/temp"), some("s/k 1/alert"));
        assert_eq!(reply("{2}/{1}", "$share/g/a/+/#", "a/b/c/d"), some("c/d/b"));
        assert_eq!(reply("{1}", "a/#", "a"), None);
        assert_eq!(reply("x/{1}", "a/+", "a/"), some("x/"));
    }

    #[test]
    fn mistakes_name_their_key() {
        let check = |edit: &dyn Fn(&mut MqttTrigger)| {
            let mut trigger = MqttTrigger::new("s/+/temp");
            edit(&mut trigger);
            trigger.mistake().map(|(key, _)| key)
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(check(&|_| ()), None);
        assert_eq!(check(&|t| t.reply = some("s/{1}/alert")), None);
        assert_eq!(check(&|t| t.filter = "a+".into()), Some("mqtt"));
        assert_eq!(check(&|t| t.reply = some("s/{2}/alert")), Some("reply"));
        assert_eq!(check(&|t| t.reply = some("s/{1}/temp")), Some("reply"));
        assert_eq!(check(&|t| t.reply = some("s/+")), Some("reply"));
        assert_eq!(check(&|t| t.qos = 3), Some("qos"));
        assert_eq!(check(&|t| t.broker = some("tcp://x")), Some("broker"));
        assert_eq!(check(&|t| t.inflight = 0), Some("inflight"));
        assert_eq!(check(&|t| t.password = some("x")), Some("password"));
        assert_eq!(check(&|t| t.key = some("x")), Some("certificate"));
        let stored = |t: &mut MqttTrigger| t.acknowledge = Acknowledge::Stored;
        assert_eq!(check(&stored), None);
        let both = |t: &mut MqttTrigger| {
            stored(t);
            t.reply = some("x");
        };
        assert_eq!(check(&both), Some("reply"));
    }

    #[test]
    fn publishing_is_allowed_by_filters_and_never_to_topics_of_the_broker() {
        let topics = |topics: &[&str]| Publishing {
            topics: topics.iter().map(|&text| text.to_owned()).collect(),
            ..Publishing::default()
        };
        assert!(!topics(&[]).allows("a"));
        let some = topics(&["alarms/#", "a/+/b"]);
        assert_eq!(some.mistake(), None);
        for topic in ["alarms", "alarms/x/y", "a/x/b"] {
            assert!(some.allows(topic), "{topic}");
        }
        for topic in ["a/b", "a/x/y/b", "Alarms/x", "/alarms"] {
            assert!(!some.allows(topic), "{topic}");
        }
        assert!(!topics(&["#"]).allows("$SYS/x"));
        for bad in ["$SYS/#", "$share/g/a", "a+", ""] {
            assert!(topics(&[bad]).mistake().is_some(), "{bad}");
        }
    }

    #[test]
    fn user_names_have_no_control_characters() {
        let with = |name: &str| Connection {
            broker: Some("mqtt://b".to_owned()),
            username: Some(name.to_owned()),
            ..Connection::default()
        };
        assert_eq!(with("sensor 7 ü").mistake(), None);
        for name in ["a\0", "a\r\nGET / HTTP/1.0", "\u{7f}"] {
            assert_eq!(with(name).mistake().map(|(key, _)| key), Some("username"), "{name:?}");
        }
    }

    #[test]
    fn the_nodes_own_broker_takes_no_credentials() {
        let local = Connection { broker: Some(LOCAL.to_owned()), ..Connection::default() };
        assert_eq!(local.mistake(), None);
        let with = Connection { username: Some("x".to_owned()), ..local };
        assert_eq!(with.mistake().map(|(key, _)| key), Some("broker"));
    }

    #[test]
    fn brokers_are_read() {
        let parse = |text| Broker::parse(text).map(|b| (b.tls, b.host, b.port));
        assert_eq!(parse("mqtt://a.b"), Ok((false, "a.b".into(), 1883)));
        assert_eq!(parse("mqtts://[::1]/"), Ok((true, "::1".into(), 8883)));
        assert_eq!(parse("mqtts://[::1]:9"), Ok((true, "::1".into(), 9)));
        for bad in
            ["x", "mqtt://", "mqtt://a:0", "mqtt://a:x", "http://a", "mqtt://u:p@h", "mqtt://[::1"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
