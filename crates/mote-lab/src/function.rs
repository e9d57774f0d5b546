//! One function while it is simulated: its queue, its instances, and what is counted of it.

use std::collections::VecDeque;

use mote_core::autoscale::{Autoscaler, Bounds, Estimate, Observation, Policy};
use mote_core::balance::Candidate;

use crate::arrivals::Source;
use crate::distribution::{Random, stream};
use crate::scenario::FunctionModel;

/// No caller of a closed load waits for this invocation.
pub(crate) const NO_CLIENT: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting {
    pub(crate) arrived_ns: u64,
    pub(crate) deadline_ns: u64,
    /// Drawn at arrival, so that every policy gets the same work.
    pub(crate) service_ns: u64,
    pub(crate) client: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Starting,
    Ready,
    Paused,
    Draining,
    Gone,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Running {
    pub(crate) serial: u64,
    pub(crate) arrived_ns: u64,
    pub(crate) began_ns: u64,
    pub(crate) client: u32,
    pub(crate) cores: f64,
}

#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) state: State,
    pub(crate) since_ns: u64,
    pub(crate) ready_ns: u64,
    pub(crate) idle_since_ns: u64,
    pub(crate) running: Vec<Running>,
    pub(crate) served: u64,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Client {
    pub(crate) last_send_ns: u64,
    /// It waits for an answer or for its next turn.
    pub(crate) engaged: bool,
}

pub(crate) struct Function {
    pub(crate) model: FunctionModel,
    pub(crate) scaler: Autoscaler,
    pub(crate) source: Source,
    pub(crate) arrival_random: Random,
    pub(crate) work_random: Random,
    pub(crate) start_random: Random,
    /// Run time of the arrival that is on the agenda, 0 when not recorded.
    pub(crate) next_service_ns: u64,
    pub(crate) queue: VecDeque<Waiting>,
    pub(crate) instances: Vec<Instance>,
    pub(crate) ready: u32,
    pub(crate) starting: u32,
    pub(crate) paused: u32,
    pub(crate) draining: u32,
    /// Invocations that ready instances could take now.
    pub(crate) room: u32,
    pub(crate) in_flight: u32,
    pub(crate) offered: u64,
    pub(crate) refused: u64,
    pub(crate) answered: u64,
    cpu_ns: f64,
    pub(crate) cores: f64,
    touched_ns: u64,
    pub(crate) service: Estimate,
    pub(crate) start: Estimate,
    pub(crate) look_ns: Option<u64>,
    pub(crate) last_look_ns: Option<u64>,
    pub(crate) expires: bool,
    pub(crate) clients: Vec<Client>,
    pub(crate) turn: u64,
    pub(crate) serial: u64,
}

impl Function {
    pub(crate) fn new(model: &FunctionModel, policy: &Policy, seed: u64, index: u64) -> Self {
        let bounds = Bounds {
            min: model.min,
            max: model.max,
            idle_timeout_ns: model.idle_timeout_ms.saturating_mul(1_000_000),
        };
        Self {
            scaler: Autoscaler::new(policy, bounds),
            source: Source::new(model.arrivals.clone()),
            arrival_random: stream(seed, index * 3),
            work_random: stream(seed, index * 3 + 1),
            start_random: stream(seed, index * 3 + 2),
            next_service_ns: 0,
            queue: VecDeque::new(),
            instances: Vec::new(),
            ready: 0,
            starting: 0,
            paused: 0,
            draining: 0,
            room: 0,
            in_flight: 0,
            offered: 0,
            refused: 0,
            answered: 0,
            cpu_ns: 0.0,
            cores: 0.0,
            touched_ns: 0,
            service: Estimate::default(),
            start: Estimate::default(),
            look_ns: None,
            last_look_ns: None,
            expires: false,
            clients: Vec::new(),
            turn: 0,
            serial: 0,
            model: model.clone(),
        }
    }

    /// Brings the CPU integral to `now_ns`; before every change of what it integrates.
    pub(crate) fn touch(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns - self.touched_ns;
        self.cpu_ns += self.cores * elapsed_ns as f64;
        self.touched_ns = now_ns;
    }

    /// Tells the autoscaler what runs and waits; after every change. Whether work came or ended.
    pub(crate) fn settle(&mut self, now_ns: u64) -> bool {
        self.scaler.settle(self.in_flight + self.queue.len() as u32, now_ns)
    }

    fn run_age_ns(&self, now_ns: u64) -> u64 {
        let running = self.instances.iter().flat_map(|instance| &instance.running);
        running.map(|running| now_ns - running.began_ns).sum()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.queue.is_empty()
    }

    pub(crate) fn live(&self) -> u32 {
        self.ready + self.starting + self.paused
    }

    /// What the autoscaler sees.
    pub(crate) fn observe(&mut self, now_ns: u64, memory_pressure: f64) -> Observation {
        self.touch(now_ns);
        // Half of the limit when idle, all of it when full: enough to drive the memory rule.
        let full = u64::from(self.model.concurrency.max(1));
        let per_invocation = self.model.memory_bytes / 2 / full;
        let resident = u64::from(self.ready + self.paused + self.draining);
        Observation {
            now_ns,
            offered_total: self.offered,
            refused_total: self.refused,
            answered_total: self.answered,
            cpu_ns_total: self.cpu_ns as u64,
            in_flight: self.in_flight,
            run_age_ns_total: self.run_age_ns(now_ns),
            queued: self.queue.len() as u32,
            oldest_wait_ns: self.queue.front().map_or(0, |waiting| now_ns - waiting.arrived_ns),
            ready: self.ready,
            starting: self.starting,
            draining: self.draining,
            paused: self.paused,
            concurrency: self.model.concurrency,
            service: self.service,
            start: self.start,
            cpu_millis_per_instance: self.model.cpu_millis,
            memory_bytes: resident * self.model.memory_bytes / 2
                + u64::from(self.in_flight) * per_invocation,
            memory_limit_bytes: self.model.memory_bytes,
            memory_pressure,
            ..Observation::default()
        }
    }

    /// Instances as the balancing rule sees them.
    pub(crate) fn candidates(&self, into: &mut Vec<Candidate>) {
        into.clear();
        into.extend(self.instances.iter().map(|instance| {
            let in_flight = instance.running.len() as u32;
            let room = match instance.state {
                State::Ready => self.model.concurrency.saturating_sub(in_flight),
                _ => 0,
            };
            Candidate { in_flight, room }
        }));
    }

    /// A place for a new instance; numbers of gone ones are used again.
    pub(crate) fn add_instance(&mut self, now_ns: u64) -> usize {
        let instance = Instance {
            state: State::Starting,
            since_ns: now_ns,
            ready_ns: u64::MAX,
            idle_since_ns: now_ns,
            running: Vec::new(),
            served: 0,
        };
        self.starting += 1;
        match self.instances.iter().position(|instance| instance.state == State::Gone) {
            Some(at) => {
                self.instances[at] = instance;
                at
            }
            None => {
                self.instances.push(instance);
                self.instances.len() - 1
            }
        }
    }

    /// Changes the state of an instance and what is counted by state.
    pub(crate) fn set_state(&mut self, at: usize, state: State) {
        let instance = &mut self.instances[at];
        let room = self.model.concurrency.saturating_sub(instance.running.len() as u32);
        let before = std::mem::replace(&mut instance.state, state);
        if before == State::Ready {
            self.room -= room;
        }
        if state == State::Ready {
            self.room += room;
        }
        if let Some(count) = self.count_of(before) {
            *count -= 1;
        }
        if let Some(count) = self.count_of(state) {
            *count += 1;
        }
    }

    fn count_of(&mut self, state: State) -> Option<&mut u32> {
        match state {
            State::Starting => Some(&mut self.starting),
            State::Ready => Some(&mut self.ready),
            State::Paused => Some(&mut self.paused),
            State::Draining => Some(&mut self.draining),
            State::Gone => None,
        }
    }
}
