//! How much a namespace may do at once and per minute.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::http::StatusCode;

use super::Refused;

/// The platform's own defaults.
pub(super) const INVOCATIONS_PER_MINUTE: usize = 120;
pub(super) const FIRES_PER_MINUTE: usize = 60;
pub(super) const CONCURRENT: usize = 100;
const WINDOW: Duration = Duration::from_secs(60);

/// What happened lately.
#[derive(Default)]
pub(super) struct Limits {
    invocations: Mutex<VecDeque<Instant>>,
    fires: Mutex<VecDeque<Instant>>,
    running: AtomicUsize,
}

/// An activation's place among those that run, until dropped.
pub(super) struct Place(Arc<Limits>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Limits {
    /// Counts an invocation or refuses it.
    pub(super) fn invocation(&self) -> Result<(), Refused> {
        counted(&self.invocations, INVOCATIONS_PER_MINUTE)
    }

    /// Counts the firing of a trigger or refuses it.
    pub(super) fn fire(&self) -> Result<(), Refused> {
        counted(&self.fires, FIRES_PER_MINUTE)
    }

    /// A place among those that run.
    pub(super) fn place(self: &Arc<Self>) -> Result<Place, Refused> {
        let place = self.kept_place();
        let count = self.running.load(Ordering::Relaxed);
        if count <= CONCURRENT {
            return Ok(place);
        }
        let text = format!(
            "Too many concurrent requests in flight (count: {count}, allowed: {CONCURRENT})."
        );
        Err(Refused(StatusCode::TOO_MANY_REQUESTS, text))
    }

    /// That of an activation which was accepted before: it has one, however many run.
    pub(super) fn kept_place(self: &Arc<Self>) -> Place {
        self.running.fetch_add(1, Ordering::Relaxed);
        Place(self.clone())
    }
}

fn counted(lately: &Mutex<VecDeque<Instant>>, most: usize) -> Result<(), Refused> {
    let mut lately = lately.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let now = Instant::now();
    while lately.front().is_some_and(|first| now.duration_since(*first) >= WINDOW) {
        lately.pop_front();
    }
    if lately.len() >= most {
        let count = lately.len() + 1;
        let text =
            format!("Too many requests in the last minute (count: {count}, allowed: {most}).");
        return Err(Refused(StatusCode::TOO_MANY_REQUESTS, text));
    }
    lately.push_back(now);
    Ok(())
}
