//! Reads the parts of chains that a deploy has to understand: which file is the chain, and which
//! functions and topics its calls and messages reach. The program that runs chains (`mote-chain`)
//! checks everything else before the revision receives traffic.

use std::collections::BTreeSet;

use mote_spec::FunctionSpec;
use mote_spec::toml_reader::Mistakes;
use serde_json::Value;

use super::mistakes::{escaped, mistake};
use super::probe::Folder;

/// Names of calls that do not address functions of the node.
const OTHERS: [&str; 7] = ["http", "grpc", "openapi", "asyncapi", "a2a", "mcp", "mqtt.publish"];
/// The prefix of an address that belongs to a function of the node.
const INTERNAL: &str = "http://mote.internal/";

/// Returns whether a YAML document is a chain.
pub(super) fn is_chain(document: &Value) -> bool {
    document["document"]["dsl"].is_string()
}

/// Finds the only chain of a folder.
pub(super) fn entry(folder: &Folder) -> Result<String, Mistakes> {
    let files = folder.with_ending(&[".yaml", ".yml"]);
    let chains: Vec<&str> = files
        .into_iter()
        .filter(|file| !file.contains('/'))
        .filter(|file| parse(&folder.source(file)).is_ok_and(|document| is_chain(&document)))
        .collect();
    match chains[..] {
        [one] => Ok(one.to_owned()),
        [] => Err(mistake("M0112", format!("{}: there is no chain in it", folder.stem()), None)),
        [one, other, ..] => Err(mistake(
            "M0112",
            format!("both {} and {} are chains", escaped(one), escaped(other)),
            Some("write entry = \"FILE\" in mote.toml".to_owned()),
        )),
    }
}

/// Allows a chain to call the functions that its file names. Also allows the chain to publish to the
/// topics in its file, unless the manifest lists the permitted topics.
pub(super) fn allow(folder: &Folder, spec: &mut FunctionSpec) -> Result<(), Mistakes> {
    let document = parse(&folder.source(&spec.entry))
        .map_err(|text| mistake("M0301", format!("{}: {text}", escaped(&spec.entry)), None))?;
    for name in called(&document) {
        if !spec.calls.contains(&name) {
            spec.calls.push(name);
        }
    }
    if spec.publishing.topics.is_empty() {
        let topics = topics(&document).map_err(|topic| {
            let text = format!("{}: the topic {topic} may be any", escaped(&spec.entry));
            let hint = "begin it with a constant level, as in ${ \"alarms/\\(.id)\" }, or list the topics \
                        in mote.toml: [allow] mqtt";
            mistake("M0303", text, Some(hint.to_owned()))
        })?;
        spec.publishing.topics.extend(topics);
    }
    Ok(())
}

/// Returns filters for the topics to which a chain publishes. A topic that an expression computes
/// must begin with a constant level. The error is a topic that does not.
fn topics(document: &Value) -> Result<BTreeSet<String>, String> {
    let mut found = Ok(BTreeSet::new());
    collect(document, &mut |task| {
        if task["call"] != "mqtt.publish" {
            return;
        }
        let Some(topic) = task["with"]["topic"].as_str() else { return };
        let filter = match topic.trim().strip_prefix("${") {
            None => Some(topic.to_owned()),
            Some(code) => {
                let text = code.trim().strip_prefix('"').unwrap_or_default();
                let constant = text.split(['"', '\\']).next().unwrap_or_default();
                constant
                    .rfind('/')
                    .filter(|end| *end > 0)
                    .map(|end| format!("{}/#", &constant[..end]))
            }
        };
        match (filter, &mut found) {
            (Some(filter), Ok(filters)) => drop(filters.insert(filter)),
            (None, Ok(_)) => found = Err(topic.to_owned()),
            (_, Err(_)) => {}
        }
    });
    found
}

fn parse(source: &str) -> Result<Value, String> {
    crate::yaml::check_depth(source)?;
    yaml_serde::from_str(source).map_err(|error| error.to_string())
}

/// Returns the functions that a chain calls.
fn called(document: &Value) -> BTreeSet<String> {
    let own = &document["use"]["functions"];
    let mut names = BTreeSet::new();
    collect(document, &mut |task| {
        let name = match task["call"].as_str() {
            Some("http") => {
                let endpoint = &task["with"]["endpoint"];
                let address = endpoint.as_str().or_else(|| endpoint["uri"].as_str());
                address.and_then(|address| address.strip_prefix(INTERNAL))
            }
            Some(name) if OTHERS.contains(&name) || own[name].is_object() => None,
            Some(name) => Some(name),
            None => task["run"]["workflow"]["name"].as_str(),
        };
        let name = name.and_then(|name| name.split(['/', '@', '?']).next());
        if let Some(name) = name.filter(|name| mote_spec::FunctionName::new(name).is_ok()) {
            names.insert(name.to_owned());
        }
    });
    names
}

fn collect(value: &Value, visit: &mut impl FnMut(&Value)) {
    match value {
        Value::Object(members) => {
            visit(value);
            // `with` and `set` contain data for a task, which may look like a task but is not one.
            for (_, member) in members.iter().filter(|(key, _)| *key != "with" && *key != "set") {
                collect(member, visit);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, visit)),
        _ => {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_functions_that_a_chain_calls_are_found() {
        let document = parse(
            "use: { functions: { shared: { call: other } } }
do:
  - a: { call: first, with: { call: data } }
  - b: { call: shared }
  - c: { try: [ { d: { call: second@green } } ], catch: { do: [ { e: { call: third } } ] } }
  - f: { call: http, with: { method: get, endpoint: { uri: 'http://mote.internal/fourth/x' } } }
  - g: { run: { workflow: { name: fifth } } }
  - h: { call: mqtt.publish, with: { topic: a/b } }
",
        );
        assert_eq!(topics(document.as_ref().unwrap()), Ok(["a/b".to_owned()].into()));
        let made = |topic: &str| {
            let file =
                format!("do: [ {{ a: {{ call: mqtt.publish, with: {{ topic: '{topic}' }} }} }} ]");
            topics(&parse(&file).unwrap())
        };
        assert_eq!(made(r#"${ "a/b/\(.c)" }"#), Ok(["a/b/#".to_owned()].into()));
        assert_eq!(made(r#"${ "a/b\(.c)/d" }"#), Ok(["a/#".to_owned()].into()));
        for any in ["${ .x }", r#"${ "a\(.x)" }"#, r#"${ "\(.x)/a" }"#, r#"${ .x + "a/b" }"#] {
            assert_eq!(made(any), Err(any.to_owned()));
        }
        let found: Vec<String> = called(&document.unwrap()).into_iter().collect();
        assert_eq!(found, ["fifth", "first", "fourth", "other", "second", "third"]);
    }
}
