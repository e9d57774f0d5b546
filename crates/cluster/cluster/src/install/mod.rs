//! The objects of mote in a Kubernetes cluster, from one source.
//!
//! The source is `objects.yaml` and `crds.yaml`. `render` fills in values for the command. `chart`
//! and `kustomization` write the same objects for Helm and for Kustomize (the folder `deploy/`,
//! which a test keeps up to date). `command.rs` installs and removes the objects through kubectl.
//! This module must not know what runs in the pods.

mod command;
mod values;

pub use command::{Cluster, Command, Failure, Install, Uninstall, run};
pub use values::{Kind, VALUES, Value};

/// The definitions of the resources.
pub const CRDS: &str = include_str!("crds.yaml");
const OBJECTS: &str = include_str!("objects.yaml");

/// A value that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WrongValue {
    /// There is no value with this name.
    Unknown(String),
    /// The value is not valid.
    Unfit {
        name: &'static str,
        /// The given value.
        found: String,
        /// The description of valid values.
        wanted: String,
    },
}

impl std::fmt::Display for WrongValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown(name) => {
                let known: Vec<_> = VALUES.iter().map(|value| value.name).collect();
                write!(f, "there is no value {name}; known: {}", known.join(", "))
            }
            Self::Unfit { name, found, wanted } => {
                write!(f, "--set {name}={found}: expected {wanted}")
            }
        }
    }
}

impl std::error::Error for WrongValue {}

fn check(given: &[(String, String)]) -> Result<(), WrongValue> {
    for (name, text) in given {
        let Some(value) = VALUES.iter().find(|value| value.name == name) else {
            return Err(WrongValue::Unknown(name.clone()));
        };
        if !value.kind.accepts(text) {
            let found = text.clone();
            let wanted = value.kind.wanted();
            return Err(WrongValue::Unfit { name: value.name, found, wanted });
        }
    }
    Ok(())
}

/// Renders the objects with these values, and with the defaults for all others.
pub fn render(given: &[(String, String)]) -> Result<String, WrongValue> {
    check(given)?;
    let of = |name: &str| {
        let given = given.iter().rev().find(|(key, _)| key == name);
        given.map(|(_, text)| text.clone()).or_else(|| default(name).map(str::to_owned))
    };
    let mut all = String::new();
    let mut leaves_out = false;
    for line in body() {
        match directive(line) {
            Some(Directive::Begin { name, wanted }) => {
                let is_set = !matches!(of(name).as_deref(), None | Some("" | "false"));
                leaves_out = is_set != wanted;
            }
            Some(Directive::End) => leaves_out = false,
            None if leaves_out => {}
            None => all += &filled(line, |name| of(name).unwrap_or_default()),
        }
    }
    Ok(all)
}

/// The files of the Helm chart: path and text.
pub fn chart() -> Vec<(&'static str, String)> {
    let mut objects = String::from(GENERATED);
    for line in body() {
        match directive(line) {
            Some(Directive::Begin { name, wanted }) => {
                let not = if wanted { "" } else { "not " };
                objects += &format!("{{{{- if {not}.Values.{name} }}}}\n");
            }
            Some(Directive::End) => objects += "{{- end }}\n",
            None => objects += &filled(line, in_chart),
        }
    }
    let mut values = String::from(GENERATED);
    for value in VALUES {
        values += &format!("\n# {}\n{}: {}\n", value.text, value.name, literal(value.default));
    }
    let version = env!("CARGO_PKG_VERSION");
    let description = "Functions at the edge: a cell on each machine, and a controller";
    let about = format!(
        "{GENERATED}apiVersion: v2\nname: mote\ndescription: {description:?}\ntype: application\n\
         version: {version}\nappVersion: {version:?}\nkubeVersion: \">=1.30.0-0\"\n"
    );
    vec![
        ("Chart.yaml", about),
        ("values.yaml", values),
        ("values.schema.json", schema()),
        ("crds/crds.yaml", CRDS.to_owned()),
        ("templates/objects.yaml", objects),
    ]
}

/// The values of the chart as JSON Schema. Helm checks values with it.
fn schema() -> String {
    let known = VALUES.map(|value| format!("    {:?}: {}", value.name, value.kind.schema()));
    format!(
        "{{\n  \"type\": \"object\",\n  \"additionalProperties\": false,\n  \
         \"properties\": {{\n    \"global\": {{\"type\": \"object\"}},\n{}\n  }}\n}}\n",
        known.join(",\n")
    )
}

/// The files of the Kustomize base: path and text.
pub fn kustomization() -> Vec<(&'static str, String)> {
    let list = format!(
        "{GENERATED}apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n\
         resources: [crds.yaml, objects.yaml]\n"
    );
    let objects = render(&[]).unwrap_or_default();
    vec![
        ("kustomization.yaml", list),
        ("crds.yaml", CRDS.to_owned()),
        ("objects.yaml", format!("{GENERATED}{objects}")),
    ]
}

const GENERATED: &str =
    "# Made from crates/cluster/cluster by its test; MOTE_BLESS=1 makes it again.\n";

fn default(name: &str) -> Option<&'static str> {
    VALUES.iter().find(|value| value.name == name).map(|value| value.default)
}

/// The lines of the source without the head, which describes the source itself.
fn body() -> impl Iterator<Item = &'static str> {
    OBJECTS.lines().skip_while(|line| line.starts_with('#'))
}

enum Directive<'a> {
    Begin { name: &'a str, wanted: bool },
    End,
}

fn directive(line: &str) -> Option<Directive<'_>> {
    if line == "#end" {
        return Some(Directive::End);
    }
    if let Some(name) = line.strip_prefix("#ifnot ") {
        return Some(Directive::Begin { name, wanted: false });
    }
    line.strip_prefix("#if ").map(|name| Directive::Begin { name, wanted: true })
}

/// Replaces `$NAME$` in the line. `$(NAME)` stays, because it is syntax of Kubernetes.
fn filled(line: &str, value: impl Fn(&str) -> String) -> String {
    let mut all = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('$') {
        let name = after.split_once('$').filter(|(name, _)| default(name).is_some());
        match name {
            Some((name, after)) => {
                all += before;
                all += &value(name);
                rest = after;
            }
            None => {
                all += before;
                all.push('$');
                rest = after;
            }
        }
    }
    all + rest + "\n"
}

/// Returns a value in the template language of the chart.
fn in_chart(name: &str) -> String {
    match default(name) {
        Some(default) if is_structure(default) => format!("{{{{ .Values.{name} | toJson }}}}"),
        _ => format!("{{{{ .Values.{name} }}}}"),
    }
}

/// Whether a default is a map or a list.
fn is_structure(text: &str) -> bool {
    text.starts_with(['{', '['])
}

/// Writes a default as YAML. Numbers, maps and booleans keep their type, so that the chart can test
/// them.
fn literal(text: &str) -> String {
    let plain =
        text.parse::<u32>().is_ok() || matches!(text, "true" | "false") || is_structure(text);
    if plain { text.to_owned() } else { format!("{text:?}") }
}
