//! Limits that a run must keep. They are written as the conditions that break them, for instance
//! `p99>10ms,errors>1%`.

use std::fmt;

use crate::{PERCENTILES, Report};

/// A condition under which a run counts as failed.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    text: String,
    measure: Measure,
    is_above: bool,
    includes_equal: bool,
    /// The bound in milliseconds, per second, as a count or as a share, depending on the measure.
    bound: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Measure {
    /// An index into [`PERCENTILES`].
    Percentile(usize),
    Mean,
    Max,
    Rate,
    Failed,
    FailedShare,
}

/// A limit that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// The text contains neither `<` nor `>`.
    #[error("`{0}` is not a limit such as p99>10ms")]
    Form(String),
    /// There is no such measure.
    #[error("`{0}` is not a measure; use p50, p90, p95, p99, p99.9, max, mean, rate, errors")]
    Measure(String),
    /// The bound does not fit the measure.
    #[error("`{0}`: the bound is {1}")]
    Bound(String, &'static str),
}

/// Reads limits that are separated by commas.
///
/// # Errors
/// The error of the first limit that cannot be read.
pub fn parse(text: &str) -> Result<Vec<Limit>, LimitError> {
    text.split(',').map(|one| Limit::parse(one.trim())).collect()
}

impl Limit {
    fn parse(text: &str) -> Result<Self, LimitError> {
        let shown = || text.chars().take(64).flat_map(char::escape_debug).collect::<String>();
        let at = text.find(['<', '>']).ok_or_else(|| LimitError::Form(shown()))?;
        let name = text[..at].trim();
        let rest = &text[at + 1..];
        let includes_equal = rest.starts_with('=');
        let bound = rest.trim_start_matches('=').trim();
        let mut measure = match name {
            "mean" => Measure::Mean,
            "max" => Measure::Max,
            "rate" => Measure::Rate,
            "errors" => Measure::Failed,
            other => PERCENTILES
                .iter()
                .position(|(name, _)| *name == other)
                .map(Measure::Percentile)
                .ok_or_else(|| LimitError::Measure(other.escape_debug().to_string()))?,
        };
        let number = |text: &str| -> Option<f64> {
            text.trim().parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
        };
        let wrong = |what| LimitError::Bound(shown(), what);
        let bound = match measure {
            Measure::Rate => number(bound.trim_end_matches("/s"))
                .ok_or(wrong("a number of operations a second, such as 1000")),
            Measure::Failed => match bound.strip_suffix('%') {
                Some(percent) => {
                    measure = Measure::FailedShare;
                    number(percent)
                        .map(|percent| percent / 100.0)
                        .ok_or(wrong("a share such as 0.1%"))
                }
                None => number(bound).ok_or(wrong("a count such as 0, or a share such as 0.1%")),
            },
            _ => [("us", 0.001), ("ms", 1.0), ("s", 1_000.0)]
                .iter()
                .find_map(|(unit, factor)| Some(number(bound.strip_suffix(unit)?)? * factor))
                .ok_or(wrong("a duration with its unit, such as 10ms")),
        }?;
        let is_above = text.as_bytes()[at] == b'>';
        Ok(Self { text: shown(), measure, is_above, includes_equal, bound })
    }

    /// The measured value, if it breaks the limit. If a percentile falls on operations without an
    /// answer, it breaks every upper bound of a latency.
    pub fn broken_by(&self, report: &Report) -> Option<String> {
        let latency = &report.latency;
        let is_empty = report.answered == 0;
        let value = match self.measure {
            Measure::Percentile(index) => latency.percentiles()[index],
            Measure::Mean => (!is_empty).then_some(latency.mean_ms),
            Measure::Max => (!is_empty).then_some(latency.max_ms),
            Measure::Rate => Some(report.answered_per_s),
            Measure::Failed => Some(report.failed as f64),
            Measure::FailedShare => Some(report.failed_share()),
        };
        let Some(value) = value else {
            return self.is_above.then(|| "not answered".to_owned());
        };
        let is_broken = (self.includes_equal && value == self.bound)
            || if self.is_above { value > self.bound } else { value < self.bound };
        is_broken.then(|| match self.measure {
            Measure::Rate => format!("{value:.1}/s"),
            Measure::Failed => format!("{value}"),
            Measure::FailedShare => format!("{:.3} %", value * 100.0),
            _ => format!("{value:.3} ms"),
        })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
