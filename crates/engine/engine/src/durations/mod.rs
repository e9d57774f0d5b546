//! Counts durations without a lock: in a histogram for Prometheus, and in buckets for percentiles.

mod histogram;
mod latency;

pub use histogram::{BOUNDS_US, DurationHistogram};
pub use latency::Latencies;
