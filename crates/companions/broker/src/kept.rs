//! Limits how many messages each namespace keeps for later subscribers.
//!
//! If the first level of a message's topic is the name of a namespace, the message belongs to that
//! namespace. Otherwise it belongs to the default one. Without namespaces, only the library limits
//! the messages ([`KEPT_MAX`]). Once a second namespace keeps messages, each may keep an
//! [`even_share`].
//!
//! When the library asks whether a client may publish, this program cannot know yet whether the
//! message is to be kept. Right afterwards, the library compares the number of kept messages with
//! its own limit. To refuse a client other than the node, this program sets that limit to 1 for
//! this one comparison. The node asks first, with a message for a special topic ([`ASK_TO_KEEP`]),
//! which the broker accepts or refuses. A topic that was promised in this way counts as kept for a
//! while.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mote_core::shares::even_share;
use mqtt5::QoS;
use mqtt5::broker::router::MessageRouter;
use mqtt5::packet::publish::PublishPacket;
use parking_lot::Mutex;

/// The most messages that the broker keeps, over all namespaces, and the largest such message.
pub(crate) const KEPT_MAX: usize = 1_000;
pub(crate) const KEPT_BYTES_MAX: usize = 32 << 10;
/// The library's limit if there are namespaces. It is higher, because some namespaces may still get
/// their share after the others already keep [`KEPT_MAX`] together. If the second, the third and
/// each further namespace gets half of an equal part, 1,000 namespaces keep 3,700 together.
const KEPT_WITH_SHARES_MAX: usize = 5 * KEPT_MAX;
/// The prefix of a topic with which the node asks whether a message for the rest of the topic would
/// be kept.
pub(crate) const ASK_TO_KEEP: &str = "$keep/";
/// How long a promise lasts. The node gives up on a message after 20 s.
const PROMISE: Duration = Duration::from_secs(30);

/// The messages that the broker keeps.
#[derive(Default)]
pub(crate) struct Kept {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// The names of all namespaces except the default one.
    namespaces: BTreeSet<String>,
    /// Each topic with a kept message, or with a promise and the time of that promise.
    topics: HashMap<Arc<str>, Option<Instant>>,
    /// How many of these topics each namespace has. The default namespace has the empty name.
    counts: HashMap<String, usize>,
    /// Whether two namespaces have kept messages, or wanted to, at the same time.
    is_shared: bool,
    /// Applies the limit to the messages that the library keeps.
    router: Option<Arc<MessageRouter>>,
}

impl Kept {
    /// Begins to limit a broker that already keeps messages for `topics`.
    pub(crate) fn limit(&self, router: Arc<MessageRouter>, topics: Vec<String>) {
        let mut table = self.table.lock();
        table.router = Some(router);
        table.topics.extend(topics.into_iter().map(|topic| (topic.into(), None)));
        table.count();
        table.admit(true);
    }

    /// Replaces the names of the namespaces.
    pub(crate) fn set_namespaces(&self, names: BTreeSet<String>) {
        let mut table = self.table.lock();
        table.namespaces = names;
        table.count();
        table.admit(true);
    }

    /// Removes the messages kept for topics that begin with the name of a namespace. Subscribers of
    /// these topics receive an empty message.
    pub(crate) async fn clear(&self, namespace: &str) {
        let (router, topics) = {
            let table = self.table.lock();
            let topics = table.topics.keys().filter(|topic| first_level(topic) == namespace);
            (table.router.clone(), topics.cloned().collect::<Vec<_>>())
        };
        let Some(router) = router else { return };
        for topic in topics {
            let mut empty = PublishPacket::new(&*topic, Vec::new(), QoS::AtMostOnce);
            empty.retain = true;
            router.route_message(&empty, None).await;
        }
    }

    /// Whether the node may publish a message to be kept for this topic. If the answer is yes, it
    /// counts as a promise.
    pub(crate) fn promise(&self, topic: &str, now: Instant) -> bool {
        let mut table = self.table.lock();
        let may = table.may_keep(topic);
        if may && !table.topics.contains_key(topic) {
            table.add(topic, Some(now));
        }
        may
    }

    /// Called when a client publishes for this topic. Sets the limit for the library's next
    /// comparison. Returns `false` if the limit refuses a message that is to be kept. The caller
    /// must then call [`Kept::compared`].
    pub(crate) fn begin(&self, topic: &str, is_node: bool) -> bool {
        let mut table = self.table.lock();
        if table.namespaces.is_empty() {
            return true;
        }
        let may = is_node || table.may_keep(topic);
        table.admit(may);
        may
    }

    /// Called after the library's comparison. Sets the limit back to that of all namespaces.
    pub(crate) fn compared(&self) {
        let table = self.table.lock();
        if !table.namespaces.is_empty() {
            table.admit(true);
        }
    }

    /// Notes that the library now keeps a message for this topic, or no longer keeps one.
    pub(crate) fn changed(&self, topic: &str, is_kept: bool) {
        let mut table = self.table.lock();
        if !is_kept {
            table.remove(topic);
        } else if let Some(promised) = table.topics.get_mut(topic) {
            *promised = None;
        } else {
            table.add(topic, None);
        }
    }

    /// Drops promises that were not used in time.
    pub(crate) fn look(&self, now: Instant) {
        let mut table = self.table.lock();
        let is_old = |promised: &Option<Instant>| {
            promised.is_some_and(|since| now.saturating_duration_since(since) >= PROMISE)
        };
        if table.topics.values().any(is_old) {
            table.topics.retain(|_, promised| !is_old(promised));
            table.count();
        }
    }
}

impl Table {
    /// Returns the namespace of a topic; empty for the default one.
    fn namespace<'a>(&self, topic: &'a str) -> &'a str {
        let first = first_level(topic);
        if self.namespaces.contains(first) { first } else { "" }
    }

    fn may_keep(&mut self, topic: &str) -> bool {
        if self.topics.contains_key(topic) {
            return true;
        }
        let own = self.counts.get(self.namespace(topic)).copied();
        let sharers = self.counts.len() + usize::from(own.is_none());
        self.is_shared |= sharers > 1;
        let most = match self.is_shared {
            true => even_share(KEPT_MAX, self.topics.len(), sharers),
            false => KEPT_MAX,
        };
        own.unwrap_or(0) < most
    }

    fn add(&mut self, topic: &str, promised: Option<Instant>) {
        let namespace = self.namespace(topic).to_owned();
        *self.counts.entry(namespace).or_default() += 1;
        self.topics.insert(topic.into(), promised);
    }

    fn remove(&mut self, topic: &str) {
        if self.topics.remove(topic).is_none() {
            return;
        }
        let namespace = self.namespace(topic);
        if let Some(count) = self.counts.get_mut(namespace) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(namespace);
            }
        }
    }

    /// Counts the messages of each namespace again.
    fn count(&mut self) {
        let mut counts: HashMap<String, usize> = HashMap::new();
        for topic in self.topics.keys() {
            *counts.entry(self.namespace(topic).to_owned()).or_default() += 1;
        }
        self.counts = counts;
    }

    /// Sets the limit of the library.
    fn admit(&self, may: bool) {
        let most = match (may, self.namespaces.is_empty()) {
            (_, true) => KEPT_MAX,
            (true, false) => KEPT_WITH_SHARES_MAX,
            (false, false) => 1,
        };
        if let Some(router) = &self.router {
            router.update_retained_limits(most, KEPT_BYTES_MAX);
        }
    }
}

fn first_level(topic: &str) -> &str {
    topic.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(namespaces: &[&str]) -> (Kept, Arc<MessageRouter>) {
        let kept = Kept::default();
        let router = Arc::new(MessageRouter::new());
        kept.set_namespaces(namespaces.iter().map(|&name| name.to_owned()).collect());
        kept.limit(router.clone(), Vec::new());
        (kept, router)
    }

    /// Returns the number of new topics below `first` for which a client other than the node can
    /// have messages kept.
    fn fill(kept: &Kept, router: &MessageRouter, first: &str) -> usize {
        let total = || kept.table.lock().topics.len();
        let before = total();
        for at in 0..2 * KEPT_MAX {
            let topic = format!("{first}/{at}");
            kept.begin(&topic, false);
            if total() >= router.max_retained_messages() {
                return total() - before;
            }
            kept.compared();
            kept.changed(&topic, true);
        }
        panic!("no limit for {first}");
    }

    #[test]
    fn without_namespaces_the_limit_of_the_library_stays() {
        let (kept, router) = kept(&[]);
        assert_eq!(fill(&kept, &router, "plant"), KEPT_MAX);
        assert_eq!(fill(&kept, &router, "house"), 0);
        assert_eq!(router.max_retained_messages(), KEPT_MAX);
        assert_eq!(router.max_retained_message_size(), KEPT_BYTES_MAX);
    }

    #[test]
    fn namespaces_divide_what_is_kept() {
        let (kept, router) = kept(&["plant", "house", "empty"]);
        assert_eq!(fill(&kept, &router, "plant"), KEPT_MAX, "alone, all of them");
        assert_eq!(fill(&kept, &router, "house"), KEPT_MAX / 4, "half of an equal share");
        assert_eq!(fill(&kept, &router, "else"), KEPT_MAX / 6, "the default namespace");
        kept.begin("plant/new", false);
        assert_eq!(router.max_retained_messages(), 1, "refused");
        kept.begin("plant/0", false);
        assert!(router.max_retained_messages() > KEPT_MAX, "it replaces a message");
        for at in 0..KEPT_MAX {
            kept.changed(&format!("plant/{at}"), false);
        }
        let total = kept.table.lock().topics.len();
        assert_eq!(fill(&kept, &router, "plant"), (KEPT_MAX - total).div_ceil(2), "what is free");
        assert_eq!(router.max_retained_message_size(), KEPT_BYTES_MAX);
    }

    #[test]
    fn promises_to_the_node_count_until_they_are_old() {
        let (kept, router) = kept(&["plant"]);
        let now = Instant::now();
        assert_eq!(fill(&kept, &router, "else"), KEPT_MAX);
        let mut promised = 0;
        while kept.promise(&format!("plant/{promised}"), now) {
            promised += 1;
        }
        assert_eq!(promised, KEPT_MAX / 4);
        assert!(kept.promise("plant/0", now), "it has that place");
        kept.begin("plant/0", true);
        assert!(router.max_retained_messages() > KEPT_MAX, "the node has asked before");
        kept.changed("plant/0", true);
        kept.look(now + PROMISE / 2);
        assert!(!kept.promise("plant/new", now));
        kept.look(now + PROMISE);
        assert_eq!(kept.table.lock().counts["plant"], 1, "only what is kept");
        assert!(kept.promise("plant/new", now));
    }

    #[test]
    fn messages_count_for_the_namespaces_that_exist() {
        let (kept, router) = kept(&[]);
        kept.limit(router.clone(), vec!["plant/a".to_owned(), "plant".to_owned(), "b".to_owned()]);
        let counts = || {
            let table = kept.table.lock();
            (table.counts.get("").copied(), table.counts.get("plant").copied())
        };
        assert_eq!(counts(), (Some(3), None));
        kept.set_namespaces(BTreeSet::from(["plant".to_owned()]));
        assert_eq!(counts(), (Some(1), Some(2)));
        kept.changed("plant/a", false);
        kept.changed("unknown", false);
        kept.changed("b", true);
        assert_eq!(counts(), (Some(1), Some(1)));
        assert_eq!(router.max_retained_messages(), KEPT_WITH_SHARES_MAX);
        kept.set_namespaces(BTreeSet::new());
        assert_eq!((counts(), router.max_retained_messages()), ((Some(2), None), KEPT_MAX));
    }

    #[tokio::test]
    async fn messages_of_a_namespace_go_with_it() {
        let (kept, router) = kept(&["plant", "plants"]);
        for topic in ["plant", "plant/a", "plant/b/c", "plants/a", "a/plant"] {
            let mut message = PublishPacket::new(topic, "x", QoS::AtLeastOnce);
            message.retain = true;
            router.route_message(&message, None).await;
            kept.changed(topic, true);
        }
        kept.clear("plant").await;
        let left = router.get_retained_messages("#").await;
        let mut left: Vec<_> = left.into_iter().map(|message| message.topic_name).collect();
        left.sort();
        assert_eq!(left, ["a/plant", "plants/a"]);
    }
}
