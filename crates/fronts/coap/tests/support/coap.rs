//! CoAP messages, a server and a client for the tests (RFC 7252, 7959, 9175). They share no code
//! with the front.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use super::*;
use mote_coap::{Config, serve};
use tokio::sync::watch;

pub struct Stopper(watch::Sender<bool>);

impl Stopper {
    pub fn new() -> (Self, watch::Receiver<bool>) {
        let (sender, receiver) = watch::channel(false);
        (Self(sender), receiver)
    }

    pub fn stop(&self) {
        let _ = self.0.send(true);
    }
}

pub const CON: u8 = 0;
pub const NON: u8 = 1;
pub const ACK: u8 = 2;
pub const RST: u8 = 3;
pub const GET: u8 = 1;
pub const POST: u8 = 2;
pub const PUT: u8 = 3;
pub const URI_PATH: u16 = 11;
pub const CONTENT_FORMAT: u16 = 12;
pub const URI_QUERY: u16 = 15;
pub const ACCEPT: u16 = 17;
pub const BLOCK2: u16 = 23;
pub const BLOCK1: u16 = 27;
pub const SIZE2: u16 = 28;
pub const PROXY_URI: u16 = 35;
pub const SIZE1: u16 = 60;
pub const ECHO: u16 = 252;

/// `4.04` as a byte.
pub const fn code(class: u8, detail: u8) -> u8 {
    class << 5 | detail
}

/// A CoAP message. Reading and writing it shares no code with the front.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    pub kind: u8,
    pub code: u8,
    pub mid: u16,
    pub token: Vec<u8>,
    pub options: Vec<(u16, Vec<u8>)>,
    pub payload: Vec<u8>,
}

impl Message {
    pub fn request(kind: u8, code: u8, mid: u16, path: &str) -> Self {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let segments = path.split('/').filter(|part| !part.is_empty());
        let mut options: Vec<_> =
            segments.map(|part| (URI_PATH, part.as_bytes().to_vec())).collect();
        let parts = query.split('&').filter(|part| !part.is_empty());
        options.extend(parts.map(|part| (URI_QUERY, part.as_bytes().to_vec())));
        let token = mid.to_be_bytes().to_vec();
        Self { kind, code, mid, token, options, payload: Vec::new() }
    }

    pub fn option(mut self, number: u16, value: impl AsRef<[u8]>) -> Self {
        self.options.push((number, value.as_ref().to_vec()));
        self
    }

    pub fn number(self, number: u16, value: u32) -> Self {
        let bytes = value.to_be_bytes();
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        self.option(number, &bytes[zeros..])
    }

    pub fn block(self, option: u16, number: u32, more: bool, exponent: u32) -> Self {
        self.number(option, number << 4 | u32::from(more) << 3 | exponent)
    }

    pub fn payload(mut self, payload: impl AsRef<[u8]>) -> Self {
        self.payload = payload.as_ref().to_vec();
        self
    }

    pub fn get(&self, number: u16) -> Option<&[u8]> {
        self.options.iter().find(|(n, _)| *n == number).map(|(_, value)| value.as_slice())
    }

    pub fn uint(&self, number: u16) -> Option<u32> {
        Some(self.get(number)?.iter().fold(0, |n, byte| n << 8 | u32::from(*byte)))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }

    pub fn encode(&self) -> Vec<u8> {
        let token_length = self.token.len() as u8;
        let mut out = vec![0x40 | self.kind << 4 | token_length, self.code];
        out.extend(self.mid.to_be_bytes());
        out.extend(&self.token);
        let mut options = self.options.clone();
        options.sort_by_key(|(number, _)| *number);
        let mut before = 0;
        for (number, value) in options {
            let nibble = |n: usize| match n {
                0..13 => (n as u8, vec![]),
                13..269 => (13, vec![(n - 13) as u8]),
                _ => (14, ((n - 269) as u16).to_be_bytes().to_vec()),
            };
            let (delta, delta_more) = nibble(usize::from(number - before));
            let (length, length_more) = nibble(value.len());
            before = number;
            out.push(delta << 4 | length);
            out.extend(delta_more);
            out.extend(length_more);
            out.extend(value);
        }
        if !self.payload.is_empty() {
            out.push(0xff);
            out.extend(&self.payload);
        }
        out
    }

    /// Parses strictly. Returns `None` for anything that is not a valid message (RFC 7252, 3).
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let [first, code, high, low, rest @ ..] = bytes else { return None };
        let token_length = usize::from(first & 15);
        if first >> 6 != 1 || token_length > 8 {
            return None;
        }
        let (token, mut rest) = rest.split_at_checked(token_length)?;
        let mut message = Self {
            kind: first >> 4 & 3,
            code: *code,
            mid: u16::from_be_bytes([*high, *low]),
            token: token.to_vec(),
            ..Self::default()
        };
        let mut number = 0u32;
        while let [head, after @ ..] = rest {
            if *head == 0xff {
                message.payload = after.to_vec();
                return (!after.is_empty()).then_some(message);
            }
            rest = after;
            let mut extended = |nibble: u8| -> Option<u32> {
                let (value, length) = match nibble {
                    0..13 => (u32::from(nibble), 0),
                    13 => (u32::from(*rest.first()?) + 13, 1),
                    14 => (u32::from(u16::from_be_bytes([*rest.first()?, *rest.get(1)?])) + 269, 2),
                    _ => return None,
                };
                rest = &rest[length..];
                Some(value)
            };
            number += extended(head >> 4)?;
            let length = extended(head & 15)?;
            let number = u16::try_from(number).ok()?;
            let (value, after) = rest.split_at_checked(length as usize)?;
            message.options.push((number, value.to_vec()));
            rest = after;
        }
        Some(message)
    }
}

pub struct Server {
    pub address: SocketAddr,
    pub fake: Fake,
    pub stopper: Stopper,
    pub thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    pub fn start() -> Self {
        Self::on("127.0.0.1:0", Config { ack_delay_ns: 50_000_000, ..Config::default() })
    }

    pub fn on(address: &str, config: Config) -> Self {
        let (fake, (stopper, end)) = (Fake::default(), Stopper::new());
        let invoker = fake.clone();
        let socket = UdpSocket::bind(address).unwrap();
        let address = socket.local_addr().unwrap();
        socket.set_nonblocking(true).unwrap();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let socket = tokio::net::UdpSocket::from_std(socket).unwrap();
                serve(socket, invoker, config, end).await.unwrap();
            });
        });
        Self { address, fake, stopper, thread: Some(thread) }
    }

    pub fn client(&self) -> Client {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client { socket, mid: 0 }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            thread.join().unwrap();
        }
    }
}

pub struct Client {
    pub socket: UdpSocket,
    pub mid: u16,
}

impl Client {
    pub fn fresh(&mut self) -> u16 {
        self.mid += 1;
        self.mid
    }

    pub fn send(&self, bytes: &[u8]) {
        self.socket.send(bytes).unwrap();
    }

    pub fn receive_bytes(&self) -> Vec<u8> {
        let mut buffer = [0; 4_096];
        let length = self.socket.recv(&mut buffer).expect("an answer in time");
        buffer[..length].to_vec()
    }

    pub fn receive(&self) -> Message {
        Message::parse(&self.receive_bytes()).expect("a well-formed answer")
    }

    /// Sends a request and reads its piggybacked answer.
    pub fn call(&self, request: &Message) -> Message {
        self.send(&request.encode());
        let answer = self.receive();
        let kind = if request.kind == CON { ACK } else { NON };
        assert_eq!((answer.kind, &answer.token), (kind, &request.token), "{request:?}");
        if kind == ACK {
            assert_eq!(answer.mid, request.mid);
        }
        answer
    }

    pub fn ask(&mut self, method: u8, path: &str) -> Message {
        let request = Message::request(CON, method, self.fresh(), path);
        self.call(&request)
    }

    /// Sends a ping, and returns the datagrams that arrive before its answer. They are the
    /// datagrams that the front sent at once.
    pub fn until_ping(&self) -> Vec<Vec<u8>> {
        self.send(&[0x40, 0, 0xff, 0xfe]);
        let mut before = Vec::new();
        loop {
            let bytes = self.receive_bytes();
            if bytes == [0x70, 0, 0xff, 0xfe] {
                return before;
            }
            before.push(bytes);
        }
    }

    pub fn is_silent_after(&self, bytes: &[u8]) -> bool {
        self.send(bytes);
        self.until_ping().is_empty()
    }
}
