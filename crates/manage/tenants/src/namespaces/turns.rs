//! Turns for work that the node does one piece at a time, such as the build of a Go function.
//!
//! Namespaces with waiting work take turns. The work of each namespace runs in the order in which
//! it arrived. Therefore a namespace waits only for the piece that is running and for one piece of
//! each other namespace, however much work the others have.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mote_spec::FunctionName;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The queue of work that a node does one piece at a time. A clone is another handle to the same
/// queue.
#[derive(Debug, Clone, Default)]
pub struct Turns(Arc<Mutex<Queue>>);

/// The right to work, held until drop.
#[derive(Debug)]
pub struct Turn {
    of: Turns,
}

/// The namespace of a function; `None` is the default one.
type Namespace = Option<Arc<str>>;

#[derive(Debug, Default)]
struct Queue {
    /// The namespace whose work is running.
    running: Option<Namespace>,
    /// Namespaces with waiting work. The first one is next.
    order: VecDeque<Namespace>,
    /// The waiting work of each namespace. No list is empty.
    waiting: HashMap<Namespace, VecDeque<oneshot::Sender<Turn>>>,
}

impl Turns {
    /// Waits for the turn of a function. `each` is the longest time that one piece of work takes.
    /// The wait may last `each` for the function's own namespace, and `each` for every other
    /// namespace that was there first. If the turn does not come within this time, returns the time
    /// as an error.
    pub async fn wait(&self, function: &FunctionName, each: Duration) -> Result<Turn, Duration> {
        let (turn, others) = match self.enter(function.namespace().map(Into::into)) {
            Ok(turn) => return Ok(turn),
            Err(waiting) => waiting,
        };
        let patience = each * (1 + u32::try_from(others).unwrap_or(u32::MAX - 1));
        match timeout(patience, turn).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(patience),
        }
    }

    /// Returns the turn if nothing is running. Otherwise returns the receiver of the turn, and how
    /// many other namespaces have running or waiting work.
    fn enter(&self, own: Namespace) -> Result<Turn, (oneshot::Receiver<Turn>, usize)> {
        let mut queue = self.0.lock();
        let Some(running) = &queue.running else {
            queue.running = Some(own);
            return Ok(Turn { of: self.clone() });
        };
        let is_other = |namespace: &&Namespace| **namespace != own;
        let others = queue.order.iter().filter(is_other).count()
            + usize::from(*running != own && !queue.order.contains(running));
        let (sender, receiver) = oneshot::channel();
        if !queue.waiting.contains_key(&own) {
            queue.order.push_back(own.clone());
        }
        queue.waiting.entry(own).or_default().push_back(sender);
        Err((receiver, others))
    }
}

impl Queue {
    /// Ends the running work, and returns the sender of the next turn. If several namespaces have
    /// waiting work, the one that has just worked is not next.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let last = self.running.take()?;
        if self.order.front() == Some(&last) {
            self.order.rotate_left(1);
        }
        let namespace = self.order.pop_front()?;
        let waiting = self.waiting.get_mut(&namespace)?;
        let sender = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&namespace);
        } else {
            self.order.push_back(namespace.clone());
        }
        self.running = Some(namespace);
        sender
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = self.of.0.lock().next();
        if let Some(next) = next {
            // If the receiver no longer waits, the turn is dropped here, which passes the turn on.
            drop(next.send(Turn { of: self.of.clone() }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    const EACH: Duration = Duration::from_secs(600);

    fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn run<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(test)
    }

    /// Lets these functions wait for their turns in this order, and returns the order in which they
    /// received them.
    fn order(names: &[&'static str]) -> Vec<&'static str> {
        run(async {
            let turns = Turns::default();
            let functions: Vec<_> =
                names.iter().map(|name| FunctionName::new(name).expect("a name")).collect();
            let mut waiting: Vec<_> = functions
                .iter()
                .zip(names)
                .map(|(function, name)| (*name, Box::pin(turns.wait(function, EACH))))
                .collect();
            let mut had = Vec::new();
            let mut turn = None;
            for (_, wait) in &mut waiting {
                match poll(wait.as_mut()) {
                    Poll::Ready(first) if turn.is_none() => turn = Some(first.expect("a turn")),
                    Poll::Ready(_) => panic!("two turns at once"),
                    Poll::Pending => {}
                }
            }
            had.push(waiting.remove(0).0);
            while let Some(ended) = turn.take() {
                drop(ended);
                let mut ready = None;
                for (at, (_, wait)) in waiting.iter_mut().enumerate() {
                    if let Poll::Ready(next) = poll(wait.as_mut()) {
                        assert!(ready.replace(at).is_none(), "two turns at once");
                        turn = Some(next.expect("a turn"));
                    }
                }
                if let Some(at) = ready {
                    had.push(waiting.remove(at).0);
                }
            }
            assert!(waiting.is_empty(), "nobody is left");
            had
        })
    }

    #[test]
    fn without_namespaces_the_order_of_arrival_counts() {
        assert_eq!(order(&["a", "b", "c", "d"]), ["a", "b", "c", "d"]);
    }

    #[test]
    fn namespaces_take_turns() {
        assert_eq!(order(&["a", "b", "c", "x.plant"]), ["a", "x.plant", "b", "c"]);
        assert_eq!(
            order(&["a", "b", "c", "x.plant", "y.plant", "x.house"]),
            ["a", "x.plant", "x.house", "b", "y.plant", "c"]
        );
        assert_eq!(order(&["x.plant", "y.plant", "a"]), ["x.plant", "a", "y.plant"]);
    }

    #[test]
    fn who_left_is_passed_over() {
        run(async {
            let turns = Turns::default();
            let name = |text: &str| FunctionName::new(text).expect("a name");
            let [a, b, c, plant] = ["a", "b", "c", "x.plant"].map(name);
            let first = turns.wait(&a, EACH).await.expect("free");
            let mut gone = Box::pin(turns.wait(&plant, EACH));
            let mut second = pin!(turns.wait(&b, EACH));
            assert!(poll(gone.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
            drop(gone);
            drop(first);
            drop(second.await.expect("passed on"));
            assert!(turns.0.lock().waiting.is_empty() && turns.0.lock().running.is_none());
            drop(turns.wait(&c, EACH).await.expect("free"));
        });
    }

    #[test]
    fn each_namespace_that_was_there_first_adds_to_the_patience() {
        run(async {
            let turns = Turns::default();
            let name = |text: &str| FunctionName::new(text).expect("a name");
            let [a, b, plant, house] = ["a", "b", "x.plant", "x.house"].map(name);
            let _first = turns.wait(&a, EACH).await.expect("free");
            let short = Duration::from_millis(1);
            assert_eq!(turns.wait(&b, short).await.expect_err("late"), short);
            let mut waiting = Box::pin(turns.wait(&plant, EACH));
            assert!(poll(waiting.as_mut()).is_pending());
            assert_eq!(turns.wait(&plant, short).await.expect_err("late"), 2 * short);
            assert_eq!(turns.wait(&house, short).await.expect_err("late"), 3 * short);
        });
    }
}
