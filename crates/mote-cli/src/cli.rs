//! The command line: reads arguments, sends requests to a node, and shows the answers.
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
mod kv;
mod logs;
mod mqtt;
mod node;
mod nodes;
mod output;
mod program;
mod rollout;
mod scale;
mod schedules;
mod secret;
mod simulate;
mod tools;
mod top;

use std::pin::Pin;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use mote_api::exit;

use self::args::{Args, Verb};
use self::failure::Failure;
use self::output::Output;

pub use self::tools::run as run_tools;

/// What `mote` understands, for its manual pages.
pub fn command() -> clap::Command {
    <Args as clap::CommandFactory>::command()
}

/// Runs the command line of this process as `mote`.
pub fn run() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage(&error),
    };
    let output = Output::new(&args.global);
    let result = match args.verb {
        Verb::Up(up) => match config_verb::load(&up.node) {
            Ok(loaded) => return mote_node::run(loaded.config, &up.deploy),
            Err(failure) => Err(failure),
        },
        Verb::Config(verb) => config_verb::run(&verb, &output),
        Verb::Cluster { arguments } => program::companion("mote-cluster", &arguments),
        Verb::Upgrade { arguments } => program::companion("mote-upgrade", &arguments),
        Verb::Explain { code } => explain::run(&code, &output),
        Verb::Version => output.version(),
        verb if tools::has(&verb) => program::tools(),
        verb => ask_node(verb, &args.global, &output),
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

/// A future behind a pointer. The runtime contains the code of a future that it runs several times,
/// and the verbs are large.
fn boxed<'a, T>(future: impl Future<Output = T> + 'a) -> Pin<Box<dyn Future<Output = T> + 'a>> {
    Box::pin(future)
}

/// The runtime of a command.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build();
    runtime.map_err(|error| Failure::new("M0103", format!("cannot start: {error}")))
}

/// Verbs that send requests to a node; Ctrl-C ends them at once.
fn ask_node(verb: Verb, global: &args::Global, output: &Output) -> Result<(), Failure> {
    let all = match verb {
        _ if tools::takes_several(&verb) => nodes::chosen(global)?,
        _ => vec![nodes::only(global)?],
    };
    let one = match all.as_slice() {
        [one] if !tools::is_needed_for_one(&verb) => one,
        _ => return program::tools(),
    };
    let runtime = runtime()?;
    let client = one.client.clone();
    let result = runtime.block_on(async {
        let work = boxed(async {
            match verb {
                Verb::Deploy(args) => deploy::run(&client, &args, output).await,
                Verb::Invoke(args) => invoke::run(&client, &args, output).await,
                Verb::List => functions::list(&client, output).await,
                Verb::Describe { name } => functions::describe(&client, &name, output).await,
                Verb::Revisions { name } => rollout::revisions(&client, &name, output).await,
                Verb::Schedules { name } => schedules::run(&client, name.as_deref(), output).await,
                Verb::Rollback { name, revision } => {
                    rollout::rollback(&client, &name, revision.as_deref(), output).await
                }
                Verb::Traffic(args) => rollout::traffic(&client, &args, output).await,
                Verb::Logs(args) => logs::run(&client, &args, output).await,
                Verb::Scale(args) => scale::run(&client, &args, output).await,
                Verb::Top(args) => top::run(&client, args, output).await,
                Verb::Remove(args) => functions::remove(&client, &args, output).await,
                Verb::Invocation(args) => invocations::run(&client, &args.verb, output).await,
                Verb::Runs(args) => invocations::run_runs(&client, &args.verb, output).await,
                Verb::DeadLetters(args) => {
                    invocations::run_dead_letters(&client, &args.verb, output).await
                }
                Verb::Secret(args) => secret::run(&client, &args.verb, output).await,
                Verb::Kv(args) => kv::run(&client, &args.verb, output).await,
                Verb::Mqtt(args) => mqtt::run(&client, &args.verb, output).await,
                Verb::Doctor => node::doctor(&client, global, output).await,
                Verb::Nodes
                | Verb::Up(_)
                | Verb::Config(_)
                | Verb::Cluster { .. }
                | Verb::Upgrade { .. }
                | Verb::Explain { .. }
                | Verb::Completion { .. }
                | Verb::Export(_)
                | Verb::Import(_)
                | Verb::Simulate(_)
                | Verb::Bench(_)
                | Verb::Version => Ok(()),
            }
        });
        tokio::select! {
            result = work => result,
            _ = tokio::signal::ctrl_c() => Err(Failure::interrupted()),
        }
    });
    // A thread that still waits for standard input must not delay the end of the command.
    runtime.shutdown_background();
    result
}

/// The message of clap, with our error code in front.
fn usage(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        eprint!("{text}");
    } else {
        eprint!("{}", text.replacen("error: ", "error[M0101]: ", 1));
    }
    ExitCode::from(exit::USAGE)
}
