//! Packages that the official images of other platforms contain. A function may import them without
//! naming them, so the node installs them for each function that imports them. All such functions
//! share one installation.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use mote_spec::{FunctionSpec, Platform, Runtime};

/// At most this many source files of a function are searched.
const FILES_MAX: usize = 64;
/// At most this many bytes of each file are searched.
const SOURCE_BYTES_MAX: u64 = 1 << 20;

/// The name of a module in an import, and the package that contains it.
type Provided = (&'static str, &'static str);

// Some packages changed their exports in later versions: a later `serialize-error` cannot be loaded
// with `require`, and a later `redis` has another interface. The tables name such packages with the
// version that the image contains.

/// Python modules of OpenWhisk's images.
const OPENWHISK_PYTHON: &[Provided] = &[
    ("bs4", "beautifulsoup4"),
    ("dateutil", "python-dateutil"),
    ("flask", "flask"),
    ("gevent", "gevent"),
    ("httplib2", "httplib2"),
    ("kafka", "kafka-python"),
    ("lxml", "lxml"),
    ("netifaces", "netifaces"),
    ("pkg_resources", "setuptools<81"),
    ("requests", "requests"),
    ("scrapy", "scrapy"),
    ("setuptools", "setuptools<81"),
    ("simplejson", "simplejson"),
    ("twisted", "twisted"),
    ("virtualenv", "virtualenv"),
    ("werkzeug", "werkzeug"),
];
/// Python modules of Fission's environments.
const FISSION_PYTHON: &[Provided] = &[
    ("certifi", "certifi"),
    ("chardet", "chardet"),
    ("dateutil", "python-dateutil"),
    ("fastapi", "fastapi"),
    ("flask", "flask"),
    ("gevent", "gevent"),
    ("httplib2", "httplib2"),
    ("jinja2", "jinja2"),
    ("redis", "redis"),
    ("requests", "requests"),
    ("sentry_sdk", "sentry-sdk"),
    ("six", "six"),
    ("starlette", "fastapi"),
    ("urllib3", "urllib3"),
    ("werkzeug", "werkzeug"),
];
/// Node packages of Fission's environments.
const FISSION_NODE: &[Provided] = &[
    ("co", "co@4"),
    ("express", "express@4"),
    ("minimist", "minimist"),
    ("morgan", "morgan"),
    ("mz", "mz@2"),
    ("request", "request"),
    ("request-promise-native", "request-promise-native"),
    ("underscore", "underscore"),
    ("ws", "ws@7"),
];
/// Python modules of Kubeless's images.
const KUBELESS_PYTHON: &[Provided] =
    &[("bottle", "bottle"), ("cherrypy", "cherrypy"), ("prometheus_client", "prometheus-client")];
/// Python modules of Nuclio's images.
const NUCLIO_PYTHON: &[Provided] = &[("nuclio_sdk", "nuclio-sdk"), ("msgpack", "msgpack")];
/// Python modules of Knative's templates.
const KNATIVE_PYTHON: &[Provided] =
    &[("parliament", "parliament-functions"), ("cloudevents", "cloudevents")];
/// Python modules of OpenFaaS's HTTP templates. The oldest template contains none.
const OPENFAAS_PYTHON: &[Provided] = &[
    ("click", "click"),
    ("flask", "flask"),
    ("itsdangerous", "itsdangerous"),
    ("jinja2", "jinja2"),
    ("markupsafe", "markupsafe"),
    ("waitress", "waitress"),
    ("werkzeug", "werkzeug"),
];
/// Node packages of OpenFaaS's templates.
const OPENFAAS_NODE: &[Provided] = &[("body-parser", "body-parser@1"), ("express", "express@4")];
/// Node packages of OpenWhisk's images, from `nodejs:6` to `nodejs:20`.
const OPENWHISK_NODE: &[Provided] = &[
    ("async", "async"),
    ("body-parser", "body-parser@1"),
    ("btoa", "btoa"),
    ("cheerio", "cheerio@0.22"),
    ("commander", "commander@2"),
    ("cookie-parser", "cookie-parser"),
    ("express", "express@4"),
    ("glob", "glob@7"),
    ("iconv-lite", "iconv-lite@0.4"),
    ("lodash", "lodash"),
    ("log4js", "log4js"),
    ("marked", "marked@0.8"),
    ("merge", "merge@1"),
    ("moment", "moment"),
    ("mongodb", "mongodb@2"),
    ("mustache", "mustache@2"),
    ("nano", "nano@6"),
    ("needle", "needle"),
    ("node-uuid", "node-uuid"),
    ("nodemailer", "nodemailer"),
    ("openwhisk", "openwhisk@3"),
    ("pug", "pug@2"),
    ("redis", "redis@2"),
    ("request", "request"),
    ("request-promise", "request-promise"),
    ("rimraf", "rimraf@2"),
    ("semver", "semver"),
    ("serialize-error", "serialize-error@3"),
    ("superagent", "superagent"),
    ("tmp", "tmp"),
    ("twilio", "twilio@2"),
    ("underscore", "underscore"),
    ("uuid", "uuid@3"),
    ("validator", "validator"),
    ("when", "when"),
    ("winston", "winston@2"),
    ("ws", "ws@7"),
    ("xml2js", "xml2js"),
    ("xmlhttprequest", "xmlhttprequest"),
    ("yauzl", "yauzl"),
];

fn table(compat: Platform, runtime: Runtime, template: Option<&str>) -> &'static [Provided] {
    match (compat, runtime) {
        (Platform::OpenWhisk, Runtime::Python) => OPENWHISK_PYTHON,
        (Platform::OpenWhisk, Runtime::Node | Runtime::Bun | Runtime::Deno) => OPENWHISK_NODE,
        // Functions of these templates run under a watchdog, without a framework.
        (Platform::OpenFaas, _) if matches!(template, Some("python3" | "node")) => &[],
        (Platform::OpenFaas, Runtime::Python) => OPENFAAS_PYTHON,
        (Platform::OpenFaas, Runtime::Node | Runtime::Bun | Runtime::Deno) => OPENFAAS_NODE,
        (Platform::Fission, Runtime::Python) => FISSION_PYTHON,
        (Platform::Fission, Runtime::Node | Runtime::Bun | Runtime::Deno) => FISSION_NODE,
        (Platform::Kubeless, Runtime::Python) => KUBELESS_PYTHON,
        (Platform::Nuclio, Runtime::Python) => NUCLIO_PYTHON,
        (Platform::Knative, Runtime::Python) => KNATIVE_PYTHON,
        _ => &[],
    }
}

/// The name of a package without its version.
fn name_of(package: &str) -> &str {
    package.split(['@', '<', '=']).next().unwrap_or(package)
}

/// The packages that a function imports without naming them, and that its own platform would
/// provide.
pub fn packages(spec: &FunctionSpec, code: &Path) -> Vec<String> {
    let Some(compat) = spec.compat else { return Vec::new() };
    let known = table(compat, spec.runtime, spec.template.as_deref());
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
    // If the list contains hashes, pip demands a hash for every package, even for those that are
    // not in the list. The packages here have none, so none are added.
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
        let name = name_of(package);
        if is_python { requirements_name(&named, name) } else { depends_on(&named, name) }
    };
    // The contract of these templates is defined by a framework, so its package is needed even if
    // the code does not import it.
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
        // Two modules may belong to the same package.
        if !packages.iter().any(|known| known == package) {
            packages.push((*package).to_owned());
        }
    }
    packages
}

/// Whether a list of requirements names a package: by its name, or as a wheel, an archive or a
/// repository with this name. `list` is in lower case.
fn requirements_name(list: &str, package: &str) -> bool {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    let is_it = |word: &str| {
        let word = word.replace('_', "-");
        let rest = word.strip_prefix(package);
        // In the name of a wheel or an archive, the version comes after the package name.
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

/// Whether a `package.json`, given in lower case, lists a package among its dependencies.
fn depends_on(package_json: &str, package: &str) -> bool {
    let Ok(whole) = serde_json::from_str::<serde_json::Value>(package_json) else { return false };
    ["dependencies", "devdependencies", "optionaldependencies", "peerdependencies"]
        .iter()
        .any(|kind| whole[kind].get(package).is_some())
}

/// The source files at the top of a folder and in the folders directly below it.
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
        // A file that cannot be read is ignored here, because the language reports it later.
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
        // A path such as `uuid/v4` requires a part of a package.
        [*quote, '/'].iter().any(|end| {
            source.contains(&format!("require({quote}{module}{end}"))
                || source.contains(&format!("from {quote}{module}{end}"))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(compat: Platform, runtime: Runtime, files: &[(&str, &str)], expected: &[&str]) {
        check_template(compat, runtime, None, files, expected);
    }

    fn check_template(
        compat: Platform,
        runtime: Runtime,
        template: Option<&str>,
        files: &[(&str, &str)],
        expected: &[&str],
    ) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let name = mote_spec::FunctionName::new("f").unwrap();
        let mut spec = FunctionSpec::with_defaults(name, runtime, "x");
        spec.compat = Some(compat);
        spec.template = template.map(str::to_owned);
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
        let parts =
            "const v4 = require('uuid/v4'), { serializeError } = require('serialize-error');";
        check(OpenWhisk, Node, &[("index.js", parts)], &["serialize-error@3", "uuid@3"]);
        let hashed = [("main.py", flask), ("requirements.txt", "x==1 --hash=sha256:00\n")];
        check(Fission, Python, &hashed, &[]);
    }

    #[test]
    fn templates_of_openfaas_provide_what_they_serve_with() {
        use Platform::OpenFaas;
        let flask = [("handler.py", "from flask import jsonify\nimport requests\n")];
        for (template, expected) in [
            (Some("python3-http"), &["flask"][..]),
            (Some("python3-flask"), &["flask"]),
            (Some("python3"), &[]),
            (None, &["flask"]),
        ] {
            check_template(OpenFaas, Runtime::Python, template, &flask, expected);
        }
        let express = [("handler.js", "const express = require('express');")];
        check(OpenFaas, Runtime::Node, &express, &["express@4"]);
        check_template(OpenFaas, Runtime::Node, Some("node"), &express, &[]);
    }

    #[test]
    fn the_guides_name_what_each_platform_provides() {
        for (guide, tables) in [
            ("openfaas", &[OPENFAAS_PYTHON, OPENFAAS_NODE][..]),
            ("openwhisk", &[OPENWHISK_PYTHON, OPENWHISK_NODE]),
            ("fission", &[FISSION_PYTHON, FISSION_NODE]),
            ("kubeless", &[KUBELESS_PYTHON]),
            ("nuclio", &[NUCLIO_PYTHON]),
            ("knative", &[KNATIVE_PYTHON]),
        ] {
            let path = format!("../../../docs/guides/moving-from-{guide}.md");
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
            let text = std::fs::read_to_string(&path).unwrap().to_lowercase();
            for (_, package) in tables.iter().copied().flatten() {
                let name = format!("`{}`", name_of(package));
                assert!(text.contains(&name), "{}: no {name}", path.display());
            }
        }
    }
}
