//! Tests the CoAP front under bursts, over real sockets: more datagrams at once than one batch
//! receives, more answers at once than one batch sends, and a lone request between them.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::Duration;

use mote_coap::{Config, serve};
use support::Fake;
use support::coap::Stopper;

/// A confirmable GET whose token repeats the message id.
fn get(mid: u16, path: &str) -> Vec<u8> {
    let mid = mid.to_be_bytes();
    let mut datagram = vec![0x42, 1, mid[0], mid[1], mid[0], mid[1], 0xb0 | path.len() as u8];
    datagram.extend_from_slice(path.as_bytes());
    datagram
}

fn bound() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Serves `socket` while `client` runs, and then stops both in order.
fn with_front(socket: UdpSocket, client: impl FnOnce(&Fake)) {
    with_front_of(socket, Config::default(), client);
}

fn with_front_of(socket: UdpSocket, config: Config, client: impl FnOnce(&Fake)) {
    let (fake, (stopper, end)) = (Fake::default(), Stopper::new());
    let invoker = fake.clone();
    socket.set_nonblocking(true).unwrap();
    let config = Config { ack_delay_ns: 60_000_000_000, ..config };
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async move {
            let socket = tokio::net::UdpSocket::from_std(socket).unwrap();
            serve(socket, invoker, config, end).await.unwrap();
        });
    });
    client(&fake);
    stopper.stop();
    thread.join().unwrap();
}

/// Reads a 2.05 answer for each of these message ids, in any order.
fn expect_answers(client: &UdpSocket, mids: impl Iterator<Item = u16>) {
    let mut missing: HashSet<u16> = mids.collect();
    let mut buffer = [0; 2_048];
    while !missing.is_empty() {
        let length = client.recv(&mut buffer).expect("every request is answered");
        let mid = u16::from_be_bytes([buffer[2], buffer[3]]);
        assert_eq!(buffer[..2], [0x62, 0x45], "acknowledgement with content");
        assert_eq!(buffer[4..6], mid.to_be_bytes(), "its own token");
        assert!(length > 6 && missing.remove(&mid), "{mid} was answered already");
    }
}

#[test]
fn a_burst_of_several_batches_is_answered() {
    let (socket, server) = bound();
    let (client, _) = bound();
    // The requests wait in the socket before the front begins, so they arrive as one burst.
    for mid in 0..200 {
        client.send_to(&get(mid, "count"), server).unwrap();
    }
    with_front(socket, |fake| {
        expect_answers(&client, 0..200);
        assert_eq!(fake.calls(), 200);
        client.send_to(&get(200, "count"), server).unwrap();
        expect_answers(&client, 200..201);
        // The same burst is sent again. These are repetitions, so they run nothing.
        for mid in 0..200 {
            client.send_to(&get(mid, "count"), server).unwrap();
        }
        expect_answers(&client, 0..200);
        assert_eq!(fake.calls(), 201);
    });
}

#[test]
fn answers_that_come_together_all_leave() {
    let (socket, server) = bound();
    // Each request has its own client, so that no client has to hold many answers.
    let clients: Vec<_> = (0..20).map(|_| bound().0).collect();
    with_front(socket, |fake| {
        for round in 0..2 {
            for lot in 0..5 {
                // Sends only as many requests at once as a socket can hold on any machine.
                let begun = fake.calls() + 200;
                for mid in 10 * lot..10 * (lot + 1) {
                    for client in &clients {
                        client.send_to(&get(100 * round + mid, "slow"), server).unwrap();
                    }
                }
                fake.wait("all to begin", |state| state.calls.load(Ordering::SeqCst) == begun);
            }
            // A quick request is not delayed by the requests that wait.
            clients[0].send_to(&get(10_000 + round, "number"), server).unwrap();
            expect_answers(&clients[0], 10_000 + round..10_001 + round);
            fake.permits.add_permits(1_000);
            for client in &clients {
                expect_answers(client, 100 * round..100 * round + 50);
            }
        }
    });
}

/// Requests that keep one function busy leave places for other functions, however many such
/// requests there are.
#[test]
fn requests_to_a_slow_function_leave_room_to_others() {
    let (socket, server) = bound();
    let (hostile, _) = bound();
    let (client, _) = bound();
    let config = Config { running_max: 64, ..Config::default() };
    with_front_of(socket, config, |fake| {
        for mid in 0..200 {
            let mut request = get(mid, "slow");
            request[0] = 0x52; // non-confirmable
            hostile.send_to(&request, server).unwrap();
        }
        fake.wait("its share is taken", |state| state.calls.load(Ordering::SeqCst) == 32);
        for mid in 0..100 {
            client.send_to(&get(mid, "count"), server).unwrap();
            expect_answers(&client, [mid].into_iter());
        }
        fake.permits.add_permits(200);
        // The places are free again, so requests to all functions are served, including the slow
        // one.
        fake.wait("all have ended", |state| state.saw.lock().len() == 132);
        hostile.send_to(&get(1_000, "slow"), server).unwrap();
        fake.wait("one more", |state| state.saw.lock().len() == 133);
    });
}
