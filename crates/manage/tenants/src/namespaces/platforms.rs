//! What a token of a namespace may do at the APIs of other platforms, and which namespace a request
//! to such an API means.
//!
//! A route that is not in the list is refused, so that tokens of a namespace cannot use a new route
//! until somebody has added it here. This module checks only the route and the namespace. The rest
//! of the node checks the other names in a request within the namespace that [`Api::chosen`]
//! returns.

use std::sync::Arc;

use mote_api::Problem;

use crate::namespaces::problems::no_such_namespace;
use crate::namespaces::registry::Namespaces;
use crate::namespaces::scope::Scope;

/// An API whose clients can name namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// OpenFaaS' gateway, with namespaces.
    OpenFaas,
    /// OpenWhisk, with namespaces.
    OpenWhisk,
    /// Nuclio's dashboard, where projects are namespaces.
    Nuclio,
}

/// A namespace as it exists now. A namespace that is deleted and made again is a different `Space`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    pub name: Arc<str>,
    /// When the namespace was made, in milliseconds since 1970.
    pub created_at_ms: u64,
}

impl Api {
    /// The platform's name for the default namespace.
    pub fn default_name(self) -> &'static str {
        match self {
            Api::OpenFaas => "openfaas-fn",
            Api::OpenWhisk => "guest",
            Api::Nuclio => "default",
        }
    }

    /// Whether the holder of a token may send a request. The parts of the path are compared without
    /// decoding, as the router compares them.
    pub fn permits(self, scope: &Scope, reads_only: bool, path: &str) -> bool {
        let Some(own) = scope.namespace() else { return true };
        let parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
        let is_listed = match (self, &parts[..]) {
            (
                Api::OpenFaas,
                ["system", "functions" | "secrets" | "logs" | "info" | "namespaces"]
                | ["system", "function" | "scale-function", _]
                | ["metrics"],
            ) => true,
            (Api::OpenFaas, ["system", "namespace", _]) => reads_only,
            (Api::OpenWhisk, ["api", "v1", "namespaces"]) => reads_only,
            (Api::OpenWhisk, ["api", "v1", "namespaces", "whisk.system", ..]) => false,
            // Kinds of entities that a namespace cannot have are let through here, and are refused
            // later with the reason.
            (
                Api::OpenWhisk,
                [
                    "api",
                    "v1",
                    "namespaces",
                    _,
                    "actions" | "activations" | "packages" | "triggers" | "rules",
                    ..,
                ],
            ) => true,
            (
                Api::Nuclio,
                ["api", "functions"]
                | ["api", "functions", _]
                | ["api", "functions", _, "replicas"]
                | ["api", "functions", _, "logs", _]
                | ["api", "function_invocations"],
            ) => true,
            (Api::Nuclio, ["api", "projects" | "versions"] | ["api", "projects", _]) => reads_only,
            _ => false,
        };
        // In this API, the name of such a namespace would mean the default namespace.
        is_listed && **own != *self.default_name()
    }

    /// The namespace that a request means; `None` is the default one. A `scope` of `None` stands
    /// for a sender without a token, who reaches only the default namespace. An empty name counts
    /// as no name.
    pub fn chosen(
        self,
        scope: Option<&Scope>,
        named: Option<&str>,
        all: &Namespaces,
    ) -> Result<Option<Space>, Problem> {
        let named = named.filter(|name| !name.is_empty());
        let name = match (scope, named) {
            (Some(Scope::Namespace(own)), None) => own.clone(),
            (Some(Scope::Namespace(own)), Some(name)) if **own == *name => own.clone(),
            (Some(Scope::Namespace(_)), Some(name)) => return Err(missing(name)),
            (_, None) => return Ok(None),
            (_, Some(name)) if name == self.default_name() => return Ok(None),
            (None, Some(name)) => return Err(missing(name)),
            (Some(Scope::All), Some(name)) => Arc::from(name),
        };
        let created_at_ms = all.get(&name)?.created_at_ms;
        Ok(Some(Space { name, created_at_ms }))
    }
}

/// The error for a sender who may not make the namespace. It contains no hint on how to make it.
fn missing(name: &str) -> Problem {
    Problem { hint: None, ..no_such_namespace(name) }
}

impl Namespaces {
    /// Whether this namespace still exists, and was not deleted and made again.
    pub fn has(&self, space: &Space) -> bool {
        self.get(&space.name).is_ok_and(|one| one.created_at_ms == space.created_at_ms)
    }
}

#[cfg(test)]
mod tests {
    use mote_api::namespaces::Quotas;
    use mote_store::Store;

    use super::*;
    use crate::namespaces::Namespace;

    fn plant() -> Scope {
        Scope::Namespace("plant".into())
    }

    #[test]
    fn tokens_of_a_namespace_may_use_listed_routes() {
        for (api, reads_only, path, expected) in [
            (Api::OpenFaas, false, "/system/functions", true),
            (Api::OpenFaas, true, "/system/function/hello", true),
            (Api::OpenFaas, true, "/system/namespace/plant", true),
            (Api::OpenFaas, false, "/system/namespace/plant", false),
            (Api::OpenFaas, false, "/system/alert", false),
            (Api::OpenFaas, true, "/system/new", false),
            (Api::OpenFaas, true, "/system/function/a/b", false),
            (Api::OpenFaas, true, "//system/functions", false),
            (Api::OpenFaas, true, "/system/functions/", false),
            (Api::OpenFaas, true, "/%73ystem/functions", false),
            (Api::OpenWhisk, true, "/api/v1/namespaces", true),
            (Api::OpenWhisk, false, "/api/v1/namespaces/_/actions/hello", true),
            (Api::OpenWhisk, false, "/api/v1/namespaces/plant/rules/r", true),
            (Api::OpenWhisk, false, "/api/v1/namespaces/whisk.system/actions/utils/echo", false),
            (Api::OpenWhisk, true, "/api/v1/namespaces/plant/new", false),
            (Api::OpenWhisk, true, "/api/v1/namespaces/plant", false),
            (Api::Nuclio, false, "/api/functions", true),
            (Api::Nuclio, true, "/api/functions/hello/logs/1", true),
            (Api::Nuclio, false, "/api/projects", false),
            (Api::Nuclio, true, "/api/projects/plant", true),
            (Api::Nuclio, true, "/api/api_gateways", false),
        ] {
            assert_eq!(api.permits(&plant(), reads_only, path), expected, "{path}");
            assert!(api.permits(&Scope::All, reads_only, path));
        }
        let named_alike = Scope::Namespace("guest".into());
        assert!(!Api::OpenWhisk.permits(&named_alike, true, "/api/v1/namespaces"));
    }

    #[test]
    fn requests_mean_one_namespace() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a store");
        let all = Namespaces::default();
        for name in ["plant", "orchard"] {
            let quotas = Quotas::default();
            let one = Namespace { created_at_ms: 7, quotas, is_being_deleted: false };
            all.create(&store, name, one).expect("made");
        }
        let chosen = |scope: Option<&Scope>, named: Option<&str>| {
            let space = Api::OpenFaas.chosen(scope, named, &all);
            space.map(|space| space.map(|it| it.name.to_string())).map_err(|problem| problem.code)
        };
        let no = Err("M0423".to_owned());
        let own = Ok(Some("plant".to_owned()));
        for named in [None, Some(""), Some("plant")] {
            assert_eq!(chosen(Some(&plant()), named), own);
        }
        for named in ["orchard", "nowhere", "openfaas-fn", "default", "plant.orchard", "Plant"] {
            assert_eq!(chosen(Some(&plant()), Some(named)), no, "{named}");
        }
        for named in [None, Some(""), Some("openfaas-fn")] {
            assert_eq!(chosen(Some(&Scope::All), named), Ok(None));
            assert_eq!(chosen(None, named), Ok(None));
        }
        assert_eq!(chosen(Some(&Scope::All), Some("plant")), own);
        for named in ["nowhere", "default", "plant%2e"] {
            assert_eq!(chosen(Some(&Scope::All), Some(named)), no, "{named}");
        }
        for scope in [Some(&plant()), None] {
            let problem = Api::OpenFaas.chosen(scope, Some("orchard"), &all).expect_err("missing");
            assert_eq!(problem.hint, None);
        }
        // A sender without a token must not learn which namespaces exist.
        assert_eq!(chosen(None, Some("plant")), no);
        assert_eq!(chosen(None, Some("nowhere")), no);
        let space = Api::Nuclio.chosen(Some(&plant()), None, &all).expect("own").expect("one");
        assert!(all.has(&space) && !all.has(&Space { created_at_ms: 8, ..space }));
    }
}
