//! The event loop, with the arrival, dispatch and end of invocations. A [`mote_pool::Pool`], which
//! is the type that the daemon drives too, decides about the queue, the instances and their number.
//! Starts and stops are in `scaling.rs`.

use mote_pool::autoscale::ForeignRule;
use mote_pool::{Dispatched, Pool, Refusal};

use crate::arrivals::{Arrivals, clients_at};
use crate::event::{Agenda, Event};
use crate::function::{Client, Function, Instance, NO_CLIENT, Running, Waiting};
use crate::report::Report;
use crate::scenario::{NodeModel, Scenario};
use crate::tally::Tally;

/// Runs a scenario to its end. The result is deterministic. Time and memory grow with the number of
/// arrivals and functions.
pub fn simulate(scenario: &Scenario) -> Report {
    let mut simulation = Simulation::new(scenario);
    simulation.run();
    simulation.tally.report(scenario, &simulation.functions)
}

/// Runs a scenario in which `rule` scales each function in place of the scenario's policy. Its
/// argument is the index of the function.
pub fn simulate_with(scenario: &Scenario, rule: impl Fn(usize) -> Box<dyn ForeignRule>) -> Report {
    let mut simulation = Simulation::new(scenario);
    for (index, function) in simulation.functions.iter_mut().enumerate() {
        function.pool.scale_by(rule(index));
    }
    simulation.run();
    simulation.tally.report(scenario, &simulation.functions)
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
    /// How many cores the running invocations could use together.
    cores_wanted: f64,
    /// Incremented whenever an instance gives resources back to the node.
    pub(crate) version: u64,
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let rules = (&scenario.policy, scenario.balance, &scenario.node);
        let make = |(index, model)| Function::new(model, rules, scenario.seed, index as u64);
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
            version: 0,
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
            Event::Done { function, worker, serial } => {
                self.done(function as usize, worker as usize, serial);
            }
            Event::Ready { function, since_ns } => self.ready(function as usize, since_ns),
            Event::Gone { function, worker } => {
                self.gone(function as usize, worker as usize);
                self.look_at(function as usize, self.now_ns);
            }
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

    /// Handles a step in which the number of callers of a closed load may change. New callers do
    /// not begin at the same time, but are spread over their pause.
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

    /// Notes that a caller of a closed load has received some answer, and schedules its next call.
    fn answered_client(&mut self, function: usize, client: u32) {
        if client == NO_CLIENT {
            return;
        }
        let state = &self.functions[function];
        let Arrivals::Clients { rate, .. } = &state.model.arrivals else { return };
        let pause_ns = if *rate > 0.0 { (1e9 / rate) as u64 } else { 0 };
        let turn_ns = state.clients[client as usize].last_send_ns + pause_ns;
        // Without this extra microsecond, a caller that is refused at once would repeat its call
        // forever at the same virtual time.
        let at_ns = turn_ns.max(self.now_ns + 1_000);
        self.agenda.at(at_ns, Event::Send { function: function as u32, client });
    }

    fn arrive(&mut self, function: usize, recorded_ns: u64, client: u32) {
        let now_ns = self.now_ns;
        let state = &mut self.functions[function];
        self.tally.offered += 1;
        let service_ns = match recorded_ns {
            0 => state.model.work.time.sample_ns(&mut state.work_random),
            recorded_ns => recorded_ns,
        };
        let waiting = Waiting::new(now_ns, state.model.timeout_ms, service_ns, client);
        let was_idle = state.is_idle();
        let asks = match state.pool.submit(waiting, false, now_ns) {
            Ok(submitted) => {
                self.tally.inside += 1;
                self.dispatch(function);
                self.watch_deadline(function);
                submitted.asks
            }
            Err((_, refusal)) => {
                self.tally.refused += 1;
                self.answered_client(function, client);
                refusal == Refusal::QueueFull { asks: true }
            }
        };
        if asks || was_idle {
            self.look(function);
        }
    }

    fn watch_deadline(&mut self, function: usize) {
        let state = &mut self.functions[function];
        if let Some(deadline_ns) = state.pool.oldest_deadline_ns()
            && !state.expires
        {
            state.expires = true;
            self.agenda.at(deadline_ns, Event::Expire { function: function as u32 });
        }
    }

    /// Ends invocations whose deadline has passed while they waited.
    fn expire(&mut self, function: usize) {
        let expired = self.functions[function].pool.expire(self.now_ns);
        for (waiting, _) in expired.waiting {
            self.expired(function, waiting);
        }
        self.dispatch(function);
    }

    pub(crate) fn expired(&mut self, function: usize, waiting: Waiting) {
        self.tally.inside -= 1;
        self.tally.expired += 1;
        self.answered_client(function, waiting.client);
    }

    /// Gives waiting invocations to instances with room. If the function has become idle, schedules
    /// a look.
    pub(crate) fn dispatch(&mut self, function: usize) {
        let now_ns = self.now_ns;
        let state = &mut self.functions[function];
        let news = state.pool.settle(now_ns);
        if news && state.is_idle() {
            self.look_at(function, now_ns);
        }
        if self.functions[function].pool.queued() > 0 {
            self.with_pool(function, |pool, begin| pool.dispatch(now_ns, begin));
        }
    }

    /// Calls a method of the pool that can begin invocations.
    pub(crate) fn with_pool<T>(
        &mut self,
        function: usize,
        call: impl FnOnce(
            &mut Pool<Waiting, Running, Instance>,
            &mut dyn FnMut(Dispatched<'_, Waiting, Instance>) -> Running,
        ) -> T,
    ) -> T {
        let Self { functions, agenda, tally, node, cores_wanted, now_ns, end_ns, .. } = self;
        let Function { pool, model, start_random, .. } = &mut functions[function];
        let now_ns = *now_ns;
        let end_ns = *end_ns;
        let work = &model.work;
        let mut begin = |dispatched: Dispatched<'_, Waiting, Instance>| {
            let Dispatched { instance, worker, serial, waiting, .. } = dispatched;
            if std::mem::take(&mut instance.resumes) {
                instance.ready_ns = now_ns + model.start.resume.sample_ns(start_random);
            }
            let began_ns = now_ns.max(instance.ready_ns);
            if instance.running == 0 {
                tally.advance(now_ns, end_ns);
                tally.busy += 1;
                tally.busy_bytes += model.memory_bytes;
            }
            instance.running += 1;
            let beside = f64::from(instance.running) * work.cpu_share;
            let slowdown = (beside / work.cores_per_instance)
                .max((*cores_wanted + work.cpu_share) / node.cores)
                .max(1.0);
            let burning_ns = waiting.service_ns as f64 * work.cpu_share;
            let lasts_ns = (waiting.service_ns as f64 + burning_ns * (slowdown - 1.0)) as u64;
            let cores = burning_ns / lasts_ns.max(1) as f64;
            instance.burns(now_ns, cores);
            *cores_wanted += work.cpu_share;
            tally.waits.record(began_ns - waiting.arrived_ns);
            tally.cold += u64::from(waiting.arrived_ns < instance.ready_ns);
            let function = function as u32;
            let worker = worker as u32;
            agenda.at(began_ns + lasts_ns, Event::Done { function, worker, serial });
            Running { arrived_ns: waiting.arrived_ns, began_ns, client: waiting.client, cores }
        };
        call(pool, &mut begin)
    }

    fn done(&mut self, function: usize, key: usize, serial: u64) {
        let now_ns = self.now_ns;
        let state = &mut self.functions[function];
        let worker = state.pool.worker_mut(key).expect("an instance stays while it runs something");
        let slot = worker.calls().iter().find(|(_, call)| call.serial() == serial);
        let (slot, _) = slot.expect("an invocation ends once");
        let running = worker.end(slot, now_ns).expect("it was found").into_inner();
        worker.record_run(now_ns - running.began_ns);
        let draining = worker.is_draining();
        let instance = worker.instance_mut();
        instance.running -= 1;
        instance.burns(now_ns, -running.cores);
        let empty = instance.running == 0;
        if empty {
            self.tally.advance(now_ns, self.end_ns);
            self.tally.busy -= 1;
            self.tally.busy_bytes -= state.model.memory_bytes;
        }
        self.cores_wanted = (self.cores_wanted - state.model.work.cpu_share).max(0.0);
        self.tally.responses.record(now_ns - running.arrived_ns);
        self.tally.inside -= 1;
        self.tally.answered += 1;
        self.answered_client(function, running.client);
        if draining && empty {
            self.look_at(function, now_ns);
        }
        self.dispatch(function);
    }
}
