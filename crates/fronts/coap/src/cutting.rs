//! Cuts an answer so that it fits into one message (RFC 7959; for messages over TCP, RFC 8323, 6).

use super::blocks::{Block, SIZE_EXPONENT_MAX};
use super::message::{DATAGRAM_BYTES_MAX, MessageType, Response};
use super::stream;

/// The size exponent that stands for several blocks of 1,024 bytes in one message (RFC 8323, 6).
pub(crate) const BERT: u8 = 7;

/// The kind of message, which determines how much one message may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Frame {
    Datagram,
    /// A datagram of a session. The peer has proved its address and its identity.
    Session,
    /// A message over TCP. `bytes_max` is the largest message that the peer reads, and `bert` says
    /// whether the peer reads several blocks in one message.
    Stream {
        bytes_max: usize,
        bert: bool,
    },
}

impl Frame {
    /// The largest size exponent that an answer may use.
    pub(crate) fn exponent_max(self) -> u8 {
        match self {
            Frame::Stream { bert: true, .. } => BERT,
            _ => SIZE_EXPONENT_MAX,
        }
    }

    /// The longest payload that can be sent without blocks, if the whole message fits.
    fn whole_max(self, exponent: u8) -> usize {
        match self {
            Frame::Datagram | Frame::Session => 16 << exponent,
            Frame::Stream { bytes_max, .. } => bytes_max,
        }
    }

    /// Whether a response fits into one message and stays within `limit`.
    pub(crate) fn fits(self, response: &Response, limit: Option<usize>, token: &[u8]) -> bool {
        let bytes_max = match self {
            Frame::Datagram | Frame::Session => {
                limit.unwrap_or(DATAGRAM_BYTES_MAX).min(DATAGRAM_BYTES_MAX)
            }
            Frame::Stream { bytes_max, .. } => bytes_max,
        };
        // The message is encoded only if the estimate is too large to decide.
        response.bytes_max() <= bytes_max || {
            let mut bytes = Vec::new();
            match self {
                Frame::Datagram | Frame::Session => {
                    response.encode(&mut bytes, MessageType::Con, 0, token)
                }
                Frame::Stream { .. } => stream::encode(response, &mut bytes, token),
            }
            bytes.len() <= bytes_max
        }
    }

    /// Whether a response can be sent without being cut.
    pub(crate) fn is_whole(
        self,
        response: &Response,
        (block2, limit): (Option<Block>, Option<usize>),
        token: &[u8],
    ) -> bool {
        let exponent = block2.map_or(SIZE_EXPONENT_MAX, |block| block.size_exponent);
        // An error is sent as a whole, because blocks are only for answers (RFC 7959, 2.4). 2.31
        // (Continue) is also sent as a whole, because it answers a block of the request and is not
        // part of the answer (RFC 7959, 2.9.1).
        let may_be = block2.is_none() || response.code.0 > 2 || response.code == (2, 31);
        may_be
            && response.payload.len() <= self.whole_max(exponent.min(SIZE_EXPONENT_MAX))
            && self.fits(response, limit, token)
    }

    /// Cuts one block from an answer. A block beyond the end of the answer gets a 4.00 (RFC 7959,
    /// 2.4).
    pub(crate) fn block_of(self, response: &Response, wanted: Block, exponent: u8) -> Response {
        let unit = 16usize << exponent.min(SIZE_EXPONENT_MAX);
        let size = match self {
            Frame::Stream { bytes_max, .. } if exponent == BERT => {
                let room = bytes_max.saturating_sub(response.bytes_max() - response.payload.len());
                (room / unit).max(1) * unit
            }
            _ => unit,
        };
        // If the block is smaller than requested, its number changes so that its offset stays the
        // same.
        let offset = (wanted.number as usize) << (4 + wanted.size_exponent.min(SIZE_EXPONENT_MAX));
        let length = response.payload.len();
        if offset >= length && wanted.number > 0 {
            return Response::diagnostic((4, 0), "block is beyond the end of the answer");
        }
        let end = (offset + size).min(length);
        Response {
            block2: Some(Block {
                number: (offset / unit) as u32,
                more: end < length,
                size_exponent: exponent,
            }),
            size2: (offset == 0 && end < length)
                .then_some(u32::try_from(length).unwrap_or(u32::MAX)),
            payload: response.payload.slice(offset..end),
            ..response.clone()
        }
    }
}
