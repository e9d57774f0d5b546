//! What the access log records about one request.

use std::net::IpAddr;
use std::time::Instant;

use mote_core::InvocationId;
use mote_core::invocation::{Head, headers};

/// One request and its answer.
#[derive(Debug)]
pub struct Entry {
    /// The client's address, if it is known.
    pub client: Option<IpAddr>,
    /// The name of the caller, if the caller has proved it.
    pub caller: Option<String>,
    /// The method; empty if the head of the request could not be read.
    pub method: Vec<u8>,
    /// The path and the query as they were sent.
    pub target: Vec<u8>,
    /// The first line of a head that could not be read. The log shows it in place of method and
    /// target.
    pub first_line: Vec<u8>,
    /// The HTTP version, as written in a request line.
    pub protocol: &'static str,
    /// The fields `Host`, `Referer` and `User-Agent`.
    pub host: Option<Vec<u8>>,
    /// See `host`.
    pub referer: Option<Vec<u8>>,
    /// See `host`.
    pub user_agent: Option<Vec<u8>>,
    /// The name of the function. Empty if the request was not for a function.
    pub function: String,
    /// The id of the invocation, if there was one.
    pub invocation: Option<InvocationId>,
    /// The status of the answer. 0 if the client disconnected before there was an answer.
    pub status: u16,
    /// The bytes of the answer's body that were handed to the connection.
    pub body_bytes: u64,
    /// The time at which the head of the request was complete.
    pub began: Instant,
}

impl Entry {
    /// The entry of a request whose head could not be read. `arrived` are the bytes received so
    /// far.
    pub fn unreadable(client: IpAddr, protocol: &'static str, arrived: &[u8]) -> Self {
        let first_line = arrived.split(|byte| matches!(byte, b'\r' | b'\n')).next();
        Self {
            first_line: first_line.unwrap_or_default().to_vec(),
            // The unspecified address means that the proxy did not name the client.
            client: Some(client).filter(|client| !client.is_unspecified()),
            caller: None,
            method: Vec::new(),
            target: Vec::new(),
            protocol,
            host: None,
            referer: None,
            user_agent: None,
            function: String::new(),
            invocation: None,
            status: 0,
            body_bytes: 0,
            began: Instant::now(),
        }
    }

    /// The entry of a request with this head. `name` is the first segment of the path, which the
    /// head does not contain. `is_bare` means that the path ends right after `name`, without a
    /// trailing `/`.
    pub fn new(
        client: IpAddr,
        protocol: &'static str,
        (name, is_bare): (&str, bool),
        head: &Head,
    ) -> Self {
        let mut entry = Self::unreadable(client, protocol, b"");
        entry.method.extend_from_slice(head.method());
        entry.target.reserve(2 + name.len() + head.path().len() + head.query().len());
        entry.target.push(b'/');
        entry.target.extend_from_slice(name.as_bytes());
        // In a head, the path is "/" even if the request's path ends after `name`.
        if !is_bare && !name.is_empty() {
            entry.target.extend_from_slice(head.path());
        }
        if !head.query().is_empty() {
            entry.target.push(b'?');
            entry.target.extend_from_slice(head.query());
        }
        for (name, value) in headers(head.headers()) {
            let field = match name {
                b"host" => &mut entry.host,
                b"referer" => &mut entry.referer,
                b"user-agent" => &mut entry.user_agent,
                _ => continue,
            };
            *field = Some(value.to_vec());
        }
        entry
    }

    /// Notes the function that the request was for, and the caller's name if the caller has proved
    /// it.
    pub fn found(&mut self, function: &str, head: &Head) {
        self.function.push_str(function);
        self.caller = head.caller().map(|name| String::from_utf8_lossy(name).into_owned());
    }
}
