//! What a pool reports about its room, for invocations that leave for another node or arrive from
//! one.

use super::{Instance, Pool, Running, Waiting, Worker};
use crate::admission::AHEAD_NS;

impl<Q: Waiting, R: Running, I: Instance> Pool<Q, R, I> {
    /// Whether no further instance can be started for waiting invocations, because the bounds allow
    /// no more or because the node has no memory for another. `version` is the version of the
    /// node's memory books.
    pub fn is_stuck(&self, version: u64) -> bool {
        let live = self.ready_count() + self.starting.serving;
        let lacks = self.full.is_some_and(|full| full.memory && full.version == version);
        !self.is_closed() && (live >= self.bounds.max || lacks)
    }

    /// Whether an invocation that arrives now would wait although no further instance can be
    /// started, or would be refused because the queue is full.
    ///
    /// If the oldest invocation of an instance that takes frames in advance has run for longer than
    /// work sent ahead may take, the instance does not count as free, because the new invocation
    /// would have to wait for the old one.
    pub fn overflows(&self, version: u64, now_ns: u64) -> bool {
        let is_quick = |worker: &Worker<R, I>| {
            let began_ns = worker.calls().iter().map(|(_, call)| call.began_ns()).min();
            began_ns.is_none_or(|began_ns| now_ns.saturating_sub(began_ns) <= AHEAD_NS)
        };
        let has_place =
            |worker: &Worker<R, I>| worker.calls().len() < worker.concurrency() as usize;
        let takes = |worker: &Worker<R, I>| {
            worker.is_paused() || (worker.room() > 0 && (has_place(worker) || is_quick(worker)))
        };
        let has_room = self.workers.iter().any(|(_, worker)| takes(worker));
        let waits = !self.queue.is_empty() || !has_room;
        let is_full = self.queue.len() >= self.rules.queue_max as usize;
        !self.is_closed() && waits && (is_full || self.is_stuck(version))
    }

    /// How many invocations the pool could take now: into free places of ready instances, and into
    /// instances that are starting or could be started in `free_bytes` of memory. Frames that are
    /// sent to an instance in advance do not count as places.
    pub fn places(&self, free_bytes: u64) -> (u32, u32) {
        if self.is_closed() {
            return (0, 0);
        }
        let mut free = 0;
        let mut concurrency = self.rules.concurrency;
        for (_, worker) in &self.workers {
            if !worker.is_draining() && !worker.is_ending() {
                free += worker.concurrency().saturating_sub(worker.calls().len() as u32);
                concurrency = worker.concurrency();
            }
        }
        let live = self.ready_count() + self.starting.serving;
        let affordable = free_bytes / self.rules.memory_limit_bytes.max(1);
        let startable = match self.trouble.failures {
            0 => self.bounds.max.saturating_sub(live),
            _ => 0,
        };
        let startable = u64::from(startable).min(affordable) as u32;
        let more = (self.starting.serving + startable).saturating_mul(concurrency.max(1));
        let queued = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
        let ready = free.saturating_sub(queued);
        (ready, more.saturating_sub(queued.saturating_sub(free)))
    }

    /// Removes from the queue the invocations for which `is_guest` returns true, and returns them.
    pub fn take_guests(&mut self, is_guest: impl Fn(&Q) -> bool, now_ns: u64) -> Vec<Q> {
        let mut taken = Vec::new();
        let mut at = 0;
        while let Some(queued) = self.queue.get(at) {
            if !is_guest(&queued.waiting) {
                at += 1;
            } else if let Some(queued) = self.queue.remove(at) {
                taken.push(queued.waiting);
            }
        }
        self.settle(now_ns);
        taken
    }
}
