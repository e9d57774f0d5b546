//! Reads the names of nodes and groups from `nodes.toml`, and resolves lists such as `--node a,b,shop`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mote_spec::nearest;
use mote_spec::toml_reader::{Mistakes, TomlReader};
use toml::de::DeValue;

/// The name of the file, which is in the folder of the user's configuration.
pub const FILE_NAME: &str = "nodes.toml";
/// The name of the group of all nodes in the file.
pub const ALL: &str = "all";
/// The most nodes that one command addresses. A longer list is probably a mistake.
pub const NODES_MAX: usize = 1_000;

const ADDRESS: &str = "an address, such as \"https://10.0.0.7:6680\"";
const MEMBERS: &str = "a list of nodes, such as [\"kitchen\", \"yard\"]";

/// One node that a command addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The name of the node in the file, or the node's address if it has no name.
    pub name: String,
    /// `https://HOST:PORT`, `http://HOST:PORT`, or the path of a socket.
    pub address: String,
    pub token_file: Option<PathBuf>,
    /// The SHA-256 of the node's certificate, as written in the file.
    pub fingerprint: Option<String>,
    /// The file with the certificates of the authorities that sign the node's certificate.
    pub ca: Option<PathBuf>,
}

/// The nodes and groups that the user's file names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    nodes: BTreeMap<String, Named>,
    groups: BTreeMap<String, Vec<String>>,
}

/// The reason why a list of nodes cannot be resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoSuchNode {
    /// The text of the error, without the name of the file.
    pub text: String,
    pub hint: Option<String>,
}

impl Names {
    /// Parses the text of `file`. Reports all mistakes together. Paths of tokens are relative to the
    /// folder of the file.
    pub fn parse(file: &Path, source: &str) -> Result<Self, Mistakes> {
        let shown = file.display().to_string();
        let mut reader = TomlReader::new(&shown, source);
        let parsed = reader.parse()?;
        let top = reader.top(parsed.get_ref());
        reader.check_keys(&top, &["nodes", "groups"], &[], &[]);
        let mut names = Self::default();
        if let Some((value, line)) = reader.get(&top, "nodes") {
            match value.as_table() {
                Some(table) => {
                    let section = reader.section(table, "[nodes]", "[nodes]");
                    for key in table.keys() {
                        let name: &str = key.get_ref();
                        if let Some(node) = names.node(&mut reader, &section, name, file) {
                            names.nodes.insert(name.to_owned(), node);
                        }
                    }
                }
                None => reader.wrong_type("nodes", line, "a table", value),
            }
        }
        if let Some((value, line)) = reader.get(&top, "groups") {
            match value.as_table() {
                Some(table) => {
                    let section = reader.section(table, "[groups]", "[groups]");
                    for key in table.keys() {
                        names.group(&mut reader, &section, key.get_ref());
                    }
                }
                None => reader.wrong_type("groups", line, "a table", value),
            }
        }
        reader.finish()?;
        Ok(names)
    }

    /// Reads a node, which is an address, or a table with an address and the path of a token's file.
    fn node(
        &self,
        reader: &mut TomlReader<'_>,
        section: &mote_spec::toml_reader::Section<'_>,
        name: &str,
        file: &Path,
    ) -> Option<Named> {
        let (value, line) = reader.get(section, name)?;
        if !is_name(name) {
            let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
            let text = format!("[nodes]: `{shown}` is not a name");
            let hint = "use letters, digits, `-` and `_`";
            reader.mistake("M0303", line, &text, Some(hint.to_owned()));
            return None;
        }
        let label = format!("[nodes.{name}]");
        let mut fingerprint = None;
        let mut ca = None;
        let (address, token) = match value {
            DeValue::Table(table) => {
                let section = reader.section(table, &label, &label);
                reader.check_keys(
                    &section,
                    &["address", "token_file", "fingerprint", "ca"],
                    &[],
                    &[],
                );
                let token = reader.string(&section, "token_file", "the path of a file");
                fingerprint =
                    reader.string(&section, "fingerprint", "the SHA-256 of a certificate");
                ca = reader.string(&section, "ca", "the path of a file");
                let address = reader.string(&section, "address", ADDRESS);
                if address.is_none() && reader.get(&section, "address").is_none() {
                    reader.mistake("M0303", line, &format!("{label}: address: {ADDRESS}"), None);
                }
                (address?.value, token.map(|token| token.value))
            }
            other => match other.as_str() {
                Some(address) => (address.to_owned(), None),
                None => {
                    reader.wrong_type(name, line, ADDRESS, other);
                    return None;
                }
            },
        };
        if address.is_empty() || address.contains([',', ' ']) {
            reader.mistake("M0303", line, &format!("{name}: {ADDRESS}"), None);
            return None;
        }
        let folder = file.parent().unwrap_or(Path::new(""));
        let token_file = token.map(|token| folder.join(token));
        let fingerprint = fingerprint.map(|text| text.value);
        let ca = ca.map(|path| folder.join(path.value));
        Some(Named { name: name.to_owned(), address, token_file, fingerprint, ca })
    }

    fn group(
        &mut self,
        reader: &mut TomlReader<'_>,
        section: &mote_spec::toml_reader::Section<'_>,
        name: &str,
    ) {
        let Some(members) = reader.strings(section, name, MEMBERS) else { return };
        if !is_name(name) || self.nodes.contains_key(name) {
            let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
            let text = match self.nodes.contains_key(name) {
                true => format!("[groups]: `{shown}` is the name of a node"),
                false => format!("[groups]: `{shown}` is not a name"),
            };
            reader.mistake("M0303", members.line, &text, None);
            return;
        }
        for member in &members.value {
            if self.nodes.contains_key(member) {
                continue;
            }
            let shown: String = member.chars().take(64).flat_map(char::escape_debug).collect();
            let text = format!("{name}: `{shown}` is not in [nodes]");
            let near = nearest(member, self.nodes.keys().map(String::as_str));
            let hint = near.map(|near| format!("did you mean \"{near}\"?"));
            reader.mistake("M0303", members.line, &text, hint);
        }
        self.groups.insert(name.to_owned(), members.value);
    }

    pub fn is_group(&self, name: &str) -> bool {
        self.groups.contains_key(name)
    }

    /// Returns all nodes in the file, sorted by name.
    pub fn nodes(&self) -> impl Iterator<Item = &Named> {
        self.nodes.values()
    }

    /// Returns the nodes of a list such as `kitchen,shop,http://10.0.0.9:6680`, each once, in the order
    /// of the list. A word that is neither a known name nor a possible address is an error. `is_socket`
    /// tells whether a path leads to a socket.
    pub fn resolve(
        &self,
        list: &str,
        is_socket: impl Fn(&str) -> bool,
    ) -> Result<Vec<Named>, NoSuchNode> {
        let mut found: Vec<Named> = Vec::new();
        fn add(found: &mut Vec<Named>, node: &Named) {
            if found.iter().all(|known| known.address != node.address) {
                found.push(node.clone());
            }
        }
        let words = list.split(',').map(str::trim).collect::<Vec<_>>();
        for word in &words {
            if let Some(node) = self.nodes.get(*word) {
                add(&mut found, node);
            } else if let Some(members) = self.groups.get(*word) {
                let members = members.iter().filter_map(|member| self.nodes.get(member));
                members.for_each(|node| add(&mut found, node));
            } else if *word == ALL && !self.nodes.is_empty() {
                self.nodes.values().for_each(|node| add(&mut found, node));
            } else if word.is_empty() {
                let hint = Some("write names or addresses with commas between them".to_owned());
                let text = match words.len() {
                    1 => "--node: empty".to_owned(),
                    _ => format!("--node: `{}` has an empty entry", list.escape_debug()),
                };
                return Err(NoSuchNode { text, hint });
            } else if is_name(word) && !is_socket(word) {
                return Err(self.unknown(word));
            } else {
                // If the file contains a node with this address, its token and certificate apply.
                let same = self.nodes.values().find(|node| is_same(&node.address, word));
                let plain = || Named {
                    name: (*word).to_owned(),
                    address: (*word).to_owned(),
                    token_file: None,
                    fingerprint: None,
                    ca: None,
                };
                add(&mut found, &same.cloned().unwrap_or_else(plain));
            }
            if found.len() > NODES_MAX {
                let text = format!("--node: more than {NODES_MAX} nodes");
                return Err(NoSuchNode { text, hint: None });
            }
        }
        if found.is_empty() {
            let text = format!("--node: {} has no nodes", list.escape_debug());
            return Err(NoSuchNode { text, hint: None });
        }
        Ok(found)
    }

    fn unknown(&self, word: &str) -> NoSuchNode {
        let names = || self.nodes.keys().chain(self.groups.keys()).map(String::as_str);
        let hint = match nearest(word, names()) {
            Some(near) => Some(format!("did you mean {near}?")),
            None if names().next().is_none() => None,
            None => Some(format!("known: {}", names().collect::<Vec<_>>().join(", "))),
        };
        NoSuchNode { text: format!("no node or group is called {word}"), hint }
    }
}

/// Returns whether a text can be the name of a node or a group. Such a text is not an address.
pub fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !text.is_empty() && text.len() <= 64 && text.chars().all(plain)
}

/// Returns whether two addresses lead to the same node, as far as their texts show.
fn is_same(one: &str, other: &str) -> bool {
    let bare = |text: &'static str, of: &str| of.strip_prefix(text).unwrap_or(of).to_owned();
    let plain = |of: &str| {
        let of = bare("http://", of);
        bare("unix:", of.trim_end_matches('/'))
    };
    plain(one) == plain(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
[nodes]
kitchen = "http://10.0.0.7:6680"
yard = { address = "http://10.0.0.8:6680", token_file = "yard.token" }
cellar = { address = "/run/cellar.sock" }

[groups]
shop = ["kitchen", "yard"]
"#;

    fn names() -> Names {
        Names::parse(Path::new("/home/me/.config/mote/nodes.toml"), FILE).expect("valid")
    }

    #[test]
    fn a_list_names_nodes_groups_and_addresses() {
        for (list, expected) in [
            ("kitchen", Ok("kitchen")),
            ("shop", Ok("kitchen,yard")),
            ("yard,shop", Ok("yard,kitchen")),
            ("all", Ok("cellar,kitchen,yard")),
            ("shop, 10.0.0.9:6680", Ok("kitchen,yard,10.0.0.9:6680")),
            ("http://10.0.0.8:6680/", Ok("yard")),
            ("10.0.0.8:6680", Ok("yard")),
            ("/run/other.sock,unix:/run/cellar.sock", Ok("/run/other.sock,cellar")),
            ("here", Ok("here")),
            ("kitchn", Err("no node or group is called kitchn; did you mean kitchen?")),
            ("x", Err("no node or group is called x; known: cellar, kitchen, yard, shop")),
            (
                "kitchen,",
                Err(
                    "--node: `kitchen,` has an empty entry; write names or addresses with commas between them",
                ),
            ),
        ] {
            let found = names().resolve(list, |path| path == "here");
            let said = match found {
                Ok(all) => {
                    Ok(all.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(","))
                }
                Err(error) => Err(format!("{}; {}", error.text, error.hint.unwrap_or_default())),
            };
            assert_eq!(said, expected.map(str::to_owned).map_err(str::to_owned), "{list}");
        }
        let yard = &names().resolve("10.0.0.8:6680", |_| false).expect("known")[0];
        assert_eq!(yard.token_file.as_deref(), Some(Path::new("/home/me/.config/mote/yard.token")));
    }

    #[test]
    fn without_a_file_everything_but_a_plain_word_is_an_address() {
        let none = Names::default();
        assert_eq!(none.resolve("/a,b.sock,c:1", |_| false).expect("addresses").len(), 3);
        let error = none.resolve("all", |_| false).expect_err("a word");
        assert_eq!((error.text.as_str(), error.hint), ("no node or group is called all", None));
    }

    #[test]
    fn mistakes_in_the_file_are_reported_together() {
        let text = "\
[nodes]
a = 1
b = { token_fil = \"b\" }
\"c d\" = \"http://c:1\"
d = \"http://d:1,http://e:1\"
e = \"http://e:1\"
[groups]
e = [\"e\"]
g = [\"e\", \"f\"]
h = \"e\"
[node]
";
        let mistakes = Names::parse(Path::new("nodes.toml"), text).expect_err("mistakes");
        let expected = "\
error[M0303]: nodes.toml: a: an address, such as \"https://10.0.0.7:6680\"; found an integer (line 2)
error[M0302]: nodes.toml: unknown key `token_fil` in [nodes.b] (line 3)
  did you mean `token_file`?
error[M0303]: nodes.toml: [nodes.b]: address: an address, such as \"https://10.0.0.7:6680\" (line 3)
error[M0303]: nodes.toml: [nodes]: `c d` is not a name (line 4)
  use letters, digits, `-` and `_`
error[M0303]: nodes.toml: d: an address, such as \"https://10.0.0.7:6680\" (line 5)
error[M0303]: nodes.toml: [groups]: `e` is the name of a node (line 8)
error[M0303]: nodes.toml: g: `f` is not in [nodes] (line 9)
  did you mean \"e\"?
error[M0303]: nodes.toml: h: a list of nodes, such as [\"kitchen\", \"yard\"]; found a string (line 10)
error[M0302]: nodes.toml: unknown key `node` (line 11)
  did you mean `nodes`?";
        assert_eq!(mistakes.to_string(), expected);
    }
}
