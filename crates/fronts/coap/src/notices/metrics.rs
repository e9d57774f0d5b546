//! The metrics of observation. They are read at each scrape.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::notices::Notices;

/// Exports the figures of the notices as metrics.
pub struct NoticeMetrics(pub Notices);

impl fmt::Debug for NoticeMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NoticeMetrics")
    }
}

impl Collector for NoticeMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let figures = self.0.figures();
        let observers = ConstGauge::new(i64::try_from(figures.observers).unwrap_or(i64::MAX));
        let help = "Clients that observe a resource of a function";
        let kind = observers.metric_type();
        observers.encode(encoder.encode_descriptor("observers", help, None, kind)?)?;
        for (name, help, value) in [
            (
                "states_published",
                "States that functions published for observers",
                figures.published,
            ),
            ("notifications", "Notifications that were sent to observers", figures.sent),
            ("observers_lost", "Observers that did not acknowledge or that rejected", figures.lost),
        ] {
            let counter = ConstCounter::new(value);
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        Ok(())
    }
}
