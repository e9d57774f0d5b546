//! A closed-loop CoAP load: n clients, each with its own socket, each with one confirmable GET
//! under way at a time, retransmitted as RFC 7252 has it. Prints one JSON line.
//!
//! Usage: bench_coap PORT PATH CLIENTS SECONDS [OPERATIONS_PER_CLIENT]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| {
        args.get(at).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let port = number(0, 5683) as u16;
    let path = args.get(1).cloned().unwrap_or_else(|| "hello".into());
    let (clients, seconds, operations) = (number(2, 64), number(3, 5), number(4, u64::MAX));
    let failed = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + Duration::from_secs(seconds);
    let started = Instant::now();
    let mut tasks = Vec::new();
    for client in 0..clients {
        let (path, failed) = (path.clone(), failed.clone());
        tasks.push(tokio::spawn(async move {
            let mut times = Vec::new();
            let Ok(socket) = UdpSocket::bind("127.0.0.1:0").await else { return times };
            if socket.connect(("127.0.0.1", port)).await.is_err() {
                return times;
            }
            let mut mid = client as u16;
            let mut done = 0;
            while done < operations && Instant::now() < until {
                mid = mid.wrapping_add(1);
                done += 1;
                match call(&socket, &path, mid).await {
                    Some(time) => times.push(time),
                    None => {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            times
        }));
    }
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap_or_default());
    }
    let elapsed = started.elapsed().as_secs_f64();
    times.sort();
    let at = |share: f64| {
        let index = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
        times.get(index).map_or(0.0, |time: &Duration| time.as_secs_f64() * 1e3)
    };
    let slow = times.iter().filter(|time| **time > Duration::from_secs(1)).count();
    println!(
        "{{\"requests\":{},\"failed\":{},\"over_1s\":{slow},\"per_second\":{:.1},\"p50_ms\":{:.3},\"p99_ms\":{:.3}}}",
        times.len(),
        failed.load(Ordering::Relaxed),
        times.len() as f64 / elapsed,
        at(0.5),
        at(0.99)
    );
    Ok(())
}

/// One exchange; `None` when no answer came after all retransmissions.
async fn call(socket: &UdpSocket, path: &str, mid: u16) -> Option<Duration> {
    let mut datagram = vec![0x42, 0x01, (mid >> 8) as u8, mid as u8, 0x4d, (mid & 0xff) as u8];
    let mut last = 0;
    for segment in path.split('/') {
        let delta: u8 = 11 - last;
        last = 11;
        if segment.len() < 13 {
            datagram.push(delta << 4 | segment.len() as u8);
        } else {
            datagram.push(delta << 4 | 13);
            datagram.push((segment.len() - 13) as u8);
        }
        datagram.extend_from_slice(segment.as_bytes());
    }
    let started = Instant::now();
    let mut pause = Duration::from_secs(2);
    let mut answer = [0; 1_500];
    for _ in 0..5 {
        socket.send(&datagram).await.ok()?;
        let wait = async {
            loop {
                let length = socket.recv(&mut answer).await.ok()?;
                let matches = length >= 6 && answer[2..6] == datagram[2..6];
                if matches && answer[1] >> 5 == 2 {
                    return Some(());
                }
                if matches && answer[1] != 0 {
                    return None;
                }
            }
        };
        match tokio::time::timeout(pause, wait).await {
            Ok(Some(())) => return Some(started.elapsed()),
            Ok(None) => return None,
            Err(_) => pause *= 2,
        }
    }
    None
}
