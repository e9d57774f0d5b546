//! A request body on its way from the socket to the engine, a few chunks at a time.

use std::task::{Context, Poll};

use bytes::Bytes;
use mote_core::body::{Body, BodyError, BodySource};
use tokio::net::tcp::ReadHalf;
use tokio::sync::mpsc;

use super::chunked::{Chunked, Step};
use super::connection::{Input, ReadEnd};
use super::head::Framing;
use super::listener::Config;

/// Chunks under way between socket and engine; with at most 64 KiB each.
const CHUNKS_MAX: usize = 2;

pub(crate) type Sender = mpsc::Sender<Result<Bytes, BodyError>>;

struct Receiver(mpsc::Receiver<Result<Bytes, BodyError>>);

impl BodySource for Receiver {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.0.poll_recv(cx)
    }
}

/// A body and the sender that feeds it.
pub(crate) fn channel(length: Option<u64>) -> (Sender, Body) {
    let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
    (sender, Body::Stream { source: Box::new(Receiver(receiver)), length })
}

/// Reads the body off the socket into `sender`. Returns whether it was read to its end, so that
/// the next request begins where the buffer does.
pub(crate) async fn feed(
    sender: Sender,
    framing: Framing,
    limit: u64,
    input: &mut Input,
    reader: &mut ReadHalf<'_>,
    config: &Config,
) -> bool {
    let result = match framing {
        Framing::None => Ok(true),
        Framing::Length(length) => feed_length(&sender, length, input, reader, config).await,
        Framing::Chunked => feed_chunked(&sender, limit, input, reader, config).await,
    };
    match result {
        Ok(complete) => complete,
        Err(error) => {
            let _ = sender.send(Err(error)).await;
            false
        }
    }
}

async fn feed_length(
    sender: &Sender,
    length: u64,
    input: &mut Input,
    reader: &mut ReadHalf<'_>,
    config: &Config,
) -> Result<bool, BodyError> {
    let mut left = length;
    while left > 0 {
        if input.bytes.is_empty() {
            more(input, reader, config).await?;
        }
        let take = usize::try_from(left).unwrap_or(usize::MAX).min(input.bytes.len());
        left -= take as u64;
        if sender.send(Ok(input.bytes.split_to(take).freeze())).await.is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn feed_chunked(
    sender: &Sender,
    limit: u64,
    input: &mut Input,
    reader: &mut ReadHalf<'_>,
    config: &Config,
) -> Result<bool, BodyError> {
    let mut decoder = Chunked::default();
    let mut total = 0;
    loop {
        match decoder.step(&mut input.bytes).map_err(|_| BodyError::Incomplete)? {
            Step::End => return Ok(true),
            Step::NeedMore => more(input, reader, config).await?,
            Step::Data(data) => {
                total += data.len() as u64;
                if total > limit {
                    return Err(BodyError::TooLarge(limit));
                }
                if sender.send(Ok(data)).await.is_err() {
                    return Ok(false);
                }
            }
        }
    }
}

async fn more(
    input: &mut Input,
    reader: &mut ReadHalf<'_>,
    config: &Config,
) -> Result<(), BodyError> {
    input.set_deadline(config.body_idle_timeout);
    input.fill(reader, false).await.map_err(|end| match end {
        ReadEnd::TimedOut => BodyError::TimedOut,
        _ => BodyError::Incomplete,
    })
}
