//! Decides whether a request to the management API may name the things that it names.
//!
//! Every route belongs to one of a few kinds. A route that is not in the list counts as a route
//! about the whole node, so that tokens of a namespace cannot use a new route until somebody has
//! added it here.

use std::borrow::Cow;
use std::sync::Arc;

use mote_api::Problem;
use mote_spec::name::{of_kept, split};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::namespaces::problems::{no_such_key, no_such_namespace, no_such_secret};
use crate::namespaces::scope::{Scope, View};

/// The beginning of the name of a state that several functions share.
const SHARED: &str = "shared:";
/// The characters that are not percent-encoded in a part of a path.
const KEPT_CHARACTERS: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'@').remove(b':');

/// What a route is about, and which part of the path contains the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Function(usize),
    /// A function that need not exist yet.
    Deploy(usize),
    Secret(usize),
    Key(usize),
    State(usize),
    Invocation(usize),
    Namespace(usize),
    /// A list that shows only what the sender may see.
    List,
    /// An answer that is the same for everyone.
    Public,
    /// The whole node, or things that belong to others.
    Node,
}

fn subject(method: &str, parts: &[&str]) -> Subject {
    let reads = matches!(method, "GET" | "HEAD" | "OPTIONS");
    match parts {
        ["metrics"] => Subject::List,
        ["v1", rest @ ..] => match rest {
            ["openapi.json"] | ["session"] | ["session", "code"] => Subject::Public,
            [
                "functions" | "schedules" | "invocations" | "dead-letters" | "keys" | "kv"
                | "files",
            ] => Subject::List,
            ["traces"] | ["traces", _] | ["openapi", "functions.json"] => Subject::List,
            ["secrets" | "namespaces"] if reads => Subject::List,
            ["functions", _] if method == "PUT" => Subject::Deploy(2),
            ["functions", _] => Subject::Function(2),
            [
                "functions",
                _,
                "revisions" | "traffic" | "rollback" | "invoke" | "scale" | "logs" | "recording"
                | "durations" | "progress",
            ] => Subject::Function(2),
            ["secrets", _] => Subject::Secret(2),
            ["keys", _] | ["keys", _, "rotate"] => Subject::Key(2),
            ["kv", _] | ["kv", _, "entry"] => Subject::State(2),
            ["files", _] | ["files", _, "content"] => Subject::Function(2),
            ["invocations" | "dead-letters", _] | ["invocations", _, "retry"] => {
                Subject::Invocation(2)
            }
            ["namespaces", _] if reads => Subject::Namespace(2),
            _ => Subject::Node,
        },
        _ => Subject::Node,
    }
}

/// The result for a request that may be answered.
#[derive(Debug, PartialEq, Eq)]
pub struct Examined {
    /// The path with full names, if it differs from the original path.
    pub path: Option<String>,
    /// The namespace of the thing that the request is about.
    pub namespace: Option<Arc<str>>,
    /// The id of an invocation. The caller must check that the invocation's function is in the
    /// sender's scope.
    pub invocation: Option<String>,
}

/// Examines a request. `exists` says whether a namespace with a given name exists.
pub fn examine(
    view: &View,
    method: &str,
    path: &str,
    exists: impl Fn(&str) -> bool,
) -> Result<Examined, Problem> {
    let mut parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
    let subject = subject(method, &parts);
    let is_scoped = *view.scope() != Scope::All;
    let mut examined = Examined { path: None, namespace: None, invocation: None };
    match subject {
        Subject::Public => return Ok(examined),
        Subject::Node if is_scoped => return Err(of_the_node(view.scope())),
        Subject::Node => return Ok(examined),
        _ => {}
    }
    if let Some(chosen) = view.namespace()
        && (!view.is_permitted() || (!is_scoped && !exists(chosen)))
    {
        return Err(no_such_namespace(chosen));
    }
    examined.namespace = view.namespace().cloned();
    let (Subject::Function(at)
    | Subject::Deploy(at)
    | Subject::Secret(at)
    | Subject::Key(at)
    | Subject::State(at)
    | Subject::Invocation(at)
    | Subject::Namespace(at)) = subject
    else {
        return Ok(examined);
    };
    let name: Cow<'_, str> = match percent_decode_str(parts[at]).decode_utf8() {
        Ok(name) => name,
        // The router would refuse this name, too, but a name that was not examined must not be
        // passed on.
        Err(_) => return Err(Problem::new(400, "M1403", "a name in the path is not text")),
    };
    let full = match subject {
        Subject::Secret(_) | Subject::Key(_) => view.kept(&name),
        Subject::State(_) => match name.strip_prefix(SHARED) {
            Some(name) => view.function(name).map(|name| format!("{SHARED}{name}")),
            None => view.function(&name),
        },
        Subject::Invocation(_) => {
            examined.invocation = is_scoped.then(|| name.into_owned());
            return Ok(examined);
        }
        Subject::Namespace(_) => {
            return match view.scope() {
                Scope::Namespace(own) if **own != *name => Err(of_the_node(view.scope())),
                _ => Ok(examined),
            };
        }
        _ => view.function(&name),
    };
    let full = full.ok_or_else(|| match subject {
        Subject::Secret(_) if method != "PUT" => no_such_secret(&name),
        Subject::Key(_) => no_such_key(&name),
        Subject::Function(_) => Problem::no_such_function(&name, []),
        Subject::Secret(_) => no_such_namespace(of_kept(&name).0.unwrap_or_default()),
        _ => no_such_namespace(split(&name).1.unwrap_or_default()),
    })?;
    examined.namespace = match subject {
        Subject::Secret(_) | Subject::Key(_) => of_kept(&full).0,
        _ => split(full.split('@').next().unwrap_or_default()).1,
    }
    .map(Arc::from);
    // Nothing can be made in a namespace that does not exist.
    if let Some(namespace) = &examined.namespace
        && matches!(subject, Subject::Deploy(_) | Subject::Secret(_) | Subject::State(_))
        && matches!(method, "PUT" | "POST")
        && !exists(namespace)
    {
        return Err(no_such_namespace(namespace));
    }
    if full != name {
        let full = utf8_percent_encode(&full, KEPT_CHARACTERS).to_string();
        parts[at] = &full;
        examined.path = Some(format!("/{}", parts.join("/")));
    }
    Ok(examined)
}

/// The refusal of a request that no token of a namespace may send, whatever the token's role is.
pub fn outside(scope: &Scope, method: &str, path: &str) -> Option<Problem> {
    let parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
    let is_outside = *scope != Scope::All && subject(method, &parts) == Subject::Node;
    is_outside.then(|| of_the_node(scope))
}

fn of_the_node(scope: &Scope) -> Problem {
    let own = scope.namespace().map_or("", |name| name);
    let text = format!("the token is for the namespace {own}; this concerns the whole node");
    Problem::new(403, "M1408", text).with_hint("use a token that was made without --namespace")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scoped() -> View {
        View::new(Scope::Namespace("plant".into()), None)
    }

    fn check(view: &View, method: &str, path: &str) -> Result<String, (u16, String)> {
        let exists = |name: &str| name == "plant" || name == "other";
        examine(view, method, path, exists)
            .map(|examined| examined.path.unwrap_or_else(|| path.to_owned()))
            .map_err(|problem| (problem.status, problem.code))
    }

    #[test]
    fn short_names_become_full_ones() {
        let chosen = View::new(Scope::All, Some("plant"));
        for view in [&scoped(), &chosen] {
            for (method, path, expected) in [
                ("GET", "/v1/functions/hello", "/v1/functions/hello.plant"),
                (
                    "POST",
                    "/v1/functions/hello@blue/invoke",
                    "/v1/functions/hello.plant@blue/invoke",
                ),
                ("PUT", "/v1/functions/hello.plant", "/v1/functions/hello.plant"),
                ("PUT", "/v1/secrets/db", "/v1/secrets/plant%2Fdb"),
                ("PUT", "/v1/secrets/plant%2Fdb", "/v1/secrets/plant%2Fdb"),
                ("POST", "/v1/keys/dev/rotate", "/v1/keys/plant%2Fdev/rotate"),
                ("PUT", "/v1/kv/hello/entry", "/v1/kv/hello.plant/entry"),
                ("GET", "/v1/files/hello/content", "/v1/files/hello.plant/content"),
                ("DELETE", "/v1/files/hello", "/v1/files/hello.plant"),
                ("GET", "/v1/kv/shared:sums", "/v1/kv/shared:sums.plant"),
                ("GET", "/v1/kv/shared%3Asums", "/v1/kv/shared:sums.plant"),
                ("GET", "/v1/functions/%68ello", "/v1/functions/hello.plant"),
                ("GET", "/v1/functions", "/v1/functions"),
            ] {
                assert_eq!(check(view, method, path), Ok(expected.to_owned()), "{method} {path}");
            }
        }
        let plain = View::default();
        for path in ["/v1/functions/hello", "/v1/secrets/db", "/v1/kv/shared:a", "/v1/status"] {
            assert_eq!(check(&plain, "GET", path), Ok(path.to_owned()));
        }
    }

    #[test]
    fn names_of_others_do_not_exist_for_a_token_of_a_namespace() {
        for (method, path, expected) in [
            ("GET", "/v1/functions/hello.other", (404, "M0501")),
            ("GET", "/v1/functions/hello.nowhere", (404, "M0501")),
            ("GET", "/v1/functions/hello%2Eother", (404, "M0501")),
            ("DELETE", "/v1/functions/hello.other", (404, "M0501")),
            ("PUT", "/v1/functions/hello.other", (404, "M0423")),
            ("PUT", "/v1/functions/hello.nowhere", (404, "M0423")),
            ("DELETE", "/v1/secrets/other%2Fdb", (404, "M0415")),
            ("PUT", "/v1/secrets/other%2Fdb", (404, "M0423")),
            ("DELETE", "/v1/keys/other%2Fdev", (404, "M0418")),
            ("GET", "/v1/kv/hello.other", (404, "M0423")),
            ("GET", "/v1/files/hello.other/content", (404, "M0501")),
            ("GET", "/v1/status", (403, "M1408")),
            ("GET", "/v1/new", (403, "M1408")),
            ("PUT", "/v1/functions/hello/split", (403, "M1408")),
            ("PUT", "/v1/functions/hello/revisions/1", (403, "M1408")),
            ("GET", "/v1/namespaces/other", (403, "M1408")),
            ("GET", "/v1/namespaces/nowhere", (403, "M1408")),
            ("DELETE", "/v1/namespaces/plant", (403, "M1408")),
            ("POST", "/v1/namespaces", (403, "M1408")),
            ("GET", "//v1/functions", (403, "M1408")),
        ] {
            let (status, code) = expected;
            let refused = Err((status, code.to_owned()));
            assert_eq!(check(&scoped(), method, path), refused, "{method} {path}");
        }
        let wrong = View::new(Scope::Namespace("plant".into()), Some("other"));
        let refused = Err((404, "M0423".to_owned()));
        assert_eq!(check(&wrong, "GET", "/v1/functions"), refused);
        let default = View::new(Scope::Namespace("plant".into()), Some("default"));
        assert_eq!(check(&default, "GET", "/v1/functions"), refused);
        assert_eq!(check(&default, "GET", "/v1/functions/hello"), refused);
        let nowhere = View::new(Scope::All, Some("nowhere"));
        assert_eq!(check(&nowhere, "GET", "/v1/functions"), refused);
    }

    #[test]
    fn a_literal_part_that_is_encoded_is_none() {
        // The role that a request needs is decided by its path before decoding, so nothing else may
        // be decoded here.
        assert_eq!(check(&View::default(), "POST", "/v1/%6Beys"), Ok("/v1/%6Beys".to_owned()));
        assert_eq!(check(&scoped(), "POST", "/v1/%6Beys"), Err((403, "M1408".to_owned())));
    }
}
