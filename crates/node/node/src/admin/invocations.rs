//! Routes that show, cancel and repeat accepted invocations.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use mote_api::Problem;
use mote_api::invocations::{
    AcceptedInvocation, AcceptedInvocations, CancelledInvocation, DeletedDeadLetters,
    InvocationState,
};
use mote_core::InvocationId;
use mote_core::accept::AcceptError;
use mote_journal::{Cancelled, Reader, State as Kept, problem_of, view};
use mote_tenants::namespaces::no_such_invocation;
use serde::Deserialize;

use super::access::Seen;
use super::extract::{Path, Query};
use super::refused::{Refused, shortened};
use crate::Node;

/// The number of invocations in a list: the default, and the maximum.
const LIMIT_DEFAULT: usize = mote_api::invocations::LIST_DEFAULT;
const LIMIT_MAX: usize = mote_api::invocations::LIST_MAX;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    function: Option<String>,
    state: Option<String>,
    before: Option<String>,
    limit: Option<usize>,
    #[serde(default)]
    runs: bool,
    id: Option<String>,
}

pub(super) async fn list(
    State(node): State<Arc<Node>>,
    Seen(seen): Seen,
    Query(query): Query<ListQuery>,
) -> Result<Json<AcceptedInvocations>, Refused> {
    if let Some(text) = &query.id {
        let shown = match InvocationId::from_text(text) {
            Some(id) => node.accepted.journals.show(id).await.map_err(refused)?,
            None => None,
        };
        let shown = shown.filter(|shown| seen.shows(&shown.stored.function));
        let invocations = shown.iter().map(|shown| view(shown, Reader::Owner)).collect();
        return Ok(Json(AcceptedInvocations { invocations, more: false }));
    }
    let state = query.state.as_deref().map(state).transpose()?;
    let before = query.before.as_deref().map(id).transpose()?;
    let limit = query.limit.unwrap_or(LIMIT_DEFAULT).min(LIMIT_MAX);
    let kept = state.map(|state| match state {
        InvocationState::Waiting | InvocationState::Running => Kept::Waiting,
        InvocationState::Succeeded => Kept::Succeeded,
        InvocationState::Dead => Kept::Dead,
        InvocationState::Cancelled => Kept::Cancelled,
    });
    let functions = match (query.function, query.runs) {
        // A name that the sender may not see becomes the empty name, which no function has.
        (Some(function), _) => Some(vec![seen.function(&function).unwrap_or_default()]),
        (None, true) => Some(node.chains().into_iter().filter(|name| seen.shows(name)).collect()),
        (None, false) => seen.namespace().map(|own| vec![format!(".{own}")]),
    };
    // One invocation more than requested is read, to find out whether the list continues.
    let listed =
        node.accepted.journals.list(functions, kept, before, limit + 1).await.map_err(refused)?;
    let more = listed.len() > limit;
    let invocations = listed
        .iter()
        .take(limit)
        .map(|shown| view(shown, Reader::Owner))
        .filter(|view| state.is_none_or(|state| view.state == state))
        .collect();
    Ok(Json(AcceptedInvocations { invocations, more }))
}

pub(super) async fn show(
    State(node): State<Arc<Node>>,
    Path(text): Path<String>,
) -> Result<Json<AcceptedInvocation>, Refused> {
    let id = id(&text)?;
    let shown = node.accepted.journals.show(id).await.map_err(refused)?;
    let shown = shown.ok_or_else(|| unknown(&text))?;
    let mut view = view(&shown, Reader::Owner);
    let recorded = node.accepted.journals.steps(id).await.map_err(refused)?;
    view.steps = mote_journal::steps(&recorded, node.accepted.runs.steps_of(id));
    Ok(Json(view))
}

pub(super) async fn cancel(
    State(node): State<Arc<Node>>,
    Path(text): Path<String>,
) -> Result<Json<CancelledInvocation>, Refused> {
    let id = id(&text)?;
    let was_running = match node.accepted.journals.cancel(id).await.map_err(refused)? {
        Cancelled::Waiting => false,
        Cancelled::Running => true,
        Cancelled::Ended => {
            let detail = format!("invocation {id} has already ended");
            return Err(Problem::new(409, "M0518", detail).into());
        }
        Cancelled::Unknown => return Err(unknown(&text)),
    };
    Ok(Json(CancelledInvocation { id: id.to_string(), was_running }))
}

pub(super) async fn retry(
    State(node): State<Arc<Node>>,
    Path(text): Path<String>,
) -> Result<StatusCode, Refused> {
    let id = id(&text)?;
    if node.accepted.journals.retry(id).await.map_err(refused)? {
        return Ok(StatusCode::NO_CONTENT);
    }
    if node.accepted.journals.show(id).await.map_err(refused)?.is_none() {
        return Err(unknown(&text));
    }
    let detail = format!("invocation {id} is not a dead letter");
    Err(Problem::new(409, "M0518", detail).into())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteQuery {
    function: Option<String>,
}

pub(super) async fn delete_dead_letters(
    State(node): State<Arc<Node>>,
    Seen(seen): Seen,
    Query(query): Query<DeleteQuery>,
) -> Result<Json<DeletedDeadLetters>, Refused> {
    let of = match query.function {
        Some(function) => Some(seen.function(&function).unwrap_or_default()),
        None => seen.namespace().map(|own| format!(".{own}")),
    };
    let deleted = node.accepted.journals.delete_dead(None, of.as_deref()).await;
    Ok(Json(DeletedDeadLetters { deleted: deleted.map_err(refused)? }))
}

pub(super) async fn delete_dead_letter(
    State(node): State<Arc<Node>>,
    Path(text): Path<String>,
) -> Result<StatusCode, Refused> {
    match node.accepted.journals.delete_dead(Some(id(&text)?), None).await.map_err(refused)? {
        0 => {
            let detail = format!("no dead letter has the id {}", shortened(&text));
            Err(Problem::new(404, "M0517", detail).into())
        }
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

fn id(text: &str) -> Result<InvocationId, Refused> {
    InvocationId::from_text(text).ok_or_else(|| unknown(text))
}

fn state(word: &str) -> Result<InvocationState, Refused> {
    InvocationState::from_word(word).ok_or_else(|| {
        let words = InvocationState::ALL.map(InvocationState::as_str).join(", ");
        let detail = format!("state: one of {words}; found {}", shortened(word));
        Problem::new(422, "M0303", detail).with_field("state").into()
    })
}

fn unknown(text: &str) -> Refused {
    no_such_invocation(text).into()
}

fn refused(error: AcceptError) -> Refused {
    problem_of(&error, Reader::Owner).into()
}
