//! The settings of traces, and of the collector that receives them and the functions' lines.

use super::Check;
use crate::config::TraceRules;
use crate::otlp::collector;

/// The share that applies if a collector is set but no share.
const SHARE_DEFAULT: &str = "1%";

impl Check<'_> {
    /// The collector, and which invocations are recorded; `None` if none are.
    pub(super) fn collector_and_traces(&mut self) -> (Option<String>, Option<TraceRules>) {
        let collector = self.given("otlp");
        if let Some(Err(wanted)) = collector.as_deref().map(collector::check) {
            self.fault("otlp", &wanted, None);
        }
        self.settle("otlp", collector.clone().unwrap_or_else(|| "none".to_owned()));
        let default = if collector.is_some() { SHARE_DEFAULT } else { "off" };
        let share = self.given("trace").unwrap_or_else(|| default.to_owned());
        self.settle("trace", share.clone());
        if share == "off" {
            return (collector, None);
        }
        let Some(millionths) = millionths(&share) else {
            self.fault("trace", "a share such as 1%, 0.05% or 100%, or off", None);
            return (collector, None);
        };
        (collector.clone(), Some(TraceRules { millionths, collector }))
    }
}

/// A percentage with at most four digits after the point, in millionths.
fn millionths(share: &str) -> Option<u32> {
    let number = share.strip_suffix('%')?;
    let (whole, rest) = number.split_once('.').unwrap_or((number, "0"));
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !are_digits(whole) || !are_digits(rest) || rest.len() > 4 || whole.len() > 3 {
        return None;
    }
    let whole: u32 = whole.parse().ok()?;
    let rest: u32 = format!("{rest:0<4}").parse().ok()?;
    Some(whole * 10_000 + rest).filter(|millionths| (1..=1_000_000).contains(millionths))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        for (text, expected) in [
            ("1%", Some(10_000)),
            ("0.05%", Some(500)),
            ("100%", Some(1_000_000)),
            ("0.0001%", Some(1)),
            ("0%", None),
            ("101%", None),
            ("1", None),
            (".5%", None),
            ("1.%", None),
            ("-1%", None),
            ("0.00001%", None),
        ] {
            assert_eq!(millionths(text), expected, "{text}");
        }
    }
}
