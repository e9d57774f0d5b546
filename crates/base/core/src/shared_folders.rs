//! The folders of the host that an operator shares with functions.

use std::fmt;

use mote_spec::files::is_host_path;
use mote_spec::name::is_label;

/// Which functions may read a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Scope {
    /// Those of the default namespace.
    Default,
    /// Those of one other namespace.
    Namespace(String),
    /// Those of every namespace.
    All,
}

/// Folders of the host, each with the functions that may read it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedFolders(Vec<(Scope, String)>);

impl SharedFolders {
    /// Reads paths with commas between them: `/srv/models, plant=/srv/plant, *=/srv/maps`. A path
    /// alone is for functions of the default namespace. Returns `None` if the text is something
    /// else.
    pub fn parse(text: &str) -> Option<Self> {
        let one = |text: &str| {
            let text = text.trim();
            let (scope, path) = match text.split_once('=') {
                Some(("*", path)) => (Scope::All, path),
                Some((name, path)) if is_label(name) => (Scope::Namespace(name.to_owned()), path),
                Some((name, _)) if !name.starts_with('/') => return None,
                _ => (Scope::Default, text),
            };
            is_host_path(path).then(|| (scope, path.to_owned()))
        };
        text.split(',').map(one).collect::<Option<_>>().map(Self)
    }

    /// Whether functions of `namespace` may read exactly this folder. A folder inside a shared one
    /// is not shared by itself, because a link in the shared one could lead elsewhere.
    pub fn permit(&self, namespace: Option<&str>, path: &str) -> bool {
        self.0.iter().any(|(scope, shared)| {
            shared == path
                && match scope {
                    Scope::Default => namespace.is_none(),
                    Scope::Namespace(name) => namespace == Some(name),
                    Scope::All => true,
                }
        })
    }
}

impl fmt::Display for SharedFolders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (number, (scope, path)) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            match scope {
                Scope::Default => write!(f, "{comma}{path}")?,
                Scope::Namespace(name) => write!(f, "{comma}{name}={path}")?,
                Scope::All => write!(f, "{comma}*={path}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_folder_is_for_its_namespace() {
        let shared = SharedFolders::parse("/srv/models, plant=/srv/plant,*=/srv/maps").unwrap();
        assert_eq!(shared.to_string(), "/srv/models,plant=/srv/plant,*=/srv/maps");
        for (namespace, path, permitted) in [
            (None, "/srv/models", true),
            (Some("plant"), "/srv/models", false),
            (Some("plant"), "/srv/plant", true),
            (None, "/srv/plant", false),
            (Some("other"), "/srv/plant", false),
            (None, "/srv/maps", true),
            (Some("other"), "/srv/maps", true),
            (None, "/srv", false),
            (None, "/srv/models/a", false),
        ] {
            assert_eq!(shared.permit(namespace, path), permitted, "{namespace:?} {path}");
        }
        assert!(!SharedFolders::default().permit(None, "/srv/models"));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "srv", "/srv,", "/srv/../etc", "A=/srv", "=/srv", "*=srv", "/"] {
            assert_eq!(SharedFolders::parse(text), None, "{text:?}");
        }
    }
}
