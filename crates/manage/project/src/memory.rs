//! Chooses the memory limit of a function whose manifest sets none. The limit follows from the packages
//! that the function names, or from what functions of its platform usually need.
//!
//! A limit that is too small kills a function that runs everywhere else. A limit that is too large
//! wastes room, because the limits of all instances together must stay within the node's budget.

use mote_spec::{FunctionSpec, Platform, Runtime};

use super::probe::Folder;

const MIB: u64 = 1 << 20;
/// The limit of a function of another platform. Functions have no limit there, or one of 256 MiB.
const OF_PLATFORM: u64 = 128 * MIB;
/// The limit of an OpenWhisk action, which is the same as on its platform.
const OF_OPENWHISK: u64 = 256 * MIB;
/// The limit of a function with packages. A web framework and its clients take 30 to 80 MiB, and the
/// data that the function works on comes on top.
const WITH_PACKAGES: u64 = 256 * MIB;
/// The limit of a function with packages for data. A function that imports pandas and scikit-learn
/// takes 170 MiB before its first call.
const WITH_DATA: u64 = 512 * MIB;
/// The limit of a function with packages for models. Without a model, importing torch takes 250 to 400
/// MiB, and importing TensorFlow 500 to 700 MiB.
const WITH_MODELS: u64 = 1024 * MIB;

const DATA: [&str; 22] = [
    "catboost",
    "dask",
    "gensim",
    "geopandas",
    "lightgbm",
    "matplotlib",
    "nltk",
    "numba",
    "onnxruntime",
    "opencv-python",
    "opencv-python-headless",
    "pandas",
    "polars",
    "prophet",
    "pyarrow",
    "scikit-image",
    "scikit-learn",
    "scipy",
    "spacy",
    "statsmodels",
    "tflite-runtime",
    "xgboost",
];
const MODELS: [&str; 12] = [
    "diffusers",
    "easyocr",
    "jax",
    "keras",
    "paddlepaddle",
    "sentence-transformers",
    "tensorflow",
    "tensorflow-cpu",
    "torch",
    "torchvision",
    "transformers",
    "ultralytics",
];
const NODE_MODELS: [&str; 6] = [
    "@tensorflow/tfjs",
    "@tensorflow/tfjs-node",
    "canvas",
    "onnxruntime-node",
    "playwright",
    "puppeteer",
];

/// Returns the limit. Also returns the reason, unless the limit is that of the runtime.
pub(super) fn default_bytes(folder: &Folder, spec: &FunctionSpec) -> (u64, Option<String>) {
    let usual = spec.limits.memory_bytes;
    let (most, reason) = match spec.runtime {
        Runtime::Python => python(folder),
        Runtime::Node | Runtime::Bun | Runtime::Deno => node(folder),
        Runtime::Go
        | Runtime::Rust
        | Runtime::Exec
        | Runtime::Server
        | Runtime::Chain
        | Runtime::Wasm => (0, None),
    };
    let of_platform = match spec.compat {
        None => 0,
        Some(Platform::OpenWhisk) => OF_OPENWHISK,
        Some(_) => OF_PLATFORM,
    };
    if most > usual.max(of_platform) {
        return (most, reason);
    }
    (usual.max(of_platform), None)
}

fn python(folder: &Folder) -> (u64, Option<String>) {
    let mut names: Vec<String> = Vec::new();
    for line in folder.source("requirements.txt").lines() {
        names.extend(requirement(line));
    }
    let project = folder.source("pyproject.toml");
    if let Some((_, list)) = project.split_once("\ndependencies = [") {
        let inside = list.split("\n]").next().unwrap_or_default();
        names.extend(inside.split(['"', '\'']).skip(1).step_by(2).filter_map(requirement));
    }
    of_names(&names, &MODELS, &DATA)
}

fn node(folder: &Folder) -> (u64, Option<String>) {
    let package: serde_json::Value =
        serde_json::from_str(&folder.source("package.json")).unwrap_or_default();
    let dependencies = package["dependencies"].as_object();
    let names: Vec<String> =
        dependencies.into_iter().flatten().map(|(name, _)| name.clone()).collect();
    of_names(&names, &NODE_MODELS, &[])
}

fn of_names(names: &[String], models: &[&str], data: &[&str]) -> (u64, Option<String>) {
    let among = |known: &[&str]| names.iter().find(|name| known.contains(&name.as_str())).cloned();
    let because = |name: Option<String>| name.map(|name| format!("for the package {name}"));
    if let Some(name) = among(models) {
        (WITH_MODELS, because(Some(name)))
    } else if let Some(name) = among(data) {
        (WITH_DATA, because(Some(name)))
    } else if names.is_empty() {
        (0, None)
    } else {
        (WITH_PACKAGES, Some("for its packages".to_owned()))
    }
}

/// Returns the package that a line of a list names, in the form in which package indexes compare names.
fn requirement(line: &str) -> Option<String> {
    let line = line.trim();
    if line.is_empty() || line.starts_with(['#', '-']) {
        return None;
    }
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let end = line.find(|c: char| !is_of_name(c)).unwrap_or(line.len());
    Some(line[..end].to_lowercase().replace(['_', '.'], "-"))
}

#[cfg(test)]
mod tests {
    use mote_spec::FunctionName;

    use super::*;

    fn check(
        compat: Option<Platform>,
        runtime: Runtime,
        files: &[(&str, &str)],
        mib: u64,
        why: &str,
    ) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let name = FunctionName::new("f").unwrap();
        let mut spec = FunctionSpec::with_defaults(name, runtime, "x");
        spec.compat = compat;
        let folder = Folder::read(folder.path()).unwrap();
        let (bytes, reason) = default_bytes(&folder, &spec);
        assert_eq!((bytes / MIB, reason.as_deref().unwrap_or_default()), (mib, why), "{files:?}");
    }

    #[test]
    fn the_limit_follows_the_packages_and_the_platform() {
        use Platform::{OpenFaas, OpenWhisk};
        use Runtime::{Exec, Node, Python};
        check(None, Python, &[], 64, "");
        check(None, Node, &[], 128, "");
        check(None, Exec, &[("requirements.txt", "torch\n")], 64, "");
        check(Some(OpenFaas), Python, &[], 128, "");
        check(Some(OpenWhisk), Python, &[], 256, "");
        let list = |text: &'static str| [("requirements.txt", text)];
        check(None, Python, &list("# nothing\n\n-i https://x/\n"), 64, "");
        check(None, Python, &list("requests==2.0\n"), 256, "for its packages");
        check(Some(OpenWhisk), Python, &list("requests\n"), 256, "");
        check(
            None,
            Python,
            &list("flask\nScikit_Learn[x]>=1 # y\n"),
            512,
            "for the package scikit-learn",
        );
        check(None, Python, &list("pandas\ntorch==2.4\n"), 1024, "for the package torch");
        let project = "[project]\nname = \"torch\"\ndependencies = [\n  \"pandas >= 2\",\n]\n";
        check(None, Python, &[("pyproject.toml", project)], 512, "for the package pandas");
        let node = r#"{"dependencies":{"puppeteer":"1"}}"#;
        check(None, Node, &[("package.json", node)], 1024, "for the package puppeteer");
        check(None, Node, &[("package.json", "{}")], 128, "");
    }
}
