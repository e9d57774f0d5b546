//! Routes about the journals that the node runs.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use mote_api::Problem;
use mote_api::journals::JournalList;

use super::extract::Path;
use super::refused::{Refused, shortened, to_the_end};
use crate::{Node, schedules};

pub(super) async fn list(State(node): State<Arc<Node>>) -> Json<JournalList> {
    Json(node.accepted.journals.status().await)
}

pub(super) async fn take(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
) -> Result<Json<JournalList>, Refused> {
    check(&name)?;
    let taken = async move {
        node.accepted.journals.take(&name).await?;
        schedules::moved(&node, &name).await;
        Ok(node.accepted.journals.status().await)
    };
    Ok(Json(to_the_end(taken).await?))
}

pub(super) async fn give_back(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
) -> Result<Json<JournalList>, Refused> {
    check(&name)?;
    let given = async move {
        node.accepted.journals.give_back(&name).await?;
        schedules::moved(&node, &name).await;
        Ok(node.accepted.journals.status().await)
    };
    Ok(Json(to_the_end(given).await?))
}

fn check(name: &str) -> Result<(), Problem> {
    if mote_journal::nats_log::is_name(name) {
        return Ok(());
    }
    let detail = format!("journal {}: 1 to 64 letters, digits, - and _", shortened(name));
    Err(Problem::new(422, "M1403", detail))
}
