//! Packages that the official images of other platforms contain, for functions that import them
//! without naming them. The node installs them for a function that imports them, and all such
//! functions share the installation.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use mote_core::FunctionSpec;
use mote_core::spec::{Platform, Runtime};

/// Source files of one function that are searched.
const FILES_MAX: usize = 64;
/// Bytes of one file that are searched.
const SOURCE_BYTES_MAX: u64 = 1 << 20;

/// A module as a function imports it, and the package that contains it.
type Provided = (&'static str, &'static str);

/// Python modules of OpenWhisk's images.
const OPENWHISK_PYTHON: [Provided; 10] = [
    ("bs4", "beautifulsoup4"),
    ("dateutil", "python-dateutil"),
    ("flask", "flask"),
    ("httplib2", "httplib2"),
    ("kafka", "kafka-python"),
    ("lxml", "lxml"),
    ("requests", "requests"),
    ("simplejson", "simplejson"),
    ("twisted", "twisted"),
    ("werkzeug", "werkzeug"),
];
/// Python modules of Fission's environments.
const FISSION_PYTHON: [Provided; 4] = [
    ("fastapi", "fastapi"),
    ("flask", "flask"),
    ("requests", "requests"),
    ("starlette", "fastapi"),
];
/// Python modules of Nuclio's images.
const NUCLIO_PYTHON: [Provided; 2] = [("nuclio_sdk", "nuclio-sdk"), ("msgpack", "msgpack")];
/// Python modules of Knative's templates.
const KNATIVE_PYTHON: [Provided; 2] =
    [("parliament", "parliament-functions"), ("cloudevents", "cloudevents")];
/// Node packages of OpenWhisk's images.
const OPENWHISK_NODE: [Provided; 11] = [
    ("async", "async"),
    ("cheerio", "cheerio"),
    ("lodash", "lodash"),
    ("moment", "moment"),
    ("needle", "needle"),
    ("openwhisk", "openwhisk@3"),
    ("request", "request"),
    ("underscore", "underscore"),
    ("uuid", "uuid"),
    ("validator", "validator"),
    ("xml2js", "xml2js"),
];

fn table(compat: Platform, runtime: Runtime) -> &'static [Provided] {
    match (compat, runtime) {
        (Platform::OpenWhisk, Runtime::Python) => &OPENWHISK_PYTHON,
        (Platform::OpenWhisk, Runtime::Node) => &OPENWHISK_NODE,
        (Platform::Fission, Runtime::Python) => &FISSION_PYTHON,
        (Platform::Nuclio, Runtime::Python) => &NUCLIO_PYTHON,
        (Platform::Knative, Runtime::Python) => &KNATIVE_PYTHON,
        _ => &[],
    }
}

/// The packages that a function imports, has not named, and would have on its own platform.
pub fn packages(spec: &FunctionSpec, code: &Path) -> Vec<String> {
    let Some(compat) = spec.compat else { return Vec::new() };
    let known = table(compat, spec.runtime);
    if known.is_empty() {
        return Vec::new();
    }
    let is_python = spec.runtime == Runtime::Python;
    let (list, endings): (&str, &[&str]) = if is_python {
        ("requirements.txt", &["py"])
    } else {
        ("package.json", &["js", "mjs", "cjs"])
    };
    let mut named = read(&code.join(list)).to_lowercase();
    if is_python {
        named.push('\n');
        named.push_str(&read(&code.join("pyproject.toml")).to_lowercase());
    }
    // With hashes in the list, pip demands a hash of every package, including those that are not in
    // the list.
    if named.contains("--hash=") || named.contains("--require-hashes") {
        return Vec::new();
    }
    let sources = sources(code, endings);
    let imports = |module: &str| {
        sources.iter().any(|source| {
            if is_python { imports_in_python(source, module) } else { requires(source, module) }
        })
    };
    let is_own =
        |module: &str| code.join(module).exists() || code.join(format!("{module}.py")).exists();
    let is_named = |package: &str| {
        let name = package.split('@').next().unwrap_or(package);
        if is_python { requirements_name(&named, name) } else { depends_on(&named, name) }
    };
    // A framework defines this contract, so the package is needed whether or not the code imports
    // it.
    let is_served_by = |package: &str| match spec.template.as_deref() {
        Some("fastapi") => package == "fastapi",
        Some("parliament") => package == "parliament-functions",
        _ => false,
    };
    let wanted = |(module, package): &&Provided| {
        !is_named(package) && !is_own(module) && (imports(module) || is_served_by(package))
    };
    let mut packages: Vec<String> = Vec::new();
    for (_, package) in known.iter().filter(wanted) {
        // Two modules may belong to one package.
        if !packages.iter().any(|known| known == package) {
            packages.push((*package).to_owned());
        }
    }
    packages
}

/// Whether a list of requirements names a package, by its name or as a wheel, an archive or a
/// repository of that name. `list` is in lower case.
fn requirements_name(list: &str, package: &str) -> bool {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    let is_it = |word: &str| {
        let word = word.replace('_', "-");
        let rest = word.strip_prefix(package);
        // In the name of a wheel or an archive, the version follows.
        let is_version = |rest: &str| rest.starts_with(|letter: char| letter.is_ascii_digit());
        rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('-').is_some_and(is_version))
    };
    list.lines().any(|line| {
        let line = line.trim_start();
        let line = if line.starts_with('#') { "" } else { line };
        let line = line.split(" #").next().unwrap_or_default();
        line.split(|letter| !is_of_name(letter)).any(is_it)
    })
}

/// Whether a `package.json` (in lower case) has a package among its dependencies.
fn depends_on(package_json: &str, package: &str) -> bool {
    let Ok(whole) = serde_json::from_str::<serde_json::Value>(package_json) else { return false };
    ["dependencies", "devdependencies", "optionaldependencies", "peerdependencies"]
        .iter()
        .any(|kind| whole[kind].get(package).is_some())
}

/// The source files at the top of a folder and one folder below.
fn sources(code: &Path, endings: &[&str]) -> Vec<String> {
    let entries = |folder: &Path| {
        let mut paths: Vec<_> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        paths.sort_unstable();
        paths
    };
    let top = entries(code);
    let below = top.iter().filter(|path| path.is_dir()).flat_map(|folder| entries(folder));
    let all: Vec<_> = top.iter().cloned().chain(below).collect();
    let is_source = |path: &&std::path::PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        path.is_file() && endings.contains(&ending)
    };
    all.iter().filter(is_source).take(FILES_MAX).map(|path| read(path)).collect()
}

fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // If a file cannot be read, the language reports it.
        let _ = file.take(SOURCE_BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn imports_in_python(source: &str, module: &str) -> bool {
    let is_it = |word: &str| {
        let word = word.split_whitespace().next().unwrap_or_default();
        word.split('.').next() == Some(module)
    };
    source.lines().map(str::trim_start).any(|line| {
        if let Some(list) = line.strip_prefix("import ") {
            return list.split(',').any(is_it);
        }
        line.strip_prefix("from ").is_some_and(is_it)
    })
}

fn requires(source: &str, module: &str) -> bool {
    ['\'', '"'].iter().any(|quote| {
        source.contains(&format!("require({quote}{module}{quote})"))
            || source.contains(&format!("from {quote}{module}{quote}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(compat: Platform, runtime: Runtime, files: &[(&str, &str)], expected: &[&str]) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let name = mote_core::FunctionName::new("f").unwrap();
        let mut spec = FunctionSpec::with_defaults(name, runtime, "x");
        spec.compat = Some(compat);
        assert_eq!(packages(&spec, folder.path()), expected, "{files:?}");
    }

    #[test]
    fn what_a_function_imports_and_does_not_name_is_provided() {
        use Platform::{Fission, Kubeless, OpenWhisk};
        use Runtime::{Node, Python};
        let flask = "import os, flask.json\ndef main():\n    return 1\n";
        check(Fission, Python, &[("main.py", flask)], &["flask"]);
        let both = "from fastapi import Request\nfrom starlette.responses import Response\n";
        check(Fission, Python, &[("main.py", both)], &["fastapi"]);
        check(Fission, Python, &[("main.py", flask), ("requirements.txt", "Flask==3.0\n")], &[]);
        check(Fission, Python, &[("main.py", flask), ("flask.py", "")], &[]);
        check(Kubeless, Python, &[("main.py", flask)], &[]);
        let soup = "    from bs4 import BeautifulSoup\n# import lxml\n";
        let files = [("__main__.py", "import lib.x"), ("lib/x.py", soup)];
        check(OpenWhisk, Python, &files, &["beautifulsoup4"]);
        check(
            OpenWhisk,
            Node,
            &[("index.js", "const ow = require('openwhisk');")],
            &["openwhisk@3"],
        );
        let named = [
            ("index.js", "import ow from \"openwhisk\";"),
            ("package.json", r#"{"dependencies":{"openwhisk":"^3"}}"#),
        ];
        check(OpenWhisk, Node, &named, &[]);
        for (list, expected) in [
            ("# flask is on the image\npyflask\nflask-cors\n", &["flask"][..]),
            ("./flask-3.0.0-py3-none-any.whl\n", &[]),
            ("git+https://example.com/x/flask.git@main\n", &[]),
            ("Flask[async] >= 2 # the server\n", &[]),
        ] {
            let files = [("main.py", flask), ("requirements.txt", list)];
            check(Fission, Python, &files, expected);
        }
        let others = [
            ("index.js", "const async = require('async');"),
            ("package.json", r#"{"description":"async","devDependencies":{"asynckit":"1"}}"#),
        ];
        check(OpenWhisk, Node, &others, &["async"]);
        let hashed = [("main.py", flask), ("requirements.txt", "x==1 --hash=sha256:00\n")];
        check(Fission, Python, &hashed, &[]);
    }
}
