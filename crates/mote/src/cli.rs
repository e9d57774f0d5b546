//! The command line: reads arguments, sends requests to a node, and shows the answers.
//!
//! Results go to standard output, progress messages and errors to standard error. A closed standard
//! output ends the command quietly.

mod args;
mod bench;
mod companion;
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
mod rollout;
mod scale;
mod schedules;
mod secret;
mod simulate;
mod top;

use std::pin::Pin;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use mote_api::exit;

use self::args::{Args, Verb};
use self::failure::Failure;
use self::output::Output;

/// Runs the command line of this process.
pub(crate) fn run() -> ExitCode {
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
        Verb::Cluster { arguments } => companion::run("mote-cluster", &arguments),
        Verb::Upgrade { arguments } => companion::run("mote-upgrade", &arguments),
        Verb::Explain { code } => explain::run(&code, &output),
        Verb::Completion { shell } => completion::run(shell),
        Verb::Export(export) => export::run(&export.to, &output),
        Verb::Import(args) => import::run(&args, &output),
        Verb::Simulate(args) => simulate::run(&args, output),
        Verb::Bench(bench) => bench::run(&bench, &args.global, &output),
        Verb::Version => output.version(),
        verb => ask_node(verb, &args.global, &output),
    };
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

/// Verbs that send requests to a node; Ctrl-C ends them at once.
fn ask_node(verb: Verb, global: &args::Global, output: &Output) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new("M0103", format!("cannot start: {error}")))?;
    let all = match verb {
        Verb::Nodes => Vec::new(),
        _ if fleet::takes(&verb) => nodes::chosen(global)?,
        _ => vec![nodes::only(global)?],
    };
    let one = match all.as_slice() {
        [one] if !fleet::needs(&verb) => one,
        // A change of several nodes ends itself on Ctrl-C, to tell what is true of each node.
        _ => return runtime.block_on(boxed(fleet::run(&all, &verb, global, output))),
    };
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
