//! Tests of the pool with a clock that the test sets.

use std::collections::HashMap;

use super::*;
use crate::budget::Lack;
use mote_spec::FunctionName;
use rand::RngExt;

pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000 * MS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) name: u32,
    pub(super) received_ns: u64,
    pub(super) deadline_ns: u64,
    pub(super) thread: Option<usize>,
    pub(super) caller: Option<&'static [u8]>,
}

impl Waiting for Job {
    fn received_ns(&self) -> u64 {
        self.received_ns
    }

    fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    fn thread(&self) -> Option<usize> {
        self.thread
    }

    fn caller(&self) -> Option<&[u8]> {
        self.caller
    }
}

impl Running for Job {
    fn due_ns(&self) -> Option<u64> {
        Some(self.deadline_ns)
    }

    fn can_be_given_back(&self) -> bool {
        true
    }
}

/// The operations that the pool performed on an instance.
#[derive(Debug, Default)]
pub(super) struct Fake {
    paused: bool,
    cannot_pause: bool,
    asked: u32,
    killed: u32,
    thread: Option<usize>,
    takes_ahead: bool,
}

impl Instance for Fake {
    fn takes_ahead(&self) -> bool {
        self.takes_ahead
    }

    fn thread(&self) -> Option<usize> {
        self.thread
    }

    fn set_paused(&mut self, paused: bool) -> bool {
        self.paused = paused && !self.cannot_pause;
        self.paused
    }

    fn ask_to_exit(&mut self) {
        assert!(!self.paused, "a paused program cannot exit");
        self.asked += 1;
    }

    fn kill(&mut self) {
        self.killed += 1;
    }
}

pub(super) struct Bench {
    pub(super) pool: Pool<Job, Job, Fake>,
    pub(super) now_ns: u64,
    version: u64,
    instances: u64,
    jobs: u32,
    pub(super) began: Vec<(u32, usize)>,
}

impl Bench {
    pub(super) fn new(min: u32, max: u32, edit: impl FnOnce(&mut Rules)) -> Self {
        let name = FunctionName::new("f").unwrap();
        let spec = FunctionSpec::with_defaults(name, Runtime::Python, "app.py");
        let mut rules = Rules::of(&spec, 2, 8 << 30);
        edit(&mut rules);
        let bounds = Bounds { min, max, idle_timeout_ns: 60 * SECOND };
        let pool = Pool::new(rules, bounds);
        // The clock does not start at 0, because a real clock never does.
        let now_ns = 1_000 * SECOND;
        Self { pool, now_ns, version: 0, instances: 0, jobs: 0, began: Vec::new() }
    }

    pub(super) fn job(&mut self) -> Job {
        self.jobs += 1;
        let name = self.jobs;
        let received_ns = self.now_ns;
        Job {
            name,
            received_ns,
            deadline_ns: received_ns + 10 * SECOND,
            thread: None,
            caller: None,
        }
    }

    fn submit(&mut self) -> Result<Submitted, Refusal> {
        let job = self.job();
        self.offer(job).map_err(|(_, refusal)| refusal)
    }

    pub(super) fn offer(&mut self, job: Job) -> Result<Submitted, (Job, Refusal)> {
        let Self { pool, began, now_ns, .. } = self;
        pool.offer(job, false, *now_ns, |given| {
            began.push((given.waiting.name, given.worker));
            given.waiting
        })
    }

    fn dispatch(&mut self) {
        let Self { pool, began, now_ns, .. } = self;
        pool.dispatch(*now_ns, |given| {
            began.push((given.waiting.name, given.worker));
            given.waiting
        });
    }

    pub(super) fn look(&mut self) -> Orders {
        let Self { pool, began, now_ns, version, .. } = self;
        let around = Surroundings { version: *version, memory_pressure: 0.0 };
        pool.look(around, *now_ns, |given| {
            began.push((given.waiting.name, given.worker));
            given.waiting
        })
    }

    pub(super) fn ready(&mut self, instance: Fake, spare: bool) -> usize {
        self.ready_for(1, instance, spare)
    }

    fn ready_for(&mut self, concurrency: u32, instance: Fake, spare: bool) -> usize {
        self.instances += 1;
        let new = NewInstance {
            number: self.instances,
            instance,
            concurrency,
            spare,
            since_ns: self.now_ns - 5 * MS,
            start_cpu_ns: Some(2 * MS),
        };
        let key = self.pool.add_ready(new, self.now_ns);
        self.dispatch();
        key
    }

    /// Counts a start, which succeeds.
    fn started(&mut self) -> usize {
        self.pool.count_start(self.now_ns);
        self.ready(Fake::default(), false)
    }

    pub(super) fn end(&mut self, key: usize, slot: usize) {
        let now_ns = self.now_ns;
        let worker = self.pool.worker_mut(key).unwrap();
        worker.end(slot, now_ns).unwrap();
        worker.record_run(MS);
        self.pool.answered();
        self.dispatch();
    }

    pub(super) fn state(&self, key: usize) -> &State {
        self.pool.worker(key).unwrap().state()
    }

    fn instance(&self, key: usize) -> &Fake {
        self.pool.worker(key).unwrap().instance()
    }
}

pub(super) fn stopped(reason: StopReason) -> impl Fn(&State) -> bool {
    move |state| matches!(state, State::Draining(stop) if stop.reason == reason)
}

#[test]
fn the_oldest_runs_first_and_the_queue_has_a_bound() {
    let mut bench = Bench::new(0, 1, |rules| rules.queue_max = 2);
    assert!(bench.submit().unwrap().asks, "the first that waits asks for a look");
    assert!(!bench.submit().unwrap().asks, "it asked for both");
    assert_eq!(bench.submit(), Err(Refusal::QueueFull { asks: false }));
    let start = bench.look().start.unwrap();
    assert_eq!((start.count, start.evict), (1, true));
    let key = bench.ready(Fake::default(), false);
    assert_eq!(bench.began, [(1, key)]);
    bench.end(key, 0);
    assert_eq!(bench.began, [(1, key), (2, key)]);
    assert_eq!(bench.pool.queued(), 0);
}

#[test]
fn without_a_queue_the_first_invocation_starts_an_instance_all_the_same() {
    let mut bench = Bench::new(0, 1, |rules| rules.queue_max = 0);
    assert!(bench.submit().unwrap().asks);
    assert_eq!(bench.submit(), Err(Refusal::QueueFull { asks: false }));
    assert_eq!(bench.look().start.unwrap().count, 1);
    let key = bench.ready(Fake::default(), false);
    assert_eq!(bench.began, [(1, key)]);
    assert!(bench.submit().is_err(), "the only place is taken");
    bench.end(key, 0);
    assert!(bench.submit().is_ok());
}

#[test]
fn an_accepted_invocation_is_taken_whatever_waits() {
    let mut bench = Bench::new(0, 1, |rules| rules.queue_max = 0);
    bench.submit().unwrap();
    assert!(bench.submit().is_err());
    let job = bench.job();
    assert!(bench.pool.submit(job, true, bench.now_ns).is_ok());
}

/// A stopping instance whose connection has closed still counts as stopping, so no other instance
/// is stopped in its place.
#[test]
fn an_instance_that_was_stopped_and_ends_does_not_count_as_ready() {
    let mut bench = Bench::new(1, 4, |_| ());
    let stays = bench.started();
    let goes = bench.started();
    bench.pool.worker_mut(goes).unwrap().drain(StopReason::Surplus, "");
    bench.look();
    assert_eq!(bench.instance(goes).asked, 1);
    let back = bench.pool.take_back(goes, 0, bench.now_ns, Some);
    assert!(back.is_empty() && bench.state(goes).as_str() == "draining");
    assert_eq!(bench.pool.ready_count(), 1);
    assert_eq!(bench.pool.dispensable(), 0, "the other one is kept");
    for _ in 0..3 {
        bench.now_ns += 20 * MS;
        bench.submit().unwrap();
        bench.end(stays, 0);
        bench.look();
    }
    assert_eq!(*bench.state(stays), State::Ready);
    let ended = bench.pool.ended(goes, "exited", bench.now_ns).unwrap();
    assert_eq!(ended.stop.unwrap().reason, StopReason::Surplus);
    assert_eq!(ended.deaths, 0);
}

#[test]
fn closing_reaches_an_instance_that_ends_by_itself() {
    let mut bench = Bench::new(0, 1, |_| ());
    let key = bench.started();
    bench.pool.take_back(key, 0, bench.now_ns, Some);
    assert_eq!(bench.pool.ready_count(), 1, "it is replaced when it is gone");
    bench.pool.close(StopReason::Redeploy, bench.now_ns);
    let ended = bench.pool.ended(key, "exited", bench.now_ns).unwrap();
    assert_eq!((ended.stop.unwrap().reason, ended.deaths), (StopReason::Redeploy, 0));
}

#[test]
fn what_an_instance_has_not_begun_runs_before_all_others() {
    let mut bench = Bench::new(0, 1, |_| ());
    let key = bench.started();
    bench.pool.worker_mut(key).unwrap().record_run(1_000);
    for _ in 0..3 {
        bench.submit().unwrap();
    }
    assert_eq!(bench.began.len(), 1, "this instance takes none ahead");
    bench.pool.take_back(key, 0, bench.now_ns, Some);
    assert_eq!(bench.pool.queued(), 3);
    bench.pool.ended(key, "exited", bench.now_ns);
    let next = bench.started();
    assert_eq!(bench.began.last(), Some(&(1, next)));
}

#[test]
fn nothing_is_sent_ahead_to_an_instance_that_may_be_killed() {
    let mut bench = Bench::new(0, 1, |_| ());
    bench.pool.count_start(bench.now_ns);
    let key = bench.ready(Fake { takes_ahead: true, ..Fake::default() }, false);
    bench.pool.worker_mut(key).unwrap().record_run(1_000);
    for _ in 0..2 {
        bench.submit().unwrap();
    }
    assert_eq!(bench.began.len(), 2, "the second one is sent ahead");
    bench.end(key, 1);
    let now_ns = bench.now_ns;
    assert!(bench.pool.worker_mut(key).unwrap().note_cancelled(0, Gone::Late, now_ns));
    bench.submit().unwrap();
    assert_eq!((bench.began.len(), bench.pool.queued()), (2, 1));
    bench.end(key, 0);
    assert_eq!(bench.began.len(), 3, "it ended in time");
}

#[test]
fn an_instance_that_says_that_it_ends_and_stays_is_killed() {
    let mut bench = Bench::new(0, 1, |_| ());
    let key = bench.started();
    bench.pool.take_back(key, 0, bench.now_ns, Some);
    bench.look();
    assert_eq!(bench.instance(key).killed, 0);
    bench.now_ns += 2 * SECOND;
    bench.look();
    assert!(bench.instance(key).killed > 0);
}

#[test]
fn an_instance_stuck_in_an_expired_invocation_is_killed_and_a_slow_one_is_not() {
    let mut bench = Bench::new(0, 2, |_| ());
    let stuck = bench.started();
    let slow = bench.started();
    bench.submit().unwrap();
    bench.submit().unwrap();
    bench.now_ns += 10 * SECOND;
    let expired = bench.pool.expire(bench.now_ns);
    assert_eq!(expired.running.len(), 2);
    for (key, slot) in expired.running {
        assert!(bench.pool.worker_mut(key).unwrap().note_cancelled(slot, Gone::Late, bench.now_ns));
        assert!(!bench.pool.worker_mut(key).unwrap().note_cancelled(
            slot,
            Gone::Late,
            bench.now_ns
        ));
    }
    assert!(bench.look().killed.is_empty(), "it has a second to notice");
    bench.now_ns += MS;
    bench.pool.worker_mut(slow).unwrap().note_message();
    let now_ns = bench.now_ns;
    bench.pool.worker_mut(slow).unwrap().end(0, now_ns).unwrap();
    bench.now_ns += 2 * SECOND;
    assert_eq!(bench.look().killed, [1]);
    assert!(stopped(StopReason::Deadline)(bench.state(stuck)));
    assert_eq!(*bench.state(slow), State::Ready);
    assert!(bench.look().killed.is_empty(), "once is enough");
}

/// Two invocations run in one instance, and the caller of the first one leaves.
#[test]
fn a_caller_that_leaves_does_not_end_what_runs_for_others() {
    let mut bench = Bench::new(0, 1, |_| ());
    bench.pool.count_start(bench.now_ns);
    let key = bench.ready_for(2, Fake::default(), false);
    bench.submit().unwrap();
    bench.submit().unwrap();
    let gone = Gone::Left { deadline_ns: bench.now_ns + 10 * SECOND };
    let now_ns = bench.now_ns;
    assert!(bench.pool.worker_mut(key).unwrap().note_cancelled(0, gone, now_ns));
    bench.now_ns += 9 * SECOND;
    assert!(bench.look().killed.is_empty());
    assert_eq!(*bench.state(key), State::Ready);
    // After its deadline, the instance gets nothing more, and what runs in it may end.
    bench.now_ns += 3 * SECOND;
    assert!(bench.look().killed.is_empty());
    assert!(stopped(StopReason::Deadline)(bench.state(key)));
    let now_ns = bench.now_ns;
    bench.pool.worker_mut(key).unwrap().end(1, now_ns).unwrap();
    assert_eq!(bench.look().killed, [1]);
}

#[test]
fn who_waits_too_long_expires() {
    let mut bench = Bench::new(0, 1, |_| ());
    bench.submit().unwrap();
    bench.now_ns += 10 * SECOND;
    let expired = bench.pool.expire(bench.now_ns);
    assert_eq!(expired.waiting.len(), 1);
    assert_eq!(expired.waiting[0].1, Expiry::Starting);
    assert!(bench.pool.is_quiet());
}

#[test]
fn failed_starts_back_off_and_answer_those_who_wait() {
    let mut bench = Bench::new(0, 1, |_| ());
    bench.submit().unwrap();
    assert!(bench.look().start.is_some());
    let (waiting, pause_ns) = bench.pool.start_failed(false, "no such file", bench.now_ns);
    assert_eq!((waiting.len(), pause_ns), (1, SECOND));
    assert_eq!(bench.submit(), Err(Refusal::NotStarted("no such file".into())));
    assert_eq!(bench.pool.last_failure(), Some("no such file"));
    for seconds in [2, 4, 8, 16, 32, 60, 60] {
        bench.now_ns += 60 * SECOND;
        bench.submit().unwrap();
        assert!(bench.look().start.is_some());
        let (_, pause_ns) = bench.pool.start_failed(false, "again", bench.now_ns);
        assert_eq!(pause_ns, seconds * SECOND);
    }
    bench.now_ns += 60 * SECOND;
    bench.submit().unwrap();
    bench.look();
    let key = bench.ready(Fake::default(), false);
    bench.end(key, 0);
    assert_eq!(bench.pool.last_failure(), None);
}

#[test]
fn instances_that_die_before_they_answer_pause_starts_and_deaths_over_requests_do_not() {
    let mut bench = Bench::new(1, 1, |_| ());
    for round in 1..=3 {
        let key = bench.started();
        let ended = bench.pool.ended(key, "exit 1", bench.now_ns).unwrap();
        assert_eq!(ended.starts_paused, (round == 3).then_some((3, SECOND)), "{round}");
    }
    let mut bench = Bench::new(0, 1, |_| ());
    for round in 1..=20 {
        bench.now_ns += SECOND;
        bench.submit().unwrap();
        let key = bench.started();
        let ended = bench.pool.ended(key, "signal 9", bench.now_ns).unwrap();
        assert_eq!((ended.calls.len(), ended.starts_paused, ended.deaths), (1, None, round));
    }
}

#[test]
fn closing_gives_back_what_waits_and_drains_what_runs() {
    let mut bench = Bench::new(0, 1, |_| ());
    let key = bench.started();
    for _ in 0..3 {
        bench.submit().unwrap();
    }
    let waiting = bench.pool.close(StopReason::Redeploy, bench.now_ns);
    assert_eq!(waiting.iter().map(|job| job.name).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(bench.submit(), Err(Refusal::Closed));
    bench.look();
    assert_eq!(bench.instance(key).asked, 0, "it has work");
    bench.end(key, 0);
    assert_eq!(bench.look().exiting, [key]);
    // An instance that becomes ready afterwards is stopped at once.
    let late = bench.started();
    assert!(stopped(StopReason::Redeploy)(bench.state(late)));
    bench.now_ns += 2 * SECOND;
    bench.look();
    assert_eq!(bench.instance(key).killed, 1, "it did not exit");
}

#[test]
fn a_spare_is_paused_and_serves_when_it_is_needed() {
    let mut bench = Bench::new(0, 2, |rules| rules.spares = 1);
    assert!(bench.look().start_spare && !bench.look().start_spare, "one at a time");
    let key = bench.ready(Fake::default(), true);
    assert_eq!(*bench.state(key), State::Spare);
    assert_eq!((bench.pool.ready_count(), bench.pool.spare_count()), (0, 1));
    bench.submit().unwrap();
    assert_eq!(bench.began, [(1, key)]);
    assert_eq!(*bench.state(key), State::Ready);
    assert!(!bench.instance(key).paused);
}

#[test]
fn a_spare_that_cannot_be_paused_serves_and_is_the_last() {
    let mut bench = Bench::new(0, 2, |rules| rules.spares = 1);
    assert!(bench.look().start_spare);
    let key = bench.ready(Fake { cannot_pause: true, ..Fake::default() }, true);
    assert_eq!(*bench.state(key), State::Ready);
    assert!(bench.pool.cannot_pause_spares() && !bench.look().start_spare);
}

#[test]
fn an_idle_instance_is_paused_and_resumed_by_work() {
    let mut bench = Bench::new(1, 1, |rules| rules.pause_after_ns = Some(SECOND));
    let key = bench.started();
    bench.submit().unwrap();
    bench.look();
    bench.end(key, 0);
    bench.now_ns += SECOND - MS;
    bench.look();
    assert_eq!(*bench.state(key), State::Ready);
    bench.now_ns += 2 * MS;
    bench.look();
    assert_eq!(*bench.state(key), State::Paused);
    assert_eq!(bench.pool.ready_count(), 1);
    bench.submit().unwrap();
    assert_eq!(bench.began.last(), Some(&(2, key)));
}

#[test]
fn eviction_keeps_what_the_bounds_keep_and_leaves_those_alone_who_are_needed() {
    let mut bench = Bench::new(1, 4, |_| ());
    let first = bench.started();
    let second = bench.started();
    assert_eq!(bench.pool.dispensable(), 1);
    let text = |idle_ns| format!("idle for {idle_ns} ns");
    assert!(!bench.pool.evict(99, text, bench.now_ns), "no such instance");
    bench.now_ns += 7;
    assert!(bench.pool.evict(1, text, bench.now_ns));
    assert!(matches!(bench.state(first), State::Draining(stop) if stop.text == "idle for 7 ns"));
    assert!(!bench.pool.evict(2, text, bench.now_ns), "the last one is kept");
    assert_eq!(*bench.state(second), State::Ready);
}

#[test]
fn manual_scaling_starts_and_stops() {
    let mut bench = Bench::new(1, 3, |_| ());
    assert_eq!(bench.pool.scale_to(9, SECOND, bench.now_ns), (vec![], 3));
    for _ in 0..3 {
        bench.ready(Fake::default(), false);
    }
    assert!(bench.look().stopping.is_empty(), "they are held for a second");
    assert_eq!(bench.pool.scale_to(0, SECOND, bench.now_ns), (vec![1, 2], 0));
    assert_eq!(bench.pool.ready_count(), 1);
}

#[test]
fn starts_that_the_owner_no_longer_wants_end_when_they_are_ready() {
    let mut bench = Bench::new(0, 3, |_| ());
    assert_eq!(bench.pool.scale_to(3, SECOND, bench.now_ns), (vec![], 3));
    assert_eq!(bench.pool.scale_to(1, SECOND, bench.now_ns), (vec![], 0));
    assert_eq!(bench.pool.unwanted_count(), 2);
    for _ in 0..2 {
        let key = bench.ready(Fake::default(), false);
        assert!(
            matches!(bench.state(key), State::Draining(stop) if stop.reason == StopReason::Manual)
        );
    }
    let last = bench.ready(Fake::default(), false);
    assert_eq!(*bench.state(last), State::Ready);
    // A starting instance stays if it is asked for again, or if an invocation waits for it.
    let mut bench = Bench::new(0, 3, |_| ());
    bench.pool.scale_to(2, SECOND, bench.now_ns);
    bench.pool.scale_to(0, SECOND, bench.now_ns);
    assert_eq!(bench.pool.scale_to(1, SECOND, bench.now_ns), (vec![], 0), "one of the two");
    assert_eq!(bench.pool.unwanted_count(), 1);
    bench.pool.scale_to(0, SECOND, bench.now_ns);
    bench.submit().unwrap();
    let first = bench.ready(Fake::default(), false);
    assert_eq!((bench.state(first), bench.pool.unwanted_count()), (&State::Ready, 0));
}

#[test]
fn a_node_without_room_answers_those_who_wait_in_vain() {
    let mut bench = Bench::new(0, 1, |_| ());
    bench.submit().unwrap();
    assert!(bench.look().start.is_some());
    let room_in_ns = Some(SECOND);
    let (in_vain, news) =
        bench.pool.start_refused(1, Lack::Memory, bench.version, room_in_ns, bench.now_ns);
    assert!(in_vain.is_empty() && news, "there may be room before its deadline");
    assert!(bench.look().start.is_none(), "not again at once");
    bench.version += 1;
    assert!(bench.look().start.is_some(), "something came back");
    let (in_vain, news) =
        bench.pool.start_refused(1, Lack::Memory, bench.version, None, bench.now_ns);
    assert!(in_vain.len() == 1 && !news);
    assert_eq!(bench.pool.starting_count(), 0);
}

#[test]
fn a_withdrawn_invocation_is_found_wherever_it_is() {
    let mut bench = Bench::new(0, 1, |_| ());
    let key = bench.started();
    let runs = bench.submit().unwrap().serial;
    let waits = bench.submit().unwrap().serial;
    let withdrawn = bench.pool.withdraw(waits, bench.now_ns);
    assert!(matches!(withdrawn, Withdrawn::Waiting(job) if job.name == 2));
    assert!(matches!(bench.pool.withdraw(waits, bench.now_ns), Withdrawn::Unknown));
    let withdrawn = bench.pool.withdraw(runs, bench.now_ns);
    assert!(matches!(withdrawn, Withdrawn::Running { worker, slot: 0 } if worker == key));
}

#[test]
fn a_new_revision_inherits_what_was_learnt() {
    let mut before = Bench::new(0, 1, |_| ());
    let key = before.started();
    before.submit().unwrap();
    before.end(key, 0);
    before.look();
    let known = before.pool.known();
    assert_eq!(known.service.mean_ns(), Some(MS));
    let mut after = Bench::new(0, 1, |_| ());
    assert_eq!(after.pool.known().service.mean_ns(), None);
    after.pool.inherit(&before.pool);
    assert_eq!(after.pool.known().service.mean_ns(), Some(MS));
}

/// For any events in any order: each invocation is exactly once answered, given back, expired or
/// still in the pool, and every instance that counts as starting is really starting.
#[test]
fn nothing_is_lost_in_any_order() {
    for seed in 0..300_u64 {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut next = move |below: u64| random.random_range(..below);
        let mut bench = Bench::new((seed % 2) as u32, 3, |rules| {
            rules.queue_max = 5;
            rules.spares = (seed % 3 == 0).into();
            rules.pause_after_ns = (seed % 5 == 0).then_some(50 * MS);
        });
        let mut fate: HashMap<u32, &str> = HashMap::new();
        let mut note = |job: Job, what: &'static str| {
            let before = fate.insert(job.name, what);
            assert_eq!(before, None, "seed {seed}: {} was {before:?}, is {what}", job.name);
        };
        let mut starting = 0_u32;
        let mut spares = 0_u32;
        let mut taken = Vec::new();
        for step in 0..400 {
            bench.now_ns += next(30) * MS;
            let keys: Vec<usize> = bench.pool.workers().map(|(key, _)| key).collect();
            let key = (!keys.is_empty()).then(|| keys[next(keys.len() as u64) as usize]);
            match (next(13), key) {
                (0..4, _) => {
                    let job = bench.job();
                    match bench.pool.submit(job, next(9) == 0, bench.now_ns) {
                        Ok(submitted) => taken.push(submitted.serial),
                        Err((job, _)) => note(job, "refused"),
                    }
                    bench.dispatch();
                }
                (4..6, Some(key)) => {
                    let now_ns = bench.now_ns;
                    let worker = bench.pool.worker_mut(key).unwrap();
                    let slot = worker.calls().iter().next().map(|(slot, _)| slot);
                    if let Some(slot) = slot {
                        note(worker.end(slot, now_ns).unwrap().into_inner(), "answered");
                    }
                    bench.dispatch();
                }
                (6, _) if starting > 0 => {
                    starting -= 1;
                    bench.ready(Fake::default(), false);
                }
                (6, _) if spares > 0 => {
                    spares -= 1;
                    bench.ready(Fake { cannot_pause: next(4) == 0, ..Fake::default() }, true);
                }
                (7, _) if starting > 0 => {
                    starting -= 1;
                    let (waiting, _) = bench.pool.start_failed(false, "no", bench.now_ns);
                    waiting.into_iter().for_each(|job| note(job, "failed"));
                }
                (8, Some(key)) => {
                    let ended = bench.pool.ended(key, "gone", bench.now_ns).unwrap();
                    for call in ended.calls {
                        let serial = call.serial();
                        match (bench.pool.is_closed(), next(2)) {
                            (false, 0) => bench.pool.requeue(serial, call.into_inner()),
                            _ => note(call.into_inner(), "failed"),
                        }
                    }
                    bench.dispatch();
                }
                (9, Some(key)) => {
                    let back = bench.pool.take_back(key, 0, bench.now_ns, Some);
                    back.into_iter().for_each(|job| note(job, "moved"));
                    bench.dispatch();
                }
                (10, _) if !taken.is_empty() => {
                    let serial = taken.swap_remove(next(taken.len() as u64) as usize);
                    if let Withdrawn::Waiting(job) = bench.pool.withdraw(serial, bench.now_ns) {
                        note(job, "withdrawn");
                    }
                }
                (11, _) if step > 350 => {
                    let waiting = bench.pool.close(StopReason::Removed, bench.now_ns);
                    waiting.into_iter().for_each(|job| note(job, "moved"));
                }
                _ => {
                    let expired = bench.pool.expire(bench.now_ns);
                    expired.waiting.into_iter().for_each(|(job, _)| note(job, "expired"));
                    let orders = bench.look();
                    starting += orders.start.map_or(0, |start| start.count);
                    spares += u32::from(orders.start_spare);
                }
            }
            assert_eq!(bench.pool.starting_count(), starting, "seed {seed}");
            assert!(bench.pool.ready_count() + starting <= 3 + spares, "seed {seed}: too many");
        }
        for job in bench.pool.close(StopReason::Removed, bench.now_ns) {
            note(job, "moved");
        }
        let keys: Vec<usize> = bench.pool.workers().map(|(key, _)| key).collect();
        for key in keys {
            let ended = bench.pool.ended(key, "gone", bench.now_ns).unwrap();
            ended.calls.into_iter().for_each(|call| note(call.into_inner(), "failed"));
        }
        assert_eq!(fate.len() as u32, bench.jobs, "seed {seed}: some are lost");
    }
}

#[test]
fn an_instance_on_the_thread_of_the_caller_is_preferred_while_it_is_not_much_busier() {
    // Each row: the invocations of two instances on two threads, the run time of an invocation, and
    // the instance that takes the next invocation of a caller on the second thread.
    for (first, second, run_ns, expected) in [
        (0, 0, 1_000, 0),   // calls stay on as few instances as can serve them
        (0, 1, 1_000, 1),   // the second is in use and soon free
        (0, 1, 10 * MS, 0), // the second is not soon free
        (1, 0, 1_000, 1),
        (1, 1, 1_000, 1),
        (1, 5, 1_000, 1),   // the wait is 4 us longer
        (1, 5, 50_000, 0),  // the wait is 200 us longer
        (1, 3, 50_000, 1),  // the wait is 100 us longer
        (2, 2, 10 * MS, 1), // the wait is not longer
        (1, 2, 10 * MS, 0),
        (1, 2, 0, 0),     // no run time is known
        (1, 8, 1_000, 0), // the second is full
    ] {
        let mut bench = Bench::new(0, 2, |_| {});
        let mut keys = [0; 2];
        for (thread, key) in keys.iter_mut().enumerate() {
            bench.pool.count_start(bench.now_ns);
            let new = NewInstance {
                number: thread as u64,
                instance: Fake { thread: Some(thread), ..Fake::default() },
                concurrency: 8,
                spare: false,
                since_ns: bench.now_ns,
                start_cpu_ns: None,
            };
            *key = bench.pool.add_ready(new, bench.now_ns);
        }
        for (key, calls) in keys.into_iter().zip([first, second]) {
            let now_ns = bench.now_ns;
            let job = bench.job();
            let worker = bench.pool.worker_mut(key).unwrap();
            if run_ns > 0 {
                worker.record_run(run_ns);
            }
            for call in 0..calls {
                worker.begin(1_000 + call, now_ns, job);
            }
        }
        let job = Job { thread: Some(1), ..bench.job() };
        bench.offer(job).unwrap();
        let took = keys.iter().position(|key| *key == bench.began[0].1);
        assert_eq!(took, Some(expected), "{first} and {second} of {run_ns} ns");
    }
}
