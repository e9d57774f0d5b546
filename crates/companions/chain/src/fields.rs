//! Reads the keys of a map in a file. Each key is taken once, and a key that is left over is a
//! mistake.

use crate::yaml::{Kind, Mistake, Node};

pub(crate) fn text_of(node: &Node) -> Result<&str, Mistake> {
    match &node.kind {
        Kind::Text(text) => Ok(text),
        _ => Err(Mistake::new(node.line, format!("expected text, found {}", node.what()))),
    }
}

/// Returns the mistake for a value that does not have the required form.
pub(crate) fn expected(node: &Node, what: &str, form: &str) -> Mistake {
    Mistake::new(node.line, format!("{what} must be {form}, not {}", node.what()))
}

/// The entries of a map in which every key must be known.
pub(crate) struct Fields<'a> {
    what: String,
    pub(crate) line: usize,
    entries: Vec<(&'a str, &'a Node, bool)>,
    asked: Vec<String>,
}

impl<'a> Fields<'a> {
    /// Reads the keys of `node`. `what` names the map in mistakes.
    pub(crate) fn of(node: &'a Node, what: &str) -> Result<Self, Mistake> {
        let Kind::Map(map) = &node.kind else { return Err(expected(node, what, "a map")) };
        let entries = map.iter().map(|(key, value)| (key.as_str(), value, false)).collect();
        Ok(Self { what: what.to_owned(), line: node.line, entries, asked: Vec::new() })
    }

    /// Takes the value of an optional key.
    pub(crate) fn take(&mut self, key: &str) -> Option<&'a Node> {
        self.asked.push(key.to_owned());
        let entry = self.entries.iter_mut().find(|(known, ..)| *known == key)?;
        entry.2 = true;
        Some(entry.1)
    }

    /// Takes the value of a required key.
    pub(crate) fn required(&mut self, key: &str) -> Result<&'a Node, Mistake> {
        let line = self.line;
        let what = self.what.clone();
        self.take(key).ok_or_else(|| Mistake::new(line, format!("{what} needs {key:?}")))
    }

    /// Reports a key that was not taken as a mistake.
    pub(crate) fn end(self) -> Result<(), Mistake> {
        match self.entries.iter().find(|(.., taken)| !taken) {
            None => Ok(()),
            Some((key, node, _)) => Err(Mistake::new(
                node.line,
                format!("{} has no {key:?}; it has {}", self.what, self.asked.join(", ")),
            )),
        }
    }
}
