//! The server's part of observation (RFC 7641): it registers an observer when it answers a GET, and
//! sends notifications of the states that functions publish.

use std::net::SocketAddr;
use std::task::Context;

use crate::notices::{Resource, Watch};
use mote_core::{Invoker, Routed};

use super::content_format::media_type;
use super::cutting::Frame;
use super::exchange::Exchange;
use super::exchanges::Key;
use super::message::{Response, Token};
use super::observers::Observers;
use super::server::{FIRST_ATTEMPT, Server};
use super::translate;

/// The number of notifications that are sent before other work gets its turn.
const TURN_MAX: u32 = mote_core::turn::TURN_ITEMS_MAX;

impl<I: Invoker> Server<I> {
    /// Handles the Observe option of a GET before the function runs. The resource is watched from
    /// here on, so no change is missed while the function answers. Returns a challenge if the
    /// source is not proven, because notifications to a forged address would flood a third party.
    pub(crate) fn observe(
        &mut self,
        exchange: &mut Exchange,
        route: &I::Route,
        (observe, below_at): (u32, usize),
        now_ns: u64,
    ) -> Option<Response> {
        let notices = self.config.notices.as_ref()?;
        let to = &exchange.to;
        if observe == 1 {
            self.deregister(to.peer, to.token);
            return None;
        }
        let segment = std::str::from_utf8(&to.path[1..below_at]).ok()?;
        let is_function = segment.split('@').next() == Some(route.info().name.as_str());
        if observe != 0 || !is_function || to.block2.is_some_and(|block| block.number > 0) {
            return None;
        }
        if to.limit.is_some() {
            return Some(self.challenge(to.peer, now_ns));
        }
        let path = match &to.path[below_at..] {
            [] => b"/",
            below => below,
        };
        let accept = exchange.accept.and_then(media_type).unwrap_or_default();
        let resource = Resource {
            function: route.info().name.clone(),
            route: segment.to_owned(),
            path: path.to_vec(),
            query: to.query.clone(),
            accept: accept.into(),
        };
        let observers =
            self.observers.get_or_insert_with(|| Box::new(Observers::new(notices.feed())));
        // If there is no room for another observer, the client receives a plain answer (RFC 7641,
        // 4.1).
        exchange.watch = observers.feed.watch(resource, to.peer.ip()).ok().map(Box::new);
        None
    }

    /// Registers an observer when its request was answered successfully.
    pub(crate) fn register(
        &mut self,
        exchange: &Exchange,
        watch: Box<Watch>,
        response: &mut Response,
        now_ns: u64,
    ) {
        // Only an answer that contains the state of the resource begins an observation.
        if !matches!(response.code, (2, 3 | 5)) {
            self.deregister(exchange.to.peer, exchange.to.token);
            return;
        }
        let Some(observers) = &mut self.observers else { return };
        let sequence = observers.add(exchange.to.clone(), watch, response.content_format, now_ns);
        response.observe = Some(sequence);
    }

    fn deregister(&mut self, peer: SocketAddr, token: Token) {
        if let Some(observers) = &mut self.observers
            && let Some(at) = observers.find(peer, token)
        {
            observers.remove(at);
        }
    }

    /// Sends notifications of changed resources, a limited number in each turn. Returns `true` if
    /// more are waiting.
    pub(crate) fn notify_changed(&mut self, cx: &mut Context<'_>, now_ns: u64) -> bool {
        if let Some(observers) = &mut self.observers {
            observers.poll_changed(cx);
        }
        self.notify_queued(now_ns)
    }

    pub(crate) fn notify_queued(&mut self, now_ns: u64) -> bool {
        for _ in 0..TURN_MAX {
            let next = self.observers.as_mut().and_then(|observers| observers.next());
            let Some(at) = next else { return false };
            self.notify(at, FIRST_ATTEMPT, now_ns);
        }
        self.observers.as_ref().is_some_and(|observers| observers.has_queued())
    }

    /// Sends the latest state to one observer.
    fn notify(&mut self, at: usize, attempt: (u32, u64), now_ns: u64) {
        let Some(observers) = &mut self.observers else { return };
        let Some(observer) = observers.get_mut(at) else { return };
        let Some(state) = observer.watch.newer() else { return };
        let mut response = translate::response(b"GET", state.status, &state.headers, state.body);
        if let (Some(first), Some(now)) = (observer.format, response.content_format)
            && response.code.0 == 2
            && first != now
        {
            response = Response::diagnostic((4, 6), "the function now answers in another format");
        }
        let ends = response.code.0 != 2;
        if !ends {
            observer.format = observer.format.or(response.content_format);
            response.observe = Some(observer.next_sequence(now_ns));
        }
        // The message that ends an observation is confirmable, because no later message tells the
        // observer that it has ended.
        let confirmable = ends || attempt.0 > 0 || observer.needs_confirmation(now_ns);
        let to = observer.to.clone();
        let response = self.cut(&to, response, now_ns).unwrap_or_else(|short| short);
        let message = match self.frame {
            Frame::Stream { .. } => {
                self.unconfirmed(&to, &response);
                None
            }
            Frame::Datagram | Frame::Session if confirmable => {
                let mid = self.confirmable(&to, &response, attempt, now_ns);
                // If too many messages are waiting, this one is not repeated.
                Some((mid, self.is_outstanding(&(to.peer, mid))))
            }
            Frame::Datagram | Frame::Session => Some((self.unconfirmed(&to, &response), false)),
        };
        if let Some(notices) = &self.config.notices {
            notices.count_sent();
        }
        let Some(observers) = &mut self.observers else { return };
        match ends {
            true => observers.remove(at),
            false => observers.sent(at, message, now_ns),
        }
    }

    /// Handles a peer's acknowledgement or rejection of a message, which may be a notification.
    pub(crate) fn notification_settled(&mut self, key: Key, acknowledged: bool, now_ns: u64) {
        let Some(observers) = &mut self.observers else { return };
        let Some(at) = observers.of_message(&key) else { return };
        // A peer answers a ping with a reset (RFC 7252, 4.3), so this reset shows that the peer is
        // still there.
        if !acknowledged && observers.is_ping(at, key.1) {
            observers.is_there(at, now_ns);
        } else if acknowledged {
            observers.acknowledged(at, key.1, now_ns);
        } else {
            self.notification_lost(key);
        }
    }

    /// Pings observers that have been silent for a long time, to learn whether they are still
    /// there.
    pub(crate) fn ping_silent(&mut self, now_ns: u64) {
        let Some(observers) = &mut self.observers else { return };
        for at in observers.silent(now_ns) {
            let Some(observers) = &mut self.observers else { return };
            let Some(observer) = observers.get_mut(at) else { continue };
            let peer = observer.to.peer;
            let mid = self.ping(peer, now_ns);
            if let Some(observers) = &mut self.observers {
                observers.pinged(at, mid);
            }
        }
    }

    /// Forgets an observer that rejected a notification or did not acknowledge it in time.
    pub(crate) fn notification_lost(&mut self, key: Key) {
        let Some(observers) = &mut self.observers else { return };
        let Some(at) = observers.of_message(&key) else { return };
        observers.remove(at);
        if let Some(notices) = &self.config.notices {
            notices.count_lost();
        }
    }

    /// Sends a newer state in place of repeating a notification (RFC 7641, 4.5.2). Returns `false`
    /// if there is no newer state.
    pub(crate) fn notify_newer(&mut self, key: Key, attempt: (u32, u64), now_ns: u64) -> bool {
        let Some(observers) = &mut self.observers else { return false };
        let Some(at) = observers.of_message(&key) else { return false };
        let Some(observer) = observers.get_mut(at) else { return false };
        if observer.outstanding != Some(key.1) || !observer.watch.has_newer() {
            return false;
        }
        observer.outstanding = None;
        self.notify(at, attempt, now_ns);
        true
    }
}
