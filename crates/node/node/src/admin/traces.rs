//! The routes for recorded calls and their traces.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use mote_api::Problem;
use mote_api::traces::{Trace, TraceList};
use serde::Deserialize;

use super::access::Seen;
use super::extract::{Path, Query};
use super::refused::Refused;
use crate::Node;
use crate::traces::{Call, OUTCOMES, Traces};

const COUNT_DEFAULT: usize = 100;
const COUNT_MAX: usize = 1_000;
/// Asks for every outcome but `ok`.
const FAILED: &str = "failed";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    function: Option<String>,
    outcome: Option<String>,
    slower_than: Option<String>,
    limit: Option<usize>,
}

impl ListQuery {
    /// The conditions of the query, except the one for the function.
    fn rest(&self) -> Result<impl Fn(&Call) -> bool, Problem> {
        let outcome = self.outcome.as_deref().map(|word| match word {
            FAILED => Ok(None),
            _ => OUTCOMES.iter().find(|known| **known == word).map(Some).ok_or_else(|| {
                let text = format!("outcome: {FAILED}, {}", OUTCOMES.join(", "));
                Problem::new(400, "M1403", text).with_field("outcome")
            }),
        });
        let outcome = outcome.transpose()?;
        let slower_ms = self.slower_than.as_deref().map(|text| {
            mote_spec::quantity::parse_duration_ms(text).map_err(|_| {
                let text = "slower_than: a duration such as 500ms or 1s";
                Problem::new(400, "M1403", text).with_field("slower_than")
            })
        });
        let slower_ns = slower_ms.transpose()?.map_or(0, |ms| ms.saturating_mul(1_000_000));
        Ok(move |call: &Call| {
            call.duration_ns >= slower_ns
                && match outcome {
                    None => true,
                    Some(None) => call.outcome() != OUTCOMES[0],
                    Some(Some(wanted)) => call.outcome() == *wanted,
                }
        })
    }
}

pub(super) async fn list(
    State(node): State<Arc<Node>>,
    Seen(view): Seen,
    Query(query): Query<ListQuery>,
) -> Result<Json<TraceList>, Refused> {
    let traces = recorded(&node)?;
    let function = query.function.as_deref().map(|name| view.function(name).unwrap_or_default());
    let rest = query.rest()?;
    let wanted = |call: &Call| {
        let name = call.function.as_str();
        view.shows(name) && function.as_ref().is_none_or(|function| function == name) && rest(call)
    };
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
