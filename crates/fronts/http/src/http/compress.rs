//! Compresses answers if the function's manifest enables it and the client accepts it.

use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use crate::static_files::accepts;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use mote_core::Reply;
use mote_core::body::{Body, BodyError, BodySource};
use mote_core::invocation::{Head, headers, put_header};
use mote_spec::HttpRules;

/// Shorter answers are not compressed, because they fit into one network packet in any case.
const BYTES_MIN: u64 = 1_024;
/// The number of bytes that are compressed before other tasks may run. This takes 0.2 ms on a
/// server's core.
const PIECE_BYTES: usize = 32 << 10;
/// The number of answers that may be compressed at once. Further answers are sent uncompressed. The
/// compression state of each answer takes 295 KiB.
const AT_ONCE_MAX: usize = 64;
/// Fields that describe the bytes of a body. They would no longer be true after compression.
const DIGESTS: [&str; 4] = ["digest", "content-digest", "repr-digest", "content-md5"];
/// At this level, JSON text is 5 % larger than at the best level, and compression takes 28 % of the
/// time.
const LEVEL: Compression = Compression::new(4);

/// Whether to compress the answer, as decided from the request and the function's manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// The function's answers are not compressed.
    Off,
    /// The function's answers are compressed, but this client does not accept compression.
    Plain,
    /// The client accepts a compressed answer.
    Gzip,
    /// The client accepts a compressed answer, but the answer has no body.
    Head,
}

impl Choice {
    pub(super) fn of(rules: Option<&HttpRules>, head: &Head) -> Self {
        if !rules.is_some_and(|rules| rules.compress) {
            return Self::Off;
        }
        let sent = headers(head.headers()).find(|(name, _)| *name == b"accept-encoding");
        let is_accepted = sent.is_some_and(|(_, value)| accepts(value, "gzip"));
        match (is_accepted, head.method()) {
            (false, _) => Self::Plain,
            (true, b"HEAD") => Self::Head,
            (true, _) => Self::Gzip,
        }
    }

    /// The answer in the form that was chosen.
    pub(super) fn apply(self, reply: Reply) -> Reply {
        if self == Self::Off { reply } else { self.applied(reply) }
    }

    #[cold]
    fn applied(self, mut reply: Reply) -> Reply {
        let is_long = reply.body.length().is_none_or(|bytes| bytes >= BYTES_MIN);
        if !is_long || !is_compressible(&reply) {
            return reply;
        }
        let place = matches!(self, Self::Gzip | Self::Head).then(Place::take).flatten();
        let mut block = Vec::with_capacity(reply.headers.len() + 64);
        for (name, value) in headers(&reply.headers) {
            // The compressed bytes differ, although the content is the same, so a strong tag
            // becomes a weak one (RFC 9110, 8.8.1).
            let is_strong = name.eq_ignore_ascii_case(b"etag") && value.starts_with(b"\"");
            match place {
                // Ranges would refer to the uncompressed bytes, so the field is left out.
                Some(_) if name.eq_ignore_ascii_case(b"accept-ranges") => {}
                Some(_) if is_strong => put_header(&mut block, name, &[b"W/", value].concat()),
                _ => put_header(&mut block, name, value),
            }
        }
        put_header(&mut block, b"vary", b"accept-encoding");
        if let Some(place) = place {
            put_header(&mut block, b"content-encoding", b"gzip");
            reply.body = match self {
                // The compressed length is not known before the answer is compressed.
                Self::Head => Body::Empty,
                _ => compressed(std::mem::take(&mut reply.body), place),
            };
        }
        reply.headers = block.into();
        reply
    }
}

/// Whether compression makes the answer shorter and is permitted.
fn is_compressible(reply: &Reply) -> bool {
    if matches!(reply.status, 100..=199 | 204 | 206 | 304) {
        return false;
    }
    let mut kind: &[u8] = b"";
    for (name, value) in headers(&reply.headers) {
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
        if is("content-type") {
            kind = value;
        }
        let keeps_form = is("cache-control")
            && value
                .split(|b| *b == b',')
                .any(|one| one.trim_ascii().eq_ignore_ascii_case(b"no-transform"));
        let is_of_bytes = DIGESTS.iter().any(|digest| is(digest));
        if is("content-encoding") || is("content-range") || is_of_bytes || keeps_form {
            return false;
        }
    }
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let kind = kind.to_ascii_lowercase();
    let ends = |ending: &[u8]| kind.ends_with(ending);
    match &kind[..] {
        // Events are short, and their connections stay open for a long time.
        b"text/event-stream" => false,
        _ if kind.starts_with(b"text/") => true,
        b"image/svg+xml" | b"application/wasm" | b"application/x-ndjson" => true,
        _ => ends(b"json") || ends(b"xml") || ends(b"javascript"),
    }
}

/// A place among the answers that are compressed at once.
struct Place;

static TAKEN: AtomicUsize = AtomicUsize::new(0);

impl Place {
    fn take() -> Option<Self> {
        let place = Self;
        // Dropping `place` decrements the counter, so the counter stays right even if there was no
        // free place.
        (TAKEN.fetch_add(1, Ordering::Relaxed) < AT_ONCE_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        TAKEN.fetch_sub(1, Ordering::Relaxed);
    }
}

fn compressed(body: Body, place: Place) -> Body {
    let mut encoder = GzEncoder::new(Vec::new(), LEVEL);
    match &body {
        Body::Whole(bytes) if bytes.len() <= PIECE_BYTES => {
            // Writing into memory does not fail.
            let _ = encoder.write_all(bytes);
            Body::whole(encoder.finish().unwrap_or_default())
        }
        _ => {
            let is_stream = matches!(body, Body::Stream { .. });
            let source = Compressed {
                body,
                encoder: Some(encoder),
                piece: Bytes::new(),
                is_stream,
                rests: false,
                _place: place,
            };
            Body::Stream { source: Box::new(source), length: None }
        }
    }
}

struct Compressed {
    body: Body,
    /// `None` at the end.
    encoder: Option<GzEncoder<Vec<u8>>>,
    /// The part of the last chunk that is not yet compressed.
    piece: Bytes,
    /// Whether the function sends the chunks one by one. Each chunk is then sent at once.
    is_stream: bool,
    /// Whether other tasks may run before the next piece is compressed.
    rests: bool,
    _place: Place,
}

impl BodySource for Compressed {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            let Some(encoder) = &mut self.encoder else { return Poll::Ready(None) };
            if self.piece.is_empty() {
                match ready!(self.body.poll_chunk(cx)) {
                    Some(Ok(chunk)) => self.piece = chunk,
                    Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                    None => {
                        let rest = self.encoder.take().and_then(|encoder| encoder.finish().ok());
                        return Poll::Ready(rest.map(|rest| Ok(rest.into())));
                    }
                }
                continue;
            }
            if std::mem::replace(&mut self.rests, false) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let now = self.piece.split_to(self.piece.len().min(PIECE_BYTES));
            self.rests = now.len() == PIECE_BYTES;
            // Writing into memory does not fail.
            let _ = encoder.write_all(&now);
            if self.is_stream && self.piece.is_empty() {
                let _ = encoder.flush();
            }
            let out = std::mem::take(encoder.get_mut());
            if !out.is_empty() {
                return Poll::Ready(Some(Ok(out.into())));
            }
        }
    }

    fn take_trailers(&mut self) -> Bytes {
        self.body.take_trailers()
    }

    fn held_bytes(&self) -> usize {
        self.body.held_bytes() + self.piece.len()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use mote_core::Phases;

    use super::*;

    fn reply(fields: &[(&str, &str)], body: Body) -> Reply {
        let mut block = Vec::new();
        for (name, value) in fields {
            put_header(&mut block, name.as_bytes(), value.as_bytes());
        }
        Reply { status: 200, headers: block.into(), body, phases: Phases::default() }
    }

    fn field(reply: &Reply, wanted: &str) -> Option<String> {
        let mut all = headers(&reply.headers);
        let found = all.find(|(name, _)| *name == wanted.as_bytes());
        found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
    }

    async fn plain(reply: Reply) -> Vec<u8> {
        let body = reply.body.collect(1 << 30).await.expect("a body");
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut text).expect("gzip");
        text
    }

    #[tokio::test]
    async fn texts_get_shorter() {
        let text: Vec<u8> = (0..200_000).flat_map(|n: u32| format!("{n} ").into_bytes()).collect();
        for length in [2_000, PIECE_BYTES, PIECE_BYTES + 1, text.len()] {
            let body = Body::whole(text[..length].to_vec());
            let fields = [("content-type", "application/json"), ("etag", "\"a\"")];
            let answer = Choice::Gzip.apply(reply(&fields, body));
            assert_eq!(field(&answer, "content-encoding").as_deref(), Some("gzip"));
            assert_eq!(field(&answer, "vary").as_deref(), Some("accept-encoding"));
            assert_eq!(field(&answer, "etag").as_deref(), Some("W/\"a\""));
            assert_eq!(plain(answer).await, text[..length]);
        }
        assert_eq!(TAKEN.load(Ordering::Relaxed), 0, "all places are given back");
    }

    #[test]
    fn other_answers_stay_as_they_are() {
        let long = || Body::whole(vec![b'a'; 5_000]);
        for (fields, body) in [
            (&[("content-type", "text/plain")][..], Body::whole("short")),
            (&[("content-type", "image/png")], long()),
            (&[], long()),
            (&[("content-type", "text/event-stream")], long()),
            (&[("content-type", "text/css"), ("content-encoding", "br")], long()),
            (&[("content-type", "text/css"), ("cache-control", "public, No-Transform")], long()),
            (&[("content-type", "text/css"), ("Digest", "sha-256=a")], long()),
        ] {
            let answer = Choice::Gzip.apply(reply(fields, body));
            assert!(field(&answer, "vary").is_none(), "{fields:?}");
        }
        // `Vary` tells caches that other clients receive another form of the answer.
        let answer = Choice::Plain.apply(reply(&[("content-type", "text/css")], long()));
        assert_eq!(field(&answer, "vary").as_deref(), Some("accept-encoding"));
        assert!(field(&answer, "content-encoding").is_none());
        let answer = Choice::Off.apply(reply(&[("content-type", "text/css")], long()));
        assert!(field(&answer, "vary").is_none());
    }
}
