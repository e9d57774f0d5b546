//! The socket of the CoAP front: batches in, batches out, one task.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use mote_core::{Fault, Invoker, RouteInfo};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

use super::server::{Config, Finished, Server, Work};
use crate::http::Stopper;
use crate::ids::now_ns;

/// Datagrams taken before answers are sent, so that a flood cannot starve them.
const BATCH_MAX: usize = 64;
/// Largest datagram we read. The buffer has one byte more: the kernel cuts what is longer, and a
/// request without its end must not pass for a whole one.
const RECEIVE_BYTES: usize = 2_048;
/// Longest the node waits for running exchanges when it stops.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Serves the socket until the stopper stops.
pub async fn serve<I: Invoker>(
    socket: UdpSocket,
    invoker: I,
    config: Config,
    stopper: Stopper,
) -> std::io::Result<()> {
    // A socket on all addresses hears the groups any other program joined; we offer nothing to
    // groups, and answers to them would be many for one.
    if socket.local_addr()?.is_ipv4() {
        socket2::SockRef::from(&socket).set_multicast_all_v4(false)?;
    } else {
        socket2::SockRef::from(&socket).set_multicast_all_v6(false)?;
    }
    let answer_bytes_max = config.answer_bytes_max;
    let mut server = Server::new(invoker.clone(), config);
    let (results, mut finished) = mpsc::unbounded_channel::<(u64, Finished)>();
    let mut buffer = vec![0; RECEIVE_BYTES + 1];
    let stopped = stopper.notified();
    tokio::pin!(stopped);
    stopped.as_mut().enable();
    let mut stop_at = None;
    loop {
        let due = server.next_due();
        tokio::select! {
            Some((id, result)) = finished.recv() => {
                server.finish(id, result, now_ns());
                while let Ok((id, result)) = finished.try_recv() {
                    server.finish(id, result, now_ns());
                }
            }
            ready = socket.readable(), if stop_at.is_none() => {
                ready?;
                receive(&socket, &mut buffer, &mut server)?;
            }
            () = sleep_until(due), if due.is_some() => {}
            () = &mut stopped, if stop_at.is_none() => {
                stop_at = Some(tokio::time::Instant::now() + STOP_GRACE);
            }
        }
        server.time_passed(now_ns());
        for work in server.work.drain(..) {
            let invoker = invoker.clone();
            let mut answer = Answer { id: work.id, results: Some(results.clone()) };
            tokio::spawn(async move {
                let left = work.invocation.deadline_ns.saturating_sub(now_ns());
                let result = run(&invoker, work, answer_bytes_max, Duration::from_nanos(left));
                answer.give(result.await);
            });
        }
        send(&socket, &mut server.out).await;
        let over = stop_at.is_some_and(|at| tokio::time::Instant::now() >= at);
        if stop_at.is_some() && (server.running() == 0 || over) {
            let counters = server.counters();
            tracing::debug!(?counters, "CoAP front ended");
            return Ok(());
        }
    }
}

/// The place of an answer: if the task that holds it ends without one, the exchange must not stay
/// open for ever.
struct Answer {
    id: u64,
    results: Option<mpsc::UnboundedSender<(u64, Finished)>>,
}

impl Answer {
    fn give(&mut self, result: Finished) {
        if let Some(results) = self.results.take() {
            // The receiver is gone only when the front has ended.
            let _ = results.send((self.id, result));
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.give(Err(Fault::Internal { message: "the invocation panicked".to_owned() }));
    }
}

/// Runs an invocation to the end of its answer; all of it within the deadline, since a CoAP
/// answer begins only when it is whole.
async fn run<I: Invoker>(
    invoker: &I,
    work: Work<I::Route>,
    answer_bytes_max: u64,
    left: Duration,
) -> Finished {
    let timeout_ms = work.route.timeout_ms();
    let reply = invoker.invoke(&work.route, work.invocation).await?;
    let body = tokio::time::timeout(left, reply.body.collect(answer_bytes_max)).await;
    match body {
        Ok(Ok(body)) => Ok((reply.status, reply.headers, body)),
        Ok(Err(error)) => Err(Fault::BadReply { message: error.to_string() }),
        Err(_) => Err(Fault::DeadlineRunning { timeout_ms }),
    }
}

async fn sleep_until(due_ns: Option<u64>) {
    if let Some(due_ns) = due_ns {
        tokio::time::sleep(Duration::from_nanos(due_ns.saturating_sub(now_ns()))).await;
    }
}

fn receive<I: Invoker>(
    socket: &UdpSocket,
    buffer: &mut [u8],
    server: &mut Server<I>,
) -> std::io::Result<()> {
    for _ in 0..BATCH_MAX {
        match socket.try_recv_from(buffer) {
            Ok((length, peer)) if length > RECEIVE_BYTES => {
                server.datagram_too_long(peer, &buffer[..length], now_ns());
            }
            Ok((length, peer)) => server.datagram(peer, &buffer[..length], now_ns()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
            // A peer's closed port comes back as an error of the next call; it is not ours.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends all; what the kernel does not take is lost, as datagrams are.
async fn send(socket: &UdpSocket, out: &mut Vec<(Bytes, SocketAddr)>) {
    for (datagram, peer) in out.drain(..) {
        match socket.try_send_to(&datagram, peer) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if let Err(error) = socket.send_to(&datagram, peer).await {
                    tracing::debug!(%error, %peer, "CoAP datagram not sent");
                }
            }
            Err(error) => tracing::debug!(%error, %peer, "CoAP datagram not sent"),
            Ok(_) => {}
        }
    }
}
