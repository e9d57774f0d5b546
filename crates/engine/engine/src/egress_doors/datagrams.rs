//! Carries datagrams between a socket inside a sandbox and the one destination that the socket
//! stands for.
//!
//! Each socket from which a program sends datagrams gets a socket outside that is connected to the
//! destination, so that an answer reaches the program that asked. Such a pair of sockets is a flow.
//! No message marks the end of a flow, so a flow ends when no datagram has passed for [`IDLE`], or
//! when a newer flow needs its place. As on any network, a datagram for which there is no room is
//! lost.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use mote_core::turn::Turn;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::egress_doors::door::{CONNECT_TIMEOUT, Door, within};
use crate::egress_doors::relay::PIECE;
use crate::egress_doors::shares::{CONNECTIONS_MAX, Place};
use crate::egress_doors::{EgressBytes, Instance};

/// How long a flow lasts after its last datagram. This is the minimum for address translators (RFC
/// 4787, REQ-5).
const IDLE: Duration = Duration::from_secs(120);
/// How many datagrams, and how many bytes in total, may wait while the destination's name is looked
/// up.
const WAITING_MAX: usize = 8;
const WAITING_BYTES_MAX: usize = 64 << 10;

/// How often the log may report, for one destination, that sockets end or datagrams are lost.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The connection between one socket of a program and the destination.
struct Flow {
    outside: OnceLock<UdpSocket>,
    state: Mutex<State>,
    bytes: Arc<EgressBytes>,
}

struct State {
    used: Instant,
    /// Datagrams that arrived before the socket outside was open.
    waiting: Vec<Box<[u8]>>,
}

impl Flow {
    fn new(bytes: Arc<EgressBytes>) -> Arc<Self> {
        let state = State { used: Instant::now(), waiting: Vec::new() };
        Arc::new(Self { outside: OnceLock::new(), state: Mutex::new(state), bytes })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a datagram to the destination, or keeps it until the socket outside is open.
    fn send(&self, datagram: &[u8]) {
        let mut state = self.state();
        state.used = Instant::now();
        if let Some(outside) = self.outside.get() {
            // If sending fails, the task of the flow reads the reason from the socket.
            self.send_to(outside, datagram);
            return;
        }
        let bytes: usize = state.waiting.iter().map(|one| one.len()).sum();
        if state.waiting.len() < WAITING_MAX && bytes + datagram.len() <= WAITING_BYTES_MAX {
            state.waiting.push(datagram.into());
        }
    }

    fn send_to(&self, outside: &UdpSocket, datagram: &[u8]) {
        if let Ok(bytes) = outside.try_send(datagram) {
            self.bytes.count_sent(bytes);
        }
    }

    /// Sets the socket outside, and sends the waiting datagrams.
    async fn open(&self, outside: UdpSocket) {
        // A new socket accepts datagrams only after the runtime has seen that it is writable.
        let _ = outside.writable().await;
        let mut state = self.state();
        for datagram in std::mem::take(&mut state.waiting) {
            self.send_to(&outside, &datagram);
        }
        let _ = self.outside.set(outside);
    }
}

/// The flows of one socket inside, by the address of the program's socket.
#[derive(Default)]
struct Flows {
    all: HashMap<SocketAddr, (Arc<Flow>, AbortHandle)>,
    warned: Option<Instant>,
}

impl Flows {
    /// Ends the flow that has been idle longest.
    fn end_oldest(&mut self) {
        let oldest = self.all.iter().min_by_key(|(_, (flow, _))| flow.state().used);
        if let Some(from) = oldest.map(|(from, _)| *from)
            && let Some((_, task)) = self.all.remove(&from)
        {
            task.abort();
        }
    }

    /// Whether a message about this destination may be logged now.
    fn may_warn(&mut self) -> bool {
        let may = self.warned.is_none_or(|at| at.elapsed() >= WARN_EVERY);
        if may {
            self.warned = Some(Instant::now());
        }
        may
    }
}

impl<I: Instance> Door<I> {
    /// Carries datagrams until the instance has ended.
    pub async fn carry_datagrams(
        self: Arc<Self>,
        socket: OwnedFd,
        mut closed: watch::Receiver<()>,
    ) {
        let socket = std::net::UdpSocket::from(socket);
        let adopted = socket.set_nonblocking(true).and_then(|()| UdpSocket::from_std(socket));
        let inside = match adopted {
            Ok(inside) => Arc::new(inside),
            Err(error) => return self.warn(&error),
        };
        let mut flows = Flows::default();
        let mut turn = Turn::new();
        let mut has_ended = false;
        loop {
            tokio::select! {
                // Datagrams that arrived before the end are still carried.
                biased;
                ready = inside.readable() => if ready.is_err() { return },
                _ = closed.changed() => {
                    has_ended = true;
                    // The runtime checks once more for datagrams that it has not noticed.
                    tokio::task::yield_now().await;
                }
            }
            loop {
                let received = PIECE.with_borrow_mut(|piece| {
                    let (length, from) = inside.try_recv_from(piece)?;
                    self.forward(&piece[..length], from, &inside, &mut flows, &closed);
                    io::Result::Ok(length)
                });
                match received {
                    Ok(length) => turn.charge(1, length),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // A program did not accept an answer. Receiving has cleared the error.
                    Err(_) => turn.charge(1, 0),
                }
                if turn.is_over() {
                    turn = Turn::new();
                    tokio::task::yield_now().await;
                }
            }
            if has_ended {
                return;
            }
        }
    }

    /// Sends a datagram through the flow of its sender. Creates the flow if there is none.
    fn forward(
        self: &Arc<Self>,
        datagram: &[u8],
        from: SocketAddr,
        inside: &Arc<UdpSocket>,
        flows: &mut Flows,
        closed: &watch::Receiver<()>,
    ) {
        // The tasks of all flows end with the instance, but the sockets that they have opened can
        // still send.
        let has_ended = closed.has_changed().is_err();
        if let Some((flow, task)) = flows.all.get(&from)
            && (has_ended || !task.is_finished())
        {
            return flow.send(datagram);
        }
        if flows.all.len() >= CONNECTIONS_MAX {
            flows.all.retain(|_, (_, task)| !task.is_finished());
        }
        if flows.all.len() >= CONNECTIONS_MAX {
            // The flow was in use less than [`IDLE`] ago, so its program may still wait for an
            // answer.
            flows.end_oldest();
            if flows.may_warn() {
                self.warn(&format_args!(
                    "more than {CONNECTIONS_MAX} sockets send to it: the one that was idle longest \
                     receives no answers any more"
                ));
            }
        }
        let Some(places) = self.try_share() else {
            // This makes the place of the ended flow free for the next datagram.
            flows.end_oldest();
            if flows.may_warn() {
                self.warn(&"too many connections: datagrams are lost until others end");
            }
            return;
        };
        let flow = Flow::new(self.bytes.clone());
        flow.send(datagram);
        let carried =
            self.clone().answer(flow.clone(), inside.clone(), from, closed.clone(), places);
        let task = tokio::spawn(carried);
        flows.all.insert(from, (flow, task.abort_handle()));
    }

    /// Opens a flow, and carries its answers until the flow is idle or the instance has ended.
    async fn answer(
        self: Arc<Self>,
        flow: Arc<Flow>,
        inside: Arc<UdpSocket>,
        from: SocketAddr,
        mut closed: watch::Receiver<()>,
        _places: [Place; 2],
    ) {
        match within(CONNECT_TIMEOUT, self.open_outside()).await {
            Ok(outside) => flow.open(outside).await,
            Err(error) => return self.warn(&error),
        }
        let Some(outside) = flow.outside.get() else { return };
        let mut turn = Turn::new();
        let mut has_warned = false;
        loop {
            let idle_at = flow.state().used + IDLE;
            tokio::select! {
                biased;
                ready = outside.readable() => if ready.is_err() { return },
                () = tokio::time::sleep_until(idle_at) => {
                    if flow.state().used.elapsed() >= IDLE {
                        return;
                    }
                    continue;
                }
                _ = closed.changed() => return,
            }
            loop {
                let received = PIECE.with_borrow_mut(|piece| {
                    let length = outside.try_recv(piece)?;
                    flow.bytes.count_received(length);
                    // A program that reads too slowly loses datagrams.
                    let _ = inside.try_send_to(&piece[..length], from);
                    io::Result::Ok(length)
                });
                match received {
                    Ok(length) => {
                        flow.state().used = Instant::now();
                        turn.charge(1, length);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The destination, or a router on the way, refused an earlier datagram.
                    Err(error) => {
                        turn.charge(1, 0);
                        if !std::mem::replace(&mut has_warned, true) {
                            self.warn(&error);
                        }
                    }
                }
                if turn.is_over() {
                    turn = Turn::new();
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    /// A socket that sends only to the destination and receives only from it.
    async fn open_outside(&self) -> io::Result<UdpSocket> {
        let mut last = None;
        for address in self.addresses().await? {
            let any: SocketAddr = match address {
                SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
            };
            let socket = UdpSocket::bind(any).await?;
            match socket.connect(address).await {
                Ok(()) => return Ok(socket),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| io::Error::other("no address can be reached")))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use mote_spec::{Egress, FunctionName, Transport};

    use super::*;
    use crate::egress_doors::EgressShares;

    struct Alone {
        name: FunctionName,
        shares: EgressShares,
        said: Mutex<Vec<String>>,
    }

    impl Instance for Alone {
        fn function(&self) -> u64 {
            1
        }
        fn instance(&self) -> u64 {
            1
        }
        fn name(&self) -> &FunctionName {
            &self.name
        }
        fn shares(&self) -> &EgressShares {
            &self.shares
        }
        fn is_confined(&self) -> bool {
            false
        }
        fn own_api(&self, _: &Egress) -> Option<SocketAddr> {
            None
        }
        fn is_closed(&self, _: IpAddr) -> bool {
            false
        }
        fn warn(&self, text: &str) {
            self.said.lock().expect("not poisoned").push(text.to_owned());
        }
    }

    #[tokio::test]
    async fn the_log_says_that_more_sockets_than_permitted_send_to_one_destination() {
        let outside = UdpSocket::bind("127.0.0.1:0").await.expect("loopback");
        let port = outside.local_addr().expect("bound").port();
        let inside = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback");
        let door_address = inside.local_addr().expect("bound");
        let alone = Arc::new(Alone {
            name: FunctionName::new("f").expect("a name"),
            shares: EgressShares::default(),
            said: Mutex::default(),
        });
        let to = Egress { transport: Transport::Udp, host: "127.0.0.1".into(), port };
        let bytes = Arc::default();
        let door = Arc::new(Door { inside: alone.clone(), to, bytes });
        let (_open, closed) = watch::channel(());
        let carrying = tokio::spawn(door.carry_datagrams(inside.into(), closed));
        let mut sockets = Vec::new();
        let mut piece = [0; 16];
        // Each datagram arrives before the next socket sends, so the first flow is the longest
        // idle.
        for number in 0..CONNECTIONS_MAX + 3 {
            let socket = UdpSocket::bind("127.0.0.1:0").await.expect("loopback");
            socket.send_to(b"ask", door_address).await.expect("sent");
            outside.recv_from(&mut piece).await.expect("received");
            sockets.push(socket);
            let said = alone.said.lock().expect("not poisoned").len();
            assert_eq!(said, usize::from(number >= CONNECTIONS_MAX), "socket {number}");
        }
        let said = alone.said.lock().expect("not poisoned").concat();
        let expected = format!("127.0.0.1:{port}: more than {CONNECTIONS_MAX} sockets send to it");
        assert!(said.contains(&expected), "{said}");
        carrying.abort();
    }
}
