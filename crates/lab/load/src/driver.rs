//! Runs the clients of one thread. It begins operations at their scheduled times, counts results,
//! and gives up operations that take too long.

use std::collections::VecDeque;
use std::io;

use crate::rows::ROWS_MAX;
use crate::{Done, Failure, Live, Mark, Nanos, Next, Outcome, Pacer, Plan, Tally, Wire};

/// How often time limits and the stop signal are checked. An operation is given up at most this
/// late.
const LOOK_EVERY: Nanos = 10_000_000;

/// An operation under way.
#[derive(Debug, Clone, Copy)]
struct Operation {
    intended: Nanos,
    begun: Nanos,
}

struct Driver<'a, W> {
    wire: &'a mut W,
    pacer: Pacer,
    timeout: Nanos,
    live: &'a Live,
    tally: Tally,
    /// The operation of each client, if it has one under way.
    under_way: Vec<Option<Operation>>,
    busy: usize,
    /// Clients that wait for the schedule. They are in the order in which they became free, so that
    /// the load is spread evenly.
    free: VecDeque<usize>,
    /// The processor time at the start of the measured span.
    mark: Option<Mark>,
}

/// Runs the part of `plan` for `thread`, beginning at `started`, until all operations are done or
/// `live` is stopped. Blocks.
///
/// # Errors
/// The same as those of [`Wire::next`].
pub fn drive<W: Wire>(
    wire: &mut W,
    plan: &Plan,
    thread: usize,
    started: Nanos,
    live: &Live,
) -> io::Result<Tally> {
    let pacer = Pacer::new(plan, thread, started);
    let clients = plan.clients_of(thread);
    let mut driver = Driver {
        wire,
        tally: Tally::new(pacer.measured_from(), pacer.until()).with_rows(if plan.keeps_rows {
            ROWS_MAX / plan.threads()
        } else {
            0
        }),
        pacer,
        timeout: plan.timeout.as_nanos() as Nanos,
        live,
        under_way: vec![None; clients],
        busy: 0,
        free: (0..clients).collect(),
        mark: None,
    };
    driver.run()?;
    Ok(driver.tally)
}

impl<W: Wire> Driver<'_, W> {
    fn run(&mut self) -> io::Result<()> {
        let mut now = self.wire.now();
        let mut look_at = now + LOOK_EVERY;
        loop {
            let wake_at = self.begin_due(now);
            if self.mark.is_none() && now >= self.pacer.measured_from() {
                self.mark = Some(self.wire.mark());
            }
            if wake_at.is_none() && self.busy == 0 {
                break;
            }
            if now >= look_at {
                look_at = now + LOOK_EVERY;
                if self.live.is_stopped() {
                    self.tally.cut(now);
                    break;
                }
                if self.give_up_late(now) {
                    continue;
                }
            }
            now = match self.wire.next(wake_at.map_or(look_at, |at| at.min(look_at)))? {
                Some(done) => self.ended(done),
                None => self.wire.now(),
            };
        }
        let mark = self.wire.mark();
        let repeats = self.wire.repeats();
        self.tally.close(now, self.mark.unwrap_or(mark), mark, repeats);
        Ok(())
    }

    /// Lets free clients begin the operations that are due. If a free client is left, returns the
    /// time of the next operation.
    fn begin_due(&mut self, now: Nanos) -> Option<Nanos> {
        while let Some(client) = self.free.pop_front() {
            match self.pacer.next(client, now) {
                Next::Begin(intended) if now - intended >= self.timeout => {
                    self.count(intended, now, now, Outcome::Failed(Failure::NotSent));
                    self.free.push_front(client);
                }
                Next::Begin(intended) => {
                    self.under_way[client] = Some(Operation { intended, begun: now });
                    self.busy += 1;
                    self.wire.begin(client);
                }
                Next::At(at) => {
                    self.free.push_front(client);
                    return Some(at);
                }
                // This client has no operations left, so it is not asked again.
                Next::Never => {}
            }
        }
        None
    }

    fn ended(&mut self, done: Done) -> Nanos {
        if let Some(operation) = self.under_way[done.client].take() {
            self.busy -= 1;
            self.free.push_back(done.client);
            self.count(operation.intended, operation.begun, done.at, done.outcome);
        }
        done.at
    }

    /// Gives up operations whose time limit has passed. Returns `true` if this freed a client.
    fn give_up_late(&mut self, now: Nanos) -> bool {
        let mut found = false;
        for client in 0..self.under_way.len() {
            let Some(operation) = self.under_way[client] else { continue };
            if now.saturating_sub(operation.intended) >= self.timeout {
                self.wire.give_up(client);
                let outcome = Outcome::Failed(Failure::Timeout);
                self.ended(Done { client, at: now, outcome });
                found = true;
            }
        }
        found
    }

    fn count(&mut self, intended: Nanos, begun: Nanos, at: Nanos, outcome: Outcome) {
        let is_answered = matches!(outcome, Outcome::Answered { .. });
        self.live.add(is_answered.then(|| at.saturating_sub(intended)));
        self.tally.record(intended, begun, at, outcome);
    }
}
