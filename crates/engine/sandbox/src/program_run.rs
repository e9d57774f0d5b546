//! One program that runs for one invocation: its pipes, its answer so far, and its end.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use bytes::{Buf, Bytes};
use mote_core::invocation::{headers, put_header};
use mote_core::services::URL_VARIABLE;
use mote_core::wire::{
    self, CHUNK_BYTES_MAX, FLAG_END, FrameKind, INLINE_BODY_BYTES_MAX, Invoke, ResultHead,
    WINDOW_BYTES, WorkerError,
};
use mote_core::{InvocationId, openwhisk_action as whisk};
use mote_spec::{OWN_FRONT, SERVICES_PORT};

use crate::contract::Contract;
use crate::delivery::Delivery;
use crate::log_lines::{LogLines, drain, put_line};
use crate::outbox::{OUTBOX_BYTES_MAX, put_credit, put_error, raw};
use crate::spawn::{Child, Command, Stdio};
use crate::sys;

/// The longest argument that the kernel accepts. A longer line is passed on stdin only.
const ARGUMENT_BYTES_MAX: usize = 128 << 10;
/// An answer is held back until the program ends, but no longer than this after its first byte.
const SOON_NS: u64 = 100_000_000;
/// The maximum number of bytes in status and header lines. Any further bytes are ignored.
const HEAD_BYTES_MAX: usize = 32 << 10;
const STATUS_DEFAULT: u16 = 200;
/// Source and level of a program's output in LOG frames.
pub(crate) const LOG_STDOUT_INFO: [u8; 2] = [1, 2];
pub(crate) const LOG_STDERR_INFO: [u8; 2] = [2, 2];
/// The longest result of an action. The lines that the action prints before the result are the log.
const RESULT_BYTES_MAX: usize = 2 << 20;

/// A request body that is being written to stdin.
pub(crate) struct Input {
    chunks: VecDeque<Bytes>,
    pub(crate) ended: bool,
    /// The line with which an action is called, in place of the body.
    pub(crate) line: Option<String>,
}

impl Input {
    /// An empty input. `ended` says that no bytes follow.
    pub(crate) fn empty(ended: bool) -> Self {
        Self { chunks: VecDeque::new(), ended, line: None }
    }

    /// A complete input whose text was made by this module.
    fn whole(text: String) -> Self {
        let mut input = Self::empty(false);
        input.push(Bytes::from(text), true);
        input
    }

    /// Joins `first` and all bytes of the input after it.
    pub(crate) fn behind(&self, first: &[u8]) -> Vec<u8> {
        let rest = self.chunks.iter().flat_map(|chunk| chunk.iter());
        first.iter().chain(rest).copied().collect()
    }

    pub(crate) fn push(&mut self, chunk: Bytes, end: bool) {
        if !chunk.is_empty() {
            self.chunks.push_back(chunk);
        }
        self.ended |= end;
    }
}

/// See the module's documentation.
pub(crate) struct Run {
    stream: u32,
    child: Child,
    wait_status: Option<i32>,
    cancelled: bool,
    input: Input,
    /// Bytes at the beginning of `input` that arrived inside INVOKE. They earn no credit.
    inline_left: usize,
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    head: Option<OwnedFd>,
    head_text: Vec<u8>,
    lines: LogLines,
    body: Vec<u8>,
    /// Whether RESULT has been sent.
    answered: bool,
    window: u32,
    /// Number of bytes that were read from stdout.
    written: usize,
    /// Whether the start of the program has been logged.
    announced: bool,
    entered_ns: u64,
    first_output_ns: Option<u64>,
    contract: Contract,
    /// The media type that the contract prescribes.
    content_type: Option<Vec<u8>>,
    /// The state of reading stdout. Only actions have it.
    action: Option<ActionOutput>,
    /// The rest of an answer that was complete before sending began.
    delivery: Option<Delivery>,
}

/// Adds the invocation's id to the address of the node's services, if there is one. This way, the
/// program need not send the id with each request.
fn name_invocation(env: &mut [CString], id: u128) {
    let prefix = format!("{URL_VARIABLE}=http://{}:{SERVICES_PORT}/", OWN_FRONT.0);
    if let Some(one) = env.iter_mut().find(|one| one.as_bytes().starts_with(prefix.as_bytes())) {
        let named = [one.as_bytes(), b".", &InvocationId(id).text()].concat();
        *one = CString::new(named).expect("both parts were free of NUL");
    }
}

/// The output of an OpenWhisk action. All lines are the log, except the last one, which is the
/// result.
struct ActionOutput {
    /// Whether the call came through the platform's API, which reads results unchanged.
    raw: bool,
    lines: LogLines,
}

impl Run {
    /// Starts the program for one INVOKE.
    pub(crate) fn start(
        stream: u32,
        invoke: &Bytes,
        mut input: Input,
        command: &mut Command,
        (contract, function): (&Contract, &str),
        env: &[CString],
    ) -> io::Result<Self> {
        let parsed = Invoke::parse(invoke).map_err(io::Error::other)?;
        let inline = invoke.slice_ref(parsed.body);
        let mut inline_left = inline.len();
        if !inline.is_empty() {
            input.chunks.push_front(inline);
        }
        let mut more = env.to_vec();
        let body_bytes = (input.ended && input.chunks.len() <= 1).then_some(inline_left);
        contract.push_facts(&mut more, &parsed, function, body_bytes);
        name_invocation(&mut more, parsed.id);
        let mut arguments = contract.arguments(&parsed);
        let mut action = None;
        if let Some(line) = input.line.take() {
            let raw = whisk::activation(&parsed).is_some();
            action = Some(ActionOutput { raw, lines: LogLines::new(LOG_STDOUT_INFO) });
            input = Input::whole(format!("{line}\n"));
            inline_left = 0;
            let fits = line.len() < ARGUMENT_BYTES_MAX;
            arguments = Some(if fits { vec![line] } else { Vec::new() });
        }
        command.replace_arguments(arguments)?;
        let content_type = contract.content_type(&parsed);

        let (out_read, out_write) = sys::pipe()?;
        let (err_read, err_write) = sys::pipe()?;
        let (head_read, head_write) = sys::pipe()?;
        let error = if contract.combines_output() { &out_write } else { &err_write };
        let mut stdio = Stdio {
            input: None,
            output: Some(out_write.as_raw_fd()),
            error: Some(error.as_raw_fd()),
            extra: Some(head_write.as_raw_fd()),
        };
        // If there is no body, stdin is /dev/null, which pid 1 has as its own stdin.
        let has_body = !(input.ended && input.chunks.is_empty());
        let stdin = if has_body { Some(sys::pipe()?) } else { None };
        if let Some((read, _)) = &stdin {
            stdio.input = Some(read.as_raw_fd());
        }
        let entered_ns = sys::monotonic_ns();
        let child = command.spawn(&stdio, &more).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot execute {}: {error}", command.shown()))
        })?;
        let stdin = stdin.map(|(_, write)| write);
        for ours in [&out_read, &err_read, &head_read].into_iter().chain(&stdin) {
            sys::set_new_pipe_nonblocking(ours.as_fd())?;
        }
        Ok(Self {
            stream,
            child,
            wait_status: None,
            cancelled: false,
            input,
            inline_left,
            stdin,
            stdout: Some(out_read),
            stderr: Some(err_read),
            head: Some(head_read),
            head_text: Vec::new(),
            lines: LogLines::new(LOG_STDERR_INFO),
            body: Vec::new(),
            answered: false,
            window: WINDOW_BYTES,
            written: 0,
            announced: false,
            entered_ns,
            first_output_ns: None,
            contract: contract.clone(),
            content_type,
            action,
            delivery: None,
        })
    }

    pub(crate) fn stream(&self) -> u32 {
        self.stream
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.pid
    }

    pub(crate) fn input(&mut self) -> &mut Input {
        &mut self.input
    }

    /// Whether the request body is complete.
    pub(crate) fn input_complete(&self) -> bool {
        self.input.ended
    }

    /// Takes the rest of the answer that remains after the program's end.
    pub(crate) fn take_delivery(&mut self) -> Option<Delivery> {
        self.delivery.take()
    }

    pub(crate) fn add_credit(&mut self, bytes: u32) {
        self.window = self.window.saturating_add(bytes);
    }

    pub(crate) fn ended(&mut self, wait_status: i32) {
        self.wait_status = Some(wait_status);
        // Processes that the program left running would count against the instance's limits,
        // although no invocation needs them.
        self.child.kill_group();
    }

    /// The caller no longer waits, so the program is ended.
    pub(crate) fn cancel(&mut self) {
        self.cancelled = true;
        self.input.ended = true;
        if self.wait_status.is_none() {
            self.child.kill_group();
        }
    }

    /// Adds the descriptors that this run waits for.
    pub(crate) fn interests(&self, room: bool, entries: &mut Vec<libc::pollfd>) {
        let mut want = |fd: &Option<OwnedFd>, events| {
            if fd.is_some() {
                entries.push(sys::poll_entry(raw(fd), events));
            }
        };
        if !self.input.chunks.is_empty() {
            want(&self.stdin, libc::POLLOUT);
        }
        if room {
            want(&self.stderr, libc::POLLIN);
            want(&self.head, libc::POLLIN);
            if !self.answered || self.window > 0 {
                want(&self.stdout, libc::POLLIN);
            }
        }
    }

    /// Milliseconds until an answer that is held back must be sent.
    pub(crate) fn flush_due_ms(&self, now_ns: u64) -> Option<i32> {
        let waits = !self.answered && !self.contract.holds_answer();
        let first = self.first_output_ns.filter(|_| waits)?;
        let left = (first + SOON_NS).saturating_sub(now_ns);
        Some((left / 1_000_000) as i32 + 1)
    }

    /// Moves all bytes that can be moved without waiting. Returns true once the stream has ended.
    pub(crate) fn pump(&mut self, outbox: &mut Vec<u8>, now_ns: u64) -> bool {
        // The end of the program was noticed before this read. So if the pipe is empty now, it
        // stays empty.
        let over = self.wait_status.is_some();
        self.pump_stdin(outbox);
        if outbox.len() >= OUTBOX_BYTES_MAX {
            return false;
        }
        if !self.announced {
            self.announced = true;
            if let Some(line) = self.contract.start_line() {
                put_line(outbox, self.stream, LOG_STDERR_INFO, line.as_bytes());
            }
        }
        let mut drained = self.pump_head(over);
        drained &= self.lines.pump(&mut self.stderr, outbox, self.stream, over);
        drained &= match self.action.is_some() {
            true => self.pump_action(outbox, over),
            false => self.pump_stdout(outbox, now_ns, over),
        };
        if let (Some(wait_status), true) = (self.wait_status, drained) {
            self.finish(outbox, wait_status);
            return true;
        }
        if self.flush_due_ms(now_ns).is_some_and(|due_ms| due_ms <= 1) {
            self.answer(outbox, false);
        }
        false
    }

    fn pump_stdin(&mut self, outbox: &mut Vec<u8>) {
        let mut taken = 0;
        while let Some(chunk) = self.input.chunks.front_mut() {
            let put = match &self.stdin {
                Some(stdin) => match sys::write(stdin.as_fd(), chunk) {
                    Ok(put) => put,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => {
                        // The program no longer reads, so the rest of the body is consumed and
                        // dropped.
                        self.stdin = None;
                        continue;
                    }
                },
                None => chunk.len(),
            };
            chunk.advance(put);
            taken += put;
            if chunk.is_empty() {
                self.input.chunks.pop_front();
            }
        }
        let inline = taken.min(self.inline_left);
        self.inline_left -= inline;
        if !self.input.ended {
            put_credit(outbox, self.stream, taken - inline);
        }
        if self.input.ended && self.input.chunks.is_empty() {
            self.stdin = None;
        }
    }

    fn pump_head(&mut self, over: bool) -> bool {
        let mut buffer = [0; 4096];
        drain(&mut self.head, &mut buffer, over, |bytes| {
            let room = HEAD_BYTES_MAX.saturating_sub(self.head_text.len());
            self.head_text.extend_from_slice(&bytes[..bytes.len().min(room)]);
            true
        })
    }

    fn pump_stdout(&mut self, outbox: &mut Vec<u8>, now_ns: u64, over: bool) -> bool {
        let mut buffer = [0; CHUNK_BYTES_MAX];
        while let Some(stdout) = &self.stdout {
            if outbox.len() >= OUTBOX_BYTES_MAX {
                return false;
            }
            if !self.answered && self.body.len() >= INLINE_BODY_BYTES_MAX {
                self.pump_head(over);
                self.answer(outbox, false);
                continue;
            }
            let room = if self.answered {
                (self.window as usize).min(CHUNK_BYTES_MAX)
            } else {
                INLINE_BODY_BYTES_MAX - self.body.len()
            };
            if room == 0 {
                return false;
            }
            match sys::read(stdout.as_fd(), &mut buffer[..room]) {
                Ok(0) => self.stdout = None,
                Ok(got) if self.answered => {
                    self.written += got;
                    self.window -= got as u32;
                    wire::put_frame(outbox, FrameKind::Body, 0, self.stream, &buffer[..got]);
                }
                Ok(got) => {
                    self.written += got;
                    self.first_output_ns.get_or_insert(now_ns);
                    self.body.extend_from_slice(&buffer[..got]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return over,
                Err(_) => self.stdout = None,
            }
        }
        true
    }

    /// Reads the lines of an action. A line belongs to the log once another line has followed it.
    fn pump_action(&mut self, outbox: &mut Vec<u8>, over: bool) -> bool {
        let Some(action) = &mut self.action else { return true };
        let body = &mut self.body;
        let stream = self.stream;
        let mut buffer = [0; CHUNK_BYTES_MAX];
        drain(&mut self.stdout, &mut buffer, over, |bytes| {
            body.extend_from_slice(bytes);
            let text = body.trim_ascii_end().len();
            if let Some(end) = body[..text].iter().rposition(|byte| *byte == b'\n') {
                action.lines.add(outbox, stream, &body[..=end]);
                body.drain(..=end);
            }
            if body.len() > RESULT_BYTES_MAX {
                body.clear();
            }
            outbox.len() < OUTBOX_BYTES_MAX
        })
    }

    /// Sends RESULT with the part of the body that is available.
    fn answer(&mut self, outbox: &mut Vec<u8>, end: bool) {
        self.pump_head(false);
        let (status, mut fields) = parse_head(&self.head_text);
        if let Some(kind) = self.content_type.take() {
            put_header(&mut fields, b"content-type", &kind);
        }
        let body = std::mem::take(&mut self.body);
        let has_type = headers(&fields).any(|(name, _)| name == b"content-type");
        if !has_type && !body.is_empty() {
            let kind: &[u8] = match std::str::from_utf8(&body) {
                Ok(_) => b"text/plain; charset=utf-8",
                // The text ends within a character, but more bytes follow.
                Err(error) if !end && error.error_len().is_none() => b"text/plain; charset=utf-8",
                Err(_) => b"application/octet-stream",
            };
            fields.extend_from_slice(b"content-type\n");
            fields.extend_from_slice(kind);
            fields.push(b'\n');
        }
        let head = ResultHead {
            entered_ns: self.entered_ns,
            returned_ns: sys::monotonic_ns(),
            status: status.unwrap_or(STATUS_DEFAULT),
            headers: Bytes::from(fields),
            body: Bytes::from(body),
        };
        head.put(outbox, self.stream, end);
        self.answered = true;
    }

    fn finish(&mut self, outbox: &mut Vec<u8>, wait_status: i32) {
        let exited = libc::WIFEXITED(wait_status);
        let code = libc::WEXITSTATUS(wait_status);
        let took_ns = sys::monotonic_ns().saturating_sub(self.entered_ns);
        if !self.cancelled
            && let Some(line) =
                self.contract.end_line(exited.then_some(code), self.written, took_ns)
        {
            put_line(outbox, self.stream, LOG_STDERR_INFO, line.as_bytes());
        }
        let said_status = parse_head(&self.head_text).0.is_some();
        if let Some(action) = &self.action
            && !self.cancelled
            && exited
            && (code == 0 || !self.body.trim_ascii().is_empty())
        {
            let answer = whisk::answer(self.body.trim_ascii(), action.raw);
            self.delivery = Delivery::begin(outbox, self.stream, self.entered_ns, answer);
            return;
        }
        if !self.cancelled
            && exited
            && code != 0
            && !self.answered
            && let Some(failure) = self.contract.failure(code)
        {
            let output = std::mem::take(&mut self.body);
            self.body = failure.line.into_bytes();
            if failure.with_output {
                self.body.extend_from_slice(&output);
            }
            self.head_text = format!("status {}\n", failure.status).into_bytes();
            self.answer(outbox, true);
            return;
        }
        let (kind, mut message) = if self.cancelled {
            ("Cancelled", "cancelled".to_owned())
        } else if !exited {
            ("Signal", format!("killed by signal {}", libc::WTERMSIG(wait_status)))
        } else if code != 0 && (!said_status || self.answered) {
            ("ExitStatus", format!("exited {code}"))
        } else if self.answered {
            wire::put_frame(outbox, FrameKind::Body, FLAG_END, self.stream, &[]);
            return;
        } else {
            self.answer(outbox, true);
            return;
        };
        if !self.lines.last().is_empty() {
            message.push_str(": ");
            message.push_str(self.lines.last());
        }
        let error = WorkerError {
            kind: kind.to_owned(),
            message,
            trace: String::new(),
            entered_ns: self.entered_ns,
            returned_ns: sys::monotonic_ns(),
        };
        put_error(outbox, self.stream, &error);
    }
}

/// Parses what the program wrote to descriptor 3: a status, and fields in the form of a header
/// block.
fn parse_head(text: &[u8]) -> (Option<u16>, Vec<u8>) {
    let mut status = None;
    let mut fields = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let line = line.trim_ascii();
        if let Some(number) = line.strip_prefix(b"status ") {
            let number = std::str::from_utf8(number.trim_ascii()).unwrap_or("");
            status = number.parse().ok().filter(|number| (200..=599).contains(number)).or(status);
        } else if let Some(colon) = line.iter().position(|byte| *byte == b':') {
            let name = line[..colon].trim_ascii();
            let value = line[colon + 1..].trim_ascii();
            if !name.is_empty() && !line.contains(&0) {
                fields.extend(name.to_ascii_lowercase());
                fields.push(b'\n');
                fields.extend_from_slice(value);
                fields.push(b'\n');
            }
        }
    }
    (status, fields)
}

#[cfg(test)]
mod tests {
    use super::parse_head;

    #[test]
    fn head_lines() {
        let (status, fields) = parse_head(b"status 201\nX-A: b c\nnonsense\nstatus 99\n: x\n");
        assert_eq!(status, Some(201));
        assert_eq!(fields, b"x-a\nb c\n");
    }
}
