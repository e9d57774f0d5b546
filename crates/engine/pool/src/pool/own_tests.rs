//! Tests of instances that are kept for single callers or invocations.

use std::collections::{BTreeMap, BTreeSet};

use mote_spec::policy::Balance;
use rand::RngExt;

use super::tests::{Bench, Fake, Job, MS, SECOND, stopped};
use super::*;

const NAMES: [Option<&[u8]>; 4] = [Some(b"ann"), Some(b"bob"), Some(b"cy"), None];

fn bench(max: u32, balance: Balance) -> Bench {
    Bench::new(0, max, |rules| rules.balance = balance)
}

/// Offers an invocation of a caller, and returns its name.
fn call(bench: &mut Bench, caller: Option<&'static [u8]>) -> u32 {
    let job = Job { caller, ..bench.job() };
    bench.offer(job).map_err(|(_, refusal)| refusal).expect("it is taken");
    job.name
}

/// Looks, and starts the ordered instances.
fn look_and_start(bench: &mut Bench) -> u32 {
    let orders = bench.look();
    let count = orders.start.map_or(0, |start| start.count);
    for _ in 0..count {
        bench.ready(Fake::default(), false);
    }
    count
}

fn last(bench: &Bench) -> (u32, usize) {
    *bench.began.last().expect("an invocation has begun")
}

#[test]
fn an_instance_serves_one_caller() {
    let mut bench = bench(4, Balance::PerCaller);
    let first = call(&mut bench, NAMES[0]);
    assert_eq!(look_and_start(&mut bench), 1);
    let (name, of_ann) = last(&bench);
    assert_eq!(name, first);
    bench.end(of_ann, 0);
    // The instance is idle, but it does not serve another caller, with or without a name.
    for caller in [NAMES[1], NAMES[3]] {
        let name = call(&mut bench, caller);
        assert_ne!(last(&bench).0, name, "it waits");
        assert_eq!(look_and_start(&mut bench), 1);
        let (begun, of_other) = last(&bench);
        assert_eq!(begun, name);
        assert_ne!(of_other, of_ann);
        bench.end(of_other, 0);
    }
    // Each caller gets its previous instance again.
    let again = call(&mut bench, NAMES[0]);
    assert_eq!(last(&bench), (again, of_ann));
    bench.end(of_ann, 0);
    assert_eq!(bench.pool.ready_count(), 3);
    // No instance is started for callers that have one, however busy their instances are.
    bench.now_ns += 20 * MS;
    assert_eq!(look_and_start(&mut bench), 0);
}

#[test]
fn a_resting_instance_gives_way_to_another_caller_and_a_forgotten_one_stops() {
    let mut bench = bench(1, Balance::PerCaller);
    call(&mut bench, NAMES[0]);
    look_and_start(&mut bench);
    let (_, of_ann) = last(&bench);
    bench.end(of_ann, 0);
    let name = call(&mut bench, NAMES[1]);
    let orders = bench.look();
    assert_eq!(orders.stopping.len(), 1);
    assert_eq!(orders.stopping[0].why, Why::CALLERS);
    assert!(orders.start.is_none(), "there may be one process, and that has not ended");
    bench.pool.ended(of_ann, "exited", bench.now_ns);
    assert_eq!(look_and_start(&mut bench), 1);
    assert_eq!(last(&bench).0, name);
    let (_, of_bob) = last(&bench);
    bench.end(of_bob, 0);
    bench.now_ns += 59 * SECOND;
    assert!(bench.look().stopping.is_empty());
    bench.now_ns += 2 * SECOND;
    let orders = bench.look();
    assert_eq!(orders.stopping.iter().map(|one| one.why).collect::<Vec<_>>(), [Why::CALLER_GONE]);
    assert!(stopped(StopReason::Idle)(bench.state(of_bob)));
}

#[test]
fn a_busy_instance_gives_way_after_a_while_and_ends_what_it_runs() {
    let mut bench = bench(1, Balance::PerCaller);
    call(&mut bench, NAMES[0]);
    look_and_start(&mut bench);
    let (_, of_ann) = last(&bench);
    let name = call(&mut bench, NAMES[1]);
    bench.now_ns += 100 * MS;
    assert!(bench.look().stopping.is_empty(), "the other one has waited for a short time");
    bench.now_ns += SECOND;
    assert_eq!(bench.look().stopping.len(), 1);
    let later = call(&mut bench, NAMES[0]);
    bench.end(of_ann, 0);
    assert_ne!(last(&bench).0, later, "it takes nothing more");
    bench.pool.ended(of_ann, "exited", bench.now_ns);
    bench.now_ns += 20 * MS;
    assert_eq!(look_and_start(&mut bench), 1);
    assert_eq!(last(&bench).0, name, "who waited first is served first");
}

#[test]
fn a_full_queue_does_not_keep_a_caller_from_its_own_instance() {
    let mut bench = Bench::new(0, 1, |rules| {
        (rules.balance, rules.queue_max) = (Balance::PerCaller, 1);
    });
    call(&mut bench, NAMES[0]);
    look_and_start(&mut bench);
    let (_, of_ann) = last(&bench);
    bench.end(of_ann, 0);
    call(&mut bench, NAMES[1]);
    let job = Job { caller: NAMES[2], ..bench.job() };
    assert!(matches!(bench.offer(job), Err((_, Refusal::QueueFull { .. }))));
    let own = call(&mut bench, NAMES[0]);
    assert_eq!(last(&bench), (own, of_ann));
}

#[test]
fn an_instance_serves_one_invocation() {
    let mut bench = bench(2, Balance::PerCall);
    let names = [call(&mut bench, NAMES[0]), call(&mut bench, NAMES[0])];
    let mut used = BTreeSet::new();
    for name in names {
        look_and_start(&mut bench);
        let (begun, key) = *bench.began.iter().find(|(begun, _)| *begun == name).expect("it runs");
        assert!(begun == name && used.insert(key));
    }
    let third = call(&mut bench, NAMES[0]);
    bench.now_ns += 20 * MS;
    assert_eq!(look_and_start(&mut bench), 0, "there may be two");
    let key = bench.began[0].1;
    bench.end(key, 0);
    assert_ne!(last(&bench).0, third, "an instance that has served is not used again");
    let exiting = bench.look().exiting;
    assert_eq!(exiting, [key]);
    bench.pool.ended(key, "exited", bench.now_ns);
    bench.now_ns += 20 * MS;
    assert_eq!(look_and_start(&mut bench), 1);
    assert_eq!(last(&bench).0, third);
}

/// Random callers call at random times, and instances end at random times. Each invocation runs
/// once, no instance serves two callers, and there are never more processes than permitted.
#[test]
fn whatever_happens_no_instance_serves_two_callers() {
    for (seed, balance) in [(1, Balance::PerCaller), (2, Balance::PerCaller), (3, Balance::PerCall)]
    {
        let max = 3;
        let mut bench = bench(max, balance);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut callers = BTreeMap::new();
        // The callers that each worker has served, by the worker's key.
        let mut served: BTreeMap<usize, BTreeSet<Option<&[u8]>>> = BTreeMap::new();
        let mut starting = 0;
        let mut seen = 0;
        let mut gone = Vec::new();
        let mut calls = 0;
        while calls < 3_000 || bench.pool.queued() > 0 || bench.pool.in_flight() > 0 {
            bench.now_ns += random.random_range(1..40) * MS;
            if let Some(key) = gone.pop_if(|_| random.random_range(0..2) == 0) {
                bench.pool.ended(key, "exited", bench.now_ns);
                // Another instance may get the same key from now on.
                served.remove(&key);
            }
            if calls < 3_000 && random.random_range(0..3) == 0 {
                let caller = NAMES[random.random_range(0..NAMES.len())];
                let job = Job { caller, deadline_ns: u64::MAX, ..bench.job() };
                bench.offer(job).map_err(|(_, refusal)| refusal).expect("it is taken");
                assert!(callers.insert(job.name, caller).is_none());
                calls += 1;
            }
            let busy: Vec<_> = bench
                .pool
                .workers()
                .flat_map(|(key, worker)| worker.calls().iter().map(move |(slot, _)| (key, slot)))
                .collect();
            if !busy.is_empty() && random.random_range(0..2) == 0 {
                let (key, slot) = busy[random.random_range(0..busy.len())];
                bench.end(key, slot);
            }
            let orders = bench.look();
            starting += orders.start.map_or(0, |start| start.count);
            gone.extend(orders.exiting);
            let processes = bench.pool.workers().len() as u32 + starting;
            assert!(processes <= max, "{processes} processes");
            if starting > 0 && random.random_range(0..3) == 0 {
                starting -= 1;
                bench.ready(Fake::default(), false);
            }
            for (name, key) in &bench.began[seen..] {
                let callers_of_it = served.entry(*key).or_default();
                assert!(balance == Balance::PerCaller || callers_of_it.is_empty());
                callers_of_it.insert(callers[name]);
                assert_eq!(callers_of_it.len(), 1, "{callers_of_it:?}");
            }
            seen = bench.began.len();
        }
        let began: BTreeSet<_> = bench.began.iter().map(|(name, _)| *name).collect();
        assert_eq!((began.len(), bench.began.len()), (calls, calls));
        assert!(calls >= 3_000);
    }
}
