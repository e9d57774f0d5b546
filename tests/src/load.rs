//! Callers that send requests at a constant rate, whatever the node does, over HTTP/1.1, HTTP/2 and
//! CoAP. They are simple clients with one thread per connection. They record when each request
//! began and what its answer was.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::http2_wire::{self, Frame, Wire};
use crate::{Connection, PATIENCE};

/// One request: when it began and was answered, and the body or the error.
#[derive(Debug, Clone)]
pub struct Sample {
    /// `http/1.1`, `http/2` or `coap`.
    pub protocol: &'static str,
    /// The time just before the request's first byte was written.
    pub begun: Instant,
    /// The time at which the answer had been read.
    pub ended: Instant,
    /// The body of a good answer, or the error.
    pub body: Result<String, String>,
}

/// Running callers.
#[derive(Default)]
pub struct Load {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    callers: Vec<JoinHandle<Vec<Sample>>>,
}

/// The state with which a caller keeps its rate.
struct Pace {
    protocol: &'static str,
    every: Duration,
    due: Instant,
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    samples: Vec<Sample>,
}

impl Pace {
    fn ended(&mut self, begun: Instant, body: Result<String, String>) {
        let ended = Instant::now();
        self.samples.push(Sample { protocol: self.protocol, begun, ended, body });
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether the next request is due. Its time does not depend on any answer.
    fn is_due(&mut self) -> bool {
        let due = self.due <= Instant::now() && !self.stopped();
        if due {
            self.due += self.every;
        }
        due
    }

    /// Time until the next request. Never zero, because sockets treat a zero timeout as no limit.
    fn rest(&self) -> Duration {
        let rest = self.due.saturating_duration_since(Instant::now());
        rest.clamp(Duration::from_micros(50), Duration::from_millis(50))
    }
}

impl Load {
    fn caller(
        &mut self,
        protocol: &'static str,
        per_second: u32,
        call: impl FnOnce(&mut Pace) + Send + 'static,
    ) {
        let mut pace = Pace {
            protocol,
            every: Duration::from_secs(1) / per_second,
            due: Instant::now(),
            stop: self.stop.clone(),
            count: self.count.clone(),
            samples: Vec::new(),
        };
        self.callers.push(std::thread::spawn(move || {
            call(&mut pace);
            pace.samples
        }));
    }

    /// Uses one persistent connection with one request at a time.
    pub fn http1(&mut self, address: SocketAddr, path: &str, per_second: u32) {
        let path = path.to_owned();
        self.caller("http/1.1", per_second, move |pace| {
            let mut connection = Connection::open(address);
            while !pace.stopped() {
                if !pace.is_due() {
                    std::thread::park_timeout(pace.rest());
                    continue;
                }
                let begun = Instant::now();
                match connection.try_call("GET", &path, &[], b"") {
                    Ok(answer) if answer.status == 200 => pace.ended(begun, Ok(answer.text())),
                    Ok(answer) => {
                        let text = format!("{} {}", answer.status, answer.text());
                        pace.ended(begun, Err(text));
                    }
                    Err(error) => {
                        pace.ended(begun, Err(error.to_string()));
                        connection = Connection::open(address);
                    }
                }
            }
        });
    }

    /// Uses one connection with as many streams as its rate needs.
    pub fn http2(&mut self, address: SocketAddr, path: &str, per_second: u32) {
        let path = path.to_owned();
        self.caller("http/2", per_second, move |pace| Http2::open(address, path).run(pace));
    }

    /// Uses one socket with confirmable requests, which are repeated until they are answered.
    pub fn coap(&mut self, address: SocketAddr, segment: &str, per_second: u32) {
        let segment = segment.to_owned();
        self.caller("coap", per_second, move |pace| Coap::open(address, segment).run(pace));
    }

    /// Number of requests answered so far, including errors.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Stops sending, waits for open requests, and returns the samples of all requests.
    pub fn stop(self) -> Vec<Sample> {
        self.stop.store(true, Ordering::Relaxed);
        let callers = self.callers.into_iter();
        callers.flat_map(|caller| caller.join().expect("a caller")).collect()
    }
}

/// Whether a read ended because nothing arrived in time.
fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// An HTTP/2 client that reads only the status and the body of an answer.
struct Http2 {
    wire: Wire,
    path: String,
    next: u32,
    open: HashMap<u32, (Instant, bool, Vec<u8>)>,
}

impl Http2 {
    /// The most streams that the front accepts at once. Further requests wait.
    const STREAMS_MAX: usize = 100;

    fn open(address: SocketAddr, path: String) -> Self {
        Self { wire: Wire::open(address), path, next: 1, open: HashMap::new() }
    }

    fn request(&mut self) {
        // The fields :method GET, :scheme http, :path and :authority. The last two are literals
        // that are not indexed.
        let mut block = vec![0x82, 0x86, 0x04, self.path.len() as u8];
        block.extend(self.path.as_bytes());
        block.extend(b"\x01\x09localhost");
        let stream = self.next;
        self.next += 2;
        self.open.insert(stream, (Instant::now(), false, Vec::new()));
        let flags = http2_wire::FLAG_1 | http2_wire::END_HEADERS;
        let sent = self.wire.send(http2_wire::HEADERS, flags, stream, &block);
        sent.expect("the connection stands");
    }

    fn run(mut self, pace: &mut Pace) {
        let mut quiet_since = Instant::now();
        while !pace.stopped() || !self.open.is_empty() {
            if self.open.len() < Self::STREAMS_MAX && pace.is_due() {
                self.request();
            }
            self.wire.socket.set_read_timeout(Some(pace.rest())).expect("timeout");
            match self.wire.read() {
                Ok(0) => panic!("the node closed the HTTP/2 connection"),
                Ok(_) => quiet_since = Instant::now(),
                Err(error) if is_timeout(&error) => {
                    assert!(quiet_since.elapsed() < PATIENCE, "HTTP/2 answers are missing");
                }
                Err(error) => panic!("HTTP/2: {error}"),
            }
            while let Some(frame) = self.wire.frame() {
                self.take(frame, pace);
            }
        }
    }

    fn take(&mut self, Frame { kind, flags, stream, payload }: Frame, pace: &mut Pace) {
        match kind {
            http2_wire::GOAWAY => panic!("HTTP/2: the node went away: {payload:?}"),
            http2_wire::RESET => {
                let (begun, ..) = self.open.remove(&stream).expect("an open stream");
                pace.ended(begun, Err(format!("stream reset: {payload:?}")));
            }
            http2_wire::HEADERS | http2_wire::DATA => {
                let (_, good, body) = self.open.get_mut(&stream).expect("an open stream");
                if kind == http2_wire::HEADERS {
                    *good = payload.first() == Some(&http2_wire::STATUS_200);
                } else {
                    body.extend(payload);
                }
                if flags & http2_wire::FLAG_1 != 0 {
                    let (begun, good, body) = self.open.remove(&stream).expect("an open stream");
                    let text = String::from_utf8_lossy(&body).into_owned();
                    pace.ended(begun, if good { Ok(text) } else { Err(text) });
                }
            }
            _ => {}
        }
    }
}

/// A client of CoAP with retransmission.
struct Coap {
    socket: UdpSocket,
    segment: String,
    next: u16,
    /// Open requests by message id: the time of the first send, the time of the next send, and the
    /// pause after the next send.
    open: HashMap<u16, (Instant, Instant, Duration)>,
}

impl Coap {
    const ACK_TIMEOUT: Duration = Duration::from_secs(2);

    fn open(address: SocketAddr, segment: String) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        socket.connect(address).expect("loopback");
        Self { socket, segment, next: 0, open: HashMap::new() }
    }

    /// Builds a confirmable GET whose token is its message id.
    fn datagram(&self, id: u16) -> Vec<u8> {
        let id = id.to_be_bytes();
        let mut datagram = vec![0x42, 1, id[0], id[1], id[0], id[1]];
        let mut before = 0;
        for segment in self.segment.split('/') {
            let delta = 11 - before;
            before = 11;
            assert!(segment.len() < 13, "a short segment");
            datagram.push(delta << 4 | segment.len() as u8);
            datagram.extend(segment.as_bytes());
        }
        datagram
    }

    fn run(mut self, pace: &mut Pace) {
        while !pace.stopped() || !self.open.is_empty() {
            let now = Instant::now();
            if pace.is_due() {
                self.next = self.next.wrapping_add(1);
                self.open.insert(self.next, (now, now + Self::ACK_TIMEOUT, Self::ACK_TIMEOUT));
                let _ = self.socket.send(&self.datagram(self.next));
            }
            let late: Vec<u16> = self.open.iter().filter(|o| o.1.1 <= now).map(|o| *o.0).collect();
            for id in late {
                let (begun, due, pause) = self.open.get_mut(&id).expect("open");
                assert!(begun.elapsed() < PATIENCE, "CoAP answers are missing");
                *pause *= 2;
                *due = now + *pause;
                let _ = self.socket.send(&self.datagram(id));
            }
            self.socket.set_read_timeout(Some(pace.rest())).expect("timeout");
            let mut piece = [0; 2048];
            match self.socket.recv(&mut piece) {
                Ok(count) => self.answer(&piece[..count], pace),
                Err(error) => assert!(is_timeout(&error), "CoAP: {error}"),
            }
        }
    }

    fn answer(&mut self, datagram: &[u8], pace: &mut Pace) {
        let [first, code, rest @ ..] = datagram else { return };
        if *code == 0 {
            return; // acknowledged; the answer comes by itself
        }
        if first >> 4 & 3 == 0 {
            let _ = self.socket.send(&[0x60, 0, rest[0], rest[1]]);
        }
        let token = u16::from_be_bytes([rest[2], rest[3]]);
        let Some((begun, ..)) = self.open.remove(&token) else { return };
        let options = &rest[4..];
        let payload = options.iter().position(|byte| *byte == 0xff).map(|at| &options[at + 1..]);
        let text = String::from_utf8_lossy(payload.unwrap_or_default()).into_owned();
        let good = *code >> 5 == 2;
        let code = format!("{}.{:02}", code >> 5, code & 31);
        pace.ended(begun, if good { Ok(text) } else { Err(format!("{code} {text}")) });
    }
}
