//! Running invocations, polled by the front's own task. Each invocation has a place that is reused,
//! so an exchange needs neither its own task nor an allocation, and one turn handles all answers
//! that are ready at the same time.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// The number of places that are kept when all are empty. Further places that a burst needed are
/// freed.
const KEEP: usize = 256;

/// The future of an invocation panicked.
#[derive(Debug)]
pub(crate) struct Panicked;

/// Futures, identified by small numbers.
pub(crate) struct Runs<F> {
    places: Vec<Place<F>>,
    occupied: usize,
    woken: Arc<Woken>,
    /// The numbers polled in one turn. Kept to reuse its memory.
    turn: Vec<u32>,
}

struct Place<F> {
    future: Pin<Box<Option<F>>>,
    waker: Waker,
    bell: Arc<Bell>,
}

/// The places to poll, and the waker of the task that polls them.
#[derive(Default)]
struct Woken {
    // Held for only a few instructions, because an answer may come from any thread.
    state: Mutex<WokenState>,
}

#[derive(Default)]
struct WokenState {
    numbers: Vec<u32>,
    task: Option<Waker>,
}

/// Wakes one place. A waker left over from an earlier future of the same place causes one needless
/// poll, and nothing else.
struct Bell {
    number: u32,
    rung: AtomicBool,
    woken: Arc<Woken>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.rung.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut state = self.woken.state.lock();
        state.numbers.push(self.number);
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl<F: Future> Runs<F> {
    pub(crate) fn new() -> Self {
        Self { places: Vec::new(), occupied: 0, woken: Arc::default(), turn: Vec::new() }
    }

    /// Puts a future into an empty place and polls it once, so that it begins immediately.
    pub(crate) fn begin(&mut self, number: usize, future: F) -> Poll<Result<F::Output, Panicked>> {
        while self.places.len() <= number {
            let number = self.places.len() as u32;
            let woken = self.woken.clone();
            let bell = Arc::new(Bell { number, rung: AtomicBool::new(false), woken });
            self.places.push(Place { future: Box::pin(None), waker: bell.clone().into(), bell });
        }
        debug_assert!(self.places[number].future.is_none());
        self.occupied += 1;
        self.places[number].future.set(Some(future));
        self.poll_place(number)
    }

    /// Polls each woken future once, and passes the results of those that ended to `end`.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut end: impl FnMut(usize, Result<F::Output, Panicked>),
    ) {
        let mut turn = std::mem::take(&mut self.turn);
        {
            let mut state = self.woken.state.lock();
            std::mem::swap(&mut turn, &mut state.numbers);
            if !state.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
                state.task = Some(cx.waker().clone());
            }
        }
        for number in turn.drain(..) {
            let number = number as usize;
            // The flag is cleared before the poll, so that a wake-up during the poll counts.
            let Some(place) = self.places.get(number) else { continue };
            place.bell.rung.store(false, Ordering::Release);
            if place.future.is_some()
                && let Poll::Ready(result) = self.poll_place(number)
            {
                end(number, result);
            }
        }
        self.turn = turn;
        if self.occupied == 0 && self.places.len() > KEEP {
            self.places.truncate(KEEP);
            self.places.shrink_to_fit();
        }
    }

    fn poll_place(&mut self, number: usize) -> Poll<Result<F::Output, Panicked>> {
        let place = &mut self.places[number];
        let mut cx = Context::from_waker(&place.waker);
        let Some(future) = place.future.as_mut().as_pin_mut() else { return Poll::Pending };
        // After a panic, the future is not polled again. It is dropped in its place.
        let result = match catch_unwind(AssertUnwindSafe(|| future.poll(&mut cx))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(_) => Err(Panicked),
        };
        place.future.set(None);
        self.occupied -= 1;
        Poll::Ready(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[derive(Default)]
    struct Count(std::sync::atomic::AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_ends_together_is_seen_in_one_turn() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        let mut runs = Runs::new();
        let mut ended = Vec::new();
        runs.poll(&mut cx, |_, _: Result<Result<u32, _>, _>| {});
        for round in 0..3 {
            let mut senders = Vec::new();
            for number in 0..1_000 {
                let (sender, receiver) = oneshot::channel::<u32>();
                senders.push(sender);
                assert!(runs.begin(number, receiver).is_pending());
            }
            for (number, sender) in senders.into_iter().enumerate() {
                sender.send(number as u32 + round).unwrap();
            }
            assert_eq!(count.0.load(Ordering::Relaxed), round + 1, "woken once a turn");
            // Outside a runtime, no cooperative budget can cut the turn short.
            runs.poll(&mut cx, |number, result| ended.push((number, result.unwrap().unwrap())));
            let expected = (0..1_000).map(|number| (number, number as u32 + round));
            assert!(ended.drain(..).eq(expected));
            assert!(runs.places.len() <= KEEP);
        }
    }

    #[test]
    fn a_panic_ends_only_its_own() {
        let mut cx = Context::from_waker(Waker::noop());
        let mut runs = Runs::new();
        let run = |panics: bool, answer: oneshot::Receiver<()>| async move {
            let _ = answer.await;
            assert!(!panics, "as planned");
        };
        let (first, one) = oneshot::channel();
        let (second, two) = oneshot::channel();
        assert!(runs.begin(0, run(true, one)).is_pending());
        assert!(runs.begin(1, run(false, two)).is_pending());
        first.send(()).unwrap();
        second.send(()).unwrap();
        let mut ended = Vec::new();
        runs.poll(&mut cx, |number, result| ended.push((number, result.is_ok())));
        assert_eq!(ended, [(0, false), (1, true)]);
    }
}
