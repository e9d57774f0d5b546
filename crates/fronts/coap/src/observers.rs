//! Who observes what (RFC 7641): the observers of one server, and what each has received. Pure.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use crate::notices::{Feed, Watch};
use slab::Slab;

use super::exchange::Recipient;
use super::exchanges::Key;
use super::message::Token;

/// A notification that follows an earlier one within this time is confirmable, because without
/// acknowledgements a server sends one in 3 s at most (RFC 7641, 4.5.1).
pub(crate) const QUIET_NS: u64 = 3_000_000_000;
/// At least one notification in so many is confirmable, and at least one in this time, so that the
/// node learns that an observer is gone.
pub(crate) const UNCONFIRMED_MAX: u32 = 9;
pub(crate) const CONFIRM_NS: u64 = 600_000_000_000;
/// An observer of which nothing was heard for this long is asked whether it is there, so that one
/// that is gone does not keep its place when its resource never changes.
const SILENCE_NS: u64 = 3_600_000_000_000;
/// How often silent observers are looked for.
const SWEEP_NS: u64 = 600_000_000_000;
/// Silent observers that are asked at once; the others are asked by the next sweep.
const PINGS_MAX: usize = 64;
/// Message ids of an observer that a reset may name.
const MIDS_KEPT: usize = 4;

pub(crate) struct Observer {
    pub(crate) to: Recipient,
    pub(crate) watch: Box<Watch>,
    /// The format of the first answer, which all notifications have (RFC 7641, 4.2).
    pub(crate) format: Option<u16>,
    sequence: u32,
    sent_ns: u64,
    confirmed_ns: u64,
    unconfirmed: u32,
    /// The message id of a notification that waits for its acknowledgement.
    pub(crate) outstanding: Option<u16>,
    queued: bool,
    ping: Option<u16>,
    mids: [Option<u16>; MIDS_KEPT],
}

impl Observer {
    /// The next value of the Observe option: the clock in units of 33 µs, so that it also grows when
    /// the client registers again, and passes half of its range in 274 s (RFC 7641, 4.4).
    pub(crate) fn next_sequence(&mut self, now_ns: u64) -> u32 {
        let clock = sequence(now_ns);
        let ahead = clock.wrapping_sub(self.sequence) & SEQUENCE_MASK;
        let is_newer = ahead > 0 && ahead < SEQUENCE_MASK / 2;
        // After half of the range, the clients go by their own clocks.
        let is_long_ago = now_ns.saturating_sub(self.sent_ns) > 128_000_000_000;
        self.sequence = match is_newer || is_long_ago {
            true => clock,
            false => (self.sequence + 1) & SEQUENCE_MASK,
        };
        self.sequence
    }

    /// Whether the next notification has to be confirmable.
    pub(crate) fn needs_confirmation(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.sent_ns) < QUIET_NS
            || self.unconfirmed >= UNCONFIRMED_MAX
            || now_ns.saturating_sub(self.confirmed_ns) > CONFIRM_NS
    }
}

const SEQUENCE_MASK: u32 = 0xff_ffff;

/// The first value of the Observe option at this time.
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
    /// Those whose resource changed.
    queue: VecDeque<usize>,
    /// Reused for the changes of the feed.
    changed: Vec<u64>,
    /// When silent observers are next looked for.
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

    /// Adds an observer whose request was answered at `now_ns` with this format; returns the value
    /// of the Observe option. An earlier observer with the same token is replaced.
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

    /// Removes all observers of a peer that is gone.
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
        // The place may be reused before the queue reaches it.
        if observer.queued {
            self.queue.retain(|queued| *queued != at);
        }
    }

    /// The observer with this token, if it observes this path and query.
    pub(crate) fn find(&self, peer: SocketAddr, token: Token) -> Option<usize> {
        self.by_token.get(&(peer, token)).copied()
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut Observer> {
        self.all.get_mut(at)
    }

    /// The observer that was sent a notification with this id.
    pub(crate) fn of_message(&self, key: &Key) -> Option<usize> {
        self.by_mid.get(key).copied()
    }

    /// Queues the observers of resources that changed.
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

    /// Queues one observer, unless it waits for an acknowledgement.
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

    /// Whether observers wait for their notification.
    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Notes a notification, with its message id and whether it is confirmable; `None` over TCP.
    pub(crate) fn sent(&mut self, at: usize, message: Option<(u16, bool)>, now_ns: u64) {
        let Some(observer) = self.all.get_mut(at) else { return };
        observer.sent_ns = now_ns;
        let Some((mid, confirmable)) = message else { return };
        observer.unconfirmed += 1;
        observer.outstanding = confirmable.then_some(mid);
        self.remember(at, mid);
    }

    /// Remembers a message id, and forgets the oldest one of the observer.
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

    /// Notes an acknowledgement; a state that came meanwhile is sent next.
    pub(crate) fn acknowledged(&mut self, at: usize, mid: u16, now_ns: u64) {
        let Some(observer) = self.all.get_mut(at) else { return };
        if observer.outstanding != Some(mid) {
            return;
        }
        observer.outstanding = None;
        // A question that is still open is answered by this, too.
        observer.ping = None;
        observer.unconfirmed = 0;
        observer.confirmed_ns = now_ns;
        if observer.watch.has_newer() {
            self.enqueue(at);
        }
    }

    /// When [`Observers::silent`] next has something to do.
    pub(crate) fn sweep_ns(&self) -> Option<u64> {
        (!self.all.is_empty()).then_some(self.sweep_ns + SWEEP_NS)
    }

    /// Observers of which nothing was heard for long and that have not been asked yet.
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

    /// Notes that an observer was asked with this message.
    pub(crate) fn pinged(&mut self, at: usize, mid: u16) {
        if let Some(observer) = self.all.get_mut(at) {
            observer.ping = Some(mid);
        }
        self.remember(at, mid);
    }

    /// Whether a message asked the observer if it is there.
    pub(crate) fn is_ping(&self, at: usize, mid: u16) -> bool {
        self.all.get(at).is_some_and(|observer| observer.ping == Some(mid))
    }

    /// Notes that an observer answered that question.
    pub(crate) fn is_there(&mut self, at: usize, now_ns: u64) {
        if let Some(observer) = self.all.get_mut(at) {
            observer.ping = None;
            observer.confirmed_ns = now_ns;
        }
    }

    /// Entries that refer to observers, for the fuzzer.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn marks(&self) -> usize {
        self.all.len() + self.by_token.len() + self.by_mid.len() + self.queue.len()
    }
}
