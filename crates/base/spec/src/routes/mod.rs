//! Routes: the hosts and paths at which functions answer in addition to `/NAME`. This module checks
//! which routes are valid, and finds the route of a request in a table. All functions are pure.
//!
//! It must not know fronts, revisions or manifests.
//!
//! - `rule.rs`: the route of a spec
//! - `rules.rs`: which routes are valid
//! - `lookup.rs`: a front's question, and the answer
//! - `table.rs`: finds the route of a request

mod lookup;
mod rule;
mod rules;
mod table;

use crate::name::FunctionName;

pub use lookup::{Among, Asked, Found};
pub use rule::{Redirect, RouteRule};
pub use rules::{Segment, mistake, segments};
pub use table::RouteTable;

/// The maximum number of routes of one function.
const ROUTES_MAX: usize = 64;

/// Formats a route for people: `GET,PUT shop.example.org/orders/{id}`, with the target of a
/// redirect.
pub fn text(rule: &RouteRule) -> String {
    let mut text = rule.methods.join(",");
    if !text.is_empty() {
        text.push(' ');
    }
    text.push_str(rule.host.as_deref().unwrap_or_default());
    text.push_str(&rule.path);
    if let Some(redirect) = &rule.redirect {
        text.push_str(&format!(" \u{2192} {} ({})", redirect.to, redirect.status));
    }
    text
}

/// Checks the routes of a function. If they are not valid, returns the wrong key of the manifest,
/// and the rule for it.
pub fn check(
    function: &FunctionName,
    routes: &[RouteRule],
) -> Result<(), (&'static str, &'static str)> {
    if routes.len() > ROUTES_MAX {
        return Err(("route", "at most 64"));
    }
    if let Some(mistake) = routes.iter().find_map(mistake) {
        return Err(mistake);
    }
    let added = RouteTable::default().add(function, routes);
    added.map_err(|_| ("route", "each host, path and method once"))
}
