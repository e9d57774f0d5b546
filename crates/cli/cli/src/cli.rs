//! The command line: reads arguments, sends requests to a node, and shows the answers. Start reading
//! at [`run`] for the program `mote`, and at [`run_tools`] for `mote-tools`.
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
mod own;
mod program;
mod rollout;
mod scale;
mod schedules;
mod secret;
mod simulate;
mod tools;
mod top;
mod upload;

use std::process::ExitCode;

use self::args::{Args, Global};
use self::failure::Failure;
use self::output::{Output, VERSION};
use self::own::{Own, OwnVerb};

pub use self::tools::run as run_tools;

/// What `mote` understands, for its manual pages.
pub fn command() -> clap::Command {
    <Args as clap::CommandFactory>::command()
}

/// Runs the command line of this process as `mote`: starts the node, or becomes `mote-tools`.
pub fn run() -> ExitCode {
    let Some(Own { global, verb }) = own::read(std::env::args_os().skip(1)) else {
        return ended(program::tools(), &Output::new(&Global::default()));
    };
    let output = Output::new(&global);
    let result = match verb {
        OwnVerb::Up { flags, config, deploy } => match config_verb::load(flags, config) {
            Ok(loaded) => return mote_node::run(loaded.config, &deploy),
            Err(failure) => Err(failure),
        },
        OwnVerb::Version => output.print(format!("mote {VERSION}\n").as_bytes()),
    };
    ended(result, &output)
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
