//! The behaviour that every implementation of the state must have, with the time as an argument.
//! The test file of each implementation includes this module and says how to open the
//! implementation.

#![allow(dead_code, unreachable_pub, reason = "it is included by test files")]

use std::collections::BTreeMap;
use std::sync::Arc;

use mote_core::state::{
    Begun, Condition, Namespace, Operation, Outcome, Quota, State, StateError, VALUE_BYTES_MAX,
};

const QUOTA: Quota = Quota { bytes: 1 << 20, keys: 1_000, together_bytes: None };

/// The place in which an implementation keeps the state of one test.
pub trait Place: Send + Sync + 'static {
    fn state(&self) -> &dyn State;

    /// Closes the state and opens it again. Nothing in memory survives.
    fn reopen(&mut self) -> impl Future<Output = ()> + Send;
}

/// Makes a test of each function of this file. `$open` returns a place, or `None` if the test
/// cannot run here.
#[macro_export]
macro_rules! contract {
    ($open:path) => {
        $crate::contract!($open:
            what_is_written_is_read_also_after_a_restart,
            a_change_with_a_condition_happens_only_where_it_holds,
            compare_and_set_of_many_loses_no_change,
            increments_add_and_refuse_what_is_no_number,
            entries_vanish_when_their_time_has_passed,
            expired_entries_are_removed_by_later_changes,
            listings_are_ordered_and_continue,
            a_quota_bounds_bytes_and_keys_of_each_namespace,
            it_behaves_like_a_map,
        );
    };
    ($open:path: $($name:ident,)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                if let Some(place) = $open().await {
                    contract::$name(place).await;
                }
            }
        )*
    };
}

struct Bench<P> {
    place: P,
    now_ms: u64,
    quota: Quota,
}

impl<P: Place> Bench<P> {
    fn new(place: P) -> Self {
        Self { place, now_ms: 1_000_000, quota: QUOTA }
    }

    async fn reopen(&mut self) {
        self.place.reopen().await;
    }

    async fn run(&self, operation: Operation) -> Result<Outcome, StateError> {
        self.run_in("f", operation).await
    }

    async fn run_in(&self, function: &str, operation: Operation) -> Result<Outcome, StateError> {
        let namespace = Namespace::Function(function.to_owned());
        match self.place.state().begin(namespace, operation, self.quota, true, self.now_ms) {
            Begun::Done(result) => result,
            Begun::Later(result) => result.await,
        }
    }

    async fn get(&self, key: &str) -> Option<String> {
        match self.run(Operation::Get { key: key.to_owned() }).await {
            Ok(Outcome::Entry(entry)) => {
                entry.map(|entry| String::from_utf8_lossy(&entry.value).into_owned())
            }
            other => panic!("{other:?}"),
        }
    }

    async fn put(&self, key: &str, value: &str, condition: Condition) -> Result<u64, StateError> {
        let key = key.to_owned();
        let value = value.to_owned().into();
        match self.run(Operation::Put { key, value, condition, ttl_ms: None }).await? {
            Outcome::Written { version } => Ok(version),
            other => panic!("{other:?}"),
        }
    }

    async fn put_for(&self, key: &str, value: &str, ttl_ms: u64) {
        let key = key.to_owned();
        let value = value.to_owned().into();
        let condition = Condition::None;
        let ttl_ms = Some(ttl_ms);
        self.run(Operation::Put { key, value, condition, ttl_ms }).await.expect("written");
    }

    async fn add(&self, key: &str, by: i64) -> Result<i64, StateError> {
        match self.run(Operation::Increment { key: key.to_owned(), by, ttl_ms: None }).await? {
            Outcome::Counted { value, .. } => Ok(value),
            other => panic!("{other:?}"),
        }
    }

    async fn keys(&self, prefix: &str, after: Option<&str>, limit: u32) -> (Vec<String>, bool) {
        let prefix = prefix.to_owned();
        let after = after.map(str::to_owned);
        match self.run(Operation::List { prefix, after, limit, values: false }).await {
            Ok(Outcome::Listed { entries, more }) => {
                (entries.into_iter().map(|(key, _)| key).collect(), more)
            }
            other => panic!("{other:?}"),
        }
    }

    async fn usage(&self) -> Vec<(u64, u64)> {
        let usage = self.place.state().usage().await.expect("read");
        usage.into_iter().map(|usage| (usage.keys, usage.bytes)).collect()
    }
}

pub async fn what_is_written_is_read_also_after_a_restart<P: Place>(place: P) {
    let mut bench = Bench::new(place);
    let first = bench.put("k", "one", Condition::None).await.expect("written");
    let second = bench.put("k", "two", Condition::None).await.expect("written");
    assert!(second > first);
    assert_eq!(bench.get("k").await.as_deref(), Some("two"));
    assert_eq!(
        bench.run_in("g", Operation::Get { key: "k".into() }).await,
        Ok(Outcome::Entry(None))
    );
    bench.reopen().await;
    assert_eq!(bench.get("k").await.as_deref(), Some("two"));
    let deleted = |key: &str| Operation::Delete { key: key.into(), condition: Condition::None };
    assert_eq!(bench.run(deleted("k")).await, Ok(Outcome::Deleted(true)));
    assert_eq!(bench.run(deleted("k")).await, Ok(Outcome::Deleted(false)));
    bench.reopen().await;
    assert_eq!(bench.get("k").await, None);
    // A version is never reused, even after the key was removed.
    let third = bench.put("k", "three", Condition::Absent).await.expect("written");
    assert!(third > second);
}

pub async fn a_change_with_a_condition_happens_only_where_it_holds<P: Place>(place: P) {
    let bench = Bench::new(place);
    let conflict = |version| Err(StateError::Conflict { version });
    assert_eq!(bench.put("k", "x", Condition::Version(3)).await, conflict(0));
    let first = bench.put("k", "one", Condition::Absent).await.expect("there was none");
    assert_eq!(bench.put("k", "x", Condition::Absent).await, conflict(first));
    let second = bench.put("k", "two", Condition::Version(first)).await.expect("as required");
    assert_eq!(bench.put("k", "x", Condition::Version(first)).await, conflict(second));
    let delete =
        |version| Operation::Delete { key: "k".into(), condition: Condition::Version(version) };
    assert_eq!(bench.run(delete(first)).await, Err(StateError::Conflict { version: second }));
    assert_eq!(bench.get("k").await.as_deref(), Some("two"));
    assert_eq!(bench.run(delete(second)).await, Ok(Outcome::Deleted(true)));
}

pub async fn compare_and_set_of_many_loses_no_change<P: Place>(place: P) {
    let bench = Arc::new(Bench::new(place));
    bench.put("n", "0", Condition::None).await.expect("written");
    let adders = (0..8).map(|_| {
        let bench = bench.clone();
        tokio::spawn(async move {
            for _ in 0..25 {
                loop {
                    let read = bench.run(Operation::Get { key: "n".into() }).await;
                    let Ok(Outcome::Entry(Some(entry))) = read else { panic!("{read:?}") };
                    let number: u32 =
                        String::from_utf8_lossy(&entry.value).parse().expect("a number");
                    let condition = Condition::Version(entry.version);
                    match bench.put("n", &(number + 1).to_string(), condition).await {
                        Ok(_) => break,
                        Err(StateError::Conflict { .. }) => tokio::task::yield_now().await,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        })
    });
    for adder in adders.collect::<Vec<_>>() {
        adder.await.expect("no panic");
    }
    assert_eq!(bench.get("n").await.as_deref(), Some("200"));
}

pub async fn increments_add_and_refuse_what_is_no_number<P: Place>(place: P) {
    let mut bench = Bench::new(place);
    assert_eq!(bench.add("n", 5).await, Ok(5));
    assert_eq!(bench.add("n", -7).await, Ok(-2));
    assert_eq!(bench.get("n").await.as_deref(), Some("-2"));
    bench.put("n", &i64::MAX.to_string(), Condition::None).await.expect("written");
    assert!(matches!(bench.add("n", 1).await, Err(StateError::Invalid(_))));
    bench.put("n", "many", Condition::None).await.expect("written");
    assert!(matches!(bench.add("n", 1).await, Err(StateError::Invalid(_))));
    assert_eq!(bench.get("n").await.as_deref(), Some("many"));
    // An increment keeps the expiry of an entry unless it sets another.
    bench.put_for("t", "1", 1_000).await;
    assert_eq!(bench.add("t", 1).await, Ok(2));
    bench.now_ms += 1_000;
    assert_eq!(bench.add("t", 1).await, Ok(1));
}

pub async fn entries_vanish_when_their_time_has_passed<P: Place>(place: P) {
    let mut bench = Bench::new(place);
    bench.put_for("k", "v", 1_000).await;
    bench.now_ms += 999;
    assert_eq!(bench.get("k").await.as_deref(), Some("v"));
    bench.now_ms += 1;
    assert_eq!(bench.get("k").await, None);
    assert_eq!(bench.keys("", None, 0).await, (Vec::new(), false));
    let version = bench.put("k", "w", Condition::Absent).await.expect("the old one is over");
    assert!(version > 1);
    bench.reopen().await;
    bench.now_ms += 1_000_000;
    assert_eq!(bench.get("k").await.as_deref(), Some("w"));
}

pub async fn expired_entries_are_removed_by_later_changes<P: Place>(place: P) {
    let mut bench = Bench::new(place);
    for number in 0..20 {
        bench.put_for(&format!("k{number}"), "v", 1_000).await;
    }
    assert_eq!(bench.usage().await.first().map(|usage| usage.0), Some(20));
    bench.now_ms += 1_000;
    for _ in 0..10 {
        bench.put("one", "v", Condition::None).await.expect("written");
    }
    assert_eq!(bench.usage().await, [(1, 4)]);
}

pub async fn listings_are_ordered_and_continue<P: Place>(place: P) {
    let bench = Bench::new(place);
    for key in ["b/2", "a", "b/10", "b/1", "c", "b0", "b"] {
        bench.put(key, "v", Condition::None).await.expect("written");
    }
    let all = |keys: &[&str], more| (keys.iter().map(|key| (*key).to_owned()).collect(), more);
    assert_eq!(bench.keys("b/", None, 0).await, all(&["b/1", "b/10", "b/2"], false));
    assert_eq!(bench.keys("b/", None, 2).await, all(&["b/1", "b/10"], true));
    assert_eq!(bench.keys("b/", Some("b/10"), 2).await, all(&["b/2"], false));
    assert_eq!(bench.keys("z", None, 0).await, all(&[], false));
    assert_eq!(bench.keys("", None, 0).await.0.len(), 7);
    // A listing with values is also limited by bytes, but always makes progress.
    let value = "x".repeat(VALUE_BYTES_MAX - 100);
    for key in ["v1", "v2", "v3"] {
        bench.put(key, &value, Condition::None).await.expect("written");
    }
    let list = Operation::List { prefix: "v".into(), after: None, limit: 0, values: true };
    let Ok(Outcome::Listed { entries, more }) = bench.run(list).await else { panic!("listed") };
    assert_eq!((entries.len(), more), (2, true));
    assert_eq!(entries[0].1.value.len(), value.len());
}

pub async fn a_quota_bounds_bytes_and_keys_of_each_namespace<P: Place>(place: P) {
    let mut bench = Bench::new(place);
    bench.quota = Quota { bytes: 100, keys: 3, together_bytes: None };
    let full = |result: Result<u64, StateError>| matches!(result, Err(StateError::Full(_)));
    assert!(full(bench.put("k", &"x".repeat(100), Condition::None).await));
    bench.put("k", &"x".repeat(99), Condition::None).await.expect("exactly the quota");
    assert!(full(bench.put("l", "", Condition::None).await));
    // Replacing a value by one of the same or a smaller size is allowed, whatever the quota.
    bench.put("k", &"y".repeat(99), Condition::None).await.expect("not more than before");
    bench.quota.bytes = 50;
    bench.put("k", &"y".repeat(60), Condition::None).await.expect("less than before");
    bench.quota.bytes = 100;
    bench.put_for("gone", "x", 1_000).await;
    bench.put("third", "", Condition::None).await.expect("three keys");
    assert!(full(bench.put("4", "", Condition::None).await));
    assert_eq!(bench.usage().await, [(3, 61 + 5 + 5)]);
    // Expired entries make room.
    bench.now_ms += 1_000;
    bench.put("4", "", Condition::None).await.expect("an entry has expired");
    // Another namespace has a separate quota.
    let put = Operation::Put {
        key: "k".into(),
        value: "x".repeat(99).into(),
        condition: Condition::None,
        ttl_ms: None,
    };
    bench.run_in("g", put).await.expect("its own quota");
    bench.place.state().clear(Namespace::Function("f".into())).await.expect("cleared");
    assert_eq!(bench.get("k").await, None);
    assert_eq!(bench.usage().await, [(1, 100)]);
}

/// Runs random operations against a plain map, with restarts in between.
pub async fn it_behaves_like_a_map<P: Place>(place: P) {
    let mut bench = Bench::new(place);
    let mut model: BTreeMap<String, String> = BTreeMap::new();
    let mut seed = 7_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for step in 0..600 {
        let key = format!("k{}", random(12));
        match random(5) {
            0 | 1 => {
                bench.put(&key, &step.to_string(), Condition::None).await.expect("written");
                model.insert(key, step.to_string());
            }
            2 => {
                let delete = Operation::Delete { key: key.clone(), condition: Condition::None };
                let was = model.remove(&key).is_some();
                assert_eq!(bench.run(delete).await, Ok(Outcome::Deleted(was)), "{step}");
            }
            3 => {
                let sum = model.get(&key).map_or(0, |text| text.parse().expect("a number")) + 3;
                assert_eq!(bench.add(&key, 3).await, Ok(sum), "{step}");
                model.insert(key, sum.to_string());
            }
            _ => assert_eq!(bench.get(&key).await.as_ref(), model.get(&key), "{step}"),
        }
        if step % 200 == 199 {
            bench.reopen().await;
        }
    }
    let keys: Vec<String> = model.keys().cloned().collect();
    assert_eq!(bench.keys("", None, 0).await.0, keys);
    let bytes: usize = model.iter().map(|(key, value)| key.len() + value.len()).sum();
    assert_eq!(bench.usage().await, [(model.len() as u64, bytes as u64)]);
}
