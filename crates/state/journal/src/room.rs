//! The room for invocations that have not ended, and how much of it functions and namespaces use.
//! Pure.
//!
//! A function may use half of the room. Once a function of a namespace other than the default one
//! has asked for room, each namespace, the default one included, may use as much as is free. If
//! only one namespace is busy, it then gets half, and two busy namespaces get a third each, so some
//! room always stays free for others. Records that are counted beyond the limits can use up this
//! free room, so a namespace with less than half of an equal share is always accepted.

use std::collections::HashMap;
use std::sync::Arc;

use mote_core::accept::AcceptError;
use mote_spec::name;

/// The most invocations that have not ended, over all functions, and the most bytes of their
/// requests. A function may use half of each.
const RECORDS_MAX: usize = 100_000;
const BYTES_MAX: u64 = 256 << 20;

/// How much of the room each function and namespace uses.
#[derive(Debug, Default)]
pub(crate) struct Room {
    functions: HashMap<Arc<str>, Used>,
    /// Namespaces by name. The default namespace has the empty name.
    namespaces: HashMap<Arc<str>, Used>,
    total: Used,
    /// Whether a function of a namespace other than the default one has asked for room since the
    /// node started.
    is_shared: bool,
}

/// Number and bytes of records that wait or run.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    records: usize,
    bytes: u64,
}

/// The most that all functions may use.
const ALL: Used = Used { records: RECORDS_MAX, bytes: BYTES_MAX };

/// The namespace of a function, or of the name of a tag or a share for results. Empty for the
/// default namespace.
pub(crate) fn namespace_of(function: &str) -> &str {
    let (_, namespace) = name::split(function);
    namespace.and_then(|name| name.split(['@', ' ']).next()).unwrap_or_default()
}

impl Room {
    /// Reserves room for a record. A tenth of the room is kept for schedules, so that requests from
    /// the network cannot fill it.
    pub(crate) fn reserve(
        &mut self,
        function: &str,
        bytes: u64,
        is_schedule: bool,
    ) -> Result<(), AcceptError> {
        let record = Used { records: 1, bytes };
        let own = self.functions.get(function).copied().unwrap_or_default();
        if !own.fits(record, tenths(if is_schedule { 6 } else { 5 })) {
            return Err(full(own, &format!(" of {function}"), namespace_of(function)));
        }
        self.check(function, record, tenths(if is_schedule { 10 } else { 9 }))?;
        self.take(function, bytes);
        Ok(())
    }

    /// Refuses to run a dead letter again if its namespace has used up its share.
    pub(crate) fn check_again(&self, function: &str) -> Result<(), AcceptError> {
        if namespace_of(function).is_empty() {
            return Ok(());
        }
        self.check(function, Used { records: 1, bytes: 0 }, tenths(9))
    }

    /// Fails if the record does not fit into `limit` for all functions, or into the share of its
    /// namespace.
    fn check(&self, function: &str, more: Used, limit: Used) -> Result<(), AcceptError> {
        let namespace = namespace_of(function);
        if !self.is_shared && namespace.is_empty() {
            let fits = self.total.fits(more, limit);
            return if fits { Ok(()) } else { Err(full(self.total, "", namespace)) };
        }
        let held = self.namespaces.get(namespace);
        let sharers = self.namespaces.len() + usize::from(held.is_none());
        let own = held.copied().unwrap_or_default();
        let free = Used {
            records: limit.records.saturating_sub(self.total.records),
            bytes: limit.bytes.saturating_sub(self.total.bytes),
        };
        let share = Used {
            records: free.records.max(limit.records / (2 * sharers)),
            bytes: free.bytes.max(limit.bytes / (2 * sharers as u64)),
        };
        if own.fits(more, share) {
            return Ok(());
        }
        let of = if namespace.is_empty() { name::DEFAULT_NAMESPACE } else { namespace };
        Err(full(own, &format!(" of the namespace {of}"), namespace))
    }

    /// Counts a record, even if that exceeds the limits.
    pub(crate) fn take(&mut self, function: &str, bytes: u64) {
        let namespace = namespace_of(function);
        self.is_shared |= !namespace.is_empty();
        let own = held_by(&mut self.functions, function);
        let namespace = held_by(&mut self.namespaces, namespace);
        for used in [own, namespace, &mut self.total] {
            used.records += 1;
            used.bytes += bytes;
        }
    }

    /// Counts further bytes of a record. Fails if the function or its namespace has used up its
    /// share.
    pub(crate) fn grow(&mut self, function: &str, bytes: u64) -> Result<(), AcceptError> {
        let more = Used { records: 0, bytes };
        let own = self.functions.get(function).copied().unwrap_or_default();
        let half = Used { bytes: BYTES_MAX / 2, ..ALL };
        if !own.fits(more, half) || self.check(function, more, ALL).is_err() {
            let text = "the runs and invocations that have not ended use all their bytes";
            return Err(AcceptError::Full(text.to_owned()));
        }
        self.total.bytes += bytes;
        held_by(&mut self.functions, function).bytes += bytes;
        held_by(&mut self.namespaces, namespace_of(function)).bytes += bytes;
        Ok(())
    }

    /// Gives back the room of a record that has ended.
    pub(crate) fn release(&mut self, function: &str, bytes: u64) {
        self.total.less(bytes);
        let namespace = namespace_of(function);
        for (all, name) in [(&mut self.functions, function), (&mut self.namespaces, namespace)] {
            if let Some(used) = all.get_mut(name) {
                used.less(bytes);
                if used.records == 0 {
                    all.remove(name);
                }
            }
        }
    }
}

impl Used {
    /// Whether `more` still fits. Further bytes of an already counted record need no room for
    /// another record.
    fn fits(self, more: Used, limit: Used) -> bool {
        (more.records == 0 || self.records + more.records <= limit.records)
            && self.bytes + more.bytes <= limit.bytes
    }

    fn less(&mut self, bytes: u64) {
        self.records = self.records.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

fn tenths(tenths: usize) -> Used {
    Used { records: RECORDS_MAX / 10 * tenths, bytes: BYTES_MAX / 10 * tenths as u64 }
}

fn held_by<'a>(all: &'a mut HashMap<Arc<str>, Used>, name: &str) -> &'a mut Used {
    if !all.contains_key(name) {
        all.insert(name.into(), Used::default());
    }
    all.get_mut(name).expect("it was just inserted")
}

/// The error for callers. For a function in a namespace, the error does not reveal how much others
/// use.
fn full(used: Used, of: &str, namespace: &str) -> AcceptError {
    let records = used.records;
    let mib = used.bytes >> 20;
    AcceptError::Full(if namespace.is_empty() {
        format!(
            "{records} invocations{of} with {mib} MiB have not ended; at most {RECORDS_MAX} with {} \
             MiB may, and half of that of one function",
            BYTES_MAX >> 20
        )
    } else {
        format!("{records} invocations{of} with {mib} MiB have not ended; no more may now")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Returns how many MiB two functions of a namespace get, in requests of 1 MiB.
    fn filled(room: &mut Room, namespace: &str, is_schedule: bool) -> u64 {
        let mut mib = 0;
        for name in ["a", "b"] {
            let function =
                if namespace.is_empty() { name.to_owned() } else { format!("{name}.{namespace}") };
            while room.reserve(&function, MIB, is_schedule).is_ok() {
                mib += 1;
            }
        }
        mib
    }

    fn text(refused: Result<(), AcceptError>) -> String {
        refused.expect_err("refused").to_string()
    }

    #[test]
    fn the_namespace_of_a_name() {
        for (name, namespace) in [
            ("f", ""),
            ("f@tag", ""),
            ("f results", ""),
            ("f.plant", "plant"),
            ("f.plant@tag", "plant"),
            ("f.plant@tag results", "plant"),
            ("f.plant results", "plant"),
        ] {
            assert_eq!(namespace_of(name), namespace, "{name}");
        }
    }

    #[test]
    fn without_namespaces_only_functions_have_shares() {
        let mut room = Room::default();
        let held = [filled(&mut room, "", false), filled(&mut room, "", true)];
        assert_eq!(held, [230, 25], "calls nine tenths, schedules the rest");
        assert!(text(room.reserve("c", MIB, false)).contains("255 invocations with 255 MiB"));
        for function in ["a", "b"] {
            while room.functions.contains_key(function) {
                room.release(function, MIB);
            }
        }
        assert_eq!((room.total.records, room.total.bytes, room.namespaces.len()), (0, 0, 0));
        assert_eq!(filled(&mut room, "", false), 230);
    }

    #[test]
    fn a_namespace_leaves_as_much_as_it_holds() {
        let mut room = Room::default();
        assert_eq!(filled(&mut room, "plant", false), 115, "half of what calls may use");
        let refused = text(room.reserve("c.plant", MIB, false));
        assert!(refused.contains("115 invocations of the namespace plant"), "{refused}");
        assert!(!refused.contains("256"), "nothing of the node: {refused}");
        let others = [
            filled(&mut room, "plant", true),
            filled(&mut room, "house", false),
            filled(&mut room, "", false),
            filled(&mut room, "", true),
        ];
        assert_eq!(others, [13, 57, 38, 4], "to half of all; then half of equal shares");
        for _ in 0..127 {
            for function in ["a.plant", "b.plant"] {
                if room.functions.contains_key(function) {
                    room.release(function, MIB);
                }
            }
        }
        assert!(filled(&mut room, "house", false) > 0, "what becomes free is for others");
    }

    #[test]
    fn the_default_namespace_leaves_room_once_it_is_not_alone() {
        let mut room = Room::default();
        room.reserve("c.plant", MIB, false).expect("empty");
        room.release("c.plant", MIB);
        assert_eq!(filled(&mut room, "", false), 115);
        assert_eq!(filled(&mut room, "plant", false), 58, "half of what is left");
    }

    #[test]
    fn what_is_counted_beyond_the_bounds_refuses_only_its_namespace() {
        let mut room = Room::default();
        for _ in 0..1_000 {
            room.take("a.plant", MIB);
        }
        assert!(room.reserve("b.plant", MIB, false).is_err());
        assert!(room.check_again("b.plant").is_err());
        assert!(room.grow("a.plant", 1).is_err());
        assert_eq!(filled(&mut room, "house", false), 57, "half of an equal share");
        assert_eq!(filled(&mut room, "", false), 38);
        room.grow("a", MIB).expect("less than half of an equal share of all");
    }

    #[test]
    fn many_small_invocations_have_shares_too() {
        let mut room = Room::default();
        let mut accepted = 0;
        while room.reserve(if accepted % 2 == 0 { "a.plant" } else { "b.plant" }, 1, false).is_ok()
        {
            accepted += 1;
        }
        assert_eq!(accepted, 45_000);
        room.reserve("f", 1, false).expect("there is room for others");
    }
}
