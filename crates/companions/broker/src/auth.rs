//! Decides who may connect, and what connected clients may publish and receive.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use mote_core::fair_queue::FairQueue;
use mote_core::seats::{Seat, Standing};
use mote_core::shares::address_owner;
use mote_process::memory::counting;
use mqtt5::broker::events::{
    BrokerEventHandler, ClientPublishEvent, PublishAction, RetainedSetEvent,
};
use mqtt5::broker::{AuthProvider, AuthResult};
use mqtt5::error::Result;
use mqtt5::packet::connect::ConnectPacket;
use mqtt5::protocol::v5::reason_codes::ReasonCode;
use parking_lot::{Mutex, RwLock};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, oneshot};

use crate::acl::{BYTES_MAX, may_publish, may_subscribe};
use crate::config::Anonymous;
use crate::kept::{ASK_TO_KEEP, Kept};
use crate::limits::{CONNECTIONS_OF_USER_MAX, MORE_CONNECTIONS_MAX, NODE_USER};
use crate::shares::Shares;
use crate::users::{FILE_NAME, PASSWORD_BYTES_MAX, User, Users, verify};

/// After this many wrong passwords from one address in a minute, no more passwords from it are
/// checked during that minute.
const FAILURES_MAX: u32 = 20;
const FAILURES_PERIOD: Duration = Duration::from_secs(60);
/// How many addresses with failures are remembered, and how many addresses with a right password.
const ADDRESSES_MAX: usize = 4_096;
/// The most passwords that wait to be checked. Above this, the broker picks the address with the
/// most waiting passwords, leaves its latest one unchecked, and answers "busy" to that client.
const CHECKS_MAX: usize = 1_000;
/// The most sessions that may outlive their connection.
pub(crate) const SESSIONS_MAX: usize = 250;
/// The most such sessions of one user.
const SESSIONS_OF_ONE_MAX: usize = 125;
/// The file in the broker's folder that records the users of sessions: client ids and names.
const OWNERS_FILE: &str = "sessions.json";
/// The most client ids whose users are remembered. One user may have at most `OWNERS_OF_ONE_MAX`
/// ids without a connection and without a session. The ids of connected clients are never
/// forgotten, and there are fewer connections than `OWNERS_MAX`.
const OWNERS_MAX: usize = 4_096;
const OWNERS_OF_ONE_MAX: usize = 512;
/// The prefix and the length of the node's own client ids.
const NODE_IDS: &str = "mote";
const NODE_ID_BYTES: usize = 23;
/// How long a message waits for free memory, and how often the memory is checked.
const BUSY_WAIT_MAX: Duration = Duration::from_secs(10);
const BUSY_LOOK: Duration = Duration::from_millis(10);
/// When a user's connections are closed to make room for others, how often the log may name that
/// user, and how many such users are remembered.
const NAMED_EVERY: Duration = Duration::from_secs(60);
const NAMED_MAX: usize = 1_024;
const CLIENT_ID_BYTES_MAX: usize = 256;

type Digest = [u8; 32];

/// The holder against whose limit a connection counts: the client's address, until its user is
/// known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    Address(IpAddr),
    User(Arc<str>),
    /// The node itself.
    Node,
}

/// The user of a client id.
#[derive(Debug)]
struct Owner {
    user: Option<String>,
    /// Whether the client's session outlives its connection.
    keeps: bool,
    /// The number of connections: two for a moment, when one takes over from another. This program
    /// counts them, because the library does not report the end of a connection that was given up.
    connections: u32,
    /// When the client last connected or disconnected.
    at: Instant,
}

/// A connection of a client.
struct Client {
    seat: Arc<Seat<Holder>>,
    /// The user for whom the connection counts, after the client was admitted with a name.
    user: Option<Arc<str>>,
    /// The client id, after it was admitted.
    id: Option<String>,
    /// Wakes the task that serves the client when the client's user is removed or changed.
    revoked: Arc<Notify>,
}

pub(crate) struct Rules {
    anonymous: Anonymous,
    /// The digest of the node's own password.
    node: Digest,
    /// Included in the digests in `proven`, so that these digests are useless outside this process.
    key: [u8; 32],
    users: RwLock<Users>,
    changed: Mutex<Option<SystemTime>>,
    /// Digests of passwords that were right. Without them, each client that reconnects after its
    /// network was restarted would cost an expensive hash.
    proven: Mutex<HashMap<String, Digest>>,
    failures: Mutex<HashMap<IpAddr, (Instant, u32)>>,
    /// Addresses from which a right password arrived.
    known: Mutex<HashSet<IpAddr>>,
    checks: Checks,
    /// Connections by the client's address. Leaves out connections to the library's own listener.
    clients: Mutex<HashMap<SocketAddr, Client>>,
    /// Users that the log has named because they hold many connections, and when it named them.
    named: Mutex<HashMap<Arc<str>, Instant>>,
    everything: Vec<String>,
    /// The user of each client id. Ids whose sessions outlive their connection are also stored in a
    /// file.
    owners: Mutex<HashMap<String, Owner>>,
    /// Whether some of these ids are missing in the file.
    unsaved: AtomicBool,
    /// The number of sessions at the last count, plus the connections since then that may have
    /// begun a session.
    pub(crate) sessions: AtomicUsize,
    /// Limits what users may publish while clients have much unread.
    shares: Arc<Shares>,
    /// The messages that the broker keeps for later subscribers.
    pub(crate) kept: Arc<Kept>,
}

impl Rules {
    pub(crate) fn new(anonymous: Anonymous, node_password: &str, key: [u8; 32]) -> Self {
        let digest = digest(&key, NODE_USER, node_password.as_bytes());
        Self {
            anonymous,
            node: digest,
            key,
            users: RwLock::default(),
            changed: Mutex::default(),
            proven: Mutex::default(),
            failures: Mutex::default(),
            known: Mutex::default(),
            checks: Checks::default(),
            clients: Mutex::default(),
            named: Mutex::default(),
            everything: vec!["#".to_owned()],
            owners: Mutex::default(),
            unsaved: AtomicBool::new(false),
            sessions: AtomicUsize::new(0),
            shares: Arc::default(),
            kept: Arc::default(),
        }
    }

    /// Reads the users again if their file has changed.
    pub(crate) fn look(&self, folder: &Path) {
        let changed = std::fs::metadata(folder.join(FILE_NAME)).and_then(|file| file.modified());
        let changed = changed.ok();
        let mut last = self.changed.lock();
        if *last == changed && changed.is_some() {
            return;
        }
        match Users::load(folder) {
            Ok(users) => {
                if *self.users.read() != users {
                    tracing::info!(users = users.users.len(), "the users were read");
                    let before = std::mem::replace(&mut *self.users.write(), users);
                    self.keep_unchanged(&before);
                    self.end_changed(&before);
                    // A device may have tried to connect before its user was added.
                    self.failures.lock().clear();
                }
            }
            Err(error) if *last == changed => drop(error),
            Err(error) => {
                tracing::error!(
                    "{FILE_NAME} cannot be used, so the users stay as they were: {error}"
                );
            }
        }
        *last = changed;
    }

    /// Reads who owned the sessions of the previous broker process, so that no user can take over
    /// the session of another user after a restart.
    pub(crate) fn remember(&self, folder: &Path) {
        let text = match std::fs::read_to_string(folder.join(OWNERS_FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => return tracing::error!("{OWNERS_FILE} cannot be read: {error}"),
        };
        let known: BTreeMap<String, Option<String>> = match serde_json::from_str(&text) {
            Ok(known) => known,
            Err(error) => return tracing::error!("{OWNERS_FILE} cannot be read: {error}"),
        };
        let at = Instant::now();
        let known = known.into_iter().take(OWNERS_MAX);
        *self.owners.lock() =
            known.map(|(id, user)| (id, Owner { user, keeps: true, connections: 0, at })).collect();
    }

    /// Writes who owns the sessions, if the owners have changed.
    pub(crate) fn save_owners(&self, folder: &Path) {
        if !self.unsaved.swap(false, Ordering::Relaxed) {
            return;
        }
        let owners = self.owners.lock();
        let keeping = owners.iter().filter(|(_, owner)| owner.keeps);
        let known: BTreeMap<_, _> = keeping.map(|(id, owner)| (id, &owner.user)).collect();
        let text = serde_json::to_string(&known).expect("names are text");
        drop(owners);
        let new = folder.join(format!("{OWNERS_FILE}.new"));
        let written = std::fs::write(&new, text)
            .and_then(|()| std::fs::rename(&new, folder.join(OWNERS_FILE)));
        if let Err(error) = written {
            tracing::error!("{OWNERS_FILE} cannot be written: {error}");
            self.unsaved.store(true, Ordering::Relaxed);
        }
    }

    /// Decides whether to admit a client. `names` are the names in the client's certificate; empty
    /// if it has shown no certificate.
    pub(crate) async fn admit(
        &self,
        connect: &ConnectPacket,
        from: SocketAddr,
        names: &[String],
    ) -> Result<AuthResult> {
        Ok(match self.check(connect, from, names).await {
            Verdict::Yes(Some(user)) => AuthResult::success_with_user(user),
            Verdict::Yes(None) => AuthResult::success(),
            Verdict::No(reason) => AuthResult::fail(reason),
        })
    }

    /// Returns the user for whom a certificate with these `names` was issued. If there are several
    /// such users, the client may choose one.
    fn certified(&self, names: &[String], wanted: Option<&str>) -> Option<String> {
        let users = &self.users.read().users;
        let is_user = |name: &&String| {
            wanted.is_none_or(|wanted| wanted == *name) && users.contains_key(*name)
        };
        names.iter().find(is_user).cloned()
    }

    async fn check(&self, connect: &ConnectPacket, at: SocketAddr, names: &[String]) -> Verdict {
        let from = at.ip().to_canonical();
        if connect.client_id.len() > CLIENT_ID_BYTES_MAX {
            return Verdict::No(ReasonCode::ClientIdentifierNotValid);
        }
        let keeps = match connect.protocol_version {
            5 => connect.properties.get_session_expiry_interval().is_some_and(|s| s > 0),
            _ => !connect.clean_start,
        };
        // A client that sends a password wants to be the user of that password.
        let certified = match &connect.password {
            None => self.certified(names, connect.username.as_deref()),
            Some(_) => None,
        };
        let user = match (&connect.username, &connect.password) {
            _ if certified.is_some() => certified,
            (None, None) => {
                let allowed = match self.anonymous {
                    Anonymous::Off => false,
                    Anonymous::Loopback => from.is_loopback(),
                    Anonymous::All => true,
                };
                if !allowed {
                    return Verdict::No(ReasonCode::NotAuthorized);
                }
                None
            }
            (Some(name), Some(password)) if password.len() <= PASSWORD_BYTES_MAX => {
                match self.is_right(name, password, from).await {
                    Some(true) => Some(name.clone()),
                    Some(false) => return Verdict::No(ReasonCode::BadUsernameOrPassword),
                    None => return Verdict::No(ReasonCode::ServerBusy),
                }
            }
            _ => return Verdict::No(ReasonCode::BadUsernameOrPassword),
        };
        if let Some(will) = &connect.will
            && !self.writes(user.as_deref(), &will.topic)
        {
            return Verdict::No(ReasonCode::NotAuthorized);
        }
        if !self.sit(at, user.as_deref()) {
            return Verdict::No(ReasonCode::ServerBusy);
        }
        if let Some(reason) = self.own(&connect.client_id, user.as_deref(), keeps) {
            return Verdict::No(reason);
        }
        self.connected(at, &connect.client_id);
        Verdict::Yes(user)
    }

    /// Notes a connection before its client has sent anything. The returned handle is notified when
    /// the client's user is removed or changed.
    pub(crate) fn enter(&self, at: SocketAddr, seat: Arc<Seat<Holder>>) -> Arc<Notify> {
        let revoked = Arc::new(Notify::new());
        let client = Client { seat, user: None, id: None, revoked: revoked.clone() };
        self.clients.lock().insert(at, client);
        revoked
    }

    /// Removes a connection.
    pub(crate) fn leave(&self, at: SocketAddr) {
        let client = self.clients.lock().remove(&at);
        if let Some(id) = client.and_then(|client| client.id) {
            self.note_connection(&id, false);
        }
    }

    /// Notes the client id of a connection for as long as the connection lasts.
    fn connected(&self, at: SocketAddr, id: &str) {
        let mut clients = self.clients.lock();
        let Some(client) = clients.get_mut(&at) else { return };
        let before = client.id.replace(id.to_owned());
        drop(clients);
        self.note_connection(id, true);
        if let Some(before) = before {
            self.note_connection(&before, false);
        }
    }

    /// Notes who a client is. From now on, a client with a name counts against its user and no
    /// longer against its address. Returns false if the connection has ended or there is no room
    /// for it.
    fn sit(&self, at: SocketAddr, user: Option<&str>) -> bool {
        let mut clients = self.clients.lock();
        let Some(client) = clients.get_mut(&at) else {
            // The library's own listener is only for the node, and counts no seats.
            return user == Some(NODE_USER);
        };
        let seat = &client.seat;
        let has_room = match user {
            None => seat.prove(Standing::Anonymous),
            Some(NODE_USER) => seat.belong(Holder::Node, MORE_CONNECTIONS_MAX, Standing::Operator),
            Some(name) => {
                let name: Arc<str> = name.into();
                client.user = Some(name.clone());
                seat.belong(Holder::User(name), CONNECTIONS_OF_USER_MAX, Standing::Proven)
            }
        };
        has_room.is_ok() && !seat.is_ended()
    }

    /// Logs the user whose connection was ended to make room for another, but not every time.
    pub(crate) fn note_displaced(&self, at: SocketAddr, held: impl Fn(&Holder) -> usize) {
        let user = self.clients.lock().get(&at).and_then(|client| client.user.clone());
        let Some(user) = user.filter(|user| self.may_name(user, Instant::now())) else { return };
        let connections = held(&Holder::User(user.clone()));
        tracing::warn!(
            user = &*user,
            connections,
            "a user holds the most connections, or all that one user may: its oldest ones end for new \
             ones"
        );
    }

    /// Whether the log may name this user now. If so, the log does not name the user again for a
    /// while.
    fn may_name(&self, user: &Arc<str>, now: Instant) -> bool {
        let mut named = self.named.lock();
        let recent = |at: &Instant| now.duration_since(*at) < NAMED_EVERY;
        if named.get(user).is_some_and(recent) {
            return false;
        }
        if named.len() >= NAMED_MAX {
            named.retain(|_, at| recent(at));
        }
        let has_room = named.len() < NAMED_MAX;
        if has_room {
            named.insert(user.clone(), now);
        }
        has_room
    }

    /// Ends the connections of users that were removed or changed since `before`. After a change of
    /// password or filters, the clients must connect again.
    fn end_changed(&self, before: &Users) {
        let users = self.users.read();
        for client in self.clients.lock().values() {
            let Some(name) = client.user.as_deref() else { continue };
            if users.users.get(name) != before.users.get(name) {
                client.revoked.notify_one();
            }
        }
    }

    /// Notes the user of a client id. An id belongs to the first user that connects with it,
    /// because the library would let any client with a clean start take over another user's
    /// session. Ids in the node's own format belong to the node.
    fn own(&self, id: &str, user: Option<&str>, keeps: bool) -> Option<ReasonCode> {
        let is_node = user == Some(NODE_USER);
        if id.len() == NODE_ID_BYTES && id.starts_with(NODE_IDS) && !is_node {
            return Some(ReasonCode::ClientIdentifierNotValid);
        }
        if is_node || id.is_empty() {
            return None;
        }
        let now = Instant::now();
        let mut owners = self.owners.lock();
        let is_known = match owners.get(id) {
            Some(owner) if owner.user.as_deref() != user => {
                return Some(ReasonCode::ClientIdentifierNotValid);
            }
            Some(owner) => owner.keeps,
            None => false,
        };
        if keeps && !is_known {
            let of_user = owners.values().filter(|one| one.keeps && one.user.as_deref() == user);
            let is_full = self.sessions.load(Ordering::Relaxed) >= SESSIONS_MAX
                || of_user.count() >= SESSIONS_OF_ONE_MAX;
            if is_full {
                return Some(ReasonCode::QuotaExceeded);
            }
            // This connection counts as a session until the sessions are counted again.
            self.sessions.fetch_add(1, Ordering::Relaxed);
        }
        let connections = owners.get(id).map(|owner| owner.connections);
        if connections.is_none() {
            forget_one(&mut owners, user);
        }
        if keeps != is_known {
            self.unsaved.store(true, Ordering::Relaxed);
        }
        let connections = connections.unwrap_or(0);
        let owner = Owner { user: user.map(str::to_owned), keeps, connections, at: now };
        owners.insert(id.to_owned(), owner);
        None
    }

    /// Notes that a client with this id connected or disconnected.
    fn note_connection(&self, id: &str, came: bool) {
        let mut owners = self.owners.lock();
        let Some(owner) = owners.get_mut(id) else { return };
        let change = if came { u32::saturating_add } else { u32::saturating_sub };
        owner.connections = change(owner.connections, 1);
        owner.at = Instant::now();
        if !came {
            let user = owner.user.clone();
            forget_own(&mut owners, user.as_deref(), OWNERS_OF_ONE_MAX);
        }
    }

    /// Forgets the proven passwords of users whose password has changed since `before`.
    fn keep_unchanged(&self, before: &Users) {
        let users = self.users.read();
        let password =
            |users: &Users, name: &String| users.users.get(name).map(|user| user.password.clone());
        self.proven.lock().retain(|name, _| {
            let now = password(&users, name);
            now.is_some() && now == password(before, name)
        });
    }

    /// The rank of an address in the queue. Addresses that sent a right password come first, then
    /// unknown addresses, then addresses that sent a wrong one.
    fn level(&self, owner: IpAddr) -> usize {
        if self.known.lock().contains(&owner) {
            return 0;
        }
        1 + usize::from(self.failures.lock().contains_key(&owner))
    }

    /// Whether a password is right. `None` if too many passwords wait to be checked.
    async fn is_right(&self, name: &str, password: &[u8], from: IpAddr) -> Option<bool> {
        let digest = digest(&self.key, name, password);
        if name == NODE_USER {
            return Some(digest == self.node);
        }
        if self.proven.lock().get(name) == Some(&digest) {
            return Some(true);
        }
        if self.is_blocked(from) {
            return Some(false);
        }
        // A name without a user takes as long to check as any other, so timing does not reveal
        // which users exist.
        let hash = self.users.read().users.get(name).map(|user| user.password.clone());
        let known = hash.is_some();
        let hash = hash.unwrap_or_else(|| {
            "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$\
             AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
                .to_owned()
        });
        let owner = address_owner(from);
        let _turn = self.checks.turn(self.level(owner), owner).await?;
        // Other passwords of the address may have failed while this one waited.
        if self.is_blocked(from) {
            return Some(false);
        }
        let copy = password.to_vec();
        let asked = hash.clone();
        let right = tokio::task::spawn_blocking(move || verify(&copy, &asked)).await;
        if known && right.unwrap_or(false) {
            let still = self.users.read().users.get(name).is_some_and(|user| user.password == hash);
            if still {
                self.proven.lock().insert(name.to_owned(), digest);
                let mut known = self.known.lock();
                if known.len() >= ADDRESSES_MAX {
                    known.clear();
                }
                known.insert(owner);
            }
            return Some(still);
        }
        self.failed(name, from);
        Some(false)
    }

    fn is_blocked(&self, from: IpAddr) -> bool {
        let failures = self.failures.lock();
        let found = failures.get(&address_owner(from));
        found.is_some_and(|(since, count)| {
            since.elapsed() < FAILURES_PERIOD && *count >= FAILURES_MAX
        })
    }

    fn failed(&self, name: &str, from: IpAddr) {
        let mut failures = self.failures.lock();
        if failures.len() >= ADDRESSES_MAX {
            failures.retain(|_, (since, _)| since.elapsed() < FAILURES_PERIOD);
            if failures.len() >= ADDRESSES_MAX {
                failures.clear();
            }
        }
        let (since, count) =
            failures.entry(address_owner(from)).or_insert_with(|| (Instant::now(), 0));
        if since.elapsed() >= FAILURES_PERIOD {
            (*since, *count) = (Instant::now(), 0);
        }
        *count += 1;
        if *count == 1 || *count == FAILURES_MAX {
            tracing::warn!(user = name, %from, count = *count, "a client gave a wrong password");
        }
    }

    fn filters(
        &self,
        user: Option<&str>,
        of: fn(&User) -> &[String],
        ask: impl Fn(&[String]) -> bool,
    ) -> bool {
        match user {
            None | Some(NODE_USER) => ask(&self.everything),
            Some(name) => self.users.read().users.get(name).is_some_and(|user| ask(of(user))),
        }
    }

    fn writes(&self, user: Option<&str>, topic: &str) -> bool {
        self.filters(user, |user| &user.write, |filters| may_publish(filters, topic))
    }

    /// Sets the limit for the library's next comparison. The library compares before any other task
    /// runs, and does not report that it has refused a message. A message with QoS 2 is compared
    /// again at its release, so the limit is soon set back to that of all namespaces.
    fn begin(&self, topic: &str, is_node: bool) {
        if !self.kept.begin(topic, is_node) {
            let kept = self.kept.clone();
            tokio::spawn(async move { kept.compared() });
        }
    }

    fn reads(&self, user: Option<&str>, filter: &str) -> bool {
        filter.len() <= BYTES_MAX
            && self.filters(user, |user| &user.read, |filters| may_subscribe(filters, filter))
    }
}

/// Makes room for another client id of `user`. A user with many ids loses one of them. If there are
/// too many ids in total, the user with the most ids loses one. Only ids without a connection are
/// forgotten, and ids with a session only after all others.
fn forget_one(owners: &mut HashMap<String, Owner>, user: Option<&str>) {
    forget_own(owners, user, OWNERS_OF_ONE_MAX - 1);
    if owners.len() < OWNERS_MAX {
        return;
    }
    let mut counts: HashMap<Option<&str>, usize> = HashMap::new();
    for owner in owners.values() {
        *counts.entry(owner.user.as_deref()).or_default() += 1;
    }
    let away = owners.iter().filter(|(_, one)| one.connections == 0);
    let count = |one: &Owner| counts.get(&one.user.as_deref()).copied();
    let found = away.min_by_key(|(_, one)| (one.keeps, Reverse(count(one)), one.at));
    if let Some(id) = found.map(|(id, _)| id.clone()) {
        owners.remove(&id);
    }
}

/// Forgets the oldest client ids of `user` that have neither a connection nor a session, until
/// `most` are left.
fn forget_own(owners: &mut HashMap<String, Owner>, user: Option<&str>, most: usize) {
    let is_own = |one: &Owner| one.connections == 0 && !one.keeps && one.user.as_deref() == user;
    let count = owners.values().filter(|one| is_own(one)).count();
    for _ in most..count {
        let own = owners.iter().filter(|(_, one)| is_own(one));
        let oldest = own.min_by_key(|(_, one)| one.at).map(|(id, _)| id.clone());
        if let Some(id) = oldest {
            owners.remove(&id);
        }
    }
}

/// Checks one password at a time, because each check needs 19 MiB and keeps a core busy. Addresses
/// take turns, so that guesses from many addresses delay a device by at most one check per address.
#[derive(Clone)]
struct Checks(Arc<Mutex<Waiting>>);

struct Waiting {
    is_checking: bool,
    queue: FairQueue<IpAddr, oneshot::Sender<Check>, 3>,
}

/// The right to check one password. It ends on drop.
struct Check(Checks);

impl Default for Checks {
    fn default() -> Self {
        let queue = FairQueue::new(CHECKS_MAX);
        Self(Arc::new(Mutex::new(Waiting { is_checking: false, queue })))
    }
}

impl Checks {
    /// Waits for the turn of an address. Returns `None` if too many wait.
    async fn turn(&self, level: usize, owner: IpAddr) -> Option<Check> {
        let receiver = {
            let mut waiting = self.0.lock();
            if !std::mem::replace(&mut waiting.is_checking, true) {
                return Some(Check(self.clone()));
            }
            let (sender, receiver) = oneshot::channel();
            // Whatever leaves the queue is dropped, which notifies its receiver.
            drop(waiting.queue.push(level, owner, sender));
            receiver
        };
        receiver.await.ok()
    }
}

impl Drop for Check {
    fn drop(&mut self) {
        let next = {
            let mut waiting = self.0.0.lock();
            let next = waiting.queue.pop();
            waiting.is_checking = next.is_some();
            next
        };
        if let Some(next) = next {
            // If the waiting client has gone, the check is dropped here, which passes the turn on.
            drop(next.send(Check(self.0.clone())));
        }
    }
}

enum Verdict {
    Yes(Option<String>),
    No(ReasonCode),
}

fn digest(key: &[u8; 32], name: &str, password: &[u8]) -> Digest {
    let mut hash = Sha256::new();
    hash.update(key);
    hash.update((name.len() as u64).to_le_bytes());
    hash.update(name.as_bytes());
    hash.update(password);
    hash.finalize().into()
}

/// Waits until clients have read enough, which slows down users who publish faster than clients
/// read. Returns false if that takes too long.
async fn memory_is_free(shares: &Shares, user: Option<&str>, topic: &str) -> bool {
    let since = Instant::now();
    while shares.waits(user, counting::allocated(), Instant::now()) {
        if since.elapsed() >= BUSY_WAIT_MAX {
            tracing::warn!(
                user,
                topic,
                "a message was refused: clients do not read what they receive"
            );
            return false;
        }
        tokio::time::sleep(BUSY_LOOK).await;
    }
    true
}

impl AuthProvider for Rules {
    fn authenticate<'a>(
        &'a self,
        connect: &'a ConnectPacket,
        from: SocketAddr,
    ) -> Pin<Box<dyn Future<Output = Result<AuthResult>> + Send + 'a>> {
        Box::pin(self.admit(connect, from, &[]))
    }

    fn authorize_publish<'a>(
        &'a self,
        _client_id: &str,
        user: Option<&'a str>,
        topic: &'a str,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        let is_node = user == Some(NODE_USER);
        if let Some(topic) = topic.strip_prefix(ASK_TO_KEEP).filter(|_| is_node) {
            return Box::pin(std::future::ready(self.kept.promise(topic, Instant::now())));
        }
        let may = self.writes(user, topic);
        if may && Shares::count(counting::allocated()) {
            return Box::pin(async move {
                let is_free = memory_is_free(&self.shares, user, topic).await;
                self.begin(topic, is_node);
                is_free
            });
        }
        if may {
            self.begin(topic, is_node);
        }
        Box::pin(std::future::ready(may))
    }

    fn authorize_subscribe<'a>(
        &'a self,
        _client_id: &str,
        user: Option<&'a str>,
        filter: &'a str,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        Box::pin(std::future::ready(self.reads(user, filter)))
    }
}

impl BrokerEventHandler for Rules {
    fn on_client_publish<'a>(
        &'a self,
        event: ClientPublishEvent,
    ) -> Pin<Box<dyn Future<Output = PublishAction> + Send + 'a>> {
        self.kept.compared();
        let before = counting::allocated();
        if Shares::count(before) && event.user_id.as_deref() != Some(NODE_USER) {
            let user = event.user_id;
            let bytes = event.payload.len() + event.topic.len();
            self.shares.published(user.clone(), bytes, Instant::now());
            // The library reports only the size of the payload, but each receiver has a copy of the
            // rest too. This task begins after the library has passed the message on, so it can
            // measure the growth.
            let shares = self.shares.clone();
            tokio::spawn(async move {
                let grown = counting::allocated().saturating_sub(before);
                shares.published(user, grown.saturating_sub(bytes), Instant::now());
            });
        }
        Box::pin(std::future::ready(PublishAction::Continue))
    }

    fn on_retained_set<'a>(
        &'a self,
        event: RetainedSetEvent,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.kept.changed(&event.topic, !event.cleared);
        Box::pin(std::future::ready(()))
    }
}

#[cfg(test)]
mod tests {
    use mote_core::seats::Seats;

    use super::*;

    #[test]
    fn a_changed_users_file_forgets_only_the_passwords_that_it_changes() {
        let rules = Rules::new(Anonymous::All, "", [0; 32]);
        let user = |password: &str| User {
            password: password.to_owned(),
            read: Vec::new(),
            write: Vec::new(),
        };
        let users = |all: &[(&str, &str)]| Users {
            users: all.iter().map(|(name, hash)| ((*name).to_owned(), user(hash))).collect(),
        };
        let before = users(&[("same", "1"), ("changed", "2"), ("gone", "3")]);
        for name in before.users.keys() {
            rules.proven.lock().insert(name.clone(), [0; 32]);
        }
        *rules.users.write() = users(&[("same", "1"), ("changed", "4"), ("new", "5")]);
        rules.keep_unchanged(&before);
        assert_eq!(rules.proven.lock().keys().collect::<Vec<_>>(), ["same"]);
    }

    /// Returns rules with users, and a connection that was admitted as `user`.
    fn admitted(
        rules: &Rules,
        seats: &Seats<Holder>,
        number: u16,
        user: Option<&str>,
    ) -> (Arc<Seat<Holder>>, Arc<Notify>) {
        let address = IpAddr::from([192, 0, 2, u8::try_from(number % 8).expect("small")]);
        let at = SocketAddr::new(address, 1_024 + number);
        let seat = Arc::new(seats.take(Holder::Address(address)).expect("room can be made"));
        let revoked = rules.enter(at, seat.clone());
        assert!(rules.sit(at, user), "{number}");
        (seat, revoked)
    }

    #[test]
    fn one_user_leaves_connections_to_others_and_to_the_node() {
        let rules = Rules::new(Anonymous::Loopback, "", [0; 32]);
        let seats = crate::seats();
        let greedy: Vec<_> =
            (0..1_200).map(|at| admitted(&rules, &seats, at, Some("bob")).0).collect();
        assert_eq!(seats.taken_by(&Holder::User("bob".into())), CONNECTIONS_OF_USER_MAX);
        assert!(greedy[..1_200 - CONNECTIONS_OF_USER_MAX].iter().all(|seat| seat.is_ended()));
        // Another client that would need all the remaining seats makes room as well.
        let second: Vec<_> =
            (1_200..2_400).map(|at| admitted(&rules, &seats, at, Some("eve")).0).collect();
        let device = admitted(&rules, &seats, 3_000, Some("alice"));
        let local = admitted(&rules, &seats, 3_001, None);
        let node: Vec<_> =
            (3_100..3_164).map(|at| admitted(&rules, &seats, at, Some(NODE_USER)).0).collect();
        let more: Vec<_> =
            (4_000..5_200).map(|at| admitted(&rules, &seats, at, Some("bob")).0).collect();
        assert!(!device.0.is_ended() && !local.0.is_ended());
        assert!(node.iter().all(|seat| !seat.is_ended()));
        drop((greedy, second, more));
    }

    #[test]
    fn connections_of_users_that_are_removed_or_changed_end() {
        let rules = Rules::new(Anonymous::All, "", [0; 32]);
        let user = |password: &str, filter: &str| User {
            password: password.to_owned(),
            read: vec![filter.to_owned()],
            write: Vec::new(),
        };
        let users = |all: &[(&str, User)]| Users {
            users: all.iter().map(|(name, one)| ((*name).to_owned(), one.clone())).collect(),
        };
        let before = users(&[
            ("same", user("1", "a")),
            ("password", user("1", "a")),
            ("filter", user("1", "a")),
            ("gone", user("1", "a")),
        ]);
        *rules.users.write() = users(&[
            ("same", user("1", "a")),
            ("password", user("2", "a")),
            ("filter", user("1", "b")),
        ]);
        let seats = crate::seats();
        let names = [Some("same"), Some("password"), Some("filter"), Some("gone"), None];
        let clients: Vec<_> =
            (0..).zip(names).map(|(at, name)| admitted(&rules, &seats, at, name)).collect();
        rules.end_changed(&before);
        let ended = |(_, revoked): &(_, Arc<Notify>)| {
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            std::pin::pin!(revoked.notified()).poll(&mut cx).is_ready()
        };
        assert_eq!(clients.iter().map(ended).collect::<Vec<_>>(), [false, true, true, true, false]);
    }

    #[test]
    fn the_log_names_a_user_now_and_then() {
        let rules = Rules::new(Anonymous::All, "", [0; 32]);
        let bob = Arc::from("bob");
        let start = Instant::now();
        for (seconds, expected) in [(0, true), (1, false), (59, false), (60, true), (61, false)] {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(rules.may_name(&bob, now), expected, "after {seconds} s");
        }
        assert!(rules.may_name(&Arc::from("alice"), start));
    }

    #[test]
    fn only_the_node_is_admitted_where_no_seats_are_counted() {
        let rules = Rules::new(Anonymous::All, "", [0; 32]);
        let at = SocketAddr::from(([127, 0, 0, 1], 1));
        assert!(rules.sit(at, Some(NODE_USER)));
        assert!(!rules.sit(at, None) && !rules.sit(at, Some("bob")));
    }

    #[test]
    fn guesses_of_many_addresses_wait_behind_those_of_which_nothing_bad_is_known() {
        use std::pin::pin;
        use std::task::{Context, Poll, Waker};

        let rules = Rules::new(Anonymous::All, "", [0; 32]);
        let address = |last: u8| IpAddr::from([192, 0, 2, last]);
        for last in 1..=200 {
            rules.failed("x", address(last));
        }
        rules.known.lock().insert(address(250));
        let turn = |last| {
            let checks = rules.checks.clone();
            let owner = address(last);
            let level = rules.level(owner);
            Box::pin(async move { checks.turn(level, owner).await })
        };
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(Some(first)) = pin!(turn(1)).poll(&mut cx) else { panic!("it is free") };
        let mut guesses: Vec<_> = (1..=200).flat_map(|last| [turn(last), turn(last)]).collect();
        assert!(guesses.iter_mut().all(|guess| guess.as_mut().poll(&mut cx).is_pending()));
        let mut device = turn(240);
        let mut known = turn(250);
        assert!(device.as_mut().poll(&mut cx).is_pending());
        assert!(known.as_mut().poll(&mut cx).is_pending());
        drop(first);
        let Poll::Ready(Some(check)) = known.as_mut().poll(&mut cx) else { panic!("not first") };
        drop(check);
        let Poll::Ready(Some(check)) = device.as_mut().poll(&mut cx) else { panic!("not second") };
        // Then one guess from each address is checked before the second guess from any address.
        drop((known, device, check));
        for at in (0..guesses.len()).step_by(2) {
            let polled = guesses[at].as_mut().poll(&mut cx);
            let Poll::Ready(Some(check)) = polled else { panic!("{at} is not next") };
            drop(check);
        }
        // Clients that have left are skipped.
        drop(guesses.drain(1..));
        assert!(pin!(turn(1)).poll(&mut cx).is_ready());
    }

    #[test]
    fn a_certificate_is_compared_with_the_names_of_users() {
        let rules = Rules::new(Anonymous::All, "", [0; 32]);
        let user = || User { password: String::new(), read: Vec::new(), write: Vec::new() };
        for name in ["pump", "pump.example"] {
            rules.users.write().users.insert(name.to_owned(), user());
        }
        for (names, wanted, expected) in [
            (&["pump"][..], None, Some("pump")),
            (&["hall", "pump.example", "pump"], None, Some("pump.example")),
            (&["hall", "pump.example", "pump"], Some("pump"), Some("pump")),
            (&["pump"], Some("pump.example"), None),
            (&["hall"], None, None),
            (&["hall"], Some("hall"), None),
            (&[NODE_USER], None, None),
            (&[NODE_USER], Some(NODE_USER), None),
            (&[], Some("pump"), None),
        ] {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            let found = rules.certified(&names, wanted);
            assert_eq!(found.as_deref(), expected, "{names:?} {wanted:?}");
        }
    }

    #[test]
    fn client_ids_of_connections_that_end_together_become_free() {
        let rules = Rules::new(Anonymous::Off, "", [0; 32]);
        let seats = crate::seats();
        let address = |at| SocketAddr::from(([192, 0, 2, 1], at));
        let count = 2 * u16::try_from(OWNERS_OF_ONE_MAX).expect("small");
        for at in 1..=count {
            let seat = seats.take(Holder::Address(address(at).ip())).expect("room can be made");
            let id = format!("bob-{at}");
            rules.enter(address(at), Arc::new(seat));
            assert_eq!(rules.own(&id, Some("bob"), false), None);
            rules.connected(address(at), &id);
        }
        assert_eq!(rules.owners.lock().len(), usize::from(count), "all are connected");
        // The connections end without a report, because the library may not report how a connection
        // ends.
        (1..=count).for_each(|at| rules.leave(address(at)));
        assert_eq!(rules.owners.lock().len(), OWNERS_OF_ONE_MAX);
        assert_eq!(rules.own("bob-1", Some("alice"), false), None, "the oldest is free");
        assert!(rules.own(&format!("bob-{count}"), Some("alice"), false).is_some());
    }

    #[test]
    fn a_user_with_many_client_ids_loses_its_own() {
        let rules = Rules::new(Anonymous::Off, "", [0; 32]);
        let taken = Some(ReasonCode::ClientIdentifierNotValid);
        for id in ["idle", "online"] {
            assert_eq!(rules.own(id, Some("alice"), false), None);
        }
        rules.note_connection("online", true);
        assert_eq!(rules.own("held", Some("bob"), false), None);
        rules.note_connection("held", true);
        assert_eq!(rules.own("away", Some("bob"), true), None);
        for at in 0..2 * OWNERS_OF_ONE_MAX {
            assert_eq!(rules.own(&format!("bob-{at}"), Some("bob"), false), None);
        }
        for id in ["held", "away", "bob-1023"] {
            assert_eq!(rules.own(id, Some("alice"), false), taken, "{id}");
        }
        assert_eq!(rules.own("bob-0", Some("alice"), false), None, "the oldest is free");

        // If many users together have too many ids, the users with the most ids lose some.
        for at in 0..2 * OWNERS_MAX {
            let user = format!("user-{}", at % 16);
            assert_eq!(rules.own(&format!("{user}-{at}"), Some(&user), false), None);
            assert!(rules.owners.lock().len() <= OWNERS_MAX);
        }
        for id in ["idle", "online"] {
            assert_eq!(rules.own(id, Some("bob"), false), taken, "{id}");
        }
        for id in ["held", "away"] {
            assert_eq!(rules.own(id, Some("alice"), false), taken, "{id}");
        }
    }
}
