//! The counts of a run. Counts can be added, so each thread keeps separate counts.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::clock::SECOND;
use crate::{Failure, Mark, Nanos, Outcome, PHASES, Row};

/// The histograms hold latencies from 10 ns to two hours, with a precision of three digits.
const LATENCY_MIN: Nanos = 10;
const LATENCY_MAX: Nanos = 7_200 * SECOND;
const DIGITS: u8 = 3;
/// The number of seconds of a run that have separate rows. Later seconds count in the last row.
const SECONDS_MAX: usize = 86_400;

/// Operations that ended within one second of the measured span.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SecondTally {
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    pub(crate) latency_sum: Nanos,
    pub(crate) latency_max: Nanos,
}

/// The counts of one thread or, after merging, of all threads.
#[derive(Debug, Clone)]
pub struct Tally {
    measured_from: Nanos,
    until: Option<Nanos>,
    pub(crate) latency: Histogram<u64>,
    /// The time from the intended to the actual start of an operation.
    pub(crate) delay: Histogram<u64>,
    pub(crate) phases: Option<Box<[Histogram<u64>; 4]>>,
    pub(crate) failures: BTreeMap<Failure, u64>,
    pub(crate) seconds: Vec<SecondTally>,
    pub(crate) bytes: u64,
    pub(crate) warmup: u64,
    /// Answers that arrived within the measured span, whenever their operations began.
    pub(crate) in_span: u64,
    /// When the last measured operation or the span ended.
    pub(crate) ended: Nanos,
    pub(crate) repeats: u64,
    rows: Vec<Row>,
    rows_max: usize,
    /// Processor time in the measured span: of the machine, of all threads, and of the busiest
    /// thread.
    pub(crate) machine: (u64, u64),
    pub(crate) cpu: Nanos,
    pub(crate) busiest: f64,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(LATENCY_MIN, LATENCY_MAX, DIGITS).expect("bounds are in order")
}

/// The latency that a `share` of all operations did not exceed. Failed operations count as longer
/// than any other.
pub(crate) fn percentile(histogram: &Histogram<u64>, failed: u64, share: f64) -> Option<Nanos> {
    let answered = histogram.len();
    let rank = (share * (answered + failed) as f64).ceil().max(1.0);
    (rank <= answered as f64).then(|| histogram.value_at_quantile(rank / answered as f64))
}

impl Tally {
    /// Creates empty counts. Operations whose intended time is `measured_from` or later are
    /// measured.
    pub fn new(measured_from: Nanos, until: Option<Nanos>) -> Self {
        Self {
            measured_from,
            until,
            latency: histogram(),
            delay: histogram(),
            phases: None,
            failures: BTreeMap::new(),
            seconds: Vec::new(),
            bytes: 0,
            warmup: 0,
            in_span: 0,
            ended: measured_from,
            repeats: 0,
            rows: Vec::new(),
            rows_max: 0,
            machine: (0, 0),
            cpu: 0,
            busiest: 0.0,
        }
    }

    /// Keeps up to this number of measured operations as rows, beginning with the first.
    pub(crate) fn with_rows(self, rows_max: usize) -> Self {
        Self { rows_max, ..self }
    }

    /// The operations that were kept as rows, in the order in which they ended on their thread.
    pub fn into_rows(self) -> Vec<Row> {
        self.rows
    }

    /// The number of measured operations that got a good answer.
    pub fn answered(&self) -> u64 {
        self.latency.len()
    }

    /// The number of measured operations that failed.
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    pub fn failures(&self, kind: Failure) -> u64 {
        self.failures.get(&kind).copied().unwrap_or(0)
    }

    /// The latency that a `share` of all operations did not exceed. Failed operations count as
    /// longer than any other. `None` if the percentile falls on a failed operation.
    pub fn percentile(&self, share: f64) -> Option<Nanos> {
        percentile(&self.latency, self.failed(), share)
    }

    /// The number of operations that were not measured because they belonged to the warm-up.
    pub fn warmup(&self) -> u64 {
        self.warmup
    }

    /// Counts an operation that ended.
    pub(crate) fn record(&mut self, intended: Nanos, begun: Nanos, at: Nanos, outcome: Outcome) {
        let is_answered = matches!(outcome, Outcome::Answered { .. });
        let is_in_span = at >= self.measured_from && self.until.is_none_or(|until| at < until);
        self.in_span += u64::from(is_answered && is_in_span);
        if intended < self.measured_from {
            self.warmup += 1;
            return;
        }
        self.ended = self.ended.max(at);
        if self.rows.len() < self.rows_max {
            self.rows.push(Row { intended, begun, ended: at, outcome });
        }
        let latency = at.saturating_sub(intended);
        let index = (at - self.measured_from) / SECOND;
        let index = (index as usize).min(SECONDS_MAX - 1);
        if self.seconds.len() <= index {
            self.seconds.resize(index + 1, SecondTally::default());
        }
        let second = &mut self.seconds[index];
        match outcome {
            Outcome::Answered { bytes, phases } => {
                second.answered += 1;
                second.latency_sum += latency;
                second.latency_max = second.latency_max.max(latency);
                self.latency.saturating_record(latency);
                self.delay.saturating_record(begun.saturating_sub(intended));
                self.bytes += bytes;
                if let Some(phases) = phases {
                    let all = self.phases.get_or_insert_with(|| {
                        Box::new(std::array::from_fn::<_, { PHASES.len() }, _>(|_| histogram()))
                    });
                    for (histogram, nanos) in all.iter_mut().zip(phases.0) {
                        histogram.saturating_record(nanos);
                    }
                }
            }
            Outcome::Failed(kind) => {
                second.failed += 1;
                *self.failures.entry(kind).or_default() += 1;
            }
        }
    }

    /// Records the end of the span for this thread, and the processor time since `from`.
    pub(crate) fn close(&mut self, now: Nanos, from: Mark, to: Mark, repeats: u64) {
        self.repeats = repeats;
        self.cpu = to.cpu - from.cpu;
        let machine = |at: fn(Mark) -> u64| at(to).saturating_sub(at(from));
        self.machine = (machine(|mark| mark.machine.0), machine(|mark| mark.machine.1));
        self.busiest = self.cpu as f64 / now.saturating_sub(self.measured_from).max(1) as f64;
    }

    /// Ends the span earlier than planned.
    pub(crate) fn cut(&mut self, now: Nanos) {
        let now = now.max(self.measured_from);
        self.until = Some(self.until.map_or(now, |until| until.min(now)));
    }

    /// Adds the counts of another thread.
    pub(crate) fn merge(&mut self, other: &Self) {
        let adds = "histograms of the same bounds";
        self.latency.add(&other.latency).expect(adds);
        self.delay.add(&other.delay).expect(adds);
        match (&mut self.phases, &other.phases) {
            (Some(own), Some(others)) => {
                for (one, another) in own.iter_mut().zip(others.iter()) {
                    one.add(another).expect(adds);
                }
            }
            (None, Some(others)) => self.phases = Some(others.clone()),
            (_, None) => {}
        }
        for (kind, count) in &other.failures {
            *self.failures.entry(*kind).or_default() += count;
        }
        if self.seconds.len() < other.seconds.len() {
            self.seconds.resize(other.seconds.len(), SecondTally::default());
        }
        for (own, another) in self.seconds.iter_mut().zip(&other.seconds) {
            own.answered += another.answered;
            own.failed += another.failed;
            own.latency_sum += another.latency_sum;
            own.latency_max = own.latency_max.max(another.latency_max);
        }
        self.rows.extend_from_slice(&other.rows);
        self.bytes += other.bytes;
        self.warmup += other.warmup;
        self.in_span += other.in_span;
        self.ended = self.ended.max(other.ended);
        self.until = self.until.max(other.until);
        self.repeats += other.repeats;
        // Every thread observed the same machine, so only the longest measurement is kept.
        self.machine = if other.machine.1 > self.machine.1 { other.machine } else { self.machine };
        self.cpu += other.cpu;
        self.busiest = self.busiest.max(other.busiest);
    }

    /// The length of the measured span. It ends as planned, or with the last operation if no end
    /// was planned.
    pub(crate) fn span(&self) -> Nanos {
        self.until.unwrap_or(self.ended).saturating_sub(self.measured_from).max(1)
    }
}
