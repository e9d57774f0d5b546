//! Which revision answers: the snapshot in which requests are looked up, and the route that a front
//! holds.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mote_core::rollout::Split;
use mote_core::{Instances, RouteInfo, Routed};
use mote_spec::name::FunctionName;
use mote_spec::{Protocol, Runtime};

use crate::revision::Revision;

/// The revisions that serve each name. For a function with one revision, a request costs only a
/// look-up.
pub(crate) type Routes = HashMap<FunctionName, Serving>;

/// The revisions that serve a function. Cloning is cheap.
#[derive(Clone)]
pub struct Serving {
    live: Arc<Revision>,
    /// `None` if all traffic goes to `live` and no revision has a tag.
    parts: Option<Arc<Parts>>,
}

struct Parts {
    split: Split,
    /// The revisions in the order of the split's shares.
    revisions: Vec<Arc<Revision>>,
    divided: bool,
    /// The number of the next invocation that has no key.
    next: AtomicU64,
}

impl From<Arc<Revision>> for Serving {
    /// Sends all traffic to one revision.
    fn from(live: Arc<Revision>) -> Self {
        Self { live, parts: None }
    }
}

impl Serving {
    /// Creates the revisions of one function under a split. `None` if the split names a revision
    /// that is not among `revisions`.
    pub fn new(split: Split, revisions: &[Arc<Revision>]) -> Option<Self> {
        let find = |number| revisions.iter().find(|revision| revision.number == number).cloned();
        let live = find(split.main())?;
        if split == Split::whole(live.number) {
            return Some(live.into());
        }
        let revisions: Option<Vec<_>> =
            split.shares().iter().map(|share| find(share.revision)).collect();
        let divided = split.is_divided();
        let parts = Parts { split, revisions: revisions?, divided, next: AtomicU64::new(0) };
        Some(Self { live, parts: Some(Arc::new(parts)) })
    }

    /// The revision with the largest share.
    pub fn live(&self) -> &Arc<Revision> {
        &self.live
    }

    /// How traffic is split between the revisions.
    pub fn split(&self) -> Split {
        self.parts
            .as_ref()
            .map_or_else(|| Split::whole(self.live.number), |parts| parts.split.clone())
    }

    /// All revisions, in ascending order.
    pub fn revisions(&self) -> &[Arc<Revision>] {
        self.parts.as_ref().map_or(std::slice::from_ref(&self.live), |parts| &parts.revisions)
    }

    pub fn revision(&self, number: u64) -> Option<&Arc<Revision>> {
        self.revisions().iter().find(|revision| revision.number == number)
    }

    #[inline]
    pub(crate) fn pick(&self, key: impl FnOnce() -> Option<u64>) -> &Arc<Revision> {
        match &self.parts {
            Some(parts) if parts.divided => {
                let key = key().unwrap_or_else(|| parts.next.fetch_add(1, Ordering::Relaxed));
                &parts.revisions[parts.split.pick_index(key)]
            }
            _ => &self.live,
        }
    }

    pub(crate) fn by_tag(&self, tag: &str) -> Option<&Arc<Revision>> {
        self.revision(self.parts.as_ref()?.split.by_tag(tag)?)
    }
}

/// A route that a front holds for one invocation: the revision, and how it was found. If the
/// revision is replaced in the meantime, the invocation finds the next revision in the same way.
#[derive(Clone)]
pub struct Route {
    pub(crate) revision: Arc<Revision>,
    way: Way,
}

#[derive(Clone)]
enum Way {
    /// By the function's name. If there are several revisions, the key chose one of them.
    Share(Option<u64>),
    Tag(Arc<str>),
}

impl Route {
    pub fn to(revision: Arc<Revision>) -> Self {
        Self { revision, way: Way::Share(None) }
    }

    pub fn revision(&self) -> &Arc<Revision> {
        &self.revision
    }

    /// The route of `NAME` or `NAME@TAG`.
    #[inline]
    pub(crate) fn find(
        routes: &Routes,
        name: &str,
        key: impl FnOnce() -> Option<u64>,
    ) -> Option<Self> {
        let Some(serving) = routes.get(name) else {
            let (name, tag) = name.split_once('@')?;
            let revision = routes.get(name)?.by_tag(tag)?.clone();
            return Some(Self { revision, way: Way::Tag(tag.into()) });
        };
        let mut given = None;
        let revision = serving.pick(|| {
            given = key();
            given
        });
        Some(Self { revision: revision.clone(), way: Way::Share(given) })
    }

    /// The revision that has replaced this one, if there is one.
    pub(crate) fn again(&self, routes: &Routes) -> Option<Arc<Revision>> {
        let serving = routes.get(self.revision.spec.name.as_str())?;
        match &self.way {
            Way::Share(key) => Some(serving.pick(|| *key).clone()),
            Way::Tag(tag) => serving.by_tag(tag).cloned(),
        }
    }
}

impl Routed for Route {
    #[inline(always)]
    fn info(&self) -> RouteInfo<'_> {
        let revision = &*self.revision;
        let spec = &self.revision.spec;
        let is_signed = spec.webhook.is_some();
        let takes_whole_bodies = revision.takes_whole_bodies() || is_signed;
        let has_shim = spec.runtime == Runtime::Python || spec.runtime.is_javascript();
        let takes_websocket_messages = has_shim && spec.compat.is_none() && !takes_whole_bodies;
        let is_server = spec.runtime == Runtime::Server && spec.protocol == Protocol::Http1;
        RouteInfo {
            name: &spec.name,
            timeout_ms: revision.timeout_ms(),
            body_bytes_max: spec.limits.body_bytes,
            takes_whole_bodies,
            // A WebSocket's handshake is never signed.
            takes_websockets: (is_server && !is_signed) || takes_websocket_messages,
            takes_websocket_messages,
            takes_http2: spec.protocol == Protocol::H2c,
            stream_idle_ms: spec.limits.stream_idle_ms,
            methods: &spec.methods,
            coap: &spec.coap,
            access: revision.access,
            tokens: spec.tokens.as_ref(),
            certificates: spec.certificates.as_ref(),
            webhook: spec.webhook.as_ref(),
            rates: &spec.rates,
            http: spec.http.as_deref(),
            code: Some(&revision.code_dir),
            compat: spec.compat,
            background: Some(&spec.background),
            connection: Some(&spec.publishing.connection),
            tag: match &self.way {
                Way::Tag(tag) => Some(tag),
                Way::Share(_) => None,
            },
            is_confined: revision.is_confined,
            may_pause: spec.runtime == Runtime::Chain,
            instances: Some(revision),
        }
    }
}

impl Instances for Revision {
    fn is_replaced(&self) -> bool {
        self.pool.lock().is_closed()
    }

    fn places(&self) -> u32 {
        Revision::places(self)
    }
}
