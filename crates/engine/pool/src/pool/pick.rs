//! Chooses the worker that takes an invocation.

use mote_spec::policy::Balance;
use rand::Rng;

use super::{Instance, Pool, Running, Waiting, Worker};
use crate::balance::{self, Candidate};

/// How much longer an invocation may wait for an instance on its thread than for another instance,
/// in nanoseconds. The value is the cost of waking another thread for the invocation and for its
/// answer.
const NEAR_NS: u64 = 100_000;

impl<Q: Waiting, R: Running, I: Instance> Pool<Q, R, I> {
    /// The worker that takes the next invocation, whose caller is on `thread`. `None` if no worker
    /// has room, or if the choice depends on the caller's name.
    pub(super) fn pick(&mut self, thread: Option<usize>) -> Option<usize> {
        if self.rules.balance != Balance::LateBinding {
            return self.pick_by_rule();
        }
        if let Some(key) = thread.and_then(|thread| self.pick_at_hand(thread)) {
            return Some(key);
        }
        // The same rule as in `balance::pick`, without a list of the instances.
        let (key, fewest) = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.room() > 0)
            .min_by_key(|(_, worker)| worker.calls().len())?;
        thread.and_then(|thread| self.pick_near(thread, fewest)).or(Some(key))
    }

    /// The workers on this thread with room.
    fn near(&self, thread: usize) -> impl Iterator<Item = (usize, &Worker<R, I>)> {
        let keys = self.threads.iter().filter(move |(of, _)| *of == thread);
        keys.map(|(_, key)| (*key, &self.workers[*key])).filter(|(_, worker)| worker.room() > 0)
    }

    /// A worker on this thread that is in use and whose invocations end soon. Workers of other
    /// threads are not examined, because those threads keep changing the workers' data.
    fn pick_at_hand(&self, thread: usize) -> Option<usize> {
        let ends_soon = |worker: &Worker<R, I>| {
            let calls = worker.calls().len() as u64;
            let mean_ns = worker.mean_ns();
            // A mean of 0 means that no run time is known yet.
            calls > 0 && mean_ns > 0 && calls.saturating_mul(mean_ns) <= NEAR_NS
        };
        self.near(thread).find(|(_, worker)| ends_soon(worker)).map(|(key, _)| key)
    }

    /// The worker on this thread, if it is not much busier than `fewest`, the worker with the
    /// fewest invocations. An idle instance on another thread is preferred, so that calls stay on
    /// as few instances as can serve them.
    fn pick_near(&self, thread: usize, fewest: &Worker<R, I>) -> Option<usize> {
        if fewest.calls().is_empty() {
            return None;
        }
        let (key, near) = self.near(thread).min_by_key(|(_, worker)| worker.calls().len())?;
        let more = near.calls().len().saturating_sub(fewest.calls().len()) as u64;
        let allowed = match near.mean_ns() {
            0 => 0,
            mean_ns => NEAR_NS / mean_ns,
        };
        (more <= allowed).then_some(key)
    }

    fn pick_by_rule(&mut self) -> Option<usize> {
        if self.is_divided() {
            return None;
        }
        self.line_up.clear();
        self.line_up.extend(self.workers.iter().map(|(_, worker)| Candidate {
            in_flight: worker.calls().len() as u32,
            room: worker.room(),
        }));
        let random = self.random.next_u64();
        let at = balance::pick(self.rules.balance, &self.line_up, self.turn, random)?;
        self.turn += 1;
        self.workers.iter().nth(at).map(|(key, _)| key)
    }
}
