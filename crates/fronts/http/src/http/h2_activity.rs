//! The activity on an HTTP/2 connection: its open streams, and the answers that wait for its
//! client.

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

/// The most answer bytes that may wait for one client. This is how much all streams of a client
/// hold together if each has a short answer waiting. At the limit, a further answer becomes a 503.
const UNSENT_BYTES_MAX: usize = 8 << 20;
/// The most answer bytes that may wait for all HTTP/2 clients together. While more than half of
/// this is in use, a client that takes nothing between two checks is disconnected. Otherwise, a
/// client has the front's `write_timeout` to take something.
pub(super) const UNSENT_BYTES_TOTAL_MAX: usize = 64 << 20;

/// The activity of a connection: its open streams, and the answers that its client has not yet
/// taken.
pub(super) struct Activity {
    /// The number of open streams, and the time at which a stream last ended.
    open: AtomicU64,
    last_ns: AtomicU64,
    /// The connection's place among all connections.
    pub(super) seat: Arc<Seat<IpAddr>>,
    /// The number of open streams whose invocation has begun.
    pub(super) accepted: AtomicU64,
    /// The number of requests since the last invocation. `useless` is notified when it is too high.
    pub(super) refusals: AtomicU32,
    pub(super) useless: Notify,
    /// Answer bytes that wait to be sent, on this connection and on all connections.
    unsent: AtomicUsize,
    pub(super) unsent_total: Unsent,
    /// Increases whenever a part of an answer is sent.
    sent: AtomicU64,
    /// Answers whose function is still sending them.
    pub(super) streamed: Mutex<Vec<Weak<Streamed>>>,
}

/// For how long a client has taken none of the bytes that wait for it. Updated at each check.
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

    /// Counts bytes of an answer until they are sent or dropped. Returns `None` if too many bytes
    /// wait.
    pub(super) fn wait(self: &Arc<Self>, bytes: usize) -> Option<Waiting> {
        let waiting = self.wait_anyway(bytes);
        let fits = self.unsent.load(Ordering::Relaxed) <= UNSENT_BYTES_MAX
            && self.unsent_total.load(Ordering::Relaxed) <= UNSENT_BYTES_TOTAL_MAX;
        fits.then_some(waiting)
    }

    /// Counts bytes of an answer that has already begun, even if too many bytes wait.
    pub(super) fn wait_anyway(self: &Arc<Self>, bytes: usize) -> Waiting {
        self.unsent.fetch_add(bytes, Ordering::Relaxed);
        self.unsent_total.fetch_add(bytes, Ordering::Relaxed);
        Waiting { activity: self.clone(), bytes }
    }

    /// Updates the count of bytes that functions have sent but hyper has not taken. hyper takes
    /// nothing of an answer while the client's window for that answer is closed.
    pub(super) fn count_held(&self) {
        for one in self.streamed.lock().iter().filter_map(Weak::upgrade) {
            one.count_held();
        }
    }

    /// Drops each streamed answer of which the client takes nothing, even if the client takes other
    /// answers, because each streamed answer occupies an instance.
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

/// A stream that is being served. It exists until its answer is taken or dropped.
pub(super) struct OpenStream {
    pub(super) activity: Arc<Activity>,
    /// Whether the stream's invocation has begun.
    accepted: bool,
    /// Fields that the front adds to the answer.
    pub(super) added: Added,
    /// The rest of the request's body. The end of the answer waits for it.
    pub(super) unread: Unread,
    /// What the access log will say about the request.
    pub(super) logged: Logged,
    _place: Share<IpAddr>,
}

impl OpenStream {
    /// Notes that the stream's invocation begins. `false` means that it must not begin, because the
    /// connection is ending.
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

/// Answer bytes that are counted until this is dropped.
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

/// A piece of an answer. hyper and h2 hold it until it is sent.
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
    /// Locked for one poll of the function's answer. No other lock is taken while it is held.
    pub(super) body: Mutex<Option<Body>>,
    /// When hyper received a piece that it has not yet sent. 0 while hyper waits for the function's
    /// next piece.
    pub(super) given_ns: AtomicU64,
    /// The last count of the bytes that the function has sent but hyper has not taken.
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
