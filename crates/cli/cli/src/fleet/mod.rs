//! Several independent nodes of one user: the file that names nodes and groups of nodes, and the order
//! in which a change reaches the nodes.
//!
//! A fleet is not a cluster: no node knows of another, and nothing outside the command keeps track of
//! the nodes (decision 0049). This module does not know how a project is read or what is printed.
//! [`names`] reads the file and [`edit`] changes it. [`rollout`] determines the order of a change,
//! [`deploy`] carries out a deploy, and [`rows`] describes the state that a deploy reports.

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
    /// The name of the node in the user's file, or its address.
    pub name: String,
    pub client: Client,
}

/// Sends the same request to all nodes at the same time. The answers are in the order of the nodes. An
/// answer is missing if its request panicked.
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
