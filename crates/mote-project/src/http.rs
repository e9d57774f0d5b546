//! `[http]` of a manifest as the rules of a spec.

use mote_api::manifest::FunctionManifest;
use mote_core::spec::{Cors, HttpRules};

/// The rules for HTTP requests; `None` if the manifest has none.
pub(crate) fn rules(function: &FunctionManifest) -> Option<Box<HttpRules>> {
    let rules = function.http_rules.clone();
    let cors = rules.cors.map(|cors| Cors {
        origins: cors.origins,
        methods: cors.methods,
        headers: cors.headers,
        expose: cors.expose,
        credentials: cors.credentials,
        max_age_s: cors.max_age_s,
    });
    let rules = HttpRules { headers: rules.headers, cors };
    (rules != HttpRules::default()).then(|| Box::new(rules))
}
