//! The socket of the CoAP front: batches in, batches out, one task.
//!
//! In each of its turns the task takes the answers that are ready and at most one batch of
//! datagrams, and sends all that came of it with one call. Nothing waits for a batch to fill:
//! what a turn finds is what had gathered while others ran.

use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use mote_core::body::{Body, BodyError};
use mote_core::{Fault, Invoker, RouteInfo};
use rustix::net::sockopt;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::{Instant, Sleep};

use super::batch::{BATCH_MAX, Inbox, Outbox, RECEIVE_BYTES};
use super::runs::{Panicked, Runs};
use super::server::{Config, Finished, Server, Work};
use crate::http::Stopper;
use crate::ids::now_ns;

/// Longest the node waits for running exchanges when it stops.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// Asked of the kernel for datagrams that wait to be read and to leave: a datagram of a few bytes
/// counts as one of about 1 KiB there, and thousands of clients may speak at the same moment.
/// Used only as far as datagrams do wait.
const SOCKET_BYTES: usize = 4 << 20;

/// Serves the socket until the stopper stops.
pub async fn serve<I: Invoker>(
    socket: UdpSocket,
    invoker: I,
    config: Config,
    stopper: Stopper,
) -> io::Result<()> {
    prepare(&socket)?;
    let answer_bytes_max = config.answer_bytes_max;
    let mut server = Server::new(invoker.clone(), config);
    let mut runs = Runs::new();
    let mut inbox = Inbox::new(socket.local_addr()?.is_ipv4());
    let mut alarm = Alarm::default();
    let mut stopped = pin!(stopper.notified());
    stopped.as_mut().enable();
    let mut stopping = false;
    let mut grace = pin!(tokio::time::sleep(Duration::ZERO));
    let turn = poll_fn(|cx| {
        if !stopping && stopped.as_mut().poll(cx).is_ready() {
            stopping = true;
            grace.as_mut().reset(Instant::now() + STOP_GRACE);
        }
        // What the last turn left over comes first; while the socket is full, nothing is read.
        let full = poll_send(cx, &socket, &mut server.out)?.is_pending();
        let now = now_ns();
        runs.poll(cx, |id, result| server.finish(id, finished(result), now));
        let more = !stopping && !full && poll_receive(cx, &socket, &mut inbox, &mut server, now)?;
        let mut works = std::mem::take(&mut server.work);
        for work in works.drain(..) {
            let id = work.id;
            let begun = runs.begin(id, run(&invoker, work, answer_bytes_max));
            if let Poll::Ready(result) = begun {
                server.finish(id, finished(result), now_ns());
            }
        }
        server.work = works;
        server.time_passed(now);
        while alarm.poll_ring(cx, server.next_due()).is_ready() {
            server.time_passed(now_ns());
        }
        let sent = poll_send(cx, &socket, &mut server.out)?.is_ready();
        if more || (full && sent) {
            // Others first: what was just handed over leaves for its worker.
            let _ = pin!(tokio::task::yield_now()).poll(cx);
        }
        let over = stopping && grace.as_mut().poll(cx).is_ready();
        if over || (stopping && sent && server.running() == 0) {
            return Poll::Ready(io::Result::Ok(()));
        }
        Poll::Pending
    });
    // The runtime's own bound on what a task does in a turn would cut one with many answers into
    // pieces, each with a poll of all that are left; a turn here is bounded by itself.
    tokio::task::coop::unconstrained(turn).await?;
    tracing::debug!(counters = ?server.counters(), lost = server.out.lost, "CoAP front ended");
    Ok(())
}

fn prepare(socket: &UdpSocket) -> io::Result<()> {
    // A socket on all addresses hears the groups any other program joined; we offer nothing to
    // groups, and answers to them would be many for one.
    if socket.local_addr()?.is_ipv4() {
        socket2::SockRef::from(socket).set_multicast_all_v4(false)?;
    } else {
        socket2::SockRef::from(socket).set_multicast_all_v6(false)?;
    }
    // Beyond the machine's ordinary limit where we may, else up to it.
    if sockopt::set_socket_recv_buffer_size_force(socket, SOCKET_BYTES).is_err() {
        sockopt::set_socket_recv_buffer_size(socket, SOCKET_BYTES)?;
    }
    Ok(sockopt::set_socket_send_buffer_size(socket, SOCKET_BYTES)?)
}

/// Hands the server at most one batch; `true` when the socket may hold more.
fn poll_receive<I: Invoker>(
    cx: &mut Context<'_>,
    socket: &UdpSocket,
    inbox: &mut Inbox,
    server: &mut Server<I>,
    now_ns: u64,
) -> io::Result<bool> {
    loop {
        if socket.poll_recv_ready(cx)?.is_pending() {
            return Ok(false);
        }
        let mut full = false;
        let result = socket.try_io(Interest::READABLE, || {
            let count = inbox.receive(socket, |peer, datagram| {
                if datagram.len() > RECEIVE_BYTES {
                    server.datagram_too_long(peer, datagram, now_ns);
                } else {
                    server.datagram(peer, datagram, now_ns);
                }
            })?;
            full = count == BATCH_MAX;
            // A batch that is not full has emptied the socket: the runtime is told, which saves
            // a call that would find nothing.
            if full { Ok(()) } else { Err(ErrorKind::WouldBlock.into()) }
        });
        match result {
            Ok(()) => return Ok(true),
            // The readiness is used up; asking once more registers the task for the next.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // A peer's closed port comes back as an error of a later call; it is not ours.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionRefused | ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Sends what has gathered; when the socket is full the task is woken once it is not.
fn poll_send(cx: &mut Context<'_>, socket: &UdpSocket, out: &mut Outbox) -> Poll<io::Result<()>> {
    while !out.is_empty() {
        ready!(socket.poll_send_ready(cx))?;
        match socket.try_io(Interest::WRITABLE, || out.flush(socket)) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Poll::Ready(Err(error)),
            Ok(()) | Err(_) => {}
        }
    }
    Poll::Ready(Ok(()))
}

/// Wakes the task at a time. What is due mostly moves away from now with each answer, so a timer
/// that is set stays set: one that rings too early costs less than setting it in every turn.
#[derive(Default)]
struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
    set_to_ns: Option<u64>,
}

impl Alarm {
    /// Ready once when `due_ns` has come, or a time that was due when this was called before.
    fn poll_ring(&mut self, cx: &mut Context<'_>, due_ns: Option<u64>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(Duration::ZERO)));
        if let Some(due_ns) = due_ns
            && self.set_to_ns.is_none_or(|set_to_ns| due_ns < set_to_ns)
        {
            let left = Duration::from_nanos(due_ns.saturating_sub(now_ns()));
            sleep.as_mut().reset(Instant::now() + left);
            self.set_to_ns = Some(due_ns);
        }
        if self.set_to_ns.is_none() || sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.set_to_ns = None;
        Poll::Ready(())
    }
}

fn finished(result: Result<Finished, Panicked>) -> Finished {
    result
        .unwrap_or_else(|_| Err(Fault::Internal { message: "the invocation panicked".to_owned() }))
}

/// Runs an invocation to the end of its answer; all of it within the deadline, since a CoAP
/// answer begins only when it is whole.
async fn run<I: Invoker>(invoker: &I, work: Work<I::Route>, answer_bytes_max: u64) -> Finished {
    let (timeout_ms, deadline_ns) = (work.route.timeout_ms(), work.invocation.deadline_ns);
    let id = work.invocation.id;
    let reply = invoker.invoke(&work.route, work.invocation).await?;
    let body = match reply.body {
        // Whole already, as most are: neither a timer nor another poll is needed.
        Body::Empty => Bytes::new(),
        Body::Whole(body) if body.len() as u64 <= answer_bytes_max => body,
        body => {
            let left = Duration::from_nanos(deadline_ns.saturating_sub(now_ns()));
            match tokio::time::timeout(left, body.collect(answer_bytes_max)).await {
                Ok(Ok(body)) => body,
                Ok(Err(BodyError::TooLarge(limit_bytes))) => {
                    let (name, fault) = (work.route.name(), Fault::AnswerTooLarge { limit_bytes });
                    tracing::warn!(function = %name, %id, "{}", fault.public_text(name.as_str()));
                    return Err(fault);
                }
                Ok(Err(error)) => return Err(Fault::BadReply { message: error.to_string() }),
                Err(_) => return Err(Fault::DeadlineRunning { timeout_ms }),
            }
        }
    };
    Ok((reply.status, reply.headers, body))
}
