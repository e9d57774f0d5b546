//! The templates of `mote new`. Each template is a folder in `templates/`, and the program contains
//! the files.

/// A function to begin with.
#[derive(Debug)]
pub struct Template {
    /// The trigger and the language, with a hyphen between them.
    pub name: &'static str,
    pub about: &'static str,
    /// The path and the text of each file. A text that begins with `#!` is a program.
    pub files: &'static [(&'static str, &'static str)],
}

macro_rules! template {
    ($name:literal, $about:literal, [$($file:literal),+]) => {
        Template {
            name: $name,
            about: $about,
            files: &[$((
                $file,
                include_str!(concat!("../templates/", $name, "/", $file)),
            )),+],
        }
    };
}

/// All templates. The first one for a trigger, or for a language, has the short name: `mqtt` means
/// `mqtt-python`, and `go` means `http-go`.
pub static TEMPLATES: [Template; 16] = [
    template!("http-python", "answers HTTP requests, in Python", ["app.py", "test_app.py"]),
    template!("http-node", "answers HTTP requests, in JavaScript", ["index.mjs", "index.test.mjs"]),
    template!(
        "http-typescript",
        "answers HTTP requests, in TypeScript (Node 22.18, Bun or Deno)",
        ["mote.toml", "index.ts", "index.test.ts"]
    ),
    template!(
        "http-go",
        "answers HTTP requests, in Go",
        ["handler.go", "handler_test.go", "go.mod"]
    ),
    template!(
        "http-rust",
        "answers HTTP requests, in Rust",
        ["mote.toml", "Cargo.toml", "src/main.rs"]
    ),
    template!(
        "http-wasm",
        "answers HTTP requests, as a WebAssembly component in Rust",
        ["mote.toml", "Cargo.toml", "src/main.rs", "README.md"]
    ),
    template!(
        "http-shell",
        "answers HTTP requests, as a shell script",
        ["hello.sh", "tests/hello.sh"]
    ),
    template!(
        "coap-python",
        "a CoAP resource that clients can observe, in Python",
        ["mote.toml", "app.py", "test_app.py"]
    ),
    template!(
        "coap-node",
        "a CoAP resource that clients can observe, in JavaScript",
        ["mote.toml", "index.mjs", "index.test.mjs"]
    ),
    template!(
        "mqtt-python",
        "answers MQTT messages, in Python",
        ["mote.toml", "app.py", "test_app.py"]
    ),
    template!(
        "mqtt-node",
        "answers MQTT messages, in JavaScript",
        ["mote.toml", "index.mjs", "index.test.mjs"]
    ),
    template!(
        "mqtt-go",
        "answers MQTT messages, in Go",
        ["mote.toml", "handler.go", "handler_test.go", "go.mod"]
    ),
    template!(
        "schedule-python",
        "runs every minute, in Python",
        ["mote.toml", "app.py", "test_app.py"]
    ),
    template!(
        "schedule-node",
        "runs every minute, in JavaScript",
        ["mote.toml", "index.mjs", "index.test.mjs"]
    ),
    template!(
        "schedule-shell",
        "runs every minute, as a shell script",
        ["mote.toml", "run.sh", "tests/run.sh"]
    ),
    template!(
        "chain-python",
        "a chain and two functions that it calls, in Python",
        ["mote.toml", "alarm.yaml", "judge.py", "count.py", "test_chain.py"]
    ),
];

/// Types for editors, by the file ending of the language.
const TYPES: [(&[&str], (&str, &str)); 2] = [
    (&["py"], ("mote.pyi", include_str!("../../../../shims/python/mote.pyi"))),
    (&["mjs", "ts"], ("mote.d.ts", include_str!("../../../../shims/node/mote.d.ts"))),
];

macro_rules! library {
    ($($file:literal),+) => {
        &[$((
            concat!("mote-function/", $file),
            include_str!(concat!("../../../../shims/rust/", $file)),
        )),+]
    };
}

/// The library that functions in Rust use.
const RUST_LIBRARY: &[(&str, &str)] = library!(
    "Cargo.toml",
    "src/answer.rs",
    "src/event.rs",
    "src/lib.rs",
    "src/services.rs",
    "src/wire.rs",
    "src/worker.rs"
);

/// Finds a template by its name, its trigger or its language.
pub fn find(name: &str) -> Option<&'static Template> {
    let is_short = |part: &str| part == name;
    let exact = TEMPLATES.iter().find(|template| template.name == name);
    exact.or_else(|| TEMPLATES.iter().find(|template| template.name.split('-').any(is_short)))
}

impl Template {
    /// The file that declares the types of a function's arguments, and its text. The file is the
    /// same for all functions in a language.
    pub fn types(&self) -> Option<(&'static str, &'static str)> {
        let has = |endings: &[&str]| {
            let mut all = self.files.iter().filter_map(|(file, _)| file.rsplit_once('.'));
            all.any(|(_, ending)| endings.contains(&ending))
        };
        TYPES.iter().find(|(endings, _)| has(endings)).map(|(_, types)| *types)
    }

    /// The files of the library that a function of this template uses, and their texts.
    pub fn bundled(&self) -> &'static [(&'static str, &'static str)] {
        if self.name == "http-rust" { RUST_LIBRARY } else { &[] }
    }

    /// The text of a file for the function `name`. `schema` is the place of the manifest's schema.
    pub fn text(file: &str, name: &str, schema: &str) -> String {
        file.replace("__NAME__", name).replace("__SCHEMA__", schema)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn files_below(folder: &Path, below: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => files_below(&path, below, found),
                false => {
                    let path = path.strip_prefix(below).expect("below");
                    found.insert(path.display().to_string());
                }
            }
        }
    }

    #[test]
    fn the_program_contains_each_file_of_each_template() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates");
        let mut there = BTreeSet::new();
        files_below(&folder, &folder, &mut there);
        let known = TEMPLATES.iter().flat_map(|template| {
            template.files.iter().map(|(file, _)| format!("{}/{file}", template.name))
        });
        assert_eq!(known.collect::<BTreeSet<_>>(), there);
    }

    #[test]
    fn short_names_mean_the_first_template_of_a_trigger_or_a_language() {
        let name = |text: &str| find(text).map(|template| template.name);
        for (text, expected) in [
            ("http", "http-python"),
            ("python", "http-python"),
            ("typescript", "http-typescript"),
            ("go", "http-go"),
            ("rust", "http-rust"),
            ("wasm", "http-wasm"),
            ("mqtt", "mqtt-python"),
            ("mqtt-go", "mqtt-go"),
            ("chain", "chain-python"),
        ] {
            assert_eq!(name(text), Some(expected), "{text}");
        }
        assert_eq!(name("http-"), None);
        assert_eq!(name("cobol"), None);
    }

    #[test]
    fn manifests_are_valid_and_name_the_schema() {
        for template in &TEMPLATES {
            for (file, text) in template.files {
                let text = Template::text(text, "attic", "file:///schema.json");
                let is_left = text.contains("__NAME__") || text.contains("__SCHEMA__");
                assert!(!is_left, "{} {file}: a name is left", template.name);
                if *file == "mote.toml" {
                    assert!(text.starts_with("#:schema file:///schema.json\n"));
                    mote_spec::manifest::Manifest::parse(file, &text).expect(template.name);
                }
            }
        }
    }
}
