//! Serves a function's static files (pages, styles, pictures) without running the function.
//!
//! [`answer`] finds the requested file and makes the answer, with validators, ranges and
//! precompressed variants (RFC 9110). It opens only files below the function's folder, even if a
//! symbolic link points elsewhere. This module must not know how an answer is sent or whether the
//! client may read the file. The lookup is in `lookup.rs`, conditional requests and ranges are in
//! `conditions.rs`.

mod coding;
mod conditions;
mod field;
mod kinds;
mod lookup;
mod source;

use std::path::Path;

use bytes::Bytes;
use mote_core::body::Body;
use mote_core::invocation::{Head, put_header};
use mote_core::{Phases, Reply};
use mote_spec::StaticFiles;

pub use coding::accepts;
use conditions::{Part, Validity};
use field::field;
use lookup::{Found, Wanted};

/// The answer to a request for a file. `None` if the file does not exist; the function then
/// answers. `code` is the folder with the code of the function's revision, whose name identifies
/// the content. `name` is the function's name if the request's path was that name without a
/// trailing `/`.
pub async fn answer(
    code: &Path,
    rules: &StaticFiles,
    head: &Head,
    name: Option<&str>,
) -> Option<Reply> {
    if !matches!(head.method(), b"GET" | b"HEAD") {
        return None;
    }
    let wanted = Wanted::of(head)?;
    let code = code.to_owned();
    let folder = rules.folder.clone();
    let fallback = rules.fallback.clone().filter(|_| wants_page(head));
    let looked =
        tokio::task::spawn_blocking(move || lookup::find(&code, &folder, &wanted, fallback));
    let found = looked.await.ok()??;
    match found {
        Found::Folder(last) => Some(redirect(name.unwrap_or(&last), head.query())),
        Found::File(_) if name.is_some() => Some(redirect(name?, head.query())),
        Found::File(file) => Some(file_reply(file, rules.cache_s, head)),
        // A fallback page may change with each deploy, so clients must not cache it as the
        // requested page.
        Found::Fallback(file) => Some(file_reply(file, 0, head)),
    }
}

/// Whether a browser wants to open the address as a page, rather than load a script or a picture
/// for another page.
fn wants_page(head: &Head) -> bool {
    let accepted = field(head, b"accept").unwrap_or_default();
    accepted.split(|byte| *byte == b',').any(|one| one.trim_ascii().starts_with(b"text/html"))
}

/// Redirects a browser to the same address with a trailing `/`. Relative links in a page then point
/// into the folder.
fn redirect(last: &str, query: &[u8]) -> Reply {
    let mut to = format!("{last}/").into_bytes();
    if !query.is_empty() {
        to.push(b'?');
        to.extend_from_slice(query);
    }
    let mut block = Vec::new();
    put_header(&mut block, b"location", &to);
    reply(308, block, Body::Empty)
}

fn reply(status: u16, block: Vec<u8>, body: Body) -> Reply {
    Reply { status, headers: Bytes::from(block), body, phases: Phases::default() }
}

fn file_reply(file: lookup::File, cache_s: u32, head: &Head) -> Reply {
    let mut block = Vec::new();
    let cache = match cache_s {
        0 => "no-cache".to_owned(),
        seconds => format!("max-age={seconds}"),
    };
    for (name, value) in [
        ("etag", file.tag.as_str()),
        ("cache-control", &cache),
        ("accept-ranges", "bytes"),
        ("x-content-type-options", "nosniff"),
    ] {
        put_header(&mut block, name.as_bytes(), value.as_bytes());
    }
    if file.has_variants {
        put_header(&mut block, b"vary", b"accept-encoding");
    }
    let asked = conditions::Asked {
        none_match: field(head, b"if-none-match"),
        if_match: field(head, b"if-match"),
        range: field(head, b"range").filter(|_| head.method() == b"GET"),
        if_range: field(head, b"if-range"),
    };
    match asked.validity(&file.tag) {
        Validity::Unchanged => return reply(304, block, Body::Empty),
        Validity::Changed => return reply(412, block, Body::Empty),
        Validity::Asked => {}
    }
    put_header(&mut block, b"content-type", file.kind.as_bytes());
    if let Some(coding) = file.coding {
        put_header(&mut block, b"content-encoding", coding.as_bytes());
    }
    let (status, start, length) = match asked.part(&file.tag, file.bytes) {
        Part::Whole => (200, 0, file.bytes),
        Part::Range(start, length) => {
            let value = format!("bytes {start}-{}/{}", start + length - 1, file.bytes);
            put_header(&mut block, b"content-range", value.as_bytes());
            (206, start, length)
        }
        Part::Beyond => {
            let value = format!("bytes */{}", file.bytes);
            put_header(&mut block, b"content-range", value.as_bytes());
            return reply(416, block, Body::Empty);
        }
    };
    let body = match file.whole {
        Some(whole) => Body::whole(whole.slice(start as usize..(start + length) as usize)),
        None => source::body(file.open, start, length),
    };
    reply(status, block, body)
}

#[cfg(test)]
mod tests;
