//! `mote record` and `mote replay`: keep real calls of a function in a file, and play them again.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mote_api::client::{self, Client};
use mote_api::recording::{LINE_BYTES_MAX, RecordedCall};
use mote_api::types::{InvokeAnswer, InvokeRequest};
use mote_api::{ClientError, exit, paths};
use mote_spec::{FunctionName, quantity};
use serde_json::json;

use super::args::{Record, Replay};
use super::difference::{difference, lines_of};
use super::failure::Failure;
use super::output::{Output, harmless};

/// The longest file.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// The longest call to a URL.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Writes the calls of a function to a file, until there are enough calls or the user presses
/// Ctrl-C.
pub(super) async fn record(client: &Client, args: &Record, output: &Output) -> Result<(), Failure> {
    let time_ms = quantity::parse_duration_ms(&args.time)
        .map_err(|_| Failure::new("M0101", "--for: a duration such as 10m"))?;
    let path = args.file.clone().unwrap_or_else(|| PathBuf::from(format!("{}.jsonl", args.name)));
    let shown = path.display().to_string();
    let mut recording = client.recording(&args.name).await?;
    // Requests may contain data that only the operator may know.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let mut file = file.map_err(|error| {
        Failure::of_file("M0103", &shown, &error).with_hint("choose another file")
    })?;
    output.say(&format!(
        "recording up to {} calls of {} to {shown}; Ctrl-C ends it",
        args.count, args.name
    ));
    let end = tokio::time::sleep(Duration::from_millis(time_ms));
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(end, interrupt);
    let (mut count, mut missed, mut bytes) = (0, 0, 0);
    let mut why = "";
    while count < args.count {
        let call = tokio::select! {
            call = recording.next() => call,
            () = &mut end => break,
            _ = &mut interrupt => break,
        };
        let call = match call {
            Ok(Some(call)) => call,
            Ok(None) => break,
            // What was recorded is complete.
            Err(ClientError::Unexpected { .. }) if count > 0 => {
                why = "; the node has ended the connection";
                break;
            }
            Err(error) => return Err(error.into()),
        };
        let mut line = serde_json::to_vec(&call).unwrap_or_default();
        line.push(b'\n');
        bytes += line.len() as u64;
        if bytes > FILE_BYTES_MAX {
            why = "; the file may have 64 MiB";
            break;
        }
        file.write_all(&line).map_err(|error| Failure::of_file("M0103", &shown, &error))?;
        count += 1;
        missed += call.missed;
        if output.verbose {
            output.say(&format!("{} {} {}", call.answer.status, call.method, call.path));
        }
    }
    let missed_text = match missed {
        0 => String::new(),
        missed => format!("; {missed} were missed, because they came too fast"),
    };
    let value = json!({"file": shown, "calls": count, "missed": missed});
    output.result(&value, &[&shown], || {
        format!("{}: {count} calls{missed_text}{why}\n", harmless(&shown))
    })
}

/// How a call was answered now.
struct Now {
    status: u16,
    kind: String,
    body: Vec<u8>,
    fault: Option<String>,
    ms: f64,
}

/// How a call was compared.
enum Compared {
    Same,
    Differs(Vec<String>),
    Skipped(String),
}

/// Sends the calls of a file again, one after the other, and compares the answers.
pub(super) async fn replay(client: &Client, args: &Replay, output: &Output) -> Result<(), Failure> {
    let shown = args.file.display().to_string();
    let mut calls = Calls::open(&args.file)?;
    let (mut same, mut different, mut skipped) = (0_u64, 0_u64, 0_u64);
    let (mut before_ms, mut now_ms) = (Vec::new(), Vec::new());
    let mut values = Vec::new();
    while let Some(call) = calls.next()? {
        let (now, compared) = match played(client, args.target.as_deref(), &call).await? {
            Ok(now) => {
                let compared = compared(&call, &now, output);
                (Some(now), compared)
            }
            Err(why) => (None, Compared::Skipped(why)),
        };
        let head = format!("{} {}", harmless(&call.method), harmless(&call.path));
        let (word, lines) = match compared {
            Compared::Same => ("same", Vec::new()),
            Compared::Differs(lines) => ("differs", lines),
            Compared::Skipped(why) => ("skipped", vec![format!("     {}", harmless(&why))]),
        };
        *match word {
            "same" => &mut same,
            "differs" => &mut different,
            _ => &mut skipped,
        } += 1;
        if let Some(now) = &now {
            before_ms.push(call.answer.ms);
            now_ms.push(now.ms);
        }
        let status = now.as_ref().map(|now| now.status);
        let ms = now.as_ref().map(|now| now.ms);
        values.push(json!({
            "result": word, "method": call.method, "path": call.path,
            "status": status, "status_before": call.answer.status,
            "ms": ms, "ms_before": call.answer.ms,
        }));
        if word != "same" || output.verbose {
            let time = ms.map_or_else(String::new, |ms| {
                format!("  {ms:.1} ms (was {:.1} ms)", call.answer.ms)
            });
            let status = status.map_or_else(String::new, |status| format!(" {status}"));
            output.shown(&format!("{word:<7}{status}  {head}{time}"));
            lines.iter().for_each(|line| output.shown(line));
        }
    }
    if values.is_empty() {
        return Err(Failure::new("M0102", format!("{shown}: there are no calls in it")));
    }
    let names: Vec<&str> = Vec::new();
    let total = same + different + skipped;
    let (before, now) = (median(&mut before_ms), median(&mut now_ms));
    let whole = json!({
        "calls": total, "same": same, "different": different, "skipped": skipped,
        "median_ms": now, "median_ms_before": before, "results": values,
    });
    output.results(&whole, &values, &names, || {
        let skipped = if skipped == 0 { String::new() } else { format!(", {skipped} skipped") };
        format!(
            "{}: {total} calls, {same} the same, {different} different{skipped}; median {now:.1} ms \
             (was {before:.1} ms)\n",
            harmless(&shown)
        )
    })?;
    if different > 0 {
        return Err(Failure::quiet(exit::FAILED));
    }
    Ok(())
}

/// Sends a call again. If the call cannot be sent, returns the reason.
async fn played(
    client: &Client,
    target: Option<&str>,
    call: &RecordedCall,
) -> Result<Result<Now, String>, Failure> {
    let body = match call.body.bytes() {
        Ok(body) => body,
        Err(why) => return Ok(Err(format!("not sent: {why}"))),
    };
    // Only the user may choose another machine. The file may not.
    if target.is_none() && FunctionName::new(&call.function).is_err() {
        return Ok(Err("not sent: the file names no function".to_owned()));
    }
    let target = target.unwrap_or(&call.function);
    let is_url = target.contains("://");
    // Recorded bodies are not compressed, so the front is not asked to compress. At a URL, the node
    // itself finds out who calls.
    let is_sent = |name: &str| match is_url {
        true => !is_of_connection(name) && !name.eq_ignore_ascii_case("accept-encoding"),
        false => !is_of_connection(name) || is_of_call(name),
    };
    let mut headers: Vec<_> =
        call.headers.iter().filter(|(name, _)| is_sent(name)).cloned().collect();
    if !is_url {
        headers.push((paths::HEADER_TRIGGER.to_owned(), call.trigger.clone()));
    }
    let request =
        InvokeRequest { method: call.method.clone(), path: call.path.clone(), headers, body };
    let began = Instant::now();
    let answered = match is_url {
        true => client::call_url(target, request, CALL_TIMEOUT).await,
        false => client.invoke(target, request).await,
    };
    let wall_ms = began.elapsed().as_secs_f64() * 1e3;
    match answered {
        Ok(answer) => {
            let ms = node_ms(&answer).unwrap_or(wall_ms);
            let kind = field(&answer.headers, "content-type").to_owned();
            let InvokeAnswer { status, body, fault, .. } = answer;
            Ok(Ok(Now { status, kind, body, fault, ms }))
        }
        // The function failed. It may have failed before, too.
        Err(ClientError::Problem(problem)) if problem.status >= 500 => Ok(Ok(Now {
            status: problem.status,
            kind: String::new(),
            body: Vec::new(),
            fault: Some(problem.detail.clone()),
            ms: wall_ms,
        })),
        Err(error) => Err(error.into()),
    }
}

/// Whether a field belongs only to the connection of the recorded call.
fn is_of_connection(name: &str) -> bool {
    const NAMES: [&str; 6] =
        ["host", "content-length", "transfer-encoding", "connection", "expect", "upgrade"];
    NAMES.iter().any(|one| name.eq_ignore_ascii_case(one)) || name.starts_with("mote-")
}

/// Whether a field of the node says who made the recorded call, or by which route.
fn is_of_call(name: &str) -> bool {
    matches!(name, "mote-caller" | "mote-params")
}

/// The time that the node measured, from the arrival of a call to the beginning of its answer.
fn node_ms(answer: &InvokeAnswer) -> Option<f64> {
    let mut sum = 0.0;
    for part in field(&answer.headers, "server-timing").split(',') {
        let (name, time) = part.trim().split_once(";dur=")?;
        // The other parts are contained in these.
        if matches!(name, "queue" | "init" | "handover" | "invoke") {
            sum += time.parse::<f64>().ok()?;
        }
    }
    Some(sum)
}

fn field<'a>(headers: &'a [(String, String)], wanted: &str) -> &'a str {
    let found = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
    found.map_or("", |(_, value)| value)
}

fn compared(call: &RecordedCall, now: &Now, output: &Output) -> Compared {
    let before = &call.answer;
    let mut lines = Vec::new();
    if before.status != now.status {
        lines.push(format!("     status {} was {}", now.status, before.status));
    }
    let has_failed = before.fault.is_some() || now.fault.is_some();
    let kind = field(&before.headers, "content-type");
    if kind != now.kind && !has_failed {
        lines.push(format!("     content-type {} was {}", harmless(&now.kind), harmless(kind)));
    }
    let text = |fault: &Option<String>, body: &[u8]| match fault {
        Some(fault) => vec![fault.clone()],
        None => lines_of(body),
    };
    match before.body.bytes() {
        _ if has_failed => {
            // The texts of failures are not compared, because each text names its own place. The
            // answer of a URL does not show whether the function or its code has failed.
            let fails_alike = before.status == now.status && now.status >= 500;
            if before.fault.is_some() != now.fault.is_some() && !fails_alike {
                let body = before.body.bytes().unwrap_or_default();
                let (old, new) = (text(&before.fault, &body), text(&now.fault, &now.body));
                lines.extend(difference(&old, &new, output));
            }
        }
        // An answer to HEAD has no body, but the recorded body is the one that the function
        // returned.
        _ if call.method.eq_ignore_ascii_case("head") => {}
        Ok(body) if body == now.body || is_same_json(&body, &now.body) => {}
        Ok(body) => {
            let shown = difference(&lines_of(&body), &lines_of(&now.body), output);
            if shown.is_empty() {
                lines.push("     the body differs after its beginning".to_owned());
            }
            lines.extend(shown);
        }
        Err(why) if lines.is_empty() => return Compared::Skipped(format!("not compared: {why}")),
        Err(_) => {}
    }
    if lines.is_empty() { Compared::Same } else { Compared::Differs(lines) }
}

/// Whether two bodies are the same JSON value, whatever the order of their fields.
fn is_same_json(one: &[u8], other: &[u8]) -> bool {
    let read = |bytes| serde_json::from_slice::<serde_json::Value>(bytes).ok();
    read(one).is_some_and(|one| Some(one) == read(other))
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// The calls of a file.
struct Calls {
    reader: BufReader<File>,
    shown: String,
    line: u64,
}

impl Calls {
    fn open(path: &Path) -> Result<Self, Failure> {
        let shown = path.display().to_string();
        let file = File::open(path).map_err(|error| Failure::of_file("M0102", &shown, &error))?;
        Ok(Self { reader: BufReader::new(file), shown, line: 0 })
    }

    fn next(&mut self) -> Result<Option<RecordedCall>, Failure> {
        let mut line = Vec::new();
        let limit = LINE_BYTES_MAX as u64;
        let read = (&mut self.reader).take(limit).read_until(b'\n', &mut line);
        let read = read.map_err(|error| Failure::of_file("M0102", &self.shown, &error))?;
        if read == 0 {
            return Ok(None);
        }
        self.line += 1;
        serde_json::from_slice(&line).map(Some).map_err(|error| {
            let text = format!("{}, line {}: not a recorded call: {error}", self.shown, self.line);
            Failure::new("M0102", text)
        })
    }
}

#[cfg(test)]
mod tests {
    use mote_api::Timestamp;
    use mote_api::recording::{RecordedAnswer, RecordedBody};

    use super::*;
    use crate::cli::args::Global;

    fn call(status: u16, body: &str, fault: Option<&str>) -> RecordedCall {
        let kind = [("content-type".to_owned(), "application/json".to_owned())];
        RecordedCall {
            time: Timestamp::from_unix_ms(0),
            function: "f".to_owned(),
            revision: 1,
            trigger: "http".to_owned(),
            method: "GET".to_owned(),
            path: "/".to_owned(),
            headers: Vec::new(),
            left_out: Vec::new(),
            body: RecordedBody::of(b""),
            answer: RecordedAnswer {
                status,
                headers: kind.into(),
                body: RecordedBody::of(body.as_bytes()),
                ms: 1.0,
                fault: fault.map(str::to_owned),
            },
            missed: 0,
        }
    }

    #[test]
    fn status_body_and_failures_are_compared() {
        let output = Output::new(&Global::default());
        let now = |status, body: &str, fault: Option<&str>| Now {
            status,
            kind: "application/json".to_owned(),
            body: body.as_bytes().to_vec(),
            fault: fault.map(str::to_owned),
            ms: 1.0,
        };
        for (before, now, expected) in [
            (call(200, "{\"a\":1,\"b\":2}", None), now(200, "{\"b\":2, \"a\":1}", None), None),
            (call(200, "one", None), now(200, "two", None), Some("   - one,   + two")),
            (call(200, "one", None), now(201, "one", None), Some("     status 201 was 200")),
            (call(500, "", Some("KeyError: 1")), now(500, "", Some("f failed: KeyError")), None),
            (
                call(500, "", Some("KeyError: 1")),
                now(200, "ok", None),
                Some("     status 200 was 500,   - KeyError: 1,   + ok"),
            ),
        ] {
            let found = match compared(&before, &now, &output) {
                Compared::Same => None,
                Compared::Differs(lines) => Some(lines.join(",")),
                Compared::Skipped(why) => Some(why),
            };
            assert_eq!(found.as_deref(), expected);
        }
    }

    #[test]
    fn the_time_of_the_node_is_used() {
        let timing =
            "queue;dur=1.5, init;dur=0.000, handover;dur=0.5, invoke;dur=2, to-worker;dur=9";
        let answer = InvokeAnswer {
            status: 200,
            headers: vec![("Server-Timing".to_owned(), timing.to_owned())],
            body: Vec::new(),
            invocation: None,
            fault: None,
        };
        assert_eq!(node_ms(&answer), Some(4.0));
    }
}
