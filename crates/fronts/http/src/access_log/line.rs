//! The lines of the log.

use std::borrow::Cow;
use std::io::Write as _;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;

use crate::access_log::{Entry, Format};

/// The most bytes that the log keeps of a value that the client chooses. The rest of the value is
/// left out.
const PART_BYTES_MAX: usize = 8 << 10;

/// Appends the line of a request that ended at `now` and was served in `took`.
pub(crate) fn put(
    into: &mut Vec<u8>,
    format: Format,
    entry: &Entry,
    now: SystemTime,
    took: Duration,
) {
    match format {
        Format::Json => put_json(into, entry, now, took),
        Format::Common | Format::Combined => put_common(into, entry, now - took),
    }
    if format == Format::Combined {
        for field in [&entry.referer, &entry.user_agent] {
            into.push(b' ');
            put_quoted(into, field.as_deref().unwrap_or(b"-"));
        }
    }
    into.push(b'\n');
}

fn put_common(into: &mut Vec<u8>, entry: &Entry, began: SystemTime) {
    match entry.client {
        Some(client) => write!(into, "{client} - ").expect("memory"),
        None => into.extend_from_slice(b"- - "),
    }
    // A space or a quote in a name would shift the columns after it.
    match entry.caller.as_deref().filter(|name| !name.is_empty()) {
        Some(caller) => put_escaped(into, caller.as_bytes(), Spaces::Escaped),
        None => into.push(b'-'),
    }
    into.extend_from_slice(b" [");
    put_day(into, began);
    into.extend_from_slice(b"] ");
    if entry.method.is_empty() {
        let line = if entry.first_line.is_empty() { b"-" } else { &entry.first_line[..] };
        put_quoted(into, line);
    } else {
        let parts: [&[u8]; 3] = [&entry.method, &entry.target, entry.protocol.as_bytes()];
        put_quoted(into, &parts.join(&b' '));
    }
    let status = status(entry);
    let bytes = entry.body_bytes;
    match bytes {
        0 => write!(into, " {status} -").expect("memory"),
        bytes => write!(into, " {status} {bytes}").expect("memory"),
    }
}

/// If a client disconnects before the answer, the line has the status that nginx uses for this
/// case, because log tools know that status.
fn status(entry: &Entry) -> u16 {
    if entry.status == 0 { 499 } else { entry.status }
}

/// The time of the machine's clock, in UTC. The clock of a machine that has just started may be
/// wrong, but never before 1970.
fn utc(at: SystemTime) -> Timestamp {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millisecond(since.as_millis() as i64).unwrap_or_default()
}

/// The time in Common Log Format: `27/Nov/2026:08:00:00 +0000`. jiff's formatter would make the
/// program 20 KB larger.
fn put_day(into: &mut Vec<u8>, at: SystemTime) {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let at = TimeZone::UTC.to_datetime(utc(at));
    let month = MONTHS[usize::from(at.month().unsigned_abs()) - 1];
    let hour = at.hour();
    let minute = at.minute();
    let second = at.second();
    write!(into, "{:02}/{month}/{}:{hour:02}:{minute:02}:{second:02} +0000", at.day(), at.year())
        .expect("memory");
}

/// A JSON line. Unknown values are left out.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    method: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    target: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    first_line: Cow<'a, str>,
    protocol: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "str::is_empty")]
    function: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    invocation: Option<String>,
    status: u16,
    bytes: u64,
    duration_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    referer: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<Cow<'a, str>>,
}

fn put_json(into: &mut Vec<u8>, entry: &Entry, now: SystemTime, took: Duration) {
    fn text(bytes: &[u8]) -> Cow<'_, str> {
        String::from_utf8_lossy(cut(bytes))
    }
    let line = Line {
        time: format!("{:.3}", utc(now - took)),
        client: entry.client,
        caller: entry.caller.as_deref(),
        method: text(&entry.method),
        target: text(&entry.target),
        first_line: text(&entry.first_line),
        protocol: entry.protocol,
        host: entry.host.as_deref().map(text),
        function: &entry.function,
        invocation: entry.invocation.map(|id| id.to_string()),
        status: status(entry),
        bytes: entry.body_bytes,
        // Microseconds are precise enough; further digits would mean nothing.
        duration_ms: took.as_micros() as f64 / 1_000.0,
        referer: entry.referer.as_deref().map(text),
        user_agent: entry.user_agent.as_deref().map(text),
    };
    serde_json::to_writer(into, &line).expect("memory");
}

fn put_quoted(into: &mut Vec<u8>, bytes: &[u8]) {
    into.push(b'"');
    put_escaped(into, bytes, Spaces::Kept);
    into.push(b'"');
}

/// How spaces are written. In a part without quotes, a space would look like a separator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spaces {
    Escaped,
    Kept,
}

/// Escapes every byte that could end a part or a line, or that a terminal could interpret as a
/// command.
fn put_escaped(into: &mut Vec<u8>, bytes: &[u8], spaces: Spaces) {
    for byte in cut(bytes) {
        match byte {
            b'"' | b'\\' => into.extend_from_slice(&[b'\\', *byte]),
            b' ' if spaces == Spaces::Escaped => into.extend_from_slice(b"\\x20"),
            0x20..=0x7e => into.push(*byte),
            other => write!(into, "\\x{other:02x}").expect("memory"),
        }
    }
}

fn cut(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(PART_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use mote_core::invocation::Head;
    use serde_json::Value;

    use super::*;

    /// The line of a request that took 1.5 ms and ended at 1,795,766,400.25 s.
    fn line(format: Format, entry: &Entry) -> String {
        let mut into = Vec::new();
        let now = UNIX_EPOCH + Duration::from_millis(1_795_766_400_250);
        put(&mut into, format, entry, now, Duration::from_micros(1_500));
        String::from_utf8(into).expect("ASCII")
    }

    fn entry() -> Entry {
        let mut head = Head::builder(b"GET", b"/a%20b", b"c=1");
        head.header(b"host", b"plant.example");
        head.header(b"user-agent", b"curl/8 \"x\"\x1b[1m");
        let head = head.finish();
        let client = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));
        let mut entry = Entry::new(client, "HTTP/1.1", ("hello", false), &head);
        entry.found("hello", &head);
        (entry.status, entry.body_bytes) = (200, 12);
        entry
    }

    #[test]
    fn lines_of_the_common_formats() {
        let common =
            "192.0.2.7 - - [27/Nov/2026:08:00:00 +0000] \"GET /hello/a%20b?c=1 HTTP/1.1\" 200 12";
        assert_eq!(line(Format::Common, &entry()), format!("{common}\n"));
        assert_eq!(
            line(Format::Combined, &entry()),
            format!("{common} \"-\" \"curl/8 \\\"x\\\"\\x1b[1m\"\n")
        );
        let mut named = entry();
        named.caller = Some("pump 3\n\"".to_owned());
        (named.status, named.body_bytes) = (0, 0);
        let text = line(Format::Common, &named);
        assert!(text.starts_with("192.0.2.7 - pump\\x203\\x0a\\\" ["), "{text}");
        assert!(text.ends_with("\" 499 -\n"), "{text}");
        let unreadable = |arrived: &[u8]| {
            let entry = Entry::unreadable(IpAddr::V4(Ipv4Addr::LOCALHOST), "HTTP/1.1", arrived);
            line(Format::Common, &entry)
        };
        assert!(unreadable(b"").contains("] \"-\" 499 -"));
        let text = unreadable(b"GET /../\"a\x00 HTTP/9\r\nhost: a\r\n");
        assert!(text.contains("] \"GET /../\\\"a\\x00 HTTP/9\" 499 -"), "{text}");
    }

    #[test]
    fn a_line_of_json_has_what_is_known() {
        let text = line(Format::Json, &entry());
        assert_eq!(text.matches('\n').count(), 1);
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["time"], "2026-11-27T08:00:00.248Z");
        assert_eq!(value["client"], "192.0.2.7");
        assert_eq!(value["target"], "/hello/a%20b?c=1");
        assert_eq!(value["host"], "plant.example");
        assert_eq!(value["function"], "hello");
        assert_eq!(value["duration_ms"], 1.5);
        assert_eq!(value["user_agent"], "curl/8 \"x\"\u{1b}[1m");
        assert!(value.get("caller").is_none() && value.get("referer").is_none(), "{value}");
    }

    #[test]
    fn a_long_part_is_cut() {
        let mut long = entry();
        long.target = vec![b'a'; 100_000];
        assert!(line(Format::Combined, &long).len() < 2 * PART_BYTES_MAX);
        assert!(line(Format::Json, &long).len() < 2 * PART_BYTES_MAX);
    }
}
