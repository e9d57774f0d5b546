//! A request, from its arrival until its answer.

use std::net::SocketAddr;

use crate::notices::Watch;
use mote_spec::FunctionName;

use super::blocks::Block;
use super::exchanges::Noted;
use super::message::{MessageType, Token};

/// Identifies a block-wise transfer by peer, method code, path, query, and a value that
/// distinguishes requests in which all of these are equal. The value comes from the Request-Tag, or
/// is a hash of the payload of FETCH.
pub(crate) type TransferKey = (SocketAddr, u8, Vec<u8>, Vec<u8>, u64);

/// The receiver of an answer, and what its request asked for.
#[derive(Clone)]
pub(crate) struct Recipient {
    pub(crate) peer: SocketAddr,
    pub(crate) code: u8,
    pub(crate) token: Token,
    pub(crate) path: Vec<u8>,
    pub(crate) query: Vec<u8>,
    /// See [`TransferKey`].
    pub(crate) discriminator: u64,
    pub(crate) block2: Option<Block>,
    /// The number of bytes that may be sent to this source. `None` means no limit.
    pub(crate) limit: Option<usize>,
}

impl Recipient {
    /// A recipient whose request has been read only up to the message header.
    pub(crate) fn of(peer: SocketAddr, code: u8, token: Token, limit: Option<usize>) -> Self {
        let path = Vec::new();
        let query = Vec::new();
        Self { peer, code, token, path, query, discriminator: 0, block2: None, limit }
    }

    /// The key of the transfer. Made only for block-wise transfers, because most exchanges have one
    /// message in each direction.
    pub(crate) fn transfer(&self, discriminator: u64) -> TransferKey {
        (self.peer, self.code, self.path.clone(), self.query.clone(), discriminator)
    }

    /// Whether the request may run twice: GET and FETCH.
    pub(crate) fn is_safe(&self) -> bool {
        matches!(self.code, 1 | 5)
    }
}

/// A request, from its arrival until its answer.
pub(crate) struct Exchange {
    /// `None` over TCP, where no message arrives twice.
    pub(crate) noted: Option<Noted>,
    /// A serial number that is never reused, unlike the exchange's id.
    pub(crate) serial: u64,
    pub(crate) kind: MessageType,
    pub(crate) mid: u16,
    pub(crate) method: &'static [u8],
    pub(crate) function: Option<FunctionName>,
    pub(crate) accept: Option<u16>,
    pub(crate) block1: Option<Block>,
    pub(crate) acked: bool,
    /// Set if the request asks to observe its resource. The resource is watched from this moment
    /// on.
    pub(crate) watch: Option<Box<Watch>>,
    pub(crate) to: Recipient,
}
