//! Tasks and work behind pointers.
//!
//! For each type of future that is spawned, and for each function that runs on a thread that may
//! block, tokio puts about 4 KB of code and tables into a program. What is handed over by these
//! functions has few types, so that a program contains that code once
//! (`docs/decisions/0091-one-program.md`). A future that runs for each request of the data path is
//! spawned as it is. This crate must not know what a task does.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::task::JoinError;

/// A future behind a pointer.
pub type Task<T = ()> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Puts a future behind a pointer.
pub fn boxed<T>(future: impl Future<Output = T> + Send + 'static) -> Task<T> {
    Box::pin(future)
}

/// Puts a future behind a pointer whose type does not depend on the result, which is kept aside.
pub fn whole<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> (Task, Kept<T>) {
    let kept = Kept::default();
    let place = kept.clone();
    (boxed(async move { place.put(future.await) }), kept)
}

/// Runs `work` on a thread that may block; it runs also if nobody awaits the result.
pub fn blocking<T: Send + 'static, W: FnOnce() -> T + Send + 'static>(
    work: W,
) -> impl Future<Output = Result<T, JoinError>> + Send {
    blocking_on(&Handle::current(), work)
}

/// The same on a thread of another runtime.
pub fn blocking_on<T: Send + 'static, W: FnOnce() -> T + Send + 'static>(
    runtime: &Handle,
    work: W,
) -> impl Future<Output = Result<T, JoinError>> + Send + use<T, W> {
    let kept = Kept::default();
    let place = kept.clone();
    let work: Box<dyn FnOnce() + Send> = Box::new(move || place.put(work()));
    let task = runtime.spawn_blocking(work);
    async move {
        task.await?;
        Ok(kept.take())
    }
}

/// The place of a result.
#[derive(Debug)]
pub struct Kept<T>(Arc<Mutex<Option<T>>>);

impl<T> Kept<T> {
    fn put(&self, result: T) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    }

    /// Takes the result of a task that has ended.
    ///
    /// # Panics
    ///
    /// If the task has not ended, or has panicked.
    pub fn take(self) -> T {
        let result = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        result.expect("a task that has not panicked has left its result")
    }
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn results_and_panics_reach_whoever_waits() {
        assert_eq!(blocking(|| 1 + 1).await.expect("no panic"), 2);
        assert!(blocking(|| -> u8 { panic!("as expected") }).await.is_err_and(|e| e.is_panic()));
        let (task, result) = whole(async { "done" });
        tokio::spawn(task).await.expect("no panic");
        assert_eq!(result.take(), "done");
        assert_eq!(tokio::spawn(boxed(async { 3 })).await.expect("no panic"), 3);
    }

    #[tokio::test]
    async fn work_runs_although_nobody_waits() {
        let (sender, receiver) = std::sync::mpsc::channel();
        drop(blocking(move || sender.send(7)));
        assert_eq!(receiver.recv(), Ok(7));
    }
}
