//! Routes that a page requests again and again.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use mote_api::Problem;
use mote_api::types::FunctionList;
use mote_api::watching::{DurationSums, Durations, FunctionSummaries, FunctionSummary};
use mote_engine::durations::BOUNDS_US;
use serde::Deserialize;

use super::access::Seen;
use super::extract::{Path, Query};
use super::functions::{function, summary};
use super::refused::{Refused, shortened};
use crate::Node;
use crate::functions::find;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    view: Option<String>,
}

pub(super) async fn list(
    State(node): State<Arc<Node>>,
    Seen(view): Seen,
    Query(query): Query<ListQuery>,
) -> Result<Response, Refused> {
    let all = node.data_path.engine.list().into_iter();
    let shown = all.filter(|revision| view.shows(revision.spec.name.as_str()));
    Ok(match query.view.as_deref() {
        None => {
            let functions = shown.map(|revision| function(&node, &revision)).collect();
            Json(FunctionList { functions }).into_response()
        }
        Some("summary") => {
            let functions: Vec<FunctionSummary> =
                shown.map(|revision| summary(&node, &revision)).collect();
            Json(FunctionSummaries { functions }).into_response()
        }
        Some(other) => {
            let text = format!("view: {}: the only one is summary", shortened(other));
            return Err(Problem::new(400, "M1403", text).with_field("view").into());
        }
    })
}

pub(super) async fn durations(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
) -> Result<Json<Durations>, Refused> {
    let counted = find(&node.data_path.engine, &name)?.durations();
    let us = |ns: u64| ns / 1_000;
    let mut all = Durations {
        bounds_us: BOUNDS_US.to_vec(),
        sum_us: DurationSums {
            queue: us(counted.queue.1),
            start: us(counted.start.1),
            run: us(counted.run.1),
            ..Default::default()
        },
        queue: counted.queue.0,
        start: counted.start.0,
        run: counted.run.0,
        ..Default::default()
    };
    for (trigger, (counts, sum_ns)) in counted.requests {
        all.sum_us.request.insert(trigger.to_owned(), us(sum_ns));
        all.request.insert(trigger.to_owned(), counts);
    }
    Ok(Json(all))
}
