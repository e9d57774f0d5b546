//! Limits the running invocations, with a share for each owner.

use std::collections::HashMap;

use mote_spec::FunctionName;

use super::exchange::Exchange;
use super::exchanges::Owner;

/// Counts each owner's running invocations. Requests from unproven sources may take at most half of
/// the places, so that requests from proven sources find room. One function and one address may
/// take at most half each, so that others find room.
#[derive(Default)]
pub(crate) struct Running {
    unproven: usize,
    by_function: HashMap<FunctionName, usize>,
    by_owner: HashMap<Owner, usize>,
}

/// The number of entries without invocations that stay in the maps of [`Running`], so that the
/// requests of a single client do not add and remove entries repeatedly.
const IDLE_OWNERS_KEPT: usize = 64;

/// Whether an invocation may begin.
pub(crate) enum Room {
    Free,
    /// Only requests from proven sources may begin.
    Unproven,
    Full,
}

impl Running {
    pub(crate) fn room(&self, exchange: &Exchange, running: usize, running_max: usize) -> Room {
        let share_max = running_max.div_ceil(2);
        // With fewer running invocations, no owner can have more than its share.
        if running < share_max {
            return Room::Free;
        }
        let of_function = exchange.function.as_ref().and_then(|name| self.by_function.get(name));
        if running >= running_max || of_function.is_some_and(|count| *count >= share_max) {
            return Room::Full;
        }
        if exchange.to.limit.is_some() {
            return if self.unproven < share_max { Room::Free } else { Room::Unproven };
        }
        let of_owner = self.by_owner.get(&Owner::proven(exchange.to.peer));
        if of_owner.is_some_and(|count| *count >= share_max) { Room::Full } else { Room::Free }
    }

    pub(crate) fn begin(&mut self, exchange: &Exchange) {
        if let Some(name) = &exchange.function {
            match self.by_function.get_mut(name) {
                Some(count) => *count += 1,
                None => {
                    self.by_function.insert(name.clone(), 1);
                }
            }
        }
        match exchange.to.limit {
            Some(_) => self.unproven += 1,
            None => *self.by_owner.entry(Owner::proven(exchange.to.peer)).or_default() += 1,
        }
    }

    pub(crate) fn end(&mut self, exchange: &Exchange) {
        if let Some(name) = &exchange.function {
            less(&mut self.by_function, name);
        }
        match exchange.to.limit {
            Some(_) => self.unproven -= 1,
            None => less(&mut self.by_owner, &Owner::proven(exchange.to.peer)),
        }
    }
}

fn less<K: Eq + std::hash::Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    let Some(count) = counts.get_mut(key) else { return };
    *count -= 1;
    if *count == 0 && counts.len() > IDLE_OWNERS_KEPT {
        counts.remove(key);
    }
}
