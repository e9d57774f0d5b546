//! Routes: the hosts and paths at which functions answer in addition to `/NAME`. Which ones are
//! valid, and the table in which the route of a request is found. Pure functions.
//!
//! It must not know fronts, revisions or manifests. `rule.rs` has the route of a spec, `rules.rs`
//! says which routes can be obeyed, `lookup.rs` has the question of a front and its answer, and
//! `table.rs` finds the route of a request.

mod lookup;
mod rule;
mod rules;
mod table;

use crate::name::FunctionName;

pub use lookup::{Among, Asked, Found};
pub use rule::{Redirect, RouteRule};
pub use rules::{Segment, mistake, segments};
pub use table::RouteTable;

/// The largest number of routes of one function.
const ROUTES_MAX: usize = 64;

/// A route for people: `GET,PUT shop.example.org/orders/{id}`, and where a redirect leads.
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

/// Returns the key of the manifest that is wrong, and the rule for it, if the routes of a function are not
/// valid.
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
