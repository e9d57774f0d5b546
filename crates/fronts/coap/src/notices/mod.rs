//! Passes states that functions publish to the observers of their resources.
//!
//! A front that offers observation has a [`Feed`] and holds a [`Watch`] for each observer. When a
//! function publishes the state of a resource, the feeds that watch the resource learn of the
//! change. They read the latest state when they can send it. A newer state replaces a state that
//! has not been read yet, so a slow observer costs no memory. Such an observer sees fewer states,
//! but always the last one.
//!
//! A function can also report only that a resource changed. The node then asks the function for the
//! state with GET, once for each observed resource, and publishes the answer
//! ([`Notices::begin_asking`], [`Notices::asked`]).

mod metrics;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use mote_core::services::NOTICE_BODY_BYTES_MAX;
use mote_core::shares::{Exceeded, Share, Shares, address_owner};
use mote_spec::FunctionName;

pub use metrics::NoticeMetrics;

/// The limit of observers on a node. A single address or function may have at most half of them,
/// and the namespaces divide them among themselves ([`Shares::even`]).
pub const OBSERVERS_MAX: usize = 4_096;
/// The limit of bytes of the latest states of observed resources. One function may have at most
/// half of them, and the namespaces divide them among themselves.
pub const STATE_BYTES_MAX: usize = 16 << 20;
/// The largest body of a published state.
pub const BODY_BYTES_MAX: usize = NOTICE_BODY_BYTES_MAX;
/// The largest total length of path, query and format of a resource that can be observed.
pub const RESOURCE_BYTES_MAX: usize = 1_024;
/// The bytes counted for each state in addition to its own length.
const STATE_OVERHEAD_BYTES: usize = 256;

/// The parts of a GET that identify an observed resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Resource {
    pub function: FunctionName,
    /// The first segment of the request's path: the function's name, or `NAME@TAG`.
    pub route: String,
    /// The path below the function, with its leading `/`.
    pub path: Vec<u8>,
    /// The query without `?`.
    pub query: Vec<u8>,
    /// The value of the `accept` field. Empty if there is none.
    pub accept: Vec<u8>,
}

/// A state of a resource, in the form of an answer to GET.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// The HTTP status. A status of 300 or more ends the observation of the resource.
    pub status: u16,
    pub headers: Bytes,
    /// The whole body.
    pub body: Bytes,
}

/// Counters for operators.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    pub observers: usize,
    /// States that were published for at least one observer.
    pub published: u64,
    /// Notifications that fronts have sent.
    pub sent: u64,
    /// Observers that did not acknowledge a notification or that rejected one.
    pub lost: u64,
}

/// The observed resources of a node. A clone is cheap and refers to the same resources.
#[derive(Clone)]
pub struct Notices(Arc<Inner>);

struct Inner {
    /// While this lock is held, no other locks are taken except those inside the shares.
    table: Mutex<Table>,
    /// The number of entries in the table, so that the front learns without the lock whether there
    /// are observers.
    observed: AtomicUsize,
    by_function: Shares<FunctionName>,
    by_address: Shares<IpAddr>,
    by_namespace: Shares<Namespace>,
    bytes: Shares<FunctionName>,
    bytes_by_namespace: Shares<Namespace>,
    published: AtomicU64,
    sent: AtomicU64,
    lost: AtomicU64,
}

/// The namespace of a function. `None` is the default namespace.
type Namespace = Option<Arc<str>>;

fn namespace_of(function: &FunctionName) -> Namespace {
    function.namespace().map(Into::into)
}

#[derive(Default)]
struct Table {
    entries: HashMap<u64, Entry>,
    ids: HashMap<Arc<Resource>, u64>,
    paths: HashMap<FunctionName, HashMap<Vec<u8>, Vec<u64>>>,
    feeds: HashMap<u64, Told>,
    next: u64,
}

struct Entry {
    resource: Arc<Resource>,
    version: u64,
    latest: Option<Arc<Held>>,
    watchers: Vec<Watcher>,
    asking: Asking,
}

struct Held {
    state: State,
    _bytes: (Share<FunctionName>, Share<Namespace>),
}

/// The watches that one feed has on one resource.
struct Watcher {
    feed: u64,
    watches: usize,
    told: bool,
}

/// Whether the node is asking the function for the state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asking {
    No,
    Running,
    /// The resource has changed since the running question began.
    Again,
}

#[derive(Default)]
struct Told {
    changed: Vec<u64>,
    waker: Option<Waker>,
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Notices").field(&self.figures()).finish()
    }
}

impl Default for Notices {
    fn default() -> Self {
        Self::new(OBSERVERS_MAX, STATE_BYTES_MAX)
    }
}

impl Notices {
    /// Allows at most this many observers and this many bytes of states.
    pub fn new(observers_max: usize, state_bytes_max: usize) -> Self {
        let half = |total: usize| (total / 2).max(1);
        Self(Arc::new(Inner {
            table: Mutex::default(),
            observed: AtomicUsize::new(0),
            // The totals are limited by the shares of the namespaces.
            by_function: Shares::new(usize::MAX, half(observers_max)),
            by_address: Shares::new(usize::MAX, half(observers_max)),
            by_namespace: Shares::even(observers_max),
            bytes: Shares::new(usize::MAX, half(state_bytes_max)),
            bytes_by_namespace: Shares::even(state_bytes_max),
            published: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }))
    }

    /// Whether there are no observers. Does not lock.
    pub fn is_idle(&self) -> bool {
        self.0.observed.load(Ordering::Acquire) == 0
    }

    /// The counters for operators.
    pub fn figures(&self) -> Figures {
        Figures {
            observers: self.0.by_function.taken(),
            published: self.0.published.load(Ordering::Relaxed),
            sent: self.0.sent.load(Ordering::Relaxed),
            lost: self.0.lost.load(Ordering::Relaxed),
        }
    }

    /// Notes that a notification was sent.
    pub fn count_sent(&self) {
        self.0.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that an observer did not acknowledge a notification or that it rejected one.
    pub fn count_lost(&self) {
        self.0.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes a feed for a front. When the feed is dropped, its watches end.
    pub fn feed(&self) -> Feed {
        let mut table = self.0.lock();
        table.next += 1;
        let id = table.next;
        table.feeds.insert(id, Told::default());
        Feed { notices: self.clone(), id }
    }

    /// Publishes a state of a path. With a `query`, only the observers with this query receive the
    /// state, otherwise all observers of the path. Returns the number of observers that receive it.
    pub fn publish(
        &self,
        function: &FunctionName,
        path: &[u8],
        query: Option<&[u8]>,
        state: State,
    ) -> Result<usize, Exceeded> {
        if self.is_idle() {
            return Ok(0);
        }
        let mut table = self.0.lock();
        let ids = table.find(function, path, query);
        if ids.is_empty() {
            return Ok(0);
        }
        let held = self.hold(function, state)?;
        let mut observers = 0;
        let mut wakers = Vec::new();
        for id in ids {
            observers += table.set(id, held.clone(), &mut wakers);
        }
        drop(table);
        self.0.published.fetch_add(1, Ordering::Relaxed);
        wakers.into_iter().for_each(Waker::wake);
        Ok(observers)
    }

    /// Ends the observations of a function that was removed.
    pub fn end(&self, function: &FunctionName) {
        if self.is_idle() {
            return;
        }
        let mut table = self.0.lock();
        let paths = table.paths.get(function);
        let ids: Vec<u64> =
            paths.into_iter().flat_map(|paths| paths.values().flatten().copied()).collect();
        // Earlier states no longer matter, and freeing their bytes makes room for the final state.
        for id in &ids {
            if let Some(entry) = table.entries.get_mut(id) {
                entry.latest = None;
            }
        }
        let body = Bytes::from_static(b"the function was removed");
        let state = State { status: 404, headers: Bytes::new(), body };
        let Ok(held) = self.hold(function, state) else { return };
        let mut wakers = Vec::new();
        for id in ids {
            table.set(id, held.clone(), &mut wakers);
        }
        drop(table);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Begins to ask the function for the states of a path. Returns the observed resources for
    /// which the function must be asked now, each with a [`Question`] for [`Notices::asked`], and
    /// the number of observers. A resource that is already being asked for is left out and is asked
    /// for again afterwards.
    pub fn begin_asking(
        &self,
        function: &FunctionName,
        path: &[u8],
        query: Option<&[u8]>,
    ) -> (Vec<(Question, Arc<Resource>)>, usize) {
        let mut questions = Vec::new();
        let mut observers = 0;
        if self.is_idle() {
            return (questions, observers);
        }
        let mut table = self.0.lock();
        for id in table.find(function, path, query) {
            let Some(entry) = table.entries.get_mut(&id) else { continue };
            observers += entry.watchers.iter().map(|watcher| watcher.watches).sum::<usize>();
            if entry.asking == Asking::No {
                entry.asking = Asking::Running;
                let question = Question { id, version: entry.version };
                questions.push((question, entry.resource.clone()));
            } else {
                entry.asking = Asking::Again;
            }
        }
        (questions, observers)
    }

    /// Publishes the answer to a question, unless a newer state has been published meanwhile.
    /// Returns the next question if the resource has changed again.
    pub fn asked(&self, question: Question, state: State) -> Option<Question> {
        let mut table = self.0.lock();
        let entry = table.entries.get_mut(&question.id)?;
        let again = std::mem::replace(&mut entry.asking, Asking::No) == Asking::Again;
        let mut wakers = Vec::new();
        if entry.version == question.version {
            let function = entry.resource.function.clone();
            // If there is no room for the state, observers keep their previous state.
            if let Ok(held) = self.hold(&function, state) {
                table.set(question.id, held, &mut wakers);
                self.0.published.fetch_add(1, Ordering::Relaxed);
            }
        }
        let next = table.entries.get_mut(&question.id).filter(|_| again).map(|entry| {
            entry.asking = Asking::Running;
            Question { version: entry.version, ..question }
        });
        drop(table);
        wakers.into_iter().for_each(Waker::wake);
        next
    }

    fn hold(&self, function: &FunctionName, state: State) -> Result<Arc<Held>, Exceeded> {
        let bytes = state.body.len() + state.headers.len() + STATE_OVERHEAD_BYTES;
        let of_function = self.0.bytes.take(function.clone(), bytes)?;
        let of_namespace = self.0.bytes_by_namespace.take(namespace_of(function), bytes)?;
        Ok(Arc::new(Held { state, _bytes: (of_function, of_namespace) }))
    }
}

/// A running request that asks a function for the state of a resource.
#[derive(Debug, Clone, Copy)]
pub struct Question {
    id: u64,
    version: u64,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // No code panics while holding this lock, so the table is correct even if the lock is
        // poisoned.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn find(&self, function: &FunctionName, path: &[u8], query: Option<&[u8]>) -> Vec<u64> {
        let Some(ids) = self.paths.get(function).and_then(|paths| paths.get(path)) else {
            return Vec::new();
        };
        let wanted = |id: &&u64| {
            query.is_none_or(|query| {
                self.entries.get(id).is_some_and(|entry| entry.resource.query == query)
            })
        };
        ids.iter().filter(wanted).copied().collect()
    }

    /// Sets the latest state of a resource. Returns the number of its observers.
    fn set(&mut self, id: u64, held: Arc<Held>, wakers: &mut Vec<Waker>) -> usize {
        let Some(entry) = self.entries.get_mut(&id) else { return 0 };
        entry.version += 1;
        entry.latest = Some(held);
        let mut observers = 0;
        for watcher in &mut entry.watchers {
            observers += watcher.watches;
            if let Some(feed) = self.feeds.get_mut(&watcher.feed)
                && !std::mem::replace(&mut watcher.told, true)
            {
                feed.changed.push(id);
                wakers.extend(feed.waker.take());
            }
        }
        observers
    }

    /// Ends one watch. Returns `true` if it was the last watch on the resource.
    fn unwatch(&mut self, id: u64, feed: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        if let Some(at) = entry.watchers.iter().position(|watcher| watcher.feed == feed) {
            entry.watchers[at].watches -= 1;
            if entry.watchers[at].watches == 0 {
                entry.watchers.swap_remove(at);
            }
        }
        if !entry.watchers.is_empty() {
            return false;
        }
        let Some(entry) = self.entries.remove(&id) else { return false };
        self.ids.remove(&entry.resource);
        let Resource { function, path, .. } = &*entry.resource;
        if let Some(paths) = self.paths.get_mut(function) {
            if let Some(ids) = paths.get_mut(path) {
                ids.retain(|other| *other != id);
                if ids.is_empty() {
                    paths.remove(path);
                }
            }
            if paths.is_empty() {
                self.paths.remove(function);
            }
        }
        true
    }
}

/// Receives the changes of the resources that one front watches.
pub struct Feed {
    notices: Notices,
    id: u64,
}

impl Feed {
    /// Watches a resource for an observer at this address. Dropping the [`Watch`] ends the
    /// observation.
    pub fn watch(&self, resource: Resource, address: IpAddr) -> Result<Watch, Exceeded> {
        let Resource { path, query, accept, route, .. } = &resource;
        if path.len() + query.len() + accept.len() + route.len() > RESOURCE_BYTES_MAX {
            return Err(Exceeded::Share);
        }
        let inner = &self.notices.0;
        let of_function = inner.by_function.take(resource.function.clone(), 1)?;
        let of_address = inner.by_address.take(address_owner(address), 1)?;
        let of_namespace = inner.by_namespace.take(namespace_of(&resource.function), 1)?;
        let mut table = inner.lock();
        let id = match table.ids.get(&resource) {
            Some(id) => *id,
            None => {
                table.next += 1;
                let id = table.next;
                let resource = Arc::new(resource);
                let paths = table.paths.entry(resource.function.clone()).or_default();
                paths.entry(resource.path.clone()).or_default().push(id);
                table.ids.insert(resource.clone(), id);
                let watchers = Vec::new();
                let asking = Asking::No;
                let entry = Entry { resource, version: 0, latest: None, watchers, asking };
                table.entries.insert(id, entry);
                inner.observed.fetch_add(1, Ordering::Release);
                id
            }
        };
        let entry = table.entries.get_mut(&id).expect("it was found or added above");
        let version = entry.version;
        match entry.watchers.iter_mut().find(|watcher| watcher.feed == self.id) {
            Some(watcher) => watcher.watches += 1,
            None => entry.watchers.push(Watcher { feed: self.id, watches: 1, told: false }),
        }
        drop(table);
        let notices = self.notices.clone();
        let feed = self.id;
        Ok(Watch { notices, feed, id, version, _shares: (of_function, of_address, of_namespace) })
    }

    /// Appends the numbers of the changed resources ([`Watch::resource`]) to `changed`. If there
    /// are none, the task is woken at the next change.
    pub fn poll_changed(&self, cx: &mut Context<'_>, changed: &mut Vec<u64>) -> Poll<()> {
        let mut table = self.notices.0.lock();
        let Some(told) = table.feeds.get_mut(&self.id) else { return Poll::Pending };
        if told.changed.is_empty() {
            if !told.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                told.waker = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        let first = changed.len();
        changed.append(&mut told.changed);
        for id in &changed[first..] {
            let Some(entry) = table.entries.get_mut(id) else { continue };
            for watcher in entry.watchers.iter_mut().filter(|watcher| watcher.feed == self.id) {
                watcher.told = false;
            }
        }
        Poll::Ready(())
    }

    pub fn notices(&self) -> &Notices {
        &self.notices
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.notices.0.lock().feeds.remove(&self.id);
    }
}

/// The observation of a resource by one observer.
pub struct Watch {
    notices: Notices,
    feed: u64,
    id: u64,
    version: u64,
    _shares: (Share<FunctionName>, Share<IpAddr>, Share<Namespace>),
}

impl Watch {
    pub fn resource(&self) -> u64 {
        self.id
    }

    /// Returns the latest state if one has been published since the last call or since the watch
    /// began.
    pub fn newer(&mut self) -> Option<State> {
        let table = self.notices.0.lock();
        let entry = table.entries.get(&self.id)?;
        if entry.version == self.version {
            return None;
        }
        self.version = entry.version;
        entry.latest.as_ref().map(|held| held.state.clone())
    }

    /// Whether [`Watch::newer`] would return a state.
    pub fn has_newer(&self) -> bool {
        let table = self.notices.0.lock();
        table.entries.get(&self.id).is_some_and(|entry| entry.version != self.version)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.notices.0.lock().unwatch(self.id, self.feed) {
            self.notices.0.observed.fetch_sub(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> FunctionName {
        FunctionName::new(text).unwrap()
    }

    fn resource(function: &str, path: &str, query: &str) -> Resource {
        let path = path.as_bytes().to_vec();
        let query = query.as_bytes().to_vec();
        let route = function.to_owned();
        Resource { function: name(function), route, path, query, accept: Vec::new() }
    }

    fn state(text: &'static str) -> State {
        State { status: 200, headers: Bytes::new(), body: Bytes::from_static(text.as_bytes()) }
    }

    fn changed(feed: &Feed) -> Vec<u64> {
        let mut changed = Vec::new();
        let _ = feed.poll_changed(&mut Context::from_waker(Waker::noop()), &mut changed);
        changed
    }

    const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn observers_see_the_latest_state_of_their_path() {
        let notices = Notices::default();
        assert!(notices.is_idle());
        let publish = |function: &str, path: &str, query: Option<&str>, text| {
            let query = query.map(str::as_bytes);
            notices.publish(&name(function), path.as_bytes(), query, state(text)).unwrap()
        };
        assert_eq!(publish("f", "/t", None, "before"), 0);
        let feed = notices.feed();
        let mut plain = feed.watch(resource("f", "/t", ""), HOME).unwrap();
        let mut query = feed.watch(resource("f", "/t", "unit=f"), HOME).unwrap();
        let mut other = feed.watch(resource("g", "/t", ""), HOME).unwrap();
        assert_eq!(plain.newer(), None, "nothing from before it watched");
        assert_eq!(publish("f", "/t", None, "1"), 2);
        assert_eq!(publish("f", "/t", Some(""), "2"), 1);
        assert_eq!(publish("f", "/else", None, "3"), 0);
        assert_eq!(
            changed(&feed),
            [plain.resource(), query.resource()],
            "each resource is named once"
        );
        assert_eq!(changed(&feed), [] as [u64; 0]);
        assert_eq!((plain.newer(), query.newer()), (Some(state("2")), Some(state("1"))));
        assert_eq!((plain.newer(), other.newer()), (None, None));
        drop((plain, query, other));
        assert!(notices.is_idle());
        assert_eq!(notices.figures().observers, 0);
        assert_eq!(notices.0.bytes.taken(), 0, "states are forgotten with their observers");
        assert!(notices.0.lock().paths.is_empty() && notices.0.lock().ids.is_empty());
    }

    #[test]
    fn a_removed_function_ends_its_observations_only() {
        // The function has room for only one state.
        let notices = Notices::new(4, 2_000);
        let feed = notices.feed();
        let mut mine = feed.watch(resource("f", "/t", ""), HOME).unwrap();
        let mut other = feed.watch(resource("g", "/t", ""), HOME).unwrap();
        let full = State { body: vec![0; 700].into(), ..state("") };
        assert_eq!(notices.publish(&name("f"), b"/t", None, full), Ok(1));
        notices.end(&name("f"));
        assert_eq!(mine.newer().map(|state| state.status), Some(404));
        assert_eq!(other.newer(), None);
    }

    #[test]
    fn a_function_is_asked_once_at_a_time() {
        let notices = Notices::default();
        let feed = notices.feed();
        let mut watch = feed.watch(resource("f", "/t", ""), HOME).unwrap();
        let begin = || notices.begin_asking(&name("f"), b"/t", None);
        let (questions, observers) = begin();
        assert_eq!((questions.len(), observers), (1, 1));
        assert!(begin().0.is_empty(), "it is being asked");
        let again = notices.asked(questions[0].0, state("1")).expect("it changed again");
        assert_eq!(watch.newer(), Some(state("1")));
        assert!(begin().0.is_empty(), "it is being asked again");
        let again = notices.asked(again, state("2")).unwrap();
        notices.publish(&name("f"), b"/t", None, state("published meanwhile")).unwrap();
        assert!(notices.asked(again, state("old")).is_none());
        assert_eq!(watch.newer(), Some(state("published meanwhile")));
        assert_eq!(begin().0.len(), 1);
        drop(watch);
        assert!(notices.asked(questions[0].0, state("late")).is_none(), "nobody observes it");
    }

    #[test]
    fn observers_and_bytes_have_shares() {
        let notices = Notices::new(4, 3_000);
        let feed = notices.feed();
        let far: IpAddr = "192.0.2.1".parse().unwrap();
        let near: IpAddr = "192.0.2.2".parse().unwrap();
        let watch =
            |function: &str, path: &str, from| feed.watch(resource(function, path, ""), from);
        let one = watch("f", "/1", far).unwrap();
        let _two = watch("g", "/2", far).unwrap();
        assert_eq!(watch("h", "/3", far).err(), Some(Exceeded::Share), "an address has half");
        let _three = watch("f", "/3", near).unwrap();
        assert_eq!(watch("f", "/4", near).err(), Some(Exceeded::Share), "a function has half");
        let _four = watch("g", "/4", near).unwrap();
        assert_eq!(watch("h", "/5", HOME).err(), Some(Exceeded::Total));
        drop(one);
        assert!(watch("h", "/5", HOME).is_ok());
        let long = "x".repeat(RESOURCE_BYTES_MAX);
        assert!(watch("h", &long, HOME).is_err());
        let big = State { body: Bytes::from(vec![0; 700]), ..state("") };
        let publish = |state| notices.publish(&name("f"), b"/3", None, state);
        assert_eq!(publish(big.clone()), Ok(1));
        assert_eq!(
            publish(big),
            Err(Exceeded::Share),
            "the old state is held until it is replaced"
        );
        assert_eq!(publish(state("small")), Ok(1));
        drop(feed);
        assert_eq!(publish(state("no feed")), Ok(1), "its watches end when they are dropped");
    }

    #[test]
    fn namespaces_divide_observers_and_bytes() {
        let notices = Notices::new(16, 16 * 1_000);
        let feed = notices.feed();
        let mut next = 0;
        // Each observer has a different address, and each namespace has three functions.
        let mut fill = |names: [&str; 3]| {
            let mut held = Vec::new();
            loop {
                next += 1;
                let from = IpAddr::from([192, 0, 2, next]);
                let name = names[held.len() % 3];
                match feed.watch(resource(name, &format!("/{next}"), ""), from) {
                    Ok(watch) => held.push(watch),
                    Err(why) => return (held, why),
                }
            }
        };
        let [default, plant, house] =
            [["a", "b", "c"], ["a.plant", "b.plant", "c.plant"], ["a.house", "b.house", "c.house"]];
        let (alone, why) = fill(default);
        assert_eq!((alone.len(), why), (16, Exceeded::Total), "the default namespace alone");
        let (late, why) = fill(plant);
        assert_eq!((late.len(), why), (4, Exceeded::Share), "half of an equal part");
        drop((alone, late));
        let counts = [plant, house, default].map(&mut fill);
        assert_eq!(counts.each_ref().map(|(held, _)| held.len()), [8, 4, 2], "what is free");
        let full = |path: &str, name_of: &str| {
            let state = State { body: vec![0; 2_000 - STATE_OVERHEAD_BYTES].into(), ..state("") };
            notices.publish(&name(name_of), path.as_bytes(), None, state)
        };
        // The paths of plant's observers start at 23, and those of house's observers at 32.
        let published = |from: usize, names: [&str; 3], count: usize| {
            let accepted = |at: &usize| full(&format!("/{}", from + at), names[at % 3]) == Ok(1);
            (0..count).filter(accepted).count()
        };
        assert_eq!(published(23, plant, 8), 8, "alone, all bytes");
        assert_eq!(published(32, house, 4), 2, "half of an equal part");
        assert_eq!(published(23, plant, 8), 0, "no more than a share");
    }
}
