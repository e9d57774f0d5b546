//! An instance's outputs: lines for the log, and the answer of a program.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use mote_core::wire::LOG_LINE_BYTES_MAX;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};

use crate::answer::Sender;
use crate::link::{Link, lock};

/// Source and level of lines in LOG frames.
pub(crate) const STDOUT: [u8; 2] = [1, 2];
pub(crate) const STDERR: [u8; 2] = [2, 2];
/// Bytes that a guest may write at once.
const WRITE_BYTES: usize = 64 << 10;
/// Bytes of the last line that are kept for the text of an error.
const LAST_BYTES: usize = 512;

/// An output whose lines become the log of the invocation. All streams of an instance to the same
/// output share one.
#[derive(Clone)]
pub(crate) struct Lines(Arc<Shared>);

struct Shared {
    link: Arc<Link>,
    stream: u32,
    source: [u8; 2],
    text: Mutex<Text>,
}

#[derive(Default)]
struct Text {
    /// The beginning of a line that is not complete.
    line: Vec<u8>,
    last: Vec<u8>,
}

impl Lines {
    pub(crate) fn new(link: &Arc<Link>, stream: u32, source: [u8; 2]) -> Self {
        Self(Arc::new(Shared { link: link.clone(), stream, source, text: Mutex::default() }))
    }

    fn add(&self, bytes: &[u8]) {
        let mut text = lock(&self.0.text);
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let piece = part.strip_suffix(b"\n").unwrap_or(part);
            let room = LOG_LINE_BYTES_MAX - text.line.len();
            text.line.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.len() < part.len() {
                self.send(&mut text);
            }
        }
    }

    fn send(&self, text: &mut Text) {
        let line = text.line.strip_suffix(b"\r").unwrap_or(&text.line);
        if !line.is_empty() {
            self.0.link.line(self.0.stream, self.0.source, line);
            text.last = line[..line.len().min(LAST_BYTES)].to_vec();
        }
        text.line.clear();
    }

    /// Sends the unfinished line. Returns the last line.
    pub(crate) fn finish(&self) -> String {
        let mut text = lock(&self.0.text);
        self.send(&mut text);
        String::from_utf8_lossy(&text.last).into_owned()
    }
}

impl IsTerminal for Lines {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Lines {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        // Only preview 3 asks for this form, and preview 3 is not linked.
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Lines {
    async fn ready(&mut self) {
        self.0.link.room().await;
    }
}

impl OutputStream for Lines {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        if bytes.len() > WRITE_BYTES {
            return Err(StreamError::trap("a write is longer than permitted"));
        }
        self.add(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(if self.0.link.has_room() { WRITE_BYTES } else { 0 })
    }
}

/// The standard output of a program, which is its answer.
#[derive(Clone)]
pub(crate) struct Stdout(pub(crate) Arc<Mutex<Sender>>);

impl IsTerminal for Stdout {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Stdout {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Stdout {
    async fn ready(&mut self) {
        loop {
            let window = {
                let mut sender = lock(&self.0);
                if sender.room() > 0 {
                    return;
                }
                // The node grants further bytes only for bytes that it has received.
                sender.flush();
                sender.window()
            };
            window.changed.notified().await;
        }
    }
}

impl OutputStream for Stdout {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        let mut sender = lock(&self.0);
        if bytes.len() > sender.room() {
            return Err(StreamError::trap("a write is longer than permitted"));
        }
        sender.add(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(lock(&self.0).room())
    }
}
