//! The part of a node that the sender of a request may manage: the functions of one namespace.
//!
//! [`Gate`](crate::compat::access::Gate) gives each request a part. All names of functions in the
//! request's path, query, fields and body are looked up within that part, so that no name leads to
//! another namespace. A function outside the part is reported in the same way as one that does not
//! exist.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use mote_api::Problem;
use mote_spec::FunctionName;
use mote_spec::name::{joined, of_kept, split};

use crate::compat::node::{Api, Code, Deploy, Function, Log, Managed, Scope, Space};

/// See the module's documentation. Cheap to clone.
#[derive(Clone)]
pub struct Part {
    node: Arc<dyn Managed>,
    api: Api,
    /// What the sender's token permits; `None` without a token.
    scope: Option<Scope>,
    space: Option<Space>,
}

impl Part {
    /// Returns the part for a request that does not name a namespace.
    pub(crate) fn new(
        node: Arc<dyn Managed>,
        api: Api,
        scope: Option<Scope>,
    ) -> Result<Self, Problem> {
        let space = api.chosen(scope.as_ref(), None, &node.namespaces())?;
        Ok(Self { node, api, scope, space })
    }

    /// Returns the part for the namespace that a request names, or this part if the request names none.
    pub fn of(&self, named: Option<&str>) -> Result<Self, Problem> {
        let Some(named) = named.filter(|name| !name.is_empty()) else { return Ok(self.clone()) };
        let space = self.api.chosen(self.scope.as_ref(), Some(named), &self.node.namespaces())?;
        Ok(Self { space, ..self.clone() })
    }

    pub fn has_token(&self) -> bool {
        self.scope.is_some()
    }

    /// Returns whether the sender's token is limited to one namespace.
    pub fn is_confined(&self) -> bool {
        self.scope.as_ref().is_some_and(|scope| *scope != Scope::All)
    }

    /// The namespace of this part; `None` is the default namespace.
    pub fn space(&self) -> Option<&Space> {
        self.space.as_ref()
    }

    /// The name of the namespace of this part; `None` is the default namespace.
    pub fn namespace(&self) -> Option<&str> {
        self.space.as_ref().map(|space| &*space.name)
    }

    /// What the platform's clients call this namespace.
    pub fn shown(&self) -> &str {
        self.namespace().unwrap_or(self.api.default_name())
    }

    /// Whether the node has a namespace with this name.
    pub fn is_namespace(&self, name: &str) -> bool {
        self.node.namespaces().exists(name)
    }

    /// The namespaces that the sender may use, as the platform's clients call them.
    pub fn namespaces(&self) -> Vec<String> {
        if self.scope != Some(Scope::All) {
            return vec![self.shown().to_owned()];
        }
        let default = self.api.default_name();
        let made = self.node.namespaces().all();
        let others = made.keys().map(String::as_str).filter(|name| *name != default);
        std::iter::once(default).chain(others).map(str::to_owned).collect()
    }

    /// Returns the full name of a function whose name was written with or without its namespace.
    pub fn full(&self, name: &str) -> Option<String> {
        match split(name).1 {
            None => Some(joined(name, self.namespace())),
            some => (some == self.namespace()).then(|| name.to_owned()),
        }
    }

    /// Returns the full name of a function to call. If the sender has no token, or a token for the
    /// whole node, the name may belong to any namespace, as at the node's own front.
    pub fn callable(&self, name: &str) -> Option<String> {
        match split(name).1 {
            Some(_) if !self.is_confined() => Some(name.to_owned()),
            _ => self.full(name),
        }
    }

    /// Returns the name under which the node keeps a secret; `None` if the secret's name contains a
    /// slash.
    pub fn kept(&self, name: &str) -> Option<String> {
        let kept = || mote_spec::name::kept(name, self.namespace()).into_owned();
        (!name.contains('/')).then(kept)
    }

    /// Returns the name of the secret that the node keeps under `kept`, if the secret belongs to this
    /// namespace.
    pub fn secret<'k>(&self, kept: &'k str) -> Option<&'k str> {
        let (namespace, name) = of_kept(kept);
        (namespace == self.namespace()).then_some(name)
    }

    /// Returns whether the sender may know that a function exists, whatever the function's namespace
    /// is.
    pub fn sees(&self, function: &str) -> bool {
        match &self.scope {
            Some(scope) => scope.sees(function),
            None => split(function).1.is_none(),
        }
    }

    /// The functions of this namespace, sorted by name.
    pub fn functions(&self) -> Vec<Function> {
        let mut all = self.node.functions();
        all.retain(|one| one.spec.name.namespace() == self.namespace());
        all
    }

    /// All functions that the sender may know of, in any namespace.
    pub fn visible(&self) -> Vec<Function> {
        let mut all = self.node.functions();
        all.retain(|one| self.sees(one.spec.name.as_str()));
        all
    }

    pub fn function(&self, name: &str) -> Option<Function> {
        self.node.function(&self.full(name)?)
    }

    pub fn logs(&self, name: &str, follow: bool) -> Option<Log> {
        self.node.logs(&self.full(name)?, follow)
    }

    /// Deploys a function of this namespace. Its code must be new or belong to a function of the same
    /// namespace.
    pub fn deploy(&self, deploy: Deploy) -> BoxFuture<'static, Result<(), Problem>> {
        let is_own = |name: &FunctionName| name.namespace() == self.namespace();
        let has_own_code = match &deploy.code {
            Code::Of(other) => is_own(other),
            _ => true,
        };
        if !is_own(&deploy.name) || !has_own_code {
            return outside(deploy.name.as_str());
        }
        self.node.deploy(deploy)
    }

    pub fn remove(&self, name: &str) -> BoxFuture<'static, Result<(), Problem>> {
        match self.full(name) {
            Some(full) => self.node.remove(&full),
            None => outside(name),
        }
    }

    /// Sets the number of instances of a function.
    pub fn scale(&self, name: &str, instances: u32) -> BoxFuture<'static, Result<(), Problem>> {
        match self.full(name) {
            Some(full) => self.node.scale(&full, instances),
            None => outside(name),
        }
    }
}

/// The answer for a function outside the part. It does not depend on whether such a function exists.
fn outside(name: &str) -> BoxFuture<'static, Result<(), Problem>> {
    ready(Err(Problem::no_such_function(name, []))).boxed()
}

impl<S: Sync> FromRequestParts<S> for Part {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let part = head.extensions.get::<Part>().cloned();
        let text = "the sender of the request is not known\n";
        part.ok_or((StatusCode::INTERNAL_SERVER_ERROR, text))
    }
}
