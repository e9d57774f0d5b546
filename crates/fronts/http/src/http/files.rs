//! Answers requests for a function's static files without running the function.

use mote_core::invocation::Head;
use mote_core::{Reply, Routed};

/// The answer, if the function has static files and the request is for one of them. `is_bare` means
/// that the request's path was the function's name without a trailing `/`.
pub(super) async fn answer<R: Routed>(route: &R, head: &Head, is_bare: bool) -> Option<Reply> {
    let rules = route.info().http?.files.as_ref()?;
    // Only whole requests are signed, so the files of a function with a webhook are not served.
    let code = route.info().code.filter(|_| route.info().webhook.is_none())?;
    let name = (is_bare && head.path() == b"/").then(|| route.info().name.as_str());
    let looked = crate::static_files::answer(code, rules, head, name);
    // Boxed, so that requests to functions without files do not carry the state of this future.
    Box::pin(looked).await
}
