//! Calls functions through the dashboard. Header fields name the function and the options.

use std::net::SocketAddr;

use crate::compat::node::Call;
use crate::compat::part::Part;
use crate::compat::{call, connection};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use mote_core::{Fault, FaultClass};

use super::functions::{PROJECT_FIELD, asked};
use super::{Dashboard, Refused, field, unknown};

/// The header fields that are meant for the dashboard and not passed to the function.
const OURS: [&str; 6] = [
    "x-nuclio-function-name",
    "x-nuclio-function-namespace",
    PROJECT_FIELD,
    "x-nuclio-path",
    "x-nuclio-invoke-url",
    "x-nuclio-invoke-timeout",
];

pub(super) async fn run(
    State(dashboard): State<Dashboard>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    part: Part,
    request: Request,
) -> Result<Response, Refused> {
    let (mut parts, body) = request.into_parts();
    let node = &dashboard.calls;
    let name = field(&parts.headers, "x-nuclio-function-name");
    let name = name.ok_or_else(|| Refused::bad("x-nuclio-function-name: the function"))?;
    let part = asked(&part, &parts.headers)?;
    let name = part.callable(name).ok_or_else(|| unknown(name))?;
    let limit = node.body_bytes_max(&name).ok_or_else(|| unknown(&name))?;
    let path = field(&parts.headers, "x-nuclio-path").unwrap_or("/");
    let target = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    node.check_target(&target)?;
    let timeout_ms = match field(&parts.headers, "x-nuclio-invoke-timeout") {
        None => None,
        Some(text) => {
            let wanted = || Refused::bad("x-nuclio-invoke-timeout: a duration such as 10s");
            Some(timeout_ms(text).ok_or_else(wanted)?)
        }
    };
    for name in OURS {
        parts.headers.remove(name);
    }
    let mut head = call::head(parts.method.as_str(), &target, &parts.headers, &[]);
    node.admit(&name, &mut head, peer.ip()).map_err(|fault| refused(&fault, &name))?;
    connection::called(&parts.extensions, head.caller().is_some())?;
    let length = call::declared_length(&parts.headers);
    if length.is_some_and(|length| length > limit) {
        call::drain(body).await;
        return Err(refused(&Fault::BodyTooLarge { limit_bytes: limit }, &name));
    }
    let body = call::body(body, length, limit);
    let reply = node.invoke(Call { function: name.clone(), head, body, timeout_ms }).await;
    Ok(call::response(reply.map_err(|fault| refused(&fault, &name))?))
}

/// Parses a number of seconds, or a duration with its unit.
fn timeout_ms(text: &str) -> Option<u64> {
    let seconds = text.parse::<u64>().ok().and_then(|seconds| seconds.checked_mul(1_000));
    seconds.or_else(|| mote_spec::quantity::parse_duration_ms(text).ok()).filter(|ms| *ms > 0)
}

/// Returns the refusal for a fault, with the status that Nuclio's processor would use: 408 if an
/// event took too long, 503 if no worker is free, 500 if a worker failed.
fn refused(fault: &Fault, name: &str) -> Refused {
    let status = match fault {
        Fault::DeadlineRunning { .. } | Fault::DeadlineStarting { .. } => {
            StatusCode::REQUEST_TIMEOUT
        }
        _ => match fault.class() {
            FaultClass::Capacity => StatusCode::SERVICE_UNAVAILABLE,
            FaultClass::Caller => {
                StatusCode::from_u16(fault.answer().http).unwrap_or(StatusCode::BAD_REQUEST)
            }
            FaultClass::Function | FaultClass::Platform => StatusCode::INTERNAL_SERVER_ERROR,
        },
    };
    Refused::new(status, fault.public_text(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts() {
        assert_eq!(timeout_ms("10"), Some(10_000));
        assert_eq!(timeout_ms("1m"), Some(60_000));
        for text in ["0", "", "soon", "-1s"] {
            assert_eq!(timeout_ms(text), None, "{text}");
        }
    }

    #[test]
    fn codes() {
        let code = |fault: Fault| refused(&fault, "f").status.as_u16();
        assert_eq!(code(Fault::DeadlineRunning { timeout_ms: 1 }), 408);
        assert_eq!(code(Fault::DeadlineQueued { timeout_ms: 1 }), 503);
        assert_eq!(code(Fault::QueueFull), 503);
        assert_eq!(code(Fault::WorkerExited { status: 1, attempt: 1 }), 500);
        assert_eq!(code(Fault::BodyTooLarge { limit_bytes: 1 }), 413);
    }
}
