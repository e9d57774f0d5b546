//! Compares two runs by ratios with confidence intervals.

use crate::{PERCENTILES, Report};

/// An interval of 1.96 standard deviations on either side contains 95 %.
const Z: f64 = 1.96;

/// One measure of two runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Ratio {
    pub name: &'static str,
    /// The value of the earlier run, in milliseconds or answers per second.
    pub before: Option<f64>,
    /// The value of the later run.
    pub after: Option<f64>,
    /// `after` divided by `before`.
    pub ratio: Option<f64>,
    /// The interval that contains the ratio with about 95 % confidence. It is more likely too wide
    /// than too narrow.
    pub interval: Option<[f64; 2]>,
}

impl Ratio {
    fn new(name: &'static str, values: [Option<f64>; 2], intervals: [Option<[f64; 2]>; 2]) -> Self {
        let [before, after] = values;
        let over = |above: f64, below: f64| (below > 0.0).then(|| above / below);
        let ratio = before.zip(after).and_then(|(before, after)| over(after, before));
        let interval = intervals[0].zip(intervals[1]).and_then(|(before, after)| {
            Some([over(after[0], before[1])?, over(after[1], before[0])?])
        });
        Self { name, before, after, ratio, interval }
    }

    /// Whether the difference is larger than chance would explain.
    pub fn is_clear(&self) -> bool {
        self.interval.is_some_and(|[low, high]| low > 1.0 || high < 1.0)
    }
}

/// The differences between the settings of two runs. If there are any, the ratio of the runs does
/// not show a change of the target alone.
pub fn differences(before: &Report, after: &Report) -> Vec<String> {
    let pairs = [
        ("protocol", before.protocol.clone(), after.protocol.clone()),
        ("method", before.method.clone(), after.method.clone()),
        ("body", before.body_bytes.to_string(), after.body_bytes.to_string()),
        ("load", before.load.clone(), after.load.clone()),
        ("rate", text(before.rate_wanted), text(after.rate_wanted)),
        ("clients", before.clients.to_string(), after.clients.to_string()),
        ("cores", before.machine.cores.to_string(), after.machine.cores.to_string()),
        ("kernel", before.machine.kernel.clone(), after.machine.kernel.clone()),
    ];
    pairs
        .into_iter()
        .filter(|(_, before, after)| before != after)
        .map(|(name, before, after)| format!("{name} was {before} and is {after}"))
        .collect()
}

fn text(rate: Option<f64>) -> String {
    rate.map_or("none".to_owned(), |rate| rate.to_string())
}

/// The ratios of rate and percentiles of a later run to an earlier one.
pub fn ratios(before: &Report, after: &Report) -> Vec<Ratio> {
    let mut ratios = vec![Ratio::new(
        "rate",
        [Some(before.answered_per_s), Some(after.answered_per_s)],
        [before.answered_per_s_interval, after.answered_per_s_interval],
    )];
    for (index, (name, share)) in PERCENTILES.into_iter().enumerate() {
        ratios.push(Ratio::new(
            name,
            [before.latency.percentiles()[index], after.latency.percentiles()[index]],
            [percentile_interval(before, share), percentile_interval(after, share)],
        ));
    }
    ratios
}

/// The 95 % confidence interval of a percentile, from the ranks of its neighbours. It assumes that
/// operations are independent, which is not quite true for the operations of one run.
fn percentile_interval(report: &Report, share: f64) -> Option<[f64; 2]> {
    let all = report.offered as f64;
    let half = Z * (all * share * (1.0 - share)).sqrt();
    let rank = |rank: f64| {
        let mut seen = 0;
        report.histogram.iter().find_map(|[nanos, count]| {
            seen += count;
            (seen as f64 >= rank).then_some(*nanos as f64 / 1e6)
        })
    };
    Some([rank((all * share - half).floor().max(1.0))?, rank((all * share + half).ceil() + 1.0)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_clear_when_its_interval_leaves_one_out() {
        let ratio = |before, after| {
            Ratio::new("rate", [Some(100.0), Some(150.0)], [Some(before), Some(after)])
        };
        let clear = ratio([90.0, 110.0], [140.0, 160.0]);
        assert_eq!(clear.ratio, Some(1.5));
        assert!(clear.is_clear(), "{clear:?}");
        assert!(!ratio([90.0, 145.0], [140.0, 160.0]).is_clear());
        let none = Ratio::new("p99", [Some(0.0), None], [None, None]);
        assert_eq!((none.ratio, none.is_clear()), (None, false));
    }
}
