//! Reads recorded demand in the form `time_s,function[,service_ms]`, with one call per line.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::arrivals::Arrivals;

/// The maximum number of calls in one trace. 100 million calls take 1.6 GB.
pub const CALLS_MAX: usize = 100_000_000;
/// The maximum number of functions in one trace. It is smaller, because each function is evaluated
/// separately.
pub const FUNCTIONS_MAX: usize = 10_000;

/// Why a trace cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// A line that is not a call.
    #[error("line {line}: {problem}")]
    Line {
        /// The number of the line, counted from 1.
        line: usize,
        problem: &'static str,
    },
    /// See [`CALLS_MAX`].
    #[error("more than 100 million calls")]
    TooLong,
    /// See [`FUNCTIONS_MAX`].
    #[error("more than 10,000 functions")]
    TooManyFunctions,
}

/// The demand per function, in order of the functions' names. Lines may be in any order. Empty
/// lines, lines that begin with `#`, a heading `time_s,...` above the calls and a byte order mark
/// are skipped. If a line has no run time, a value is drawn from the function's distribution.
pub fn read(text: &str) -> Result<BTreeMap<String, Arrivals>, TraceError> {
    let mut calls: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    let mut count = 0;
    for (at, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        let heading = count == 0 && line.starts_with("time_s");
        if line.is_empty() || line.starts_with('#') || heading {
            continue;
        }
        count += 1;
        if count > CALLS_MAX {
            return Err(TraceError::TooLong);
        }
        let wrong = |problem| TraceError::Line { line: at + 1, problem };
        let mut parts = line.split(',').map(str::trim);
        let time_s = number(parts.next()).ok_or(wrong("time_s is not a number of seconds"))?;
        let name = parts.next().filter(|name| !name.is_empty()).ok_or(wrong("no function"))?;
        let service_ms = match parts.next() {
            None | Some("") => 0.0,
            some => number(some).ok_or(wrong("service_ms is not a number of milliseconds"))?,
        };
        if parts.next().is_some() {
            return Err(wrong("more than three values"));
        }
        calls.entry(name).or_default().push(((time_s * 1e9) as u64, (service_ms * 1e6) as u64));
        if calls.len() > FUNCTIONS_MAX {
            return Err(TraceError::TooManyFunctions);
        }
    }
    let of = |(name, mut calls): (&str, Vec<(u64, u64)>)| {
        calls.sort_unstable();
        (name.to_owned(), Arrivals::Recorded { calls: Arc::new(calls) })
    };
    Ok(calls.into_iter().map(of).collect())
}

/// Parses a finite number that is not negative.
fn number(text: Option<&str>) -> Option<f64> {
    text?.parse().ok().filter(|value: &f64| value.is_finite() && (0.0..1e9).contains(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_by_function() {
        let trace =
            read("time_s,function,service_ms\n1.5,b,20\n\n# pause\n0.5,a\n0.25,b,\n").unwrap();
        let calls = |name: &str| match &trace[name] {
            Arrivals::Recorded { calls } => calls.as_ref().clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(calls("a"), [(500_000_000, 0)]);
        assert_eq!(calls("b"), [(250_000_000, 0), (1_500_000_000, 20_000_000)]);
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, line, problem) in [
            ("x,a", 1, "time_s is not a number of seconds"),
            ("1,a\n-1,a", 2, "time_s is not a number of seconds"),
            ("NaN,a", 1, "time_s is not a number of seconds"),
            ("1", 1, "no function"),
            ("1,", 1, "no function"),
            ("1,a,fast", 1, "service_ms is not a number of milliseconds"),
            ("1,a,2,3", 1, "more than three values"),
            ("1,a\ntime_s,function", 2, "time_s is not a number of seconds"),
        ] {
            assert_eq!(read(text), Err(TraceError::Line { line, problem }), "{text}");
        }
    }
}
