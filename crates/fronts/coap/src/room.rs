//! Room for invocations under way, with a share for each owner.

use std::collections::HashMap;

use mote_spec::FunctionName;

use super::exchange::Exchange;
use super::exchanges::Owner;

/// How many invocations each owner has under way. Requests from unproven sources take no more than
/// half of the places, so that those of proven sources find room. One function and one address take
/// no more than half each, so that others find room.
#[derive(Default)]
pub(crate) struct Running {
    unproven: usize,
    by_function: HashMap<FunctionName, usize>,
    by_owner: HashMap<Owner, usize>,
}

/// Entries without invocations that are kept in the maps of [`Running`], so that the requests of a
/// single client do not add and remove them repeatedly.
const IDLE_OWNERS_KEPT: usize = 64;

/// Whether an invocation may begin.
pub(crate) enum Room {
    Free,
    /// Only requests of proven sources may begin.
    Unproven,
    Full,
}

impl Running {
    pub(crate) fn room(&self, exchange: &Exchange, running: usize, running_max: usize) -> Room {
        let share_max = running_max.div_ceil(2);
        // Below that, no owner can have more.
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
        let of_owner = self.by_owner.get(&Owner::of(exchange.to.peer, true));
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
            None => *self.by_owner.entry(Owner::of(exchange.to.peer, true)).or_default() += 1,
        }
    }

    pub(crate) fn end(&mut self, exchange: &Exchange) {
        if let Some(name) = &exchange.function {
            less(&mut self.by_function, name);
        }
        match exchange.to.limit {
            Some(_) => self.unproven -= 1,
            None => less(&mut self.by_owner, &Owner::of(exchange.to.peer, true)),
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
