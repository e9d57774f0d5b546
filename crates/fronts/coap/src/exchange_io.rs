//! The socket of the CoAP front: one task that receives and sends datagrams in batches.
//!
//! In each turn, the task takes the answers that are ready and at most one batch of datagrams. It
//! then sends all resulting datagrams with one call. The task never waits for a batch to fill. A
//! turn handles whatever datagrams arrived while other tasks ran.

use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use mote_core::body::{Body, BodyError};
use mote_core::{Fault, Invoker, Routed};
use mote_process::quiet_socket::{QuietSocket, Read};
use rustix::net::sockopt;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

use super::batch::{BATCH_MAX, Inbox, RECEIVE_BYTES};
use super::runs::{Panicked, Runs};
use super::server::{Config, Finished, Server, Work};
use crate::ids::now_ns;

/// The longest time that a stopping front waits for running exchanges. The node waits no longer
/// than this for its fronts.
pub(crate) const STOP_GRACE: Duration = Duration::from_secs(30);
/// The kernel buffer for datagrams that wait to be read or sent. A datagram of a few bytes counts
/// as about 1 KiB there, and thousands of clients may send at the same moment. The memory is used
/// only while datagrams wait.
const SOCKET_BYTES: usize = 4 << 20;

/// The transport through which the front receives and sends datagrams.
pub(crate) trait Datagrams {
    /// Gives the server at most one batch. Returns `true` if more datagrams may be waiting.
    fn poll_receive<I: Invoker>(
        &mut self,
        cx: &mut Context<'_>,
        server: &mut Server<I>,
        now_ns: u64,
    ) -> io::Result<bool>;

    /// Sends the collected datagrams. If they cannot all be sent now, the task is woken when
    /// sending is possible again.
    fn poll_send<I: Invoker>(
        &mut self,
        cx: &mut Context<'_>,
        server: &mut Server<I>,
    ) -> Poll<io::Result<()>>;
}

/// Serves the socket until `stop` becomes true.
pub async fn serve<I: Invoker>(
    socket: UdpSocket,
    invoker: I,
    config: Config,
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    prepare(&socket)?;
    let server = Server::new(invoker.clone(), config);
    let inbox = Inbox::new(socket.local_addr()?.is_ipv4());
    let socket = QuietSocket::new(socket.into_std()?)?;
    serve_datagrams(Udp { socket, inbox }, server, invoker, stop).await
}

/// Serves datagrams until `stop` becomes true.
pub(crate) async fn serve_datagrams<I: Invoker>(
    mut datagrams: impl Datagrams,
    mut server: Server<I>,
    invoker: I,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let answer_bytes_max = server.config.answer_bytes_max;
    let mut runs = Runs::new();
    let mut alarm = Alarm::default();
    let mut stopped = pin!(stop.wait_for(|stop| *stop));
    let mut stopping = false;
    let mut grace = pin!(tokio::time::sleep(Duration::ZERO));
    let turn = poll_fn(|cx| {
        if !stopping && stopped.as_mut().poll(cx).is_ready() {
            stopping = true;
            grace.as_mut().reset(Instant::now() + STOP_GRACE);
        }
        // Datagrams left over from the last turn are sent first. While the socket is full, nothing
        // is read.
        let full = datagrams.poll_send(cx, &mut server)?.is_pending();
        let now = now_ns();
        runs.poll(cx, |id, result| server.finish(id, finished(result), now));
        // A stopping node leaves unread datagrams in the socket. If a service manager holds the
        // socket, the next node reads them. Otherwise the clients send them again.
        let more = !stopping && !full && datagrams.poll_receive(cx, &mut server, now)?;
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
        let more_notices = server.observers.is_some() && server.notify_changed(cx, now);
        let sent = datagrams.poll_send(cx, &mut server)?.is_ready();
        if more || more_notices || (full && sent) {
            // Other tasks run first, so that the invocations just handed over reach their workers.
            let _ = pin!(tokio::task::yield_now()).poll(cx);
        }
        let over = stopping && grace.as_mut().poll(cx).is_ready();
        if over || (stopping && sent && server.running() == 0) {
            return Poll::Ready(io::Result::Ok(()));
        }
        Poll::Pending
    });
    // The runtime's own limit on a task's turn would split a turn with many answers into pieces,
    // and each piece would poll all remaining answers. This function limits its turns itself.
    tokio::task::coop::unconstrained(turn).await?;
    tracing::debug!(counters = ?server.counters(), lost = server.out.lost, "CoAP front ended");
    Ok(())
}

/// Sets the options of a socket that receives clients' datagrams.
pub fn prepare(socket: &impl AsFd) -> io::Result<()> {
    let socket = socket2::SockRef::from(socket);
    // A socket that is bound to all addresses also receives datagrams for multicast groups that any
    // other program has joined. The front offers nothing to groups, and one request to a group
    // would cause many answers.
    if socket.local_addr()?.is_ipv4() {
        socket.set_multicast_all_v4(false)?;
    } else {
        socket.set_multicast_all_v6(false)?;
    }
    // The buffer may exceed the machine's ordinary limit if that is permitted; otherwise it is as
    // large as the limit.
    if sockopt::set_socket_recv_buffer_size_force(&*socket, SOCKET_BYTES).is_err() {
        sockopt::set_socket_recv_buffer_size(&*socket, SOCKET_BYTES)?;
    }
    Ok(sockopt::set_socket_send_buffer_size(&*socket, SOCKET_BYTES)?)
}

struct Udp {
    socket: QuietSocket<std::net::UdpSocket>,
    inbox: Inbox,
}

impl Datagrams for Udp {
    fn poll_receive<I: Invoker>(
        &mut self,
        cx: &mut Context<'_>,
        server: &mut Server<I>,
        now_ns: u64,
    ) -> io::Result<bool> {
        let Self { socket, inbox } = self;
        loop {
            let received = socket.poll_read(cx, |socket| {
                let count = inbox.receive(socket, |peer, datagram| {
                    if datagram.len() > RECEIVE_BYTES {
                        server.datagram_too_long(peer, datagram, now_ns);
                    } else {
                        server.datagram(peer, datagram, now_ns);
                    }
                })?;
                let full = count == BATCH_MAX;
                Ok(Read { result: full, emptied: !full })
            });
            match received {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(true)) => return Ok(true),
                // The next attempt registers the task to be woken by the next datagram.
                Poll::Ready(Ok(false)) => {}
                // The kernel reports a peer's closed port as an error of a later call. The error
                // does not concern this socket.
                Poll::Ready(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {}
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
    }

    fn poll_send<I: Invoker>(
        &mut self,
        cx: &mut Context<'_>,
        server: &mut Server<I>,
    ) -> Poll<io::Result<()>> {
        let out = &mut server.out;
        while !out.is_empty() {
            ready!(self.socket.poll_write(cx, |socket| out.flush(socket)))?;
        }
        Poll::Ready(Ok(()))
    }
}

/// Wakes the task at a given time. Each answer usually moves the due time further away, so a timer
/// that is already set stays as it is: one early wake-up costs less than setting the timer in every
/// turn.
#[derive(Default)]
pub(crate) struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
    set_to_ns: Option<u64>,
}

impl Alarm {
    /// Ready once when `due_ns` is reached, or an earlier due time from a previous call.
    pub(crate) fn poll_ring(&mut self, cx: &mut Context<'_>, due_ns: Option<u64>) -> Poll<()> {
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

pub(crate) fn finished(result: Result<Finished, Panicked>) -> Finished {
    result
        .unwrap_or_else(|_| Err(Fault::Internal { message: "the invocation panicked".to_owned() }))
}

/// Runs an invocation until its whole answer has arrived, within the deadline. A CoAP answer is
/// sent only when it is complete.
pub(crate) async fn run<I: Invoker>(
    invoker: &I,
    work: Work<I::Route>,
    answer_bytes_max: u64,
) -> Finished {
    let timeout_ms = work.route.info().timeout_ms;
    let deadline_ns = work.invocation.deadline_ns;
    let id = work.invocation.id;
    let reply = invoker.invoke(&work.route, work.invocation).await?;
    let body = match reply.body {
        // In most cases the body is already complete, so neither a timer nor another poll is
        // needed.
        Body::Empty => Bytes::new(),
        Body::Whole(body) if body.len() as u64 <= answer_bytes_max => body,
        body => {
            let left = Duration::from_nanos(deadline_ns.saturating_sub(now_ns()));
            match tokio::time::timeout(left, body.collect(answer_bytes_max)).await {
                Ok(Ok(body)) => body,
                Ok(Err(BodyError::TooLarge(limit_bytes))) => {
                    let (name, fault) =
                        (work.route.info().name, Fault::AnswerTooLarge { limit_bytes });
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
