//! Reads HTTP/1.1 request heads strictly (RFC 9112).
//!
//! Parsing gives one canonical request. If a lenient server could read a head in two ways, the head
//! is refused, and the answer names the line and the rule. Nothing is forwarded in its raw form.
//! Header fields are copied into the invocation's layout, and framing fields are interpreted here
//! and dropped. The module is pure, so that every rule can be a row in a table test, and the parser
//! can be fuzzed as a whole.

use mote_core::invocation::{Head, HeadBuilder};
use mote_spec::fields::is_set_by_node;
use mote_spec::hop_by_hop::{Named, connection_options, is_hop_by_hop};

use super::target::{self, TARGET_BYTES_MAX, Target};
use crate::refusal::{Refusal, shown};

pub const FIELDS_MAX: usize = 100;
/// The most bytes of all header lines together.
pub const FIELDS_BYTES_MAX: usize = 32 << 10;
/// The most bytes of a whole head: method, target, version and fields.
pub const HEAD_BYTES_MAX: usize = TARGET_BYTES_MAX + FIELDS_BYTES_MAX + 64;
const METHOD_BYTES_MAX: usize = 24;

/// How the request's body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    None,
    /// The body has this many bytes.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
}

#[derive(Debug)]
pub struct RequestHead {
    /// First path segment: the function's name.
    pub name: String,
    /// Method, path below the name, query and header fields.
    pub head: Head,
    /// Whether the path is a single segment without a trailing `/`.
    pub is_bare: bool,
    /// How the body is delimited.
    pub framing: Framing,
    /// Whether another request may follow on the connection.
    pub keep_alive: bool,
    /// The request is HTTP/1.0, so its answer must not be chunked.
    pub http10: bool,
    /// The client waits for `100 Continue`.
    pub expects_continue: bool,
    /// The client asked for another protocol.
    pub wants_upgrade: bool,
    /// The client asked for WebSocket, and the request fulfils the conditions for it (RFC 6455,
    /// 4.1).
    pub wants_websocket: bool,
}

/// Finds the end of the head in `buffer`, examining only bytes from `scanned` on. Returns the
/// head's length, or `None` if more bytes are needed. Fails if the head is already too long.
pub fn find_end(buffer: &[u8], scanned: usize) -> Result<Option<usize>, Refusal> {
    let from = scanned.saturating_sub(3);
    for at in memchr::memchr_iter(b'\n', &buffer[from..]) {
        let at = from + at;
        let line = &buffer[..at];
        // `parse` refuses a line that ends in a bare LF and names the line's number, so there is no
        // need to wait for the end of the head.
        if !line.ends_with(b"\r") {
            return Ok(Some(at + 1));
        }
        if line.ends_with(b"\r\n\r") {
            return Ok(Some(at + 1));
        }
    }
    if buffer.len() > HEAD_BYTES_MAX {
        let line_end = memchr::memchr(b'\n', buffer).unwrap_or(buffer.len());
        return Err(if line_end > TARGET_BYTES_MAX {
            target_too_long()
        } else {
            fields_too_long()
        });
    }
    Ok(None)
}

/// Reads one complete head. `bytes` must end with the empty line (see [`find_end`]).
pub fn parse(bytes: &[u8]) -> Result<RequestHead, Refusal> {
    let mut lines = Lines { rest: bytes, number: 0 };
    let request_line = lines.next_line()?;
    let (method, target, http10) = request_line_parts(request_line)?;
    let mut absolute_host = None;
    let target = match target.first() {
        Some(b'/') => target,
        _ if target == b"*" => {
            return Err(Refusal::new(400, "M1026", "path is not in normal form"));
        }
        _ => {
            let (host, origin) = absolute_form(target)?;
            absolute_host = Some(host);
            origin
        }
    };
    let Target { name, path, query, is_bare } = target::split(target)?;
    let mut fields = Fields::new(Head::builder(method, path, query));
    let field_lines = lines.rest;
    loop {
        let line = lines.next_line()?;
        if line.is_empty() {
            break;
        }
        if field_lines.len() - lines.rest.len() > FIELDS_BYTES_MAX {
            return Err(fields_too_long());
        }
        fields.line(line, lines.number)?;
    }
    let underscored = fields.underscored;
    let mut head = fields.finish(name, absolute_host, http10)?;
    head.is_bare = is_bare;
    if !underscored {
        return Ok(head);
    }
    let names = names(field_lines);
    if names.iter().any(|name| is_shadowed(name, &names)) {
        return parse(&without_shadowed(bytes, &names));
    }
    if has_twins(&names) { Err(twins()) } else { Ok(head) }
}

/// Copies the head without the lines of [shadowed](is_shadowed) fields.
fn without_shadowed(head: &[u8], names: &[&[u8]]) -> Vec<u8> {
    let lines = head.split_inclusive(|byte| *byte == b'\n').enumerate();
    let is_kept = |(number, line): &(usize, &[u8])| {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        *number == 0 || !is_shadowed(name, names)
    };
    lines.filter(is_kept).flat_map(|(_, line)| line).copied().collect()
}

/// The names of the fields. The lines must already be valid.
fn names(field_lines: &[u8]) -> Vec<&[u8]> {
    let lines = field_lines.split(|byte| *byte == b'\n');
    lines.filter_map(|line| Some(&line[..memchr::memchr(b':', line)?])).collect()
}

struct Lines<'a> {
    rest: &'a [u8],
    /// The number of the line that was last returned. The request line is 0, the first field 1.
    number: usize,
}

impl<'a> Lines<'a> {
    /// The next line without its CR LF.
    fn next_line(&mut self) -> Result<&'a [u8], Refusal> {
        let Some(at) = memchr::memchr(b'\n', self.rest) else {
            return Err(Refusal::new(400, "M1007", "head ends inside a line"));
        };
        let line = &self.rest[..at];
        self.rest = &self.rest[at + 1..];
        let Some(line) = line.strip_suffix(b"\r") else {
            return Err(illegal_byte(self.number, b'\n'));
        };
        self.number += 1;
        if let Some(at) = memchr::memchr(b'\r', line) {
            return Err(illegal_byte(self.number - 1, line[at]));
        }
        Ok(line)
    }
}

fn request_line_parts(line: &[u8]) -> Result<(&[u8], &[u8], bool), Refusal> {
    let malformed = || Refusal::new(400, "M1007", "request line is not METHOD TARGET HTTP/1.1");
    let first = memchr::memchr(b' ', line).ok_or_else(|| {
        // A single word is an HTTP/0.9 request only if nothing follows it.
        Refusal::new(505, "M1023", "HTTP/1.0, 1.1 or 2 only")
    })?;
    let method = &line[..first];
    if method.is_empty() || method.len() > METHOD_BYTES_MAX || !method.iter().all(|b| is_token(*b))
    {
        return Err(malformed());
    }
    let rest = &line[first + 1..];
    let Some(last) = memchr::memrchr(b' ', rest) else {
        return Err(Refusal::new(505, "M1023", "HTTP/1.0, 1.1 or 2 only"));
    };
    let target = &rest[..last];
    let version = &rest[last + 1..];
    if target.len() > TARGET_BYTES_MAX {
        return Err(target_too_long());
    }
    if target.is_empty() || !target.iter().all(|byte| (0x21..=0x7e).contains(byte) && *byte != b'#')
    {
        if target.contains(&b' ') || target.is_empty() {
            return Err(malformed());
        }
        return Err(Refusal::new(400, "M1015", "target must be percent-encoded ASCII"));
    }
    let http10 = match version {
        b"HTTP/1.1" => false,
        b"HTTP/1.0" => true,
        _ if version.starts_with(b"HTTP/") => {
            return Err(Refusal::new(505, "M1023", "HTTP/1.0, 1.1 or 2 only"));
        }
        _ => return Err(malformed()),
    };
    if matches!(method, b"CONNECT" | b"TRACE") {
        let mut refusal = Refusal::new(405, "M1022", "method not supported");
        refusal.allow = Some("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS".into());
        return Err(refusal);
    }
    Ok((method, target, http10))
}

/// Splits `http://host/path` (RFC 9112, 3.2.2) into its host and origin form.
fn absolute_form(target: &[u8]) -> Result<(&[u8], &[u8]), Refusal> {
    let rest = target
        .strip_prefix(b"http://")
        .or_else(|| target.strip_prefix(b"https://"))
        .ok_or_else(|| Refusal::new(400, "M1026", "path is not in normal form"))?;
    let at = memchr::memchr2(b'/', b'?', rest).unwrap_or(rest.len());
    let (host, origin) = rest.split_at(at);
    Ok((host, if origin.is_empty() { b"/" } else { origin }))
}

/// The header fields collected so far.
struct Fields<'a> {
    builder: HeadBuilder,
    count: usize,
    host: Option<&'a [u8]>,
    length: Option<u64>,
    chunked: bool,
    close: bool,
    keep_alive: bool,
    expects_continue: bool,
    upgrade: bool,
    /// `Upgrade` has exactly one value, which is `websocket`.
    websocket: bool,
    /// `Connection` names `upgrade`.
    connection_upgrade: bool,
    /// Other fields that `Connection` names.
    named: Named<'a>,
    /// Whether any name contains a `_`.
    underscored: bool,
}

impl<'a> Fields<'a> {
    fn new(builder: HeadBuilder) -> Self {
        Self {
            builder,
            count: 0,
            host: None,
            length: None,
            chunked: false,
            close: false,
            keep_alive: false,
            expects_continue: false,
            upgrade: false,
            websocket: false,
            connection_upgrade: false,
            named: Named::default(),
            underscored: false,
        }
    }

    fn line(&mut self, line: &'a [u8], number: usize) -> Result<(), Refusal> {
        let number = number - 1;
        let invalid =
            || Refusal::new(400, "M1007", format!("header line {number} is not a valid field"));
        self.count += 1;
        if self.count > FIELDS_MAX {
            return Err(fields_too_long());
        }
        let colon = memchr::memchr(b':', line).ok_or_else(invalid)?;
        let name = &line[..colon];
        let value = &line[colon + 1..];
        if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
            return Err(invalid());
        }
        let value = trim(value);
        if let Some(byte) =
            value.iter().find(|byte| (**byte < 0x20 && **byte != b'\t') || **byte == 0x7f)
        {
            return Err(illegal_byte(number, *byte));
        }
        self.underscored |= memchr::memchr(b'_', name).is_some();
        if self.framing(name, value)? {
            self.builder.header(name, value);
        }
        Ok(())
    }

    /// Reads a field that concerns the connection or the framing. Returns whether the field is
    /// passed on to the function.
    fn framing(&mut self, name: &[u8], value: &'a [u8]) -> Result<bool, Refusal> {
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        // The length is compared first, because it rules out most fields quickly.
        match name.len() {
            4 if is("host") && self.host.replace(value).is_some() => return Err(one_host()),
            14 if is("content-length") => {
                let length = content_length(value)?;
                if self.length.replace(length).is_some() {
                    return Err(Refusal::new(
                        400,
                        "M1002",
                        "Content-Length is given more than once",
                    ));
                }
            }
            17 if is("transfer-encoding") => {
                if self.chunked {
                    return Err(only_chunked());
                }
                transfer_encoding(value)?;
                self.chunked = true;
                return Ok(false);
            }
            10 if is("connection") => {
                return self.connection(value).map(|()| false);
            }
            6 if is("expect") => {
                if !value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(Refusal::new(417, "M1019", "only 100-continue is supported"));
                }
                self.expects_continue = true;
                return Ok(false);
            }
            7 if is("upgrade") => {
                self.websocket = !self.upgrade && value.eq_ignore_ascii_case(b"websocket");
                self.upgrade = true;
                return Ok(false);
            }
            // Programs that receive fields as environment variables would take this field for their
            // own HTTP_PROXY.
            5 if is("proxy") => return Ok(false),
            _ => {}
        }
        Ok(!is_hop_by_hop(name) && !is_set_by_node(name))
    }

    /// Reads a `Connection` field.
    fn connection(&mut self, value: &'a [u8]) -> Result<(), Refusal> {
        for option in connection_options(value) {
            if option.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else if option.eq_ignore_ascii_case(b"upgrade") {
                self.connection_upgrade = true;
            } else if !self.named.add(option) {
                return Err(fields_too_long());
            }
        }
        Ok(())
    }

    fn finish(
        self,
        name: &[u8],
        absolute_host: Option<&[u8]>,
        http10: bool,
    ) -> Result<RequestHead, Refusal> {
        if self.chunked && self.length.is_some() {
            return Err(Refusal::new(
                400,
                "M1001",
                "message length is given twice (Content-Length and Transfer-Encoding)",
            ));
        }
        if self.chunked && http10 {
            return Err(Refusal::new(400, "M1006", "Transfer-Encoding needs HTTP/1.1"));
        }
        match self.host {
            None if http10 => {}
            None => return Err(one_host()),
            Some(host) if !is_host(host) => return Err(one_host()),
            Some(_) => {}
        }
        if let Some(absolute) = absolute_host {
            if !is_host(absolute) {
                return Err(one_host());
            }
            if self.host.is_some_and(|host| !host.eq_ignore_ascii_case(absolute)) {
                return Err(Refusal::new(400, "M1013", "target and Host disagree"));
            }
        }
        let framing = match (self.chunked, self.length) {
            (true, _) => Framing::Chunked,
            (false, Some(length)) if length > 0 => Framing::Length(length),
            _ => Framing::None,
        };
        let wants_websocket = self.websocket && self.connection_upgrade && !http10;
        let mut head = self.builder.finish();
        if !self.named.is_empty() {
            head.retain_headers(|name| !self.named.contains(name));
        }
        Ok(RequestHead {
            wants_websocket: wants_websocket && framing == Framing::None && head.method() == b"GET",
            name: String::from_utf8(name.to_vec())
                .map_err(|_| Refusal::new(400, "M1026", "path is not in normal form"))?,
            head,
            // The caller sets this, because the caller knows the target.
            is_bare: false,
            framing,
            keep_alive: !self.close && (!http10 || self.keep_alive),
            http10,
            expects_continue: self.expects_continue && !http10,
            wants_upgrade: self.upgrade,
        })
    }
}

/// Maps a byte of a name as CGI and its successors read names: in lower case, with `_` equal to
/// `-`.
fn dashed(byte: &u8) -> u8 {
    match byte.to_ascii_lowercase() {
        b'_' => b'-',
        other => other,
    }
}

/// Whether a name with a `_` could be confused with another field's name that has only dashes. A
/// proxy may have set that other field, so the field with the `_` is left out.
pub(crate) fn is_shadowed(name: &[u8], names: &[&[u8]]) -> bool {
    name.contains(&b'_')
        && names.iter().any(|other| {
            !other.contains(&b'_') && other.iter().map(dashed).eq(name.iter().map(dashed))
        })
}

/// Whether two different names become equal when every `_` is replaced by `-`.
pub(crate) fn has_twins(names: &[&[u8]]) -> bool {
    names.iter().filter(|name| name.contains(&b'_')).any(|underscored| {
        names.iter().any(|name| {
            name.iter().map(dashed).eq(underscored.iter().map(dashed))
                && !name.eq_ignore_ascii_case(underscored)
        })
    })
}

pub(crate) fn twins() -> Refusal {
    Refusal::new(400, "M1018", "field names differ only by _ and -")
}

fn content_length(value: &[u8]) -> Result<u64, Refusal> {
    if memchr::memchr(b',', value).is_some() {
        return Err(Refusal::new(400, "M1002", "Content-Length is given more than once"));
    }
    let refused =
        || Refusal::new(400, "M1003", "Content-Length must be decimal digits, at most 2^63");
    if value.is_empty() || value.len() > 19 || !value.iter().all(u8::is_ascii_digit) {
        return Err(refused());
    }
    let number = value.iter().fold(0u128, |n, digit| n * 10 + u128::from(digit - b'0'));
    if number > 1 << 63 { Err(refused()) } else { Ok(number as u64) }
}

fn transfer_encoding(value: &[u8]) -> Result<(), Refusal> {
    let codings: Vec<_> = value.split(|byte| *byte == b',').map(trim).collect();
    match codings.as_slice() {
        [one] if one.eq_ignore_ascii_case(b"chunked") => Ok(()),
        [.., last] if codings.len() > 1 && last.eq_ignore_ascii_case(b"chunked") => {
            if codings[..codings.len() - 1].iter().any(|c| c.eq_ignore_ascii_case(b"chunked")) {
                return Err(only_chunked());
            }
            Err(Refusal::new(501, "M1004", "only chunked is supported as transfer coding"))
        }
        many if many.iter().any(|coding| coding.eq_ignore_ascii_case(b"chunked")) => {
            Err(only_chunked())
        }
        _ => Err(Refusal::new(501, "M1004", "only chunked is supported as transfer coding")),
    }
}

/// Checks for `name`, `name:port` or `[v6]:port`, without user info, path or spaces.
pub(crate) fn is_host(host: &[u8]) -> bool {
    let (name, port) = match host.strip_prefix(b"[") {
        Some(rest) => {
            let Some(end) = memchr::memchr(b']', rest) else { return false };
            let inside = &rest[..end];
            if inside.is_empty()
                || !inside.iter().all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'))
            {
                return false;
            }
            match &rest[end + 1..] {
                [] => return true,
                [b':', port @ ..] => return is_port(port),
                _ => return false,
            }
        }
        None => match memchr::memchr(b':', host) {
            Some(at) => (&host[..at], Some(&host[at + 1..])),
            None => (host, None),
        },
    };
    !name.is_empty()
        && name.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
        && port.is_none_or(is_port)
}

fn is_port(port: &[u8]) -> bool {
    port.len() <= 5 && port.iter().all(u8::is_ascii_digit)
}

/// Whether a byte may be part of a token (RFC 9110, 5.6.2).
pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

fn trim(value: &[u8]) -> &[u8] {
    let blank = |byte: &u8| *byte == b' ' || *byte == b'\t';
    let start = value.iter().position(|byte| !blank(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !blank(byte)).map_or(start, |at| at + 1);
    &value[start..end]
}

fn illegal_byte(number: usize, byte: u8) -> Refusal {
    if number == 0 {
        return Refusal::new(400, "M1008", format!("request line: illegal byte {byte:#04x}"));
    }
    Refusal::new(400, "M1008", format!("header line {number}: illegal byte {byte:#04x}"))
}

pub(crate) fn one_host() -> Refusal {
    Refusal::new(400, "M1012", "exactly one Host (name or name:port) is required")
}

fn only_chunked() -> Refusal {
    Refusal::new(400, "M1005", "chunked must be the only transfer coding")
}

fn target_too_long() -> Refusal {
    Refusal::new(414, "M1016", "target 8,192 bytes at most")
}

fn fields_too_long() -> Refusal {
    Refusal::new(431, "M1017", "headers: 100 fields, 32 KiB at most")
}

/// The answer for a name without a function.
pub(crate) fn no_such_function(name: &str) -> Refusal {
    if name.is_empty() {
        // Anyone may read this text, so it does not list functions.
        let text = "this is mote, which runs functions; each function answers at /NAME";
        return Refusal::new(404, "M0501", text);
    }
    Refusal::new(404, "M0501", format!("no function named {}", shown(name.as_bytes())))
}
