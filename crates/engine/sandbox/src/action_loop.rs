//! OpenWhisk's ActionLoop: a program that stays running and answers one call after another. Each
//! line of JSON on the program's stdin is a call, and each line on its descriptor 3 is a result.
//! Everything that the program prints is the log.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use mote_core::wire::{Invoke, WorkerError};
use serde_json::{Value, json};

use crate::delivery::Delivery;
use crate::log_lines::LogLines;
use crate::outbox::{put_error, raw};
use crate::program_run::{LOG_STDERR_INFO, LOG_STDOUT_INFO};
use crate::spawn::{Child, Command, Stdio};
use crate::sys;
use mote_core::openwhisk_action as whisk;

/// The program is ended if a result or an acknowledgement is longer than this many bytes.
const LINE_BYTES_MAX: usize = 8 << 20;

/// The call on which the program is working.
struct Current {
    stream: u32,
    raw: bool,
    cancelled: bool,
    entered_ns: u64,
}

/// See the module's documentation.
pub(crate) struct ActionLoop {
    child: Child,
    stdin: Option<OwnedFd>,
    results: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    out_lines: LogLines,
    err_lines: LogLines,
    /// Bytes that have not been written to stdin yet.
    input: VecDeque<u8>,
    line: Vec<u8>,
    current: Option<Current>,
    /// Whether the program still has to write its acknowledgement, which is a first line that
    /// answers no call.
    owes_acknowledgement: bool,
    ended: bool,
}

impl ActionLoop {
    /// Starts the program. `acknowledges` says that the program writes a line once it is up.
    pub(crate) fn start(
        command: &mut Command,
        env: &[CString],
        acknowledges: bool,
    ) -> io::Result<Self> {
        let (in_read, in_write) = sys::pipe()?;
        let (out_read, out_write) = sys::pipe()?;
        let (err_read, err_write) = sys::pipe()?;
        let (results_read, results_write) = sys::pipe()?;
        let stdio = Stdio {
            input: Some(in_read.as_raw_fd()),
            output: Some(out_write.as_raw_fd()),
            error: Some(err_write.as_raw_fd()),
            extra: Some(results_write.as_raw_fd()),
        };
        let child = command.spawn(&stdio, env)?;
        for ours in [&in_write, &out_read, &err_read, &results_read] {
            sys::set_new_pipe_nonblocking(ours.as_fd())?;
        }
        Ok(Self {
            child,
            stdin: Some(in_write),
            results: Some(results_read),
            stdout: Some(out_read),
            stderr: Some(err_read),
            out_lines: LogLines::new(LOG_STDOUT_INFO),
            err_lines: LogLines::new(LOG_STDERR_INFO),
            input: VecDeque::new(),
            line: Vec::new(),
            current: None,
            owes_acknowledgement: acknowledges,
            ended: false,
        })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.pid
    }

    /// Whether the program can take a call now.
    pub(crate) fn is_free(&self) -> bool {
        self.current.is_none() && !self.owes_acknowledgement && !self.ended
    }

    /// Whether the program is up, which means that no acknowledgement is outstanding.
    pub(crate) fn is_up(&self) -> bool {
        !self.owes_acknowledgement
    }

    /// Whether the program has ended and will not answer anything more.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Gives the program a call.
    pub(crate) fn call(
        &mut self,
        stream: u32,
        request: &Invoke<'_>,
        value: Value,
        facts: &[(&str, String)],
    ) {
        let mut line = json!({ "value": value });
        for (name, fact) in facts {
            line[*name] = fact.as_str().into();
        }
        self.input.extend(line.to_string().as_bytes());
        self.input.push_back(b'\n');
        self.current = Some(Current {
            stream,
            raw: whisk::activation(request).is_some(),
            cancelled: false,
            entered_ns: sys::monotonic_ns(),
        });
    }

    /// The caller of `stream` no longer waits. The ActionLoop protocol cannot tell the program, so
    /// the program's place stays taken until the program answers or the engine ends the instance.
    pub(crate) fn cancel(&mut self, stream: u32) {
        if let Some(current) = &mut self.current
            && current.stream == stream
        {
            current.cancelled = true;
        }
    }

    /// Adds the descriptors that this program waits for.
    pub(crate) fn interests(&self, room: bool, entries: &mut Vec<libc::pollfd>) {
        let mut want = |fd: &Option<OwnedFd>, events| {
            if fd.is_some() {
                entries.push(sys::poll_entry(raw(fd), events));
            }
        };
        if !self.input.is_empty() {
            want(&self.stdin, libc::POLLOUT);
        }
        if room {
            want(&self.results, libc::POLLIN);
            want(&self.stdout, libc::POLLIN);
            want(&self.stderr, libc::POLLIN);
        }
    }

    /// Handles the end of the program: the call that it was working on fails. `loading` says that
    /// READY has not been sent yet.
    pub(crate) fn ended(&mut self, outbox: &mut Vec<u8>, wait_status: i32, loading: bool) {
        self.child.kill_group();
        self.ended = true;
        self.pump_logs(outbox);
        let how = if libc::WIFEXITED(wait_status) {
            format!("the action's program exited {}", libc::WEXITSTATUS(wait_status))
        } else {
            format!("the action's program was killed by signal {}", libc::WTERMSIG(wait_status))
        };
        let current = self.current.take();
        if current.is_none() && !loading {
            return self.err_lines.add(outbox, 0, format!("{how}\n").as_bytes());
        }
        let kind =
            if current.as_ref().is_some_and(|one| one.cancelled) { "Cancelled" } else { "Exit" };
        // Stream 0 means that the program failed while it was loading.
        put_error(
            outbox,
            current.as_ref().map_or(0, |one| one.stream),
            &WorkerError {
                kind: kind.to_owned(),
                message: how,
                trace: String::new(),
                entered_ns: current.as_ref().map_or(0, |one| one.entered_ns),
                returned_ns: sys::monotonic_ns(),
            },
        );
    }

    /// Moves all bytes that can be moved without waiting. Returns an answer if it is longer than
    /// one frame.
    pub(crate) fn pump(&mut self, outbox: &mut Vec<u8>) -> Option<Delivery> {
        self.pump_stdin();
        self.pump_logs(outbox);
        let mut buffer = [0; 16 << 10];
        while let Some(fd) = &self.results {
            match sys::read(fd.as_fd(), &mut buffer) {
                Ok(0) => self.results = None,
                Ok(got) => self.line.extend_from_slice(&buffer[..got]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.results = None,
            }
            if self.line.len() > LINE_BYTES_MAX {
                self.child.kill_group();
                self.results = None;
            }
        }
        let end = self.line.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.line.drain(..=end).collect();
        self.out_lines.flush(outbox, self.stream());
        self.err_lines.flush(outbox, self.stream());
        if self.owes_acknowledgement {
            self.owes_acknowledgement = false;
            return None;
        }
        let current = self.current.take()?;
        if current.cancelled {
            put_error(
                outbox,
                current.stream,
                &WorkerError {
                    kind: "Cancelled".to_owned(),
                    message: "cancelled".to_owned(),
                    trace: String::new(),
                    entered_ns: current.entered_ns,
                    returned_ns: sys::monotonic_ns(),
                },
            );
            return None;
        }
        let answer = whisk::answer(line.trim_ascii(), current.raw);
        Delivery::begin(outbox, current.stream, current.entered_ns, answer)
    }

    fn stream(&self) -> u32 {
        self.current.as_ref().map_or(0, |current| current.stream)
    }

    fn pump_stdin(&mut self) {
        while !self.input.is_empty()
            && let Some(stdin) = &self.stdin
        {
            match sys::write(stdin.as_fd(), self.input.as_slices().0) {
                Ok(put) => drop(self.input.drain(..put)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // The program no longer reads. It will end by itself, or be ended at the
                    // deadline.
                    self.stdin = None;
                    self.input.clear();
                }
            }
        }
    }

    fn pump_logs(&mut self, outbox: &mut Vec<u8>) {
        let stream = self.stream();
        self.out_lines.pump(&mut self.stdout, outbox, stream, self.ended);
        self.err_lines.pump(&mut self.stderr, outbox, stream, self.ended);
    }
}
