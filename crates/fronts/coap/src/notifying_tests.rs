//! Tests observation (RFC 7641) with the server but without its socket, and with a virtual clock.

use std::net::SocketAddr;
use std::task::{Context, Waker};

use crate::notices::{Notices, State};
use bytes::Bytes;
use mote_core::{Fault, Invocation, Invoker, Reply, RouteInfo, Routed};
use mote_spec::{CoapResource, FunctionName};

use super::message::{self, MessageType, Request};
use super::server::{Config, Server};

#[derive(Clone)]
struct Node;

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
        let name = name.split('@').next()?;
        Some(Route(FunctionName::new(name).ok()?, CoapResource::default()))
    }
    fn routes(&self) -> Vec<Route> {
        Vec::new()
    }
    async fn invoke(&self, _: &Route, _: Invocation) -> Result<Reply, Fault> {
        unreachable!("the test answers by itself")
    }
}

const SECOND: u64 = 1_000_000_000;
const NEAR: &str = "127.0.0.1:5000";
const FAR: &str = "192.0.2.1:5000";

/// A message that the server sent.
#[derive(Debug)]
struct Sent {
    to: SocketAddr,
    kind: MessageType,
    code: (u8, u8),
    mid: u16,
    token: Vec<u8>,
    observe: Option<u32>,
    more: bool,
    echo: Option<Vec<u8>>,
    text: Vec<u8>,
}

struct Bench {
    server: Server<Node>,
    notices: Notices,
    now: u64,
    mid: u16,
}

impl Bench {
    fn new() -> Self {
        Self::with(Notices::default())
    }

    fn with(notices: Notices) -> Self {
        let config = Config { notices: Some(notices.clone()), ..Config::default() };
        Self { server: Server::new(Node, config), notices, now: 1_000 * SECOND, mid: 0 }
    }

    /// Sends a confirmable GET with a token of one byte and these options. The function answers
    /// with `body`. Returns what the server sends.
    fn get(&mut self, peer: &str, token: u8, options: &[(u16, &[u8])], body: &str) -> Vec<Sent> {
        self.request(peer, token, options);
        let work: Vec<usize> = self.server.work.drain(..).map(|work| work.id).collect();
        for id in work {
            self.finish(id, 200, "content-type\ntext/plain\n", body);
        }
        self.take()
    }

    fn request(&mut self, peer: &str, token: u8, options: &[(u16, &[u8])]) {
        self.mid += 1;
        let [high, low] = self.mid.to_be_bytes();
        let mut bytes = vec![0x41, 1, high, low, token];
        let mut all: Vec<(u16, &[u8])> = vec![(11, b"f"), (11, b"t")];
        all.extend_from_slice(options);
        all.sort_by_key(|(number, _)| *number);
        let mut before = 0;
        for (number, value) in all {
            let delta = number - before;
            before = number;
            let length = value.len() as u8;
            match delta {
                0..13 => bytes.push((delta as u8) << 4 | length),
                _ => bytes.extend_from_slice(&[13 << 4 | length, (delta - 13) as u8]),
            }
            bytes.extend_from_slice(value);
        }
        self.server.datagram(peer.parse().unwrap(), &bytes, self.now);
    }

    fn observe(&mut self, peer: &str, token: u8) -> Sent {
        let mut sent = self.get(peer, token, &[(6, b"")], "first");
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    fn finish(&mut self, id: usize, status: u16, headers: &str, body: &str) {
        let headers = Bytes::from(headers.to_owned());
        let body = Bytes::from(body.to_owned());
        self.server.finish(id, Ok((status, headers, body)), self.now);
    }

    fn publish(&mut self, text: &str) -> Vec<Sent> {
        self.publish_as("text/plain", text)
    }

    fn publish_as(&mut self, content_type: &str, text: &str) -> Vec<Sent> {
        let state = State {
            status: 200,
            headers: format!("content-type\n{content_type}\n").into(),
            body: text.to_owned().into(),
        };
        self.notices.publish(&FunctionName::new("f").unwrap(), b"/t", None, state).unwrap();
        self.turn()
    }

    fn turn(&mut self) -> Vec<Sent> {
        while self.server.notify_changed(&mut Context::from_waker(Waker::noop()), self.now) {}
        self.take()
    }

    fn pass(&mut self, seconds: u64) -> Vec<Sent> {
        self.now += seconds * SECOND;
        self.server.time_passed(self.now);
        self.turn()
    }

    fn reply(&mut self, to: &Sent, kind: u8) -> Vec<Sent> {
        let [high, low] = to.mid.to_be_bytes();
        self.server.datagram(to.to, &[0x40 | kind << 4, 0, high, low], self.now);
        self.turn()
    }

    fn acknowledge(&mut self, sent: &Sent) -> Vec<Sent> {
        self.reply(sent, 2)
    }

    fn take(&mut self) -> Vec<Sent> {
        let all = self.server.out.take();
        let read = |(bytes, to): (Bytes, SocketAddr)| {
            let header = message::header(&bytes).unwrap();
            let read = Request::parse(header.tail).unwrap_or_default();
            Sent {
                to,
                kind: header.kind,
                code: header.code,
                mid: header.mid,
                token: header.token.to_vec(),
                observe: read.observe,
                more: read.block2.is_some_and(|block| block.more),
                echo: read.echo.map(<[u8]>::to_vec),
                text: read.payload.to_vec(),
            }
        };
        all.into_iter().map(read).collect()
    }

    fn observers(&self) -> usize {
        self.notices.figures().observers
    }
}

fn one(mut sent: Vec<Sent>) -> Sent {
    assert_eq!(sent.len(), 1, "{sent:?}");
    sent.remove(0)
}

/// Whether a client takes the second of two notifications for the newer one (RFC 7641, 3.4).
fn is_newer(first: u32, second: u32) -> bool {
    (first < second && second - first < 1 << 23) || (first > second && first - second > 1 << 23)
}

#[test]
fn nothing_is_made_without_observers() {
    let mut bench = Bench::new();
    assert_eq!(one(bench.get(NEAR, 1, &[], "plain")).observe, None);
    assert!(bench.server.observers.is_none());
    assert!(bench.publish("1").is_empty());
    assert!(bench.notices.is_idle());
}

#[test]
fn every_notification_is_newer_than_the_one_before() {
    let mut bench = Bench::new();
    let first = bench.observe(NEAR, 7);
    assert_eq!(
        (first.kind, first.code, &first.text[..]),
        (MessageType::Ack, (2, 5), &b"first"[..])
    );
    let mut last = first.observe.expect("it observes");
    // Notifications within the same instant, some seconds apart, and further apart than the whole
    // range of the sequence numbers.
    for pause_s in [0, 0, 0, 4, 0, 60, 100, 120, 4, 120, 120, 120, 0, 4, 1_000, 10_000, 0, 0] {
        bench.now += pause_s * SECOND;
        let sent = one(bench.publish(&format!("after {pause_s}")));
        assert_eq!((sent.code, &sent.token[..]), ((2, 5), &[7][..]));
        assert_eq!(sent.text, format!("after {pause_s}").into_bytes());
        let number = sent.observe.unwrap();
        assert!(number < 1 << 24);
        assert!(is_newer(last, number) || pause_s > 128, "{last} then {number}");
        last = number;
        if sent.kind == MessageType::Con {
            assert!(bench.acknowledge(&sent).is_empty());
        }
    }
    // Registering again continues the sequence.
    let again = bench.observe(NEAR, 7);
    assert!(is_newer(last, again.observe.unwrap()));
    assert_eq!(bench.observers(), 1);
}

#[test]
fn a_notification_is_confirmed_if_it_follows_soon_or_after_nine_others() {
    let mut bench = Bench::new();
    bench.observe(NEAR, 1);
    let mut kinds = Vec::new();
    for number in 0..21 {
        bench.now += 4 * SECOND;
        let sent = one(bench.publish(&number.to_string()));
        if sent.kind == MessageType::Con {
            bench.acknowledge(&sent);
        }
        kinds.push(sent.kind == MessageType::Con);
    }
    let confirmed: Vec<usize> = (0..21).filter(|at| kinds[*at]).collect();
    assert_eq!(confirmed, [9, 19]);
    bench.now += SECOND;
    assert_eq!(one(bench.publish("soon")).kind, MessageType::Con);
    let mut bench = Bench::new();
    bench.observe(NEAR, 1);
    bench.now += 700 * SECOND;
    assert_eq!(one(bench.publish("late")).kind, MessageType::Con, "not confirmed for long");
}

#[test]
fn one_is_under_way_and_the_newest_state_follows() {
    let mut bench = Bench::new();
    bench.observe(NEAR, 1);
    let first = one(bench.publish("1"));
    assert_eq!(first.kind, MessageType::Con);
    assert!(bench.publish("2").is_empty());
    assert!(bench.publish("3").is_empty());
    assert_eq!(one(bench.acknowledge(&first)).text, b"3");
    assert!(bench.acknowledge(&first).is_empty(), "a repeated acknowledgement");
}

#[test]
fn a_repetition_has_the_newest_state_and_a_silent_observer_is_forgotten() {
    let mut bench = Bench::new();
    bench.observe(NEAR, 1);
    let first = one(bench.publish("1"));
    let second = one(bench.pass(3));
    assert_eq!((second.mid, &second.text[..]), (first.mid, &b"1"[..]), "nothing is newer");
    assert!(bench.publish("2").is_empty());
    let third = one(bench.pass(6));
    assert_ne!(third.mid, first.mid);
    assert_eq!((third.kind, &third.text[..]), (MessageType::Con, &b"2"[..]));
    assert!(is_newer(first.observe.unwrap(), third.observe.unwrap()));
    // The attempts count as those of a single message, so two more follow, and then nothing.
    assert_eq!(one(bench.pass(11)).text, b"2");
    assert_eq!(one(bench.pass(21)).text, b"2");
    assert_eq!(bench.observers(), 1);
    assert!(bench.pass(41).is_empty());
    assert_eq!((bench.observers(), bench.notices.figures().lost), (0, 1));
    assert!(bench.publish("3").is_empty());
    assert!(bench.pass(300).is_empty());
}

#[test]
fn a_reset_ends_an_observation_and_so_does_its_request() {
    let mut bench = Bench::new();
    bench.observe(NEAR, 1);
    bench.observe(NEAR, 2);
    bench.now += 4 * SECOND;
    let sent = bench.publish("1");
    assert!(sent.iter().all(|sent| sent.kind == MessageType::Non) && sent.len() == 2);
    bench.reply(&sent[0], 3);
    assert_eq!(bench.observers(), 1);
    bench.reply(&sent[0], 3);
    assert_eq!(bench.observers(), 1, "a reset that is repeated");
    let answer = one(bench.get(NEAR, 2, &[(6, &[1])], "plain"));
    assert_eq!((answer.observe, &answer.text[..]), (None, &b"plain"[..]));
    assert_eq!(bench.observers(), 0);
    // A confirmable notification can be rejected, too, and is then not repeated.
    bench.observe(NEAR, 3);
    let sent = one(bench.publish("2"));
    bench.reply(&sent, 3);
    assert_eq!(bench.observers(), 0);
    assert!(bench.pass(100).is_empty());
}

#[test]
fn an_error_ends_an_observation() {
    let mut bench = Bench::new();
    bench.observe(NEAR, 1);
    bench.now += 60 * SECOND;
    let sent = one(bench.publish_as("application/json", "{}"));
    assert_eq!((sent.code, sent.observe, sent.kind), ((4, 6), None, MessageType::Con));
    assert_eq!(bench.observers(), 0);
    bench.acknowledge(&sent);
    bench.observe(NEAR, 2);
    bench.notices.end(&FunctionName::new("f").unwrap());
    let sent = one(bench.turn());
    assert_eq!((sent.code, sent.observe, sent.kind), ((4, 4), None, MessageType::Con));
    assert_eq!(bench.observers(), 0);
    assert_eq!(one(bench.pass(3)).mid, sent.mid, "it is repeated");
    // A request that fails registers nothing.
    bench.request(NEAR, 3, &[(6, b"")]);
    let id = bench.server.work.drain(..).next().unwrap().id;
    bench.finish(id, 404, "", "");
    assert_eq!(one(bench.take()).observe, None);
    assert_eq!(bench.observers(), 0);
}

#[test]
fn a_state_that_is_published_while_the_function_answers_is_not_lost() {
    let mut bench = Bench::new();
    bench.request(NEAR, 1, &[(6, b"")]);
    let id = bench.server.work.drain(..).next().unwrap().id;
    assert!(bench.publish("newer").is_empty());
    bench.finish(id, 200, "content-type\ntext/plain\n", "older");
    assert_eq!(one(bench.take()).text, b"older");
    assert_eq!(one(bench.turn()).text, b"newer");
}

#[test]
fn a_source_proves_itself_before_it_observes() {
    let mut bench = Bench::new();
    let challenge = bench.get(FAR, 1, &[(6, b"")], "first");
    let challenge = one(challenge);
    assert_eq!((challenge.code, bench.observers()), ((4, 1), 0));
    let echo = challenge.echo.expect("an Echo value");
    let first = one(bench.get(FAR, 1, &[(6, b""), (252, &echo)], "first"));
    assert!(first.observe.is_some());
    assert_eq!(bench.observers(), 1);
    assert_eq!(one(bench.publish("1")).to, FAR.parse().unwrap());
}

#[test]
fn observers_beyond_the_share_of_their_address_get_plain_answers() {
    let mut bench = Bench::with(Notices::new(4, 1 << 20));
    assert!(bench.observe(NEAR, 1).observe.is_some());
    assert!(bench.observe(NEAR, 2).observe.is_some());
    let third = bench.observe(NEAR, 3);
    assert_eq!((third.code, third.observe), ((2, 5), None));
    bench.get(NEAR, 1, &[(6, &[1])], "");
    assert!(bench.observe(NEAR, 3).observe.is_some());
}

#[test]
fn a_long_state_is_notified_by_its_first_block() {
    let mut bench = Bench::new();
    bench.observe(NEAR, 1);
    let long: String = ('a'..='z').cycle().take(2_500).collect();
    let first = one(bench.publish(&long));
    assert!(first.observe.is_some() && first.more);
    assert_eq!(first.text, long.as_bytes()[..1_024]);
    let mut whole = first.text;
    for number in 1..3u8 {
        // The block is fetched with GET and another token, without Observe.
        let block = one(bench.get(NEAR, 9, &[(23, &[number << 4 | 6])], "not run again"));
        assert_eq!((block.observe, block.code), (None, (2, 5)));
        whole.extend_from_slice(&block.text);
    }
    assert_eq!(whole, long.as_bytes());
}

#[test]
fn a_silent_observer_is_asked_whether_it_is_there() {
    let mut bench = Bench::new();
    bench.observe(NEAR, 1);
    assert!(bench.pass(3_000).is_empty());
    let mut pings = 0;
    for _ in 0..20 {
        for ping in bench.pass(600) {
            assert_eq!((ping.kind, ping.code), (MessageType::Con, (0, 0)));
            bench.reply(&ping, 3);
            pings += 1;
        }
    }
    assert!((2..=4).contains(&pings), "{pings} questions in 200 minutes");
    assert_eq!(bench.observers(), 1, "its resets are answers");
    assert!(bench.server.next_due().is_some());
    // The first ping that is not answered ends the observation.
    let ping = loop {
        if let Some(ping) = bench.pass(600).pop() {
            break ping;
        }
    };
    for pause_s in [3, 6, 11, 21] {
        assert_eq!(one(bench.pass(pause_s)).mid, ping.mid);
    }
    assert!(bench.pass(41).is_empty());
    assert_eq!(bench.observers(), 0);
    assert_eq!(bench.server.next_due(), None, "nothing wakes the front");
}

#[test]
fn a_question_that_later_notifications_displace_is_asked_again() {
    let mut bench = Bench::new();
    bench.observe(NEAR, 1);
    let ping = one(bench.pass(4_000));
    assert_eq!(ping.code, (0, 0));
    // The ids of later notifications replace the remembered id of the ping. The observer
    // acknowledges only the notifications.
    for number in 0..10 {
        bench.now += 5 * SECOND;
        for sent in bench.publish(&number.to_string()) {
            if sent.kind == MessageType::Con {
                bench.acknowledge(&sent);
            }
        }
    }
    for _ in 0..5 {
        bench.pass(50);
    }
    assert_eq!(bench.observers(), 1, "the repeated question is not answered, but it is there");
    assert_eq!(one(bench.pass(8_000)).code, (0, 0));
}

#[test]
fn many_observers_are_notified_in_turns() {
    let mut bench = Bench::new();
    for token in 0..100 {
        bench.observe(NEAR, token);
    }
    let state = State { status: 200, ..State::default() };
    let name = FunctionName::new("f").unwrap();
    assert_eq!(bench.notices.publish(&name, b"/t", None, state), Ok(100));
    let mut context = Context::from_waker(Waker::noop());
    assert!(bench.server.notify_changed(&mut context, bench.now));
    assert_eq!(bench.take().len(), 32);
    assert_eq!(bench.turn().len(), 68);
}
