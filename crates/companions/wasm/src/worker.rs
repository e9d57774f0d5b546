//! The program's side of the worker protocol (docs/reference/worker-protocol.md). One thread serves
//! all invocations, and each of them has its own instance.

use std::os::fd::FromRawFd as _;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use mote_core::wire::{self, FrameKind, Invoke, Load, Ready};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

use crate::body::RequestBody;
use crate::call::Call;
use crate::engine::Clock;
use crate::link::{Link, Stream, Times, Window};
use crate::output::STDERR;
use crate::program::{Program, prepare};

/// A process without a function after this time is one that the node keeps prewarmed.
const PREWARMED: Duration = Duration::from_millis(20);

/// The file descriptor of the connection to the engine.
const CONNECTION: i32 = 3;

/// Why the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The worker has drained, or the engine has closed the connection.
    Done = 0,
    /// The function cannot be loaded.
    Load = 1,
    /// The engine broke the protocol.
    Protocol = 65,
}

struct Worker {
    link: Arc<Link>,
    clock: Arc<Clock>,
    program: Option<Arc<Program>>,
}

/// Serves the connection until it ends. The process must end afterwards.
pub(crate) fn serve() -> End {
    let clock = Clock::new();
    let (begins, ends) = (clock.clone(), clock.clone());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_unpark(move || begins.active(true))
        .on_thread_park(move || ends.active(false))
        .build();
    let Ok(runtime) = runtime else { return End::Protocol };
    // SAFETY: the process was started with this descriptor as its connection, and nothing else in
    // the process owns it.
    #[expect(unsafe_code, reason = "the descriptor comes from outside")]
    let stream = unsafe { std::os::unix::net::UnixStream::from_raw_fd(CONNECTION) };
    let end = runtime.block_on(async move {
        if stream.set_nonblocking(true).is_err() {
            return End::Protocol;
        }
        match UnixStream::from_std(stream) {
            Ok(stream) => Worker { link: Link::new(), clock, program: None }.serve(stream).await,
            Err(_) => End::Protocol,
        }
    });
    // A guest may still be waiting in a host function, which must not keep the process alive.
    runtime.shutdown_background();
    end
}

impl Worker {
    async fn serve(mut self, stream: UnixStream) -> End {
        let (mut input, mut output) = stream.into_split();
        let mut hello = wire::VERSION.to_le_bytes().to_vec();
        hello.extend_from_slice(concat!("wasm/", env!("CARGO_PKG_VERSION")).as_bytes());
        let link = self.link.clone();
        link.put(|out| wire::put_frame(out, FrameKind::Hello, 0, 0, &hello));
        let end = {
            let mut reads = pin!(self.read(&mut input));
            let mut writes = pin!(write(&link, &mut output));
            tokio::select! {
                end = &mut reads => end,
                end = &mut writes => end,
            }
        };
        // The bytes that were written last may contain, for example, the reason of a failed load.
        let mut last = Vec::new();
        link.take_output(&mut last);
        let _ = output.write_all(&last).await;
        end
    }

    async fn read(&mut self, input: &mut OwnedReadHalf) -> End {
        let mut buffer = BytesMut::with_capacity(64 << 10);
        let link = self.link.clone();
        if tokio::time::timeout(PREWARMED, input.readable()).await.is_err() {
            prepare();
        }
        loop {
            loop {
                let (header, payload) = match wire::split_frame(&mut buffer) {
                    Ok(Some(frame)) => frame,
                    Ok(None) => break,
                    Err(_) => return End::Protocol,
                };
                if let Some(end) = self.frame(header, payload) {
                    return end;
                }
            }
            if link.is_draining.load(Ordering::Relaxed) && link.is_idle() {
                return End::Done;
            }
            buffer.reserve(16 << 10);
            tokio::select! {
                read = input.read_buf(&mut buffer) => match read {
                    Ok(0) | Err(_) => return End::Done,
                    Ok(_) => {}
                },
                () = link.ended.notified() => {}
            }
        }
    }

    fn frame(&mut self, header: wire::FrameHeader, payload: Bytes) -> Option<End> {
        let link = &self.link;
        match header.kind {
            FrameKind::Load => return self.load(&payload),
            FrameKind::Invoke => {
                let Some(program) = self.program.clone() else { return Some(End::Protocol) };
                return self.invoke(program, header, payload);
            }
            FrameKind::Body => link.body(header.stream, payload, header.is_end()),
            FrameKind::Cancel => link.cancel(header.stream),
            FrameKind::Credit => {
                let Some(bytes) = payload.first_chunk::<4>() else { return Some(End::Protocol) };
                link.credited(header.stream, u32::from_le_bytes(*bytes));
            }
            FrameKind::Drain => {
                link.is_draining.store(true, Ordering::Relaxed);
                return self.program.is_none().then_some(End::Done);
            }
            FrameKind::Response => {
                let Some(number) = payload.first_chunk::<4>() else { return Some(End::Protocol) };
                if payload.len() < 8 {
                    return Some(End::Protocol);
                }
                link.answered(u32::from_le_bytes(*number), payload[4], payload.slice(8..));
            }
            _ => return Some(End::Protocol),
        }
        None
    }

    fn load(&mut self, payload: &[u8]) -> Option<End> {
        let began = Instant::now();
        let Ok(load) = serde_json::from_slice::<Load>(payload) else { return Some(End::Protocol) };
        if self.program.is_some() {
            return Some(End::Protocol);
        }
        let program = match Program::load(load) {
            Ok(program) => program,
            Err((kind, text)) => {
                self.link.fail(0, kind, text, String::new(), Times::default());
                return Some(End::Load);
            }
        };
        if self.clock.start(program.engine.clone()).is_err() {
            let text = "cannot start a second thread".to_owned();
            self.link.fail(0, "Load", text, String::new(), Times::default());
            return Some(End::Load);
        }
        if let Some(note) = &program.note {
            self.link.line(0, STDERR, note.as_bytes());
        }
        let ready = Ready {
            init_ns: began.elapsed().as_nanos() as u64,
            concurrency: program.concurrency,
            shape: program.shape().to_owned(),
            ..Ready::default()
        };
        let ready = serde_json::to_vec(&ready).expect("it has only string keys");
        self.link.put(|out| wire::put_frame(out, FrameKind::Ready, 0, 0, &ready));
        self.program = Some(Arc::new(program));
        None
    }

    fn invoke(
        &self,
        program: Arc<Program>,
        header: wire::FrameHeader,
        payload: Bytes,
    ) -> Option<End> {
        let Ok(invoke) = Invoke::parse(&payload) else { return Some(End::Protocol) };
        let stream = header.stream;
        let inline = payload.slice_ref(invoke.body);
        let (body, rest) = match header.is_end() {
            true => (None, None),
            false => {
                // The node sends no more than a window ahead.
                let (body, rest) = mpsc::unbounded_channel();
                (Some(body), Some(rest))
            }
        };
        let window = Window::new();
        self.link.begin(stream, Stream { body, window: window.clone(), task: None });
        let link = self.link.clone();
        let body = RequestBody::new(link.clone(), stream, inline, rest);
        let call = Call { link, stream, window, payload, body };
        let task = tokio::spawn(async move { call.run(&program).await });
        self.link.set_task(stream, task.abort_handle());
        None
    }
}

async fn write(link: &Link, output: &mut OwnedWriteHalf) -> End {
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        link.take_output(&mut bytes);
        if bytes.is_empty() {
            link.written.notified().await;
            continue;
        }
        if output.write_all(&bytes).await.is_err() {
            return End::Done;
        }
    }
}
