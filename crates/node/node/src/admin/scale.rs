//! The route that changes a function's scale by hand.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use mote_api::Problem;
use mote_api::types::{ScaleBounds, ScaleRequest, ScaleResult};
use mote_engine::Revision;
use mote_spec::{INSTANCES_MAX, ScaleOverride};

use super::extract::Path;
use super::refused::Refused;
use crate::{Node, functions};

pub(super) async fn scale(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<ScaleResult>, Refused> {
    let revision = functions::find(&node.data_path.engine, &name)?;
    let wish: ScaleRequest = serde_json::from_slice(&body)
        .map_err(|error| Problem::new(422, "M0303", format!("scale: {error}")))?;
    // In a cluster, the other cells may run the function, so this cell may have no instance.
    let max_least = u32::from(node.cells.is_none());
    let bounds = bounds(&revision, &wish, node.data_path.cores, max_least)?;
    if wish.reset || bounds != revision.bounds() {
        functions::set_bounds(&node.opened.store, &revision, bounds).await?;
    }
    let live = || {
        let status = revision.status();
        let ready = status.instances.iter().filter(|instance| instance.state == "ready").count();
        (ready as u32, status.starting)
    };
    let (ready, starting) = live();
    let mut result = ScaleResult {
        function: name,
        ready,
        starting,
        stopped: 0,
        bounds: ScaleBounds { min: bounds.min, max: bounds.max },
        note: None,
    };
    if let Some(count) = wish.instances {
        let scaled = revision.scale_to(count);
        result.ready = scaled.ready;
        result.starting = scaled.starting;
        result.stopped = scaled.stopped;
        let busy = scaled.ready.saturating_sub(count);
        result.note = scaled.lack.or_else(|| {
            (busy > 0).then(|| format!("{busy} more instances keep running: they are busy, or the minimum requires them"))
        });
    }
    Ok(Json(result))
}

/// Returns the bounds that apply after `wish`. Fails if the numbers contradict each other.
fn bounds(
    revision: &Revision,
    wish: &ScaleRequest,
    cores: u32,
    max_least: u32,
) -> Result<ScaleOverride, Problem> {
    let refuse = |field: &str, text: String| {
        Err(Problem::new(422, "M0303", format!("{field}: {text}")).with_field(field))
    };
    if *wish == ScaleRequest::default() {
        return refuse("instances", "give a number of instances, min, max or reset".to_owned());
    }
    let before = if wish.reset { ScaleOverride::default() } else { revision.bounds() };
    let bounds = ScaleOverride { min: wish.min.or(before.min), max: wish.max.or(before.max) };
    let scale = &revision.spec.scale;
    let min = bounds.min.unwrap_or(scale.min);
    let max = bounds.max.or(scale.max).unwrap_or(cores.max(min));
    for (field, number, least) in [("min", wish.min, 0), ("max", wish.max, max_least)] {
        if number.is_some_and(|number| !(least..=INSTANCES_MAX).contains(&number)) {
            return refuse(field, format!("{least} to {INSTANCES_MAX}"));
        }
    }
    if min > max {
        let field = if wish.max.is_some() && wish.min.is_none() { "max" } else { "min" };
        return refuse(field, format!("min {min} is above max {max}"));
    }
    if let Some(count) = wish.instances.filter(|count| *count > max) {
        return refuse("instances", format!("{count} is above max {max}; raise it with --max"));
    }
    Ok(bounds)
}
