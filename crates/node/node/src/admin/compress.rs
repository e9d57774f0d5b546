//! Compresses answers for clients that accept it. A page requests the same lists again and again,
//! perhaps over a slow network.

use std::io::Write as _;

use axum::body::Body;
use axum::body::HttpBody as _;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;
use mote_http::static_files::accepts;

/// Shorter answers fit into one network packet in any case.
const BYTES_MIN: u64 = 1_024;
/// Longer answers are compressed on another thread, because compressing them here would hold up other
/// requests. Only metrics are that long: for 1,000 functions they take 5 MB.
const BYTES_HERE_MAX: usize = 1 << 20;
/// Longer answers are sent as they are.
const BYTES_MAX: u64 = 32 << 20;
/// The fastest level. It shrinks lists of functions to a seventh.
const LEVEL: Compression = Compression::fast();

/// Compresses JSON and text of known length. Streams are sent as they are, because each of their
/// lines must arrive at once.
pub(super) async fn compress(request: Request, next: Next) -> Response {
    let accepted = request.headers().get(header::ACCEPT_ENCODING);
    let is_accepted = accepted.is_some_and(|value| accepts(value.as_bytes(), "gzip"));
    let response = next.run(request).await;
    let bytes = response.body().size_hint().exact();
    let is_long = bytes.is_some_and(|bytes| (BYTES_MIN..=BYTES_MAX).contains(&bytes));
    if !is_accepted || !is_long || !is_compressible(response.headers()) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    // The body is already in memory, so reading it neither waits nor fails.
    let Ok(plain) = axum::body::to_bytes(body, usize::MAX).await else {
        return Response::from_parts(head, Body::empty());
    };
    let packed = match plain.len() {
        0..BYTES_HERE_MAX => packed(&plain),
        _ => {
            let plain = plain.clone();
            tokio::task::spawn_blocking(move || packed(&plain)).await.unwrap_or_default()
        }
    };
    let Some(packed) = packed else { return Response::from_parts(head, plain.into()) };
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    head.headers.append(header::VARY, HeaderValue::from_static("accept-encoding"));
    Response::from_parts(head, packed.into())
}

fn packed(plain: &[u8]) -> Option<Vec<u8>> {
    let mut packed = GzEncoder::new(Vec::with_capacity(plain.len() / 8), LEVEL);
    packed.write_all(plain).and_then(|()| packed.finish()).ok()
}

/// Answers of functions are excluded by the route, so the type alone decides.
fn is_compressible(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let texts: [&[u8]; 4] =
        [b"application/json", b"application/jsonl", b"application/openmetrics-text", b"text/plain"];
    let is_text = texts.iter().any(|text| kind.starts_with(text));
    is_text && !headers.contains_key(header::CONTENT_ENCODING)
}
