//! Ends streamed answers whose function is silent for too long.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use mote_core::Reply;
use mote_core::body::{Body, BodyError, BodySource};
use tokio::time::{Instant, Sleep};

/// Returns the answer with a limit on silence: a streamed body fails if the function sends nothing
/// for `limit`. The time in which the client does not read does not count.
pub(super) fn limited(mut reply: Reply, limit: Duration) -> Reply {
    reply.body = match reply.body {
        Body::Stream { source, length } => {
            let timer = Box::pin(tokio::time::sleep(limit));
            Body::Stream { source: Box::new(Limited { source, limit, timer, since: None }), length }
        }
        whole => whole,
    };
    reply
}

struct Limited {
    source: Box<dyn BodySource>,
    limit: Duration,
    timer: Pin<Box<Sleep>>,
    /// The time at which the wait for the next chunk began.
    since: Option<Instant>,
}

impl BodySource for Limited {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        if let Poll::Ready(chunk) = self.source.poll_chunk(cx) {
            self.since = None;
            return Poll::Ready(chunk);
        }
        let end = *self.since.get_or_insert_with(Instant::now) + self.limit;
        // The timer is moved only when it fires, and not with each chunk.
        while self.timer.as_mut().poll(cx).is_ready() {
            if end <= Instant::now() {
                return Poll::Ready(Some(Err(BodyError::TimedOut)));
            }
            self.timer.as_mut().reset(end);
        }
        Poll::Pending
    }

    fn take_trailers(&mut self) -> Bytes {
        self.source.take_trailers()
    }

    fn held_bytes(&self) -> usize {
        self.source.held_bytes()
    }
}

#[cfg(test)]
mod tests {
    use mote_core::Phases;
    use tokio::sync::mpsc;

    use super::*;

    struct Channel(mpsc::UnboundedReceiver<Bytes>);

    impl BodySource for Channel {
        fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
            self.0.poll_recv(cx).map(|chunk| chunk.map(Ok))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_silence_of_the_function_counts() {
        let (sender, receiver) = mpsc::unbounded_channel();
        let body = Body::Stream { source: Box::new(Channel(receiver)), length: None };
        let reply = Reply { status: 200, headers: Bytes::new(), body, phases: Phases::default() };
        let mut body = limited(reply, Duration::from_secs(10)).body;
        // The client does not read for a while.
        tokio::time::sleep(Duration::from_secs(60)).await;
        for _ in 0..5 {
            let sender = sender.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(9)).await;
                sender.send(Bytes::from_static(b"x")).unwrap();
            });
            assert_eq!(body.chunk().await, Some(Ok(Bytes::from_static(b"x"))));
        }
        let began = Instant::now();
        assert_eq!(body.chunk().await, Some(Err(BodyError::TimedOut)));
        assert_eq!(began.elapsed().as_secs(), 10);
    }
}
