//! Tests appends to a stream that keeps a journal, against a real server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "nats_server/mod.rs"]
mod server;

use std::time::{Duration, Instant};

use mote_journal::nats::{Nats, NatsError, PageOf, Publishing};
use server::Server;

fn message(subject: &str, body: &str) -> Publishing {
    Publishing { subject: subject.into(), body: body.to_owned().into() }
}

async fn subjects(nats: &Nats) -> (Vec<String>, u64) {
    let page = PageOf { stream: "J".into(), subjects: None, from: 1, most: 2_000 };
    let (messages, last) = nats.read(page).await.unwrap();
    (messages.into_iter().map(|message| message.subject).collect(), last)
}

async fn ensured(nats: &Nats) {
    nats.ensure_log("J".into(), "j.>".into()).await.unwrap();
}

#[tokio::test]
async fn an_append_happens_as_a_whole_or_not_at_all() {
    let Some(server) = Server::start("") else { return };
    let nats = server.client();
    ensured(&nats).await;
    ensured(&nats).await;
    nats.append(vec![message("j.a", "1")], 0).await.unwrap();
    nats.append(vec![message("j.b", "1"), message("j.a", "2"), message("j.c", "1")], 1)
        .await
        .unwrap();
    assert_eq!(subjects(&nats).await, (vec!["j.b".into(), "j.a".into(), "j.c".into()], 4));

    // Another writer has appended one message. The second message of this batch would fit after that
    // message, but must not be stored without the first.
    let late = vec![message("j.x", "late"), message("j.y", "late"), message("j.z", "late")];
    nats.append(vec![message("j.e", "other")], 4).await.unwrap();
    assert_eq!(nats.append(late.clone(), 4).await, Err(NatsError::OtherLast));
    assert_eq!(nats.append(vec![late[0].clone()], 4).await, Err(NatsError::OtherLast));
    assert_eq!(subjects(&nats).await.1, 5);
    nats.append(late, 5).await.unwrap();

    let many: Vec<Publishing> = (0..900).map(|n| message(&format!("j.m.{n}"), "m")).collect();
    nats.append(many, 8).await.unwrap();
    assert_eq!(subjects(&nats).await.1, 908);
    let long = vec![message("j.l", &"x".repeat(2 << 20)), message("j.k", "")];
    let refused = nats.append(long, 908).await;
    assert!(matches!(&refused, Err(NatsError::Refused(text)) if text.contains("max_payload")));
}

#[tokio::test]
async fn a_message_without_a_body_is_forgotten() {
    let Some(server) = Server::start("") else { return };
    let nats = server.client();
    ensured(&nats).await;
    nats.append(vec![message("j.a", "1"), message("j.b", "1")], 0).await.unwrap();
    nats.append(vec![message("j.a", ""), message("j.b", "2")], 2).await.unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while subjects(&nats).await.0.len() > 1 {
        assert!(Instant::now() < until, "it is still there");
    }
    assert_eq!(subjects(&nats).await, (vec!["j.b".into()], 4), "the last place stays");
    nats.append(vec![message("j.c", "1")], 4).await.unwrap();
}
