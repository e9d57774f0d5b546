//! Several independent nodes as one user sees them: the file that names nodes and groups of nodes,
//! and the order in which a change reaches them.
//!
//! A fleet is no cluster: no node knows of another one, and nothing outside of the command keeps
//! track of them (decision 0049). This module does not know how a project is read or what is
//! printed. [`names`] reads the file and [`edit`] changes it, [`rollout`] has the order, [`deploy`]
//! a deploy, and [`rows`] the state that a deploy reports.

pub mod deploy;
pub mod edit;
pub mod files;
pub mod names;
pub mod rollout;
pub mod rows;

use std::future::Future;

use mote_api::client::Client;
use tokio::task::JoinSet;

/// A node that a command asks.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its name in the user's file, or its address.
    pub name: String,
    pub client: Client,
}

/// Asks all nodes the same at the same time; the answers are in the order of the nodes. An answer
/// is missing if the question panicked.
pub async fn ask_all<T, F>(nodes: &[Node], ask: impl Fn(Client) -> F) -> Vec<Option<T>>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut running = JoinSet::new();
    for (at, node) in nodes.iter().enumerate() {
        let answer = ask(node.client.clone());
        running.spawn(async move { (at, answer.await) });
    }
    let mut answers: Vec<Option<T>> = nodes.iter().map(|_| None).collect();
    while let Some(ended) = running.join_next().await {
        if let Ok((at, answer)) = ended {
            answers[at] = Some(answer);
        }
    }
    answers
}
