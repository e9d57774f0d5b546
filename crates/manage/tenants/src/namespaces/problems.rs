//! The errors about names that do not exist. A name outside a token's namespace gets the same
//! error, so that the error does not reveal whether the name exists.

use mote_api::Problem;
use mote_spec::name::DEFAULT_NAMESPACE;

fn shortened(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}

/// The flag that names a namespace, for a command in a hint. Empty for the default namespace.
pub fn flag(namespace: Option<&str>) -> String {
    namespace.map_or_else(String::new, |name| format!(" --namespace {name}"))
}

/// The namespace does not exist, or the token must not know it.
pub fn no_such_namespace(name: &str) -> Problem {
    let name = shortened(name);
    let problem = Problem::new(404, "M0423", format!("there is no namespace {name}"));
    if name == DEFAULT_NAMESPACE {
        return problem.with_hint(
            "the default namespace has no name of its own: functions, secrets and keys in it are \
             written without one",
        );
    }
    problem.with_hint(format!("an operator creates it: mote namespace create {name}"))
}

/// The namespace is being removed, so nothing in it can be changed.
pub fn being_deleted(name: &str) -> Problem {
    let text = format!("the namespace {name} is being deleted");
    let problem = Problem::new(409, "M0424", text);
    problem.with_hint(format!(
        "if nobody deletes it now, the node stopped meanwhile: mote namespace delete {name} --force"
    ))
}

/// The namespace already has the most of something that a namespace may have.
pub fn full(name: &str, most: impl std::fmt::Display, what: &str) -> Problem {
    let text = format!("the namespace {name} may have at most {most} {what}");
    Problem::new(507, "M0428", text)
}

/// Fails if the namespace still contains something. Each count comes with its word in the singular
/// and in the plural.
pub fn must_be_empty(name: &str, counts: &[(&str, &str, usize)]) -> Result<(), Problem> {
    let left = counts.iter().filter(|(.., count)| *count > 0);
    let text = |(one, many, count): &(&str, &str, usize)| {
        format!("{count} {}", if *count == 1 { one } else { many })
    };
    let texts: Vec<String> = left.map(text).collect();
    if texts.is_empty() {
        return Ok(());
    }
    let text = format!("the namespace {name} has {}", texts.join(", "));
    let hint = format!("delete it with everything in it: mote namespace delete {name} --force");
    Err(Problem::new(409, "M0427", text).with_hint(hint))
}

pub fn no_such_secret(name: &str) -> Problem {
    Problem::new(404, "M0415", format!("no secret named {}", shortened(name)))
        .with_hint("list the secrets: mote secret list")
}

/// The key of a caller does not exist, or the token must not know it.
pub fn no_such_key(name: &str) -> Problem {
    Problem::new(404, "M0418", format!("no key named {}", shortened(name)))
        .with_hint("list the keys: mote key list")
}

/// The accepted invocation does not exist, or the token must not know it.
pub fn no_such_invocation(id: &str) -> Problem {
    let detail = format!("no accepted invocation has the id {}", shortened(id));
    Problem::new(404, "M0517", detail).with_hint("list them: mote invocation list")
}
