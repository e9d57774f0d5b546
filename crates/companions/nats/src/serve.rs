//! Reads the node's requests and answers each of them in its own task.

use std::io::{self, Read as _};

use bytes::BytesMut;
use mote_journal::nats::{FRAME_BYTES_MAX, NatsError, Reply, Request, Settings, take_frame};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::connection::{Connection, PATIENCE};
use crate::state::States;
use crate::{log, streams};

/// The most answers that wait for the node to read them. Beyond that, requests wait.
const ANSWERS_MAX: usize = 1_024;
/// The most bytes that are collected for one write.
const WRITE_BYTES: usize = 256 << 10;

/// Reads the first frame. Blocks.
pub(crate) fn read_settings(socket: &mut std::os::unix::net::UnixStream) -> io::Result<Settings> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other("the first frame is too long"));
    }
    let mut frame = vec![0; length];
    socket.read_exact(&mut frame)?;
    match Request::read(frame.into()).map_err(io::Error::other)? {
        (_, Request::Begin(settings)) => Ok(settings),
        _ => Err(io::Error::other("the first frame has no settings")),
    }
}

/// Serves the node until it closes the socket. Requests that arrived before are still answered.
pub(crate) async fn serve(socket: UnixStream, connection: Connection) -> io::Result<()> {
    let (mut input, mut output) = socket.into_split();
    let (answers, mut answered) = mpsc::channel::<Vec<u8>>(ANSWERS_MAX);
    let writing = tokio::spawn(async move {
        let mut bytes = Vec::new();
        while let Some(frame) = answered.recv().await {
            bytes.extend_from_slice(&frame);
            while bytes.len() < WRITE_BYTES
                && let Ok(frame) = answered.try_recv()
            {
                bytes.extend_from_slice(&frame);
            }
            output.write_all(&bytes).await?;
            bytes.clear();
            bytes.shrink_to(WRITE_BYTES);
        }
        io::Result::Ok(())
    });
    let states = States::new(connection.clone());
    let mut read = BytesMut::new();
    loop {
        while let Some(frame) = take_frame(&mut read).map_err(io::Error::other)? {
            let (number, request) = Request::read(frame).map_err(io::Error::other)?;
            let (connection, states, answers) =
                (connection.clone(), states.clone(), answers.clone());
            tokio::spawn(async move {
                let reply =
                    answer(&connection, &states, request).await.unwrap_or_else(Reply::Failed);
                // An error means that the node has stopped reading.
                let _ = answers.send(reply.frame(number)).await;
            });
        }
        read.reserve(16 << 10);
        if input.read_buf(&mut read).await? == 0 {
            break;
        }
    }
    drop(answers);
    writing.await.map_err(io::Error::other)?
}

async fn answer(
    connection: &Connection,
    states: &States,
    request: Request,
) -> Result<Reply, NatsError> {
    let until = Instant::now() + PATIENCE;
    match request {
        Request::Begin(_) => Err(NatsError::Refused("it has begun already".to_owned())),
        Request::EnsureLog { name, subjects } => {
            log::ensure(connection, &name, subjects, until).await
        }
        Request::Append { messages, expected_last } => {
            log::append(connection, messages, expected_last, until).await
        }
        Request::Read(page) => streams::read(connection, &page, until).await,
        Request::Last { stream, subject } => {
            Ok(Reply::Last(streams::last(connection, &stream, &subject, until).await?))
        }
        Request::Check => streams::check(connection, until).await,
        Request::State { namespace, operation, quota, now_unix_ms } => {
            let applied = states.apply(&namespace, operation, quota, now_unix_ms, until).await;
            Ok(Reply::State(applied))
        }
        Request::Usage => Ok(Reply::Usage(states.usage(until).await?)),
        Request::Clear(namespace) => {
            states.clear(&namespace, until).await?;
            Ok(Reply::Done)
        }
    }
}
