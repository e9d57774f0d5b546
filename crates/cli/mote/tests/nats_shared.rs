//! Tests several nodes that share a namespace, while connections and servers end.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "nats_server/mod.rs"]
mod server;

use mote_core::state::{Condition, Namespace, Operation, Outcome, Quota, State as _, StateError};
use server::{NOW_MS, Node, Server};

#[tokio::test]
async fn a_change_of_one_node_is_seen_by_the_others_at_once() {
    let Some(server) = Server::start("") else { return };
    let a = Node::of(&server);
    let b = Node::of(&server);
    for round in 0..50 {
        let key = format!("k{}", round % 7);
        let version = a.put(&key, &round.to_string(), Condition::None).await.unwrap();
        let seen = b.entry(&key).await.unwrap();
        assert_eq!((&seen.value[..], seen.version), (round.to_string().as_bytes(), version));
        assert!(b.keys().await.contains(&key), "{round}");
        // The other node decides by the current state of the namespace, not by the state that it
        // knew before.
        let refused = b.put(&key, "x", Condition::Absent).await;
        assert_eq!(refused, Err(StateError::Conflict { version }));
        assert_eq!(b.delete(&key, Condition::Version(version)).await, Ok(true));
        assert_eq!(a.get(&key).await, None);
        assert_eq!(a.delete(&key, Condition::None).await, Ok(false));
        assert!(!a.keys().await.contains(&key), "{round}");
        let again = a.put(&key, "again", Condition::Absent).await.unwrap();
        assert!(again > version);
    }
    b.state.clear(Namespace::Shared("site".into())).await.unwrap();
    assert_eq!((a.get("k1").await, a.keys().await), (None, Vec::new()));
    assert_eq!(a.state.usage().await.unwrap(), []);
    a.put("k1", "new", Condition::Absent).await.unwrap();
    assert_eq!(b.state.usage().await.unwrap()[0].bytes, 5);
}

#[tokio::test]
async fn increments_of_two_nodes_lose_nothing() {
    let Some(server) = Server::start("") else { return };
    let nodes = [Node::of(&server), Node::of(&server)];
    let mut adding = Vec::new();
    for worker in 0..8 {
        let node = nodes[worker % 2].clone();
        adding.push(tokio::spawn(async move {
            for _ in 0..100 {
                node.add("n").await.unwrap();
            }
        }));
    }
    for one in adding {
        one.await.unwrap();
    }
    assert_eq!(nodes[0].get("n").await.as_deref(), Some("800"));
}

#[tokio::test]
async fn one_of_many_wins_a_race_for_a_version() {
    let Some(server) = Server::start("") else { return };
    let nodes = [Node::of(&server), Node::of(&server)];
    let mut version = nodes[0].put("k", "0", Condition::Absent).await.unwrap();
    for round in 0..20 {
        let races = (0..10).map(|racer: usize| {
            let node = nodes[racer % 2].clone();
            tokio::spawn(async move {
                node.put("k", &format!("{round}-{racer}"), Condition::Version(version)).await
            })
        });
        let mut won = Vec::new();
        for race in races.collect::<Vec<_>>() {
            match race.await.unwrap() {
                Ok(version) => won.push(version),
                Err(StateError::Conflict { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(won.len(), 1, "{round}");
        version = won[0];
    }
}

#[tokio::test]
async fn two_nodes_together_keep_a_quota() {
    let Some(server) = Server::start("") else { return };
    let mut nodes = [Node::of(&server), Node::of(&server)];
    for node in &mut nodes {
        node.quota = Quota { bytes: 4_000, keys: 50, together_bytes: None };
    }
    // Once seven eighths of a quota are used, usage is counted exactly.
    for number in 0..44 {
        nodes[0].put(&format!("first-{number}"), "x", Condition::None).await.unwrap();
    }
    for node in &nodes {
        assert_eq!(node.keys().await.len(), 44);
    }
    let writers = (0..8_usize).map(|writer| {
        let node = nodes[writer % 2].clone();
        tokio::spawn(async move {
            let mut written = 0;
            for number in 0..20 {
                match node.put(&format!("{writer}-{number:02}"), "x", Condition::None).await {
                    Ok(_) => written += 1,
                    Err(StateError::Full(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            written
        })
    });
    let mut written = 0;
    for writer in writers.collect::<Vec<_>>() {
        written += writer.await.unwrap();
    }
    assert_eq!(written, 6);
    let held = nodes[0].keys().await;
    assert_eq!(held.len(), 50);
    // The part of a quota that one node frees is available to the other.
    assert!(matches!(nodes[1].put("new", "", Condition::None).await, Err(StateError::Full(_))));
    assert_eq!(nodes[0].delete(&held[0], Condition::None).await, Ok(true));
    nodes[1].put("new", "", Condition::None).await.unwrap();
}

#[tokio::test]
async fn an_entry_ends_for_every_node_at_once() {
    let Some(server) = Server::start("") else { return };
    let a = Node::of(&server);
    let b = Node::of(&server);
    let put = Operation::Put {
        key: "k".into(),
        value: "v".into(),
        condition: Condition::None,
        ttl_ms: Some(1_000),
    };
    a.run(put).await.unwrap();
    let get = |node: &Node, after_ms| {
        let node = node.clone();
        async move {
            let get = Operation::Get { key: "k".into() };
            match node.run_at(get, NOW_MS + after_ms).await.unwrap() {
                Outcome::Entry(entry) => entry.is_some(),
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!((get(&a, 999).await, get(&b, 999).await), (true, true));
    assert_eq!((get(&a, 1_000).await, get(&b, 1_000).await), (false, false));
    let add = Operation::Increment { key: "k".into(), by: 1, ttl_ms: None };
    let counted = b.run_at(add, NOW_MS + 1_000).await;
    assert!(matches!(counted, Ok(Outcome::Counted { value: 1, .. })), "{counted:?}");
}

/// A key may contain every byte that a key in a file may contain.
#[tokio::test]
async fn keys_of_any_bytes_are_kept_apart() {
    let Some(server) = Server::start("") else { return };
    let a = Node::of(&server);
    let b = Node::of(&server);
    let long = "ü".repeat(256);
    let mut keys = vec!["a", "a.b", "a*", ">", "a b", "%61", "\r\n", "\u{1f600}", "A", &long];
    for key in &keys {
        a.put(key, key, Condition::Absent).await.unwrap();
    }
    for key in &keys {
        assert_eq!(b.get(key).await.as_deref(), Some(*key));
    }
    keys.sort_unstable();
    assert_eq!(b.keys().await, keys);
    let value = vec![7; mote_core::state::VALUE_BYTES_MAX];
    let value = String::from_utf8(value).unwrap();
    a.put("large", &value, Condition::None).await.unwrap();
    assert_eq!(b.get("large").await, Some(value));
}

/// The state of a node keeps working if its stream is removed.
#[tokio::test]
async fn a_stream_that_was_removed_is_made_again() {
    let Some(server) = Server::start("") else { return };
    let node = Node::of(&server);
    node.put("k", "v", Condition::None).await.unwrap();
    server.library().await.delete_stream("mote-kv-shared-site").await.unwrap();
    assert_eq!(node.get("k").await, None);
    node.put("k", "w", Condition::None).await.unwrap();
    assert_eq!(node.get("k").await.as_deref(), Some("w"));
    assert_eq!(node.keys().await, ["k"]);
}
