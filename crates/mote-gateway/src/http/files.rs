//! Answers requests for files of a function without the function.

use mote_core::invocation::{Head, put_header};
use mote_core::{Reply, RouteInfo};

use crate::added::Added;

/// The answer, if the function has files and one of them is what the request is for. `is_bare` says
/// that the request's path was the function's name without a `/` behind it.
pub(super) async fn answer<R: RouteInfo>(route: &R, head: &Head, is_bare: bool) -> Option<Reply> {
    let rules = route.http()?.files.as_ref()?;
    // Only whole requests are signed.
    let code = route.code().filter(|_| route.webhook().is_none())?;
    let name = (is_bare && head.path() == b"/").then(|| route.name().as_str());
    let looked = mote_static_files::answer(code, rules, head, name);
    // Requests for functions without files must not carry the state of this.
    Box::pin(looked).await
}

/// The fields that answers have in addition, with one that says that browsers which open a page get
/// another answer than scripts, if that is so.
pub(super) fn varying<R: RouteInfo>(route: &R, head: &Head, added: Added) -> Added {
    let files = route.http().and_then(|rules| rules.files.as_ref());
    if files.is_none_or(|files| files.fallback.is_none())
        || !matches!(head.method(), b"GET" | b"HEAD")
    {
        return added;
    }
    let mut block = Vec::new();
    put_header(&mut block, b"vary", b"accept");
    added.and(&Added::new(block.into()))
}
