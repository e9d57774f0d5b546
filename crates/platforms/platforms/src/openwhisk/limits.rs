//! The limits of a namespace: how many activations run at once, and how many invocations it accepts per
//! minute.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::compat::node::Space;
use axum::http::StatusCode;

use super::refused::Refused;

/// These limits are the platform's own defaults.
pub(super) const INVOCATIONS_PER_MINUTE: usize = 120;
pub(super) const FIRES_PER_MINUTE: usize = 60;
pub(super) const CONCURRENT: usize = 100;
/// The most web actions that callers without the key may run at once. The remaining places are reserved
/// for the owner.
const CONCURRENT_KEYLESS: usize = CONCURRENT / 2;
const WINDOW: Duration = Duration::from_secs(60);

/// The limits of each namespace. The key `None` is the default namespace.
#[derive(Default)]
pub(super) struct AllLimits(Mutex<BTreeMap<Option<Arc<str>>, Arc<Limits>>>);

impl AllLimits {
    pub(super) fn of(&self, space: Option<&Space>) -> Arc<Limits> {
        let mut all = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.entry(space.map(|space| space.name.clone())).or_default().clone()
    }
}

/// The invocations of the last minute, and the number of running activations.
#[derive(Default)]
pub(super) struct Limits {
    invocations: Mutex<VecDeque<Instant>>,
    /// Invocations by callers without the key. The owner's invocations are counted separately.
    keyless: Mutex<VecDeque<Instant>>,
    fires: Mutex<VecDeque<Instant>>,
    running: AtomicUsize,
    running_keyless: AtomicUsize,
}

/// The place of a running activation. Dropping it makes the place free.
pub(super) struct Place {
    limits: Arc<Limits>,
    keyless: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.limits.running.fetch_sub(1, Ordering::Relaxed);
        self.limits.running_keyless.fetch_sub(usize::from(self.keyless), Ordering::Relaxed);
    }
}

impl Limits {
    /// Counts an invocation. Refuses it if the limit is reached.
    pub(super) fn invocation(&self) -> Result<(), Refused> {
        counted(&self.invocations, INVOCATIONS_PER_MINUTE)
    }

    /// Counts the invocation of a web action by a caller without the key. Refuses it if the limit is
    /// reached.
    pub(super) fn keyless_invocation(&self) -> Result<(), Refused> {
        counted(&self.keyless, INVOCATIONS_PER_MINUTE)
    }

    /// Counts the firing of a trigger. Refuses it if the limit is reached.
    pub(super) fn fire(&self) -> Result<(), Refused> {
        counted(&self.fires, FIRES_PER_MINUTE)
    }

    /// Takes a place for an activation that is to run.
    pub(super) fn place(self: &Arc<Self>) -> Result<Place, Refused> {
        let place = self.kept_place();
        within(self.running.load(Ordering::Relaxed), CONCURRENT)?;
        Ok(place)
    }

    /// Takes a place for an activation of a caller without the key.
    pub(super) fn keyless_place(self: &Arc<Self>) -> Result<Place, Refused> {
        let mut place = self.kept_place();
        self.running_keyless.fetch_add(1, Ordering::Relaxed);
        place.keyless = true;
        within(self.running_keyless.load(Ordering::Relaxed), CONCURRENT_KEYLESS)?;
        within(self.running.load(Ordering::Relaxed), CONCURRENT)?;
        Ok(place)
    }

    /// Takes a place for an activation that was accepted earlier. This always succeeds, however many
    /// activations are running.
    pub(super) fn kept_place(self: &Arc<Self>) -> Place {
        self.running.fetch_add(1, Ordering::Relaxed);
        Place { limits: self.clone(), keyless: false }
    }
}

fn within(count: usize, most: usize) -> Result<(), Refused> {
    if count <= most {
        return Ok(());
    }
    let text = format!("Too many concurrent requests in flight (count: {count}, allowed: {most}).");
    Err(Refused(StatusCode::TOO_MANY_REQUESTS, text))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_without_the_key_leave_the_owner_its_own() {
        let limits = Arc::new(Limits::default());
        let keyless = (0..1_000).filter(|_| limits.keyless_invocation().is_ok()).count();
        assert_eq!(keyless, INVOCATIONS_PER_MINUTE);
        assert!(limits.invocation().is_ok());
        let held: Vec<Place> = (0..1_000).filter_map(|_| limits.keyless_place().ok()).collect();
        assert_eq!(held.len(), CONCURRENT_KEYLESS);
        let owners: Vec<Place> = (0..1_000).filter_map(|_| limits.place().ok()).collect();
        assert_eq!(owners.len(), CONCURRENT - CONCURRENT_KEYLESS);
        assert!(limits.keyless_place().is_err());
        drop((held, owners));
        assert!(limits.keyless_place().is_ok() && limits.place().is_ok());
        assert_eq!(limits.running.load(Ordering::Relaxed), 0);
    }
}
