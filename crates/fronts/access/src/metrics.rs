//! The metric of refused calls, which each scrape reads.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;

use crate::Guard;

/// Reads from the guard how many calls were refused.
pub struct RefusalMetrics(pub Guard);

impl fmt::Debug for RefusalMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RefusalMetrics")
    }
}

impl Collector for RefusalMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Calls that were refused because of their sender or a rate, by error code";
        let kind = ConstCounter::new(0u64).metric_type();
        let mut family = encoder.encode_descriptor("refused_calls", help, None, kind)?;
        for (code, count) in self.0.refusals() {
            ConstCounter::new(count).encode(family.encode_family(&[("code", code)])?)?;
        }
        Ok(())
    }
}
