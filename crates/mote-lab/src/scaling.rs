//! Obeying the autoscaler: starts, resumes, pauses, stops, and the node's budget.

use mote_core::autoscale::Decision;
use mote_core::budget::{Budget, IdleInstance, Rest, Taken, Verdict, admit_start, rest};

use crate::event::Event;
use crate::function::State;
use crate::simulation::Simulation;

/// Time a stopped instance needs until its memory is free again.
const STOP_NS: u64 = 5_000_000;

impl Simulation<'_> {
    /// Sees to it that the autoscaler looks at `at_ns` at the latest.
    pub(crate) fn look_at(&mut self, function: usize, at_ns: u64) {
        let state = &mut self.functions[function];
        if state.look_ns.is_none_or(|planned| at_ns < planned) {
            state.look_ns = Some(at_ns);
            self.agenda.at(at_ns, Event::Look { function: function as u32 });
        }
    }

    pub(crate) fn look(&mut self, function: usize) {
        let pressure = self.tally.memory_bytes as f64 / self.node.memory_bytes.max(1) as f64;
        let state = &mut self.functions[function];
        state.look_ns = None;
        state.last_look_ns = Some(self.now_ns);
        let observation = state.observe(self.now_ns, pressure);
        let decision = state.scaler.decide(&observation);
        if let Some(look_ns) = decision.look_ns {
            self.look_at(function, look_ns.max(self.now_ns + 1));
        }
        self.obey(function, &decision);
    }

    fn obey(&mut self, function: usize, decision: &Decision) {
        let live = self.functions[function].live();
        if live < decision.desired {
            for _ in live..decision.desired {
                if !self.start(function, decision) {
                    break;
                }
            }
        } else {
            self.stop_surplus(function, live - decision.desired);
        }
        self.resume_for_waiting(function);
        self.pause_idle(function);
    }

    /// Starts one instance if the node affords it.
    fn start(&mut self, function: usize, decision: &Decision) -> bool {
        let budget =
            Budget { memory_bytes: self.node.memory_bytes, starts_max: self.node.starts_max };
        let taken = Taken {
            memory_bytes: self.tally.memory_bytes,
            starting: self.tally.starting,
            free_in_ns: 0,
        };
        let wanted_bytes = self.functions[function].model.memory_bytes;
        // Collecting who could go is the dear part: only when somebody has to.
        let mut verdict = admit_start(&budget, &taken, wanted_bytes, &[]);
        if taken.memory_bytes + wanted_bytes > budget.memory_bytes {
            let idle = self.idle_instances(function);
            verdict = admit_start(&budget, &taken, wanted_bytes, &idle);
        }
        match verdict {
            Verdict::Start => {}
            Verdict::Evict(victims) => {
                for victim in victims {
                    let (owner, at) = ((victim >> 32) as usize, victim as u32 as usize);
                    self.tally.evictions += 1;
                    self.functions[owner].set_state(at, State::Draining);
                    // Eviction frees the memory before the start: the daemon waits for it.
                    self.gone(owner, at);
                }
            }
            Verdict::Refuse { retry_after_ns, .. } => {
                self.tally.starts_refused += 1;
                self.look_at(function, self.now_ns + retry_after_ns);
                return false;
            }
        }
        let state = &mut self.functions[function];
        let at = state.add_instance(self.now_ns);
        let law =
            if self.prewarmed > 0 { state.model.start.prewarmed } else { state.model.start.cold };
        let lasts_ns = law.sample_ns(&mut state.start_random);
        if self.prewarmed > 0 {
            self.prewarmed -= 1;
            let again_ns = state.model.start.cold.sample_ns(&mut state.start_random);
            self.agenda.at(self.now_ns + again_ns, Event::Refill);
        }
        self.tally.started(self.now_ns, self.end_ns, wanted_bytes, decision.reason);
        let event = Event::Ready { function: function as u32, instance: at as u32 };
        self.agenda.at(self.now_ns + lasts_ns, event);
        true
    }

    /// Idle instances of other functions, and how often those are called.
    fn idle_instances(&self, asking: usize) -> Vec<IdleInstance> {
        let mut idle = Vec::new();
        for (owner, state) in self.functions.iter().enumerate() {
            let mut spare = state.live().saturating_sub(state.model.min) as usize;
            if owner == asking || spare == 0 {
                continue;
            }
            let per_s = state.offered as f64 / (self.now_ns as f64 / 1e9).max(1.0);
            for (at, instance) in state.instances.iter().enumerate() {
                let paused = instance.state == State::Paused;
                let free =
                    paused || (instance.state == State::Ready && instance.running.is_empty());
                if free && spare > 0 {
                    spare -= 1;
                    idle.push(IdleInstance {
                        id: (owner as u64) << 32 | at as u64,
                        memory_bytes: state.model.memory_bytes,
                        paused,
                        idle_ns: self.now_ns - instance.idle_since_ns,
                        demand_per_s: per_s,
                        start_ns: state.start.mean_ns().unwrap_or(0),
                    });
                }
            }
        }
        idle
    }

    /// Stops instances: idle ones first, the longest idle before others; then the least busy drain.
    fn stop_surplus(&mut self, function: usize, surplus: u32) {
        for _ in 0..surplus {
            let state = &self.functions[function];
            let stoppable = |state| matches!(state, State::Ready | State::Paused);
            let choice = state
                .instances
                .iter()
                .enumerate()
                .filter(|(_, instance)| stoppable(instance.state))
                .min_by_key(|(_, instance)| (instance.running.len(), instance.idle_since_ns))
                .map(|(at, _)| at);
            let Some(at) = choice else { return };
            self.functions[function].set_state(at, State::Draining);
            if self.functions[function].instances[at].running.is_empty() {
                self.leave(function, at);
            }
        }
    }

    /// A draining instance without work ends.
    pub(crate) fn leave(&mut self, function: usize, at: usize) {
        let event = Event::Gone { function: function as u32, instance: at as u32 };
        self.agenda.at(self.now_ns + STOP_NS, event);
    }

    pub(crate) fn gone(&mut self, function: usize, at: usize) {
        let state = &mut self.functions[function];
        state.set_state(at, State::Gone);
        self.tally.ended(self.now_ns, self.end_ns, state.model.memory_bytes);
    }

    pub(crate) fn ready(&mut self, function: usize, at: usize) {
        let now_ns = self.now_ns;
        let state = &mut self.functions[function];
        state.set_state(at, State::Ready);
        let instance = &mut state.instances[at];
        if instance.ready_ns == u64::MAX {
            state.start.record(now_ns - instance.since_ns);
            self.tally.starting -= 1;
        }
        instance.ready_ns = now_ns;
        instance.idle_since_ns = now_ns;
        self.dispatch(function);
        self.nudge(function);
    }

    /// Who waits is served by paused instances before anything starts.
    fn resume_for_waiting(&mut self, function: usize) {
        let state = &mut self.functions[function];
        let slots = state.model.concurrency.max(1);
        let wanted = (state.queue.len() as u32).div_ceil(slots).min(state.paused);
        for _ in 0..wanted {
            let paused = |instance: &crate::function::Instance| instance.state == State::Paused;
            let Some(at) = state.instances.iter().position(paused) else { return };
            let lasts_ns = state.model.start.resume.sample_ns(&mut state.start_random);
            state.set_state(at, State::Starting);
            let event = Event::Ready { function: function as u32, instance: at as u32 };
            self.agenda.at(self.now_ns + lasts_ns, event);
        }
    }

    fn pause_idle(&mut self, function: usize) {
        let state = &mut self.functions[function];
        let Some(after_s) = state.model.start.pause_after_s else { return };
        let after_ns = (after_s * 1e9) as u64;
        let mut next_ns = None;
        for at in 0..state.instances.len() {
            let instance = &state.instances[at];
            if instance.state != State::Ready || !instance.running.is_empty() {
                continue;
            }
            let idle_ns = self.now_ns - instance.idle_since_ns;
            if rest(true, idle_ns, Some(after_ns)) == Rest::Pause {
                state.set_state(at, State::Paused);
            } else {
                let due_ns = instance.idle_since_ns + after_ns;
                next_ns = Some(next_ns.map_or(due_ns, |next: u64| next.min(due_ns)));
            }
        }
        if let Some(next_ns) = next_ns {
            self.look_at(function, next_ns);
        }
    }
}
