//! Who may connect, and what they may publish and receive.

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

/// Wrong passwords of an address in a minute, after which its passwords are not checked any more
/// in that minute.
const FAILURES_MAX: u32 = 20;
const FAILURES_PERIOD: Duration = Duration::from_secs(60);
/// Addresses with failures that are remembered, and those from which a right password came.
const ADDRESSES_MAX: usize = 4_096;
/// Passwords that wait to be checked. Beyond that, the latest one of the address with the most of them
/// is not checked, and the broker answers its client that it is busy.
const CHECKS_MAX: usize = 1_000;
/// Sessions that may outlive their connection.
pub(crate) const SESSIONS_MAX: usize = 250;
/// Those of one user.
const SESSIONS_OF_ONE_MAX: usize = 125;
/// The file with the users of sessions, in the folder of the broker: client ids and names.
const OWNERS_FILE: &str = "sessions.json";
/// Client ids whose users are remembered, and those of one user that have neither a connection nor a
/// session. Those of connected clients are never forgotten, and there are fewer connections than this.
const OWNERS_MAX: usize = 4_096;
const OWNERS_OF_ONE_MAX: usize = 512;
/// The beginning and the length of the client ids of the node itself.
const NODE_IDS: &str = "mote";
const NODE_ID_BYTES: usize = 23;
/// How long a message waits for memory, and how often that is looked at.
const BUSY_WAIT_MAX: Duration = Duration::from_secs(10);
const BUSY_LOOK: Duration = Duration::from_millis(10);
/// How often the log names a user whose connections are closed to make room for others, and how
/// many such users are remembered.
const NAMED_EVERY: Duration = Duration::from_secs(60);
const NAMED_MAX: usize = 1_024;
const CLIENT_ID_BYTES_MAX: usize = 256;

type Digest = [u8; 32];

/// Whom a connection counts for: the address that it comes from, until its user is known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    Address(IpAddr),
    User(Arc<str>),
    /// The node itself.
    Node,
}

/// Who uses a client id.
#[derive(Debug)]
struct Owner {
    user: Option<String>,
    /// Whether the session outlives its connection.
    keeps: bool,
    /// Its connections: two for a moment, when one takes over from another. They are counted by this
    /// program, because the library does not tell the end of a connection that was given up.
    connections: u32,
    /// When it connected or left last.
    at: Instant,
}

/// A connection of a client.
struct Client {
    seat: Arc<Seat<Holder>>,
    /// Whom it counts for, once it is admitted with a name.
    user: Option<Arc<str>>,
    /// Its client id, once that is admitted.
    id: Option<String>,
    /// Wakes whoever serves it when the user is removed or changed.
    revoked: Arc<Notify>,
}

pub(crate) struct Rules {
    anonymous: Anonymous,
    /// Of the node's own password.
    node: Digest,
    /// Makes the digests of `proven` useless elsewhere.
    key: [u8; 32],
    users: RwLock<Users>,
    changed: Mutex<Option<SystemTime>>,
    /// Digests of passwords that were right, so that clients that come back after a restart of
    /// their network do not cost a hash each.
    proven: Mutex<HashMap<String, Digest>>,
    failures: Mutex<HashMap<IpAddr, (Instant, u32)>>,
    /// Addresses from which a right password came.
    known: Mutex<HashSet<IpAddr>>,
    checks: Checks,
    /// Connections by the address of the client, apart from those at the library's own listener.
    clients: Mutex<HashMap<SocketAddr, Client>>,
    /// Users that the log has named because they hold many connections, and when.
    named: Mutex<HashMap<Arc<str>, Instant>>,
    everything: Vec<String>,
    /// Who uses a client id. Those whose sessions outlive their connection are in a file as well.
    owners: Mutex<HashMap<String, Owner>>,
    /// Whether that file lacks some of them.
    unsaved: AtomicBool,
    /// Sessions that existed when they were counted last, and connections since then that may have
    /// begun another one.
    pub(crate) sessions: AtomicUsize,
    /// What users may still publish while clients hold much unread.
    shares: Arc<Shares>,
    /// What the broker keeps for later subscribers.
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
                    // A device may have tried before its user was added.
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

    /// Reads who owned the sessions of the broker that ran before this one, so that nobody takes
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

    /// Writes who owns the sessions, if that has changed.
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

    /// Decides about a client that has shown a certificate with these `names`, or none.
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

    /// The user for whom a certificate with these `names` stands. A client may say which one of them
    /// it wants to be.
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
        // A client that sends a password wants to be the user that the password proves.
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

    /// Notes a connection before its client has sent anything. What is returned is woken when the user of
    /// the client is removed or changed.
    pub(crate) fn enter(&self, at: SocketAddr, seat: Arc<Seat<Holder>>) -> Arc<Notify> {
        let revoked = Arc::new(Notify::new());
        let client = Client { seat, user: None, id: None, revoked: revoked.clone() };
        self.clients.lock().insert(at, client);
        revoked
    }

    /// Forgets a connection.
    pub(crate) fn leave(&self, at: SocketAddr) {
        let client = self.clients.lock().remove(&at);
        if let Some(id) = client.and_then(|client| client.id) {
            self.note_connection(&id, false);
        }
    }

    /// Notes the client id of a connection, until it ends.
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

    /// Notes who a client is. From now on, a client with a name counts for its user and no longer for its
    /// address. With `false`, its connection has ended, or there is no room for it.
    fn sit(&self, at: SocketAddr, user: Option<&str>) -> bool {
        let mut clients = self.clients.lock();
        let Some(client) = clients.get_mut(&at) else {
            // The library's own listener, which counts no seats, is for the node alone.
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

    /// Names the user in the log whose connection has ended for another one, now and then.
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

    /// Whether the log may name this user now. It does not name it again for a while.
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

    /// Ends the connections of users that were removed, or that are no longer as `before`: with another
    /// password or other filters, they have to connect again.
    fn end_changed(&self, before: &Users) {
        let users = self.users.read();
        for client in self.clients.lock().values() {
            let Some(name) = client.user.as_deref() else { continue };
            if users.users.get(name) != before.users.get(name) {
                client.revoked.notify_one();
            }
        }
    }

    /// Notes who uses a client id. The library lets anybody who begins anew take the session of
    /// another user, so an id belongs to the first user that connects with it. Ids of the
    /// form of the node's own belong to the node.
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
            // Until they are counted again.
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

    /// Notes that a client with this id came or left.
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

    /// Forgets the proven passwords of users whose password is another one than `before`.
    fn keep_unchanged(&self, before: &Users) {
        let users = self.users.read();
        let password =
            |users: &Users, name: &String| users.users.get(name).map(|user| user.password.clone());
        self.proven.lock().retain(|name, _| {
            let now = password(&users, name);
            now.is_some() && now == password(before, name)
        });
    }

    /// How long an address waits for others: first those from which a right password came, then those
    /// of which nothing is known, then those from which a wrong one came.
    fn level(&self, owner: IpAddr) -> usize {
        if self.known.lock().contains(&owner) {
            return 0;
        }
        1 + usize::from(self.failures.lock().contains_key(&owner))
    }

    /// Whether a password is right; `None` if too many wait to be checked.
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
        // Names that do not exist take as long as others.
        let hash = self.users.read().users.get(name).map(|user| user.password.clone());
        let known = hash.is_some();
        let hash = hash.unwrap_or_else(|| {
            "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$\
             AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
                .to_owned()
        });
        let owner = address_owner(from);
        let _turn = self.checks.turn(self.level(owner), owner).await?;
        // While this one waited, others of its address may have failed.
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

    /// Sets the limit with which the library compares next. It compares before any other task runs, and
    /// does not tell that it refused a message. Messages with QoS 2 are compared again when they are
    /// released, so the limit is soon that of all namespaces again.
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

/// Makes room for another client id of `user`: a user with many ids loses an own one. If there are too
/// many in total, one of the user with the most is forgotten. Only ids without a connection are, and
/// those with a session after all others.
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

/// Forgets the oldest client ids of `user` without a connection and a session, until `most` are left.
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

/// Checks one password at a time, because each check needs 19 MiB and the time of a core. Addresses take
/// turns, so that guesses from many of them delay a device by one check each at most.
#[derive(Clone)]
struct Checks(Arc<Mutex<Waiting>>);

struct Waiting {
    is_checking: bool,
    queue: FairQueue<IpAddr, oneshot::Sender<Check>, 3>,
}

/// The right to check a password, until it is dropped.
struct Check(Checks);

impl Default for Checks {
    fn default() -> Self {
        let queue = FairQueue::new(CHECKS_MAX);
        Self(Arc::new(Mutex::new(Waiting { is_checking: false, queue })))
    }
}

impl Checks {
    /// Waits for the turn of an address; `None` if too many wait.
    async fn turn(&self, level: usize, owner: IpAddr) -> Option<Check> {
        let receiver = {
            let mut waiting = self.0.lock();
            if !std::mem::replace(&mut waiting.is_checking, true) {
                return Some(Check(self.clone()));
            }
            let (sender, receiver) = oneshot::channel();
            // Dropping what leaves the queue tells its receiver.
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
            // If its client has gone, the check is dropped here, which passes it on.
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

/// Waits until clients have read what they hold, so that whoever publishes more than they read is
/// slowed down; false if that takes too long.
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
            // The library tells the size of the payload alone, and each receiver has a copy of the
            // rest. This task begins after the library has passed the message on.
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

    /// Rules with users, and a connection that is admitted as `user`.
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
        // Another one that would need all the rest makes room as well.
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
        // Then one of each address, before the second one of any.
        drop((known, device, check));
        for at in (0..guesses.len()).step_by(2) {
            let polled = guesses[at].as_mut().poll(&mut cx);
            let Poll::Ready(Some(check)) = polled else { panic!("{at} is not next") };
            drop(check);
        }
        // Clients that leave are skipped.
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
        // In whatever way they end, the library may say nothing about it.
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

        // Many users together: those with the most ids lose some.
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
