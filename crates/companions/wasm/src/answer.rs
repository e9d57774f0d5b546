//! Sends the answer of an invocation, in as few frames as possible.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body::Body as _;
use mote_core::wire::{
    self, CHUNK_BYTES_MAX, FLAG_END, FrameKind, HEADERS_BYTES_MAX, INLINE_BODY_BYTES_MAX,
    ResultHead,
};
use mote_process::clock::now_ns;
use wasmtime_wasi_http::p2::body::HyperOutgoingBody;

use crate::link::{Link, Window, lock};

/// Fields that the node sets itself.
const FRAMING: [header::HeaderName; 6] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// An answer on its way. Until its head is sent, it collects the first part of the body, so that a
/// short answer is one frame.
pub(crate) struct Sender {
    link: Arc<Link>,
    stream: u32,
    window: Arc<Window>,
    entered_ns: u64,
    status: u16,
    fields: Vec<u8>,
    first: Vec<u8>,
    pub(crate) has_begun: bool,
}

impl Sender {
    pub(crate) fn new(link: &Arc<Link>, stream: u32, window: Arc<Window>, entered_ns: u64) -> Self {
        Self {
            link: link.clone(),
            stream,
            window,
            entered_ns,
            status: 200,
            fields: Vec::new(),
            first: Vec::new(),
            has_begun: false,
        }
    }

    /// Sets status and fields. Returns the problem if they are not allowed.
    pub(crate) fn head(&mut self, status: u16, headers: &HeaderMap) -> Result<(), String> {
        if !(200..600).contains(&status) {
            return Err(format!("the status of an answer is 200 to 599, not {status}"));
        }
        let names = headers.len();
        if names > wire::HEADER_FIELDS_MAX {
            return Err(format!("the answer has {names} header fields"));
        }
        self.status = status;
        for (name, value) in headers {
            if FRAMING.contains(name) || matches!(name.as_str(), "keep-alive" | "proxy-connection")
            {
                continue;
            }
            self.field(name.as_str().as_bytes(), value.as_bytes());
        }
        match self.fields.len() > HEADERS_BYTES_MAX {
            true => Err("the header fields of the answer are longer than 64 KiB".to_owned()),
            false => Ok(()),
        }
    }

    fn field(&mut self, name: &[u8], value: &[u8]) {
        for part in [name, b"\n", value, b"\n"] {
            self.fields.extend_from_slice(part);
        }
    }

    /// The output of a program has no head, so the type of the text is guessed.
    pub(crate) fn guess_type(&mut self) {
        if self.has_begun || !self.fields.is_empty() || self.first.is_empty() {
            return;
        }
        let kind: &[u8] = match std::str::from_utf8(&self.first) {
            Ok(_) => b"text/plain; charset=utf-8",
            // The text may continue after the part that was collected.
            Err(error) if error.error_len().is_none() => b"text/plain; charset=utf-8",
            Err(_) => b"application/octet-stream",
        };
        self.field(b"content-type", kind);
    }

    pub(crate) fn window(&self) -> Arc<Window> {
        self.window.clone()
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.first.is_empty()
    }

    /// The number of bytes that [`add`](Self::add) takes now.
    pub(crate) fn room(&self) -> usize {
        if !self.has_begun && self.first.len() < INLINE_BODY_BYTES_MAX {
            return INLINE_BODY_BYTES_MAX - self.first.len();
        }
        self.window.left().min(CHUNK_BYTES_MAX)
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        if !self.has_begun && self.first.len() + bytes.len() <= INLINE_BODY_BYTES_MAX {
            self.first.extend_from_slice(bytes);
            return;
        }
        self.flush();
        self.window.take(bytes.len());
        self.link.put(|out| wire::put_frame(out, FrameKind::Body, 0, self.stream, bytes));
    }

    /// Sends what was collected.
    pub(crate) fn flush(&mut self) {
        if !self.has_begun {
            self.send_head(false);
        }
    }

    /// Ends the answer.
    pub(crate) fn finish(&mut self) {
        if self.has_begun {
            self.link.put(|out| wire::put_frame(out, FrameKind::Body, FLAG_END, self.stream, &[]));
        } else {
            self.send_head(true);
        }
    }

    fn send_head(&mut self, is_end: bool) {
        self.guess_type();
        self.has_begun = true;
        let head = ResultHead {
            entered_ns: self.entered_ns,
            returned_ns: now_ns(),
            status: self.status,
            headers: Bytes::from(std::mem::take(&mut self.fields)),
            body: Bytes::from(std::mem::take(&mut self.first)),
        };
        self.link.put(|out| head.put(out, self.stream, is_end));
    }
}

/// Passes on the body of an answer until it ends. `progress` is set whenever the guest can continue.
pub(crate) async fn pass(
    mut body: HyperOutgoingBody,
    sender: &Mutex<Sender>,
    progress: &AtomicBool,
) -> Result<(), String> {
    loop {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
        progress.store(true, Ordering::Relaxed);
        let mut bytes = match frame {
            None => return Ok(()),
            Some(Err(error)) => {
                return Err(format!("the body of the answer ended early: {error:?}"));
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(bytes) => bytes,
                Err(_trailers) => continue,
            },
        };
        while !bytes.is_empty() {
            let room = lock(sender).room();
            if room == 0 {
                lock(sender).flush();
                let window = lock(sender).window();
                window.changed.notified().await;
                continue;
            }
            let piece = bytes.split_to(bytes.len().min(room));
            lock(sender).add(&piece);
        }
    }
}
