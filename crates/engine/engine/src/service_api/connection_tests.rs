//! Tests the limits of a listener with clients on loopback.

use std::sync::Mutex;

use mote_core::services::{Answer, Status};
use mote_core::state::Operation;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

const BIG_BYTES: usize = 900 << 10;
const INSTANCE: u64 = 7;
const CALL: &str = ".01ARZ3NDEKTSV4RRFFQ69G5FAV/call/big";

/// The number of large answers that exist, and the largest number that existed at once.
#[derive(Default)]
struct Count(Mutex<(usize, usize)>);

/// The content of a large answer.
struct Big(Arc<Count>, Vec<u8>);

impl Big {
    fn content(count: &Arc<Count>) -> Bytes {
        let mut numbers = count.0.lock().unwrap();
        numbers.0 += 1;
        numbers.1 = numbers.1.max(numbers.0);
        Bytes::from_owner(Self(count.clone(), vec![b'x'; BIG_BYTES]))
    }
}

impl AsRef<[u8]> for Big {
    fn as_ref(&self) -> &[u8] {
        &self.1
    }
}

impl Drop for Big {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().0 -= 1;
    }
}

struct Asker(Arc<Count>);

impl Ask for Asker {
    fn ask(&self, _: Option<InvocationId>, asked: Asked) -> AnswerFuture {
        let count = self.0.clone();
        Box::pin(async move {
            match asked {
                Asked::Call(_) => Answer::new(
                    Status::Done,
                    [&200_u16.to_le_bytes()[..], &[0; 6]].concat(),
                    Big::content(&count),
                ),
                Asked::State { operation: Operation::Get { key }, .. } if key == "big" => {
                    Answer::new(Status::Done, vec![0; 16], Big::content(&count))
                }
                Asked::State { operation: Operation::Put { value, .. }, .. } => {
                    let length = value.len() as u64;
                    Answer::new(Status::Done, length.to_le_bytes().to_vec(), Bytes::new())
                }
                _ => Answer::new(Status::Done, vec![0; 16], Bytes::from_static(b"small")),
            }
        })
    }
}

/// The address of a listener that is served with these time limits.
async fn served(times: Times) -> (std::net::SocketAddr, Arc<Count>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(Count::default());
    let ask = Arc::new(Asker(count.clone()));
    tokio::spawn(serve_within(listener, INSTANCE, ask, std::future::pending(), times));
    (address, count)
}

async fn send(address: std::net::SocketAddr, path: &str) -> TcpStream {
    let token = crate::service_api::token(INSTANCE);
    let head = format!("GET /{token}{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// Everything that arrives until the connection ends.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    String::from_utf8(bytes).unwrap()
}

async fn unread(path: &str) {
    let times = Times { room: Duration::from_millis(300), writing: Duration::from_secs(3) };
    let (address, count) = served(times).await;
    let mut streams = Vec::new();
    for _ in 0..40 {
        streams.push(send(address, path).await);
    }
    let mut accepted = Vec::new();
    for mut stream in streams {
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        match &status {
            b"HTTP/1.1 200" => accepted.push(stream),
            other => assert_eq!(other, b"HTTP/1.1 503"),
        }
    }
    let room = ANSWERS_BYTES_MAX / BIG_BYTES;
    assert_eq!(accepted.len(), room);
    assert_eq!(count.0.lock().unwrap().0, room);
    let small = rest(&mut send(address, "/kv/small").await).await;
    assert!(small.starts_with("HTTP/1.1 200") && small.ends_with("small"), "{small}");
    // The clients did not read in time, so their connections have ended and there is room again.
    for mut stream in accepted {
        let _ = stream.peek(&mut [0]).await;
        while count.0.lock().unwrap().0 > 0 {
            tokio::task::yield_now().await;
        }
        assert!(rest(&mut stream).await.len() < BIG_BYTES);
    }
    let answer = rest(&mut send(address, path).await).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.len() > BIG_BYTES);
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_values_hold_little_memory_for_a_limited_time() {
    unread("/kv/big").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_answers_of_calls_hold_little_memory_for_a_limited_time() {
    unread(CALL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_read_have_room() {
    let (address, count) = served(TIMES).await;
    let mut clients = JoinSet::new();
    for _ in 0..100 {
        clients.spawn(async move { rest(&mut send(address, "/kv/big").await).await.len() });
    }
    while let Some(length) = clients.join_next().await {
        assert!(length.unwrap() > BIG_BYTES);
    }
    let (now, most) = *count.0.lock().unwrap();
    assert!(now == 0 && most <= ANSWERS_BYTES_MAX / BIG_BYTES + READS_MAX, "{most}");
}

#[tokio::test]
async fn bodies_of_small_chunks_take_their_length() {
    let (address, _) = served(TIMES).await;
    let token = crate::service_api::token(INSTANCE);
    let mut request = format!(
        "PUT /{token}/kv/k HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         Transfer-Encoding: chunked\r\n\r\n"
    );
    request.push_str(&"1\r\nx\r\n".repeat(6000));
    request.push_str("0\r\n\r\n");
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n6000\n"), "{answer}");
}

#[tokio::test]
async fn the_limit_of_a_head_is_exact() {
    let (address, _) = served(TIMES).await;
    let token = crate::service_api::token(INSTANCE);
    for (length, expected) in [(HEAD_BYTES_MAX, "200"), (HEAD_BYTES_MAX + 1, "431")] {
        let begin = format!("GET /{token}/kv/k HTTP/1.1\r\nhost: x\r\nconnection: close\r\nlong: ");
        let value = "x".repeat(length - begin.len() - 4);
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("{begin}{value}\r\n\r\n").as_bytes()).await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{length}: {answer}");
    }
}
