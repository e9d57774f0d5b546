//! Passes a request body from the socket to the engine, a few chunks at a time.

use std::pin::pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use mote_core::Fault;
use mote_core::body::{Body, BodyError, BodySource};
use tokio::sync::mpsc;

use super::chunked::{ChunkEvent, Chunked};
use super::front::Config;
use super::head::Framing;
use super::input::{Input, ReadEnd, Until, or_ended, or_gone};
use super::socket::Reader;
use crate::refusal::Refusal;

/// The number of chunks on their way from the socket to the engine. Each has at most 64 KiB.
const CHUNKS_MAX: usize = 2;

/// A chunk, or `None` for the end of the body.
pub(crate) type Sender = mpsc::Sender<Option<Bytes>>;

/// The engine's end of the channel. If the channel closes before the end mark, the body was cut
/// off. A cut-off body must never look like a complete, shorter one, whatever ended the connection.
struct Receiver(mpsc::Receiver<Option<Bytes>>);

impl BodySource for Receiver {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.0.poll_recv(cx).map(|chunk| match chunk {
            Some(Some(chunk)) => Some(Ok(chunk)),
            Some(None) => None,
            None => Some(Err(BodyError::Incomplete)),
        })
    }
}

/// A body, and the sender that fills it.
pub(crate) fn channel(length: Option<u64>) -> (Sender, Body) {
    let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
    (sender, Body::Stream { source: Box::new(Receiver(receiver)), length })
}

/// How feeding a body ended, if the body was valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fed {
    /// The body was read to its end. The buffer begins with the next request.
    Complete,
    /// The reader of the body was dropped.
    Unread,
}

/// Reads the body from the socket into `sender`. Fails with the refusal that the client receives.
pub(crate) async fn feed(
    sender: Sender,
    framing: Framing,
    limit: u64,
    input: &mut Input,
    reader: &mut Reader<'_>,
    config: &Config,
    until: Until<'_>,
) -> Result<Fed, Refusal> {
    let read = match framing {
        Framing::None => true,
        Framing::Length(length) => {
            feed_length(&sender, length, input, reader, config, until).await?
        }
        Framing::Chunked => feed_chunked(&sender, limit, input, reader, config, until).await?,
    };
    if read {
        // If the receiver was dropped, it needs no end mark. The body was still read to its end.
        let _ = send(&sender, None, input, reader, until, |_| true).await?;
    }
    Ok(if read { Fed::Complete } else { Fed::Unread })
}

async fn feed_length(
    sender: &Sender,
    length: u64,
    input: &mut Input,
    reader: &mut Reader<'_>,
    config: &Config,
    until: Until<'_>,
) -> Result<bool, Refusal> {
    let mut left = length;
    while left > 0 {
        if input.bytes.is_empty() {
            more(input, reader, config).await?;
        }
        let take = usize::try_from(left).unwrap_or(usize::MAX).min(input.bytes.len());
        left -= take as u64;
        input.charge(1, take).await;
        let chunk = input.bytes.split_to(take).freeze();
        let is_rest = |ahead: &BytesMut| ahead.len() as u64 >= left;
        if !send(sender, Some(chunk), input, reader, until, is_rest).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn feed_chunked(
    sender: &Sender,
    limit: u64,
    input: &mut Input,
    reader: &mut Reader<'_>,
    config: &Config,
    until: Until<'_>,
) -> Result<bool, Refusal> {
    let mut decoder = Chunked::default();
    let mut total = 0;
    loop {
        match decoder.step(&mut input.bytes)? {
            ChunkEvent::End => return Ok(true),
            ChunkEvent::NeedMore => more(input, reader, config).await?,
            ChunkEvent::Data(data) => {
                total += data.len() as u64;
                input.charge(1, data.len()).await;
                if total > limit {
                    return Err(Refusal::of_fault(&Fault::BodyTooLarge { limit_bytes: limit }, ""));
                }
                let is_rest = |ahead: &BytesMut| decoder.ends_in(ahead);
                if !send(sender, Some(data), input, reader, until, is_rest).await? {
                    return Ok(false);
                }
            }
        }
    }
}

/// Passes one piece on. Returns `false` if the reader was dropped. If the client ends its side
/// meanwhile, the body fails as incomplete, unless `is_rest` says that the bytes already read
/// contain the rest of the body.
async fn send(
    sender: &Sender,
    piece: Option<Bytes>,
    input: &mut Input,
    reader: &mut Reader<'_>,
    until: Until<'_>,
    is_rest: impl Fn(&BytesMut) -> bool,
) -> Result<bool, Refusal> {
    let mut sending = pin!(sender.send(piece));
    if let Some(sent) = or_ended(sending.as_mut(), input, reader).await {
        return Ok(sent.is_ok());
    }
    if is_rest(&input.bytes)
        && let Some(sent) = or_gone(sending, input, reader, until).await
    {
        return Ok(sent.is_ok());
    }
    Err(Refusal::of_fault(&Fault::BodyIncomplete, ""))
}

pub(crate) async fn more(
    input: &mut Input,
    reader: &mut Reader<'_>,
    config: &Config,
) -> Result<(), Refusal> {
    input.set_deadline(config.body_idle_timeout);
    input.fill(reader).await.map_err(|end| match end {
        ReadEnd::TimedOut => Refusal::new(408, "M1025", "request not received in time"),
        ReadEnd::Stopping => Refusal::of_fault(&Fault::Stopping, ""),
        ReadEnd::Gone | ReadEnd::Ended => Refusal::of_fault(&Fault::BodyIncomplete, ""),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_is_whole_only_with_its_end_mark() {
        for (marked, expected) in [(true, None), (false, Some(Err(BodyError::Incomplete)))] {
            let (sender, mut body) = channel(None);
            sender.send(Some(Bytes::from_static(b"abc"))).await.unwrap();
            if marked {
                sender.send(None).await.unwrap();
            }
            drop(sender);
            assert_eq!(body.chunk().await, Some(Ok(Bytes::from_static(b"abc"))));
            assert_eq!(body.chunk().await, expected);
        }
    }
}
