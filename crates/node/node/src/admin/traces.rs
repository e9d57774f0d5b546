//! The routes for recorded calls and their traces.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use mote_api::Problem;
use mote_api::traces::{Trace, TraceList};
use serde::Deserialize;

use super::access::Seen;
use super::refused::Refused;
use crate::Node;
use crate::traces::Traces;

const COUNT_DEFAULT: usize = 100;
const COUNT_MAX: usize = 1_000;

#[derive(Deserialize)]
pub(super) struct ListQuery {
    function: Option<String>,
    limit: Option<usize>,
}

pub(super) async fn list(
    State(node): State<Arc<Node>>,
    Seen(view): Seen,
    Query(query): Query<ListQuery>,
) -> Result<Json<TraceList>, Refused> {
    let traces = recorded(&node)?;
    let function = query.function.as_deref().map(|name| view.function(name).unwrap_or_default());
    let wanted =
        |name: &str| view.shows(name) && function.as_ref().is_none_or(|function| function == name);
    let count = query.limit.unwrap_or(COUNT_DEFAULT).min(COUNT_MAX);
    Ok(Json(TraceList { traces: traces.newest(count, wanted) }))
}

pub(super) async fn show(
    State(node): State<Arc<Node>>,
    Seen(view): Seen,
    Path(text): Path<String>,
) -> Result<Json<Trace>, Refused> {
    let traces = recorded(&node)?;
    let trace = u128::from_str_radix(&text, 16).unwrap_or_default();
    let spans = traces.spans(trace, |name| view.shows(name));
    if spans.is_empty() {
        let problem = Problem::new(404, "M1404", format!("no trace {text} is kept"));
        return Err(problem.with_hint("the node keeps the newest recorded calls only").into());
    }
    Ok(Json(Trace { trace: format!("{trace:032x}"), spans }))
}

fn recorded(node: &Node) -> Result<&Traces, Problem> {
    node.opened.traces.as_ref().ok_or_else(|| {
        Problem::new(404, "M1404", "this node records no traces")
            .with_hint("start it with --trace 1%, or set trace in its configuration")
    })
}
