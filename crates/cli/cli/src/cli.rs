//! The command line. It reads arguments, sends requests to a node, and shows the answers. Start reading
//! at [`run`].
//!
//! Results go to standard output; progress messages and errors go to standard error. If standard output
//! is closed, the command ends without a message.

mod args;
mod bench;
mod completion;
mod config_verb;
mod dashboard;
mod deploy;
mod dev;
mod difference;
mod explain;
mod export;
mod failure;
mod files;
mod fleet;
mod functions;
mod image;
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
mod new;
mod node;
mod nodes;
mod operators;
mod output;
mod program;
mod record;
mod rollout;
mod scale;
mod schedules;
mod secret;
mod simulate;
mod syntax;
mod top;
mod verbs;

use std::process::ExitCode;

use self::args::Args;
use self::failure::Failure;
use self::output::Output;

pub use self::verbs::run;

/// Returns the definition of all verbs and flags. The manual pages are written from it.
pub fn command() -> clap::Command {
    <Args as clap::CommandFactory>::command()
}

/// Reports how a command ended, and returns its exit code.
fn ended(result: Result<(), Failure>, output: &Output) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.failure(&failure);
            ExitCode::from(failure.exit)
        }
    }
}
