//! Counts and logs refused requests, so that the owner of the node learns of them.

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::Quota;
use mote_core::Fault;

use crate::bounded::{Bounded, unix_ms};

/// Pause between two log lines about the same function and reason.
const PAUSE: Duration = Duration::from_secs(60);
/// The maximum number of combinations of function and reason that are logged during one pause.
const LINES_MAX: usize = 256;
const CODES: [&str; 13] = [
    "M0520", "M0521", "M0522", "M0523", "M0524", "M0525", "M0526", "M0527", "M0528", "M0529",
    "M0530", "M0531", "M0532",
];

pub(crate) struct Refusals {
    counts: [AtomicU64; CODES.len()],
    hasher: RandomState,
    lines: Bounded<u64>,
}

impl Default for Refusals {
    fn default() -> Self {
        let quota = Quota::with_period(PAUSE).unwrap_or(Quota::per_minute(NonZeroU32::MIN));
        Self {
            counts: Default::default(),
            hasher: RandomState::new(),
            lines: Bounded::new(quota, LINES_MAX),
        }
    }
}

impl Refusals {
    /// Counts a refusal. Logs it if no line about the same function and reason was logged lately.
    pub(crate) fn note(&self, function: &str, fault: &Fault, from: Option<IpAddr>) {
        let code = fault.answer().code;
        let at = CODES.iter().position(|known| *known == code);
        debug_assert!(at.is_some(), "{code} is not among the codes that are counted");
        if let Some(at) = at {
            self.counts[at].fetch_add(1, Ordering::Relaxed);
        }
        let line = self.hasher.hash_one((function, code));
        if matches!(self.lines.check(&line, unix_ms()), Some(Ok(()))) {
            let from = from.map_or("an unknown address".to_owned(), |from| from.to_string());
            let reason = fault.public_text(function);
            tracing::warn!(
                function,
                code,
                from,
                reason,
                "a call was refused; further ones of this kind are not logged for a minute"
            );
        }
    }

    pub(crate) fn by_code(&self) -> Vec<(&'static str, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        CODES.into_iter().zip(counts).collect()
    }
}
