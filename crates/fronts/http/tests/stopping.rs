//! A stopping front still answers requests that had reached its machine before it began to stop.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use mote_http::http::{Config, Stopper, listen, serve};
use support::Fake;

#[test]
fn connections_that_wait_in_the_kernel_are_answered() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        // The kernel completes these connections, but the front has not accepted any of them.
        let clients: Vec<TcpStream> = (0..20)
            .map(|_| {
                let mut client = TcpStream::connect(address).unwrap();
                client.write_all(b"GET /nobody HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
                client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                client
            })
            .collect();
        let stopper = Stopper::default();
        stopper.stop();
        serve(listener, Fake::default(), Config::default(), stopper).await.unwrap();
        for mut client in clients {
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        }
        assert!(TcpStream::connect(address).is_err(), "the listener is closed");
    });
}
