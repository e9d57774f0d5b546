//! Finds the function that a request is for, and limits requests that are for no function.

use std::net::IpAddr;

use mote_core::invocation::{Head, headers};
use mote_core::rollout::sticky_key;
use mote_core::{Invoker, RouteInfo};

use super::head::no_such_function;
use crate::refusal::Refusal;

/// Requests with equal values go to the same revision while traffic is split.
const SPLIT_KEY: &[u8] = b"mote-split-key";
/// Bytes of an unread body that are read and dropped at most to keep the connection.
pub(crate) const LINGER_BYTES_MAX: usize = 64 << 10;
/// Requests in a row that one connection may send without a single invocation: unknown functions,
/// methods that a function does not accept. The answer to the last of them closes the connection. A
/// client that also makes invocations never reaches the limit, and one that reaches it can connect
/// again.
pub const REFUSALS_IN_A_ROW_MAX: u32 = 100;

/// The field that tells a function how its client is connected. The front sets it for connections
/// with TLS; otherwise it is what the client or a proxy in front has sent.
pub(super) const SCHEME_FIELD: &[u8] = b"x-forwarded-proto";

/// The function of a request, or the refusal if there is none or `from` may not call it.
pub(crate) fn find_route<I: Invoker>(
    invoker: &I,
    name: &str,
    head: &mut Head,
    from: IpAddr,
) -> Result<I::Route, Refusal> {
    let route = invoker.route(name, || split_key(head)).ok_or_else(|| no_such_function(name))?;
    let methods = route.methods();
    if methods.is_empty() || methods.iter().any(|allowed| allowed.as_bytes() == head.method()) {
        let admitted = invoker.admit(&route, head, Some(from));
        return match admitted.and_then(|()| invoker.count(&route, head, Some(from))) {
            Ok(()) => Ok(route),
            Err(fault) => Err(Refusal::of_fault_for(&fault, name, route.compat())),
        };
    }
    let allow = methods.join(", ");
    let mut refusal = Refusal::new(405, "M1030", format!("{allow} only"));
    refusal.allow = Some(allow);
    Err(refusal)
}

/// The key that keeps a caller with one of several revisions, if the caller sent one.
fn split_key(head: &Head) -> Option<u64> {
    let (_, value) = headers(head.headers()).find(|(name, _)| *name == SPLIT_KEY)?;
    Some(sticky_key(value))
}
