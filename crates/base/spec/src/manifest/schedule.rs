//! Reads a `[[trigger]]` with `cron` or `every`.
//!
//! Whether the cron expression is valid and the time zone exists is checked later, when the
//! manifest becomes a spec.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::{FunctionManifest, HOUR_MS, TOP_KEYS, read_word};
use crate::toml_reader::{Lined, Section, TomlReader};

/// The keys of a section with `cron` or `every`.
pub(super) const KEYS: [&str; 10] = [
    "cron", "every", "timezone", "missed", "jitter", "overlap", "method", "path", "headers", "body",
];
/// The correct form, for the message to somebody who wrote another form.
const FORM: &str = "write a section [[trigger]] with cron = \"*/5 * * * *\" or every = \"10s\"";
const HEADERS_WANTED: &str = "strings by name, e.g. { content-type = \"application/json\" }";

/// The choices for `missed`: what happens if times passed while the node was off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissedName {
    /// `skip`.
    Skip,
    /// `run-once`.
    RunOnce,
    /// `run-all`.
    RunAll,
}

pub(super) const MISSED: [(&str, MissedName); 3] = [
    ("skip", MissedName::Skip),
    ("run-once", MissedName::RunOnce),
    ("run-all", MissedName::RunAll),
];

/// The choices for `overlap`: what happens if a run is due while the previous one has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverlapName {
    /// `skip`.
    Skip,
    /// `queue`.
    Queue,
    /// `allow`.
    Allow,
}

pub(super) const OVERLAPS: [(&str, OverlapName); 3] =
    [("skip", OverlapName::Skip), ("queue", OverlapName::Queue), ("allow", OverlapName::Allow)];

/// A schedule. A setting that the manifest does not contain is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScheduleManifest {
    /// `cron`. The text is not yet checked as an expression.
    pub cron: Option<Lined<String>>,
    /// `every`. Either this or `cron` is present, but not both.
    pub every_ms: Option<u64>,
    /// `timezone`. Whether the zone exists is not yet checked.
    pub timezone: Option<Lined<String>>,
    /// `missed`.
    pub missed: Option<MissedName>,
    /// `jitter`.
    pub jitter_ms: Option<u64>,
    /// `overlap`.
    pub overlap: Option<OverlapName>,
    /// `method`.
    pub method: Option<String>,
    /// `path`.
    pub path: Option<String>,
    /// `headers`, with names in lower case.
    pub headers: BTreeMap<String, String>,
    /// `body`.
    pub body: Option<String>,
}

/// Whether a `[[trigger]]` section describes a schedule.
pub(super) fn is_one(table: &DeTable<'_>) -> bool {
    let is_form = |key| table.get(key).is_some_and(|value| !is_section(value.get_ref()));
    is_form("cron") || is_form("every")
}

fn is_section(value: &DeValue<'_>) -> bool {
    value.as_table().is_some() || value.as_array().is_some()
}

/// Records a mistake for forms such as `[[trigger.schedule]]`, which users of other platforms may
/// expect. Returns whether the section has such a form.
pub(super) fn refuse_other_forms(reader: &mut TomlReader<'_>, table: &DeTable<'_>) -> bool {
    let mut found = false;
    for key in table.keys() {
        let name: &str = key.get_ref();
        let is_other = match name {
            "schedule" | "timer" => true,
            "cron" | "every" => table.get(name).is_some_and(|value| is_section(value.get_ref())),
            _ => false,
        };
        if is_other {
            let line = reader.line(key.span().start);
            let text = format!("`{name}` in a trigger is not the form of a schedule");
            reader.mistake("M0303", line, &text, Some(FORM.to_owned()));
            found = true;
        }
    }
    found
}

/// Reads a section whose keys begin at `line`.
pub(super) fn read(
    reader: &mut TomlReader<'_>,
    table: &DeTable<'_>,
    line: usize,
    function: &mut FunctionManifest,
) {
    let at = &reader.section(table, "[[trigger]]", "that trigger");
    for key in ["http", "coap", "mqtt"] {
        if let Some((_, line)) = reader.get(at, key) {
            let text = format!("one [[trigger]] has either {key} or a schedule");
            let hint = "write two [[trigger]] sections".to_owned();
            reader.mistake("M0303", line, &text, Some(hint));
            return;
        }
    }
    reader.check_keys(at, &KEYS, &[], &TOP_KEYS);
    let both = table.contains_key("cron").then(|| reader.get(at, "every")).flatten();
    if let Some((_, line)) = both {
        reader.mistake("M0303", line, "one [[trigger]] has either cron or every", None);
    }
    let without_zone = table.contains_key("every").then(|| reader.get(at, "timezone")).flatten();
    if let Some((_, line)) = without_zone {
        let text = "timezone: belongs to cron; an interval is the same in every zone";
        reader.mistake("M0303", line, text, None);
    }
    let wanted = "a cron expression, e.g. \"*/5 * * * *\"";
    let path = reader.string(at, "path", "a path, e.g. \"/tidy\"");
    if let Some(path) = path.as_ref().filter(|path| !path.value.starts_with('/')) {
        let hint = format!("did you mean \"/{}\"?", path.value);
        reader.mistake("M0303", path.line, "path: a path that begins with /", Some(hint));
    }
    let method = reader.string(at, "method", "a method, e.g. \"POST\"");
    if let Some(method) = &method
        && !(1..=24).contains(&method.value.len())
            | !method.value.bytes().all(|b| b.is_ascii_uppercase())
    {
        let text = "method: a method in upper case, e.g. \"POST\"";
        reader.mistake("M0303", method.line, text, None);
    }
    let day = "0s\u{2013}24h, e.g. 30s";
    let value = ScheduleManifest {
        cron: reader.string(at, "cron", wanted),
        every_ms: reader
            .duration_ms(at, "every", 1_000..=24 * 7 * HOUR_MS, "1s\u{2013}168h, e.g. 10s")
            .map(|every| every.value),
        timezone: reader.string(at, "timezone", "a zone, e.g. \"Europe/Berlin\""),
        missed: read_word(reader, at, "missed", &MISSED),
        jitter_ms: reader.duration_ms(at, "jitter", 0..=24 * HOUR_MS, day).map(|one| one.value),
        overlap: read_word(reader, at, "overlap", &OVERLAPS),
        method: method.map(|method| method.value),
        path: path.map(|path| path.value),
        headers: read_headers(reader, at),
        body: reader.string(at, "body", "a string").map(|body| body.value),
    };
    function.schedules.push(Lined { value, line });
}

fn read_headers(reader: &mut TomlReader<'_>, at: &Section<'_>) -> BTreeMap<String, String> {
    let mut headers = BTreeMap::new();
    let Some((value, line)) = reader.get(at, "headers") else { return headers };
    let Some(table) = value.as_table() else {
        reader.wrong_type("headers", line, HEADERS_WANTED, value);
        return headers;
    };
    for (key, value) in table {
        let name: &str = key.get_ref();
        match value.get_ref().as_str() {
            Some(text) => {
                headers.insert(name.to_ascii_lowercase(), text.to_owned());
            }
            None => {
                let line = reader.line(key.span().start);
                reader.wrong_type("headers", line, HEADERS_WANTED, value.get_ref());
            }
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{FILE_NAME, Manifest};

    fn check(section: &str, expected: &str) {
        let source = format!("version = 1\n{section}");
        let error = Manifest::parse(FILE_NAME, &source).expect_err(section);
        assert_eq!(error.to_string(), expected, "{section}");
    }

    #[test]
    fn several_schedules_with_all_keys() {
        let source = "version = 1\n[[trigger]]\nhttp = \"/x\"\n[[trigger]]\ncron = \"0 6 * * 1-5\"\n\
            timezone = \"Europe/Berlin\"\nmissed = \"run-once\"\njitter = \"30s\"\n\
            overlap = \"queue\"\nmethod = \"PUT\"\npath = \"/tidy\"\n\
            headers = { Content-Type = \"application/json\" }\nbody = \"{}\"\n\
            [[trigger]]\nevery = \"10s\"\n";
        let manifest = Manifest::parse(FILE_NAME, source).unwrap();
        let [cron, every] = &manifest.functions[0].schedules[..] else { panic!("two") };
        let expected = ScheduleManifest {
            cron: Some(Lined { value: "0 6 * * 1-5".into(), line: 5 }),
            every_ms: None,
            timezone: Some(Lined { value: "Europe/Berlin".into(), line: 6 }),
            missed: Some(MissedName::RunOnce),
            jitter_ms: Some(30_000),
            overlap: Some(OverlapName::Queue),
            method: Some("PUT".into()),
            path: Some("/tidy".into()),
            headers: BTreeMap::from([("content-type".into(), "application/json".into())]),
            body: Some("{}".into()),
        };
        assert_eq!((&cron.value, cron.line), (&expected, 4));
        let expected = ScheduleManifest { every_ms: Some(10_000), ..ScheduleManifest::default() };
        assert_eq!((&every.value, every.line), (&expected, 14));
    }

    #[test]
    fn other_forms_are_answered_with_the_right_one() {
        let form = "write a section [[trigger]] with cron = \"*/5 * * * *\" or every = \"10s\"";
        for key in ["schedule", "cron", "every", "timer"] {
            for section in [
                format!("[[trigger.{key}]]\nexpression = \"* * * * *\"\n"),
                format!("[trigger.{key}]\nexpression = \"* * * * *\"\n"),
                format!("[[trigger]]\n[[trigger.{key}]]\nexpression = \"* * * * *\"\n"),
            ] {
                let line = 1 + section.lines().position(|line| line.contains(key)).unwrap() + 1;
                check(
                    &section,
                    &format!(
                        "error[M0303]: mote.toml: `{key}` in a trigger is not the form of a schedule (line {line})\n  {form}"
                    ),
                );
            }
        }
        check(
            "[[trigger]]\nschedule = \"* * * * *\"\n",
            &format!(
                "error[M0303]: mote.toml: `schedule` in a trigger is not the form of a schedule (line 3)\n  {form}"
            ),
        );
        check(
            "[trigger]\ncron = \"* * * * *\"\n",
            "error[M0303]: mote.toml: trigger: sections [[trigger]]; found a table (line 2)",
        );
    }

    #[test]
    fn each_mistake_has_its_line() {
        let with = |rest: &str| format!("[[trigger]]\ncron = \"* * * * *\"\n{rest}\n");
        check(
            &with("every = \"1s\""),
            "error[M0303]: mote.toml: one [[trigger]] has either cron or every (line 4)",
        );
        check(
            &with("http = \"/x\""),
            "error[M0303]: mote.toml: one [[trigger]] has either http or a schedule (line 4)\n  write two [[trigger]] sections",
        );
        check(
            &with("misssed = \"skip\""),
            "error[M0302]: mote.toml: unknown key `misssed` in [[trigger]] (line 4)\n  did you mean `missed`?",
        );
        check(
            &with("missed = \"runonce\""),
            "error[M0303]: mote.toml: missed: \"skip\", \"run-once\" or \"run-all\" (line 4)\n  did you mean \"run-once\"?",
        );
        check(
            &with("overlap = \"forbid\""),
            "error[M0303]: mote.toml: overlap: \"skip\", \"queue\" or \"allow\" (line 4)",
        );
        check(
            &with("jitter = \"2d\"\nbody = 3"),
            "error[M0303]: mote.toml: jitter: 0s\u{2013}24h, e.g. 30s; found \"2d\" (line 4)\nerror[M0303]: mote.toml: body: a string; found an integer (line 5)",
        );
        check(
            &with("path = \"tidy\"\nmethod = \"post\""),
            "error[M0303]: mote.toml: path: a path that begins with / (line 4)\n  did you mean \"/tidy\"?\nerror[M0303]: mote.toml: method: a method in upper case, e.g. \"POST\" (line 5)",
        );
        check(
            &with("headers = { a = 1 }"),
            "error[M0303]: mote.toml: headers: strings by name, e.g. { content-type = \"application/json\" }; found an integer (line 4)",
        );
        check(
            "[[trigger]]\nevery = \"10ms\"\n",
            "error[M0303]: mote.toml: every: 1s\u{2013}168h, e.g. 10s; found \"10ms\" (line 3)",
        );
        check(
            "[[trigger]]\nevery = \"1m\"\ntimezone = \"UTC\"\n",
            "error[M0303]: mote.toml: timezone: belongs to cron; an interval is the same in every zone (line 4)",
        );
        check(
            "[[trigger]]\ncron = 5\n",
            "error[M0303]: mote.toml: cron: a cron expression, e.g. \"*/5 * * * *\"; found an integer (line 3)",
        );
        check(
            "[[trigger]]\ncrn = \"* * * * *\"\n",
            "error[M0306]: mote.toml: a [[trigger]] needs http = \"/path\", coap = \"path\", mqtt = \"filter\", cron or every (line 2)\nerror[M0302]: mote.toml: unknown key `crn` in [[trigger]] (line 3)\n  did you mean `cron`?",
        );
    }
}
