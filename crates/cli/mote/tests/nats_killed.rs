//! Tests in which processes are killed while they work. They are in a separate test file, because they
//! kill every process of the program that the test process has started.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "nats_server/mod.rs"]
mod server;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mote_core::state::Condition;
use server::{Node, Server};

/// Returns the processes of the program that this test process has started.
fn processes() -> Vec<u32> {
    let mut found = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let children = std::fs::read_to_string(task.unwrap().path().join("children")).unwrap();
        found.extend(children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()).filter(
            |pid| {
                let program = std::fs::read_link(format!("/proc/{pid}/exe"));
                program.is_ok_and(|path| path == Path::new(env!("CARGO_BIN_EXE_mote")))
            },
        ));
    }
    found
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    // The process may already have ended.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// No acknowledged change is lost if the program, the server or both are killed. A change that was not
/// acknowledged may have happened once, but never twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_increment_is_lost_when_processes_are_killed() {
    let Some(mut server) = Server::start("") else { return };
    let nodes = [Node::of(&server), Node::of(&server)];
    nodes[0].put("n", "0", Condition::None).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let acknowledged = Arc::new(AtomicU64::new(0));
    let tried = Arc::new(AtomicU64::new(0));
    let mut adding = Vec::new();
    for worker in 0..4 {
        let node = nodes[worker % 2].clone();
        let stop = stop.clone();
        let acknowledged = acknowledged.clone();
        let tried = tried.clone();
        adding.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                tried.fetch_add(1, Ordering::Relaxed);
                if node.add("n").await.is_ok() {
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                }
            }
        }));
    }
    // Each kill happens while increments run. Increments after the kill are acknowledged.
    let more = |count: u64| {
        let acknowledged = acknowledged.clone();
        let wanted = acknowledged.load(Ordering::Relaxed) + count;
        async move {
            let until = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
            while acknowledged.load(Ordering::Relaxed) < wanted {
                assert!(tokio::time::Instant::now() < until, "no increment is acknowledged");
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        }
    };
    for round in 0..6 {
        more(30).await;
        if round % 2 == 0 {
            server.kill();
            server.again();
        } else {
            let found = processes();
            assert!(!found.is_empty());
            kill(found[round % found.len()]);
        }
    }
    more(30).await;
    stop.store(true, Ordering::Relaxed);
    for one in adding {
        one.await.unwrap();
    }
    let held: u64 = nodes[1].get("n").await.unwrap().parse().unwrap();
    let (acknowledged, tried) =
        (acknowledged.load(Ordering::Relaxed), tried.load(Ordering::Relaxed));
    assert!((acknowledged..=tried).contains(&held), "{acknowledged} {held} {tried}");
}
