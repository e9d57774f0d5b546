//! The journal's invocations as JSON for people and programs.

use mote_api::Problem;
use mote_api::Timestamp;
use mote_api::invocations::{AcceptedInvocation, InvocationState, RunStep, RunStepState};
use mote_core::accept::AcceptError;
use mote_core::invocation::headers;

use crate::journal::Shown;
use crate::record::{State, Stored};
use crate::steps::{Step, StepKind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// Somebody on the network who knows the id. The view leaves out the function's own error text.
    Caller,
    /// The owner of the function, over the management API.
    Owner,
}

/// Converts an invocation for its reader.
pub fn view(shown: &Shown, reader: Reader) -> AcceptedInvocation {
    let stored = &shown.stored;
    let time = |ms: u64| Timestamp::from_unix_ms(ms);
    let last = stored.last.as_ref();
    let code = last.and_then(|last| last.fault.clone());
    let detail = match reader {
        Reader::Owner => last.and_then(|last| last.detail.clone()),
        Reader::Caller => {
            let row = code.as_deref().and_then(mote_api::explain);
            row.map(|row| row.title.to_owned())
        }
    };
    let mut view = AcceptedInvocation {
        id: stored.id.to_string(),
        function: stored.function.clone(),
        trigger: stored.trigger.map_or("result", |trigger| trigger.as_str()).to_owned(),
        state: state_of(shown),
        accepted_at: time(stored.accepted_ms),
        due_at: (stored.state == State::Waiting && stored.due_ms > 0 && !shown.is_running)
            .then(|| time(stored.due_ms)),
        idempotency_key: stored.key.clone().filter(|_| reader == Reader::Owner),
        attempts: last.map_or(0, |last| last.attempts),
        began_at: last.map(|last| time(last.began_ms)),
        ended_at: last.map(|last| time(last.ended_ms)),
        status: last.map(|last| last.status),
        fault: code,
        detail,
        headers: Vec::new(),
        body: None,
        body_base64: None,
        steps: Vec::new(),
    };
    answer(&mut view, stored);
    view
}

fn state_of(shown: &Shown) -> InvocationState {
    match shown.stored.state {
        State::Waiting if shown.is_running => InvocationState::Running,
        State::Waiting => InvocationState::Waiting,
        State::Succeeded => InvocationState::Succeeded,
        State::Dead => InvocationState::Dead,
        State::Cancelled => InvocationState::Cancelled,
    }
}

fn answer(view: &mut AcceptedInvocation, stored: &Stored) {
    let Some(last) = &stored.last else { return };
    let text = |bytes: &[u8]| bytes.iter().map(|byte| char::from(*byte)).collect();
    view.headers = headers(&last.fields).map(|(name, value)| (text(name), text(value))).collect();
    let Some(body) = &last.body else { return };
    match std::str::from_utf8(body) {
        Ok(text) => view.body = Some(text.to_owned()),
        Err(_) => view.body_base64 = Some(mote_core::base64::encode(body)),
    }
}

/// Converts the steps of a run: the recorded ones, and those that are running now.
pub fn steps(recorded: &[Step], running: Vec<String>) -> Vec<RunStep> {
    let recorded = recorded.iter().map(|step| {
        let (state, took_ms, until) = match step.kind {
            StepKind::Done(ms) => (RunStepState::Done, Some(ms), None),
            StepKind::Until(ms) => (RunStepState::Timed, None, Some(Timestamp::from_unix_ms(ms))),
            StepKind::Caught => (RunStepState::Caught, None, None),
            StepKind::Other => (RunStepState::Done, None, None),
        };
        let at = Some(Timestamp::from_unix_ms(step.at_ms));
        // In some keys, the last character says what kind of record the step has.
        let key = step.key.trim_end_matches(['@', '!', '+', '=', '?']).to_owned();
        RunStep { step: key, state, at, took_ms, until }
    });
    let running = running.into_iter().map(|step| {
        let state = RunStepState::Running;
        RunStep { step, state, at: None, took_ms: None, until: None }
    });
    recorded.chain(running).collect()
}

/// The problem to return when an invocation was not accepted or the journal cannot be read. Callers
/// from the network do not see paths and addresses of this node.
pub fn problem_of(error: &AcceptError, reader: Reader) -> Problem {
    let mut problem = whole_problem_of(error);
    if reader == Reader::Caller
        && matches!(&problem.code[..], "M0703" | "M0704" | "M0706" | "M0707")
    {
        problem.detail = match error {
            AcceptError::Away(_) => "it is not certain that the invocation was stored".to_owned(),
            _ => "accepted invocations cannot be stored or read now".to_owned(),
        };
    }
    problem
}

fn whole_problem_of(error: &AcceptError) -> Problem {
    match error {
        AcceptError::Full(text) => Problem::new(429, "M0515", text.clone()),
        AcceptError::DiskFull(text) => Problem::new(507, "M0703", text.clone()),
        AcceptError::Disk(text) => Problem::new(507, "M0704", text.clone()),
        AcceptError::Away(text) => Problem::new(503, "M0706", text.clone()).with_hint(
            "try again later, with the same Idempotency-Key, so that it is accepted once",
        ),
        AcceptError::TakenOver(text) => Problem::new(503, "M0707", text.clone()),
        AcceptError::Stopping => {
            Problem::new(503, "M0506", "the node is stopping, try again later")
        }
        AcceptError::Invalid(text) => Problem::new(400, "M0516", text.clone()),
    }
}
