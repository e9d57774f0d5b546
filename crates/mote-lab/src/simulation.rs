//! The event loop: arrivals, admission, dispatch, ends. Scaling is in `scaling.rs`.

use mote_core::admission::{Admission, admit};
use mote_core::autoscale::LOOK_MIN_NS;
use mote_core::balance::{Candidate, pick};

use crate::arrivals::{Arrivals, clients_at};
use crate::distribution::{Random, stream};
use crate::event::{Agenda, Event};
use crate::function::{Client, Function, NO_CLIENT, Running, State, Waiting};
use crate::report::Report;
use crate::scenario::{NodeModel, Scenario};
use crate::tally::Tally;

/// Runs a scenario to its end. Deterministic; time and memory grow with arrivals and functions.
pub fn simulate(scenario: &Scenario) -> Report {
    let mut simulation = Simulation::new(scenario);
    simulation.run();
    simulation.report(scenario)
}

pub(crate) struct Simulation<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) node: NodeModel,
    pub(crate) now_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) agenda: Agenda,
    pub(crate) functions: Vec<Function>,
    pub(crate) tally: Tally,
    pub(crate) prewarmed: u32,
    /// CPU that running invocations want, in cores.
    cores_wanted: f64,
    balance_random: Random,
    candidates: Vec<Candidate>,
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let make =
            |(index, model)| Function::new(model, &scenario.policy, scenario.seed, index as u64);
        Self {
            scenario,
            node: scenario.node,
            now_ns: 0,
            end_ns: (scenario.duration_s * 1e9) as u64,
            agenda: Agenda::default(),
            functions: scenario.functions.iter().enumerate().map(make).collect(),
            tally: Tally::default(),
            prewarmed: scenario.node.prewarmed,
            cores_wanted: 0.0,
            balance_random: stream(scenario.seed, u64::MAX),
            candidates: Vec::new(),
        }
    }

    fn run(&mut self) {
        for function in 0..self.functions.len() {
            self.look_at(function, 0);
            match &self.functions[function].model.arrivals {
                Arrivals::Clients { .. } => {
                    self.agenda.at(0, Event::Step { function: function as u32 });
                }
                _ => self.plan_arrival(function),
            }
        }
        if self.scenario.sample_s > 0.0 {
            self.agenda.at(self.sample_ns(), Event::Sample);
        }
        while let Some((at_ns, event)) = self.agenda.next() {
            if at_ns > self.end_ns && self.tally.inside == 0 {
                break;
            }
            self.now_ns = at_ns;
            self.happen(event);
        }
        self.tally.advance(self.end_ns.max(self.now_ns), self.end_ns);
    }

    fn sample_ns(&self) -> u64 {
        ((self.scenario.sample_s * 1e9) as u64).max(1)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrival { function } => {
                let function = function as usize;
                let recorded_ns = self.functions[function].next_service_ns;
                self.plan_arrival(function);
                self.arrive(function, recorded_ns, NO_CLIENT);
            }
            Event::Send { function, client } => self.send(function as usize, client),
            Event::Step { function } => self.step(function as usize),
            Event::Done { function, instance, serial } => {
                self.done(function as usize, instance as usize, serial);
            }
            Event::Ready { function, instance } => self.ready(function as usize, instance as usize),
            Event::Gone { function, instance } => self.gone(function as usize, instance as usize),
            Event::Expire { function } => {
                self.functions[function as usize].expires = false;
                self.expire(function as usize);
                self.watch_deadline(function as usize);
            }
            Event::Look { function } => {
                let function = function as usize;
                if self.functions[function].look_ns == Some(self.now_ns) {
                    self.look(function);
                }
            }
            Event::Refill => self.prewarmed += 1,
            Event::Sample => {
                self.tally.sample(self.now_ns, &self.functions);
                let next_ns = self.now_ns + self.sample_ns();
                if next_ns <= self.end_ns {
                    self.agenda.at(next_ns, Event::Sample);
                }
            }
        }
    }

    fn plan_arrival(&mut self, function: usize) {
        let state = &mut self.functions[function];
        let Some(call) = state.source.next(&mut state.arrival_random) else { return };
        if call.at_ns < self.end_ns {
            state.next_service_ns = call.service_ns;
            self.agenda.at(call.at_ns, Event::Arrival { function: function as u32 });
        }
    }

    /// The number of callers of a closed load may have changed: new ones begin, spread over their
    /// pause as people are.
    fn step(&mut self, function: usize) {
        let now_ns = self.now_ns;
        let state = &mut self.functions[function];
        let Arrivals::Clients { steps, rate } = &state.model.arrivals else { return };
        let Some(wanted) = clients_at(steps, now_ns) else { return };
        let mut end_s = 0.0;
        for (length_s, _) in steps {
            end_s += length_s;
            let end_ns = (end_s * 1e9) as u64;
            if end_ns > now_ns {
                self.agenda.at(end_ns, Event::Step { function: function as u32 });
                break;
            }
        }
        let pause_ns = if *rate > 0.0 { 1e9 / rate } else { 0.0 };
        for client in 0..wanted {
            if state.clients.len() <= client as usize {
                state.clients.push(Client::default());
            }
            if !std::mem::replace(&mut state.clients[client as usize].engaged, true) {
                let offset_ns = (pause_ns * f64::from(client) / f64::from(wanted)) as u64;
                let event = Event::Send { function: function as u32, client };
                self.agenda.at(now_ns + offset_ns, event);
            }
        }
    }

    fn send(&mut self, function: usize, client: u32) {
        let now_ns = self.now_ns;
        let state = &mut self.functions[function];
        let Arrivals::Clients { steps, .. } = &state.model.arrivals else { return };
        let stays = clients_at(steps, now_ns).is_some_and(|wanted| client < wanted);
        if !stays || now_ns >= self.end_ns {
            state.clients[client as usize].engaged = false;
            return;
        }
        state.clients[client as usize].last_send_ns = now_ns;
        self.arrive(function, 0, client);
    }

    /// A caller of a closed load has its answer, whatever it is.
    fn answered_client(&mut self, function: usize, client: u32) {
        if client == NO_CLIENT {
            return;
        }
        let state = &self.functions[function];
        let Arrivals::Clients { rate, .. } = &state.model.arrivals else { return };
        let pause_ns = if *rate > 0.0 { (1e9 / rate) as u64 } else { 0 };
        let turn_ns = state.clients[client as usize].last_send_ns + pause_ns;
        // A caller that is refused at once would otherwise fill the virtual instant.
        let at_ns = turn_ns.max(self.now_ns + 1_000);
        self.agenda.at(at_ns, Event::Send { function: function as u32, client });
    }

    fn arrive(&mut self, function: usize, recorded_ns: u64, client: u32) {
        let now_ns = self.now_ns;
        let state = &mut self.functions[function];
        state.offered += 1;
        self.tally.offered += 1;
        let service_ns = match recorded_ns {
            0 => state.model.work.time.sample_ns(&mut state.work_random),
            recorded_ns => recorded_ns,
        };
        let waiting = Waiting {
            arrived_ns: now_ns,
            deadline_ns: now_ns + state.model.timeout_ms * 1_000_000,
            service_ns,
            client,
        };
        match admit(state.room > 0, state.queue.len(), state.model.queue) {
            Admission::Dispatch => {
                self.tally.inside += 1;
                self.begin(function, waiting);
                if self.functions[function].settle(now_ns) {
                    self.nudge(function);
                }
            }
            Admission::Enqueue => {
                self.tally.inside += 1;
                state.queue.push_back(waiting);
                state.settle(now_ns);
                self.watch_deadline(function);
                self.nudge(function);
            }
            Admission::Refuse => {
                state.refused += 1;
                self.tally.refused += 1;
                self.answered_client(function, client);
                self.nudge(function);
            }
        }
    }

    /// Work that could not begin is reason to look, but not at every arrival of a burst.
    pub(crate) fn nudge(&mut self, function: usize) {
        let state = &self.functions[function];
        match state.last_look_ns {
            Some(last_ns) if state.live() > 0 && last_ns + LOOK_MIN_NS > self.now_ns => {
                self.look_at(function, last_ns + LOOK_MIN_NS);
            }
            _ => self.look(function),
        }
    }

    fn watch_deadline(&mut self, function: usize) {
        let state = &mut self.functions[function];
        if let Some(first) = state.queue.front()
            && !state.expires
        {
            state.expires = true;
            self.agenda.at(first.deadline_ns, Event::Expire { function: function as u32 });
        }
    }

    /// Answers those whose deadline has passed while they waited.
    fn expire(&mut self, function: usize) {
        let now_ns = self.now_ns;
        while let Some(first) = self.functions[function].queue.front().copied()
            && first.deadline_ns <= now_ns
        {
            self.functions[function].queue.pop_front();
            self.tally.inside -= 1;
            self.tally.expired += 1;
            self.answered_client(function, first.client);
        }
        self.rest_if_idle(function);
    }

    fn rest_if_idle(&mut self, function: usize) {
        let now_ns = self.now_ns;
        let state = &mut self.functions[function];
        if state.settle(now_ns) && state.is_idle() {
            let soon_ns =
                state.last_look_ns.map_or(now_ns, |last| (last + LOOK_MIN_NS).max(now_ns));
            self.look_at(function, soon_ns);
        }
    }

    /// Hands waiting invocations to instances with room.
    pub(crate) fn dispatch(&mut self, function: usize) {
        self.expire(function);
        while self.functions[function].room > 0 {
            let Some(waiting) = self.functions[function].queue.pop_front() else { return };
            self.begin(function, waiting);
        }
    }

    /// An invocation begins in the instance that the balancing rule picks; there is room.
    fn begin(&mut self, function: usize, waiting: Waiting) {
        use rand::RngExt;
        let now_ns = self.now_ns;
        let state = &mut self.functions[function];
        state.touch(now_ns);
        state.candidates(&mut self.candidates);
        let random = self.balance_random.random::<u64>();
        let picked = pick(self.scenario.balance, &self.candidates, state.turn, random);
        let at = picked.expect("begin is called when there is room");
        state.turn += 1;
        let work = &state.model.work;
        let instance = &mut state.instances[at];
        let beside = (instance.running.len() as f64 + 1.0) * work.cpu_share;
        let slowdown = (beside / work.cores_per_instance)
            .max((self.cores_wanted + work.cpu_share) / self.node.cores)
            .max(1.0);
        let burning_ns = waiting.service_ns as f64 * work.cpu_share;
        let lasts_ns = (waiting.service_ns as f64 + burning_ns * (slowdown - 1.0)) as u64;
        let cores = burning_ns / lasts_ns.max(1) as f64;
        state.serial += 1;
        let serial = state.serial;
        if instance.running.is_empty() {
            self.tally.advance(now_ns, self.end_ns);
            self.tally.busy += 1;
        }
        instance.running.push(Running {
            serial,
            arrived_ns: waiting.arrived_ns,
            began_ns: now_ns,
            client: waiting.client,
            cores,
        });
        state.room -= 1;
        state.in_flight += 1;
        state.cores += cores;
        self.cores_wanted += work.cpu_share;
        self.tally.waits.record(now_ns - waiting.arrived_ns);
        self.tally.cold += u64::from(waiting.arrived_ns < instance.ready_ns);
        let event = Event::Done { function: function as u32, instance: at as u32, serial };
        self.agenda.at(now_ns + lasts_ns, event);
    }

    fn done(&mut self, function: usize, at: usize, serial: u64) {
        let now_ns = self.now_ns;
        let state = &mut self.functions[function];
        state.touch(now_ns);
        let instance = &mut state.instances[at];
        let place = instance.running.iter().position(|running| running.serial == serial);
        let running = instance.running.swap_remove(place.expect("an invocation ends once"));
        instance.served += 1;
        let (empty, draining) = (instance.running.is_empty(), instance.state == State::Draining);
        if empty {
            instance.idle_since_ns = now_ns;
            self.tally.advance(now_ns, self.end_ns);
            self.tally.busy -= 1;
        }
        state.in_flight -= 1;
        state.cores = if state.in_flight == 0 { 0.0 } else { state.cores - running.cores };
        self.cores_wanted = (self.cores_wanted - state.model.work.cpu_share).max(0.0);
        state.answered += 1;
        state.service.record(now_ns - running.began_ns);
        self.tally.responses.record(now_ns - running.arrived_ns);
        if !draining {
            state.room += 1;
        }
        self.tally.inside -= 1;
        self.tally.answered += 1;
        self.answered_client(function, running.client);
        if draining && empty {
            self.leave(function, at);
        }
        if self.functions[function].queue.is_empty() {
            self.rest_if_idle(function);
        } else {
            self.dispatch(function);
        }
    }
}
