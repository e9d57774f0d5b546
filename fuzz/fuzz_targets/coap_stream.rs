//! CoAP over TCP: any bytes of a connection, answers of functions and published states never make the
//! server panic, and everything that it sends is a message that the peer reads.

#![no_main]

use std::net::SocketAddr;

use arbitrary::Arbitrary;
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use mote_coap::Config;
use mote_coap::machine::Machine;
use mote_coap::notices::{Notices, State};
use mote_coap::stream::{self, BASE_MESSAGE_BYTES, MESSAGE_BYTES_MAX};
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
    /// Any bytes arrive.
    Bytes(&'a [u8]),
    /// A message with a right header: code, options and payload.
    Message(u8, &'a [u8]),
    /// A GET that observes.
    Observe(u8),
    /// The oldest invocation ends with so many bytes.
    Finish(u16, u16, &'a [u8]),
    /// The function publishes a state of so many bytes.
    Publish(u16),
}

fuzz_target!(|input: (u16, Vec<Event<'_>>)| {
    let (size, events) = input;
    let name = FunctionName::new("f").expect("a name");
    let notices = Notices::default();
    let config = Config { running_max: 16, notices: Some(notices.clone()), ..Config::default() };
    let mut machine = Machine::new(Node(name.clone()), config);
    let peer: SocketAddr = ([192, 0, 2, 1], 5_683).into();
    let bytes_max = BASE_MESSAGE_BYTES + usize::from(size % 60_000);
    let mut running = std::collections::VecDeque::new();
    let mut input = Vec::new();
    let mut now = 1_000_000_000;
    for event in events {
        match event {
            Event::Bytes(bytes) => input.extend_from_slice(bytes),
            Event::Message(code, tail) => {
                stream::put_header(&mut input, code, b"t", tail.len());
                input.extend_from_slice(tail);
            }
            Event::Observe(token) => {
                // Observe, then Uri-Path "f".
                stream::put_header(&mut input, 1, &[token], 3);
                input.extend_from_slice(&[0x60, 0x51, b'f']);
            }
            Event::Finish(status, length, headers) => {
                if let Some(id) = running.pop_front() {
                    let body = Bytes::from(vec![b'x'; usize::from(length)]);
                    let headers = Bytes::copy_from_slice(headers);
                    machine.finish(id, 200 + status % 400, headers, body, now);
                }
            }
            Event::Publish(length) => {
                let body = Bytes::from(vec![b'y'; usize::from(length)]);
                let state = State { status: 200, body, ..State::default() };
                let _ = notices.publish(&name, b"/", None, state);
            }
        }
        let Ok(used) = machine.stream(peer, &input, bytes_max, now) else { return };
        input.drain(..used);
        assert!(input.len() <= MESSAGE_BYTES_MAX, "an unfinished message is too long");
        now += 1_000_000;
        machine.time_passed(now);
        running.extend(machine.take_work());
        let out = machine.take_stream();
        let mut rest = &out[..];
        while !rest.is_empty() {
            let (_, used) = stream::parse(rest).expect("a message").expect("a whole message");
            assert!(used <= bytes_max, "{used} bytes for a peer that reads {bytes_max}");
            rest = &rest[used..];
        }
        let (bytes, marks) = machine.held();
        assert!(bytes <= 40 << 20 && marks <= 4_096, "{bytes} bytes, {marks} marks");
    }
});
