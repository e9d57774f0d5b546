//! Sends and receives datagrams in batches, so that one system call handles many of them.

use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, SockaddrIn6, SockaddrLike, recvmmsg};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg};

/// The number of datagrams that one call receives or sends. A larger number would save little, and
/// datagrams that arrive during a batch wait until the batch is handled.
pub(crate) const BATCH_MAX: usize = 64;
/// The largest datagram that is read. Each place in the buffer has one byte more, because the
/// kernel truncates longer datagrams and the front must not take a truncated request for a complete
/// one.
pub(crate) const RECEIVE_BYTES: usize = 2_048;
/// An outgoing buffer that has grown larger than this is freed once it is empty.
const KEEP_BYTES: usize = 256 << 10;

thread_local! {
    // Each call sets the pointers in the headers again, so the headers can be shared by all tasks
    // of a thread. Each address family has its own set, because the kernel stores the length of the
    // source address in a header, and the next call takes that length for the space available.
    static V4: RefCell<MultiHeaders<SockaddrIn>> =
        RefCell::new(MultiHeaders::preallocate(BATCH_MAX, None));
    static V6: RefCell<MultiHeaders<SockaddrIn6>> =
        RefCell::new(MultiHeaders::preallocate(BATCH_MAX, None));
}

/// The buffer for one batch of arriving datagrams. The kernel maps its pages when they are first
/// used, so a node with little traffic uses few of them.
pub(crate) struct Inbox {
    places: Vec<u8>,
    is_ipv4: bool,
}

impl Inbox {
    /// Makes a buffer for sockets of one address family.
    pub(crate) fn new(is_ipv4: bool) -> Self {
        Self { places: vec![0; BATCH_MAX * (RECEIVE_BYTES + 1)], is_ipv4 }
    }

    /// Receives up to [`BATCH_MAX`] datagrams without waiting, and returns their number. If it is
    /// smaller than [`BATCH_MAX`], the socket is empty. A length greater than [`RECEIVE_BYTES`]
    /// means that the datagram was truncated.
    pub(crate) fn receive(
        &mut self,
        socket: impl AsFd,
        take: impl FnMut(SocketAddr, &[u8]),
    ) -> io::Result<usize> {
        let fd = socket.as_fd();
        if self.is_ipv4 {
            V4.with_borrow_mut(|headers| receive(fd, headers, &mut self.places, take))
        } else {
            V6.with_borrow_mut(|headers| receive(fd, headers, &mut self.places, take))
        }
    }
}

fn receive<S: SockaddrLike + Copy + Into<SocketAddr>>(
    socket: BorrowedFd<'_>,
    headers: &mut MultiHeaders<S>,
    places: &mut [u8],
    mut take: impl FnMut(SocketAddr, &[u8]),
) -> io::Result<usize> {
    let mut places = places.as_chunks_mut::<{ RECEIVE_BYTES + 1 }>().0.iter_mut();
    let mut slices: [[IoSliceMut<'_>; 1]; BATCH_MAX] = std::array::from_fn(|_| {
        [IoSliceMut::new(places.next().expect("there is a place for each of a batch"))]
    });
    let flags = MsgFlags::MSG_DONTWAIT;
    let mut count = 0;
    for message in recvmmsg(socket.as_raw_fd(), headers, slices.iter_mut(), flags, None)? {
        count += 1;
        if let Some(peer) = message.address {
            // An empty datagram has no slice.
            take(peer.into(), message.iovs().next().unwrap_or_default());
        }
    }
    Ok(count)
}

/// Datagrams to send, in order. Their bytes are in one contiguous buffer that is reused.
#[derive(Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    datagrams: Vec<Datagram>,
    /// The number of `datagrams` that were sent or dropped.
    done: usize,
    /// The number of datagrams that the kernel has refused since the start.
    pub(crate) lost: u64,
}

/// One datagram: its destination and its position in the buffer.
#[derive(Debug, Clone, Copy)]
struct Datagram {
    peer: SocketAddr,
    start: usize,
    end: usize,
}

impl Outbox {
    /// Adds the bytes that `write` appends to the buffer as one datagram. Returns these bytes.
    pub(crate) fn write(&mut self, peer: SocketAddr, write: impl FnOnce(&mut Vec<u8>)) -> &[u8] {
        let start = self.bytes.len();
        write(&mut self.bytes);
        let end = self.bytes.len();
        self.datagrams.push(Datagram { peer, start, end });
        &self.bytes[start..end]
    }

    /// Appends a copy of a datagram.
    pub(crate) fn push(&mut self, peer: SocketAddr, datagram: &[u8]) {
        self.write(peer, |bytes| bytes.extend_from_slice(datagram));
    }

    /// The number of bytes of all messages.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing is left to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.done == self.datagrams.len()
    }

    /// Moves the bytes of all messages to `into`. Used for connections, where all messages have the
    /// same peer.
    pub(crate) fn take_bytes(&mut self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.bytes);
        self.clear();
    }

    /// Sends as many datagrams as the socket takes without waiting. A datagram that the kernel
    /// refuses is lost, which is normal for datagrams. [`ErrorKind::WouldBlock`] means that the
    /// socket is full and some datagrams are left.
    pub(crate) fn flush(&mut self, socket: impl AsFd) -> io::Result<()> {
        self.flush_with(|bytes, datagrams| {
            let mut parts: Vec<_> = datagrams
                .iter()
                .map(|datagram| {
                    let slice = [IoSlice::new(&bytes[datagram.start..datagram.end])];
                    let control = SendAncillaryBuffer::default();
                    (SocketAddrAny::from(datagram.peer), slice, control)
                })
                .collect();
            let mut headers: Vec<_> = parts
                .iter_mut()
                .map(|(peer, slice, control)| MMsgHdr::new_with_addr(peer, slice, control))
                .collect();
            Ok(sendmmsg(&socket, &mut headers, SendFlags::DONTWAIT)?)
        })
    }

    /// Like [`Outbox::flush`], with a `send` that sends one datagram to its peer.
    pub(crate) fn flush_one_by_one(
        &mut self,
        mut send: impl FnMut(SocketAddr, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        self.flush_with(|bytes, datagrams| {
            let Some(datagram) = datagrams.first() else { return Ok(0) };
            send(datagram.peer, &bytes[datagram.start..datagram.end]).map(|()| 1)
        })
    }

    /// Like [`Outbox::flush`], with a `send` that sends the first few of the given datagrams and
    /// returns how many it sent. `send` fails only if the first datagram failed.
    fn flush_with(
        &mut self,
        mut send: impl FnMut(&[u8], &[Datagram]) -> io::Result<usize>,
    ) -> io::Result<()> {
        let mut refused_before = false;
        while let Some(first) = self.datagrams.get(self.done) {
            let last = self.datagrams.len().min(self.done + BATCH_MAX);
            match send(&self.bytes, &self.datagrams[self.done..last]) {
                Ok(count) => {
                    self.done += count;
                    refused_before = false;
                }
                Err(error) => match after(&error, refused_before) {
                    ControlFlow::Break(()) => return Err(error),
                    ControlFlow::Continue(true) => refused_before = true,
                    ControlFlow::Continue(false) => {
                        tracing::debug!(%error, peer = %first.peer, "CoAP datagram not sent");
                        self.lost += 1;
                        self.done += 1;
                        refused_before = false;
                    }
                },
            }
        }
        self.clear();
        Ok(())
    }

    fn clear(&mut self) {
        self.done = 0;
        self.bytes.clear();
        self.datagrams.clear();
        if self.bytes.capacity() > KEEP_BYTES {
            *self = Self { lost: self.lost, ..Self::default() };
        }
    }

    /// Takes all datagrams out. Used by tests and the fuzzer.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn take(&mut self) -> Vec<(bytes::Bytes, SocketAddr)> {
        let copy = |datagram: &Datagram| {
            let bytes = &self.bytes[datagram.start..datagram.end];
            (bytes::Bytes::copy_from_slice(bytes), datagram.peer)
        };
        let all = self.datagrams[self.done..].iter().map(copy).collect();
        self.clear();
        all
    }
}

/// What to do after a sending error: wait, try the same datagram once more, or drop it.
fn after(error: &io::Error, refused_before: bool) -> ControlFlow<(), bool> {
    match error.kind() {
        ErrorKind::WouldBlock => ControlFlow::Break(()),
        // The kernel reports an ICMP error about an earlier datagram. It reports the error once and
        // sends nothing, so the datagram is tried again.
        ErrorKind::ConnectionRefused | ErrorKind::Interrupted => {
            ControlFlow::Continue(!refused_before)
        }
        _ => ControlFlow::Continue(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::unix::net::UnixDatagram;
    use std::time::Duration;

    fn socket(address: &str) -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    fn numbered(outbox: &mut Outbox, peer: SocketAddr, number: u16) {
        let bytes = number.to_be_bytes();
        assert_eq!(outbox.write(peer, |out| out.extend_from_slice(&bytes)), bytes);
    }

    fn expect(socket: &UdpSocket, numbers: impl Iterator<Item = u16>) {
        let mut buffer = [0; 16];
        for number in numbers {
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..length], number.to_be_bytes());
        }
    }

    #[test]
    fn bursts_are_taken_in_batches_with_their_sources() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (server, to) = socket(address);
            let clients = [socket(address), socket(address)];
            let mut inbox = Inbox::new(to.is_ipv4());
            for round in 0..2 {
                for number in 0..150u16 {
                    let (client, _) = &clients[usize::from(number % 2)];
                    client.send_to(&number.to_be_bytes(), to).unwrap();
                }
                let mut took = Vec::new();
                let mut take = |peer, bytes: &[u8]| took.push((peer, bytes.to_vec()));
                for expected in [BATCH_MAX, BATCH_MAX, 150 - 2 * BATCH_MAX] {
                    assert_eq!(inbox.receive(&server, &mut take).unwrap(), expected, "{round}");
                }
                let error = inbox.receive(&server, &mut take).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                let expected = (0..150u16).map(|number| {
                    (clients[usize::from(number % 2)].1, number.to_be_bytes().to_vec())
                });
                assert!(took.into_iter().eq(expected));
            }
            for length in [0, 1, RECEIVE_BYTES, RECEIVE_BYTES + 1, RECEIVE_BYTES + 2] {
                clients[0].0.send_to(&vec![7; length], to).unwrap();
            }
            let mut lengths = Vec::new();
            inbox.receive(&server, |_, bytes| lengths.push(bytes.len())).unwrap();
            assert_eq!(lengths, [0, 1, RECEIVE_BYTES, RECEIVE_BYTES + 1, RECEIVE_BYTES + 1]);
        }
    }

    #[test]
    fn all_leave_in_order_however_many() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (from, _) = socket(address);
            let (to, peer) = socket(address);
            let mut outbox = Outbox::default();
            for round in 0..3u16 {
                for number in 0..200 {
                    numbered(&mut outbox, peer, 200 * round + number);
                }
                outbox.flush(&from).unwrap();
                assert!(outbox.is_empty());
                expect(&to, 200 * round..200 * (round + 1));
            }
            assert_eq!(outbox.lost, 0);
        }
    }

    #[test]
    fn what_the_kernel_refuses_does_not_keep_back_the_others() {
        let (from, _) = socket("127.0.0.1:0");
        let (to, peer) = socket("127.0.0.1:0");
        let nowhere = (Ipv4Addr::LOCALHOST, 0).into();
        let everybody = (Ipv4Addr::BROADCAST, 9).into();
        let mut outbox = Outbox::default();
        numbered(&mut outbox, everybody, 0);
        for number in 1..=100 {
            numbered(&mut outbox, peer, number);
            if number % 10 == 0 {
                numbered(&mut outbox, nowhere, 0);
            }
        }
        outbox.flush(&from).unwrap();
        assert!(outbox.is_empty());
        assert_eq!(outbox.lost, 11);
        expect(&to, 1..=100);
    }

    #[test]
    fn a_refusal_of_an_earlier_datagram_costs_nothing() {
        let (from, _) = socket("127.0.0.1:0");
        let (to, peer) = socket("127.0.0.1:0");
        let (closed, port) = socket("127.0.0.1:0");
        drop(closed);
        from.connect(port).unwrap();
        // Over loopback, the refusal has already arrived when `send` returns.
        from.send(b"to nobody").unwrap();
        let mut outbox = Outbox::default();
        numbered(&mut outbox, peer, 1);
        numbered(&mut outbox, peer, 2);
        outbox.flush(&from).unwrap();
        assert_eq!(outbox.lost, 0);
        // `to` receives datagrams from any source.
        expect(&to, 1..=2);
    }

    #[test]
    fn what_a_full_socket_does_not_take_leaves_later() {
        // Loopback takes any number of UDP datagrams, but a Unix socket pair is full when its peer
        // does not read.
        let (from, to) = UnixDatagram::pair().unwrap();
        from.set_nonblocking(true).unwrap();
        to.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let peer = (Ipv4Addr::LOCALHOST, 1).into();
        let mut outbox = Outbox::default();
        for number in 0..2_000 {
            numbered(&mut outbox, peer, number);
        }
        // Like the system call, this closure sends the first few datagrams or fails on the first.
        let send = |bytes: &[u8], datagrams: &[Datagram]| {
            for (at, datagram) in datagrams.iter().enumerate() {
                match from.send(&bytes[datagram.start..datagram.end]) {
                    Err(error) if at == 0 => return Err(error),
                    Err(_) => return Ok(at),
                    Ok(_) => {}
                }
            }
            Ok(datagrams.len())
        };
        let mut full = 0;
        let mut read = 0;
        let mut buffer = [0; 16];
        while let Err(error) = outbox.flush_with(send) {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            assert!(!outbox.is_empty());
            full += 1;
            let length = to.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..length], u16::to_be_bytes(read));
            read += 1;
            // More datagrams are appended while the first ones wait.
            if full <= 10 {
                numbered(&mut outbox, peer, 1_999 + full);
            }
        }
        assert!(outbox.is_empty() && full > 10, "{full}");
        to.set_nonblocking(true).unwrap();
        while let Ok(length) = to.recv(&mut buffer) {
            assert_eq!(buffer[..length], read.to_be_bytes());
            read += 1;
        }
        assert_eq!((read, outbox.lost), (2_010, 0));
    }
}
