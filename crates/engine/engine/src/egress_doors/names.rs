//! Answers look-ups of names for functions that may reach any host.
//!
//! The sandbox has no route to a name server. Instead, programs send their questions (RFC 1035,
//! over UDP) to a socket in the sandbox, and the node looks the names up as it does for itself.
//! Answers contain only IPv4 addresses, because the sandbox delivers no other connections.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use mote_core::turn::Turn;
use tokio::net::UdpSocket;
use tokio::sync::{Semaphore, watch};

use crate::egress_doors::{Instance, lookups};

/// How many look-ups of one instance may be under way at once. Further questions are dropped, and
/// the program asks again.
const LOOKUPS_MAX: usize = 16;
/// The maximum length of a question without extensions. A longer message is cut off, so it cannot
/// be parsed.
const QUESTION_BYTES_MAX: usize = 1_024;
/// How long an answer may be cached, in seconds.
const KEEP_S: u32 = 30;
/// The maximum number of addresses in one answer, so that the answer fits in 512 bytes (RFC 1035,
/// 4.2.1).
const ADDRESSES_MAX: usize = 12;

const TYPE_A: u16 = 1;
const CLASS_IN: u16 = 1;

/// How a question is answered (RFC 1035, 4.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Code {
    Found = 0,
    Failed = 2,
    NoSuchName = 3,
}

pub struct Names<I>(pub Arc<I>);

impl<I: Instance> Names<I> {
    /// Answers questions until the instance has ended.
    pub async fn serve(self, socket: OwnedFd, mut closed: watch::Receiver<()>) {
        let socket = std::net::UdpSocket::from(socket);
        let adopted = socket.set_nonblocking(true).and_then(|()| UdpSocket::from_std(socket));
        let Ok(socket) = adopted else { return };
        let names = Arc::new(self);
        let socket = Arc::new(socket);
        let places = Arc::new(Semaphore::new(LOOKUPS_MAX));
        let mut buffer = [0; QUESTION_BYTES_MAX];
        let mut turn = Turn::new();
        loop {
            let received = tokio::select! {
                received = socket.recv_from(&mut buffer) => received,
                _ = closed.changed() => return,
            };
            let Ok((length, from)) = received else { continue };
            turn.charge(1, length);
            if turn.is_over() {
                turn = Turn::new();
                tokio::task::yield_now().await;
            }
            let Some(question) = Question::read(&buffer[..length]) else { continue };
            let Ok(place) = places.clone().try_acquire_owned() else { continue };
            let names = names.clone();
            let socket = socket.clone();
            tokio::spawn(async move {
                let _place = place;
                let answer = names.answer(&question).await;
                let _ = socket.send_to(&answer, from).await;
            });
        }
    }

    async fn answer(&self, question: &Question) -> Vec<u8> {
        if question.kind != TYPE_A {
            return question.answer(Code::Found, &[]);
        }
        let rooms = self.0.shares().get();
        let share = (&rooms.lookups, self.0.function());
        match lookups::addresses_of(&question.name, share).await {
            Ok(addresses) => question.answer(Code::Found, &addresses),
            Err(error) => {
                let text = error.to_string();
                tracing::debug!(
                    function = %self.0.name(),
                    instance = self.0.instance(),
                    name = %question.name,
                    "name not found: {text}"
                );
                // Only the text of the resolver's error shows whether the name server answered.
                let is_answered = text.contains("not known") || text.contains("No address");
                question.answer(if is_answered { Code::NoSuchName } else { Code::Failed }, &[])
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Question {
    id: [u8; 2],
    name: String,
    kind: u16,
    /// The question as it was sent: name, type and class.
    bytes: Vec<u8>,
}

impl Question {
    /// Reads a query with one question; `None` for anything else.
    fn read(message: &[u8]) -> Option<Self> {
        let header = message.first_chunk::<12>()?;
        let is_query = header[2] & 0xf8 == 0; // a query, not a response, with the standard operation
        let has_one = header[4..6] == [0, 1];
        if !is_query || !has_one {
            return None;
        }
        let mut name = String::new();
        let mut at = 12;
        loop {
            let length = usize::from(*message.get(at)?);
            at += 1;
            if length == 0 {
                break;
            }
            // A larger length would be a pointer, which no question needs.
            let label = message.get(at..at + length).filter(|_| length <= 63)?;
            let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
            if !label.iter().all(plain) {
                return None;
            }
            if !name.is_empty() {
                name.push('.');
            }
            name.push_str(std::str::from_utf8(label).ok()?);
            at += length;
        }
        let tail = message.get(at..at + 4)?;
        let number = |at: usize| u16::from_be_bytes([tail[at], tail[at + 1]]);
        let good = !name.is_empty() && name.len() <= 253 && number(2) == CLASS_IN;
        good.then(|| Self {
            id: [header[0], header[1]],
            name,
            kind: number(0),
            bytes: message[12..at + 4].to_vec(),
        })
    }

    fn answer(&self, code: Code, addresses: &[Ipv4Addr]) -> Vec<u8> {
        let addresses = &addresses[..addresses.len().min(ADDRESSES_MAX)];
        let mut message = Vec::with_capacity(12 + self.bytes.len() + addresses.len() * 16);
        message.extend_from_slice(&self.id);
        // A response to a recursive query, with recursion available.
        message.extend_from_slice(&[0x81, 0x80 | code as u8]);
        message.extend_from_slice(&[0, 1, 0, addresses.len() as u8, 0, 0, 0, 0]);
        message.extend_from_slice(&self.bytes);
        for address in addresses {
            // The name is a pointer to the name in the question, at byte 12.
            message.extend_from_slice(&[0xc0, 12]);
            message.extend_from_slice(&TYPE_A.to_be_bytes());
            message.extend_from_slice(&CLASS_IN.to_be_bytes());
            message.extend_from_slice(&KEEP_S.to_be_bytes());
            message.extend_from_slice(&4_u16.to_be_bytes());
            message.extend_from_slice(&address.octets());
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A query for `a.example`, type A, with recursion desired.
    const QUERY: &[u8] =
        b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x07example\x00\x00\x01\x00\x01";

    #[test]
    fn questions_are_read_and_answered() {
        let question = Question::read(QUERY).expect("a question");
        assert_eq!((question.name.as_str(), question.kind), ("a.example", TYPE_A));
        let answer = question.answer(Code::Found, &[Ipv4Addr::new(192, 0, 2, 7)]);
        assert_eq!(&answer[..2], b"\x12\x34");
        assert_eq!(&answer[2..8], [0x81, 0x80, 0, 1, 0, 1]);
        assert_eq!(&answer[12..27], &QUERY[12..]);
        assert_eq!(&answer[27..], b"\xc0\x0c\0\x01\0\x01\0\0\0\x1e\0\x04\xc0\0\x02\x07");
        assert_eq!(question.answer(Code::NoSuchName, &[])[3] & 15, 3);
        let many = question.answer(Code::Found, &[Ipv4Addr::LOCALHOST; 100]);
        assert!(many.len() <= 512, "{} bytes", many.len());
    }

    #[test]
    fn what_is_no_question_is_not_answered() {
        for cut in 0..QUERY.len() {
            assert_eq!(Question::read(&QUERY[..cut]), None, "{cut} bytes");
        }
        let changed = |at: usize, byte: u8| {
            let mut message = QUERY.to_vec();
            message[at] = byte;
            Question::read(&message)
        };
        assert_eq!(changed(2, 0x81), None, "a response");
        assert_eq!(changed(5, 2), None, "two questions");
        assert_eq!(changed(12, 0xc0), None, "a pointer");
        assert_eq!(changed(13, b'\n'), None, "a control character");
        assert_eq!(changed(26, 3), None, "another class");
    }
}
