//! Reads `[async]`: how the accepted invocations of a function are run.

use crate::toml_reader::{Lined, Section, TomlReader};

use super::{HOUR_MS, TOP_KEYS, narrow};

pub(super) const KEYS: [&str; 8] = [
    "attempts",
    "backoff",
    "backoff_max",
    "retry",
    "max_age",
    "concurrency",
    "on_success",
    "on_failure",
];
const ATTEMPTS_MAX: u64 = 100;
const DAY_MS: u64 = 24 * HOUR_MS;

/// `[async]`. The names of the fields contain the units.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AsyncManifest {
    /// `attempts`: the number in total.
    pub attempts: Option<u32>,
    /// `backoff`: the pause before the second attempt.
    pub backoff_ms: Option<u64>,
    /// `backoff_max`: the longest pause.
    pub backoff_ms_max: Option<u64>,
    /// `retry`: the failures after which an invocation is tried again.
    pub retry: Option<Vec<RetryName>>,
    /// `max_age`.
    pub age_ms_max: Option<u64>,
    /// `concurrency`.
    pub concurrency: Option<u32>,
    /// `on_success`.
    pub on_success: Option<Lined<RecipientName>>,
    /// `on_failure`.
    pub on_failure: Option<Lined<RecipientName>>,
}

/// The failures that `retry` may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryName {
    /// `error`.
    Error,
    /// `timeout`.
    Timeout,
    /// `status`.
    Status,
}

pub(super) const RETRIES: [(&str, RetryName); 3] =
    [("error", RetryName::Error), ("timeout", RetryName::Timeout), ("status", RetryName::Status)];

/// The recipients of results that a manifest may name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecipientName {
    /// `{ function = "NAME" }`, not yet checked against the rule for names.
    Function(String),
    /// `{ url = "https://…" }`.
    Url(String),
    /// `{ topic = "TOPIC", qos = 1, retain = false }`.
    Topic(TopicName),
}

/// A topic of the function's MQTT broker, with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicName {
    /// `topic`, not yet checked.
    pub topic: String,
    /// `qos`.
    pub qos: Option<u8>,
    /// `retain`.
    pub retain: Option<bool>,
}

pub(super) fn read(reader: &mut TomlReader<'_>, at: &Section<'_>) -> AsyncManifest {
    reader.check_keys(at, &KEYS, &[], &TOP_KEYS);
    let duration = |reader: &mut TomlReader<'_>, key, range, wanted| {
        reader.duration_ms(at, key, range, wanted).map(|duration| duration.value)
    };
    let rules = AsyncManifest {
        attempts: narrow(reader.integer(at, "attempts", 1..=ATTEMPTS_MAX)),
        backoff_ms: duration(reader, "backoff", 1..=HOUR_MS, "1ms\u{2013}1h, e.g. 1s"),
        backoff_ms_max: duration(reader, "backoff_max", 1..=DAY_MS, "1ms\u{2013}24h, e.g. 5m"),
        retry: read_retry(reader, at),
        age_ms_max: duration(reader, "max_age", 1_000..=30 * DAY_MS, "1s\u{2013}720h, e.g. 6h"),
        concurrency: narrow(reader.integer(at, "concurrency", 1..=64)),
        on_success: read_recipient(reader, at, "on_success"),
        on_failure: read_recipient(reader, at, "on_failure"),
    };
    if let (Some(first), Some(longest)) = (rules.backoff_ms, rules.backoff_ms_max)
        && first > longest
    {
        let line = reader.get(at, "backoff").map_or(0, |(_, line)| line);
        let text = format!("backoff: at most backoff_max, which is {longest} ms; found {first} ms");
        reader.mistake("M0303", line, &text, None);
    }
    rules
}

fn read_retry(reader: &mut TomlReader<'_>, at: &Section<'_>) -> Option<Vec<RetryName>> {
    let wanted = "an array of \"error\", \"timeout\" and \"status\"";
    let words = reader.strings(at, "retry", wanted)?;
    let mut retry = Vec::new();
    for word in &words.value {
        match RETRIES.iter().find(|(known, _)| known == word) {
            Some((_, name)) if !retry.contains(name) => retry.push(*name),
            Some(_) => {}
            None => {
                let near = crate::nearest(word, RETRIES.iter().map(|(known, _)| *known));
                let hint = near.map(|near| format!("did you mean \"{near}\"?"));
                reader.mistake("M0303", words.line, &format!("retry: {wanted}"), hint);
            }
        }
    }
    Some(retry)
}

fn read_recipient(
    reader: &mut TomlReader<'_>,
    at: &Section<'_>,
    key: &'static str,
) -> Option<Lined<RecipientName>> {
    const WANTED: &str =
        "{ function = \"NAME\" }, { url = \"https://\u{2026}\" } or { topic = \"TOPIC\" }";
    let (value, line) = reader.get(at, key)?;
    let Some(table) = value.as_table() else {
        reader.wrong_type(key, line, WANTED, value);
        return None;
    };
    let label = format!("{key} of [async]");
    let section = reader.section(table, &label, &label);
    reader.check_keys(&section, &["function", "url", "topic", "qos", "retain"], &[], &[]);
    let function = reader.string(&section, "function", "the name of a function");
    let url = reader.string(&section, "url", "an address, e.g. \"https://example.org/hook\"");
    let topic = reader.string(&section, "topic", "a topic, e.g. \"alerts/{function}\"");
    let qos = reader.integer(&section, "qos", 0..=2);
    let retain = reader.boolean(&section, "retain");
    let kinds = ["function", "url", "topic"];
    match kinds.iter().filter(|kind| table.contains_key(**kind)).count() {
        0 => reader.mistake("M0306", line, &format!("{key}: {WANTED}"), None),
        1 => {}
        _ => {
            let text = format!("{key}: either function, url or topic");
            reader.mistake("M0303", line, &text, None);
            return None;
        }
    }
    if topic.is_none() && (qos.is_some() || retain.is_some()) {
        let text = format!("{key}: qos and retain belong to a topic");
        reader.mistake("M0303", line, &text, None);
        return None;
    }
    let recipient = match (function, url, topic) {
        (Some(name), ..) => RecipientName::Function(name.value),
        (None, Some(url), _) => {
            let is_http = ["http://", "https://"]
                .iter()
                .any(|scheme| url.value.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty()));
            if !is_http {
                let text = format!("{key}: the url must begin with http:// or https://");
                reader.mistake("M0303", url.line, &text, None);
                return None;
            }
            RecipientName::Url(url.value)
        }
        (None, None, Some(topic)) => RecipientName::Topic(TopicName {
            topic: topic.value,
            qos: narrow(qos).and_then(|qos| u8::try_from(qos).ok()),
            retain: retain.map(|retain| retain.value),
        }),
        (None, None, None) => return None,
    };
    Some(Lined { value: recipient, line })
}

#[cfg(test)]
mod tests {
    use super::super::{FILE_NAME, Manifest};
    use super::*;

    #[test]
    fn every_key_is_read() {
        let source = "version = 1\n[async]\nattempts = 5\nbackoff = \"2s\"\nbackoff_max = \"1m\"\n\
                      retry = [\"timeout\", \"status\"]\nmax_age = \"1h\"\nconcurrency = 2\n\
                      on_success = { function = \"next\" }\n\
                      on_failure = { url = \"https://example.org/x\" }\n";
        let manifest = Manifest::parse(FILE_NAME, source).expect("valid");
        let expected = AsyncManifest {
            attempts: Some(5),
            backoff_ms: Some(2_000),
            backoff_ms_max: Some(60_000),
            retry: Some(vec![RetryName::Timeout, RetryName::Status]),
            age_ms_max: Some(3_600_000),
            concurrency: Some(2),
            on_success: Some(Lined { value: RecipientName::Function("next".to_owned()), line: 9 }),
            on_failure: Some(Lined {
                value: RecipientName::Url("https://example.org/x".to_owned()),
                line: 10,
            }),
        };
        assert_eq!(manifest.functions[0].background, expected);
    }

    #[test]
    fn a_topic_receives_results() {
        let source = "version = 1\n[async]\n\
                      on_failure = { topic = \"alerts/{function}\", qos = 2, retain = true }\n";
        let manifest = Manifest::parse(FILE_NAME, source).expect("valid");
        let topic = "alerts/{function}".to_owned();
        let value = RecipientName::Topic(TopicName { topic, qos: Some(2), retain: Some(true) });
        assert_eq!(manifest.functions[0].background.on_failure, Some(Lined { value, line: 3 }));
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (line, expected) in [
            ("attempts = 0", "attempts"),
            ("retry = [\"timeouts\"]", "did you mean \"timeout\"?"),
            ("backoff = \"2s\"\nbackoff_max = \"1s\"", "at most backoff_max"),
            ("on_success = \"next\"", "{ function = \"NAME\" }"),
            ("on_success = { url = \"ftp://a\" }", "http:// or https://"),
            (
                "on_success = { function = \"a\", url = \"http://a\" }",
                "either function, url or topic",
            ),
            ("on_success = { url = \"http://a\", qos = 1 }", "belong to a topic"),
            ("on_success = { topic = \"a\", qos = 3 }", "qos"),
            ("on_failure = {}", "{ function = \"NAME\" }"),
            ("attempt = 3", "did you mean `attempts`?"),
        ] {
            let source = format!("version = 1\n[async]\n{line}\n");
            let error = Manifest::parse(FILE_NAME, &source).expect_err(line).to_string();
            assert!(error.contains(expected), "{line}: {error}");
            assert!(error.contains("line 3"), "{line}: {error}");
        }
    }
}
