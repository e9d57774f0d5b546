//! The sessions and the current handshakes, without a socket or a clock. Datagrams and messages go
//! in, and everything to be sent collects in [`Out`].

use std::collections::HashMap;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dimpl::{Config, Dtls, Output};
use mote_coap::dtls_frames::{
    CERTIFICATE_BYTES_MAX, Message, Psk, SESSIONS_MAX, ServerCertificate, datagram_head,
};
use mote_core::shares::address_owner;

use crate::certificates::{Own, Paces};
use crate::config;
use crate::gate::{Flight, MESSAGE_MAX, Stage, pieces};
use crate::hello::{Cookies, Hello, with_checked_cookie};
use crate::keys::Keys;

/// The most sessions of one address. Many devices may share an address behind a router that
/// translates addresses, but other addresses must have room too.
pub(crate) const SESSIONS_OF_ONE_MAX: usize = if cfg!(test) { 24 } else { 1_024 };
/// The most handshakes at once, in all and of one address. Each of their clients has shown that it
/// receives datagrams at its address.
pub(crate) const HANDSHAKES_MAX: usize = 256;
pub(crate) const HANDSHAKES_OF_ONE_MAX: usize = 64;
/// The most records of a handshake that the library may store, in 5 KiB each, for as long as the
/// session lasts. A client sends two such records, or up to four with a certificate, and may repeat
/// them several times.
const KEPT_RECORDS_MAX: usize = 10;
const KEPT_RECORDS_OF_CERTIFICATES_MAX: usize = 14;
/// The most sessions whose clients have proved nothing that counts: they have no certificate, or
/// the node has not confirmed that an authority signed it. Anybody can open such a session, so
/// these sessions replace only each other.
pub(crate) const UNPROVED_MAX: usize = if cfg!(test) { 5 } else { 512 };
/// How long a session lasts while the client sends nothing. A handshake costs a small device much
/// energy, so a sensor that reports only every few hours must keep its session. An unused session
/// costs only memory, and the session that was unused the longest makes room for a new one.
const IDLE: Duration = Duration::from_secs(24 * 3600);
/// How long a session with a client certificate lasts. The certificate may expire meanwhile.
const OF_CERTIFICATE: Duration = Duration::from_secs(24 * 3600);
/// How long a session may wait for the node to accept a certificate. This normally takes
/// milliseconds, but the verdict is lost if the node cannot send it at once.
const VERDICT: Duration = Duration::from_secs(10);
/// How often to check for sessions that must end.
const SWEEP: Duration = Duration::from_secs(10);
/// How often to check for handshakes in which a lost message must be repeated.
const TICK: Duration = Duration::from_millis(250);
/// Longest datagram that is read, including its encryption. The front of the node reads 2 KiB.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 2_048 + 128;

/// The current time of both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) instant: Instant,
    pub(crate) unix_ms: u64,
}

/// The datagrams and messages to be sent.
#[derive(Default)]
pub(crate) struct Out {
    pub(crate) to_clients: Vec<(SocketAddr, Vec<u8>)>,
    /// Messages to the node, in order.
    pub(crate) to_node: Vec<Vec<u8>>,
}

/// What the client of a session has proved.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Proof {
    /// The client has a pre-shared key.
    Key(Arc<Psk>),
    /// The client has the private key of a certificate. The node decides whether that counts.
    Certificate { counts: bool },
    /// The client has proved nothing. It has only seen the certificate of the node.
    Nothing,
}

/// A handshake that has not ended yet.
struct Handshake {
    dtls: Dtls,
    random: Vec<u8>,
    flight: Flight,
    key: Option<Arc<Psk>>,
    /// The certificate of the client (DER).
    certificate: Option<Vec<u8>>,
    began: Instant,
    /// How many more records of this client the library may store.
    keepable: usize,
}

/// An established session.
struct Session {
    dtls: Dtls,
    /// The random bytes of the client's hello.
    random: Vec<u8>,
    number: u32,
    proof: Proof,
    /// Which messages ended the handshake.
    flight: Flight,
    began: Instant,
    /// When the client last sent a datagram.
    used: Instant,
    /// Whether the client has sent a datagram in the session, which shows that it received the end
    /// of the handshake.
    is_confirmed: bool,
    /// An earlier proved session of the same address. It is kept until the node has accepted the
    /// certificate of this session, so that a stranger who receives a device's datagrams cannot end
    /// the device's session.
    replaced: Option<Box<Session>>,
}

/// How a session or handshake continues after its output was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Continues,
    Connected,
    Ended,
}

impl Session {
    /// Whether the client has proved something that counts.
    fn is_proved(&self) -> bool {
        matches!(self.proof, Proof::Key(_) | Proof::Certificate { counts: true })
    }
}

pub(crate) struct Sessions {
    config: Arc<Config>,
    cookies: Cookies,
    keys: Arc<Keys>,
    /// The certificate for clients without a pre-shared key.
    own: Option<Own>,
    paces: Paces,
    handshakes: HashMap<SocketAddr, Handshake>,
    sessions: HashMap<SocketAddr, Session>,
    by_number: HashMap<u32, SocketAddr>,
    last_number: u32,
    began: Instant,
    swept: Instant,
    ticked: Instant,
    pub(crate) out: Out,
}

impl Sessions {
    /// Starts without sessions. `secret` is random, and is used for the cookies.
    pub(crate) fn new(secret: [u8; 32], now: Instant) -> Result<Self, dimpl::Error> {
        let keys = Arc::new(Keys::default());
        let config = config::builder()
            .with_psk_server(None, keys.clone())
            .require_client_certificate(false)
            .build()?;
        Ok(Self {
            config: Arc::new(config),
            cookies: Cookies::new(secret),
            keys,
            own: None,
            paces: Paces::default(),
            handshakes: HashMap::new(),
            sessions: HashMap::new(),
            by_number: HashMap::new(),
            last_number: 0,
            began: now,
            swept: now,
            ticked: now,
            out: Out::default(),
        })
    }

    /// Numbers of sessions and handshakes.
    #[cfg(test)]
    fn counts(&self) -> (usize, usize) {
        (self.sessions.len(), self.handshakes.len())
    }

    /// Takes a datagram of a client.
    pub(crate) fn datagram(&mut self, peer: SocketAddr, bytes: &[u8], now: Now) {
        self.keys.set_time(now.unix_ms);
        if let Some(hello) = Hello::parse(bytes) {
            return self.hello(peer, &hello, bytes, now);
        }
        // While the client begins a new handshake, only handshake messages are for that handshake.
        // Everything else is for the session, so that a copy of an old hello cannot cut a client
        // off from its session.
        let begins_anew = self.handshakes.contains_key(&peer);
        if begins_anew && bytes.first().is_some_and(|kind| matches!(kind, 20 | 22)) {
            self.continue_handshake(peer, bytes, now);
        } else if let Some(session) = self.sessions.get_mut(&peer) {
            let is_confirmed = session.is_confirmed || begins_anew;
            let stage = if is_confirmed { Stage::Session } else { Stage::End };
            let Some(pieces) = pieces(bytes, stage, session.flight, &mut 0) else {
                return;
            };
            let before = self.out.to_node.len();
            let goes_on = pieces.into_iter().all(|piece| {
                let taken = give(&mut session.dtls, piece, now.instant);
                let after = drain(&mut session.dtls, peer, Some(session.number), &mut self.out).0;
                taken && after != After::Ended
            });
            if self.out.to_node.len() > before {
                (session.used, session.is_confirmed) = (now.instant, true);
            }
            if !goes_on {
                self.end(peer, now.instant);
            }
        }
    }

    /// Takes a hello. Without a valid cookie, the program only answers and stores nothing.
    fn hello(&mut self, peer: SocketAddr, hello: &Hello<'_>, bytes: &[u8], now: Now) {
        let uptime = now.instant.saturating_duration_since(self.began);
        if !self.cookies.is_valid(peer, hello, uptime) {
            // A client whose cookie is too old must end its handshake and begin a new one, because
            // the library does not accept a third hello in one handshake.
            if hello.number != 0 {
                return;
            }
            let cookie = self.cookies.make(peer, hello, uptime);
            self.out.to_clients.push((peer, hello.verify_request(&cookie)));
            return;
        }
        if self.handshakes.get(&peer).is_some_and(|known| known.random == hello.random()) {
            // The client has not received the answer, so the answer is sent again.
            return self.continue_handshake(peer, bytes, now);
        }
        // This is a copy of the hello with which the session began.
        if self.sessions.get(&peer).is_some_and(|session| session.random == hello.random()) {
            return;
        }
        if hello.number != 1 {
            return;
        }
        let own = self.own.as_ref().filter(|_| !hello.offers_psk());
        if own.is_some() && !self.paces.may_begin(peer.ip(), now.instant) {
            return;
        }
        let (mut dtls, flight, keepable) = match own {
            Some(own) => {
                (own.dtls(now.instant), Flight::Certificate, KEPT_RECORDS_OF_CERTIFICATES_MAX)
            }
            None => {
                let dtls = Dtls::new_12_psk(self.config.clone(), now.instant);
                (dtls, Flight::Psk, KEPT_RECORDS_MAX)
            }
        };
        self.make_room_for_handshake(peer);
        // The library counts messages from the first hello, so it must see that hello too.
        let begun = give(&mut dtls, &hello.without_cookie(), now.instant);
        drain(&mut dtls, peer, None, &mut Out::default());
        if begun {
            let handshake = Handshake {
                dtls,
                random: hello.random().to_vec(),
                flight,
                key: None,
                certificate: None,
                began: now.instant,
                keepable,
            };
            self.handshakes.insert(peer, handshake);
            with_checked_cookie(hello.cookie(), || self.continue_handshake(peer, bytes, now));
        }
    }

    /// Makes room for a handshake. If the address has the most handshakes allowed, ends its oldest
    /// one. If all places are taken, ends the oldest one of the address that has the most.
    fn make_room_for_handshake(&mut self, peer: SocketAddr) {
        if self.handshakes.len() < HANDSHAKES_OF_ONE_MAX {
            return;
        }
        let owner = address_owner(peer.ip());
        let mut of_owners = HashMap::new();
        for one in self.handshakes.keys() {
            *of_owners.entry(address_owner(one.ip())).or_insert(0_usize) += 1;
        }
        let of_one = of_owners.get(&owner).copied().unwrap_or_default();
        let crowded = if of_one >= HANDSHAKES_OF_ONE_MAX {
            Some(owner)
        } else if self.handshakes.len() >= HANDSHAKES_MAX {
            of_owners.into_iter().max_by_key(|(_, count)| *count).map(|(owner, _)| owner)
        } else {
            None
        };
        let Some(crowded) = crowded else { return };
        let of_crowded =
            self.handshakes.iter().filter(|(one, _)| address_owner(one.ip()) == crowded);
        let oldest = of_crowded.min_by_key(|(_, handshake)| handshake.began).map(|(one, _)| *one);
        if let Some(oldest) = oldest {
            self.handshakes.remove(&oldest);
        }
    }

    fn continue_handshake(&mut self, peer: SocketAddr, bytes: &[u8], now: Now) {
        let Some(mut handshake) = self.handshakes.remove(&peer) else { return };
        let stage = Stage::Handshake;
        let flight = handshake.flight;
        let Some(pieces) = pieces(bytes, stage, flight, &mut handshake.keepable) else {
            self.handshakes.insert(peer, handshake);
            return;
        };
        let _ = self.keys.asked();
        let mut taken =
            pieces.into_iter().all(|piece| give(&mut handshake.dtls, piece, now.instant));
        if let Some(key) = self.keys.asked() {
            handshake.key = Some(key);
        }
        // Data that the client sent together with the end of its handshake must reach the node
        // after the message that opens the session.
        let mut out = Out::default();
        let number = self.free_number();
        let (after, certificate) = drain(&mut handshake.dtls, peer, Some(number), &mut out);
        if certificate.is_some() {
            handshake.certificate = certificate;
        }
        if handshake.certificate.as_ref().is_some_and(|it| it.len() > CERTIFICATE_BYTES_MAX) {
            return;
        }
        self.out.to_clients.append(&mut out.to_clients);
        taken &= after != After::Ended;
        match after {
            After::Connected if taken => {
                let Handshake { dtls, random, flight, key, certificate, .. } = handshake;
                let proof = match (flight, key, &certificate) {
                    (Flight::Psk, Some(key), _) => Proof::Key(key),
                    // Without a key there is no session in this case.
                    (Flight::Psk, None, _) => return,
                    (Flight::Certificate, _, Some(_)) => Proof::Certificate { counts: false },
                    (Flight::Certificate, _, None) => Proof::Nothing,
                };
                let began = now.instant;
                let used = now.instant;
                let is_confirmed = !out.to_node.is_empty();
                let session = Session {
                    dtls,
                    random,
                    number,
                    proof,
                    flight,
                    began,
                    used,
                    is_confirmed,
                    replaced: None,
                };
                if self.open(peer, session, &certificate.unwrap_or_default()) {
                    self.out.to_node.append(&mut out.to_node);
                }
            }
            After::Continues if taken => {
                self.handshakes.insert(peer, handshake);
            }
            // The client receives no answer, and ends the handshake itself.
            _ => {}
        }
    }

    /// Returns a number that no session has.
    fn free_number(&self) -> u32 {
        let mut number = self.last_number;
        loop {
            number = number.wrapping_add(1);
            if !self.by_number.contains_key(&number) {
                return number;
            }
        }
    }

    /// Opens a session and tells the node, or closes the session at once. Returns whether the
    /// session is open.
    fn open(&mut self, peer: SocketAddr, mut session: Session, certificate: &[u8]) -> bool {
        let number = session.number;
        let now = session.used;
        let mut former = self.sessions.remove(&peer);
        if let Some(unproved) = former.take_if(|former| !former.is_proved()) {
            former = self.finish(peer, unproved, now);
        }
        match (former, &session.proof) {
            // The client has started anew.
            (Some(former), Proof::Key(_)) => drop(self.finish(peer, former, now)),
            (Some(former), Proof::Certificate { .. }) => session.replaced = Some(Box::new(former)),
            (Some(former), Proof::Nothing) => {
                self.sessions.insert(peer, former);
                self.close(peer, &mut session.dtls, now);
                return false;
            }
            (None, _) => {}
        }
        if !self.make_room(peer, &session.proof, now) {
            self.close(peer, &mut session.dtls, now);
            self.sessions.extend(session.replaced.take().map(|former| (peer, *former)));
            return false;
        }
        let mut message = Vec::new();
        let opened = match &session.proof {
            Proof::Key(key) => Message::Opened { session: number, peer, identity: &key.identity },
            _ => Message::OpenedByCertificate { session: number, peer, certificate },
        };
        opened.encode(&mut message);
        self.out.to_node.push(message);
        self.last_number = number;
        self.by_number.insert(number, peer);
        self.sessions.insert(peer, session);
        true
    }

    /// Makes room for this session by ending another one. A session without a proof is ended first,
    /// then the session that was unused the longest. A session without a proof never ends one with
    /// a proof. Until the node has accepted its certificate, a session with a certificate needs a
    /// place only among those without a proof. Returns whether there is a place.
    fn make_room(&mut self, peer: SocketAddr, proof: &Proof, now: Instant) -> bool {
        let owner = address_owner(peer.ip());
        let is_own = |other: &SocketAddr| address_owner(other.ip()) == owner;
        let others = || self.sessions.iter().filter(|(other, _)| **other != peer);
        let own = others().filter(|(other, _)| is_own(other)).count() >= SESSIONS_OF_ONE_MAX;
        let is_full = own || others().count() >= SESSIONS_MAX;
        let unproved = others().filter(|(_, other)| !other.is_proved()).count();
        let (is_full, own, only_unproved) = match proof {
            Proof::Key(_) | Proof::Certificate { counts: true } => (is_full, own, false),
            Proof::Certificate { counts: false } => (unproved >= UNPROVED_MAX, false, true),
            Proof::Nothing => (is_full || unproved >= UNPROVED_MAX, own, true),
        };
        if !is_full {
            return true;
        }
        let candidates = others().filter(|(other, session)| {
            (!own || is_own(other)) && !(only_unproved && session.is_proved())
        });
        let first = candidates.min_by_key(|(_, session)| (session.is_proved(), session.used));
        let Some(first) = first.map(|(other, _)| *other) else { return false };
        self.end(first, now);
        true
    }

    /// Ends a session, and continues the session that it would have replaced.
    fn end(&mut self, peer: SocketAddr, now: Instant) {
        let Some(session) = self.sessions.remove(&peer) else { return };
        let replaced = self.finish(peer, session, now);
        self.sessions.extend(replaced.map(|replaced| (peer, replaced)));
    }

    /// Tells the node that a session has ended and, if possible, also the client. Returns the
    /// session that this one would have replaced.
    fn finish(&mut self, peer: SocketAddr, mut session: Session, now: Instant) -> Option<Session> {
        self.by_number.remove(&session.number);
        self.close(peer, &mut session.dtls, now);
        let mut message = Vec::new();
        Message::Closed { session: session.number }.encode(&mut message);
        self.out.to_node.push(message);
        session.replaced.map(|replaced| *replaced)
    }

    /// Tells a client that its session has ended, if that is still possible.
    fn close(&mut self, peer: SocketAddr, dtls: &mut Dtls, now: Instant) {
        if guarded(|| dtls.handle_timeout(now).is_ok() && dtls.close().is_ok()) == Some(true) {
            let mut out = Out::default();
            drain(dtls, peer, None, &mut out);
            self.out.to_clients.append(&mut out.to_clients);
        }
    }

    /// Takes a message of the node.
    pub(crate) fn message(&mut self, message: Message<'_>, now: Now) {
        self.keys.set_time(now.unix_ms);
        match message {
            Message::Datagram { session, bytes } => {
                let Some(peer) = self.numbered(session) else { return };
                let Some(session) = self.sessions.get_mut(&peer) else { return };
                let sent = guarded(|| {
                    session.dtls.handle_timeout(now.instant).is_ok()
                        && session.dtls.send_application_data(bytes).is_ok()
                });
                drain(&mut session.dtls, peer, Some(session.number), &mut self.out);
                if sent != Some(true) {
                    self.end(peer, now.instant);
                }
            }
            Message::Keys { is_first, is_last, keys } => {
                if self.keys.take(is_first, is_last, keys) {
                    self.end_without_key(now.instant);
                }
            }
            Message::Certificate { own, ends_sessions } => {
                self.set_certificate(own, ends_sessions, now.instant);
            }
            Message::Accepted { session } => {
                let Some(peer) = self.numbered(session) else { return };
                let Some(session) = self.sessions.get_mut(&peer) else { return };
                if let Proof::Certificate { counts } = &mut session.proof {
                    if !*counts {
                        self.paces.accepted(peer.ip(), now.instant);
                    }
                    *counts = true;
                }
                if let Some(replaced) = session.replaced.take() {
                    self.finish(peer, *replaced, now.instant);
                }
                self.make_room(peer, &Proof::Certificate { counts: true }, now.instant);
            }
            Message::Closed { session } => {
                if let Some(peer) = self.numbered(session) {
                    self.end(peer, now.instant);
                }
            }
            // Only this program sends these messages.
            Message::Opened { .. } | Message::OpenedByCertificate { .. } => {}
        }
    }

    /// Returns the client of the session with this number. `None` if a newer session waits to
    /// replace the session.
    fn numbered(&self, number: u32) -> Option<SocketAddr> {
        let peer = self.by_number.get(&number)?;
        let session = self.sessions.get(peer)?;
        (session.number == number).then_some(*peer)
    }

    /// Uses another certificate, or none, for new handshakes.
    fn set_certificate(
        &mut self,
        own: Option<ServerCertificate>,
        ends_sessions: bool,
        now: Instant,
    ) {
        self.own = own.and_then(|own| {
            let own = Own::new(own, now);
            own.map_err(|error| tracing::error!("the certificate cannot be used: {error}")).ok()
        });
        self.handshakes.retain(|_, handshake| handshake.flight == Flight::Psk);
        if ends_sessions {
            self.end_all(now, |session| matches!(session.proof, Proof::Certificate { .. }));
        }
    }

    /// Ends these sessions, including those that would continue when another session ends.
    fn end_all(&mut self, now: Instant, ends: impl Fn(&Session) -> bool) {
        let ending = self.sessions.iter().filter(|(_, session)| ends(session));
        let ending: Vec<SocketAddr> = ending.map(|(peer, _)| *peer).collect();
        for peer in ending {
            while self.sessions.get(&peer).is_some_and(&ends) {
                self.end(peer, now);
            }
        }
    }

    /// Ends sessions whose key is no longer valid.
    fn end_without_key(&mut self, now: Instant) {
        let keys = self.keys.clone();
        self.end_all(now, |session| match &session.proof {
            Proof::Key(key) => !keys.has(key),
            Proof::Certificate { .. } | Proof::Nothing => false,
        });
    }

    /// How long to wait for datagrams and messages before calling [`Sessions::time_passed`].
    pub(crate) fn patience(&self) -> Duration {
        if self.handshakes.is_empty() { SWEEP } else { TICK }
    }

    /// Repeats messages of handshakes, and ends sessions and handshakes that have taken too long.
    pub(crate) fn time_passed(&mut self, now: Now) {
        self.keys.set_time(now.unix_ms);
        let out = &mut self.out;
        if now.instant.saturating_duration_since(self.ticked) >= TICK {
            self.ticked = now.instant;
            self.handshakes.retain(|peer, handshake| {
                guarded(|| handshake.dtls.handle_timeout(now.instant).is_ok()) == Some(true)
                    && drain(&mut handshake.dtls, *peer, None, out).0 == After::Continues
            });
        }
        if now.instant.saturating_duration_since(self.swept) >= SWEEP {
            self.swept = now.instant;
            self.end_without_key(now.instant);
            self.paces.sweep(now.instant);
            let is_after = |since: Instant, limit: Duration| {
                now.instant.saturating_duration_since(since) >= limit
            };
            self.end_all(now.instant, |session| {
                let is_over = match session.proof {
                    Proof::Certificate { counts: true } => is_after(session.began, OF_CERTIFICATE),
                    Proof::Certificate { counts: false } => is_after(session.began, VERDICT),
                    Proof::Key(_) | Proof::Nothing => false,
                };
                is_over || is_after(session.used, IDLE)
            });
        }
    }
}

/// Takes the library's datagrams for the client, and the client's data in the session `number`.
/// Also returns the certificate of the client, if the library has just received it.
fn drain(
    dtls: &mut Dtls,
    peer: SocketAddr,
    number: Option<u32>,
    out: &mut Out,
) -> (After, Option<Vec<u8>>) {
    guarded(|| take_output(dtls, peer, number, out)).unwrap_or((After::Ended, None))
}

fn take_output(
    dtls: &mut Dtls,
    peer: SocketAddr,
    number: Option<u32>,
    out: &mut Out,
) -> (After, Option<Vec<u8>>) {
    // The buffer must have this size, because the library panics if a certificate does not fit.
    let mut buffer = [0; MESSAGE_MAX as usize];
    let mut after = After::Continues;
    let mut certificate = None;
    loop {
        match dtls.poll_output(&mut buffer) {
            Output::Packet(bytes) => out.to_clients.push((peer, bytes.to_vec())),
            Output::ApplicationData(bytes) => {
                if let Some(number) = number {
                    let mut message = Vec::with_capacity(bytes.len() + 5);
                    datagram_head(&mut message, number);
                    message.extend_from_slice(bytes);
                    out.to_node.push(message);
                }
            }
            Output::Connected => after = After::Connected,
            Output::CloseNotify => after = After::Ended,
            // The message is longer than every datagram that is read or sent.
            Output::BufferTooSmall { .. } => return (After::Ended, None),
            Output::Timeout(_) => return (after, certificate),
            Output::PeerCert(bytes) => certificate = Some(bytes.to_vec()),
            // Other outputs are keys for other protocols.
            _ => {}
        }
    }
}

/// Gives the library a datagram. Returns `false` if the session or handshake cannot continue.
fn give(dtls: &mut Dtls, bytes: &[u8], now: Instant) -> bool {
    guarded(|| dtls.handle_timeout(now).is_ok() && dtls.handle_packet(bytes).is_ok()) == Some(true)
}

/// Calls the library, and returns `None` if it panics. A panic ends only the session or handshake
/// in which it happened.
fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(call));
    if result.is_err() {
        tracing::error!("the DTLS library panicked; the session in which it did has ended");
    }
    result.ok()
}

#[cfg(test)]
#[path = "sessions_tests.rs"]
mod tests;
