//! Holds request bodies until they are complete, so that a call does not occupy an instance while
//! its body is still arriving.
//!
//! A handler that needs its whole body cannot begin before the last byte. Without gathering, a
//! client that begins a body and then stops would occupy a place in the instance until the
//! deadline. If the worker runs one call at a time, that client would block the whole worker.

use std::collections::VecDeque;
use std::hash::Hash;
use std::pin::pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};

use mote_core::Fault;
use mote_core::body::{Body, BodyError, BodySource};
use mote_core::seats::Seats;
use mote_core::shares::{Share, Shares};

/// The most bytes that all bodies may hold together. A body counts, complete or not, until its call
/// has taken it.
const GATHERED_BYTES_MAX: usize = 64 << 20;
/// The part of [`GATHERED_BYTES_MAX`] that one owner may use.
const GATHERED_BYTES_PER_OWNER_MAX: usize = 32 << 20;
/// A body longer than this is not gathered.
pub const GATHERED_BODY_BYTES_MAX: usize = 16 << 20;
/// Bodies are copied into blocks of this size. Without the copy, each chunk from a client that
/// sends byte by byte would keep a whole read buffer in memory.
const BLOCK_BYTES: usize = 64 << 10;
/// Held bytes are counted in steps of this size.
const STEP_BYTES: usize = 4 << 10;
/// The most bodies that may be arriving at once, regardless of their size. When a further one
/// begins, the owner with the most bodies loses its oldest one.
const BODIES_MAX: usize = 4_096;
/// The most bodies of one owner that may be arriving at once. More of them would mean slow uploads
/// from more clients than a node serves.
const BODIES_PER_OWNER_MAX: usize = 1_024;

/// The bodies that a front holds; one per front. `K` identifies an owner, for example an address.
#[derive(Debug)]
pub struct Gathering<K: Eq + Hash> {
    bytes: Shares<K>,
    bodies: Seats<K>,
}

/// Why a call cannot wait for its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotGathered {
    /// Too many bodies are arriving, either from this owner or in total.
    Crowded,
    /// The body did not arrive completely.
    Broken(BodyError),
}

impl From<NotGathered> for Fault {
    fn from(why: NotGathered) -> Self {
        match why {
            NotGathered::Crowded => Fault::NodeFull,
            NotGathered::Broken(error) => Fault::of_body(&error),
        }
    }
}

impl<K: Eq + Hash> Clone for Gathering<K> {
    /// Another handle to the same set of bodies.
    fn clone(&self) -> Self {
        Self { bytes: self.bytes.clone(), bodies: self.bodies.clone() }
    }
}

impl<K: Eq + Hash + Clone> Default for Gathering<K> {
    fn default() -> Self {
        Self::new(GATHERED_BYTES_MAX, GATHERED_BYTES_PER_OWNER_MAX)
    }
}

impl<K: Eq + Hash + Clone + Send + 'static> Gathering<K> {
    /// Waits until `body` is complete. The source of the body must limit the body's length and the
    /// time without data. `head_bytes` is the memory of the rest of the request, which stays
    /// occupied as long as the body is held.
    ///
    /// Returns the body before it is complete if the body is longer than
    /// [`GATHERED_BODY_BYTES_MAX`], or if its owner or all owners together would hold too many
    /// bytes. The returned body contains the part that has arrived, and the rest continues to
    /// arrive. Fails if the body fails or if too many bodies are arriving.
    pub async fn whole(
        &self,
        owner: K,
        head_bytes: usize,
        body: Body,
    ) -> Result<Body, NotGathered> {
        let Body::Stream { mut source, length } = body else { return Ok(body) };
        if length.is_some_and(|length| length > GATHERED_BODY_BYTES_MAX as u64) {
            return Ok(Body::Stream { source, length });
        }
        let crowded = |_| NotGathered::Crowded;
        let seat = self.bodies.take(owner.clone()).map_err(crowded)?;
        let mut ended = pin!(seat.ended());
        let base = (head_bytes + STEP_BYTES).next_multiple_of(STEP_BYTES);
        let share = Some(self.bytes.take(owner, base).map_err(crowded)?);
        let mut held = Held { blocks: VecDeque::new(), bytes: 0, counted: 0, share };
        loop {
            let chunk = std::future::poll_fn(|cx| match source.poll_chunk(cx) {
                Poll::Pending => ended.as_mut().poll(cx).map(|()| Err(NotGathered::Crowded)),
                Poll::Ready(chunk) => Poll::Ready(chunk.transpose().map_err(NotGathered::Broken)),
            });
            let Some(chunk) = chunk.await? else { break };
            if !held.add(&chunk) {
                held.blocks.push_back(BytesMut::from(&chunk[..]));
                let source = Box::new(Gathered { held, rest: Some(source) });
                return Ok(Body::Stream { source, length });
            }
        }
        let length = Some(held.bytes as u64);
        if held.bytes == 0 {
            return Ok(Body::Empty);
        }
        Ok(Body::Stream { source: Box::new(Gathered { held, rest: None }), length })
    }

    #[cfg(test)]
    fn held_bytes(&self) -> usize {
        self.bytes.taken()
    }
}

impl<K: Eq + Hash + Clone> Gathering<K> {
    fn new(total_max: usize, owner_max: usize) -> Self {
        let bytes = Shares::new(total_max, owner_max);
        Self { bytes, bodies: Seats::new(BODIES_MAX, BODIES_PER_OWNER_MAX) }
    }
}

struct Held<K: Eq + Hash> {
    blocks: VecDeque<BytesMut>,
    bytes: usize,
    /// How many of the held bytes are counted; a multiple of [`STEP_BYTES`].
    counted: usize,
    share: Option<Share<K>>,
}

impl<K: Eq + Hash + Clone> Held<K> {
    /// Copies a chunk. If there is no room for it, returns `false` and copies nothing.
    fn add(&mut self, mut chunk: &[u8]) -> bool {
        let bytes = self.bytes + chunk.len();
        let counted = bytes.next_multiple_of(STEP_BYTES);
        let has_room = bytes <= GATHERED_BODY_BYTES_MAX
            && self.share.as_mut().is_some_and(|share| share.grow(counted - self.counted).is_ok());
        if !has_room {
            return false;
        }
        (self.bytes, self.counted) = (bytes, counted);
        while !chunk.is_empty() {
            let free = self.blocks.back().map_or(0, |block| BLOCK_BYTES - block.len());
            if free == 0 {
                self.blocks.push_back(BytesMut::new());
                continue;
            }
            let (now, later) = chunk.split_at(free.min(chunk.len()));
            if let Some(block) = self.blocks.back_mut() {
                block.extend_from_slice(now);
            }
            chunk = later;
        }
        true
    }
}

/// A gathered body, and the part that is still to arrive if the body was returned before its end.
struct Gathered<K: Eq + Hash> {
    held: Held<K>,
    rest: Option<Box<dyn BodySource>>,
}

impl<K: Eq + Hash + Send> BodySource for Gathered<K> {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        if let Some(block) = self.held.blocks.pop_front() {
            return Poll::Ready(Some(Ok(block.freeze())));
        }
        self.held.share = None;
        self.rest.as_mut().map_or(Poll::Ready(None), |rest| rest.poll_chunk(cx))
    }

    fn held_bytes(&self) -> usize {
        self.held.blocks.iter().map(BytesMut::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body of chunks with these lengths. After the last chunk, the body ends if the flag is set;
    /// otherwise it waits forever.
    struct Chunks(VecDeque<usize>, bool);

    impl BodySource for Chunks {
        fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
            match self.0.pop_front() {
                Some(size) => Poll::Ready(Some(Ok(vec![b'x'; size].into()))),
                None if self.1 => Poll::Ready(None),
                None => Poll::Pending,
            }
        }
    }

    fn body(sizes: &[usize], ends: bool) -> Body {
        let source = Box::new(Chunks(sizes.iter().copied().collect(), ends));
        Body::Stream { source, length: None }
    }

    #[test]
    fn a_body_is_handed_on_when_its_last_byte_is_there() {
        let gathering = Gathering::new(1 << 20, 1 << 20);
        let whole = now(gathering.whole("a", 0, body(&[100_000, 1, 70_000], true))).unwrap();
        assert_eq!(whole.length(), Some(170_001));
        // The sum includes one step for the head of the request.
        assert_eq!(gathering.held_bytes(), 172_032 + STEP_BYTES);
        assert_eq!(now(whole.collect(1 << 20)).unwrap().len(), 170_001);
        assert_eq!(gathering.held_bytes(), 0);
        assert!(matches!(now(gathering.whole("a", 0, body(&[], true))), Ok(Body::Empty)));

        let mut unfinished = Box::pin(gathering.whole("a", 0, body(&[10], false)));
        assert!(poll(&mut unfinished).is_pending());
        drop(unfinished);
        assert_eq!(gathering.held_bytes(), 0);
    }

    #[test]
    fn what_has_no_room_goes_on_arriving() {
        let gathering = Gathering::new(60_000, 30_000);
        let held = now(gathering.whole("a", 0, body(&[16_000], true))).unwrap();
        // The owner already holds 16 KiB, so the second chunk does not fit. All chunks still
        // arrive.
        let late = now(gathering.whole("a", 0, body(&[3_000, 5_000, 2_000], true))).unwrap();
        assert_eq!(late.length(), None);
        assert_eq!(now(late.collect(1 << 20)).unwrap().len(), 10_000);
        let other = now(gathering.whole("b", 0, body(&[16_000], true))).unwrap();
        assert_eq!(other.length(), Some(16_000));
        drop((held, other));
        assert_eq!(gathering.held_bytes(), 0);

        let announced = GATHERED_BODY_BYTES_MAX as u64 + 1;
        let Body::Stream { source, .. } = body(&[1], false) else { unreachable!() };
        let long = Body::Stream { source, length: Some(announced) };
        assert_eq!(now(gathering.whole("a", 0, long)).unwrap().length(), Some(announced));
    }

    #[test]
    fn bodies_and_heads_count_although_nothing_of_them_has_come() {
        let gathering = Gathering::default();
        let begin = |owner: &'static str, head_bytes| {
            let mut call = Box::pin(gathering.whole(owner, head_bytes, body(&[], false)));
            let refused = matches!(poll(&mut call), Poll::Ready(Err(NotGathered::Crowded)));
            (call, refused)
        };
        let held: Vec<_> = (0..BODIES_PER_OWNER_MAX).map(|_| begin("a", 100)).collect();
        assert!(held.iter().all(|(_, refused)| !refused));
        let mut oldest = held;
        let newest = begin("a", 100);
        assert!(!newest.1);
        let polled = poll(&mut oldest[0].0);
        assert!(matches!(polled, Poll::Ready(Err(NotGathered::Crowded))), "one body too many");
        assert!(poll(&mut oldest[1].0).is_pending());
        let long: Vec<_> = (0..2_000).map(|_| begin("b", 30_000)).collect();
        let begun = long.iter().filter(|(_, refused)| !refused).count();
        assert!(begun < 1_000 && begun > 900, "{begun} heads of 30 kB");
        assert!(gathering.held_bytes() < GATHERED_BYTES_MAX);
        drop((oldest, newest, long));
        assert_eq!(gathering.held_bytes(), 0);
    }

    fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
        std::pin::Pin::new(future).poll(&mut Context::from_waker(std::task::Waker::noop()))
    }

    /// The result of a future that does not have to wait.
    fn now<T>(future: impl Future<Output = T>) -> T {
        match poll(&mut std::pin::pin!(future)) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("it waits"),
        }
    }
}
