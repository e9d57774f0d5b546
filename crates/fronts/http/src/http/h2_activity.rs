//! What happens on a connection of HTTP/2: its open streams, and answers that wait for its client.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::{Buf, Bytes};
use mote_core::body::Body;
use mote_core::seats::Seat;
use mote_core::shares::Share;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::front::Unsent;
use super::h2_body::Unread;
use super::logged::Logged;
use crate::added::Added;
use crate::ids::now_ns;

/// Bytes of answers that wait for one client to take them: as much as all its streams hold if each
/// waits with a short answer. A further answer becomes a 503.
const UNSENT_BYTES_MAX: usize = 8 << 20;
/// The same for all HTTP/2 clients together. Beyond half of it, a client that takes nothing between
/// two checks is disconnected; otherwise it has the front's `write_timeout`.
pub(super) const UNSENT_BYTES_TOTAL_MAX: usize = 64 << 20;

/// The activity of a connection: its open streams, and the answers that its client has not taken.
pub(super) struct Activity {
    /// The number of open streams, and when the last one ended.
    open: AtomicU64,
    last_ns: AtomicU64,
    /// The connection's place among all.
    pub(super) seat: Arc<Seat<IpAddr>>,
    /// The number of open streams whose invocation has begun.
    pub(super) accepted: AtomicU64,
    /// Requests since the last invocation; `useless` is notified when there are too many.
    pub(super) refusals: AtomicU32,
    pub(super) useless: Notify,
    /// Bytes of answers that wait to be sent, here and on all connections.
    unsent: AtomicUsize,
    pub(super) unsent_total: Unsent,
    /// Increases whenever a part of an answer is sent.
    sent: AtomicU64,
    /// Answers whose function is still sending them.
    pub(super) streamed: Mutex<Vec<Weak<Streamed>>>,
}

/// How long a client has taken nothing of the bytes that wait for it, measured at each check.
#[derive(Default)]
pub(super) struct Progress {
    sent: u64,
    since_ns: Option<u64>,
}

impl Progress {
    pub(super) fn silent_for(&mut self, activity: &Activity) -> Duration {
        let sent = activity.sent.load(Ordering::Relaxed);
        let waits = activity.unsent.load(Ordering::Relaxed) > 0;
        if !waits || sent != self.sent {
            (self.sent, self.since_ns) = (sent, None);
        }
        if !waits {
            return Duration::ZERO;
        }
        let now_ns = now_ns();
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        Duration::from_nanos(now_ns.saturating_sub(since_ns))
    }
}

impl Activity {
    pub(super) fn new(unsent_total: Unsent, seat: Arc<Seat<IpAddr>>) -> Self {
        Self {
            seat,
            open: AtomicU64::new(0),
            last_ns: AtomicU64::new(now_ns()),
            accepted: AtomicU64::new(0),
            refusals: AtomicU32::new(0),
            useless: Notify::new(),
            unsent: AtomicUsize::new(0),
            unsent_total,
            sent: AtomicU64::new(0),
            streamed: Mutex::default(),
        }
    }

    pub(super) fn idle_for(&self) -> Duration {
        if self.open.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        Duration::from_nanos(now_ns().saturating_sub(self.last_ns.load(Ordering::Relaxed)))
    }

    pub(super) fn begin(self: &Arc<Self>, place: Share<IpAddr>) -> OpenStream {
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenStream {
            activity: self.clone(),
            accepted: false,
            added: Added::default(),
            unread: Unread::default(),
            logged: Logged::default(),
            _place: place,
        }
    }

    /// Counts bytes of an answer until they are sent or given up. Returns `None` if too many wait.
    pub(super) fn wait(self: &Arc<Self>, bytes: usize) -> Option<Waiting> {
        let waiting = self.wait_anyway(bytes);
        let fits = self.unsent.load(Ordering::Relaxed) <= UNSENT_BYTES_MAX
            && self.unsent_total.load(Ordering::Relaxed) <= UNSENT_BYTES_TOTAL_MAX;
        fits.then_some(waiting)
    }

    /// The same for a piece of an answer that has begun.
    pub(super) fn wait_anyway(self: &Arc<Self>, bytes: usize) -> Waiting {
        self.unsent.fetch_add(bytes, Ordering::Relaxed);
        self.unsent_total.fetch_add(bytes, Ordering::Relaxed);
        Waiting { activity: self.clone(), bytes }
    }

    /// Updates the count of the bytes that functions have sent and hyper has not taken: hyper takes
    /// nothing of an answer for which its client opens no window.
    pub(super) fn count_held(&self) {
        for one in self.streamed.lock().iter().filter_map(Weak::upgrade) {
            one.count_held();
        }
    }

    /// Gives up streamed answers whose client takes nothing of them, even if it takes others,
    /// because each one holds an instance.
    pub(super) fn drop_stalled(&self, write_timeout: Duration) {
        let mut streamed = self.streamed.lock();
        if streamed.is_empty() {
            return;
        }
        let now_ns = now_ns();
        streamed.retain(|one| {
            let Some(one) = one.upgrade() else { return false };
            let given_ns = one.given_ns.load(Ordering::Relaxed);
            if given_ns == 0 || now_ns.saturating_sub(given_ns) < write_timeout.as_nanos() as u64 {
                return true;
            }
            *one.body.lock() = None;
            false
        });
    }
}

/// A stream that is being served, until its answer was taken or given up.
pub(super) struct OpenStream {
    pub(super) activity: Arc<Activity>,
    /// Whether its invocation has begun.
    accepted: bool,
    /// Fields that its answer has in addition.
    pub(super) added: Added,
    /// The rest of its request's body, for which the end of the answer waits.
    pub(super) unread: Unread,
    /// What the access log will say about it.
    pub(super) logged: Logged,
    _place: Share<IpAddr>,
}

impl OpenStream {
    /// Notes that its invocation begins. With `false`, none may begin, because the connection ends.
    pub(super) fn accept(&mut self) -> bool {
        if std::mem::replace(&mut self.accepted, true) {
            return true;
        }
        self.activity.accepted.fetch_add(1, Ordering::Relaxed);
        self.activity.seat.begin_work()
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.activity.last_ns.store(now_ns(), Ordering::Relaxed);
        self.activity.open.fetch_sub(1, Ordering::Relaxed);
        if self.accepted {
            self.activity.accepted.fetch_sub(1, Ordering::Relaxed);
            self.activity.seat.end_work();
        }
    }
}

/// Bytes of an answer that are counted until this is dropped.
pub(super) struct Waiting {
    pub(super) activity: Arc<Activity>,
    bytes: usize,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.activity.unsent.fetch_sub(self.bytes, Ordering::Relaxed);
        self.activity.unsent_total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A piece of an answer that is being sent: hyper and h2 hold it until it is sent.
pub(super) struct Piece {
    pub(super) bytes: Bytes,
    pub(super) waiting: Option<Waiting>,
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }
    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }
    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(waiting) = &self.waiting {
            waiting.activity.sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

pub(super) struct Streamed {
    /// A leaf lock, held for one poll of the function's answer.
    pub(super) body: Mutex<Option<Body>>,
    /// When a piece was handed over that has not been sent since; 0 while the function has to send
    /// the next one.
    pub(super) given_ns: AtomicU64,
    /// Bytes that the function has sent and hyper has not taken, as last counted.
    pub(super) held: Mutex<Waiting>,
}

impl Streamed {
    pub(super) fn count_held(&self) {
        let bytes = self.body.lock().as_ref().map_or(0, Body::held_bytes);
        let mut held = self.held.lock();
        // The assignment drops the old count.
        *held = held.activity.clone().wait_anyway(bytes);
    }
}
