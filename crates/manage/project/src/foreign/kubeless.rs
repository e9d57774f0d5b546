//! Reads Kubeless' `Function` objects, which contain the code.

use mote_core::base64;
use mote_spec::manifest::{PlatformName, RuntimeName};
use mote_spec::toml_reader::Mistakes;
use serde_json::Value;

use super::super::contract;
use super::{
    Described, Foreign, Source, count, group, not_offered, object_name, runtime_of, set, text,
};

pub(super) fn read(file: &str, all: &[Value]) -> Result<Foreign, Mistakes> {
    let mut found = Foreign::default();
    for document in all {
        let kind = document["kind"].as_str().unwrap_or("");
        let ours = group(document) == "kubeless.io" || is_old(document);
        if ours && kind == "Function" {
            let name = text(&document["metadata"]["name"]).unwrap_or_default();
            found.add(&name, function(file, document));
            continue;
        }
        let object = object_name(document);
        found.warnings.push(match kind {
            _ if super::routes::is_read(document) => continue,
            _ if !ours => format!("ignored: {object}"),
            "CronJobTrigger" => continue,
            _ => format!("{object}: this trigger is not supported yet"),
        });
    }
    for document in all.iter().filter(|document| document["kind"] == "CronJobTrigger") {
        let object = object_name(document);
        let spec = &document["spec"];
        let function = text(&spec["function-name"]).unwrap_or_default();
        let Some(described) = found.named(&object, &function) else { continue };
        let written = text(&spec["schedule"]).unwrap_or_default();
        if let Some(added) = described.add_cron(&object, &written) {
            super::schedules::set_body(added, &spec["payload"]);
        }
    }
    Ok(found)
}

fn function(file: &str, document: &Value) -> Result<Described, Mistakes> {
    let spec = &document["spec"];
    let name = text(&document["metadata"]["name"]).unwrap_or_default();
    let mut to = Described::new(&name, PlatformName::Kubeless);
    to.note("compat", format!("apiVersion: {}", text(&document["apiVersion"]).unwrap_or_default()));
    to.read_annotations(&document["metadata"]["annotations"]);
    let written = text(&spec["runtime"]).unwrap_or_default();
    let handler = text(&spec["handler"]).unwrap_or_default();
    let (module, function) = handler.split_once('.').unwrap_or((&handler, "handler"));
    let Some(runtime) = runtime_of(&written) else {
        let hint = "supported: python, nodejs, go; build others as a program";
        return Err(not_offered(file, &name, &format!("runtime {written:?}"), hint));
    };
    let (code_file, mut deps_file, entry) = match runtime {
        RuntimeName::Node => {
            let file = format!("{module}.js");
            (file.clone(), "package.json", format!("{file}:{function}"))
        }
        RuntimeName::Go => (format!("{module}.go"), "go.mod", function.to_owned()),
        _ => (format!("{module}.py"), "requirements.txt", format!("{module}:{function}")),
    };
    set(&mut to.function.runtime, runtime);
    set(&mut to.function.entry, entry);
    to.note("runtime", format!("spec.runtime: {written}"));
    to.note("entry", format!("spec.handler: {handler}"));
    let (zip, mut files) = match code(file, &name, spec)? {
        Code::Text(code) => {
            if group(document) == OLD_GROUP {
                check_arguments(file, &name, function, &String::from_utf8_lossy(&code))?;
            }
            (None, vec![(code_file, code)])
        }
        Code::Zip(archive) => (Some(archive), Vec::new()),
    };
    if let Some(deps) = spec["deps"].as_str().filter(|deps| !deps.trim().is_empty()) {
        if runtime == RuntimeName::Go && !deps.lines().any(|line| line.starts_with("module ")) {
            deps_file = "Gopkg.toml";
            to.warn(
                "deps: versions in Gopkg.toml are ignored and the newest are used; write a \
                 go.mod to keep them",
            );
        }
        files.push((deps_file.to_owned(), deps.as_bytes().to_vec()));
    }
    to.source = match zip {
        Some(archive) => Source::Zip(archive, files),
        None => Source::Inside(files),
    };
    let timeout = text(&spec["timeout"]).filter(|written| !written.is_empty());
    if let Some(seconds) = timeout {
        to.set_timeout(&spec["timeout"], "spec.timeout");
        to.set_env("FUNC_TIMEOUT", seconds);
    }
    for (key, value) in [("FUNC_HANDLER", function), ("FUNC_RUNTIME", written.as_str())] {
        to.set_env(key, value.to_owned());
    }
    let container = &spec["deployment"]["spec"]["template"]["spec"]["containers"][0];
    to.set_env_list(&container["env"], "spec.deployment … env");
    to.set_resources(&container["resources"]["limits"], "spec.deployment … resources.limits");
    let scaler = &spec["horizontalPodAutoscaler"]["spec"];
    let place = "spec.horizontalPodAutoscaler";
    to.set_scale(count(&scaler["minReplicas"]), count(&scaler["maxReplicas"]), place);
    let known = [
        "handler",
        "runtime",
        "function",
        "function-content-type",
        "checksum",
        "deps",
        "timeout",
        "deployment",
        "horizontalPodAutoscaler",
        // Objects of the first versions have this key, which says how the function is called. Here it
        // is always called over HTTP.
        "type",
    ];
    to.ignore_rest(spec, &known, "");
    Ok(to)
}

/// The API group of objects of the first versions. The group belongs to Kubernetes itself.
const OLD_GROUP: &str = "k8s.io";

/// Returns whether the document is a function in the format of the first versions.
pub(super) fn is_old(document: &Value) -> bool {
    group(document) == OLD_GROUP
        && document["kind"] == "Function"
        && document["spec"]["handler"].is_string()
}

/// Refuses a function whose arguments are those of the first versions: none, a request, or (req, res).
fn check_arguments(file: &str, name: &str, function: &str, code: &str) -> Result<(), Mistakes> {
    let names = contract::python_parameters(code, function);
    let few = names.is_some_and(|names| names.len() < 2) && !code.contains("*args");
    if few || code.contains("(req, res)") {
        let hint = format!("write {function}(event, context): event contains the request");
        return Err(not_offered(file, name, "a function without event and context", &hint));
    }
    Ok(())
}

enum Code {
    Text(Vec<u8>),
    Zip(Vec<u8>),
}

fn code(file: &str, name: &str, spec: &Value) -> Result<Code, Mistakes> {
    let source = spec["function"].as_str().unwrap_or("");
    let kind = spec["function-content-type"].as_str().unwrap_or("text");
    let bytes = || {
        decoded(source).ok_or_else(|| {
            let hint = format!("function-content-type {kind}");
            not_offered(file, name, "this function", &hint)
        })
    };
    match kind {
        "" | "text" => Ok(Code::Text(source.as_bytes().to_vec())),
        "base64" => bytes().map(Code::Text),
        // The platform's client uses this encoding for a function of several files.
        "base64+zip" => bytes().map(Code::Zip),
        other => {
            let what = format!("function-content-type {other}");
            let hint = "unpack it into a folder and write a mote.toml with compat = \"kubeless\"";
            Err(not_offered(file, name, &what, hint))
        }
    }
}

/// Decodes base64. The URL-safe letters are accepted too, because a person may have written the text.
pub(super) fn decoded(text: &str) -> Option<Vec<u8>> {
    let letter = |byte| match byte {
        b'-' => b'+',
        b'_' => b'/',
        other => other,
    };
    base64::decode(&text.bytes().map(letter).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn both_alphabets_are_read() {
        for text in ["+//+", "-__-", "+_\n/-"] {
            assert_eq!(decoded(text).as_deref(), Some(&[0xfb, 0xff, 0xfe][..]), "{text:?}");
        }
        assert_eq!(decoded("%%"), None);
    }
}
