//! Reads YAML and keeps the line of every value, so that each mistake in a file can be reported
//! with its line.

use saphyr::{LoadableYamlNode as _, MarkedYaml, Scalar, YamlData};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The line of the mistake, counted from 1.
    pub line: usize,
    /// What is wrong, and what to write instead.
    pub text: String,
}

impl Mistake {
    pub fn new(line: usize, text: impl Into<String>) -> Self {
        Self { line, text: text.into() }
    }
}

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistakes(pub Vec<Mistake>);

impl std::fmt::Display for Mistakes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, mistake) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{mistake}")?;
        }
        Ok(())
    }
}

/// A value of the file.
#[derive(Debug, Clone)]
pub struct Node {
    /// The line on which the value begins, counted from 1.
    pub line: usize,
    pub kind: Kind,
}

#[derive(Debug, Clone)]
pub enum Kind {
    Null,
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number that is not whole.
    Float(f64),
    Text(String),
    List(Vec<Node>),
    /// Keys and values, in the order of the file.
    Map(Vec<(String, Node)>),
}

/// The deepest nesting of a file.
const DEPTH_MAX: usize = 100;

/// Reads a file with exactly one document.
pub fn read(text: &str) -> Result<Node, Mistake> {
    let documents = MarkedYaml::load_from_str(text).map_err(|error| {
        Mistake::new(error.marker().line(), format!("this is not YAML: {}", error.info()))
    })?;
    match &documents[..] {
        [one] => node(one, 0),
        [] => Err(Mistake::new(1, "the file is empty")),
        [_, second, ..] => Err(Mistake::new(
            second.span.start.line(),
            "a second document begins; a file describes one chain",
        )),
    }
}

fn node(marked: &MarkedYaml<'_>, depth: usize) -> Result<Node, Mistake> {
    let line = marked.span.start.line();
    if depth > DEPTH_MAX {
        return Err(Mistake::new(
            line,
            format!("values are nested deeper than {DEPTH_MAX} levels"),
        ));
    }
    let kind = match &marked.data {
        YamlData::Value(Scalar::Null) => Kind::Null,
        YamlData::Value(Scalar::Boolean(value)) => Kind::Bool(*value),
        YamlData::Value(Scalar::Integer(value)) => Kind::Int(*value),
        YamlData::Value(Scalar::FloatingPoint(value)) => Kind::Float(value.into_inner()),
        YamlData::Value(Scalar::String(value)) => Kind::Text(value.to_string()),
        YamlData::Sequence(items) => {
            Kind::List(items.iter().map(|item| node(item, depth + 1)).collect::<Result<_, _>>()?)
        }
        YamlData::Mapping(entries) => {
            let mut map = Vec::with_capacity(entries.len());
            for (key, value) in entries {
                let key_line = key.span.start.line();
                let name = match node(key, depth + 1)?.kind {
                    Kind::Text(text) => text,
                    Kind::Int(number) => number.to_string(),
                    Kind::Bool(value) => value.to_string(),
                    _ => return Err(Mistake::new(key_line, "a key must be text")),
                };
                map.push((name, node(value, depth + 1)?));
            }
            Kind::Map(map)
        }
        YamlData::Tagged(_, inner) => return node(inner, depth + 1),
        YamlData::Representation(..) | YamlData::Alias(_) | YamlData::BadValue => {
            return Err(Mistake::new(line, "this value cannot be read"));
        }
    };
    Ok(Node { line, kind })
}

impl Node {
    pub fn json(&self) -> serde_json::Value {
        use serde_json::Value;
        match &self.kind {
            Kind::Null => Value::Null,
            Kind::Bool(value) => Value::Bool(*value),
            Kind::Int(value) => Value::from(*value),
            Kind::Float(value) => Value::from(*value),
            Kind::Text(text) => Value::String(text.clone()),
            Kind::List(items) => Value::Array(items.iter().map(Node::json).collect()),
            Kind::Map(entries) => Value::Object(
                entries.iter().map(|(key, value)| (key.clone(), value.json())).collect(),
            ),
        }
    }

    /// The kind of the value in words, for messages.
    pub fn what(&self) -> &'static str {
        match &self.kind {
            Kind::Null => "nothing",
            Kind::Bool(_) => "true or false",
            Kind::Int(_) | Kind::Float(_) => "a number",
            Kind::Text(_) => "text",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a map",
        }
    }
}
