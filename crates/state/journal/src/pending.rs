//! Decides which accepted invocation runs next. Pure: the time is an argument.
//!
//! Namespaces take turns, and within a namespace its functions take turns. A function may use only
//! a share of the places, so that no function blocks the others. Once a namespace other than the
//! default one has had an entry, each namespace is limited too. Among the requests that carry a
//! function's results, the receiving hosts take turns. Each host has a share of the places for the
//! function's results, so that a host that does not answer delays only its own requests.
//! Invocations with the same order key run one after another in the order of their numbers. An
//! invocation that waits for another attempt holds back the later invocations with its order key.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use crate::room::namespace_of;

/// The number of a record in the journal. The numbers follow the order of acceptance.
pub type Number = i64;

/// Separates the function's name from the receiving host in the name of a share for results.
pub(crate) const RESULTS: &str = " results";
/// The most results of one function that are sent at once.
const RESULTS_OF_ONE_MAX: usize = 32;

/// Returns the function, if this is a share for results.
fn results_of(share: &str) -> Option<&str> {
    share.split_once(RESULTS).map(|(function, _)| function)
}

/// An invocation that waits or runs.
#[derive(Debug)]
pub struct Entry<T> {
    /// The function that the entry counts against. Its share limits how many run at once.
    pub function: Arc<str>,
    pub order: Option<Arc<str>>,
    /// The earliest time to run, on the caller's clock in milliseconds.
    pub due_ms: u64,
    /// The caller's data for this entry.
    pub data: T,
}

/// The invocations of a node that have not ended.
#[derive(Debug)]
pub struct Pending<T> {
    total_max: usize,
    running: usize,
    entries: HashMap<Number, Entry<T>>,
    /// Entries whose time to run has not come yet.
    timers: BTreeSet<(u64, Number)>,
    functions: HashMap<Arc<str>, Function>,
    /// Namespaces by name. The default namespace has the empty name.
    namespaces: HashMap<Arc<str>, Namespace>,
    /// How many requests with results are running, by the function that produced the results.
    results: HashMap<Arc<str>, usize>,
    /// Namespaces with ready entries, in the order of their turns.
    turns: VecDeque<Arc<str>>,
    /// Whether a function of a namespace other than the default one has ever had an entry.
    is_shared: bool,
    /// Entries by function and order key, in order of their numbers. Only the first entry of each
    /// may run.
    orders: HashMap<(Arc<str>, Arc<str>), BTreeSet<Number>>,
}

#[derive(Debug, Default)]
struct Function {
    /// By number, so that a delayed entry runs before the entries accepted after it.
    ready: BTreeMap<Number, ()>,
    running: usize,
    has_turn: bool,
}

#[derive(Debug, Default)]
struct Namespace {
    /// Functions with ready entries, in the order of their turns.
    turns: VecDeque<Arc<str>>,
    running: usize,
    has_turn: bool,
}

impl<T> Pending<T> {
    /// Creates an empty queue from which at most `total_max` entries run at once.
    pub fn new(total_max: usize) -> Self {
        Self {
            total_max,
            running: 0,
            entries: HashMap::new(),
            timers: BTreeSet::new(),
            functions: HashMap::new(),
            namespaces: HashMap::new(),
            results: HashMap::new(),
            is_shared: false,
            turns: VecDeque::new(),
            orders: HashMap::new(),
        }
    }

    /// The number of entries that wait or run.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a waiting entry. Its number must be larger than the numbers of all earlier entries with
    /// its order key.
    pub fn add(&mut self, number: Number, entry: Entry<T>) {
        self.is_shared |= !namespace_of(&entry.function).is_empty();
        if let Some(order) = &entry.order {
            let key = (entry.function.clone(), order.clone());
            self.orders.entry(key).or_default().insert(number);
        }
        self.timers.insert((entry.due_ms, number));
        self.entries.insert(number, entry);
    }

    pub fn get_mut(&mut self, number: Number) -> Option<&mut Entry<T>> {
        self.entries.get_mut(&number)
    }

    /// Returns the time of the next timer: the earliest entry whose time to run has not come.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.timers.first().map(|(due_ms, _)| *due_ms)
    }

    /// Returns the next entry that may run at `now_ms`. The entry counts as running until
    /// [`Pending::again`] or [`Pending::remove`]. `share_of` receives a function and the data of
    /// its next entry, and returns how many entries of the function may run at once. 0 keeps them
    /// waiting.
    pub fn next(&mut self, now_ms: u64, share_of: impl Fn(&str, &T) -> usize) -> Option<Number> {
        self.wake(now_ms);
        if self.running >= self.total_max {
            return None;
        }
        for _ in 0..self.turns.len() {
            let name = self.turns.pop_front()?;
            let has_room = !self.is_shared || self.has_room(&name);
            let number = if has_room { self.next_of(&name, &share_of) } else { None };
            let namespace = self.namespaces.get_mut(&name)?;
            if number.is_some() {
                namespace.running += 1;
                self.running += 1;
            }
            namespace.has_turn = !namespace.turns.is_empty();
            if namespace.has_turn {
                self.turns.push_back(name);
            } else {
                self.forget_idle_namespace(&name);
            }
            if number.is_some() {
                return number;
            }
        }
        None
    }

    /// Whether another entry of a namespace may run. A namespace may use as many places as are
    /// free, and the default namespace three times as many. So some places always stay free for
    /// other namespaces.
    fn has_room(&self, namespace: &str) -> bool {
        let free = self.total_max - self.running;
        let most = if namespace.is_empty() { 3 * free } else { free };
        self.namespaces.get(namespace).is_some_and(|namespace| namespace.running < most)
    }

    /// Takes the next entry of a namespace that may run.
    fn next_of(
        &mut self,
        namespace: &str,
        share_of: &impl Fn(&str, &T) -> usize,
    ) -> Option<Number> {
        let turns = &mut self.namespaces.get_mut(namespace)?.turns;
        for _ in 0..turns.len() {
            let name = turns.pop_front()?;
            let function = self.functions.get_mut(&name)?;
            let Some((&number, ())) = function.ready.first_key_value() else {
                function.has_turn = false;
                forget_idle(&mut self.functions, &name);
                continue;
            };
            let results = results_of(&name).and_then(|owner| self.results.get(owner)).copied();
            let is_full = results.is_some_and(|running| running >= RESULTS_OF_ONE_MAX);
            let share = self.entries.get(&number).map_or(0, |entry| share_of(&name, &entry.data));
            if is_full || function.running >= share {
                turns.push_back(name);
                continue;
            }
            if let Some(owner) = results_of(&name) {
                *self.results.entry(owner.into()).or_default() += 1;
            }
            function.ready.remove(&number);
            function.running += 1;
            if function.ready.is_empty() {
                function.has_turn = false;
            } else {
                turns.push_back(name);
            }
            return Some(number);
        }
        None
    }

    /// Moves entries whose time has come to their function's ready entries. An entry stays behind
    /// as long as an earlier entry with its order key has not ended.
    fn wake(&mut self, now_ms: u64) {
        while let Some(&(due_ms, number)) = self.timers.first()
            && due_ms <= now_ms
        {
            self.timers.pop_first();
            self.make_ready(number);
        }
    }

    fn make_ready(&mut self, number: Number) {
        let Some(entry) = self.entries.get(&number) else { return };
        if let Some(order) = &entry.order {
            let key = (entry.function.clone(), order.clone());
            let first = self.orders.get(&key).and_then(|numbers| numbers.first());
            if first != Some(&number) {
                // This entry becomes ready when the entry before it ends.
                return;
            }
        }
        let name = entry.function.clone();
        let function = self.functions.entry(name.clone()).or_default();
        function.ready.insert(number, ());
        if !function.has_turn {
            function.has_turn = true;
            self.take_turn(name);
        }
    }

    /// Puts a function behind the other functions of its namespace.
    fn take_turn(&mut self, function: Arc<str>) {
        let name = namespace_of(&function);
        if !self.namespaces.contains_key(name) {
            self.namespaces.insert(name.into(), Namespace::default());
        }
        let Some(namespace) = self.namespaces.get_mut(name) else { return };
        if !namespace.has_turn {
            namespace.has_turn = true;
            self.turns.push_back(name.into());
        }
        namespace.turns.push_back(function);
    }

    /// Makes an entry that ran wait until `due_ms` for another attempt.
    pub fn again(&mut self, number: Number, due_ms: u64) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        entry.due_ms = due_ms;
        let name = entry.function.clone();
        self.timers.insert((due_ms, number));
        self.has_run(&name);
    }

    /// Removes an entry. `ran` says whether it was running.
    pub fn remove(&mut self, number: Number, ran: bool) -> Option<Entry<T>> {
        let entry = self.entries.remove(&number)?;
        self.timers.remove(&(entry.due_ms, number));
        if let Some(function) = self.functions.get_mut(&entry.function) {
            function.ready.remove(&number);
        }
        if ran {
            self.has_run(&entry.function);
        } else {
            forget_idle(&mut self.functions, &entry.function);
        }
        if let Some(order) = &entry.order {
            let key = (entry.function.clone(), order.clone());
            let mut following = None;
            if let Some(numbers) = self.orders.get_mut(&key) {
                let was_first = numbers.first() == Some(&number);
                numbers.remove(&number);
                following = numbers.first().copied().filter(|_| was_first);
                if numbers.is_empty() {
                    self.orders.remove(&key);
                }
            }
            if let Some(next) = following
                && let Some(waiting) = self.entries.get(&next)
                && !self.timers.contains(&(waiting.due_ms, next))
            {
                self.make_ready(next);
            }
        }
        Some(entry)
    }

    fn has_run(&mut self, name: &Arc<str>) {
        self.running = self.running.saturating_sub(1);
        if let Some(function) = self.functions.get_mut(name) {
            function.running = function.running.saturating_sub(1);
        }
        forget_idle(&mut self.functions, name);
        if let Some(owner) = results_of(name)
            && let Some(running) = self.results.get_mut(owner)
        {
            *running -= 1;
            if *running == 0 {
                self.results.remove(owner);
            }
        }
        let namespace_name = namespace_of(name);
        if let Some(namespace) = self.namespaces.get_mut(namespace_name) {
            namespace.running = namespace.running.saturating_sub(1);
        }
        self.forget_idle_namespace(namespace_name);
    }

    fn forget_idle_namespace(&mut self, name: &str) {
        let idle = |namespace: &Namespace| namespace.running == 0 && !namespace.has_turn;
        if self.namespaces.get(name).is_some_and(idle) {
            self.namespaces.remove(name);
        }
    }
}

fn forget_idle(functions: &mut HashMap<Arc<str>, Function>, name: &Arc<str>) {
    let idle = |function: &Function| {
        function.running == 0 && function.ready.is_empty() && !function.has_turn
    };
    if functions.get(name).is_some_and(idle) {
        functions.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [Number; 0] = [];

    fn entry(function: &str, order: Option<&str>, due_ms: u64) -> Entry<()> {
        Entry { function: function.into(), order: order.map(Into::into), due_ms, data: () }
    }

    fn begun(pending: &mut Pending<()>, now_ms: u64) -> Vec<Number> {
        std::iter::from_fn(|| pending.next(now_ms, |_, ()| 3)).collect()
    }

    #[test]
    fn functions_run_in_turn_and_within_their_shares() {
        let mut pending = Pending::new(4);
        for n in 0..100 {
            pending.add(n, entry("many", None, 0));
        }
        pending.add(1_000, entry("few", None, 0));
        pending.add(1_001, entry("few", None, 0));
        assert_eq!(begun(&mut pending, 0), [0, 1_000, 1, 1_001], "in turn, up to the total");
        pending.remove(1_000, true);
        pending.remove(1_001, true);
        assert_eq!(begun(&mut pending, 0), [2], "the share of one function ends");
        pending.add(2_000, entry("late", None, 0));
        assert_eq!(begun(&mut pending, 0), [2_000], "others have room all the same");
        for n in [0, 1, 2, 2_000] {
            pending.remove(n, true);
        }
        for n in 3..100 {
            assert_eq!(pending.next(0, |_, ()| 1), Some(n));
            pending.remove(n, true);
        }
        assert!(pending.is_empty() && pending.functions.is_empty() && pending.turns.is_empty());
    }

    #[test]
    fn results_for_a_host_that_hangs_leave_room_for_those_of_others() {
        let mut pending = Pending::new(128);
        for n in 0..200 {
            pending.add(n, entry("f results hangs", None, 0));
        }
        assert_eq!(begun(&mut pending, 0), [0, 1, 2], "the share of one host");
        pending.add(1_000, entry("f results answers", None, 0));
        pending.add(1_001, entry("f", None, 0));
        assert_eq!(begun(&mut pending, 0), [1_000, 1_001]);
        // Many such hosts share the function's places, and take turns.
        for n in 2_000..2_040 {
            pending.add(n, entry(&format!("f results host{n}"), None, 0));
        }
        assert_eq!(begun(&mut pending, 0).len(), RESULTS_OF_ONE_MAX - 4);
        pending.add(3_000, entry("g results answers", None, 0));
        assert_eq!(begun(&mut pending, 0), [3_000], "those of other functions have their own");
        let running: Vec<Number> = pending.results.values().map(|count| *count as Number).collect();
        assert_eq!(running.iter().sum::<Number>(), RESULTS_OF_ONE_MAX as Number + 1);
        for n in (0..3).chain([1_000, 1_001, 3_000]).chain(2_000..2_028) {
            pending.remove(n, true);
        }
        assert!(pending.results.is_empty());
    }

    #[test]
    fn namespaces_run_in_turn_and_leave_places_to_others() {
        let mut pending = Pending::new(12);
        let mut numbers = 0..;
        let mut add = |pending: &mut Pending<()>, function: &str, count| {
            for number in numbers.by_ref().take(count) {
                pending.add(number, entry(function, None, 0));
            }
        };
        let runs = |pending: &mut Pending<()>| -> Vec<String> {
            let numbers: Vec<_> = std::iter::from_fn(|| pending.next(0, |_, ()| 9)).collect();
            let name = |number| pending.entries[&number].function.to_string();
            numbers.into_iter().map(name).collect()
        };
        add(&mut pending, "a.plant", 20);
        add(&mut pending, "b.plant", 20);
        let first = runs(&mut pending);
        assert_eq!(first, ["a.plant", "b.plant"].repeat(3), "half of the places");
        add(&mut pending, "f", 20);
        add(&mut pending, "g.house", 20);
        assert_eq!(runs(&mut pending), ["f", "g.house", "f", "g.house", "f"], "turns by namespace");
        let running: Vec<_> = (0..80)
            .filter(|number| {
                let waits = pending.functions.values().any(|f| f.ready.contains_key(number));
                !waits && pending.entries.contains_key(number)
            })
            .collect();
        for number in running {
            pending.remove(number, true);
        }
        for number in 0..80 {
            pending.remove(number, false);
        }
        assert_eq!(pending.next(0, |_, ()| 9), None);
        assert!(pending.functions.is_empty() && pending.namespaces.is_empty());
        add(&mut pending, "f", 20);
        add(&mut pending, "f2", 20);
        assert_eq!(runs(&mut pending).len(), 9, "the default one has three quarters");
        add(&mut pending, "a.plant", 20);
        assert_eq!(runs(&mut pending), ["a.plant"; 2]);
    }

    #[test]
    fn entries_wait_for_their_time_and_for_another_attempt() {
        let mut pending = Pending::new(9);
        pending.add(1, entry("f", None, 50));
        pending.add(2, entry("f", None, 0));
        assert_eq!(begun(&mut pending, 49), [2]);
        assert_eq!(pending.next_due_ms(), Some(50));
        assert_eq!(begun(&mut pending, 50), [1]);
        pending.again(1, 70);
        assert_eq!(begun(&mut pending, 69), NONE);
        assert_eq!(begun(&mut pending, 70), [1]);
        pending.remove(1, true);
        pending.remove(2, true);
        assert_eq!((pending.len(), pending.next_due_ms()), (0, None));
    }

    #[test]
    fn an_order_key_makes_them_run_one_after_another() {
        let mut pending = Pending::new(9);
        for n in 1..=4 {
            pending.add(n, entry("f", Some("a"), 0));
        }
        pending.add(5, entry("f", Some("b"), 0));
        pending.add(6, entry("g", Some("a"), 0));
        assert_eq!(begun(&mut pending, 0), [1, 6, 5]);
        pending.again(1, 100);
        assert_eq!(begun(&mut pending, 99), NONE, "those behind a delayed one wait");
        assert_eq!(begun(&mut pending, 100), [1]);
        pending.remove(3, false);
        pending.remove(1, true);
        assert_eq!(begun(&mut pending, 100), [2]);
        pending.remove(2, true);
        assert_eq!(begun(&mut pending, 100), [4], "a cancelled one is passed over");
        for n in [4, 5, 6] {
            pending.remove(n, true);
        }
        assert!(pending.orders.is_empty() && pending.functions.is_empty());
    }

    #[test]
    fn the_first_of_an_order_may_be_due_later_than_the_second() {
        let mut pending = Pending::new(9);
        pending.add(1, entry("f", Some("a"), 100));
        pending.add(2, entry("f", Some("a"), 0));
        assert_eq!(begun(&mut pending, 50), NONE);
        assert_eq!(begun(&mut pending, 100), [1]);
        pending.remove(1, true);
        assert_eq!(begun(&mut pending, 100), [2]);
        pending.remove(2, true);
        pending.add(3, entry("f", Some("a"), 0));
        pending.add(4, entry("f", Some("a"), 500));
        assert_eq!(begun(&mut pending, 200), [3]);
        pending.remove(3, true);
        assert_eq!(begun(&mut pending, 499), NONE);
        assert_eq!(begun(&mut pending, 500), [4]);
    }
}
