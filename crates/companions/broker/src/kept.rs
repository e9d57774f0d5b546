//! How many messages each namespace keeps for later subscribers.
//!
//! A message belongs to the namespace whose name is the first level of its topic, and otherwise to the
//! default one. Without namespaces, the library alone limits the messages ([`KEPT_MAX`]). Once a
//! second namespace keeps messages, each may keep an [`even_share`].
//!
//! The library asks who may publish before it knows here whether a message is to be kept, and compares
//! the number of kept messages with its own limit right afterwards. So a client other than the node
//! is refused by a limit of 1 for this one comparison. The node asks first, by a message for a topic of
//! its own ([`ASK_TO_KEEP`]), and the broker accepts or refuses that message. A topic that was promised
//! in this way counts as kept for a while.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mote_core::shares::even_share;
use mqtt5::QoS;
use mqtt5::broker::router::MessageRouter;
use mqtt5::packet::publish::PublishPacket;
use parking_lot::Mutex;

/// Messages that the broker keeps, of all namespaces, and the largest.
pub(crate) const KEPT_MAX: usize = 1_000;
pub(crate) const KEPT_BYTES_MAX: usize = 32 << 10;
/// The same with namespaces: some of them may have their share although the others keep as many as
/// all may. Half of an equal part for the second, the third and so on is 3,700 together for 1,000
/// namespaces.
const KEPT_WITH_SHARES_MAX: usize = 5 * KEPT_MAX;
/// The beginning of a topic with which the node asks whether a message for the rest would be kept.
pub(crate) const ASK_TO_KEEP: &str = "$keep/";
/// How long a promise lasts. The node gives up a message after 20 s.
const PROMISE: Duration = Duration::from_secs(30);

/// The messages that the broker keeps.
#[derive(Default)]
pub(crate) struct Kept {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// The names of all namespaces but the default one.
    namespaces: BTreeSet<String>,
    /// Each topic with a kept message, or with the time of a promise to keep one.
    topics: HashMap<Arc<str>, Option<Instant>>,
    /// How many of them each namespace has. The name of the default one is empty.
    counts: HashMap<String, usize>,
    /// Whether two namespaces have kept messages, or wanted to, at once.
    is_shared: bool,
    /// Limits the messages that the library keeps.
    router: Option<Arc<MessageRouter>>,
}

impl Kept {
    /// Limits the messages of a broker, which keeps those for `topics` already.
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

    /// Removes what is kept for topics that begin with the name of a namespace. Their subscribers
    /// receive an empty message.
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

    /// Whether the node may publish a message for this topic that is to be kept.
    pub(crate) fn promise(&self, topic: &str, now: Instant) -> bool {
        let mut table = self.table.lock();
        let may = table.may_keep(topic);
        if may && !table.topics.contains_key(topic) {
            table.add(topic, Some(now));
        }
        may
    }

    /// A client publishes for this topic: sets the limit that the library compares next. `false` if it
    /// refuses a message that is to be kept; [`Kept::compared`] must follow.
    pub(crate) fn begin(&self, topic: &str, is_node: bool) -> bool {
        let mut table = self.table.lock();
        if table.namespaces.is_empty() {
            return true;
        }
        let may = is_node || table.may_keep(topic);
        table.admit(may);
        may
    }

    /// The library has compared: the limit is that of all namespaces again.
    pub(crate) fn compared(&self) {
        let table = self.table.lock();
        if !table.namespaces.is_empty() {
            table.admit(true);
        }
    }

    /// The library keeps a message for this topic now, or does not keep one any more.
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

    /// Forgets promises that were not used.
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
    /// The namespace of a topic; empty for the default one.
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

    /// Counts the messages of each namespace anew.
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

    /// How many messages a client that is not the node can have kept for new topics below `first`.
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
