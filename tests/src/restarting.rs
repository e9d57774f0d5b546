//! Callers of a node that is restarted again and again. Each caller does only what its protocol
//! permits when a server stops. It counts every request that gets no answer.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::http2_wire::{self, Frame, Wire};
use crate::{Connection, PATIENCE};

/// The function that the callers call as `echo` and `slow`. It answers with the body, or with the
/// path if the request has no body.
pub const ECHO: &str = "def handle(event, ctx):\n    return event.body or event.path[1:]\n";
/// The same function with a short delay, during which the node may be asked to stop.
pub const SLOW: &str =
    "import time\n\ndef handle(event, ctx):\n    time.sleep(0.2)\n    return event.body\n";

/// What happened to the requests of the callers of one kind.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    /// Requests with the right answer.
    pub answered: usize,
    /// Requests that were sent a second time, as their protocol permits.
    pub repeated: usize,
    /// For each lost request, why it has no answer or a wrong answer.
    pub lost: Vec<String>,
}

/// An accepted invocation: the path of its result, and its body.
pub type Accepted = (String, String);

#[derive(Default)]
pub struct Callers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    answered: AtomicUsize,
    tallies: Mutex<BTreeMap<&'static str, Tally>>,
    accepted: Mutex<Vec<Accepted>>,
}

/// One caller: its kind, its number, and how many requests it has made.
struct Caller {
    kind: &'static str,
    number: usize,
    count: u64,
    shared: Arc<Shared>,
}

impl Callers {
    /// Starts callers of every kind, which call `echo` and `slow`.
    pub fn of_every_kind(http: SocketAddr, coap: SocketAddr) -> Self {
        let mut callers = Self::default();
        callers.post_anew(http);
        callers.post_anew(http);
        callers.post_kept("POST, kept connection", http, "/echo", Duration::ZERO);
        callers.post_kept("POST, kept connection", http, "/echo", Duration::ZERO);
        let pause = Duration::from_millis(250);
        callers.post_kept("POST, kept connection, pauses", http, "/echo", pause);
        callers.post_kept("POST, slow function", http, "/slow", Duration::ZERO);
        callers.get_kept(http);
        callers.http2(http);
        callers.coap(coap);
        callers.accept(http);
        callers
    }

    fn start(&mut self, kind: &'static str, call: impl FnOnce(Caller) + Send + 'static) {
        let number = self.threads.len();
        let caller = Caller { kind, number, count: 0, shared: self.shared.clone() };
        self.threads.push(std::thread::spawn(move || call(caller)));
    }

    /// Sends POST requests, each over a new connection. Nothing is repeated.
    pub fn post_anew(&mut self, address: SocketAddr) {
        self.start("POST, new connections", move |mut caller| {
            while caller.goes_on() {
                let body = caller.body();
                let (result, _) = exchange(&mut None, address, "POST", "/echo", &[], &body);
                caller.note(result, &body);
                caller.pause(Duration::from_millis(1));
            }
        });
    }

    /// Sends POST requests over a connection that is kept until an answer closes it, with a pause
    /// after each answer. Nothing is repeated.
    pub fn post_kept(
        &mut self,
        kind: &'static str,
        address: SocketAddr,
        path: &'static str,
        pause: Duration,
    ) {
        self.start(kind, move |mut caller| {
            let mut kept = None;
            while caller.goes_on() {
                let body = caller.body();
                let (result, _) = exchange(&mut kept, address, "POST", path, &[], &body);
                caller.note(result, &body);
                caller.pause(pause);
            }
        });
    }

    /// Sends GET requests over a kept connection. If the connection has served other requests and
    /// ends before the first byte of an answer, the request is sent once more (RFC 9112, 9.3.1).
    pub fn get_kept(&mut self, address: SocketAddr) {
        self.start("GET, kept connection", move |mut caller| {
            let mut kept = None;
            while caller.goes_on() {
                let token = caller.body();
                let path = format!("/echo/{token}");
                let (mut result, may_repeat) = exchange(&mut kept, address, "GET", &path, &[], "");
                if may_repeat {
                    caller.repeated();
                    (result, _) = exchange(&mut kept, address, "GET", &path, &[], "");
                }
                caller.note(result, &token);
            }
        });
    }

    /// Sends POST requests over HTTP/2, several at once. When the node goes away, it names the last
    /// stream that it processes. Requests on later streams are sent again (RFC 9113, 6.8).
    pub fn http2(&mut self, address: SocketAddr) {
        self.start("POST, HTTP/2", move |mut caller| {
            let mut again = Vec::new();
            while caller.goes_on() || !again.is_empty() {
                again = Http2::open(address).run(&mut caller, again);
            }
        });
    }

    /// Sends confirmable GET requests over CoAP, several at once, and repeats them until they are
    /// answered.
    pub fn coap(&mut self, address: SocketAddr) {
        self.start("GET, CoAP", move |mut caller| Coap::open(address).run(&mut caller));
    }

    /// Sends POST requests over new connections, and asks the node to accept the invocations for
    /// later.
    pub fn accept(&mut self, address: SocketAddr) {
        self.start("POST, accepted for later", move |mut caller| {
            while caller.goes_on() {
                let body = caller.body();
                let prefer = [("prefer", "respond-async")];
                let (result, _) = exchange(&mut None, address, "POST", "/slow", &prefer, &body);
                let accepted = result.and_then(|text| {
                    let told: serde_json::Value =
                        serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
                    let location = told["location"].as_str();
                    location.map(str::to_owned).ok_or(format!("without a location: {text}"))
                });
                if let Ok(location) = &accepted {
                    let accepted = (location.clone(), body.clone());
                    caller.shared.accepted.lock().expect("no caller panics").push(accepted);
                }
                caller.note(accepted.map(|_| body.clone()), &body);
                caller.pause(Duration::from_millis(100));
            }
        });
    }

    /// Number of requests with the right answer so far.
    pub fn answered(&self) -> usize {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// Stops all callers after the answers for which they are waiting. Returns the tally of each
    /// kind, and the accepted invocations.
    pub fn stop(self) -> (BTreeMap<&'static str, Tally>, Vec<Accepted>) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a caller");
        }
        let tallies = self.shared.tallies.lock().expect("no caller panics").clone();
        let accepted = self.shared.accepted.lock().expect("no caller panics").clone();
        (tallies, accepted)
    }
}

impl Caller {
    fn goes_on(&self) -> bool {
        !self.shared.stop.load(Ordering::Relaxed)
    }

    /// Returns a short text that no other request has.
    fn body(&mut self) -> String {
        self.count += 1;
        format!("{}-{}", self.number, self.count)
    }

    fn change(&self, change: impl FnOnce(&mut Tally)) {
        let mut tallies = self.shared.tallies.lock().expect("no caller panics");
        change(tallies.entry(self.kind).or_default());
    }

    /// Counts a request by its answer, or by what happened instead.
    fn note(&self, result: Result<String, String>, expected: &str) {
        let lost = match result {
            Ok(text) if text == expected => None,
            Ok(text) => Some(format!("{expected}: the answer is {text}")),
            Err(error) => Some(format!("{expected}: {error}")),
        };
        self.shared.answered.fetch_add(usize::from(lost.is_none()), Ordering::Relaxed);
        self.change(|tally| match lost {
            None => tally.answered += 1,
            Some(lost) => tally.lost.push(lost),
        });
    }

    fn repeated(&self) {
        self.change(|tally| tally.repeated += 1);
    }

    /// Waits, to limit the rate of this caller.
    fn pause(&self, pause: Duration) {
        let until = Instant::now() + pause;
        while self.goes_on() && Instant::now() < until {
            std::thread::park_timeout(until.saturating_duration_since(Instant::now()));
        }
    }
}

/// Sends one request over HTTP/1.1, over the kept connection if there is one. Returns the body of a
/// good answer. After a failure, returns whether the request may be sent once more if its method is
/// safe to repeat.
fn exchange(
    kept: &mut Option<Connection>,
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (Result<String, String>, bool) {
    let was_kept = kept.is_some();
    let opened = kept.take().map_or_else(|| Connection::try_open(address), Ok);
    let mut connection = match opened {
        Ok(connection) => connection,
        Err(error) => return (Err(format!("cannot connect: {error}")), false),
    };
    let before = connection.received();
    match connection.try_call(method, path, headers, body.as_bytes()) {
        Ok(answer) => {
            let result = match answer.status {
                200 | 202 => Ok(answer.text()),
                status => Err(format!("{status} {}", answer.text())),
            };
            if answer.header("connection") != Some("close") {
                *kept = Some(connection);
            }
            (result, false)
        }
        Err(error) => {
            let bytes = connection.received() - before;
            let which = if was_kept { "kept" } else { "new" };
            let text = format!("{error} after {bytes} bytes on a {which} connection");
            (Err(text), was_kept && bytes == 0)
        }
    }
}

/// Whether a read ended because nothing arrived in time.
fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// An HTTP/2 connection that reads only statuses and bodies.
struct Http2 {
    wire: Wire,
    next: u32,
    /// Open requests by stream: the sent body, whether the status is good, and the body received so
    /// far.
    open: HashMap<u32, (String, bool, Vec<u8>)>,
    /// The last stream that the node processes, once it has announced that it goes away.
    last: Option<u32>,
}

impl Http2 {
    const STREAMS: usize = 4;

    fn open(address: SocketAddr) -> Self {
        let wire = Wire::open(address);
        wire.socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
        Self { wire, next: 1, open: HashMap::new(), last: None }
    }

    fn request(&mut self, body: String) {
        // The fields :method POST, :scheme http, :path and :authority. The last two are literals
        // that are not indexed.
        let block = b"\x83\x86\x04\x05/echo\x01\x09localhost";
        let stream = self.next;
        self.next += 2;
        // If this fails, the next read returns the error.
        let _ = self.wire.send(http2_wire::HEADERS, http2_wire::END_HEADERS, stream, block);
        let _ = self.wire.send(http2_wire::DATA, http2_wire::FLAG_1, stream, body.as_bytes());
        self.open.insert(stream, (body, false, Vec::new()));
    }

    /// Sends the caller's requests until the node goes away. Returns the requests to send again.
    fn run(mut self, caller: &mut Caller, mut again: Vec<String>) -> Vec<String> {
        loop {
            while self.last.is_none() && self.open.len() < Self::STREAMS {
                match again.pop() {
                    Some(body) => {
                        caller.repeated();
                        self.request(body);
                    }
                    None if caller.goes_on() => {
                        let body = caller.body();
                        self.request(body);
                    }
                    None => break,
                }
            }
            if self.open.is_empty() {
                return again;
            }
            match self.wire.read() {
                Ok(1..) => {}
                ended => {
                    let why = ended.map_or_else(|error| error.to_string(), |_| "end".to_owned());
                    let last = self.last.unwrap_or(u32::MAX);
                    for (stream, (body, ..)) in self.open {
                        match stream > last {
                            true => again.push(body),
                            false => caller.note(Err(format!("{why}; last stream {last}")), &body),
                        }
                    }
                    return again;
                }
            }
            while let Some(frame) = self.wire.frame() {
                self.take(frame, caller);
            }
        }
    }

    fn take(&mut self, Frame { kind, flags, stream, payload }: Frame, caller: &Caller) {
        match kind {
            http2_wire::GOAWAY => {
                self.last = payload.first_chunk::<4>().copied().map(u32::from_be_bytes);
            }
            http2_wire::RESET => {
                if let Some((body, ..)) = self.open.remove(&stream) {
                    caller.note(Err(format!("stream reset: {payload:?}")), &body);
                }
            }
            http2_wire::HEADERS | http2_wire::DATA => {
                let (_, good, answer) = self.open.get_mut(&stream).expect("an open stream");
                match kind == http2_wire::HEADERS {
                    true => *good = payload.first() == Some(&http2_wire::STATUS_200),
                    false => answer.extend(payload),
                }
                if flags & http2_wire::FLAG_1 != 0 {
                    let (body, good, answer) = self.open.remove(&stream).expect("an open stream");
                    let text = String::from_utf8_lossy(&answer).into_owned();
                    caller.note(if good { Ok(text) } else { Err(text) }, &body);
                }
            }
            _ => {}
        }
    }
}

/// A socket that sends confirmable requests over CoAP (RFC 7252).
struct Coap {
    socket: UdpSocket,
    next: u16,
    open: HashMap<u16, Sent>,
}

/// A request that has not been answered yet.
struct Sent {
    body: String,
    begun: Instant,
    /// When to send the request again unless it was acknowledged, and the pause before that.
    due: Option<Instant>,
    pause: Duration,
}

impl Coap {
    const REQUESTS: usize = 4;
    const ACK_TIMEOUT: Duration = Duration::from_secs(2);

    fn open(address: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        socket.connect(address).expect("loopback");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("timeout");
        Self { socket, next: 0, open: HashMap::new() }
    }

    /// Builds a confirmable GET of `echo/BODY` whose token is its message id.
    fn datagram(id: u16, body: &str) -> Vec<u8> {
        assert!(body.len() < 13, "a short segment");
        let id = id.to_be_bytes();
        let mut datagram = vec![0x42, 1, id[0], id[1], id[0], id[1], 0xb4];
        datagram.extend(b"echo");
        datagram.push(body.len() as u8);
        datagram.extend(body.as_bytes());
        datagram
    }

    fn run(mut self, caller: &mut Caller) {
        loop {
            while caller.goes_on() && self.open.len() < Self::REQUESTS {
                self.next = self.next.wrapping_add(1);
                let body = caller.body();
                let begun = Instant::now();
                let pause = Self::ACK_TIMEOUT;
                let _ = self.socket.send(&Self::datagram(self.next, &body));
                self.open.insert(self.next, Sent { body, begun, due: Some(begun + pause), pause });
            }
            if self.open.is_empty() {
                return;
            }
            let mut piece = [0; 2048];
            match self.socket.recv(&mut piece) {
                Ok(count) => self.answer(&piece[..count], caller),
                Err(error) => assert!(is_timeout(&error), "CoAP: {error}"),
            }
            self.send_again(caller);
        }
    }

    fn send_again(&mut self, caller: &Caller) {
        let now = Instant::now();
        for (id, sent) in &mut self.open {
            if sent.due.is_some_and(|due| due <= now) {
                sent.pause *= 2;
                sent.due = Some(now + sent.pause);
                caller.repeated();
                let _ = self.socket.send(&Self::datagram(*id, &sent.body));
            }
        }
        self.open.retain(|_, sent| {
            let is_lost = sent.begun.elapsed() > PATIENCE;
            if is_lost {
                caller.note(Err(format!("no answer for {} s", PATIENCE.as_secs())), &sent.body);
            }
            !is_lost
        });
    }

    fn answer(&mut self, datagram: &[u8], caller: &Caller) {
        let [first, code, rest @ ..] = datagram else { return };
        let id = u16::from_be_bytes([rest[0], rest[1]]);
        if *code == 0 {
            // The answer arrives later, as a separate message.
            if let Some(sent) = self.open.get_mut(&id) {
                sent.due = None;
            }
            return;
        }
        if first >> 4 & 3 == 0 {
            let _ = self.socket.send(&[0x60, 0, rest[0], rest[1]]);
        }
        let token = u16::from_be_bytes([rest[2], rest[3]]);
        let Some(sent) = self.open.remove(&token) else { return };
        let options = &rest[4..];
        let payload = options.iter().position(|byte| *byte == 0xff).map(|at| &options[at + 1..]);
        let text = String::from_utf8_lossy(payload.unwrap_or_default()).into_owned();
        let code = format!("{}.{:02}", code >> 5, code & 31);
        let result = if code == "2.05" { Ok(text) } else { Err(format!("{code} {text}")) };
        caller.note(result, &sent.body);
    }
}
