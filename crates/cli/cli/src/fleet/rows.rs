//! The state of each function on each node after a deploy.

use mote_api::client::ClientError;
use mote_api::types::DeployResult;

use crate::fleet::Node;
use crate::fleet::deploy::{Applied, Back, Before, Reason, Stopped, take_back};
use crate::fleet::rollout::Outcome;

/// The state of a function on a node. `E` is the form in which errors are shown.
#[derive(Debug)]
pub struct Row<E> {
    pub node: String,
    pub function: String,
    pub state: State,
    /// The node's answer to the deploy.
    pub result: Option<DeployResult>,
    /// The reason why the deploy failed.
    pub error: Option<E>,
}

/// The state of a function on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The new revision receives the traffic.
    Live,
    /// The new revision is ready and receives no traffic.
    Ready,
    /// A dry run found no mistake.
    Checked,
    /// The node refused the new revision.
    Failed,
    /// The state is unknown, because the node did not answer.
    Unknown,
    /// Nothing was changed.
    NotBegun,
    /// The traffic split is the same as before the deploy.
    RolledBack,
    /// The function was new, so it was removed.
    Removed,
}

impl State {
    /// The word for the state in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Live => "live",
            State::Ready => "ready",
            State::Checked => "checked",
            State::Failed => "failed",
            State::Unknown => "unknown",
            State::NotBegun => "not begun",
            State::RolledBack => "rolled back",
            State::Removed => "removed",
        }
    }
}

/// Returns one row for each function on each node. The rows are sorted by node, then by function.
pub fn rows<E>(
    nodes: &[Node],
    functions: &[String],
    outcomes: &[Outcome<Applied, Stopped>],
    is_dry_run: bool,
    why: impl Fn(&Reason) -> E,
) -> Vec<Row<E>> {
    let mut rows = Vec::new();
    for (node, outcome) in nodes.iter().zip(outcomes) {
        let (applied, stopped) = match outcome {
            Outcome::Done(applied) => (Some(applied), None),
            Outcome::Failed(stopped) => (Some(&stopped.applied), Some(stopped)),
            Outcome::Interrupted | Outcome::NotBegun => (None, None),
        };
        for name in functions {
            let mut done = applied.into_iter().flat_map(|applied| &applied.functions);
            let result = done.find(|result| result.function == *name).cloned();
            let error = stopped.filter(|stopped| stopped.function.as_ref() == Some(name));
            let state = match (&result, error) {
                (Some(_), _) if is_dry_run => State::Checked,
                (Some(result), _) if result.held_back => State::Ready,
                // The deploy succeeded, even if the first call of the function failed afterwards.
                (Some(_), _) => State::Live,
                (None, Some(stopped)) if stopped.reason.is_unknown() => State::Unknown,
                (None, Some(_)) => State::Failed,
                (None, None) if matches!(outcome, Outcome::Interrupted) => State::Unknown,
                (None, None) => State::NotBegun,
            };
            rows.push(Row {
                node: node.name.clone(),
                function: name.clone(),
                state,
                result,
                error: error.map(|stopped| why(&stopped.reason)),
            });
        }
    }
    rows
}

/// Reverts every function that the change may have reached, and updates the rows. `tell` is called with
/// each result, and returns the form in which an error is shown.
pub async fn take_back_all<E>(
    nodes: &[Node],
    functions: &[String],
    before: &[Vec<Before>],
    rows: &mut [Row<E>],
    mut tell: impl FnMut(&Node, Result<String, ClientError>) -> Option<E>,
) {
    let places = (0..nodes.len()).flat_map(|at| (0..functions.len()).map(move |of| (at, of)));
    for (row, (at, of)) in rows.iter_mut().zip(places) {
        if row.state == State::NotBegun {
            continue;
        }
        let node = &nodes[at];
        let name = &functions[of];
        match take_back(&node.client, name, &before[at][of]).await {
            Ok(Back::Unchanged) => {
                if row.state == State::Unknown {
                    row.state = State::Failed;
                }
            }
            Ok(Back::At(revision)) => {
                row.state = State::RolledBack;
                tell(node, Ok(format!("{name}@{revision} is live again")));
            }
            Ok(Back::Removed) => {
                row.state = State::Removed;
                tell(node, Ok(format!("{name} is removed, because it is new")));
            }
            Err(error) => {
                row.state = State::Unknown;
                row.error = tell(node, Err(error));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mote_api::client::{Client, Endpoint};

    use super::*;

    fn applied(functions: &[&str]) -> Applied {
        let result = |name: &&str| DeployResult {
            function: (*name).to_owned(),
            revision: 2,
            previous: Some(1),
            traffic: Vec::new(),
            access: "public".to_owned(),
            unchanged: false,
            held_back: false,
            steps: Vec::new(),
            warnings: Vec::new(),
            urls: Default::default(),
        };
        Applied { functions: functions.iter().map(result).collect(), notes: Vec::new() }
    }

    fn stopped(done: &[&str], function: Option<&str>, reason: Reason) -> Stopped {
        Stopped { applied: applied(done), function: function.map(str::to_owned), reason }
    }

    #[test]
    fn each_function_of_each_node_has_a_row() {
        let lost =
            || Reason::Node(ClientError::Lost { endpoint: String::new(), reason: String::new() });
        let refused = || Reason::Node(ClientError::Request("no".to_owned()));
        let answer = || Reason::Answer { function: "f".to_owned(), status: 500, fault: None };
        for (outcome, expected) in [
            (Outcome::Done(applied(&["f", "g"])), ["live", "live"]),
            (Outcome::Failed(stopped(&["f"], Some("g"), refused())), ["live", "failed"]),
            (Outcome::Failed(stopped(&["f"], Some("g"), lost())), ["live", "unknown"]),
            (Outcome::Failed(stopped(&[], Some("f"), refused())), ["failed", "not begun"]),
            (Outcome::Failed(stopped(&["f"], Some("f"), answer())), ["live", "not begun"]),
            (Outcome::Failed(stopped(&["f"], Some("f"), lost())), ["live", "not begun"]),
            (Outcome::Failed(stopped(&["f", "g"], None, refused())), ["live", "live"]),
            (Outcome::Interrupted, ["unknown", "unknown"]),
            (Outcome::NotBegun, ["not begun", "not begun"]),
        ] {
            let client = Client::new(Endpoint::Unix("s".into()));
            let nodes = [Node { name: "a".to_owned(), client }];
            let functions = ["f".to_owned(), "g".to_owned()];
            let shown = format!("{outcome:?}");
            let rows = rows(&nodes, &functions, &[outcome], false, |_| ());
            let states: Vec<&str> = rows.iter().map(|row| row.state.as_str()).collect();
            assert_eq!(states, expected, "{shown}");
        }
    }
}
