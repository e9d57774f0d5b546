//! Knative: a `Service` object beside the program its image would hold, and `func.yaml`.

use mote_api::manifest::{CompatName, PolicyName, RuntimeName};
use mote_api::toml_reader::Mistakes;
use serde_json::Value;

use super::{Described, Foreign, count, implied, not_offered, set, text};

pub(super) fn services(file: &str, all: &[Value]) -> Result<Foreign, Mistakes> {
    let mut found = Foreign::default();
    for document in all {
        let kind = text(&document["kind"]).unwrap_or_default();
        if kind == "Service" {
            found.functions.push(service(file, document)?);
        } else {
            found.warnings.push(format!("no meaning here: {kind}"));
        }
    }
    Ok(found)
}

fn service(file: &str, document: &Value) -> Result<Described, Mistakes> {
    let name = text(&document["metadata"]["name"]).unwrap_or_default();
    let mut to = Described::new(&name, CompatName::Knative);
    let template = &document["spec"]["template"];
    let spec = &template["spec"];
    let container = &spec["containers"][0];
    let words = |key: &str| {
        let list = container[key].as_array().into_iter().flatten();
        list.filter_map(text).collect::<Vec<_>>()
    };
    let command: Vec<String> = words("command").into_iter().chain(words("args")).collect();
    if words("command").is_empty() {
        let hint = "mote runs programs, not images: put the program beside the manifest and name \
                    it in spec.template.spec.containers[0].command";
        return Err(not_offered(file, &name, "a service that is only an image", hint));
    }
    set(&mut to.function.runtime, RuntimeName::Server);
    set(&mut to.function.command, command);
    to.note("compat", "apiVersion: serving.knative.dev/v1");
    to.note("command", "containers[0].command and args");
    if let Some(port) = count(&container["ports"][0]["containerPort"]) {
        to.function.port = u16::try_from(port).ok().and_then(implied);
        to.note("port", "containers[0].ports[0].containerPort");
    }
    to.set_env_list(&container["env"], "containers[0].env");
    for (key, value) in [("K_SERVICE", name.clone()), ("K_CONFIGURATION", name.clone())] {
        to.set_env(key, value);
    }
    to.set_env("K_REVISION", format!("{name}-00001"));
    to.set_resources(&container["resources"]["limits"], "containers[0].resources.limits");
    to.set_timeout(&spec["timeoutSeconds"], "timeoutSeconds");
    if let Some(limit) = count(&spec["containerConcurrency"]).filter(|limit| *limit > 0) {
        to.function.limits.concurrency = Some(limit);
        to.note("concurrency", "containerConcurrency");
    }
    scale(&mut to, &template["metadata"]["annotations"]);
    if document["spec"]["traffic"].is_array() {
        to.warn("spec.traffic: split traffic with mote traffic NAME");
    }
    let known =
        ["image", "command", "args", "env", "ports", "resources", "name", "imagePullPolicy"];
    to.ignore_rest(container, &known, "containers[0].");
    let known = ["containers", "timeoutSeconds", "containerConcurrency"];
    to.ignore_rest(spec, &known, "spec.template.spec.");
    Ok(to)
}

fn scale(to: &mut Described, annotations: &Value) {
    let prefix = "autoscaling.knative.dev/";
    let get = |key: &str, old: &str| {
        let found = &annotations[format!("{prefix}{key}")];
        count(if found.is_null() { &annotations[format!("{prefix}{old}")] } else { found })
    };
    let (min, max) = (get("min-scale", "minScale"), get("max-scale", "maxScale"));
    to.set_scale(min, max, "annotations min-scale, max-scale");
    if let Some(target) = get("target", "target") {
        to.function.scale.policy = Some(PolicyName::Knative);
        to.function.scale.target = Some(target);
        to.note("policy", "annotation target");
    }
    let known = ["min-scale", "max-scale", "minScale", "maxScale", "target"];
    let known = known.map(|key| format!("{prefix}{key}"));
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    to.ignore_rest(annotations, &known, "annotation ");
}

pub(super) fn func(file: &str, document: &Value) -> Result<Foreign, Mistakes> {
    let name = text(&document["name"]).unwrap_or_default();
    let runtime = text(&document["runtime"]).unwrap_or_default();
    let hint =
        "offered of Knative: a server of your own, as a Service or with runtime = \"server\"";
    Err(not_offered(file, &name, &format!("a Knative function (runtime {runtime})"), hint))
}
