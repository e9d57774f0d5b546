//! The command line: reads arguments, sends requests to a node, and shows the answers. Start reading
//! at [`run`].
//!
//! Results go to standard output, progress messages and errors to standard error. A closed standard
//! output ends the command quietly.

mod args;
mod bench;
mod completion;
mod config_verb;
mod deploy;
mod explain;
mod export;
mod failure;
mod fleet;
mod functions;
mod import;
mod input;
mod invocations;
mod invoke;
mod key;
mod kv;
mod login;
mod logs;
mod mqtt;
mod namespace;
mod node;
mod nodes;
mod operators;
mod output;
mod program;
mod rollout;
mod scale;
mod schedules;
mod secret;
mod simulate;
mod top;
mod verbs;

use std::process::ExitCode;

use self::args::Args;
use self::failure::Failure;
use self::output::Output;

pub use self::verbs::run;

/// What `mote` understands, for its manual pages.
pub fn command() -> clap::Command {
    <Args as clap::CommandFactory>::command()
}

/// The exit code of a command.
fn ended(result: Result<(), Failure>, output: &Output) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.failure(&failure);
            ExitCode::from(failure.exit)
        }
    }
}
