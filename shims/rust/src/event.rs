//! One call, as the handler sees it.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use crate::services::{self, CallOptions, Error, Kv, NotifyOptions, Publish, Reply};
use crate::wire::{frame, Kind, CHUNK_BYTES_MAX, WINDOW_BYTES};
use crate::worker::{lock, waited, Call, Worker};

/// The longest line of a log.
const LINE_BYTES_MAX: usize = 16 << 10;
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// How a call came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trigger {
    Http,
    Coap,
    /// `mote invoke`.
    Admin,
    Schedule,
    Mqtt,
    /// Another function, or a chain.
    Function,
    /// One that this library does not know.
    Other,
}

/// The level of a line in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Debug = 1,
    Info = 2,
    Warn = 3,
    Error = 4,
}

/// A call. It can be moved to another thread. The call's answer is the value that the handler
/// returns.
pub struct Event {
    pub(crate) worker: Arc<Worker>,
    pub(crate) call: Arc<Call>,
    /// The rest of a chunk of the body, of which a reader has taken a part.
    pub(crate) rest: Vec<u8>,
}

impl Event {
    /// The method, or for CoAP and MQTT the method for which the message stands.
    pub fn method(&self) -> &str {
        &self.call.head.method
    }

    /// The path below the function's own address. It begins with `/`.
    pub fn path(&self) -> &str {
        &self.call.head.path
    }

    /// The query without `?`.
    pub fn query(&self) -> &str {
        &self.call.head.query
    }

    /// All header fields, with names in lower case.
    pub fn headers(&self) -> &[(String, String)] {
        &self.call.head.headers
    }

    /// The first field with this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.headers().iter();
        let found = fields.find(|(field, _)| field.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The rest of the body. Waits until it has arrived, and fails if it does not arrive
    /// completely.
    pub fn body(&mut self) -> io::Result<Vec<u8>> {
        let mut all = std::mem::take(&mut self.rest);
        while let Some(chunk) = self.chunk()? {
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }

    /// The rest of the body as text.
    pub fn text(&mut self) -> io::Result<String> {
        let wrong = |_| io::Error::new(io::ErrorKind::InvalidData, "the body is not UTF-8");
        String::from_utf8(self.body()?).map_err(wrong)
    }

    /// The rest of the body as JSON.
    pub fn json(&mut self) -> io::Result<serde_json::Value> {
        Ok(serde_json::from_slice(&self.body()?)?)
    }

    /// The id of the call, as in the answer's field `mote-invocation` and in the logs.
    pub fn id(&self) -> String {
        let id = self.call.head.id;
        let letters = (0..26).rev().map(|at| ALPHABET[(id >> (5 * at)) as usize & 31]);
        letters.map(char::from).collect()
    }

    /// How the call came in.
    pub fn trigger(&self) -> Trigger {
        match self.call.head.trigger {
            1 => Trigger::Http,
            2 => Trigger::Coap,
            3 => Trigger::Admin,
            4 => Trigger::Schedule,
            5 => Trigger::Mqtt,
            6 => Trigger::Function,
            _ => Trigger::Other,
        }
    }

    /// The time left until the deadline.
    pub fn remaining(&self) -> std::time::Duration {
        let left = self.call.head.deadline_ns.saturating_sub(crate::worker::now_ns());
        std::time::Duration::from_nanos(left)
    }

    /// The name of the function.
    pub fn function(&self) -> &str {
        &self.worker.loaded().function
    }

    /// The number of the revision.
    pub fn revision(&self) -> u64 {
        self.worker.loaded().revision
    }

    /// Whether nobody waits for the answer any longer. Long work should check this from time to
    /// time.
    pub fn is_cancelled(&self) -> bool {
        self.call.is_cancelled.load(Ordering::Relaxed)
    }

    /// Blocks until nobody waits for the answer any longer.
    pub fn wait_cancelled(&self) {
        let mut flow = lock(&self.call.flow);
        while !self.is_cancelled() {
            flow = waited(&self.call.changed, flow);
        }
    }

    /// Writes lines of this call to the function's log.
    pub fn log(&self, level: Level, text: impl AsRef<str>) {
        const LOGGER: u8 = 3;
        let stream = self.call.stream_now();
        for line in text.as_ref().lines() {
            let bytes = &line.as_bytes()[..line.len().min(LINE_BYTES_MAX)];
            self.worker.send(&frame(Kind::Log, false, stream, &[&[LOGGER, level as u8], bytes]));
        }
    }

    /// The function's state. Each operation on it waits for the node.
    pub fn kv(&self) -> Kv<'_> {
        Kv { event: self, namespace: String::new() }
    }

    /// Calls another function, which the manifest must allow, and waits for its answer.
    pub fn call(
        &self,
        function: &str,
        body: impl AsRef<[u8]>,
        options: &CallOptions,
    ) -> Result<Reply, Error> {
        services::call(self, function, body.as_ref(), options)
    }

    /// Publishes the state of one of the function's resources to its observers. Without a state, the
    /// node asks the function for it. `path` may have a query. Returns the number of observers.
    pub fn notify(
        &self,
        path: &str,
        state: Option<&[u8]>,
        options: &NotifyOptions,
    ) -> Result<u32, Error> {
        services::notify(self, path, state, options)
    }

    /// Publishes a message over MQTT, and waits for the broker.
    pub fn publish(&self, message: &Publish<'_>) -> Result<(), Error> {
        services::publish(self, message)
    }

    /// The next chunk of the body; `None` at its end.
    fn chunk(&self) -> io::Result<Option<Vec<u8>>> {
        let mut flow = lock(&self.call.flow);
        loop {
            if self.is_cancelled() {
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the caller is gone"));
            }
            if let Some((chunk, counts)) = flow.chunks.pop_front() {
                flow.owed += if counts { chunk.len() } else { 0 };
                let owed =
                    if flow.has_ended || flow.owed < WINDOW_BYTES / 4 { 0 } else { flow.owed };
                if owed > 0 {
                    flow.owed = 0;
                    drop(flow);
                    let credit = (owed as u32).to_le_bytes();
                    let stream = self.call.head_stream;
                    self.worker.send(&frame(Kind::Credit, false, stream, &[&credit]));
                }
                debug_assert!(chunk.len() <= CHUNK_BYTES_MAX);
                return Ok(Some(chunk));
            }
            if flow.has_ended {
                return Ok(None);
            }
            flow = waited(&self.call.changed, flow);
        }
    }
}

/// Reads the body as it arrives.
impl io::Read for Event {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.chunk()? {
                Some(chunk) => self.rest = chunk,
                None => return Ok(0),
            }
        }
        let taken = self.rest.len().min(buffer.len());
        buffer[..taken].copy_from_slice(&self.rest[..taken]);
        self.rest.drain(..taken);
        Ok(taken)
    }
}
