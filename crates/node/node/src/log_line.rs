//! A line of a function's log as the management API shows it.

use mote_api::Timestamp;
use mote_api::types::{LogLine, LogStream};
use mote_engine::revision::logs::{LogLevel, LogLine as EngineLine, LogSource};

/// The message of the platform with which the log of a removed function ends. Nobody sees lines
/// before this message, because a later function of this name may belong to somebody else.
pub(crate) const REMOVED: &str = "removed";

pub(crate) fn log_line(function: &str, line: &EngineLine) -> LogLine {
    LogLine {
        time: Timestamp::from_unix_us(line.unix_us),
        level: match line.level {
            LogLevel::Debug => "debug",
            LogLevel::Info => "info",
            LogLevel::Warn => "warn",
            LogLevel::Error => "error",
        }
        .to_owned(),
        message: line.text.clone(),
        function: function.to_owned(),
        revision: line.revision,
        instance: (line.instance > 0).then(|| line.instance.to_string()),
        invocation: line.invocation.map(|id| id.to_string()),
        stream: match line.source {
            LogSource::Stdout => LogStream::Stdout,
            LogSource::Stderr => LogStream::Stderr,
            LogSource::Log => LogStream::Log,
            LogSource::Platform => LogStream::Platform,
        },
        sequence: line.sequence,
    }
}
