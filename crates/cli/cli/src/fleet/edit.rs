//! Changes the text of `nodes.toml`, and keeps its comments and order. This module is pure: it turns
//! texts into texts.

use toml_edit::{DocumentMut, InlineTable, Item, Table, value};

/// The entry of a node in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name of the node, which [`crate::fleet::names::is_name`] must accept.
    pub name: &'a str,
    pub address: &'a str,
    /// The path of the file with the node's token, relative to the folder of `nodes.toml`.
    pub token_file: &'a str,
    /// The SHA-256 of the node's certificate.
    pub fingerprint: Option<&'a str>,
    /// The absolute path of the file with the authorities that sign the node's certificate.
    pub ca: Option<&'a str>,
}

/// The reason why a text cannot be changed: it is not TOML, or does not have the form of `nodes.toml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable(pub String);

/// Returns the text with the entry of this node. An entry of the same name is replaced.
pub fn with(text: &str, entry: &Entry<'_>) -> Result<String, Unreadable> {
    let mut document = parse(text)?;
    let nodes = document.entry("nodes").or_insert_with(|| {
        let mut table = Table::new();
        // The heading [nodes] is not written as long as each node has its own heading.
        table.set_implicit(true);
        Item::Table(table)
    });
    let nodes = nodes.as_table_like_mut().ok_or_else(|| no_table("nodes"))?;
    match nodes.get_mut(entry.name) {
        // If the entry of the node is only an address, it becomes a table on the same line.
        Some(Item::Value(there)) if !there.is_inline_table() => {
            *there = InlineTable::new().into();
        }
        Some(_) => {}
        None => {
            nodes.insert(entry.name, Item::Table(Table::new()));
        }
    }
    let node = nodes.get_mut(entry.name).and_then(Item::as_table_like_mut);
    let node = node.ok_or_else(|| no_table(entry.name))?;
    node.insert("address", value(entry.address));
    node.insert("token_file", value(entry.token_file));
    for (key, text) in [("fingerprint", entry.fingerprint), ("ca", entry.ca)] {
        match text {
            Some(text) => node.insert(key, value(text)),
            None => node.remove(key),
        };
    }
    Ok(document.to_string())
}

/// Returns the text without this node and the comment above it. The node is also removed from groups. A
/// group that had no other member is removed.
pub fn without(text: &str, name: &str) -> Result<String, Unreadable> {
    let mut document = parse(text)?;
    if let Some(nodes) = document.get_mut("nodes") {
        nodes.as_table_like_mut().ok_or_else(|| no_table("nodes"))?.remove(name);
    }
    if let Some(groups) = document.get_mut("groups") {
        let groups = groups.as_table_like_mut().ok_or_else(|| no_table("groups"))?;
        let mut empty = Vec::new();
        for (group, members) in groups.iter_mut() {
            let Some(members) = members.as_array_mut() else { continue };
            let before = members.len();
            members.retain(|member| member.as_str() != Some(name));
            if members.len() < before {
                members.fmt();
            }
            if members.is_empty() && before > 0 {
                empty.push(group.to_string());
            }
        }
        for group in empty {
            groups.remove(&group);
        }
    }
    Ok(document.to_string())
}

fn parse(text: &str) -> Result<DocumentMut, Unreadable> {
    text.parse().map_err(|error: toml_edit::TomlError| Unreadable(error.message().to_owned()))
}

fn no_table(name: &str) -> Unreadable {
    Unreadable(format!("{name} is not a table"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: Entry<'_> = Entry {
        name: "kitchen",
        address: "https://10.0.0.7:6680",
        token_file: "kitchen.token",
        fingerprint: Some("AB:CD"),
        ca: None,
    };
    const WRITTEN: &str = "[nodes.kitchen]\naddress = \"https://10.0.0.7:6680\"\n\
                           token_file = \"kitchen.token\"\nfingerprint = \"AB:CD\"\n";

    #[test]
    fn a_node_is_added_and_replaced_and_the_rest_stays() {
        assert_eq!(with("", &ENTRY).as_deref(), Ok(WRITTEN));
        let noted = format!("# old stove\n{WRITTEN}ca = \"/gone.pem\"\n");
        assert_eq!(with(&noted, &ENTRY).unwrap(), format!("# old stove\n{WRITTEN}"));
        let own = "# mine\n[nodes] # all\nyard = \"http://10.0.0.8:6680\" # cold\n\n\
                   [groups]\nshop = [\"yard\"]\n";
        let both = with(own, &ENTRY).unwrap();
        assert!(both.contains("# mine\n[nodes] # all\nyard = \"http://10.0.0.8:6680\" # cold\n"));
        assert!(both.contains(WRITTEN) && both.contains("[groups]\nshop = [\"yard\"]\n"));
        let inline = "[nodes]\nkitchen = \"http://old:1\" # here\nyard = \"http://y:1\"\n";
        let changed = with(inline, &Entry { fingerprint: None, ca: Some("/ca.pem"), ..ENTRY });
        assert_eq!(
            changed.unwrap(),
            "[nodes]\nkitchen = { address = \"https://10.0.0.7:6680\", token_file = \
             \"kitchen.token\", ca = \"/ca.pem\" }\nyard = \"http://y:1\"\n"
        );
    }

    #[test]
    fn a_node_is_removed_from_the_nodes_and_the_groups() {
        let text = format!(
            "{WRITTEN}\n[nodes.yard]\naddress = \"http://y:1\"\n\n\
             [groups]\nshop = [\"kitchen\", \"yard\"]\nown = [\"kitchen\"]\n"
        );
        let left = without(&text, "kitchen").unwrap();
        assert!(!left.contains("kitchen") && !left.contains("own"), "{left}");
        assert!(left.contains("[nodes.yard]") && left.contains("shop = [\"yard\"]"), "{left}");
        assert_eq!(without(&left, "kitchen").as_deref(), Ok(&*left));
    }

    #[test]
    fn what_is_no_file_of_nodes_is_not_changed() {
        for text in ["nodes = 1", "[nodes", "nodes = []"] {
            assert!(with(text, &ENTRY).is_err(), "{text}");
        }
        assert_eq!(without("groups = 1", "a"), Err(Unreadable("groups is not a table".into())));
    }
}
