//! Reads Knative's `func.yaml`, and `Service` objects that lie next to the program which their image
//! would contain.

use std::path::Path;

use mote_spec::manifest::{PlatformName, PolicyName, RuntimeName};
use mote_spec::toml_reader::Mistakes;
use serde_json::Value;

use super::{
    Described, Foreign, Source, count, group, implied, not_offered, object_name, secret_key, set,
    text,
};

pub(super) fn services(file: &str, all: &[Value]) -> Result<Foreign, Mistakes> {
    let mut found = Foreign::default();
    for document in all {
        if group(document) == "serving.knative.dev" && document["kind"] == "Service" {
            found.functions.push(service(file, document)?);
        } else if !super::routes::is_read(document) {
            found.warnings.push(format!("ignored: {}", object_name(document)));
        }
    }
    Ok(found)
}

fn service(file: &str, document: &Value) -> Result<Described, Mistakes> {
    // A program that is given by a relative path lies next to the manifest. Every other program is in
    // the image.
    let container = &document["spec"]["template"]["spec"]["containers"][0];
    let program = text(&container["command"][0]);
    let is_beside = program.is_some_and(|program| !program.starts_with('/'));
    let program = if is_beside { Program::Beside } else { Program::Image };
    service_with(file, document, program)
}

/// Where the program of a service is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    /// Next to the manifest, under the name in `command`.
    Beside,
    /// In a folder of code that somebody named.
    Source,
    /// In the image.
    Image,
}

/// Reads a service of a cluster. If the service has only an image, its code is in `source`: either a
/// folder with a `func.yaml`, or a program whose runtime is guessed.
pub(super) fn service_of(
    file: &str,
    document: &Value,
    source: Option<&Path>,
) -> Result<Described, Mistakes> {
    let has_command = document["spec"]["template"]["spec"]["containers"][0]["command"].is_array();
    let Some(folder) = source else {
        return service_with(file, document, Program::Image);
    };
    let program = if has_command { Program::Beside } else { Program::Source };
    let mut to = service_with(file, document, program)?;
    if !has_command {
        match super::read(folder)?.and_then(|found| found.functions.into_iter().next()) {
            Some(own) => {
                let function = own.function;
                to.function.compat = function.compat;
                to.function.runtime = function.runtime;
                to.function.entry = function.entry;
                to.function.template = function.template;
                to.function.command = function.command;
                to.warnings.extend(own.warnings);
                to.notes.extend(own.notes);
            }
            // The contract of a folder without a manifest is guessed from its files when the folder is
            // deployed.
            None => {
                to.function.compat = None;
                to.notes.remove("compat");
            }
        }
    }
    to.source = Source::At(folder.to_owned());
    Ok(to)
}

fn service_with(file: &str, document: &Value, program: Program) -> Result<Described, Mistakes> {
    let name = text(&document["metadata"]["name"]).unwrap_or_default();
    let mut to = Described::new(&name, PlatformName::Knative);
    let template = &document["spec"]["template"];
    let spec = &template["spec"];
    let container = &spec["containers"][0];
    let words = |key: &str| {
        let list = container[key].as_array().into_iter().flatten();
        list.filter_map(text).collect::<Vec<_>>()
    };
    let command: Vec<String> = words("command").into_iter().chain(words("args")).collect();
    to.note("compat", "apiVersion: serving.knative.dev/v1");
    match program {
        Program::Beside => {
            set(&mut to.function.runtime, RuntimeName::Server);
            set(&mut to.function.command, command);
            to.note("command", "containers[0].command and args");
        }
        Program::Image => {
            let Some(image) = text(&container["image"]).filter(|image| !image.is_empty()) else {
                return Err(super::no_code(file, &name));
            };
            to.set_image(&image, "containers[0].image");
            // Without a command, the arguments follow the image's own entry point.
            if !words("command").is_empty() {
                set(&mut to.function.command, command);
                to.note("command", "containers[0].command and args");
            } else if !words("args").is_empty() {
                to.function.image_arguments = Some(words("args"));
            }
        }
        Program::Source => {}
    }
    if let Some(port) = count(&container["ports"][0]["containerPort"]) {
        to.function.port = u16::try_from(port).ok().and_then(implied);
        to.note("port", "containers[0].ports[0].containerPort");
    }
    to.set_env_list(&container["env"], "containers[0].env");
    for from in container["envFrom"].as_array().into_iter().flatten() {
        let kind = if from["secretRef"].is_object() { "secretRef" } else { "configMapRef" };
        let from = text(&from[kind]["name"]).unwrap_or_default();
        to.warn(format!(
            "envFrom: {kind} {from}: mote does not know its keys: name each of them in env"
        ));
    }
    service_volumes(&mut to, &spec["volumes"], &container["volumeMounts"]);
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
    to.read_annotations(&template["metadata"]["annotations"]);
    if document["spec"]["traffic"].is_array() {
        to.warn("spec.traffic: split traffic with mote traffic NAME");
    }
    let known = [
        "image",
        "command",
        "args",
        "env",
        "envFrom",
        "ports",
        "resources",
        "volumeMounts",
        "name",
        "imagePullPolicy",
    ];
    to.ignore_rest(container, &known, "containers[0].");
    let known = ["containers", "timeoutSeconds", "containerConcurrency", "volumes"];
    to.ignore_rest(spec, &known, "spec.template.spec.");
    Ok(to)
}

/// Turns secret volumes into files. Warns about every other mount.
fn service_volumes(to: &mut Described, volumes: &Value, mounts: &Value) {
    for volume in volumes.as_array().into_iter().flatten() {
        let name = text(&volume["name"]).unwrap_or_default();
        let mount = mounts.as_array().into_iter().flatten().find(|mount| mount["name"] == name);
        let Some(place) = mount.and_then(|mount| text(&mount["mountPath"])) else { continue };
        let Some(secret) = text(&volume["secret"]["secretName"]) else {
            to.warn(format!("volumes: {name}: nothing is mounted at {place}"));
            continue;
        };
        let place = place.trim_end_matches('/');
        let items = volume["secret"]["items"].as_array();
        for item in items.into_iter().flatten() {
            let key = text(&item["key"]).unwrap_or_default();
            let file = text(&item["path"]).unwrap_or_default();
            to.add_secret_file(&secret_key(&secret, &key), &format!("{place}/{file}"));
        }
        if items.is_none() {
            to.add_secret_file(&secret, place);
        }
        to.note("secrets", "volumes");
    }
}

fn scale(to: &mut Described, annotations: &Value) {
    let prefix = "autoscaling.knative.dev/";
    let get = |key: &str, old: &str| {
        let found = &annotations[format!("{prefix}{key}")];
        count(if found.is_null() { &annotations[format!("{prefix}{old}")] } else { found })
    };
    let min = get("min-scale", "minScale");
    let max = get("max-scale", "maxScale");
    to.set_scale(min, max, "annotations min-scale, max-scale");
    if let Some(target) = get("target", "target") {
        to.function.scale.policy = Some(PolicyName::Knative);
        to.function.scale.target = Some(target);
        to.note("policy", "annotation target");
    }
    let known = ["min-scale", "max-scale", "minScale", "maxScale", "target"];
    let known = known.map(|key| format!("{prefix}{key}"));
    let mut known: Vec<&str> = known.iter().map(String::as_str).collect();
    known.extend([super::ALLOW_NET, super::ACCESS]);
    to.ignore_rest(annotations, &known, "annotation ");
}

/// Reads a `func.yaml` of version 0.34 or later. Also reads the keys that older versions had at the
/// top.
pub(super) fn func(
    file: &str,
    document: &Value,
    is_of_parliament: bool,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<Foreign, Mistakes> {
    let name = text(&document["name"]).unwrap_or_default();
    let written = text(&document["runtime"]).unwrap_or_default();
    let runtime = match written.as_str() {
        "python" => RuntimeName::Python,
        "node" | "typescript" => RuntimeName::Node,
        "go" => RuntimeName::Go,
        _ => {
            let hint = "supported: go, node, typescript (built), python; build others as a program \
                        and deploy it with runtime = \"server\"";
            return Err(not_offered(file, &name, &format!("runtime {written:?}"), hint));
        }
    };
    let mut to = Described::new(&name, PlatformName::Knative);
    if runtime == RuntimeName::Python && is_of_parliament {
        set(&mut to.function.template, "parliament".to_owned());
        to.note("template", "main(context) of the package parliament");
        set(&mut to.function.entry, "func:main".to_owned());
        to.note("entry", "the file func.py");
    }
    set(&mut to.function.runtime, runtime);
    to.note("compat", "specVersion");
    to.note("runtime", format!("runtime: {written}"));
    if text(&document["invoke"]).is_some_and(|kind| kind.starts_with("cloudevent")) {
        set(&mut to.function.template, "cloudevents".to_owned());
        to.note("template", "invoke: cloudevent");
    }
    let under = |section: &str, key: &str| match &document[section][key] {
        Value::Null => document[key].clone(),
        found => found.clone(),
    };
    environment(&mut to, &under("run", "envs"), lookup);
    for volume in under("run", "volumes").as_array().into_iter().flatten() {
        let place = text(&volume["path"]).unwrap_or_default();
        match text(&volume["secret"]) {
            Some(secret) => {
                to.add_secret_file(&secret, place.trim_end_matches('/'));
                to.note("secrets", "run.volumes");
            }
            None => to.warn(format!("run.volumes: nothing is mounted at {place}")),
        }
    }
    let start = under("run", "startTimeout");
    if let Some(ms) = text(&start).and_then(|text| super::quantity::milliseconds(&text)) {
        to.function.limits.init_timeout_ms = Some(ms);
        to.note("init_timeout", "run.startTimeout");
    }
    options(&mut to, &under("deploy", "options"));
    health(&mut to, &under("deploy", "healthEndpoints"), runtime);
    for (section, key) in [("deploy", "subscriptions"), ("run", "kafka")] {
        if !document[section][key].is_null() {
            to.warn(format!("{section}.{key}: this trigger is not supported yet"));
        }
    }
    let annotations = under("deploy", "annotations");
    scale(&mut to, &annotations);
    for key in ["labels", "serviceAccountName", "imagePullSecret"] {
        if !document["deploy"][key].is_null() {
            to.warn(format!("ignored: deploy.{key}"));
        }
    }
    if document["build"]["buildEnvs"].as_array().is_some_and(|envs| !envs.is_empty()) {
        to.warn("ignored: build.buildEnvs");
    }
    Ok(Foreign { functions: vec![to], ..Foreign::default() })
}

/// Reads `envs`. A value is plain text, `{{ env:X }}` for a variable of the environment of `mote
/// deploy`, or `{{ secret:NAME:KEY }}` for a secret.
fn environment(to: &mut Described, list: &Value, lookup: impl Fn(&str) -> Option<String>) {
    for entry in list.as_array().into_iter().flatten() {
        let name = text(&entry["name"]).unwrap_or_default();
        let value = text(&entry["value"]).unwrap_or_default();
        let inside =
            value.trim().strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}")).map(str::trim);
        match inside.map(|inside| inside.split_once(':').unwrap_or((inside, ""))) {
            None if name.is_empty() => {
                to.warn(format!("envs: {value} is not converted as a whole"))
            }
            None => to.set_env(&name, value),
            Some(("env", from)) => match lookup(from) {
                Some(value) => to.set_env(&name, value),
                None => to.warn(format!(
                    "envs: {name}: the variable {from} is not set in this environment"
                )),
            },
            Some(("secret", from)) => match from.split_once(':') {
                Some((secret, key)) if !name.is_empty() => {
                    to.set_secret_env(&name, &secret_key(secret, key));
                }
                _ => to.warn(format!(
                    "envs: mote does not know the keys of secret {from}: name each with its key"
                )),
            },
            Some((kind, from)) => {
                to.warn(format!(
                    "envs: {name}: the {kind} {from} is not available: set it in [env]"
                ));
            }
        }
    }
    to.note_env("run.envs");
}

/// Reads `options`: the number of instances, and the resources of each instance.
fn options(to: &mut Described, options: &Value) {
    let wanted = &options["scale"];
    to.set_scale(count(&wanted["min"]), count(&wanted["max"]), "options.scale");
    let metric = text(&wanted["metric"]).unwrap_or_else(|| "concurrency".to_owned());
    if let Some(target) = text(&wanted["target"]).and_then(|target| target.parse::<f64>().ok()) {
        let by_rate = metric == "rps";
        to.function.scale.policy =
            Some(if by_rate { PolicyName::Rps } else { PolicyName::Knative });
        to.function.scale.target = Some((target.round() as u32).max(1));
        to.note("policy", format!("options.scale.metric, target: {metric} {target}"));
    }
    if !wanted["utilization"].is_null() {
        to.warn("options.scale.utilization: mote always scales to the full target");
    }
    let limits = &options["resources"]["limits"];
    if let Some(limit) = count(&limits["concurrency"]).filter(|limit| *limit > 0) {
        to.function.limits.concurrency = Some(limit);
        to.note("concurrency", "options.resources.limits.concurrency");
    }
    let mut rest = limits.clone();
    if let Some(table) = rest.as_object_mut() {
        table.remove("concurrency");
    }
    to.set_resources(&rest, "options.resources.limits");
}

/// Reads the paths of the health endpoints, if they differ from the usual ones. The node itself calls
/// neither endpoint.
fn health(to: &mut Described, endpoints: &Value, runtime: RuntimeName) {
    for (key, variable, usual) in [
        ("liveness", "LIVENESS_URL", "/health/liveness"),
        ("readiness", "READINESS_URL", "/health/readiness"),
    ] {
        match text(&endpoints[key]) {
            Some(path) if path != usual && runtime == RuntimeName::Node => {
                to.set_env(variable, path);
            }
            Some(path) if path != usual => {
                to.warn(format!("healthEndpoints.{key}: mote keeps {usual}"));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_func_yaml() {
        let document: Value = yaml_serde::from_str(
            "specVersion: 0.36.0\nname: f\nruntime: go\ninvoke: cloudevent\nrun:\n  envs:\n  \
             - {name: A, value: '1'}\n  - {name: B, value: '{{ env:HERE }}'}\n  \
             - {name: C, value: '{{ env:GONE }}'}\n  - {name: D, value: '{{ secret:s:k }}'}\n  \
             - {name: E, value: '{{ configMap:c:k }}'}\n  - {value: '{{ secret:s }}'}\n  volumes:\n  \
             - {secret: files, path: /etc/files}\n  - {emptyDir: {}, path: /scratch}\n\
             deploy:\n  options:\n    scale: {min: 1, max: 3, metric: rps, target: 2.4}\n    \
             resources: {limits: {memory: 96Mi, cpu: 500m, concurrency: 7}}\n",
        )
        .unwrap();
        let lookup = |name: &str| (name == "HERE").then(|| "2".to_owned());
        let found = func("func.yaml", &document, false, lookup).unwrap();
        let function = &found.functions[0].function;
        assert_eq!(function.template.as_ref().unwrap().value, "cloudevents");
        let env: Vec<_> = function.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(env, ["A=1", "B=2"]);
        assert_eq!((function.scale.min, function.scale.max), (Some(1), Some(3)));
        assert_eq!(function.scale.target, Some(2));
        assert_eq!(function.limits.memory_bytes, Some(96 << 20));
        assert_eq!(function.limits.cpu_millis, Some(500));
        assert_eq!(function.limits.concurrency, Some(7));
        assert_eq!(function.secret_env["D"], "s.k");
        assert_eq!(function.secrets, ["files"]);
        let wanted = [
            "envs: C: the variable GONE is not set in this environment",
            "envs: E: the configMap c:k is not available: set it in [env]",
            "envs: mote does not know the keys of secret s: name each with its key",
            "secrets: /etc/files becomes the file /secrets/files",
            "run.volumes: nothing is mounted at /scratch",
        ];
        assert_eq!(found.functions[0].warnings, wanted);
    }

    #[test]
    fn secrets_of_a_service() {
        let document: Value = yaml_serde::from_str(
            "metadata: {name: s}\nspec:\n  template:\n    spec:\n      containers:\n      \
             - command: [./run]\n        env:\n        - name: TOKEN\n          \
             valueFrom: {secretKeyRef: {name: api, key: token}}\n        \
             - name: MODE\n          valueFrom: {configMapKeyRef: {name: c, key: mode}}\n        \
             envFrom: [{secretRef: {name: all}}]\n        volumeMounts:\n        \
             - {name: v, mountPath: /etc/tls/}\n        - {name: w, mountPath: /etc/one}\n        \
             - {name: t, mountPath: /scratch}\n      volumes:\n      \
             - {name: v, secret: {secretName: tls, items: [{key: tls.key, path: key}]}}\n      \
             - {name: w, secret: {secretName: whole}}\n      - {name: t, emptyDir: {}}\n",
        )
        .unwrap();
        let found = service("service.yaml", &document).unwrap();
        assert_eq!(found.function.secret_env["TOKEN"], "api.token");
        assert_eq!(found.function.secrets, ["tls.tls.key", "whole"]);
        let wanted = [
            "containers[0].env: `MODE` is not defined in the manifest",
            "envFrom: secretRef all: mote does not know its keys: name each of them in env",
            "secrets: /etc/tls/key becomes the file /secrets/tls.tls.key",
            "secrets: /etc/one becomes the file /secrets/whole",
            "volumes: t: nothing is mounted at /scratch",
        ];
        assert_eq!(found.warnings, wanted);
    }
}
