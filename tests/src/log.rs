//! Reads from a function's log what its instances did, timed by the node's clock.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Node, mote_binary, signal};

/// The wall clock in microseconds since 1970. Log lines use the same clock.
pub fn unix_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

#[derive(Debug, Clone)]
pub struct LogLine {
    /// Time in microseconds since 1970.
    pub unix_us: u64,
    pub message: String,
}

fn parse(line: &str) -> Option<LogLine> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let message = line["message"].as_str()?.to_owned();
    Some(LogLine { unix_us: unix_us_of(line["time"].as_str()?)?, message })
}

/// Parses a time such as `2026-01-31T12:00:00.000001Z` into microseconds since 1970.
fn unix_us_of(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let year = number(0, 4)?;
    let month = number(5, 7)?;
    let day = number(8, 10)?;
    let seconds = (number(11, 13)? * 60 + number(14, 16)?) * 60 + number(17, 19)?;
    let fraction = text.get(20..)?.strip_suffix('Z')?;
    let micros: u64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
    // Years begin in March here, so that the leap day is the last day of a year.
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    Some((days.checked_sub(719_469)? * 86_400 + seconds) * 1_000_000 + micros)
}

impl Node {
    /// The stored lines of a function's log, oldest first. At most 1,000.
    pub fn log_lines(&self, function: &str) -> Vec<LogLine> {
        let text = self.ok(&["logs", function, "--tail", "1000", "-o", "jsonl"]);
        text.lines().filter_map(parse).collect()
    }

    /// Follows a function's log until the follower is dropped.
    pub fn follow(&self, function: &str) -> Follower {
        let mut child = Command::new(mote_binary())
            .args(["logs", function, "--follow", "-o", "jsonl"])
            .env("MOTE_SOCKET", self.dir.path().join("s"))
            .env_remove("MOTE_NODE")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok).filter_map(|line| parse(&line)) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Follower { child, lines }
    }

    /// The number of ready instances of a function over time, computed from its log: the time of
    /// each change and the number after the change.
    pub fn instances_over_time(&self, function: &str) -> Vec<(u64, i32)> {
        let mut ready = 0;
        let change = |message: &str| {
            i32::from(message.starts_with("ready after"))
                - i32::from(message.starts_with("stopped ("))
        };
        let lines = self.log_lines(function);
        let changes = lines.iter().map(|line| (line.unix_us, change(&line.message)));
        changes
            .filter(|(_, change)| *change != 0)
            .map(|(unix_us, change)| {
                ready += change;
                (unix_us, ready)
            })
            .collect()
    }
}

/// A running `mote logs --follow`.
pub struct Follower {
    child: Child,
    pub lines: mpsc::Receiver<LogLine>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        signal(self.child.id(), "KILL");
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::unix_us_of;

    #[test]
    fn times_of_log_lines() {
        for (text, unix_us) in [
            ("1970-01-01T00:00:00.000Z", 0),
            ("2000-02-29T00:00:01.5Z", 951_782_401_500_000),
            ("2025-12-31T23:59:59.999001Z", 1_767_225_599_999_001),
        ] {
            assert_eq!(unix_us_of(text), Some(unix_us), "{text}");
        }
    }
}
