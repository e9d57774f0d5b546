//! Tests requests on streams against a real server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "nats_server/mod.rs"]
mod server;

use async_nats::HeaderMap;
use mote_journal::nats::{NatsError, PageOf, Publishing, Settings};
use server::{Server, connect, free_port};

fn page(from: u64, most: u32) -> PageOf {
    PageOf { stream: "T".into(), subjects: None, from, most }
}

#[tokio::test]
async fn messages_are_read_in_pages_and_by_subject() {
    let Some(server) = Server::start("") else { return };
    let nats = server.client();
    let none = nats.read(page(1, 10)).await;
    assert_eq!(none, Err(NatsError::NoStream("T".into())));
    nats.ensure_log("T".into(), "t.>".into()).await.unwrap();
    assert_eq!(nats.read(page(1, 10)).await, Ok((Vec::new(), 0)));

    let library = server.library().await;
    let store = async |subject: String, body: String| {
        let mut headers = HeaderMap::new();
        headers.insert("Mote-Kind", "test");
        let sent = library.publish_with_headers(subject, headers, body.into()).await.unwrap();
        sent.await.unwrap().sequence
    };
    for n in 0..25 {
        assert_eq!(store(format!("t.{n}"), n.to_string()).await, n + 1);
    }
    let (first, last) = nats.read(page(1, 10)).await.unwrap();
    assert_eq!((first.len(), last), (10, 25));
    assert_eq!(
        (first[9].sequence, first[9].subject.as_str(), &first[9].body[..]),
        (10, "t.9", &b"9"[..])
    );
    assert_eq!(first[9].headers, [("Mote-Kind".to_owned(), "test".to_owned())]);
    assert!(first[9].time_unix_ms > 1_700_000_000_000);
    let (rest, _) = nats.read(page(11, 100)).await.unwrap();
    assert_eq!(
        rest.iter().map(|one| one.sequence).collect::<Vec<_>>(),
        (11..=25).collect::<Vec<_>>()
    );

    // Only one message of each subject is kept.
    assert_eq!(store("t.0".to_owned(), "new".to_owned()).await, 26);
    let of = |subject: &str| PageOf { subjects: Some(subject.into()), ..page(1, 10) };
    let (one, _) = nats.read(of("t.0")).await.unwrap();
    assert_eq!((one.len(), one[0].sequence), (1, 26));
    let last = nats.last("T".into(), "t.0".into()).await.unwrap().unwrap();
    assert_eq!((last.sequence, &last.body[..]), (26, &b"new"[..]));
    assert_eq!(last.headers, [("Mote-Kind".to_owned(), "test".to_owned())]);
    assert_eq!(nats.last("T".into(), "t.99".into()).await, Ok(None));
    let status = nats.check().await.unwrap();
    assert_eq!((status.version.as_str(), status.streams), ("2.15.2", 1));
    nats.stop().await;
    assert!(matches!(nats.check().await, Err(NatsError::Unreachable(_))));
}

#[tokio::test]
async fn a_server_that_is_gone_for_a_moment_delays_requests_only() {
    let Some(mut server) = Server::start("") else { return };
    let nats = server.client();
    nats.ensure_log("T".into(), "t.>".into()).await.unwrap();
    let message =
        |n: u64| vec![Publishing { subject: format!("t.{n}"), body: n.to_string().into() }];
    nats.append(message(1), 0).await.unwrap();
    server.kill();
    let appended = nats.append(message(2), 1);
    let (appended, ()) = tokio::join!(appended, async { server.again() });
    // The request during which the server ended may have failed. The following requests must not.
    let first = appended.is_ok();
    let (_, last) = nats.read(page(1, 10)).await.unwrap();
    nats.append(message(3), last).await.unwrap();
    let (read, _) = nats.read(page(1, 10)).await.unwrap();
    let bodies: Vec<&[u8]> = read.iter().map(|one| &one.body[..]).collect();
    assert!(bodies.starts_with(&[b"1"]) && bodies.ends_with(&[b"3"]), "{bodies:?}");
    assert!(!first || bodies.len() == 3, "{bodies:?}");
}

#[tokio::test]
async fn what_is_wrong_with_the_server_is_said_in_time() {
    let port = free_port();
    let to = |server: String, credentials: Option<&str>| Settings {
        servers: vec![server],
        credentials: credentials.map(str::to_owned),
        replicas: 1,
        uid: 1_000_000,
        ..Default::default()
    };
    let text = |checked: Result<_, NatsError>| match checked {
        Err(NatsError::Unreachable(text)) => text,
        other => panic!("{other:?}"),
    };
    let gone = connect(to(format!("nats://127.0.0.1:{port}"), None));
    let unknown = connect(to("nats://no-such-host.invalid:4222".into(), None));
    let (gone, unknown) = tokio::join!(gone.check(), unknown.check());
    let gone = text(gone);
    let unknown = text(unknown);
    assert!(gone.contains(&format!("127.0.0.1:{port}")) && gone.contains("refused"), "{gone}");
    assert!(unknown.contains("no-such-host.invalid:4222 does not answer"), "{unknown}");

    let lines = "authorization { user: mote, password: right }";
    let Some(server) = Server::start(lines) else { return };
    let address = server.settings().servers.remove(0);
    let wrong = connect(to(address.clone(), Some("mote:wrong-secret\n")));
    let right = connect(to(address, Some("mote:right\n")));
    let (wrong, right) = tokio::join!(wrong.check(), right.check());
    let wrong = text(wrong);
    assert!(wrong.contains("refuses the credentials"), "{wrong}");
    assert!(!wrong.contains("secret"), "{wrong}");
    assert!(right.is_ok(), "{right:?}");
}

/// Makes an authority and the server's certificate, which is for 127.0.0.1.
const CERTIFICATES: &str = "set -e
key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
openssl req -x509 $key -keyout ca.key -out ca.pem -days 2 -subj /CN=authority
printf 'subjectAltName=IP:127.0.0.1' > names
openssl req $key -keyout own.key -out own.csr -subj /CN=server
openssl x509 -req -in own.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out own.pem -extfile names";

#[tokio::test]
async fn tls_is_checked_against_the_authority_of_the_settings() {
    let folder = tempfile::tempdir().unwrap();
    let made = std::process::Command::new("sh")
        .args(["-c", CERTIFICATES])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let path = |name: &str| folder.path().join(name);
    let lines =
        format!("tls {{ cert_file: {:?}, key_file: {:?} }}", path("own.pem"), path("own.key"));
    let Some(server) = Server::start(&lines) else { return };
    let to = |authorities: Option<String>| Settings {
        servers: vec![format!("tls://127.0.0.1:{}", server.port)],
        authorities,
        ..server.settings()
    };
    let trusted = connect(to(Some(std::fs::read_to_string(path("ca.pem")).unwrap())));
    let other = connect(to(None));
    let (trusted, other) = tokio::join!(trusted.check(), other.check());
    assert!(trusted.is_ok(), "{trusted:?}");
    match other {
        Err(NatsError::Unreachable(text)) => {
            assert!(text.contains("invalid peer certificate"), "{text}")
        }
        other => panic!("{other:?}"),
    }
}
