//! The platform's public packages that the node provides itself: `/whisk.system/utils`, and the samples
//! that the platform's documentation calls. They need no sandbox, because they contain no users' code.
//! This module is pure.

use serde_json::{Map, Value, json};

pub(super) const NAMESPACE: &str = "whisk.system";
/// All actions, as package and name.
const ACTIONS: [&str; 10] = [
    "samples/greeting",
    "samples/wordCount",
    "utils/cat",
    "utils/date",
    "utils/echo",
    "utils/head",
    "utils/namespace",
    "utils/smash",
    "utils/sort",
    "utils/split",
];

/// Returns the name by which entities refer to an action: `/whisk.system/PACKAGE/NAME`. Fails if the
/// node has no such action.
pub(super) fn name(rest: &str) -> Result<String, String> {
    if ACTIONS.contains(&rest) {
        return Ok(format!("/{NAMESPACE}/{rest}"));
    }
    Err(format!(
        "/{NAMESPACE}/{} is not on this node, which has {}; create an action of your own instead.",
        crate::compat::shown(rest),
        ACTIONS.join(", ")
    ))
}

/// Returns `PACKAGE/NAME` from a name that [`name`] returned.
pub(super) fn action_of(name: &str) -> Option<&str> {
    name.strip_prefix('/')?.strip_prefix(NAMESPACE)?.strip_prefix('/')
}

/// Returns the result of an action. `now` is the time in RFC 3339, and `owner` is the caller's
/// namespace.
pub(super) fn run(action: &str, args: &Value, now: &str, owner: &str) -> Value {
    let text = |key: &str| args.get(key).map(text_of);
    let lines = || args.get("lines").and_then(Value::as_array).cloned().unwrap_or_default();
    match action {
        "utils/echo" => args.clone(),
        "utils/date" => json!({ "date": now }),
        "utils/namespace" => json!({ "namespace": owner }),
        "utils/cat" => {
            let lines = lines();
            let payload = lines.iter().map(text_of).collect::<Vec<_>>().join("\n");
            json!({ "lines": lines, "payload": payload })
        }
        "utils/head" => {
            let count = args.get("num").and_then(count_of).filter(|count| *count > 0).unwrap_or(1);
            let lines: Vec<_> = lines().into_iter().take(count).collect();
            json!({ "lines": lines, "num": count })
        }
        "utils/sort" => {
            let mut lines = lines();
            // Elements are sorted by their text. This applies to numbers, too.
            lines.sort_by_cached_key(text_of);
            json!({ "length": lines.len(), "lines": lines })
        }
        "utils/split" => {
            let payload = text("payload").unwrap_or_default();
            let parts: Vec<&str> = match text("separator").filter(|text| !text.is_empty()) {
                Some(separator) => payload.split(separator.as_str()).collect(),
                None => payload.split('\n').map(|part| part.trim_end_matches('\r')).collect(),
            };
            json!({ "lines": parts, "payload": payload })
        }
        "utils/smash" => smashed(args),
        "samples/greeting" => {
            let name = text("name").unwrap_or_else(|| "stranger".to_owned());
            let place = text("place").unwrap_or_else(|| "somewhere".to_owned());
            json!({ "payload": format!("Hello, {name} from {place}!") })
        }
        "samples/wordCount" => {
            json!({ "count": text("payload").unwrap_or_default().split_whitespace().count() })
        }
        _ => json!({ "error": "The requested resource does not exist." }),
    }
}

/// Moves all other members into a new member, whose name is the value of `$fieldName`.
fn smashed(args: &Value) -> Value {
    let mut members: Map<String, Value> = args.as_object().cloned().unwrap_or_default();
    match members.remove("$fieldName") {
        Some(Value::String(name)) => json!({ name: members }),
        _ => json!({ "error": "Expected an argument '$fieldName' of type 'string'." }),
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn count_of(value: &Value) -> Option<usize> {
    let number = value.as_u64().or_else(|| value.as_str()?.parse().ok())?;
    usize::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_answers_as_the_documents_say() {
        let check = |action: &str, args: Value, expected: Value| {
            let name = name(action).expect("is here");
            let action = action_of(&name).expect("is one of ours");
            assert_eq!(run(action, &args, "2016-03-22T00:59:55.961Z", "guest"), expected);
        };
        let numbers = json!({ "lines": [4, 2, 3], "num": 2 });
        check("utils/echo", json!({ "payload": [1] }), json!({ "payload": [1] }));
        check("utils/date", json!({}), json!({ "date": "2016-03-22T00:59:55.961Z" }));
        check("utils/namespace", json!({}), json!({ "namespace": "guest" }));
        check(
            "utils/cat",
            json!({ "lines": ["a", 2] }),
            json!({ "lines": ["a", 2], "payload": "a\n2" }),
        );
        check("utils/head", numbers.clone(), json!({ "lines": [4, 2], "num": 2 }));
        check("utils/sort", numbers, json!({ "lines": [2, 3, 4], "length": 3 }));
        check("utils/sort", json!({ "lines": [10, 9] }), json!({ "lines": [10, 9], "length": 2 }));
        let parts = json!({ "payload": "one,two", "separator": "," });
        check("utils/split", parts, json!({ "lines": ["one", "two"], "payload": "one,two" }));
        check(
            "utils/split",
            json!({ "payload": "a\r\nb" }),
            json!({ "lines": ["a", "b"], "payload": "a\r\nb" }),
        );
        check("utils/smash", json!({ "a": 1, "$fieldName": "p" }), json!({ "p": { "a": 1 } }));
        check(
            "samples/greeting",
            json!({ "name": "you" }),
            json!({ "payload": "Hello, you from somewhere!" }),
        );
        check("samples/wordCount", json!({ "payload": "one two" }), json!({ "count": 2 }));
        assert!(name("weather/forecast").unwrap_err().contains("utils/echo"));
    }
}
