//! Routes: the hosts and paths at which functions answer in addition to `/NAME`. Which ones can be
//! obeyed, and the table in which the route of a request is found. Pure functions.

mod rules;
mod table;

use mote_core::FunctionName;
use mote_core::spec::routes::RouteRule;

pub use rules::{Segment, mistake, segments};
pub use table::RouteTable;

/// Most routes of one function.
const ROUTES_MAX: usize = 64;

/// The key and the rule that the routes of a function break, if they do.
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
