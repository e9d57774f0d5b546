//! A complete answer that is sent in pieces, as far as the engine's credit allows.

use bytes::Bytes;
use mote_core::openwhisk_action::Answer;
use mote_core::wire::{
    self, CHUNK_BYTES_MAX, FLAG_END, FrameKind, INLINE_BODY_BYTES_MAX, ResultHead, WINDOW_BYTES,
};

use crate::outbox::OUTBOX_BYTES_MAX;
use crate::sys;

/// See the module's documentation.
pub(crate) struct Delivery {
    pub(crate) stream: u32,
    rest: Bytes,
    window: u32,
}

impl Delivery {
    /// Sends RESULT. Returns `None` when nothing else remains to be sent.
    pub(crate) fn begin(
        outbox: &mut Vec<u8>,
        stream: u32,
        entered_ns: u64,
        answer: Answer,
    ) -> Option<Self> {
        let mut body = Bytes::from(answer.body);
        let rest = body.split_off(body.len().min(INLINE_BODY_BYTES_MAX));
        let head = ResultHead {
            entered_ns,
            returned_ns: sys::monotonic_ns(),
            status: answer.status,
            headers: Bytes::from(answer.fields),
            body,
        };
        head.put(outbox, stream, rest.is_empty());
        (!rest.is_empty()).then_some(Self { stream, rest, window: WINDOW_BYTES })
    }

    pub(crate) fn add_credit(&mut self, bytes: u32) {
        self.window = self.window.saturating_add(bytes);
    }

    /// Sends as much as the credit allows. Returns true once everything has been sent.
    pub(crate) fn pump(&mut self, outbox: &mut Vec<u8>) -> bool {
        while self.window > 0 && !self.rest.is_empty() && outbox.len() < OUTBOX_BYTES_MAX {
            let size = self.rest.len().min(CHUNK_BYTES_MAX).min(self.window as usize);
            let chunk = self.rest.split_to(size);
            self.window -= size as u32;
            let flags = if self.rest.is_empty() { FLAG_END } else { 0 };
            wire::put_frame(outbox, FrameKind::Body, flags, self.stream, &chunk);
        }
        self.rest.is_empty()
    }
}
