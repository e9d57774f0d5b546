//! Which namespaces a sender may reach.

use std::sync::Arc;

use mote_spec::name::{DEFAULT_NAMESPACE, joined, kept, of_kept, split};

/// What the holder of a token may reach.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Scope {
    /// Everything on the node.
    #[default]
    All,
    /// Everything in this namespace.
    Namespace(Arc<str>),
}

impl Scope {
    /// Whether the holder may know that a function with this name exists.
    pub fn sees(&self, name: &str) -> bool {
        self.sees_namespace(split(name).1)
    }

    fn sees_namespace(&self, namespace: Option<&str>) -> bool {
        match self {
            Scope::All => true,
            Scope::Namespace(own) => namespace == Some(own),
        }
    }

    pub fn namespace(&self) -> Option<&Arc<str>> {
        match self {
            Scope::All => None,
            Scope::Namespace(name) => Some(name),
        }
    }
}

/// What names without a namespace mean in one request, and what its lists show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    scope: Scope,
    chosen: Option<Arc<str>>,
}

impl View {
    /// The view of a request whose sender has this scope and may have chosen a namespace.
    pub fn new(scope: Scope, chosen: Option<&str>) -> Self {
        // To a token of a namespace, the default namespace is as closed as any other.
        let is_default = |name: &str| name == DEFAULT_NAMESPACE && scope == Scope::All;
        let chosen = chosen.filter(|name| !name.is_empty() && !is_default(name));
        let chosen = chosen.map(Arc::from).or_else(|| scope.namespace().cloned());
        Self { scope, chosen }
    }

    /// What the sender may reach.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The namespace that names without a namespace mean; `None` is the default one.
    pub fn namespace(&self) -> Option<&Arc<str>> {
        self.chosen.as_ref()
    }

    /// Whether the sender may know the chosen namespace.
    pub fn is_permitted(&self) -> bool {
        self.scope.sees_namespace(self.chosen.as_deref())
    }

    /// The full name of a function. `name` may be `NAME@TAG`. `None` if the sender must not know
    /// the function.
    pub fn function(&self, name: &str) -> Option<String> {
        let (base, tag) = match name.split_once('@') {
            Some((base, tag)) => (base, Some(tag)),
            None => (name, None),
        };
        let full = match split(base).1 {
            None => joined(base, self.chosen.as_deref()),
            Some(_) => base.to_owned(),
        };
        let full = Some(full).filter(|name| self.scope.sees(name))?;
        Some(match tag {
            Some(tag) => format!("{full}@{tag}"),
            None => full,
        })
    }

    /// The name under which the node keeps a secret or a key. `None` if the sender must not know
    /// it.
    pub fn kept(&self, name: &str) -> Option<String> {
        let full = match of_kept(name).0 {
            None => kept(name, self.chosen.as_deref()).into_owned(),
            Some(_) => name.to_owned(),
        };
        Some(full).filter(|name| self.scope.sees_namespace(of_kept(name).0))
    }

    /// Whether lists show this function.
    pub fn shows(&self, function: &str) -> bool {
        let name = function.split('@').next().unwrap_or_default();
        self.chosen.is_none() || split(name).1 == self.chosen.as_deref()
    }

    /// Whether lists show this secret or key.
    pub fn shows_kept(&self, name: &str) -> bool {
        self.chosen.is_none() || of_kept(name).0 == self.chosen.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_sees_its_own_names() {
        let plant = Scope::Namespace("plant".into());
        for (name, seen) in [
            ("hello.plant", true),
            ("hello", false),
            ("plant", false),
            ("plant.hello", false),
            ("hello.plants", false),
            ("hello.plant.other", false),
        ] {
            assert_eq!(plant.sees(name), seen, "{name}");
            assert!(Scope::All.sees(name));
        }
    }

    #[test]
    fn short_names_mean_names_of_the_chosen_namespace() {
        let all = View::default();
        assert_eq!(all.function("hello@blue").as_deref(), Some("hello@blue"));
        assert_eq!(all.kept("db.key").as_deref(), Some("db.key"));
        assert!(all.shows("hello.plant") && all.shows_kept("plant/db"));
        let chosen = View::new(Scope::All, Some("plant"));
        assert_eq!(chosen.function("hello@blue").as_deref(), Some("hello.plant@blue"));
        assert_eq!(chosen.function("hello.other").as_deref(), Some("hello.other"));
        assert_eq!(chosen.kept("db").as_deref(), Some("plant/db"));
        assert!(chosen.shows("hello.plant@blue") && !chosen.shows("hello"));
        assert_eq!(View::new(Scope::All, Some("default")), all);
        let scoped = View::new(Scope::Namespace("plant".into()), None);
        assert_eq!(scoped.function("hello").as_deref(), Some("hello.plant"));
        assert_eq!(scoped.function("hello.other"), None);
        assert_eq!(scoped.kept("other/db"), None);
        assert!(scoped.is_permitted());
        let wrong = View::new(Scope::Namespace("plant".into()), Some("other"));
        assert!(!wrong.is_permitted());
        assert_eq!(wrong.function("hello"), None);
        let default = View::new(Scope::Namespace("plant".into()), Some("default"));
        assert!(
            !default.is_permitted() && !default.shows("hello") && !default.shows("hello.plant")
        );
        assert_eq!(default.function("hello"), None);
        assert_eq!(default.kept("db"), None);
    }
}
