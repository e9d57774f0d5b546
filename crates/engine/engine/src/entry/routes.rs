//! Which revision answers: the snapshot that requests are looked up in, and the route that a front
//! holds.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mote_core::RouteInfo;
use mote_core::rollout::Split;
use mote_spec::mqtt::Connection;
use mote_spec::{
    Access, AsyncRules, CertificateRules, CoapResource, FunctionName, HttpRules, Platform,
    Protocol, Rates, Runtime, TokenRules, WebhookRules,
};

use crate::revision::Revision;

/// The revisions that serve each name. Functions with one revision cost only a look-up.
pub(crate) type Routes = HashMap<FunctionName, Serving>;

/// The revisions that serve a function. Cloning it is cheap.
#[derive(Clone)]
pub struct Serving {
    live: Arc<Revision>,
    /// Absent if all traffic goes to `live` and no revision has a tag.
    parts: Option<Arc<Parts>>,
}

struct Parts {
    split: Split,
    /// In the order of the split's shares.
    revisions: Vec<Arc<Revision>>,
    divided: bool,
    /// Number of the next invocation that has no key.
    next: AtomicU64,
}

impl From<Arc<Revision>> for Serving {
    /// Sends all traffic to one revision.
    fn from(live: Arc<Revision>) -> Self {
        Self { live, parts: None }
    }
}

impl Serving {
    /// Revisions of one function under a split; `None` when one that the split names is not among
    /// `revisions`.
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

    /// How traffic is split over the revisions.
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

/// A route as fronts hold it, for one invocation: its revision, and how it was found, so that an
/// invocation whose revision was replaced meanwhile finds the next one the same way.
#[derive(Clone)]
pub struct Route {
    pub(crate) revision: Arc<Revision>,
    way: Way,
}

#[derive(Clone)]
enum Way {
    /// By the function's name, with the key that chose among several revisions.
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

    /// The revision that took this one's place, if any.
    pub(crate) fn again(&self, routes: &Routes) -> Option<Arc<Revision>> {
        let serving = routes.get(self.revision.spec.name.as_str())?;
        match &self.way {
            Way::Share(key) => Some(serving.pick(|| *key).clone()),
            Way::Tag(tag) => serving.by_tag(tag).cloned(),
        }
    }
}

impl RouteInfo for Route {
    fn name(&self) -> &FunctionName {
        &self.revision.spec.name
    }
    fn timeout_ms(&self) -> u64 {
        self.revision.timeout_ms()
    }
    fn body_bytes_max(&self) -> u64 {
        self.revision.spec.limits.body_bytes
    }
    fn takes_whole_bodies(&self) -> bool {
        self.revision.takes_whole_bodies() || self.revision.spec.webhook.is_some()
    }
    fn takes_websockets(&self) -> bool {
        let spec = &self.revision.spec;
        // Nobody signs the handshake of a WebSocket.
        let is_server = spec.runtime == Runtime::Server && spec.protocol == Protocol::Http1;
        (is_server && spec.webhook.is_none()) || self.takes_websocket_messages()
    }
    fn takes_websocket_messages(&self) -> bool {
        let spec = &self.revision.spec;
        let has_shim = matches!(spec.runtime, Runtime::Python | Runtime::Node);
        has_shim && spec.compat.is_none() && !self.takes_whole_bodies()
    }
    fn is_replaced(&self) -> bool {
        self.revision.pool.lock().is_closed()
    }
    fn takes_http2(&self) -> bool {
        self.revision.spec.protocol == Protocol::H2c
    }
    fn stream_idle_ms(&self) -> u64 {
        self.revision.spec.limits.stream_idle_ms
    }
    fn methods(&self) -> &[String] {
        &self.revision.spec.methods
    }
    fn coap(&self) -> &CoapResource {
        &self.revision.spec.coap
    }
    fn access(&self) -> Access {
        self.revision.access
    }
    fn tokens(&self) -> Option<&Arc<TokenRules>> {
        self.revision.spec.tokens.as_ref()
    }
    fn certificates(&self) -> Option<&Arc<CertificateRules>> {
        self.revision.spec.certificates.as_ref()
    }
    fn webhook(&self) -> Option<&Arc<WebhookRules>> {
        self.revision.spec.webhook.as_ref()
    }
    fn rates(&self) -> &Rates {
        &self.revision.spec.rates
    }
    fn http(&self) -> Option<&HttpRules> {
        self.revision.spec.http.as_deref()
    }
    fn code(&self) -> Option<&Path> {
        Some(&self.revision.code_dir)
    }
    fn compat(&self) -> Option<Platform> {
        self.revision.spec.compat
    }
    fn background(&self) -> Option<&AsyncRules> {
        Some(&self.revision.spec.background)
    }
    fn connection(&self) -> Option<&Connection> {
        Some(&self.revision.spec.publishing.connection)
    }
    fn tag(&self) -> Option<&str> {
        match &self.way {
            Way::Tag(tag) => Some(tag),
            Way::Share(_) => None,
        }
    }
    fn is_confined(&self) -> bool {
        self.revision.is_confined
    }
    fn may_pause(&self) -> bool {
        self.revision.spec.runtime == Runtime::Chain
    }
    fn places(&self) -> u32 {
        self.revision.places()
    }
}
