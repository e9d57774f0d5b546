//! The order in which a change reaches nodes: first one node alone, then the others in waves. A wave
//! begins only if the change has succeeded on every earlier node.

use std::future::Future;

use tokio::task::JoinSet;

/// The number of nodes in a wave, unless the user sets it.
pub const PARALLEL_DEFAULT: usize = 4;

/// The outcome of a change on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T, E> {
    /// The change was made.
    Done(T),
    /// The change was not made or not completed, or its result is unknown.
    Failed(E),
    /// The command was interrupted while the node worked on the change.
    Interrupted,
    /// The change was not begun, because another node failed or the command was interrupted.
    NotBegun,
}

impl<T, E> Outcome<T, E> {
    /// The result of the change, if it was made.
    pub fn done(&self) -> Option<&T> {
        match self {
            Self::Done(value) => Some(value),
            _ => None,
        }
    }
}

/// Makes a change on `count` nodes, which are identified by numbers here. `change` makes the change on
/// one node. `report` is called with each result as soon as it is known. If a node fails, the other
/// nodes of its wave are not interrupted; their changes have succeeded or failed when this function
/// returns. When `interrupt` resolves, this function returns without waiting any longer.
pub async fn run<T, E, F>(
    count: usize,
    parallel: usize,
    change: impl Fn(usize) -> F,
    mut report: impl FnMut(usize, &Result<T, E>),
    interrupt: impl Future<Output = ()>,
) -> Vec<Outcome<T, E>>
where
    T: Send + 'static,
    E: Send + 'static,
    F: Future<Output = Result<T, E>> + Send + 'static,
{
    let mut outcomes: Vec<Outcome<T, E>> = (0..count).map(|_| Outcome::NotBegun).collect();
    let mut interrupt = std::pin::pin!(interrupt);
    for wave in waves(count, parallel) {
        let mut running = JoinSet::new();
        for at in wave {
            let future = change(at);
            running.spawn(async move { (at, future.await) });
            outcomes[at] = Outcome::Interrupted;
        }
        let mut has_failed = false;
        loop {
            let ended = tokio::select! {
                ended = running.join_next() => ended,
                () = &mut interrupt => return outcomes,
            };
            // If the task panicked, the outcome stays `Interrupted`, which is a true statement about
            // the node.
            let Some(ended) = ended else { break };
            let Ok((at, result)) = ended else {
                has_failed = true;
                continue;
            };
            report(at, &result);
            outcomes[at] = match result {
                Ok(value) => Outcome::Done(value),
                Err(error) => {
                    has_failed = true;
                    Outcome::Failed(error)
                }
            };
        }
        if has_failed {
            break;
        }
    }
    outcomes
}

/// Returns the nodes of each wave: the first node alone, then `parallel` nodes at a time.
fn waves(count: usize, parallel: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let parallel = parallel.max(1);
    let first = (count > 0).then_some(0..1);
    let rest = (1..count).step_by(parallel).map(move |at| at..count.min(at + parallel));
    first.into_iter().chain(rest)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn the_first_node_is_a_wave_of_its_own() {
        let of = |count, parallel| waves(count, parallel).collect::<Vec<_>>();
        assert!(of(0, 4).is_empty());
        assert_eq!(of(2, 4), [0..1, 1..2]);
        assert_eq!(of(6, 4), [0..1, 1..5, 5..6]);
        assert_eq!(of(3, 0), [0..1, 1..2, 2..3]);
    }

    /// Runs a change on 6 nodes in waves of 2, in which one node fails. In the result, `d` stands for
    /// done, `f` for failed, and `-` for not begun.
    async fn outcome(failing: usize) -> String {
        let change = move |at: usize| async move { if at == failing { Err(()) } else { Ok(()) } };
        let outcomes = run(6, 2, change, |_, _| {}, std::future::pending()).await;
        outcomes
            .iter()
            .map(|outcome| match outcome {
                Outcome::Done(()) => 'd',
                Outcome::Failed(()) => 'f',
                Outcome::Interrupted => 'i',
                Outcome::NotBegun => '-',
            })
            .collect()
    }

    #[tokio::test]
    async fn nothing_begins_after_a_failure_and_a_wave_ends_as_a_whole() {
        assert_eq!(outcome(0).await, "f-----");
        assert_eq!(outcome(1).await, "dfd---");
        assert_eq!(outcome(3).await, "dddfd-");
        assert_eq!(outcome(9).await, "dddddd");
    }

    #[tokio::test]
    async fn a_wave_runs_at_the_same_time_and_no_wider() {
        // Each node of a wave waits for the other nodes of the wave, so a narrower wave would never
        // end.
        let barrier = Arc::new(tokio::sync::Barrier::new(3));
        let now = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let change = |at: usize| {
            let barrier = barrier.clone();
            let now = now.clone();
            let most = most.clone();
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                if at > 0 {
                    barrier.wait().await;
                }
                now.fetch_sub(1, Ordering::SeqCst);
                Ok::<(), ()>(())
            }
        };
        let outcomes = run(7, 3, change, |_, _| {}, std::future::pending()).await;
        assert!(outcomes.iter().all(|outcome| outcome.done().is_some()));
        assert_eq!(most.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn an_interrupt_tells_which_nodes_were_at_work() {
        let change = |at: usize| async move {
            match at {
                2 => std::future::pending().await,
                _ => Ok::<(), ()>(()),
            }
        };
        let (ended, both) = tokio::sync::oneshot::channel::<()>();
        let mut ended = Some(ended);
        let report = |at: usize, _: &Result<(), ()>| {
            if at == 1 {
                drop(ended.take());
            }
        };
        let interrupt = async move {
            let _ = both.await;
        };
        let outcomes = run(4, 2, change, report, interrupt).await;
        let done = Outcome::Done(());
        let interrupted = Outcome::Interrupted;
        assert_eq!(outcomes, [done.clone(), done, interrupted, Outcome::NotBegun]);
    }
}
