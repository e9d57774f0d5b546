//! Tests publishing at brokers that do not answer: limits, time limits and the end.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mote_core::InvocationId;
use mote_core::accept::Accept;
use mote_core::publish::{Message, Publish as _, PublishError};
use mote_mqtt::{Host, Level, Local, Publisher};
use mote_spec::FunctionName;
use mote_spec::mqtt::Connection;
use tokio::runtime::Handle;

struct Nothing;

impl Host for Nothing {
    fn invocation_id(&self) -> InvocationId {
        InvocationId(1)
    }
    fn now_ns(&self) -> u64 {
        0
    }
    fn random(&self) -> u64 {
        7
    }
    fn secret(&self, _name: &str) -> Option<String> {
        None
    }
    fn log(&self, _function: &FunctionName, _level: Level, _text: &str) {}
    fn journal(&self) -> Arc<dyn Accept> {
        unreachable!("nothing is accepted for later")
    }
    fn node_id(&self) -> String {
        "node".to_owned()
    }
    fn broker(&self) -> String {
        "local".to_owned()
    }
    fn local(&self) -> Option<Local> {
        None
    }
}

fn publisher() -> Publisher {
    Publisher::new(Arc::new(Nothing), Handle::current())
}

fn at(broker: Option<String>) -> Connection {
    Connection { broker, ..Connection::default() }
}

fn message(owner: &str, connection: &Connection, bytes: usize) -> Message {
    Message::new(owner, connection.clone(), "a", Bytes::from(vec![0; bytes]))
}

#[tokio::test]
async fn an_owner_has_half_of_the_messages_and_of_the_bytes() {
    // The kernel accepts connections, but no program answers on them.
    let silent = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let broker = at(Some(format!("mqtt://{}", silent.local_addr().expect("bound"))));
    let publisher = publisher();
    let waiting: Vec<_> =
        (0..2_048).map(|_| publisher.publish(message("greedy", &broker, 0))).collect();
    let full = publisher.publish(message("greedy", &broker, 0)).await;
    assert!(matches!(full, Err(PublishError::Full(_))), "{full:?}");
    let large: Vec<_> =
        (0..8).map(|_| publisher.publish(message("large", &broker, 900 << 10))).collect();
    let more = [900 << 10, 900 << 10];
    let mut refused = 0;
    for bytes in more {
        let published = publisher.publish(message("large", &broker, bytes));
        let soon = tokio::time::timeout(Duration::from_millis(50), published).await;
        refused += u32::from(matches!(soon, Ok(Err(PublishError::Full(_)))));
    }
    assert_eq!(refused, 1, "8 MiB hold nine of them");
    let other = publisher.publish(message("modest", &broker, 10));
    assert!(tokio::time::timeout(Duration::from_millis(50), other).await.is_err(), "it waits");
    drop((waiting, large));
}

#[tokio::test]
async fn the_number_of_brokers_is_bounded() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = silent.local_addr().expect("bound").port();
    let publisher = publisher();
    let broker = |number: u32| at(Some(format!("mqtt://127.0.1.{number}:{port}")));
    let _waiting: Vec<_> =
        (0..64).map(|at| publisher.publish(message("f", &broker(at), 0))).collect();
    let full = publisher.publish(message("f", &broker(64), 0)).await;
    assert!(matches!(full, Err(PublishError::Full(_))), "{full:?}");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_nobody_takes_fails_in_time_and_names_the_reason() {
    let publisher = publisher();
    let began = tokio::time::Instant::now();
    let failed = publisher.publish(message("f", &at(None), 0)).await;
    let Err(PublishError::Unavailable(text)) = failed else { panic!("{failed:?}") };
    assert!(text.starts_with("local: ") && text.contains("is not running"), "{text}");
    assert!(began.elapsed() <= Duration::from_secs(21), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_message_has_an_owner_until_it_ends() {
    let publisher = publisher();
    // The caller stops waiting, but the message stays.
    drop(publisher.publish(message("f.plant", &at(None), 0)));
    let is_there = || publisher.has_messages_of(|owner| owner.ends_with(".plant"));
    assert!(is_there());
    assert!(!publisher.has_messages_of(|owner| owner == "f"));
    // A message that was published later also ends later.
    assert!(publisher.publish(message("g", &at(None), 0)).await.is_err());
    assert!(!is_there());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_published_after_the_stop() {
    let publisher = publisher();
    let waiting = tokio::spawn(publisher.publish(message("f", &at(None), 0)));
    tokio::task::yield_now().await;
    publisher.stop(Duration::from_secs(3)).await;
    let ended = waiting.await.expect("no panic");
    assert!(matches!(ended, Err(PublishError::Unavailable(_))), "{ended:?}");
    let late = publisher.publish(message("f", &at(None), 0)).await;
    assert_eq!(late, Err(PublishError::Stopping));
    let wrong = publisher.publish(Message { qos: 3, ..message("f", &at(None), 0) }).await;
    assert!(matches!(wrong, Err(PublishError::Invalid(_))), "{wrong:?}");
}
