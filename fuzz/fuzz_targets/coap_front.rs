//! The CoAP front's state machine under any sequence of datagrams, answers and time: it never
//! panics, holds bounded memory, and sends an unproven source little.

#![no_main]

use std::collections::HashMap;
use std::net::SocketAddr;

use arbitrary::Arbitrary;
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use mote_coap::Config;
use mote_coap::machine::Machine;
use mote_core::{Fault, Invocation, Invoker, Reply, RouteInfo, Routed};
use mote_spec::{CoapResource, FunctionName};

#[derive(Clone)]
struct Node(FunctionName);

#[derive(Clone)]
struct Route(FunctionName, CoapResource);

impl Routed for Route {
    fn info(&self) -> RouteInfo<'_> {
        RouteInfo { coap: &self.1, ..RouteInfo::new(&self.0, 1_000, 4_096) }
    }
}

impl Invoker for Node {
    type Route = Route;
    fn route(&self, name: &str, _: impl FnOnce() -> Option<u64>) -> Option<Route> {
        (name == "f").then(|| Route(self.0.clone(), CoapResource::default()))
    }
    fn routes(&self) -> Vec<Route> {
        vec![Route(self.0.clone(), CoapResource::default()); 20]
    }
    async fn invoke(&self, _: &Route, _: Invocation) -> Result<Reply, Fault> {
        unreachable!("the fuzzer answers by itself")
    }
}

#[derive(Debug, Arbitrary)]
enum Event<'a> {
    /// Any bytes from one of the peers.
    Datagram(u8, &'a [u8]),
    /// A well-formed request: peer, type, code, message id, options as (delta, value), payload.
    Request(u8, bool, u8, u8, Vec<(u8, &'a [u8])>, &'a [u8]),
    /// The oldest invocation ends with this many bytes.
    Finish(u16, u16, &'a [u8]),
    /// Time passes, in units of 100 ms.
    Time(u16),
}

const EXCHANGES: usize = 64 << 10;
const BODIES: usize = 32 << 10;

fuzz_target!(|events: Vec<Event<'_>>| {
    let config = Config {
        exchanges_bytes_max: EXCHANGES,
        uploads_bytes_max: BODIES,
        answers_bytes_max: BODIES,
        running_max: 16,
        ..Config::default()
    };
    let mut machine = Machine::new(Node(FunctionName::new("f").expect("a name")), config);
    let mut now = 1_000_000_000;
    let mut running = std::collections::VecDeque::new();
    // Of each peer that never sent an Echo option: datagrams and bytes in and out.
    let mut traffic: HashMap<SocketAddr, (usize, usize, usize, usize)> = HashMap::new();
    for event in events {
        let datagram = match event {
            Event::Datagram(peer, bytes) => Some((peer, bytes.to_vec())),
            Event::Request(peer, con, code, mid, options, payload) => {
                Some((peer, request(con, code, mid, &options, payload)))
            }
            Event::Finish(status, length, headers) => {
                if let Some(id) = running.pop_front() {
                    let status = 200 + status % 400;
                    let body = Bytes::from(vec![b'x'; usize::from(length)]);
                    machine.finish(id, status, Bytes::copy_from_slice(headers), body, now);
                }
                None
            }
            Event::Time(passed) => {
                now += u64::from(passed) * 100_000_000;
                machine.time_passed(now);
                None
            }
        };
        if let Some((peer, bytes)) = datagram {
            let peer: SocketAddr = ([192, 0, 2, peer % 4], 5_683).into();
            let entry = traffic.entry(peer).or_default();
            entry.0 += 1;
            entry.1 += 136.max(bytes.len() * 3);
            machine.datagram(peer, &bytes, now);
        }
        running.extend(machine.take_work());
        for (bytes, peer) in machine.take_out() {
            let entry = traffic.entry(peer).or_default();
            entry.2 += 1;
            entry.3 += bytes.len();
            assert!(bytes.len() <= 1_280, "datagram of {} bytes", bytes.len());
            // No Echo value can be guessed, so every peer stays unproven.
            assert!(entry.2 <= entry.0, "more datagrams out than in");
            assert!(entry.3 <= entry.1, "more bytes out than allowed");
        }
        let (bytes, marks) = machine.held();
        assert!(bytes <= EXCHANGES + 2 * BODIES, "{bytes} bytes held");
        assert!(marks <= 4_096, "{marks} marks");
        assert!(running.len() <= 16);
    }
});

fn request(con: bool, code: u8, mid: u8, options: &[(u8, &[u8])], payload: &[u8]) -> Vec<u8> {
    // Codes 0.00 to 0.07, ids from a small range, so that duplicates and block-wise runs happen.
    let mut out = vec![if con { 0x41 } else { 0x51 }, code % 8, 0, mid, 7];
    let mut number = 0;
    let path = [(11, &b"f"[..])];
    let mut all: Vec<(u16, &[u8])> = options
        .iter()
        .map(|(pick, value)| {
            const KNOWN: [u16; 12] = [1, 4, 5, 6, 12, 15, 17, 23, 27, 60, 252, 292];
            (KNOWN[usize::from(*pick) % KNOWN.len()], &value[..value.len().min(12)])
        })
        .chain(path)
        .collect();
    all.sort_by_key(|(number, _)| *number);
    for (option, value) in all {
        let delta = option - number;
        number = option;
        let (nibble, extra): (u8, Vec<u8>) = match delta {
            0..13 => (delta as u8, vec![]),
            13..269 => (13, vec![(delta - 13) as u8]),
            _ => (14, (delta - 269).to_be_bytes().to_vec()),
        };
        out.push(nibble << 4 | value.len() as u8);
        out.extend(extra);
        out.extend_from_slice(value);
    }
    if !payload.is_empty() {
        out.push(0xff);
        out.extend_from_slice(payload);
    }
    out
}
