//! The metrics of the journal, read at each scrape.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::Journals;

pub struct JournalMetrics(pub Journals);

impl fmt::Debug for JournalMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JournalMetrics")
    }
}

impl Collector for JournalMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let figures = self.0.figures();
        for (name, help, value) in [
            ("accepted_invocations", "Accepted invocations that have not ended", figures.waiting),
            ("accepted_invocations_running", "Those of them that run", figures.running),
        ] {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        for (name, help, value) in [
            (
                "accepted_invocations_succeeded",
                "Accepted invocations that succeeded",
                figures.succeeded,
            ),
            (
                "accepted_invocations_repeated",
                "Attempts after which another follows",
                figures.repeated,
            ),
            ("dead_letters", "Accepted invocations that failed for good", figures.dead),
        ] {
            let counter = ConstCounter::new(value);
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        Ok(())
    }
}
