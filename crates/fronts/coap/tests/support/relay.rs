//! A relay that acts as a bad network between clients and a front.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::Random;

/// Passes datagrams between any clients and the server. It drops 5 in 100 datagrams and swaps as
/// many with the next one, using a seeded generator.
pub struct Relay {
    pub address: SocketAddr,
    over: Arc<AtomicBool>,
    pub dropped: Arc<AtomicU64>,
    pub swapped: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Relay {
    pub fn start(server: SocketAddr, seed: u64) -> Self {
        let front = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = front.local_addr().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let dropped = Arc::new(AtomicU64::new(0));
        let swapped = Arc::new(AtomicU64::new(0));
        let end = over.clone();
        let drops = dropped.clone();
        let swaps = swapped.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(relay(front, server, seed, &end, &drops, &swaps));
        });
        Self { address, over, dropped, swapped, thread: Some(thread) }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

async fn relay(
    front: UdpSocket,
    server: SocketAddr,
    seed: u64,
    over: &AtomicBool,
    dropped: &AtomicU64,
    swapped: &AtomicU64,
) {
    front.set_nonblocking(true).unwrap();
    let front = tokio::net::UdpSocket::from_std(front).unwrap();
    // The relay serves one client at a time, and each client gets its own socket towards the
    // server. With a shared socket, a new client could use the message ids of an earlier client and
    // receive the answers to those messages.
    let mut back = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut random = Random::new(seed);
    let mut client = server;
    let mut held: Option<(Vec<u8>, bool)> = None;
    let mut one = vec![0; 4_096];
    let mut two = vec![0; 4_096];
    while !over.load(Ordering::SeqCst) {
        let (datagram, sender) = tokio::select! {
            received = front.recv_from(&mut one) => {
                let Ok((length, from)) = received else { continue };
                (one[..length].to_vec(), Some(from))
            }
            received = back.recv_from(&mut two) => {
                let Ok((length, _)) = received else { continue };
                (two[..length].to_vec(), None)
            }
            () = tokio::time::sleep(Duration::from_millis(50)) => {
                // No other datagram arrived to swap this one with, so it is sent.
                if let Some((datagram, inward)) = held.take() {
                    pass(&front, &back, &datagram, inward, client, server).await;
                }
                continue;
            }
        };
        let inward = sender.is_some();
        if let Some(from) = sender.filter(|from| *from != client) {
            client = from;
            held = None;
            back = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        }
        match random.below(100) {
            0..5 => {
                dropped.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            5..10 if held.is_none() => {
                swapped.fetch_add(1, Ordering::SeqCst);
                held = Some((datagram, inward));
                continue;
            }
            _ => pass(&front, &back, &datagram, inward, client, server).await,
        }
        if let Some((datagram, inward)) = held.take() {
            pass(&front, &back, &datagram, inward, client, server).await;
        }
    }
}

async fn pass(
    front: &tokio::net::UdpSocket,
    back: &tokio::net::UdpSocket,
    datagram: &[u8],
    inward: bool,
    client: SocketAddr,
    server: SocketAddr,
) {
    let (socket, to) = if inward { (back, server) } else { (front, client) };
    let _ = socket.send_to(datagram, to).await;
}
