use std::collections::{HashMap, HashSet};

use mote_core::accept::{AcceptFuture, Deferred};
use mote_core::invocation::InvocationId;
use mote_spec::{Missed, Overlap, When};
use tokio::sync::{mpsc, oneshot};

use super::*;

/// A journal that stores its runs by key. A run lasts until the test ends it.
struct Recorder {
    seen: mpsc::UnboundedSender<Deferred>,
    keys: Mutex<HashSet<(String, Option<String>)>>,
    ends: Mutex<HashMap<InvocationId, oneshot::Receiver<()>>>,
    enders: Mutex<Vec<oneshot::Sender<()>>>,
}

impl Accept for Recorder {
    fn accept(&self, deferred: Deferred) -> AcceptFuture {
        let is_new = self.keys.lock().insert((deferred.function.clone(), deferred.key.clone()));
        let mut enders = self.enders.lock();
        let id = InvocationId(enders.len() as u128);
        let (end, ended) = oneshot::channel();
        self.ends.lock().insert(id, ended);
        enders.push(end);
        if is_new {
            let _ = self.seen.send(deferred);
        }
        Box::pin(async move { Ok(Accepted { id, is_new }) })
    }

    fn ended(&self, id: InvocationId) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let ended = self.ends.lock().remove(&id);
        Box::pin(async move {
            if let Some(ended) = ended {
                let _ = ended.await;
            }
        })
    }
}

#[derive(Default)]
struct Kept(Mutex<Vec<UnixMs>>);

impl Marks for Kept {
    fn keep(&self, mark: UnixMs) {
        self.0.lock().push(mark);
    }
}

fn schedules(
    mark: Option<UnixMs>,
) -> (Schedules, Arc<Recorder>, Arc<Kept>, mpsc::UnboundedReceiver<Deferred>) {
    let (seen, seen_by_test) = mpsc::unbounded_channel();
    let recorder = Arc::new(Recorder {
        seen,
        keys: Mutex::default(),
        ends: Mutex::default(),
        enders: Mutex::default(),
    });
    let kept = Arc::new(Kept::default());
    let all = Schedules::new(recorder.clone(), kept.clone(), mark, Handle::current());
    (all, recorder, kept, seen_by_test)
}

fn every(ms: u64, missed: Missed) -> Arc<Schedule> {
    let mut schedule = Schedule::new(When::Every { ms });
    schedule.missed = missed;
    Arc::new(schedule)
}

#[tokio::test]
async fn runs_come_at_their_times_and_end_with_the_function() {
    let (all, recorder, _, mut seen) = schedules(None);
    let begin = now();
    all.publish("f", &[every(1_000, Missed::Skip)], 1).unwrap();
    let first = seen.recv().await.unwrap();
    assert!(now() >= (begin / 1_000 + 1) * 1_000, "not before its time");
    assert_eq!(first.function, "f");
    // The run has not ended, so the next time is left out.
    while all.list(Some("f"))[0].left_out == 0 {
        tokio::task::yield_now().await;
    }
    assert!(seen.try_recv().is_err());
    recorder.enders.lock().drain(..).for_each(drop);
    let second = seen.recv().await.unwrap();
    assert_ne!(first.key, second.key);
    all.remove("f");
    assert!(all.list(None).is_empty());
}

#[tokio::test]
async fn what_was_missed_is_made_up_for_at_the_start() {
    let mark = now() - 10 * 3_600_000;
    for (missed, expected) in [(Missed::RunOnce, 1), (Missed::RunAll, 10), (Missed::Skip, 0)] {
        let (all, _, kept, mut seen) = schedules(Some(mark));
        all.bring_back("f", &[every(3_600_000, missed)], 1).unwrap();
        // When the second function appears, everything before it has been handed over.
        all.bring_back("last", &[every(3_600_000, Missed::RunOnce)], 1).unwrap();
        let mut count = 0;
        while seen.recv().await.unwrap().function != "last" {
            count += 1;
        }
        while let Ok(more) = seen.try_recv() {
            count += usize::from(more.function == "f");
        }
        assert_eq!(count, expected, "{missed:?}");
        all.stop().await;
        assert!(kept.0.lock().last().is_some_and(|kept| *kept > mark));
    }
}

#[tokio::test]
async fn the_first_time_after_a_start_runs() {
    for mark in [None, Some(now() - 10 * 3_600_000)] {
        let (all, _, _, mut seen) = schedules(mark);
        // The schedule has no time in the last minute, and its next time is one second away.
        let period = now() + 1_000;
        all.bring_back("f", &[every(period as u64, Missed::Skip)], 1).unwrap();
        let next = all.list(Some("f"))[0].next;
        assert_eq!(next, Some(period));
        let run = seen.recv().await.unwrap();
        assert!(run.key.unwrap().ends_with(&format!("/{period}")));
        all.stop().await;
    }
}

#[tokio::test]
async fn a_stop_waits_until_the_journal_has_what_was_due() {
    for _ in 0..20 {
        let (all, recorder, kept, _seen) = schedules(None);
        let mut schedule = Schedule::new(When::Every { ms: 50 });
        schedule.overlap = Overlap::Allow;
        all.publish("f", &[Arc::new(schedule)], 1).unwrap();
        let first = all.list(Some("f"))[0].next.unwrap();
        while now() <= first {
            tokio::task::yield_now().await;
        }
        all.stop().await;
        let mark = kept.0.lock().last().copied().unwrap();
        let has = |due: &UnixMs| {
            let key = format!("/{due}");
            recorder
                .keys
                .lock()
                .iter()
                .any(|(_, taken)| taken.as_deref().is_some_and(|it| it.ends_with(&key)))
        };
        let lost: Vec<UnixMs> = (first..=mark).step_by(50).filter(|due| !has(due)).collect();
        assert!(lost.is_empty(), "{lost:?} are handled, and the journal does not have them");
    }
}

#[tokio::test]
async fn a_node_without_schedules_has_no_task() {
    let (all, ..) = schedules(None);
    all.publish("f", &[], 1).unwrap();
    all.remove("f");
    assert!(*all.0.life.lock() == Life::Idle);
    all.stop().await;
}

#[tokio::test]
async fn thousands_at_one_time_are_all_handed_over() {
    let (all, _, _, mut seen) = schedules(None);
    for number in 0..2_000 {
        all.publish(&format!("f{number}"), &[every(2_000, Missed::Skip)], 1).unwrap();
    }
    let mut functions = HashSet::new();
    while functions.len() < 2_000 {
        functions.insert(seen.recv().await.unwrap().function);
    }
    all.stop().await;
}
