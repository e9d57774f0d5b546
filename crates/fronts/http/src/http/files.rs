//! Answers requests for files of a function without the function.

use mote_core::invocation::Head;
use mote_core::{Reply, Routed};

/// The answer, if the function has files and one of them is what the request is for. `is_bare` says
/// that the request's path was the function's name without a `/` behind it.
pub(super) async fn answer<R: Routed>(route: &R, head: &Head, is_bare: bool) -> Option<Reply> {
    let rules = route.info().http?.files.as_ref()?;
    // Only whole requests are signed.
    let code = route.info().code.filter(|_| route.info().webhook.is_none())?;
    let name = (is_bare && head.path() == b"/").then(|| route.info().name.as_str());
    let looked = crate::static_files::answer(code, rules, head, name);
    // Requests for functions without files must not carry the state of this.
    Box::pin(looked).await
}
