//! Tests two cells over a real connection, and a stranger that knows the key.

use super::*;

use std::sync::Mutex as StdMutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use mote_core::elsewhere::{Elsewhere, Here, Later, Load, Places, Ran, RevisionKey, Sent};
use mote_core::invocation::Head;
use mote_core::{Invocation, InvocationId, Phases, Reply, Trigger};
use mote_spec::FunctionName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_rustls::client::TlsStream;

use crate::{CellAddress, CellKey, Cells};

const SECRET: [u8; 32] = [5; 32];

fn key() -> RevisionKey {
    RevisionKey { function: FunctionName::new("f").unwrap(), number: 1, content: 1 }
}

/// A cell without an engine. It answers with the body of the request.
#[derive(Default)]
struct Echo {
    running: Arc<AtomicUsize>,
    /// If set, the cell answers only after this is notified.
    gate: Option<Arc<Notify>>,
    /// If true, the cell refuses every invocation.
    busy: bool,
}

struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Here for Echo {
    fn run(&self, wanted: &RevisionKey, invocation: Invocation) -> Later<Ran> {
        if *wanted != key() {
            return Box::pin(std::future::ready(Ran::NotHere));
        }
        if self.busy {
            return Box::pin(std::future::ready(Ran::Busy));
        }
        self.running.fetch_add(1, Ordering::Relaxed);
        let running = Running(self.running.clone());
        let gate = self.gate.clone();
        Box::pin(async move {
            let _running = running;
            if let Some(gate) = gate {
                gate.notified().await;
            }
            let phases = Phases::default();
            let body = invocation.body;
            Ran::Answered(Ok(Reply { status: 200, headers: Bytes::new(), body, phases }))
        })
    }

    fn load(&self, _: usize) -> Load {
        Load { free_bytes: 1 << 30, revisions: vec![(key(), Places { ready: 2_000, more: 0 })] }
    }
}

async fn cell(here: Echo) -> Cells {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let secret = CellKey::new(&SECRET).unwrap();
    Cells::start(listener, secret, Arc::new(here), tokio::runtime::Handle::current()).unwrap()
}

/// Returns a cell that forwards, and the cell with the engine `there` to which it forwards.
async fn pair(there: Echo) -> (Cells, Cells) {
    let a = cell(Echo::default()).await;
    let b = cell(there).await;
    a.set("a", &[CellAddress { name: String::new(), address: b.address() }]).unwrap();
    until(|| a.states()[0].free_bytes > 0).await;
    (a, b)
}

async fn until(is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("it becomes so");
}

fn invocation(body: Body) -> Invocation {
    let now_ns = crate::now_ns();
    Invocation {
        id: InvocationId(1),
        trigger: Trigger::Http,
        head: Head::builder(b"POST", b"/", b"").finish(),
        body,
        received_ns: now_ns,
        deadline_ns: now_ns + 20_000_000_000,
        chain: None,
    }
}

async fn send(cells: &Cells, body: Body) -> Sent {
    cells.claim(&key(), 1 << 20).expect("a place").send(invocation(body)).await
}

fn reply(sent: Sent) -> Reply {
    match sent {
        Sent::Answered(Ok(reply)) => reply,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn many_invocations_share_a_connection() {
    let (a, b) = pair(Echo::default()).await;
    let all = (0..200_usize).map(|at| {
        let a = a.clone();
        tokio::spawn(async move {
            let body = vec![at as u8; at * 1_000];
            let answer = reply(send(&a, Body::Whole(body.clone().into())).await);
            assert!(answer.body.collect(1 << 20).await.unwrap() == body);
        })
    });
    for one in all.collect::<Vec<_>>() {
        one.await.unwrap();
    }
    assert_eq!((a.figures().spilled_out, b.figures().spilled_in), (200, 200));
    assert_eq!((b.figures().connections, a.states()[0].in_flight), (1, 0));
}

/// A body that is produced as it is read, and counts how much was produced.
struct Endless(Arc<StdMutex<usize>>);

impl BodySource for Endless {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        *self.0.lock().unwrap() += 10_000;
        Poll::Ready(Some(Ok(vec![1; 10_000].into())))
    }
}

#[tokio::test]
async fn a_reader_that_is_slow_holds_a_bounded_number_of_bytes() {
    let (a, _b) = pair(Echo::default()).await;
    let made = Arc::default();
    let source = Box::new(Endless(Arc::clone(&made)));
    let mut answer = reply(send(&a, Body::Stream { source, length: None }).await);
    let mut taken = 0;
    for _ in 0..50 {
        taken += answer.body.chunk().await.unwrap().unwrap().len();
    }
    until(|| *made.lock().unwrap() >= taken).await;
    // The body passes in both directions. Each direction holds one window and one chunk.
    let held = *made.lock().unwrap() - taken;
    assert!(held <= 2 * (WINDOW_BYTES as usize + 20_000), "{held}");
    drop(answer);
    until(|| a.states()[0].in_flight == 0).await;
}

#[tokio::test]
async fn what_a_cell_does_not_take_comes_back_with_its_body() {
    let (a, b) = pair(Echo { busy: true, ..Echo::default() }).await;
    for body in [Body::whole("abc"), Body::Whole(vec![7; 1 << 20].into())] {
        let length = body.length();
        until(|| a.0.board.lock().places(&key(), 0) > 0).await;
        match send(&a, body).await {
            Sent::Back(invocation) => assert_eq!(invocation.body.length(), length),
            other => panic!("{other:?}"),
        }
        assert!(a.claim(&key(), 1 << 20).is_none(), "until its next report");
    }
    assert_eq!(a.figures().returned, 2);
    drop(b);
}

#[tokio::test]
async fn an_invocation_whose_cell_is_lost_comes_back_or_fails() {
    let gate = Arc::new(Notify::new());
    let running = Arc::<AtomicUsize>::default();
    let here = Echo { gate: Some(gate), running: running.clone(), ..Echo::default() };
    let (a, _b) = pair(here).await;
    let asked = tokio::spawn({
        let a = a.clone();
        async move { send(&a, Body::whole("abc")).await }
    });
    until(|| running.load(Ordering::Relaxed) == 1).await;
    let peers = a.0.peers.lock().clone();
    let link = peers[0].current().expect("a connection");
    link.end(End::Silent);
    match asked.await.unwrap() {
        Sent::Lost(Some(invocation), fault) => {
            assert_eq!(invocation.body.length(), Some(3));
            assert!(fault.answer().retryable, "{fault:?}");
        }
        other => panic!("{other:?}"),
    }
    until(|| running.load(Ordering::Relaxed) == 0).await;
    assert_eq!(a.figures().lost, 1, "a POST is not repeated");
}

/// Connects as a stranger that knows the key and can send anything.
async fn stranger(cells: &Cells) -> TlsStream<TcpStream> {
    let tcp = TcpStream::connect(cells.address()).await.unwrap();
    let secret = CellKey::new(&SECRET).unwrap();
    secret.connector().connect(crate::raw_keys::no_name(), tcp).await.unwrap()
}

async fn hello(stream: &mut TlsStream<TcpStream>) {
    let mut bytes = Vec::new();
    frames::put_hello(&mut bytes, "x");
    stream.write_all(&bytes).await.unwrap();
    stream.flush().await.unwrap();
}

/// Reads until the end, and returns the kinds of the frames that arrived.
async fn rest(mut stream: TlsStream<TcpStream>) -> Vec<Kind> {
    let mut bytes = BytesMut::new();
    let reading = async { while stream.read_buf(&mut bytes).await.unwrap_or(0) > 0 {} };
    tokio::time::timeout(Duration::from_secs(10), reading).await.expect("it closes");
    let mut kinds = Vec::new();
    while let Ok(Some(frame)) = frames::split(&mut bytes) {
        kinds.push(frame.kind);
    }
    kinds
}

#[tokio::test]
async fn frames_that_break_the_rules_end_their_connection_alone() {
    let running = Arc::<AtomicUsize>::default();
    let gate = Arc::new(Notify::new());
    let here = Echo { gate: Some(gate), running: running.clone(), ..Echo::default() };
    let (a, b) = pair(here).await;
    let invoke = |stream: u32, body: Body| {
        let mut bytes = Vec::new();
        frames::put_invoke(&mut bytes, stream, &key(), &invocation(body), crate::now_ns());
        bytes
    };
    let body = |stream: u32, length: usize| {
        let mut bytes = Vec::new();
        put(&mut bytes, Kind::Body, false, stream, |out| out.resize(out.len() + length, 1));
        bytes
    };
    let large = || Body::Whole(vec![1; 1 << 20].into());
    let huge = [0xff, 0xff, 0xff, 0xff, Kind::Body as u8, 0, 0, 0, 1, 0, 0, 0].to_vec();
    let mut load = Vec::new();
    put(&mut load, Kind::Load, false, 0, |out| out.extend([0; 11]));
    for (what, bytes) in [
        ("garbage", vec![0xee; 100]),
        ("a huge length", huge),
        ("the same stream twice", [invoke(1, Body::Empty), invoke(1, Body::Empty)].concat()),
        ("stream 0", invoke(0, Body::Empty)),
        ("a body before it may", [invoke(1, large()), body(1, 10)].concat()),
        ("a frame of the other side", load),
    ] {
        let mut stream = stranger(&b).await;
        hello(&mut stream).await;
        stream.write_all(&bytes).await.unwrap();
        stream.flush().await.unwrap();
        let kinds = rest(stream).await;
        assert_eq!(kinds.first(), Some(&Kind::Hello), "{what}");
        until(|| running.load(Ordering::Relaxed) == 0).await;
    }
    // A body for an unknown stream is not an error, because the stream may have ended at the same
    // moment.
    let mut stream = stranger(&b).await;
    hello(&mut stream).await;
    stream.write_all(&body(99, 1_000)).await.unwrap();
    let mut ping = Vec::new();
    put(&mut ping, Kind::Ping, false, 0, |_| {});
    stream.write_all(&ping).await.unwrap();
    stream.flush().await.unwrap();
    let mut bytes = BytesMut::new();
    while !bytes.windows(5).any(|five| five == [0, 0, 0, 0, Kind::Pong as u8]) {
        assert!(stream.read_buf(&mut bytes).await.unwrap() > 0);
    }
    assert_eq!(a.states()[0].state, "connected");
    assert_eq!(b.figures().connections, 2);
}

#[tokio::test]
async fn more_invocations_than_a_connection_takes_are_refused() {
    let running = Arc::<AtomicUsize>::default();
    let gate = Arc::new(Notify::new());
    let b = cell(Echo { gate: Some(gate), running: running.clone(), ..Echo::default() }).await;
    let mut stream = stranger(&b).await;
    hello(&mut stream).await;
    let mut bytes = Vec::new();
    for id in 1..=STREAMS_MAX as u32 + 5 {
        frames::put_invoke(&mut bytes, id, &key(), &invocation(Body::Empty), crate::now_ns());
    }
    stream.write_all(&bytes).await.unwrap();
    stream.flush().await.unwrap();
    let mut input = BytesMut::new();
    let mut refused = 0;
    while refused < 5 {
        assert!(stream.read_buf(&mut input).await.unwrap() > 0);
        while let Some(frame) = frames::split(&mut input).unwrap() {
            refused += u32::from(frame.kind == Kind::Refused);
        }
    }
    assert_eq!(running.load(Ordering::Relaxed), STREAMS_MAX);
    drop(stream);
    until(|| running.load(Ordering::Relaxed) == 0).await;
}

#[tokio::test]
async fn a_connection_that_proves_nothing_is_closed() {
    let b = cell(Echo::default()).await;
    let mut silent = TcpStream::connect(b.address()).await.unwrap();
    let closed = tokio::time::timeout(Duration::from_secs(10), silent.read_u8());
    assert!(closed.await.expect("it is closed").is_err());
    // A connection that knows the key but says nothing is closed too.
    let stream = stranger(&b).await;
    assert_eq!(rest(stream).await, [Kind::Hello]);
    assert!(b.last_stranger().is_some_and(|text| text.contains("127.0.0.1")));
}

#[tokio::test]
async fn another_version_is_refused_by_both_sides() {
    let b = cell(Echo::default()).await;
    let mut stream = stranger(&b).await;
    let mut bytes = Vec::new();
    put(&mut bytes, Kind::Hello, false, 0, |out| out.extend_from_slice(&[9, 0]));
    stream.write_all(&bytes).await.unwrap();
    stream.flush().await.unwrap();
    assert_eq!(rest(stream).await, [Kind::Hello]);
    assert!(b.last_stranger().is_some_and(|text| text.contains("version 9")));
}
