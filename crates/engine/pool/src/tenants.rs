//! What the instances of each namespace hold, and what each namespace may hold. The limits do not
//! cover functions of the default namespace.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;

use mote_core::fault::bytes_text;

/// A number of instances, and the sums of their memory and processor limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// The number of instances, including those that are starting or ending.
    pub instances: u64,
    /// The sum of their memory limits in bytes.
    pub memory_bytes: u64,
    /// The sum of their processor limits in thousandths of a processor.
    pub cpu_millis: u64,
}

/// The limit of a namespace that has no limit.
pub const UNLIMITED: Held =
    Held { instances: u64::MAX, memory_bytes: u64::MAX, cpu_millis: u64::MAX };

/// All processors of this machine, which an instance without a processor limit may use.
static ALL_CPU_MILLIS: LazyLock<u64> =
    LazyLock::new(|| available_parallelism().map_or(1, |count| count.get() as u64) * 1_000);

impl Held {
    /// What one instance with these limits holds.
    pub fn one(memory_bytes: u64, cpu_millis: Option<u32>) -> Self {
        let cpu_millis = cpu_millis.map_or_else(|| *ALL_CPU_MILLIS, u64::from);
        Self { instances: 1, memory_bytes, cpu_millis }
    }

    fn add(&mut self, other: Self) {
        self.instances += other.instances;
        self.memory_bytes += other.memory_bytes;
        self.cpu_millis += other.cpu_millis;
    }

    fn subtract(&mut self, other: Self) {
        self.instances -= other.instances;
        self.memory_bytes -= other.memory_bytes;
        self.cpu_millis -= other.cpu_millis;
    }

    /// Whether one more instance stays within the limit.
    fn has_room(self, limit: Self, wanted: Self) -> bool {
        self.instances < limit.instances
            && self.memory_bytes.saturating_add(wanted.memory_bytes) <= limit.memory_bytes
            && self.cpu_millis.saturating_add(wanted.cpu_millis) <= limit.cpu_millis
    }
}

/// Describes a start that would exceed a limit of its namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exceeded {
    /// What the namespace holds now.
    pub held: Held,
    /// What the namespace may hold.
    pub limit: Held,
    /// What the new instance would hold.
    pub wanted: Held,
}

impl Exceeded {
    /// Describes the exceeded limit to the owners of the function.
    pub fn text(&self, namespace: &str) -> String {
        let Exceeded { held, limit, wanted } = self;
        let what = if held.instances >= limit.instances {
            format!("{} of at most {} instances", held.instances, limit.instances)
        } else if held.memory_bytes.saturating_add(wanted.memory_bytes) > limit.memory_bytes {
            let [used, most, more] =
                [held.memory_bytes, limit.memory_bytes, wanted.memory_bytes].map(bytes_text);
            format!("{used} of at most {most} of memory, and an instance may use {more}")
        } else {
            let [used, most, more] = [held.cpu_millis, limit.cpu_millis, wanted.cpu_millis]
                .map(|millis| millis as f64 / 1_000.0);
            format!("{used} of at most {most} processors, and an instance may use {more}")
        };
        let lower = if wanted.memory_bytes > limit.memory_bytes {
            "lower [limits] memory of the function"
        } else if wanted.cpu_millis > limit.cpu_millis {
            "set [limits] cpu of the function lower"
        } else {
            "stop other functions with mote scale NAME 0"
        };
        format!(
            "the namespace {namespace} uses {what}; {lower}, or let an operator raise the limit with \
             mote namespace update {namespace}"
        )
    }
}

/// The namespaces that hold instances or have a limit.
#[derive(Debug, Default)]
pub struct Tenants {
    held: BTreeMap<Arc<str>, Held>,
    /// The part of `held` that belongs to instances that were asked to leave.
    leaving: BTreeMap<Arc<str>, Held>,
    limits: BTreeMap<String, Held>,
    owed: Option<Owed>,
}

impl Tenants {
    /// Sets the limit of a namespace from now on.
    pub fn limit(&mut self, namespace: &str, limit: Held) {
        self.limits.insert(namespace.to_owned(), limit);
    }

    /// What the instances of a namespace hold.
    pub fn held(&self, namespace: &str) -> Held {
        self.held.get(namespace).copied().unwrap_or_default()
    }

    /// Returns the exceeded limit if the namespace may not start another instance.
    pub fn exceeded(&self, namespace: &str, wanted: Held) -> Option<Exceeded> {
        let held = self.held(namespace);
        let limit = *self.limits.get(namespace)?;
        (!held.has_room(limit, wanted)).then_some(Exceeded { held, limit, wanted })
    }

    /// Whether there will be room after the instances that were asked to leave have ended.
    pub fn fits_soon(&self, namespace: &str, exceeded: Exceeded) -> bool {
        let mut stays = exceeded.held;
        stays.subtract(self.leaving.get(namespace).copied().unwrap_or_default());
        stays.has_room(exceeded.limit, exceeded.wanted)
    }

    /// Counts an instance that was asked to leave.
    pub fn leave(&mut self, namespace: &Arc<str>, one: Held) {
        self.leaving.entry(namespace.clone()).or_default().add(one);
    }

    /// Counts a new instance, and returns the name of its namespace.
    pub fn take(&mut self, namespace: &str, one: Held) -> Arc<str> {
        let known = self.held.get_key_value(namespace).map(|(name, _)| name.clone());
        let name = known.unwrap_or_else(|| namespace.into());
        self.held.entry(name.clone()).or_default().add(one);
        name
    }

    /// Counts less memory for an instance that still runs and was not asked to leave.
    pub fn shrink(&mut self, namespace: &str, memory_bytes: u64) {
        if let Some(held) = self.held.get_mut(namespace) {
            held.memory_bytes -= memory_bytes;
        }
    }

    /// Stops counting an instance. `had_left` says whether the instance was asked to leave.
    pub fn give(&mut self, namespace: &str, one: Held, had_left: bool) {
        subtract(&mut self.held, namespace, one);
        if had_left {
            subtract(&mut self.leaving, namespace, one);
        }
    }
}

/// Equal shares of a node's memory for all namespaces that use the node, including the default one.
#[derive(Debug)]
pub struct Shares {
    /// The namespaces that hold more than a share. `None` is the default namespace.
    pub above: Vec<Option<Arc<str>>>,
    /// Whether the namespace that wants another instance stays within its share if it gets one.
    pub is_within: bool,
}

/// Memory that is reserved for a namespace that is below its share, until the namespace asks again.
#[derive(Debug)]
struct Owed {
    to: Option<Arc<str>>,
    memory_bytes: u64,
    until_ns: u64,
}

/// How long memory stays reserved for a namespace. The namespace normally asks again much sooner.
const OWED_NS: u64 = 250_000_000;

impl Tenants {
    /// The shares when the namespace `wanting` wants memory for an instance and `taken_bytes` of
    /// the node's memory are taken. `None` if only the default namespace uses the node.
    pub fn shares(
        &self,
        budget_bytes: u64,
        taken_bytes: u64,
        wanting: Option<&str>,
        wanted_bytes: u64,
        now_ns: u64,
    ) -> Option<Shares> {
        if self.held.is_empty() && wanting.is_none() {
            return None;
        }
        let of_others: u64 = self.held.values().map(|held| held.memory_bytes).sum();
        let of_default = taken_bytes.saturating_sub(of_others);
        let own = wanting.map_or(of_default, |name| self.held(name).memory_bytes);
        // A namespace that waits and holds nothing yet has a share as well.
        let waits = self.owed.as_ref().is_some_and(|owed| {
            let holds = match &owed.to {
                Some(name) => self.held.contains_key(name),
                None => of_default > 0,
            };
            owed.until_ns > now_ns && owed.to.as_deref() != wanting && !holds
        });
        let active = self.held.len() as u64
            + u64::from(of_default > 0)
            + u64::from(own == 0)
            + u64::from(waits);
        let share = budget_bytes / active.max(1);
        let mut above: Vec<_> = (self.held.iter())
            .filter(|(_, held)| held.memory_bytes > share)
            .map(|(name, _)| Some(name.clone()))
            .collect();
        above.extend((of_default > share).then_some(None));
        Some(Shares { above, is_within: own.saturating_add(wanted_bytes) <= share })
    }

    /// Reserves the next free memory for a namespace, unless memory is already reserved for some
    /// namespace. Returns whether the reservation was made.
    pub fn owe(&mut self, to: Option<&str>, memory_bytes: u64, now_ns: u64) -> bool {
        let is_new = self.owed.as_ref().is_none_or(|owed| owed.until_ns <= now_ns);
        if is_new {
            let until_ns = now_ns + OWED_NS;
            self.owed = Some(Owed { to: to.map(Arc::from), memory_bytes, until_ns });
        }
        is_new
    }

    /// Bytes that are reserved for a namespace other than this one.
    pub fn owed_to_others(&self, name: Option<&str>, now_ns: u64) -> u64 {
        let owed = self.owed.as_ref().filter(|owed| owed.until_ns > now_ns);
        owed.filter(|owed| owed.to.as_deref() != name).map_or(0, |owed| owed.memory_bytes)
    }

    /// Ends the reservation of a namespace that has received memory.
    pub fn paid(&mut self, name: Option<&str>) {
        self.owed.take_if(|owed| owed.to.as_deref() == name);
    }
}

fn subtract(from: &mut BTreeMap<Arc<str>, Held>, namespace: &str, one: Held) {
    if let Some(held) = from.get_mut(namespace) {
        held.subtract(one);
        if held.instances == 0 {
            from.remove(namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_equal_and_memory_is_kept_for_who_is_below() {
        let mut tenants = Tenants::default();
        assert!(tenants.shares(100, 80, None, 10, 0).is_none(), "no namespace uses the node");
        for _ in 0..7 {
            tenants.take("a", Held::one(10, None));
        }
        let shares = tenants.shares(100, 70, Some("b"), 10, 0).expect("two of them");
        assert_eq!(shares.above, [Some("a".into())]);
        assert!(shares.is_within);
        assert!(tenants.shares(100, 70, Some("a"), 10, 0).expect("one").is_within, "it is alone");
        // There are three namespaces, because the default one counts.
        let shares = tenants.shares(100, 100, Some("b"), 40, 0).expect("three of them");
        assert_eq!((shares.above.len(), shares.is_within), (1, false));
        assert!(tenants.owe(Some("b"), 10, 5));
        assert!(!tenants.owe(Some("b"), 10, 6), "it is kept already");
        assert!(!tenants.shares(100, 70, Some("a"), 10, 6).expect("two").is_within);
        assert_eq!(tenants.owed_to_others(Some("a"), 6), 10);
        assert_eq!(tenants.owed_to_others(None, 6), 10);
        assert_eq!(tenants.owed_to_others(Some("b"), 6), 0);
        assert_eq!(tenants.owed_to_others(Some("a"), 5 + OWED_NS), 0, "for a while");
        tenants.paid(Some("b"));
        assert_eq!(tenants.owed_to_others(Some("a"), 6), 0);
    }
    #[test]
    fn each_limit_holds_and_an_instance_without_a_limit_counts_as_all_processors() {
        let mut tenants = Tenants::default();
        let limit = Held { instances: 3, memory_bytes: 100, cpu_millis: *ALL_CPU_MILLIS };
        tenants.limit("a", limit);
        let half = Some(*ALL_CPU_MILLIS as u32 / 2);
        let whole = None;
        assert_eq!(tenants.exceeded("a", Held::one(100, whole)), None);
        tenants.take("a", Held::one(10, half));
        assert_eq!(tenants.exceeded("a", Held::one(90, half)), None);
        let too_much = tenants.exceeded("a", Held::one(90, whole)).expect("half is left");
        let text = too_much.text("a");
        assert!(text.contains("processors, and an instance may use"), "{text}");
        let too_large = tenants.exceeded("a", Held::one(91, half)).expect("90 bytes are left");
        let text = too_large.text("a");
        assert!(text.contains("of memory, and an instance may use"), "{text}");
        let first: Arc<str> = "a".into();
        tenants.leave(&first, Held::one(10, half));
        assert!(tenants.fits_soon("a", too_much));
        tenants.give("a", Held::one(10, half), true);
        assert_eq!(tenants.held("a"), Held::default());
    }
}
