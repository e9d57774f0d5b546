//! The state of the log, for the other parts of the node.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use mote_store::StoreError;
use parking_lot::Mutex;

/// How many messages and bytes the log may leave unconfirmed before the runner starts no further
/// accepted invocations.
const BEHIND_MESSAGES: usize = 4_096;
const BEHIND_BYTES: usize = 16 << 20;

/// The state of the log, shared by the thread that writes to it and the rest of the node.
pub struct ReplicaState {
    /// The log has not answered for some seconds.
    pub(super) away: AtomicBool,
    /// Why the log is away, as text.
    pub(super) reason: Mutex<String>,
    /// The owner of the log, if that is another node.
    pub(super) taken: OnceLock<String>,
    /// Number and bytes of the messages that the log has not confirmed.
    pub(super) messages: AtomicUsize,
    pub(super) bytes: AtomicUsize,
    /// Called when the log can be reached again, and when it has caught up.
    pub(super) changed: Box<dyn Fn() + Send + Sync>,
}

impl ReplicaState {
    pub(crate) fn new(changed: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            away: AtomicBool::new(false),
            reason: Mutex::default(),
            taken: OnceLock::new(),
            messages: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            changed: Box::new(changed),
        }
    }

    /// Why nothing new is accepted; `None` if the log is in order.
    pub(crate) fn refusal(&self) -> Option<StoreError> {
        if let Some(taken) = self.taken.get() {
            return Some(StoreError::TakenOver(taken.clone()));
        }
        self.is_away().then(|| StoreError::Away(self.reason.lock().clone()))
    }

    /// Whether accepted invocations may start. They may not while the log is unreachable, because
    /// another node may have taken over the log. Running invocations continue.
    pub(crate) fn may_run(&self) -> bool {
        !self.is_away() && !self.is_taken() && !self.is_behind()
    }

    pub(super) fn is_away(&self) -> bool {
        self.away.load(Ordering::Acquire)
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.taken.get().is_some()
    }

    /// Number of messages that the log has not confirmed.
    pub(crate) fn unconfirmed(&self) -> usize {
        self.messages.load(Ordering::Acquire)
    }

    pub(super) fn is_behind(&self) -> bool {
        self.messages.load(Ordering::Acquire) > BEHIND_MESSAGES
            || self.bytes.load(Ordering::Acquire) > BEHIND_BYTES
    }

    pub(super) fn set_away(&self, reason: &str) {
        *self.reason.lock() = reason.to_owned();
        self.away.store(true, Ordering::Release);
    }

    pub(super) fn set_here(&self) -> bool {
        self.away.swap(false, Ordering::AcqRel)
    }

    pub(super) fn add(&self, messages: usize, bytes: usize) {
        self.messages.fetch_add(messages, Ordering::AcqRel);
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    pub(super) fn confirmed(&self, messages: usize, bytes: usize) {
        let was_behind = self.is_behind();
        self.messages.fetch_sub(messages, Ordering::AcqRel);
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        if was_behind && !self.is_behind() {
            (self.changed)();
        }
    }
}
