//! The files of the dashboard. They contain no data of the node, so they are served without a login.

use std::io::Read as _;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flate2::read::GzDecoder;
use mote_api::sessions::DASHBOARD;
use mote_http::static_files::accepts;

use super::caller::Caller;
use super::{access, pages};
use crate::Node;

struct File {
    /// The path below `/dashboard/`.
    name: &'static str,
    /// The value of `ETag`.
    tag: &'static str,
    gzip: &'static [u8],
}

/// Every file, in the order of the names.
static FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/dashboard.rs"));

const INDEX: &str = "index.html";
/// The name of each file in this folder contains a hash of its content.
const HASHED: &str = "assets/";

/// What pages of the node may do. Everything that a page loads comes from the node, and no other page
/// may show it in a frame.
const FIELDS: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src \
         'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-frame-options", "DENY"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
];

/// Leads a browser that knows only the address of the node to the dashboard.
pub(super) async fn lead() -> Response {
    (StatusCode::FOUND, [(header::LOCATION, DASHBOARD)]).into_response()
}

pub(super) async fn index(
    state: State<Arc<Node>>,
    caller: ConnectInfo<Caller>,
    headers: HeaderMap,
) -> Response {
    file(state, caller, Path(INDEX.to_owned()), headers).await
}

pub(super) async fn file(
    State(node): State<Arc<Node>>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    if let Err(problem) = pages::check_host(caller, &headers) {
        return with_fields((StatusCode::FORBIDDEN, format!("{}\n", problem.detail)));
    }
    // Without encryption, nobody on another machine could log in.
    if access::address(&node, caller).is_err()
        && let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok())
    {
        let there = format!("https://{host}{DASHBOARD}");
        return with_fields((StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, there)]));
    }
    let found = FILES.binary_search_by_key(&name.as_str(), |file| file.name);
    match found.ok().map(|at| &FILES[at]) {
        Some(file) => with_fields(file.answer(&headers)),
        None => with_fields((StatusCode::NOT_FOUND, "the dashboard has no such file\n")),
    }
}

fn with_fields(answer: impl IntoResponse) -> Response {
    (FIELDS, answer).into_response()
}

impl File {
    fn answer(&self, headers: &HeaderMap) -> Response {
        let kept = match self.name.starts_with(HASHED) {
            true => "public, max-age=31536000, immutable",
            false => "no-cache",
        };
        let fields = [
            (header::CONTENT_TYPE, self.content_type()),
            (header::CACHE_CONTROL, kept),
            (header::ETAG, self.tag),
            (header::VARY, "accept-encoding"),
        ];
        let known = headers.get_all(header::IF_NONE_MATCH).iter();
        if known.flat_map(|tags| tags.as_bytes().split(|byte| *byte == b',')).any(|tag| {
            let tag = tag.trim_ascii();
            tag.strip_prefix(b"W/").unwrap_or(tag) == self.tag.as_bytes()
        }) {
            return (StatusCode::NOT_MODIFIED, fields).into_response();
        }
        let accepted = headers.get(header::ACCEPT_ENCODING);
        match accepted.is_some_and(|value| accepts(value.as_bytes(), "gzip")) {
            true => (fields, [(header::CONTENT_ENCODING, "gzip")], self.gzip).into_response(),
            false => (fields, self.plain()).into_response(),
        }
    }

    /// Few clients need this: every browser accepts gzip.
    fn plain(&self) -> Vec<u8> {
        let mut content = Vec::new();
        GzDecoder::new(self.gzip).read_to_end(&mut content).expect("the build has compressed it");
        content
    }

    fn content_type(&self) -> &'static str {
        match self.name.rsplit_once('.').map_or("", |(_, ending)| ending) {
            "css" => "text/css; charset=utf-8",
            "html" => "text/html; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "json" | "webmanifest" => "application/json",
            "svg" => "image/svg+xml",
            "txt" => "text/plain; charset=utf-8",
            "woff2" => "font/woff2",
            _ => "application/octet-stream",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_complete() {
        assert!(FILES.windows(2).all(|pair| pair[0].name < pair[1].name));
        let index = FILES.iter().find(|file| file.name == INDEX).expect("an index");
        let text = String::from_utf8(index.plain()).expect("text");
        for file in FILES {
            assert!(file.content_type() != "application/octet-stream", "{}", file.name);
        }
        let scripts = FILES.iter().filter(|file| text.contains(file.name));
        assert!(scripts.count() > 0, "the index loads no file: {text}");
    }
}
