//! The observers of one server (RFC 7641): what each observes, and what it has received. Pure.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use crate::notices::{Feed, Watch};
use slab::Slab;

use super::exchange::Recipient;
use super::exchanges::Key;
use super::message::Token;

/// A notification that follows another one within this time is confirmable, because without
/// acknowledgements a server may send at most one notification in 3 s (RFC 7641, 4.5.1).
pub(crate) const QUIET_NS: u64 = 3_000_000_000;
/// After this many unconfirmed notifications, or after this time, the next notification is
/// confirmable. The node thereby learns whether the observer is still there.
pub(crate) const UNCONFIRMED_MAX: u32 = 9;
pub(crate) const CONFIRM_NS: u64 = 600_000_000_000;
/// An observer that has been silent for this long is pinged. Otherwise, an observer that has
/// disappeared would keep its place forever if its resource never changes.
const SILENCE_NS: u64 = 3_600_000_000_000;
/// How often the node looks for silent observers.
const SWEEP_NS: u64 = 600_000_000_000;
/// The number of silent observers that one sweep pings. The next sweep pings the others.
const PINGS_MAX: usize = 64;
/// The number of message ids remembered per observer. A reset may name any of them.
const MIDS_KEPT: usize = 4;

pub(crate) struct Observer {
    pub(crate) to: Recipient,
    pub(crate) watch: Box<Watch>,
    /// The format of the first answer. All notifications must have the same format (RFC 7641, 4.2).
    pub(crate) format: Option<u16>,
    sequence: u32,
    sent_ns: u64,
    confirmed_ns: u64,
    unconfirmed: u32,
    /// The message id of the notification that waits for its acknowledgement.
    pub(crate) outstanding: Option<u16>,
    queued: bool,
    ping: Option<u16>,
    mids: [Option<u16>; MIDS_KEPT],
}

impl Observer {
    /// The next value of the Observe option. The value is the clock in units of 33 µs, so that it
    /// also grows when the client registers again. It passes half of its range in 274 s (RFC 7641,
    /// 4.4).
    pub(crate) fn next_sequence(&mut self, now_ns: u64) -> u32 {
        let clock = sequence(now_ns);
        let ahead = clock.wrapping_sub(self.sequence) & SEQUENCE_MASK;
        let is_newer = ahead > 0 && ahead < SEQUENCE_MASK / 2;
        // After this time, which is shorter than half of the range takes, clients no longer compare
        // the values, but take the notification that arrives later for the newer one.
        let is_long_ago = now_ns.saturating_sub(self.sent_ns) > 128_000_000_000;
        self.sequence = match is_newer || is_long_ago {
            true => clock,
            false => (self.sequence + 1) & SEQUENCE_MASK,
        };
        self.sequence
    }

    /// Whether the next notification must be confirmable.
    pub(crate) fn needs_confirmation(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.sent_ns) < QUIET_NS
            || self.unconfirmed >= UNCONFIRMED_MAX
            || now_ns.saturating_sub(self.confirmed_ns) > CONFIRM_NS
    }
}

const SEQUENCE_MASK: u32 = 0xff_ffff;

/// The value of the Observe option that belongs to this time.
pub(crate) fn sequence(now_ns: u64) -> u32 {
    (now_ns >> 15) as u32 & SEQUENCE_MASK
}

pub(crate) struct Observers {
    pub(crate) feed: Feed,
    all: Slab<Observer>,
    by_token: HashMap<(SocketAddr, Token), usize>,
    by_resource: HashMap<u64, Vec<usize>>,
    /// Notifications that the peer may still acknowledge or reject.
    by_mid: HashMap<Key, usize>,
    /// The observers whose resource has changed.
    queue: VecDeque<usize>,
    /// A buffer for the changes of the feed, kept to reuse its memory.
    changed: Vec<u64>,
    /// When silent observers were last looked for.
    sweep_ns: u64,
}

impl Observers {
    pub(crate) fn new(feed: Feed) -> Self {
        Self {
            feed,
            all: Slab::new(),
            by_token: HashMap::new(),
            by_resource: HashMap::new(),
            by_mid: HashMap::new(),
            queue: VecDeque::new(),
            changed: Vec::new(),
            sweep_ns: 0,
        }
    }

    /// Adds an observer whose request was answered at `now_ns` in this format. Returns the value of
    /// the Observe option. An earlier observer with the same token is replaced.
    pub(crate) fn add(
        &mut self,
        mut to: Recipient,
        watch: Box<Watch>,
        format: Option<u16>,
        now_ns: u64,
    ) -> u32 {
        let key = (to.peer, to.token);
        let mut first = sequence(now_ns);
        if let Some(at) = self.by_token.get(&key).copied() {
            first = self.all[at].next_sequence(now_ns);
            self.remove(at);
        }
        to.discriminator = 0;
        let resource = watch.resource();
        let has_newer = watch.has_newer();
        let at = self.all.insert(Observer {
            to,
            watch,
            format,
            sequence: first,
            sent_ns: now_ns,
            confirmed_ns: now_ns,
            unconfirmed: 0,
            outstanding: None,
            queued: false,
            ping: None,
            mids: [None; MIDS_KEPT],
        });
        self.sweep_ns = self.sweep_ns.max(now_ns);
        self.by_token.insert(key, at);
        self.by_resource.entry(resource).or_default().push(at);
        if has_newer {
            self.enqueue(at);
        }
        first
    }

    /// Removes all observers of a peer that has disconnected.
    pub(crate) fn remove_peer(&mut self, peer: SocketAddr) {
        let of_peer = self.all.iter().filter(|(_, observer)| observer.to.peer == peer);
        let of_peer: Vec<usize> = of_peer.map(|(at, _)| at).collect();
        for at in of_peer {
            self.remove(at);
        }
    }

    pub(crate) fn remove(&mut self, at: usize) {
        let Some(observer) = self.all.try_remove(at) else { return };
        let Recipient { peer, token, .. } = observer.to;
        self.by_token.remove(&(peer, token));
        for mid in observer.mids.into_iter().flatten() {
            self.by_mid.remove(&(peer, mid));
        }
        let resource = observer.watch.resource();
        if let Some(others) = self.by_resource.get_mut(&resource) {
            others.retain(|other| *other != at);
            if others.is_empty() {
                self.by_resource.remove(&resource);
            }
        }
        // The queue still contains this place, which may be reused before the queue reaches it.
        if observer.queued {
            self.queue.retain(|queued| *queued != at);
        }
    }

    /// Finds the observer with this token, if it observes this path and query.
    pub(crate) fn find(&self, peer: SocketAddr, token: Token) -> Option<usize> {
        self.by_token.get(&(peer, token)).copied()
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut Observer> {
        self.all.get_mut(at)
    }

    /// The observer to which a notification with this message id was sent.
    pub(crate) fn of_message(&self, key: &Key) -> Option<usize> {
        self.by_mid.get(key).copied()
    }

    /// Queues the observers of the resources that have changed.
    pub(crate) fn poll_changed(&mut self, cx: &mut std::task::Context<'_>) {
        let mut changed = std::mem::take(&mut self.changed);
        while self.feed.poll_changed(cx, &mut changed).is_ready() {
            for resource in changed.drain(..) {
                for at in self.by_resource.get(&resource).cloned().unwrap_or_default() {
                    self.enqueue(at);
                }
            }
        }
        self.changed = changed;
    }

    /// Queues one observer, unless it still has to acknowledge a notification.
    pub(crate) fn enqueue(&mut self, at: usize) {
        if let Some(observer) = self.all.get_mut(at)
            && observer.outstanding.is_none()
            && !std::mem::replace(&mut observer.queued, true)
        {
            self.queue.push_back(at);
        }
    }

    /// The next observer to notify.
    pub(crate) fn next(&mut self) -> Option<usize> {
        let at = self.queue.pop_front()?;
        if let Some(observer) = self.all.get_mut(at) {
            observer.queued = false;
        }
        Some(at)
    }

    /// Whether any observer waits for its notification.
    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Records a sent notification, with its message id and whether it is confirmable. `message` is
    /// `None` over TCP.
    pub(crate) fn sent(&mut self, at: usize, message: Option<(u16, bool)>, now_ns: u64) {
        let Some(observer) = self.all.get_mut(at) else { return };
        observer.sent_ns = now_ns;
        let Some((mid, confirmable)) = message else { return };
        observer.unconfirmed += 1;
        observer.outstanding = confirmable.then_some(mid);
        self.remember(at, mid);
    }

    /// Remembers a message id, and forgets the observer's oldest one.
    fn remember(&mut self, at: usize, mid: u16) {
        let Some(observer) = self.all.get_mut(at) else { return };
        let peer = observer.to.peer;
        if let Some(oldest) = observer.mids[MIDS_KEPT - 1] {
            self.by_mid.remove(&(peer, oldest));
        }
        observer.mids.rotate_right(1);
        observer.mids[0] = Some(mid);
        self.by_mid.insert((peer, mid), at);
    }

    /// Records an acknowledgement. If a newer state was published meanwhile, the observer is queued
    /// again.
    pub(crate) fn acknowledged(&mut self, at: usize, mid: u16, now_ns: u64) {
        let Some(observer) = self.all.get_mut(at) else { return };
        if observer.outstanding != Some(mid) {
            return;
        }
        observer.outstanding = None;
        // The acknowledgement also answers a ping that is still open.
        observer.ping = None;
        observer.unconfirmed = 0;
        observer.confirmed_ns = now_ns;
        if observer.watch.has_newer() {
            self.enqueue(at);
        }
    }

    /// When [`Observers::silent`] is next due.
    pub(crate) fn sweep_ns(&self) -> Option<u64> {
        (!self.all.is_empty()).then_some(self.sweep_ns + SWEEP_NS)
    }

    /// The observers that have been silent for a long time and have not been pinged yet.
    pub(crate) fn silent(&mut self, now_ns: u64) -> Vec<usize> {
        if self.sweep_ns().is_none_or(|sweep_ns| sweep_ns > now_ns) {
            return Vec::new();
        }
        self.sweep_ns = now_ns;
        let is_silent = |observer: &Observer| {
            observer.ping.is_none()
                && observer.outstanding.is_none()
                && now_ns.saturating_sub(observer.confirmed_ns) > SILENCE_NS
        };
        let all = self.all.iter().filter(|(_, observer)| is_silent(observer));
        all.map(|(at, _)| at).take(PINGS_MAX).collect()
    }

    /// Records that an observer was pinged with this message.
    pub(crate) fn pinged(&mut self, at: usize, mid: u16) {
        if let Some(observer) = self.all.get_mut(at) {
            observer.ping = Some(mid);
        }
        self.remember(at, mid);
    }

    /// Whether the message with this id was a ping.
    pub(crate) fn is_ping(&self, at: usize, mid: u16) -> bool {
        self.all.get(at).is_some_and(|observer| observer.ping == Some(mid))
    }

    /// Records that an observer has answered a ping.
    pub(crate) fn is_there(&mut self, at: usize, now_ns: u64) {
        if let Some(observer) = self.all.get_mut(at) {
            observer.ping = None;
            observer.confirmed_ns = now_ns;
        }
    }

    /// The number of entries that refer to observers. For the fuzzer.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn marks(&self) -> usize {
        self.all.len() + self.by_token.len() + self.by_mid.len() + self.queue.len()
    }
}
