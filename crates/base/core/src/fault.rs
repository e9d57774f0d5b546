//! The classes of failed invocations, and the table with each front's answer to them.

use std::fmt;

use mote_spec::Platform;

use crate::body::BodyError;

/// The party that can correct the failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaultClass {
    /// The request is wrong.
    Caller,
    /// The function failed, crashed or took too long.
    Function,
    /// The function or the node is full; the same request may succeed later.
    Capacity,
    /// `mote` itself failed.
    Platform,
}

/// Why an invocation ended without an answer from the function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// No function has this name.
    NoSuchFunction,
    /// The function requires a valid key, and the request has none.
    NoKey,
    /// Like [`Fault::NoKey`], for a function that also accepts the key as a password.
    NoPassword,
    /// The function requires a valid token, and the request has none.
    NoToken,
    /// The node does not have the keys that verify tokens yet.
    NoTokenKeys,
    /// The function requires a client certificate that it accepts, and the connection has none.
    NoCertificate,
    /// The function accepts only signed requests, and this request has no valid signature.
    NoSignature,
    /// The node lacks the secret that verifies signatures.
    NoSignatureSecret,
    /// The caller's token is valid, but lacks a claim that the function requires.
    OtherToken,
    /// The caller's key does not open this function.
    OtherKey,
    /// The caller's address has sent too many wrong keys.
    TooManyKeys,
    /// A rate of calls is used up.
    TooManyCalls {
        /// Seconds until the next call is accepted.
        retry_after_s: u32,
        /// Whose rate it is.
        of: RateOf,
    },
    /// The function, or this caller, already has as many unfinished calls as allowed.
    TooManyAtOnce {
        /// Whether the limit that was reached is the caller's and not the function's.
        of_caller: bool,
    },
    /// Only callers on the node's machine may call the function.
    NotLocal,
    /// The function does not accept requests from web pages of other sites, and such a page caused
    /// this request, or may have caused it.
    OtherSite,
    /// The request body is larger than the function's limit.
    BodyTooLarge {
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// The request body ended early or broke its framing.
    BodyIncomplete,
    /// The caller left before the answer.
    CallerGone,
    /// The function's queue is full.
    QueueFull,
    /// The node has no room for another instance.
    NodeFull,
    /// The function's namespace is at one of its limits.
    NamespaceFull {
        /// Which limit was reached, for the owner of the function.
        message: String,
    },
    /// The node is stopping.
    Stopping,
    /// The deadline passed while the invocation waited for a free worker.
    DeadlineQueued {
        /// The deadline in milliseconds.
        timeout_ms: u64,
    },
    /// The deadline passed while an instance was starting.
    DeadlineStarting {
        /// The deadline in milliseconds.
        timeout_ms: u64,
    },
    /// The deadline passed while the function ran.
    DeadlineRunning {
        /// The deadline in milliseconds.
        timeout_ms: u64,
    },
    /// The handler raised an error. The text is for the log and for callers on the management
    /// socket, and is never sent to the network.
    HandlerError {
        /// First line of the error.
        message: String,
    },
    /// No instance became ready; the text says why.
    StartFailed {
        /// What went wrong.
        message: String,
    },
    /// The worker was killed by a signal while it held the invocation.
    WorkerKilled {
        /// Signal number.
        signal: i32,
        /// Which attempt at the invocation this was, from 1.
        attempt: u8,
    },
    /// The kernel killed the worker because the instance passed its memory limit.
    OutOfMemory {
        /// The limit in bytes.
        limit_bytes: u64,
        /// The platform in whose files the limit can be set.
        platform: Option<Platform>,
    },
    /// The worker exited while it held the invocation.
    WorkerExited {
        /// Exit status.
        status: i32,
        /// Which attempt at the invocation this was, from 1.
        attempt: u8,
    },
    /// The worker broke the worker protocol or sent an answer that cannot be forwarded.
    BadReply {
        /// What was wrong with it.
        message: String,
    },
    /// The answer is longer than the front can carry.
    AnswerTooLarge {
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// A bug or an exhausted resource in `mote`.
    Internal {
        /// What failed; logged, not shown to callers.
        message: String,
    },
}

/// Whose calls a rate limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateOf {
    /// All callers of a function.
    Function,
    /// One caller of a function.
    Caller,
    /// All callers of a namespace's functions.
    Namespace,
}

/// How each front answers a fault: one row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultAnswer {
    /// HTTP status (RFC 9110).
    pub http: u16,
    /// CoAP code as class and detail (RFC 7252, 8516): `(4, 4)` stands for 4.04.
    pub coap: (u8, u8),
    /// Seconds for `Retry-After` and CoAP Max-Age, if a retry makes sense.
    pub retry_after_s: Option<u32>,
    /// Whether `mote` itself may run the invocation again, provided that the method is safe to
    /// repeat.
    pub retryable: bool,
    /// The `outcome` label of the metrics.
    pub outcome: &'static str,
    /// Stable error code.
    pub code: &'static str,
}

impl Fault {
    /// The fault for a request body that did not arrive completely.
    pub fn of_body(error: &BodyError) -> Self {
        match error {
            BodyError::TooLarge(limit_bytes) => Fault::BodyTooLarge { limit_bytes: *limit_bytes },
            BodyError::Incomplete | BodyError::TimedOut | BodyError::WorkerFailed => {
                Fault::BodyIncomplete
            }
        }
    }

    /// The table row for this fault.
    pub fn answer(&self) -> FaultAnswer {
        let row = |http, coap, retry_after_s, retryable, outcome, code| FaultAnswer {
            http,
            coap,
            retry_after_s,
            retryable,
            outcome,
            code,
        };
        match self {
            Fault::NoSuchFunction => row(404, (4, 4), None, false, "caller", "M0501"),
            Fault::NoKey | Fault::NoPassword => row(401, (4, 1), None, false, "caller", "M0520"),
            Fault::NoToken => row(401, (4, 1), None, false, "caller", "M0527"),
            Fault::NoTokenKeys => row(503, (5, 3), Some(5), false, "platform", "M0528"),
            Fault::NoCertificate => row(403, (4, 3), None, false, "caller", "M0532"),
            Fault::NoSignature => row(401, (4, 1), None, false, "caller", "M0530"),
            Fault::NoSignatureSecret => row(503, (5, 3), Some(60), false, "platform", "M0531"),
            Fault::OtherToken => row(403, (4, 3), None, false, "caller", "M0529"),
            Fault::OtherKey => row(403, (4, 3), None, false, "caller", "M0521"),
            Fault::TooManyKeys => row(429, (4, 29), Some(1), false, "caller", "M0522"),
            Fault::TooManyCalls { retry_after_s, .. } => {
                row(429, (4, 29), Some(*retry_after_s), false, "caller", "M0524")
            }
            Fault::TooManyAtOnce { .. } => row(429, (4, 29), Some(1), false, "caller", "M0526"),
            Fault::NotLocal => row(403, (4, 3), None, false, "caller", "M0523"),
            Fault::OtherSite => row(403, (4, 3), None, false, "caller", "M0525"),
            Fault::BodyTooLarge { .. } => row(413, (4, 13), None, false, "caller", "M1024"),
            Fault::BodyIncomplete => row(400, (4, 0), None, false, "caller", "M1025"),
            Fault::CallerGone => row(499, (4, 0), None, false, "caller", "M0503"),
            Fault::QueueFull => row(429, (4, 29), Some(1), false, "capacity", "M0504"),
            Fault::NodeFull => row(503, (5, 3), Some(1), false, "capacity", "M0505"),
            Fault::NamespaceFull { .. } => row(503, (5, 3), Some(1), false, "capacity", "M0428"),
            Fault::Stopping => row(503, (5, 3), Some(1), false, "capacity", "M0506"),
            Fault::DeadlineQueued { .. } => row(504, (5, 4), None, false, "timeout", "M0507"),
            Fault::DeadlineStarting { .. } => row(504, (5, 4), None, false, "timeout", "M0508"),
            Fault::DeadlineRunning { .. } => row(504, (5, 4), None, false, "timeout", "M0509"),
            Fault::HandlerError { .. } => row(500, (5, 0), None, false, "function", "M0510"),
            Fault::StartFailed { .. } => row(502, (5, 2), None, false, "function", "M0411"),
            Fault::WorkerKilled { .. } => row(502, (5, 2), None, true, "function", "M0511"),
            Fault::OutOfMemory { .. } => row(502, (5, 2), None, false, "function", "M0502"),
            Fault::WorkerExited { .. } => row(502, (5, 2), None, true, "function", "M0512"),
            Fault::BadReply { .. } => row(502, (5, 2), None, false, "function", "M0513"),
            Fault::AnswerTooLarge { .. } => row(502, (5, 2), None, false, "function", "M0514"),
            Fault::Internal { .. } => row(500, (5, 0), None, false, "platform", "M0599"),
        }
    }

    /// The HTTP status of this fault for callers of a function that was written for `compat`. The
    /// status is that of the table, unless the platform's callers expect another one.
    pub fn http_for(&self, compat: Option<Platform>) -> u16 {
        match (compat, self) {
            (Some(Platform::Knative), Fault::QueueFull) => 503,
            (
                Some(Platform::Kubeless),
                Fault::DeadlineQueued { .. }
                | Fault::DeadlineStarting { .. }
                | Fault::DeadlineRunning { .. },
            ) => 408,
            _ => self.answer().http,
        }
    }

    /// The party that can correct the failure.
    pub fn class(&self) -> FaultClass {
        match self {
            Fault::NoSuchFunction
            | Fault::NoKey
            | Fault::NoPassword
            | Fault::NoToken
            | Fault::NoCertificate
            | Fault::NoSignature
            | Fault::OtherToken
            | Fault::OtherKey
            | Fault::TooManyKeys
            | Fault::TooManyCalls { .. }
            | Fault::TooManyAtOnce { .. }
            | Fault::NotLocal
            | Fault::OtherSite
            | Fault::BodyTooLarge { .. }
            | Fault::BodyIncomplete
            | Fault::CallerGone => FaultClass::Caller,
            Fault::QueueFull
            | Fault::NodeFull
            | Fault::NamespaceFull { .. }
            | Fault::Stopping
            | Fault::DeadlineQueued { .. } => FaultClass::Capacity,
            Fault::DeadlineStarting { .. }
            | Fault::DeadlineRunning { .. }
            | Fault::HandlerError { .. }
            | Fault::StartFailed { .. }
            | Fault::WorkerKilled { .. }
            | Fault::OutOfMemory { .. }
            | Fault::WorkerExited { .. }
            | Fault::BadReply { .. }
            | Fault::AnswerTooLarge { .. } => FaultClass::Function,
            Fault::Internal { .. } | Fault::NoTokenKeys | Fault::NoSignatureSecret => {
                FaultClass::Platform
            }
        }
    }

    /// Sets the number of the attempt (from 1) at which the fault occurred.
    #[must_use]
    pub fn at_attempt(mut self, number: u8) -> Self {
        if let Fault::WorkerKilled { attempt, .. } | Fault::WorkerExited { attempt, .. } = &mut self
        {
            *attempt = number;
        }
        self
    }

    /// The text for the caller on the network. It contains no internals and no text from the
    /// function.
    pub fn public_text(&self, function: &str) -> String {
        let at = |attempt: u8| if attempt > 1 { ", also at the second attempt" } else { "" };
        match self {
            Fault::NoSuchFunction => format!("no function named {function}"),
            Fault::NoKey => format!("{function}: send a valid key"),
            Fault::NoPassword => {
                format!("{function}: send the name of a caller and its key as the password")
            }
            Fault::NoToken => format!("{function}: send a valid token"),
            Fault::NoTokenKeys => {
                format!("{function}: tokens cannot be checked yet, try again later")
            }
            Fault::NoCertificate => {
                format!(
                    "{function}: connect over TLS or DTLS with a client certificate that it accepts"
                )
            }
            Fault::NoSignature => format!("{function}: send a request with a valid signature"),
            Fault::NoSignatureSecret => {
                format!("{function}: signatures cannot be checked yet, try again later")
            }
            Fault::OtherToken => format!("{function}: this token does not open it"),
            Fault::OtherKey => format!("{function}: this key does not open it"),
            Fault::TooManyKeys => {
                "too many wrong keys or tokens from this address; try again later".into()
            }
            Fault::TooManyCalls { retry_after_s, of } => {
                let of = match of {
                    RateOf::Function => "",
                    RateOf::Caller => " of this caller",
                    RateOf::Namespace => " of functions in its namespace",
                };
                format!("{function}: too many calls{of}, try again in {retry_after_s} s")
            }
            Fault::TooManyAtOnce { of_caller } => {
                let of = if *of_caller { " of this caller" } else { "" };
                format!("{function}: too many calls{of} at once, try again when one has ended")
            }
            Fault::NotLocal => format!("{function} is not open to other machines"),
            Fault::OtherSite => format!(
                "{function} is not open to web pages of other sites or under other host names"
            ),
            Fault::BodyTooLarge { limit_bytes } => {
                format!(
                    "body limit {}; raise it: body in [limits] or body_max in [http]",
                    bytes_text(*limit_bytes)
                )
            }
            Fault::BodyIncomplete => "request body ended early".to_owned(),
            Fault::CallerGone => "the caller disconnected".to_owned(),
            Fault::QueueFull => format!("{function}: queue is full, try again later"),
            Fault::NodeFull => "the node is full, try again later".to_owned(),
            Fault::NamespaceFull { .. } => {
                format!("{function}: its namespace is at a limit, try again later")
            }
            Fault::Stopping => "the node is stopping, try again later".to_owned(),
            Fault::DeadlineQueued { timeout_ms } => {
                format!(
                    "{function}: deadline of {timeout_ms} ms passed while waiting for a free worker"
                )
            }
            Fault::DeadlineStarting { timeout_ms } => {
                format!(
                    "{function}: deadline of {timeout_ms} ms passed while an instance was starting"
                )
            }
            Fault::DeadlineRunning { timeout_ms } => {
                format!("{function}: deadline of {timeout_ms} ms passed while the function ran")
            }
            Fault::HandlerError { .. } => format!("{function} failed; see: mote logs {function}"),
            Fault::StartFailed { .. } => {
                format!("{function} did not start; see: mote logs {function}")
            }
            Fault::WorkerKilled { signal, attempt } => {
                format!("{function}: worker was killed by signal {signal}{}", at(*attempt))
            }
            Fault::OutOfMemory { limit_bytes, platform } => {
                let limit = bytes_text(*limit_bytes);
                let own = platform.and_then(Platform::memory_key);
                let own = own.map_or_else(String::new, |key| format!(", or {key}"));
                format!(
                    "{function} was stopped by the kernel: limit {limit}; raise it: [limits] memory \
                     in mote.toml{own}"
                )
            }
            Fault::WorkerExited { status, attempt } => {
                format!("{function}: worker exited {status} without an answer{}", at(*attempt))
            }
            Fault::BadReply { .. } => format!("{function}: the answer is not valid"),
            Fault::AnswerTooLarge { limit_bytes } => format!(
                "{function}: the answer is longer than {}, the limit over CoAP; answer in parts, or call the function over HTTP",
                bytes_text(*limit_bytes)
            ),
            Fault::Internal { .. } => "the node could not serve this request".to_owned(),
        }
    }
}

impl Fault {
    /// The full text for logs and for the owner of the function.
    pub fn full_text(&self, function: &str) -> String {
        match self {
            Fault::HandlerError { message }
            | Fault::StartFailed { message }
            | Fault::BadReply { message }
            | Fault::Internal { message } => message.clone(),
            other => other.public_text(function),
        }
    }
}

impl fmt::Display for Fault {
    /// The full text, without the name of the function.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full_text("function"))
    }
}

/// Joins an error and its causes on one line. Used only at the edge, where the chain is reported
/// once.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// A size as text for people: in a binary unit if it is a whole number of them, otherwise in bytes.
pub fn bytes_text(bytes: u64) -> String {
    for (unit, size) in [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= size && bytes.is_multiple_of(size) {
            return format!("{} {unit}", bytes / size);
        }
    }
    format!("{bytes} bytes")
}

/// A size as text for people who do not need the exact value, such as the memory of a machine. It
/// has up to two decimals, in the largest unit of which the size has at least one.
pub fn rounded_bytes_text(bytes: u64) -> String {
    for (unit, size) in [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= size {
            let number = format!("{:.2}", bytes as f64 / size as f64);
            return format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'));
        }
    }
    format!("{bytes} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (bytes, text) in [
            (18_513_069 << 10, "17.66 GiB"),
            (2 << 30, "2 GiB"),
            (100 << 20, "100 MiB"),
            (3 << 19, "1.5 MiB"),
            (1_000, "1000 bytes"),
        ] {
            assert_eq!(rounded_bytes_text(bytes), text);
        }
        assert_eq!(bytes_text(6 << 20), "6 MiB");
        assert_eq!(bytes_text(1500), "1500 bytes");
        assert_eq!(bytes_text(2048), "2 KiB");
    }

    #[test]
    fn network_text_never_carries_the_functions_own_words() {
        let secret = "password=hunter2";
        for fault in [
            Fault::HandlerError { message: secret.into() },
            Fault::StartFailed { message: secret.into() },
            Fault::BadReply { message: secret.into() },
            Fault::Internal { message: secret.into() },
        ] {
            assert!(!fault.public_text("f").contains("hunter2"), "{fault:?}");
            assert!(fault.to_string().contains("hunter2"), "{fault:?}");
        }
    }
}
