//! Fission: `Function` objects of a spec that lies with the code.

use std::path::Path;

use mote_api::manifest::{CompatName, RuntimeName};
use mote_api::toml_reader::Mistakes;
use serde_json::Value;

use super::{Described, Foreign, Source, group, not_offered, object_name, runtime_of, set, text};

/// The functions of a file; `None` where it has none, as the files of packages and environments.
pub(super) fn read(file: &str, all: &[Value], folder: &Path) -> Result<Option<Foreign>, Mistakes> {
    let is_function =
        |one: &&Value| group(one) == "fission.io" && one["kind"].as_str() == Some("Function");
    if !all.iter().any(|one| is_function(&one)) {
        return Ok(None);
    }
    let holds_code = std::fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
        let name = entry.file_name();
        let ending = Path::new(&name).extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| ["py", "js", "mjs", "cjs", "go"].contains(&ending))
    });
    if !holds_code {
        let hint = "deploy the folder with the code; what it calls is inferred";
        return Err(not_offered(file, "fission.io", "a spec that lies apart from its code", hint));
    }
    let mut found = Foreign::default();
    for document in all {
        if is_function(&document) {
            let name = text(&document["metadata"]["name"]).unwrap_or_default();
            found.add(&name, Ok(function(document, &name, folder)));
        } else if document["kind"].as_str().is_some_and(|kind| kind.ends_with("Trigger")) {
            let object = object_name(document);
            found.warnings.push(format!("{object}: a function answers at /NAME over HTTP"));
        }
    }
    Ok(Some(found))
}

fn function(document: &Value, name: &str, folder: &Path) -> Described {
    let spec = &document["spec"];
    let mut to = Described::new(name, CompatName::Fission);
    to.note("compat", "apiVersion: fission.io");
    to.allow_net(&document["metadata"]["annotations"]);
    to.source = Source::At(folder.to_path_buf());
    let environment = text(&spec["environment"]["name"]).unwrap_or_default();
    let runtime = environment.split('-').find_map(runtime_of);
    if let Some(runtime) = runtime {
        set(&mut to.function.runtime, runtime);
        to.note("runtime", format!("spec.environment: {environment}"));
    }
    if let (Some(runtime), Some(written)) = (runtime, text(&spec["package"]["functionName"]))
        && let Some(entry) = entry(runtime, &written, folder)
    {
        set(&mut to.function.entry, entry);
        to.note("entry", format!("spec.package.functionName: {written}"));
    }
    if let Some(seconds) = spec["functionTimeout"].as_u64().filter(|seconds| *seconds > 0) {
        to.set_timeout(&Value::String(format!("{seconds}s")), "spec.functionTimeout");
    }
    to.set_resources(&spec["resources"]["limits"], "spec.resources");
    let known = ["environment", "package", "functionTimeout", "resources", "InvokeStrategy"];
    to.ignore_rest(spec, &known, "spec.");
    to
}

/// What `functionName` names: a function, or a module and its function.
fn entry(runtime: RuntimeName, written: &str, folder: &Path) -> Option<String> {
    let (module, function) = written
        .split_once('.')
        .map_or((None, written), |(module, function)| (Some(module), function));
    if function.is_empty() {
        return None;
    }
    match runtime {
        RuntimeName::Python => Some(format!("{}:{function}", module.unwrap_or("main"))),
        RuntimeName::Node => {
            let file = format!("{}.js", module.unwrap_or(written));
            let exported = module.map_or(String::new(), |_| format!(":{function}"));
            folder.join(&file).is_file().then(|| format!("{file}{exported}"))
        }
        RuntimeName::Go => Some(function.to_owned()),
        _ => None,
    }
}
