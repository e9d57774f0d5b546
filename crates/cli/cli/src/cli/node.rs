//! Checks the condition of a node.

use mote_api::client::{Client, ClientError};
use mote_api::exit;
use mote_api::types::{CheckState, Reach};
use mote_node::settings::{Given, Loaded};

use super::args::Global;
use super::failure::{Failure, is_denied, socket_of_root};
use super::output::{Mark, Output, harmless, table};

/// `mote doctor`: shows the node's report about its machine. If no node runs, shows what this machine
/// would offer to a node that this user starts.
pub(super) async fn doctor(
    client: &Client,
    global: &Global,
    output: &Output,
) -> Result<(), Failure> {
    let named = global.node.is_some() || std::env::var_os("MOTE_NODE").is_some();
    let report = match client.doctor().await {
        // If this user may not use the node's socket, the node is running.
        Err(ClientError::Unreachable { endpoint, reason }) if !named && !is_denied(&reason) => {
            output.say(&match socket_of_root(&endpoint) {
                Some(socket) => format!(
                    "this user runs no node and may not open {socket}, the socket of root's node \
                     (use sudo to see its checks); this is what the machine supports"
                ),
                None => "no node is running; this is what the machine supports".to_owned(),
            });
            // An unreadable configuration is ignored here, because `mote up` and `mote config show`
            // report it.
            let loaded = Loaded::load(&Given::from_process(Vec::new(), None));
            let uid_base =
                loaded.map_or(mote_node::UID_BASE_DEFAULT, |loaded| loaded.config.uid_base);
            mote_node::doctor::of_machine(uid_base).await
        }
        answer => answer?,
    };
    let names: Vec<&str> = report.checks.iter().map(|check| check.name.as_str()).collect();
    output.results(&report, &report.checks, &names, || {
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for check in &report.checks {
            let mark = output.mark(match check.state {
                CheckState::Ok => Mark::Done,
                CheckState::Absent => Mark::Absent,
                CheckState::Warn => Mark::Warn,
                CheckState::Fail => Mark::Fail,
            });
            let name = harmless(&check.name);
            let detail = harmless(&check.detail);
            text.push_str(&format!("{mark} {name:<width$}  {detail}\n"));
            if let Some(hint) = &check.hint {
                text.push_str(&format!("    {}\n", harmless(hint)));
            }
        }
        if !report.reach.is_empty() {
            let row = |one: &Reach| {
                let address = one.address.as_deref().unwrap_or("-");
                vec![one.what.clone(), address.to_owned(), one.who.clone()]
            };
            let rows: Vec<Vec<String>> = report.reach.iter().map(row).collect();
            text.push_str("\nOther machines reach:\n");
            text.push_str(&table(&["WHAT", "ADDRESS", "WHO"], &rows));
        }
        if !report.functions.is_empty() {
            let row = |one: &Reach| vec![one.what.clone(), one.who.clone()];
            let rows: Vec<Vec<String>> = report.functions.iter().map(row).collect();
            text.push_str("\nWho may call functions, from this machine alone:\n");
            text.push_str(&table(&["WHAT", "WHO"], &rows));
        }
        text
    })?;
    let failed = report.checks.iter().any(|check| check.state == CheckState::Fail);
    if failed {
        return Err(Failure::quiet(exit::FAILED));
    }
    Ok(())
}
