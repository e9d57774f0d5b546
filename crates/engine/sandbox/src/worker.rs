//! The worker inside a sandbox that runs a program once per invocation.
//!
//! The worker speaks the worker protocol on the channel. For each invocation, it starts the program
//! with the body on stdin and the answer on stdout. There is one thread with one poll loop, and
//! every buffer is bounded by the protocol's windows. This file has the connection and the queue;
//! [`crate::program_run`] has one running program.

use std::collections::{HashSet, VecDeque};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use bytes::{Buf, Bytes, BytesMut};
use mote_core::openwhisk_action as whisk;
use mote_core::wire::{self, FrameHeader, FrameKind, Invoke, Load, Ready, WorkerError};

use crate::action_loop::ActionLoop;
use crate::contract::{Contract, action_facts};
use crate::delivery::Delivery;
use crate::outbox::{OUTBOX_BYTES_MAX, put_credit, put_error};
use crate::program_run::{Input, Run};
use crate::spawn::Command;
use crate::sys;

/// The number of programs at once if LOAD does not set one.
const CONCURRENCY_DEFAULT: u32 = mote_spec::CONCURRENCY_DEFAULT_EXEC;
/// The maximum number of programs at once, whatever LOAD says. Each program has four pipes, and a
/// process may have 1,024 descriptors.
const CONCURRENCY_MAX: u32 = 128;
/// The maximum number of invocations that wait inside. The engine keeps its own queue and sends
/// only a few in advance.
const WAITING_MAX: usize = 1024;
const READ_BYTES: usize = 64 << 10;

/// An invocation that waits for its turn.
struct Waiting {
    stream: u32,
    invoke: Bytes,
    input: Input,
}

struct Worker<'a> {
    channel: OwnedFd,
    status: BorrowedFd<'a>,
    children: OwnedFd,
    /// The command. It is known from LOAD at the latest.
    command: Option<Command>,
    prepare: &'a Prepare<'a>,
    inbox: BytesMut,
    outbox: Vec<u8>,
    running: Vec<Run>,
    waiting: VecDeque<Waiting>,
    /// Streams that have been answered although their request body is still arriving.
    discarding: HashSet<u32>,
    concurrency: usize,
    function: String,
    contract: Contract,
    env: Vec<CString>,
    /// The action's program that stays running.
    looped: Option<ActionLoop>,
    /// Whether the program writes a line once it is up.
    says_when_up: bool,
    /// The READY frame, which is held back until the program is up.
    ready: Option<Vec<u8>>,
    /// Answers that are longer than a frame.
    deliveries: Vec<Delivery>,
    draining: bool,
}

/// Makes a command from a program and its arguments. A relative program is looked up in the folder.
pub(crate) type Prepare<'a> = dyn Fn(&[String], &Path) -> io::Result<Command> + 'a;

/// Serves the channel until the engine drains or closes it. The caller then ends, and everything
/// else in the sandbox ends with it.
pub(crate) fn run(
    channel: OwnedFd,
    status: BorrowedFd<'_>,
    command: Option<Command>,
    prepare: &Prepare<'_>,
) {
    let children = sys::child_signal_fd();
    let (Ok(()), Ok(children)) = (sys::set_nonblocking(channel.as_fd()), children) else {
        return;
    };
    let mut worker = Worker {
        channel,
        status,
        children,
        command,
        prepare,
        inbox: BytesMut::with_capacity(READ_BYTES),
        outbox: Vec::with_capacity(READ_BYTES),
        running: Vec::new(),
        waiting: VecDeque::new(),
        discarding: HashSet::new(),
        concurrency: CONCURRENCY_DEFAULT as usize,
        function: String::new(),
        contract: Contract::Mote,
        env: Vec::new(),
        looped: None,
        says_when_up: false,
        ready: None,
        deliveries: Vec::new(),
        draining: false,
    };
    let mut hello = wire::VERSION.to_le_bytes().to_vec();
    hello.extend_from_slice(b"mote-exec");
    wire::put_frame(&mut worker.outbox, FrameKind::Hello, 0, 0, &hello);
    // An error means that the engine closed its end or violated the protocol. Either way, the
    // instance ends.
    let _ = worker.serve();
}

impl Worker<'_> {
    fn serve(&mut self) -> io::Result<()> {
        let mut entries = Vec::new();
        loop {
            self.flush()?;
            if self.draining
                && self.running.is_empty()
                && self.waiting.is_empty()
                && self.deliveries.is_empty()
                && self.looped.as_ref().is_none_or(|looped| looped.is_free() || looped.has_ended())
                && self.outbox.is_empty()
            {
                return Ok(());
            }
            entries.clear();
            let room = self.outbox.len() < OUTBOX_BYTES_MAX;
            let mut wanted = if room { libc::POLLIN } else { 0 };
            if !self.outbox.is_empty() {
                wanted |= libc::POLLOUT;
            }
            entries.push(sys::poll_entry(self.channel.as_raw_fd(), wanted));
            entries.push(sys::poll_entry(self.status.as_raw_fd(), 0));
            entries.push(sys::poll_entry(self.children.as_raw_fd(), libc::POLLIN));
            let mut timeout_ms = -1;
            let now_ns = sys::monotonic_ns();
            for run in &self.running {
                run.interests(room, &mut entries);
                if let Some(due_ms) = run.flush_due_ms(now_ns) {
                    timeout_ms = if timeout_ms < 0 { due_ms } else { due_ms.min(timeout_ms) };
                }
            }
            if let Some(looped) = &self.looped {
                looped.interests(room, &mut entries);
            }
            sys::poll(&mut entries, timeout_ms)?;
            if entries[1].revents != 0 {
                return Ok(());
            }
            if entries[0].revents & !libc::POLLOUT != 0 && room {
                self.receive()?;
            }
            if entries[2].revents != 0 {
                sys::drain_signals(self.children.as_fd());
                while let Some((pid, wait_status)) = sys::reap(-1) {
                    if let Some(run) = self.running.iter_mut().find(|run| run.pid() == pid) {
                        run.ended(wait_status);
                    }
                    if let Some(looped) = self.looped.as_mut().filter(|looped| looped.pid() == pid)
                    {
                        // If the program was up before, the next call starts it again.
                        looped.ended(&mut self.outbox, wait_status, self.ready.is_some());
                        if self.ready.is_some() || !looped.is_up() {
                            // The program ended before it was up. The engine gives the waiting
                            // invocations to another instance.
                            self.waiting.clear();
                            self.draining = true;
                        }
                    }
                }
            }
            self.pump();
            self.start_waiting();
        }
    }

    /// Moves bytes to and from every running program, and removes programs that have finished.
    fn pump(&mut self) {
        let now_ns = sys::monotonic_ns();
        if let Some(looped) = &mut self.looped {
            self.deliveries.extend(looped.pump(&mut self.outbox));
            if looped.is_up()
                && let Some(ready) = self.ready.take()
            {
                wire::put_frame(&mut self.outbox, FrameKind::Ready, 0, 0, &ready);
            }
        }
        let mut at = 0;
        while at < self.running.len() {
            let run = &mut self.running[at];
            if run.pump(&mut self.outbox, now_ns) {
                let mut run = self.running.swap_remove(at);
                self.deliveries.extend(run.take_delivery());
                if !run.input_complete() {
                    self.discarding.insert(run.stream());
                }
            } else {
                at += 1;
            }
        }
        let outbox = &mut self.outbox;
        self.deliveries.retain_mut(|one| !one.pump(outbox));
    }

    /// Takes the oldest invocation that can start. An action can start only with its whole body.
    fn next_waiting(&mut self) -> Option<Waiting> {
        let is_action = matches!(self.contract, Contract::Action { .. });
        let at = self.waiting.iter().position(|one| !is_action || one.input.ended)?;
        self.waiting.remove(at)
    }

    /// Gives the next call to the program that stays running.
    fn start_looped(&mut self) {
        if self.looped.as_ref().is_some_and(ActionLoop::has_ended) && !self.waiting.is_empty() {
            self.start_loop();
        }
        while self.looped.as_ref().is_some_and(ActionLoop::is_free)
            && let Some(mut next) = self.next_waiting()
        {
            let Some(args) = self.action_arguments(&mut next) else { continue };
            let (Some(looped), Ok(request)) = (&mut self.looped, Invoke::parse(&next.invoke))
            else {
                continue;
            };
            let Contract::Action { version, .. } = &self.contract else { continue };
            let facts = action_facts(&request, &self.function, version);
            looped.call(next.stream, &request, args, &facts);
        }
    }

    /// The arguments of an action's call. If the body does not match its media type, answers the
    /// call at once and returns `None`.
    fn action_arguments(&mut self, next: &mut Waiting) -> Option<serde_json::Value> {
        let Contract::Action { defaults, .. } = &self.contract else { return None };
        let request = Invoke::parse(&next.invoke).ok()?;
        let body = next.input.behind(request.body);
        match whisk::called_with(&request, &body, defaults) {
            Ok(args) => Some(args),
            Err(answer) => {
                let now_ns = sys::monotonic_ns();
                let more = Delivery::begin(&mut self.outbox, next.stream, now_ns, answer);
                self.deliveries.extend(more);
                None
            }
        }
    }

    fn start_waiting(&mut self) {
        if self.looped.is_some() {
            return self.start_looped();
        }
        while self.running.len() < self.concurrency
            && let Some(mut next) = self.next_waiting()
        {
            if matches!(self.contract, Contract::Action { .. }) {
                let Some(args) = self.action_arguments(&mut next) else { continue };
                next.input.line = Some(args.to_string());
            }
            let complete = next.input.ended;
            let Some(command) = &mut self.command else {
                fail(&mut self.outbox, next.stream, "Exec", "INVOKE before LOAD");
                continue;
            };
            let started = Run::start(
                next.stream,
                &next.invoke,
                next.input,
                command,
                (&self.contract, &self.function),
                &self.env,
            );
            match started {
                Ok(run) => self.running.push(run),
                Err(error) => {
                    fail(&mut self.outbox, next.stream, "Exec", error);
                    if !complete {
                        self.discarding.insert(next.stream);
                    }
                }
            }
        }
        // A program that has just started may already have output, and short programs often do. The
        // next poll finds that output.
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut done = 0;
        while done < self.outbox.len() {
            match sys::write(self.channel.as_fd(), &self.outbox[done..]) {
                Ok(put) => done += put,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.outbox.drain(..done);
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut buffer = [0; READ_BYTES];
        match sys::read(self.channel.as_fd(), &mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => self.inbox.extend_from_slice(&buffer[..got]),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        while let Some((header, payload)) =
            wire::split_frame(&mut self.inbox).map_err(io::Error::other)?
        {
            self.frame(header, payload)?;
        }
        Ok(())
    }

    fn frame(&mut self, header: FrameHeader, mut payload: Bytes) -> io::Result<()> {
        let stream = header.stream;
        match header.kind {
            FrameKind::Load => self.load(&payload)?,
            FrameKind::Drain => self.draining = true,
            FrameKind::Invoke if self.waiting.len() >= WAITING_MAX => {
                fail(&mut self.outbox, stream, "Busy", "too many invocations wait in the instance");
                if !header.is_end() {
                    self.discarding.insert(stream);
                }
            }
            FrameKind::Invoke => self.waiting.push_back(Waiting {
                stream,
                invoke: payload,
                input: Input::empty(header.is_end()),
            }),
            FrameKind::Body => self.body(stream, payload, header.is_end()),
            FrameKind::Credit if payload.len() == 4 => {
                let bytes = payload.get_u32_le();
                if let Some(run) = self.running.iter_mut().find(|run| run.stream() == stream) {
                    run.add_credit(bytes);
                } else if let Some(one) =
                    self.deliveries.iter_mut().find(|one| one.stream == stream)
                {
                    one.add_credit(bytes);
                }
            }
            FrameKind::Cancel => self.cancel(stream),
            _ => return Err(io::Error::other("frame is not for workers")),
        }
        Ok(())
    }

    fn load(&mut self, payload: &[u8]) -> io::Result<()> {
        let begun_ns = sys::monotonic_ns();
        let load: Load = serde_json::from_slice(payload)?;
        if self.command.is_none() {
            match (self.prepare)(&load.command, Path::new(&load.code_dir)) {
                Ok(command) => self.command = Some(command),
                Err(error) => {
                    let program = load.command.first().map_or("", String::as_str);
                    fail(&mut self.outbox, 0, "Exec", format!("{program}: {error}"));
                    self.draining = true;
                    return Ok(());
                }
            }
        }
        self.concurrency =
            load.concurrency.unwrap_or(CONCURRENCY_DEFAULT).clamp(1, CONCURRENCY_MAX) as usize;
        self.contract = Contract::of(&load);
        if matches!(self.contract, Contract::Action { stays: true, .. }) {
            self.concurrency = 1;
        }
        let says_when_up = load.env.contains_key("__OW_WAIT_FOR_ACK");
        self.function = load.function;
        self.env = load
            .env
            .iter()
            .map(|(name, value)| sys::cstring(format!("{name}={value}")))
            .collect::<io::Result<_>>()?;
        let ready = Ready {
            init_ns: sys::monotonic_ns().saturating_sub(begun_ns),
            concurrency: self.concurrency as u32,
            shape: "exec".to_owned(),
            whole_bodies: self.contract.takes_whole_bodies(),
            ..Ready::default()
        };
        let ready = serde_json::to_vec(&ready)?;
        if matches!(self.contract, Contract::Action { stays: true, .. }) {
            self.ready = Some(ready);
            self.says_when_up = says_when_up;
            self.start_loop();
            return Ok(());
        }
        wire::put_frame(&mut self.outbox, FrameKind::Ready, 0, 0, &ready);
        Ok(())
    }

    /// Starts the program that stays running. READY follows once the program is up.
    fn start_loop(&mut self) {
        let Some(command) = &mut self.command else { return };
        match ActionLoop::start(command, &self.env, self.says_when_up) {
            Ok(looped) => self.looped = Some(looped),
            Err(error) => {
                fail(&mut self.outbox, 0, "Exec", format!("{}: {error}", command.shown()));
                self.draining = true;
            }
        }
    }

    fn body(&mut self, stream: u32, chunk: Bytes, end: bool) {
        let running = self.running.iter_mut().find(|run| run.stream() == stream);
        let waiting = self.waiting.iter_mut().find(|waiting| waiting.stream == stream);
        if let Some(run) = running {
            run.input().push(chunk, end);
        } else if let Some(waiting) = waiting {
            if matches!(self.contract, Contract::Action { .. }) && !end {
                // Credit is given now, because the program does not start before the whole body has
                // arrived.
                put_credit(&mut self.outbox, stream, chunk.len());
            }
            waiting.input.push(chunk, end);
        } else if self.discarding.contains(&stream) {
            put_credit(&mut self.outbox, stream, chunk.len());
            if end {
                self.discarding.remove(&stream);
            }
        }
    }

    fn cancel(&mut self, stream: u32) {
        self.discarding.remove(&stream);
        if let Some(run) = self.running.iter_mut().find(|run| run.stream() == stream) {
            run.cancel();
        }
        if let Some(looped) = &mut self.looped {
            looped.cancel(stream);
        }
        if let Some(at) = self.deliveries.iter().position(|one| one.stream == stream) {
            self.deliveries.swap_remove(at);
            fail(&mut self.outbox, stream, "Cancelled", "cancelled");
        }
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.stream == stream) {
            self.waiting.remove(at);
            fail(&mut self.outbox, stream, "Cancelled", "cancelled before it started");
        }
    }
}

/// Ends, with an error, a stream whose program has not run.
fn fail(outbox: &mut Vec<u8>, stream: u32, kind: &str, message: impl ToString) {
    let error = WorkerError {
        kind: kind.to_owned(),
        message: message.to_string(),
        trace: String::new(),
        entered_ns: 0,
        returned_ns: 0,
    };
    put_error(outbox, stream, &error);
}
