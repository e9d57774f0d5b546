//! Counts how long things take, without a lock: as a histogram for Prometheus, and for percentiles.

mod histogram;
mod latency;

pub use histogram::DurationHistogram;
pub use latency::Latencies;
