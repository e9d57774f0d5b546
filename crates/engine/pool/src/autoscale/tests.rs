//! Tests of the rules with scripted demand. Tests with queues and instances are in `mote-lab`.

use mote_spec::policy::{HpaSettings, KnativeMetric, KnativeSettings, OpenFaasSettings};

use super::*;

const S: u64 = 1_000_000_000;

/// Constant demand, with instances that exist as soon as they are wanted.
struct Script {
    scaler: Autoscaler,
    o: Observation,
    answered: f64,
}

#[derive(Clone, Copy, Default)]
struct Demand {
    /// Offered invocations per second.
    rate: f64,
    /// The share of offered invocations that is answered.
    answered: f64,
    /// The number of running and waiting invocations.
    inside: u32,
    /// Cores in use.
    cores: f64,
}

impl Script {
    fn new(policy: &Policy, min: u32, max: u32) -> Self {
        let bounds = Bounds { min, max, idle_timeout_ns: 300 * S };
        let o = Observation {
            concurrency: 1,
            service: Estimate::of(S / 10),
            start: Estimate::of(S / 20),
            cpu_millis_per_instance: 1_000,
            memory_limit_bytes: 64 << 20,
            memory_per_core_bytes: 4 << 30,
            ..Observation::default()
        };
        Self { scaler: Autoscaler::new(policy, bounds), o, answered: 0.0 }
    }

    /// Runs for `seconds` with a look every tenth of a second, and returns the last decision.
    fn go(&mut self, seconds: u64, demand: Demand) -> Decision {
        let mut decision = None;
        self.scaler.settle(demand.inside, self.o.now_ns);
        for _ in 0..seconds * 10 {
            let o = &mut self.o;
            o.now_ns += S / 10;
            self.answered += demand.rate / 10.0;
            o.offered_total = self.answered as u64;
            o.refused_total = (self.answered * (1.0 - demand.answered)) as u64;
            o.answered_total = (self.answered * demand.answered) as u64;
            o.cpu_ns_total += (demand.cores * 1e8) as u64;
            o.in_flight = demand.inside.min(o.ready * o.concurrency);
            o.queued = demand.inside - o.in_flight;
            let now = self.scaler.decide(o);
            o.ready = now.desired;
            decision = Some(now);
        }
        decision.unwrap()
    }
}

fn busy(rate: f64, inside: u32) -> Demand {
    Demand { rate, answered: 1.0, inside, cores: f64::from(inside) }
}

#[test]
fn between_two_looks_of_a_target_the_first_instance_stays_and_one_that_died_is_replaced() {
    let policies = [
        Policy::Concurrency { target: 1 },
        Policy::Rps { target: 10 },
        Policy::Cpu { target_percent: 50 },
    ];
    for policy in policies {
        let mut script = Script::new(&policy, 0, 10);
        let at = |script: &mut Script, after_ns: u64, (ready, in_flight, queued)| {
            let o = &mut script.o;
            o.now_ns += after_ns;
            (o.ready, o.in_flight, o.queued) = (ready, in_flight, queued);
            script.scaler.settle(in_flight + queued, o.now_ns);
            let decision = script.scaler.decide(o);
            (decision.desired, decision.reason)
        };
        let first = (1, Reason::FirstInvocation);
        assert_eq!(at(&mut script, S, (0, 0, 1)), first, "{policy:?}");
        assert_eq!(at(&mut script, S / 10, (1, 1, 0)).0, 1, "{policy:?}: it runs");
        assert_eq!(at(&mut script, S / 10, (1, 0, 0)).0, 1, "{policy:?}: it has ended");
        assert_eq!(at(&mut script, S, (1, 0, 0)), (1, Reason::KeepAlive), "{policy:?}");
        // The instance dies while it is kept, and the next invocation arrives before the next look.
        assert_eq!(at(&mut script, S / 10, (0, 0, 1)), first, "{policy:?}: it has died");
    }
}

#[test]
fn rules_under_constant_demand() {
    use Reason::*;
    let knative = || Policy::Knative(KnativeSettings::default());
    let cases: [(Policy, Demand, u32, Reason); 9] = [
        // The load would keep more, but starts none as long as no invocation waits.
        (Policy::Auto, busy(40.0, 4), 4, OfferedLoad),
        (Policy::Concurrency { target: 1 }, busy(40.0, 4), 4, Concurrency),
        (Policy::Concurrency { target: 10 }, busy(40.0, 4), 4, Concurrency),
        (Policy::Rps { target: 10 }, busy(40.0, 4), 4, Rate),
        (Policy::Cpu { target_percent: 50 }, busy(40.0, 4), 8, Cpu),
        // The limit of one invocation at a time replaces the target of 100: 4 / 0.7.
        (knative(), busy(40.0, 4), 6, Concurrency),
        (Policy::Hpa(HpaSettings::default()), busy(40.0, 4), 5, Steady),
        (Policy::OpenFaas(OpenFaasSettings::default()), busy(4.0, 1), 1, Steady),
        (Policy::OpenFaas(OpenFaasSettings::default()), busy(6.0, 1), 20, Alert),
    ];
    for (policy, demand, desired, reason) in cases {
        let mut script = Script::new(&policy, 0, 20);
        let decision = script.go(300, demand);
        assert_eq!((decision.desired, decision.reason), (desired, reason), "{policy:?}");
    }
}

#[test]
fn bounds_cut_and_say_so() {
    let mut script = Script::new(&Policy::Auto, 2, 4);
    let decision = script.go(60, busy(100.0, 12));
    assert_eq!((decision.desired, decision.cut), (4, Some(Cut::Max)));
    assert!(decision.wished > 9, "{decision:?}");
    let decision = script.go(600, Demand::default());
    assert_eq!((decision.desired, decision.wished, decision.cut), (2, 0, Some(Cut::Min)));
}

#[test]
fn what_is_refused_is_demand() {
    // Forty invocations per second are offered and ten are answered.
    let demand = Demand { answered: 0.25, ..busy(40.0, 1) };
    let wanted = |policy| Script::new(&policy, 0, 20).go(60, demand).desired;
    assert_eq!(wanted(Policy::Rps { target: 10 }), 4);
    assert!(wanted(Policy::Auto) >= 5);
    let rps = KnativeSettings {
        metric: KnativeMetric::Rps,
        target: 10,
        utilization_percent: 100,
        ..KnativeSettings::default()
    };
    assert_eq!(wanted(Policy::Knative(rps)), 1, "it counts what it let in");
}

#[test]
fn somebody_who_waits_gets_a_first_instance() {
    for policy in [
        Policy::Auto,
        Policy::Concurrency { target: 100 },
        Policy::Rps { target: 100 },
        Policy::Cpu { target_percent: 50 },
        Policy::Memory { target_percent: 50 },
        Policy::Knative(KnativeSettings::default()),
        Policy::Hpa(HpaSettings::default()),
        Policy::OpenFaas(OpenFaasSettings::default()),
    ] {
        let mut script = Script::new(&policy, 0, 20);
        script.o.now_ns = 5 * S;
        script.o.queued = 1;
        script.o.offered_total = 1;
        assert_eq!(script.scaler.decide(&script.o).desired, 1, "{policy:?}");
    }
}

#[test]
fn zero_and_no_timer_when_idle() {
    for policy in [
        Policy::Auto,
        Policy::Concurrency { target: 1 },
        Policy::Knative(KnativeSettings::default()),
    ] {
        let mut script = Script::new(&policy, 0, 20);
        assert!(script.go(30, busy(10.0, 1)).desired >= 1);
        let decision = script.go(700, Demand::default());
        assert_eq!((decision.desired, decision.reason), (0, Reason::Idle), "{policy:?}");
        assert_eq!(decision.look_ns, None, "{policy:?}: a function at rest costs no timer");
    }
}

#[test]
fn a_burst_starts_several_at_once() {
    let mut script = Script::new(&Policy::Auto, 0, 50);
    script.o.ready = 1;
    script.o.in_flight = 1;
    script.o.now_ns = S;
    script.o.queued = 30;
    script.o.offered_total = 31;
    let decision = script.scaler.decide(&script.o);
    // With nine, the last of the 30 calls waits a third of a second. Further starts would spare only
    // waits that nobody notices.
    assert!(decision.desired >= 9, "{decision:?}");
    assert_eq!(decision.reason, Reason::Backlog);
    // The queue is the same, but its work ends before an instance could start, so no instance is
    // started.
    script.o.service = Estimate::of(S / 1_000);
    script.o.now_ns += S;
    let mut calm = Script::new(&Policy::Auto, 0, 50);
    calm.o = script.o;
    assert_eq!(calm.scaler.decide(&calm.o).desired, 1);
}

#[test]
fn jitter_does_not_stop_instances() {
    let mut script = Script::new(&Policy::Auto, 0, 20);
    script.go(60, busy(40.0, 4));
    let mut least = u32::MAX;
    for second in 0..60 {
        let rate = if second % 2 == 0 { 36.0 } else { 44.0 };
        least = least.min(script.go(1, busy(rate, 4)).desired);
    }
    assert!(least >= 4, "{least}");
}

#[test]
fn an_instance_that_runs_many_and_burns_its_core_is_helped() {
    let mut script = Script::new(&Policy::Auto, 0, 20);
    script.o.concurrency = 100;
    let decision = script.go(30, Demand { cores: 1.0, ..busy(200.0, 9) });
    assert!((2..=3).contains(&decision.desired), "{decision:?}");
}

#[test]
fn knative_panics_and_does_not_fall_while_it_does() {
    let mut script = Script::new(&Policy::Knative(KnativeSettings::default()), 0, 50);
    script.go(120, busy(10.0, 1));
    let panic = script.go(8, busy(200.0, 20));
    assert_eq!(panic.reason, Reason::Panic);
    assert!(panic.desired >= 20, "{panic:?}");
    let after = script.go(30, busy(10.0, 1));
    assert!(after.desired >= panic.desired, "{after:?}");
    assert!(script.go(120, busy(10.0, 1)).desired <= 2);
}

#[test]
fn kubernetes_waits_five_minutes_before_it_falls() {
    let mut script = Script::new(&Policy::Hpa(HpaSettings::default()), 1, 20);
    assert_eq!(script.go(20, busy(80.0, 8)).desired, 5, "four more at most in the first period");
    assert_eq!(script.go(60, busy(80.0, 8)).desired, 10);
    let decision = script.go(240, busy(10.0, 1));
    assert_eq!((decision.desired, decision.reason), (10, Reason::Stabilising));
    assert!(script.go(120, busy(10.0, 1)).desired <= 2);
}

#[test]
fn words_are_stable() {
    let words = [
        (Reason::FirstInvocation, "first-invocation"),
        (Reason::OfferedLoad, "offered-load"),
        (Reason::KeepAlive, "keep-alive"),
    ];
    for (reason, word) in words {
        assert_eq!(reason.as_str(), word);
        assert_eq!(serde_json::to_string(&reason).unwrap(), format!("\"{word}\""));
    }
    let policy = Policy::Concurrency { target: 4 };
    assert_eq!(serde_json::to_string(&policy).unwrap(), r#"{"concurrency":{"target":4}}"#);
    let knative: Policy = serde_json::from_str(r#"{"knative":{"target":50}}"#).unwrap();
    let expected = KnativeSettings { target: 50, ..KnativeSettings::default() };
    assert_eq!(knative, Policy::Knative(expected));
}

/// Many invocations wait and none has ended yet.
fn first_calls(running_ms: u64, waiting: u32, ready: u32) -> Observation {
    Observation {
        now_ns: S + running_ms * MS_NS,
        in_flight: ready,
        run_age_ns_total: u64::from(ready) * running_ms * MS_NS,
        queued: waiting,
        ready,
        service: Estimate::default(),
        start: Estimate::of(S / 20),
        start_cpu: Estimate::of(16 * MS_NS),
        memory_limit_bytes: 64 << 20,
        memory_per_core_bytes: 4 << 30,
        concurrency: 1,
        ..Observation::default()
    }
}

fn auto(max: u32) -> Autoscaler {
    let bounds = Bounds { min: 0, max, idle_timeout_ns: 300 * S };
    Autoscaler::new(&Policy::Auto, bounds)
}

#[test]
fn the_age_of_what_runs_is_evidence() {
    assert_eq!(auto(20).decide(&first_calls(1, 9, 1)).desired, 2, "nothing is known: doubled");
    let after: Vec<u32> =
        [20, 50, 100].map(|ms| auto(20).decide(&first_calls(ms, 9, 1)).desired).into();
    assert!(
        after.is_sorted() && after[2] >= 8,
        "the longer it runs the more are wanted: {after:?}"
    );
    // Work that has ended was quick, but running work is not, for instance because the revision is
    // new or the work has changed.
    let mut slow = first_calls(200, 9, 2);
    slow.service = Estimate::of(S / 1_000);
    assert!(auto(20).decide(&slow).desired >= 5);
    slow.run_age_ns_total = 2 * MS_NS;
    assert!(auto(20).decide(&slow).desired <= 2, "two quick ones clear nine in time");
}

#[test]
fn a_burst_on_quick_work_counts_before_a_second_is_over() {
    let mut scaler = auto(20);
    let mut o = first_calls(0, 0, 1);
    o.service = Estimate::of(S / 50);
    let mut decision = None;
    // One call per second for a minute, then 200 calls per second, which three instances can serve.
    for second in 0..60 {
        o.now_ns = (second + 1) * S;
        o.offered_total = second;
        scaler.decide(&o);
    }
    let calm = scaler.decide(&o).desired;
    let begin_ns = o.now_ns;
    o.ready = 3;
    o.in_flight = 3;
    // More than the three instances run, so the load may start instances.
    o.queued = 4;
    for look in 1..=40u64 {
        o.now_ns = begin_ns + look * 5 * MS_NS;
        o.offered_total = 59 + look;
        decision = Some(scaler.decide(&o));
    }
    assert_eq!(calm, 1);
    let desired = decision.map_or(0, |decision| decision.desired);
    assert!((5..=8).contains(&desired), "4 erlangs after 0.2 s: {desired}");
}

#[test]
fn a_successor_knows_the_callers() {
    let mut old = auto(4);
    let mut bounds = Bounds { min: 0, max: 4, idle_timeout_ns: 3_600 * S };
    let rests = |scaler: &mut Autoscaler, now_ns: u64| {
        scaler.settle(1, now_ns);
        scaler.settle(0, now_ns + 1);
        let o = Observation { now_ns: now_ns + 1, ready: 1, ..Observation::default() };
        scaler.decide(&o).look_ns.unwrap() - now_ns
    };
    for call in 1..40 {
        rests(&mut old, call * 600 * S);
    }
    bounds.max = 8;
    let mut new = Autoscaler::new(&Policy::Auto, bounds);
    let unknown = rests(&mut Autoscaler::new(&Policy::Auto, bounds), 30_000 * S);
    new.inherit(&old);
    let known = rests(&mut new, 30_000 * S);
    assert!(known < unknown / 2, "a timer's function is stopped at once: {known} {unknown}");
}

/// The number of instances for `waiting` calls behind a busy one. Calls take 0.2 s, so the busy
/// instance alone ends five per second.
fn wanted_behind(waiting: u32, start_cpu_ms: u64, memory_per_core_bytes: u64) -> u32 {
    let mut o = first_calls(50, waiting, 1);
    o.service = Estimate::of(S / 5);
    o.start_cpu = Estimate::of(start_cpu_ms * MS_NS);
    o.memory_per_core_bytes = memory_per_core_bytes;
    auto(20).decide(&o).desired
}

#[test]
fn a_start_must_spare_more_waiting_than_it_costs_on_this_machine() {
    let gib = 1 << 30;
    assert_eq!(wanted_behind(1, 16, 4 * gib), 1, "the wait is shorter than the start is worth");
    let server = wanted_behind(9, 16, 4 * gib);
    assert!(server > 2, "{server}");
    assert!(wanted_behind(9, 400, 4 * gib) < server, "starts cost more");
    assert!(wanted_behind(9, 16, gib / 2) > server, "memory costs more, so starts cost less");
}

#[test]
fn no_caller_waits_for_seconds_to_save_a_start() {
    // Nine calls of 3 s wait behind a tenth. Starts are slow and dear, and memory is cheap.
    let mut o = first_calls(100, 9, 1);
    o.service = Estimate::of(3 * S);
    o.start = Estimate::of(S / 5);
    o.start_cpu = Estimate::of(150 * MS_NS);
    o.memory_per_core_bytes = 12 << 30;
    assert_eq!(auto(20).decide(&o).desired, 10, "each gets an instance");
    // The same calls are the first of a new function, so their run time is unknown. Once they have
    // run for as long as a start takes, each waiting one gets an instance.
    o.service = Estimate::default();
    assert_eq!(auto(20).decide(&o).desired, 2);
    o.run_age_ns_total = S / 5;
    assert_eq!(auto(20).decide(&o).desired, 10);
}

#[test]
fn surplus_is_held_until_it_has_cost_as_much_as_a_start() {
    // 64 MiB of 4 GiB cost a 64th of a core. A start costs 16 ms of it (1.02 s), 0.05 s of memory
    // and a wait of 0.05 s (0.075 s).
    for (memory_per_core_bytes, held_ms) in [(4 << 30, 1_149), (1 << 30, 381)] {
        let mut scaler = auto(20);
        let mut o = first_calls(50, 9, 1);
        o.service = Estimate::of(S / 5);
        o.memory_per_core_bytes = memory_per_core_bytes;
        let started = scaler.decide(&o).desired;
        assert!(started > 2, "{started}");
        let begin_ns = o.now_ns;
        (o.ready, o.queued, o.run_age_ns_total) = (started, 0, 0);
        let mut at_ms = |ms: u64| {
            o.now_ns = begin_ns + ms * MS_NS;
            scaler.decide(&o).desired
        };
        assert_eq!(at_ms(held_ms - 20), started, "{memory_per_core_bytes}");
        assert_eq!(at_ms(held_ms + 20), 1, "{memory_per_core_bytes}");
    }
}

#[test]
fn a_predicted_call_needs_a_timer_until_its_start() {
    let bounds = Bounds { min: 0, max: 4, idle_timeout_ns: 3_600 * S };
    let mut scaler = Autoscaler::new(&Policy::Auto, bounds);
    let base = Observation { start: Estimate::of(S), ..first_calls(0, 0, 0) };
    for call in 0..40 {
        scaler.settle(1, call * 600 * S);
        scaler.settle(0, call * 600 * S + 1);
    }
    let rested_ns = 39 * 600 * S + 1;
    let look = |scaler: &mut Autoscaler, after_s: u64, ready| {
        scaler.decide(&Observation { now_ns: rested_ns + after_s * S, ready, ..base })
    };
    let first = look(&mut scaler, 0, 1);
    let ahead_ns = first.predicted_ns.expect("calls come every ten minutes");
    let ahead_s = (ahead_ns - rested_ns) / S;
    assert!((450..600).contains(&ahead_s), "{ahead_s}");
    let stopped = look(&mut scaler, 60, 0);
    assert_eq!((stopped.desired, stopped.look_ns), (0, Some(ahead_ns)), "the next look starts it");
    let again = look(&mut scaler, ahead_s + 1, 0);
    assert_eq!((again.desired, again.reason), (1, Reason::Predicted));
    assert_eq!(again.predicted_ns, None);
    let missed = look(&mut scaler, 1_200, 1);
    assert_eq!((missed.desired, missed.look_ns), (0, None), "the call did not come");
}
