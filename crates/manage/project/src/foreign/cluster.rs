//! Reads functions of other platforms from objects of a Kubernetes cluster. The objects are the output
//! of `kubectl get` and may belong to several platforms.
//!
//! Kubeless, Nuclio and Fission keep code in their objects. Knative and OpenFaaS use images, so for
//! these the user names the folder of each function's code.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mote_spec::toml_reader::Mistakes;
use mote_store::source;
use serde_json::{Value, json};

use super::super::contract;
use super::super::mistakes::mistake;
use super::{
    Described, Foreign, LeftOut, Source, check, fission, group, knative, kubeless, label, no_code,
    nuclio, object_name, openfaas, routes, text,
};

/// The resources that are read. The names have the form that `kubectl api-resources -o name` prints.
pub const RESOURCES: [&str; 13] = [
    "services.serving.knative.dev",
    "domainmappings.serving.knative.dev",
    "functions.openfaas.com",
    "functioningresses.openfaas.com",
    "functions.kubeless.io",
    "cronjobtriggers.kubeless.io",
    "httptriggers.kubeless.io",
    "nucliofunctions.nuclio.io",
    "environments.fission.io",
    "functions.fission.io",
    "httptriggers.fission.io",
    "packages.fission.io",
    "timetriggers.fission.io",
];
/// The API group of OpenFaaS' objects.
pub(super) const OPENFAAS: &str = "openfaas.com";

/// Reads objects of a cluster. `sources` contains, by name, the folders of functions whose objects have
/// no code. Relative paths in objects start at `folder`.
pub fn read(
    file: &str,
    objects: Vec<Value>,
    sources: &BTreeMap<String, PathBuf>,
    folder: &Path,
) -> Result<Foreign, Mistakes> {
    let mut found = Foreign { file: file.to_owned(), ..Foreign::default() };
    let mut groups: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for mut object in objects {
        strip(&mut object);
        groups.entry(group(&object).to_owned()).or_default().push(object);
    }
    for (group, all) in &groups {
        let read = match group.as_str() {
            "kubeless.io" => kubeless::read(file, all)?,
            "nuclio.io" => nuclio::read(file, all, folder)?,
            "fission.io" => fission::read(file, all, folder)?.unwrap_or_default(),
            "serving.knative.dev" => each(all, "Service", |object| {
                let own = source_of(object, sources);
                knative::service_of(file, object, own.map(PathBuf::as_path))
            }),
            OPENFAAS => each(all, "Function", |object| function(file, object, sources)),
            _ => {
                let others = all.iter().filter(|object| !routes::is_read(object));
                found.warnings.extend(others.map(|one| format!("ignored: {}", object_name(one))));
                continue;
            }
        };
        found.functions.extend(read.functions);
        found.warnings.extend(read.warnings);
        found.left_out.extend(read.left_out);
    }
    for (name, path) in sources {
        match found.functions.iter_mut().find(|one| one.name() == label(name)) {
            Some(one) => one.source = Source::At(path.clone()),
            None if found.left_out.iter().any(|one: &LeftOut| one.name == label(name)) => {}
            None => {
                let text = format!("--source: no function is named {name}");
                return Err(mistake("M0101", text, None));
            }
        }
    }
    same_names(&found)?;
    for all in groups.values() {
        routes::objects(&mut found, all);
    }
    check(&mut found)?;
    Ok(found)
}

/// Refuses functions with the same name, which may come from different platforms or namespaces.
fn same_names(found: &Foreign) -> Result<(), Mistakes> {
    let mut names: Vec<&str> = found.functions.iter().map(Described::name).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => {
            let text = format!("{}: several functions are named {}", found.file, pair[0]);
            let hint = "choose one of them with --namespace, or import a file";
            Err(mistake("M0115", text, Some(hint.to_owned())))
        }
    }
}

/// Removes the members that the API server and the controllers have added.
fn strip(object: &mut Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    let spec = object.pointer_mut("/spec/template/spec");
    if let Some(fields) = spec.and_then(Value::as_object_mut)
        && fields.get("enableServiceLinks") == Some(&Value::Bool(false))
    {
        fields.remove("enableServiceLinks");
    }
    let containers = object.pointer_mut("/spec/template/spec/containers");
    for container in containers.and_then(Value::as_array_mut).into_iter().flatten() {
        // A probe that opens a connection to the container's port is Knative's default.
        let is_default = container["readinessProbe"]["tcpSocket"]["port"] == 0;
        if let Some(fields) = container.as_object_mut()
            && is_default
        {
            fields.remove("readinessProbe");
        }
    }
}

fn each(
    all: &[Value],
    kind: &str,
    read: impl Fn(&Value) -> Result<Described, Mistakes>,
) -> Foreign {
    let mut found = Foreign::default();
    for object in all {
        if object["kind"] == kind {
            let name = text(&object["metadata"]["name"]).unwrap_or_default();
            found.add(&name, read(object));
        } else if !routes::is_read(object) {
            found.warnings.push(format!("ignored: {}", object_name(object)));
        }
    }
    found
}

fn source_of<'a>(object: &Value, sources: &'a BTreeMap<String, PathBuf>) -> Option<&'a PathBuf> {
    sources.get(object["metadata"]["name"].as_str()?)
}

/// Reads an OpenFaaS object. It has the keys of `stack.yml`, but no language.
fn function(
    file: &str,
    object: &Value,
    sources: &BTreeMap<String, PathBuf>,
) -> Result<Described, Mistakes> {
    let name = text(&object["metadata"]["name"]).unwrap_or_default();
    let Some(folder) = source_of(object, sources) else {
        return image(file, &name, &object["spec"]);
    };
    let Some(lang) = language(folder) else {
        let shown = folder.display();
        let text = format!("{file}: {name}: {shown}: no handler.py, handler.js or handler.go");
        let hint = "name the folder of the handler, as in stack.yml";
        return Err(mistake("M0112", text, Some(hint.to_owned())));
    };
    let mut entry = object["spec"].clone();
    if let Some(fields) = entry.as_object_mut() {
        fields.remove("name");
        // The image runs the code that the language implies, and requests have no meaning on a node.
        for key in ["handler", "requests", "constraints", "readOnlyRootFilesystem"] {
            fields.remove(key);
        }
        fields.insert("lang".to_owned(), lang.into());
        fields.insert("handler".to_owned(), json!("."));
    }
    let mut described = openfaas::function(file, &name, &entry, folder)?;
    described.note("compat", "apiVersion: openfaas.com");
    described.warn(format!("lang: guessed {lang} from the files in {}", folder.display()));
    Ok(described)
}

/// Reads an OpenFaaS object whose code is only in its image.
fn image(file: &str, name: &str, spec: &Value) -> Result<Described, Mistakes> {
    if !spec["image"].is_string() {
        return Err(no_code(file, name));
    }
    let mut entry = spec.clone();
    if let Some(fields) = entry.as_object_mut() {
        for key in ["name", "handler", "requests", "constraints", "readOnlyRootFilesystem"] {
            fields.remove(key);
        }
    }
    let mut described = openfaas::function(file, name, &entry, Path::new("."))?;
    described.note("compat", "apiVersion: openfaas.com");
    Ok(described)
}

/// Finds the template whose contract the handler in a folder follows.
fn language(folder: &Path) -> Option<&'static str> {
    let read = |name: &str| source::text(folder.join(name)).ok();
    if let Some(code) = read("handler.py") {
        let names = contract::python_parameters(&code, "handle").unwrap_or_default();
        return Some(if names.len() >= 2 { "python3-http" } else { "python3" });
    }
    if folder.join("handler.js").is_file() {
        return Some("node22");
    }
    let code = read("handler.go")?;
    Some(match () {
        () if code.contains("http.ResponseWriter") => "golang-middleware",
        () if code.contains("handler.Request") => "golang-http",
        () => "go",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(yaml: &str) -> Vec<Value> {
        super::super::documents("objects.yaml", yaml).unwrap()
    }

    #[test]
    fn objects_of_several_platforms_are_read_together() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("handler.py"), "def handle(event, context):\n    pass\n")
            .unwrap();
        let yaml = "\
apiVersion: v1
kind: List
items:
- apiVersion: kubeless.io/v1beta1
  kind: Function
  metadata: {name: hello, managedFields: [{manager: x}]}
  spec: {runtime: python3.8, handler: hello.main, function: 'def main(event, context): return 1', deps: six}
  status: {phase: Ready}
- apiVersion: openfaas.com/v1
  kind: Function
  metadata: {name: figlet}
  spec:
    name: figlet
    image: ghcr.io/openfaas/figlet:latest
    environment: {A: b}
    secrets: [key]
    limits: {memory: 64Mi}
- apiVersion: serving.knative.dev/v1
  kind: Service
  metadata: {name: greeter}
  spec: {template: {spec: {containers: [{image: example.com/greeter}]}}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: kube-root-ca.crt}}
";
        let sources = BTreeMap::from([("figlet".to_owned(), dir.path().to_owned())]);
        let found = read("objects.yaml", objects(yaml), &sources, Path::new(".")).unwrap();
        let names: Vec<&str> = found.functions.iter().map(Described::name).collect();
        assert_eq!(names, ["hello", "figlet", "greeter"]);
        let Source::Inside(files) = &found.functions[0].source else { panic!("code is inside") };
        assert_eq!((files[0].0.as_str(), files[1].0.as_str()), ("hello.py", "requirements.txt"));
        let figlet = &found.functions[1];
        assert_eq!(figlet.source, Source::At(dir.path().to_owned()));
        assert_eq!(figlet.function.env["A"], "b");
        assert_eq!(figlet.function.secrets, ["key"]);
        assert_eq!(found.warnings, ["ignored: ConfigMap kube-root-ca.crt"]);
        let image = found.functions[2].function.image.as_ref().expect("an image");
        assert_eq!(image.value, "example.com/greeter");
        assert!(found.left_out.is_empty());
    }

    #[test]
    fn names_must_exist_and_be_different() {
        let function = |group: &str| {
            format!(
                "apiVersion: {group}/v1\nkind: Function\nmetadata: {{name: f}}\nspec: {{runtime: \
                 python3.8, handler: f.f, function: 'def f(event, context): pass'}}\n"
            )
        };
        let one = function("kubeless.io");
        let sources = BTreeMap::from([("g".to_owned(), PathBuf::from("g"))]);
        let error = read("f", objects(&one), &sources, Path::new(".")).unwrap_err();
        assert!(error.to_string().contains("no function is named g"), "{error}");
        let two = format!("{one}---\n{one}");
        let error = read("f", objects(&two), &BTreeMap::new(), Path::new(".")).unwrap_err();
        assert!(error.to_string().contains("several functions are named f"), "{error}");
    }
}
