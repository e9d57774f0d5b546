//! Runs the verbs. Decides which verbs need a node, how many nodes a verb addresses, and what Ctrl-C
//! ends.

use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use mote_api::exit;

use super::args::{Args, Global, OnFailure, Verb};
use super::failure::Failure;
use super::output::Output;
use super::{
    bench, completion, config_verb, dashboard, deploy, dev, ended, explain, export, files, fleet,
    functions, import, invocations, invoke, key, kv, login, logs, mqtt, namespace, new, node,
    nodes, operators, program, record, rollout, scale, schedules, secret, simulate, top,
};

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage(error),
    };
    let output = Output::new(&args.global);
    let result = match args.verb {
        Verb::Up(up) => {
            let flags = config_verb::given(&up.node);
            match config_verb::load(flags, up.node.config) {
                Ok(loaded) => return mote_node::run(loaded.config, &up.deploy),
                Err(failure) => Err(failure),
            }
        }
        Verb::Dev(args) => match dev::run(&args, &output) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Verb::Test(args) => match dev::test(&args, &output) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Verb::New(args) => new::run(&args, &output),
        Verb::Config(verb) => config_verb::run(&verb, &output),
        Verb::Cluster { arguments } => program::cluster(&arguments),
        Verb::Upgrade(args) => return mote_upgrade::run(&args),
        Verb::Explain { code } => explain::run(&code, &output),
        Verb::Version => output.version(),
        Verb::Completion { shell } => completion::run(shell),
        Verb::Export(export) => export::run(&export.to, &output),
        Verb::Import(args) => import::run(&args, &output),
        Verb::Simulate(args) => simulate::run(&args, output),
        Verb::Bench(bench) => bench::run(&bench, &args.global, &output),
        Verb::Login(login) => attended(login::login(&login, &args.global, &output)),
        Verb::Logout(args) => login::logout(&args, &output),
        Verb::Nodes => {
            runtime().and_then(|runtime| runtime.block_on(nodes::list(&args.global, &output)))
        }
        verb => ask_nodes(verb, &args.global, &output),
    };
    ended(result, &output)
}

/// Runs a verb that sends requests to nodes. Ctrl-C ends a verb for one node at once. A change on
/// several nodes handles Ctrl-C itself, because it must report the state of each node.
fn ask_nodes(verb: Verb, global: &Global, output: &Output) -> Result<(), Failure> {
    let all = match verb {
        _ if takes_several(&verb) => nodes::chosen(global)?,
        _ => vec![nodes::only(global)?],
    };
    let one = match all.as_slice() {
        [one] if !is_change_of_several(&verb) => one,
        all => return runtime()?.block_on(fleet::run(all, &verb, global, output)),
    };
    let client = one.client.clone();
    if let Verb::Record(args) = &verb {
        // Ctrl-C is the usual end, and not an interruption.
        return runtime()?.block_on(record::record(&client, args, output));
    }
    attended(async {
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
            Verb::Replay(args) => record::replay(&client, &args, output).await,
            Verb::Scale(args) => scale::run(&client, &args, output).await,
            Verb::Top(args) => top::run(&client, args, output).await,
            Verb::Remove(args) => functions::remove(&client, &args, output).await,
            Verb::Invocation(args) => invocations::run(&client, &args.verb, output).await,
            Verb::Runs(args) => invocations::run_runs(&client, &args.verb, output).await,
            Verb::DeadLetters(args) => {
                invocations::run_dead_letters(&client, &args.verb, output).await
            }
            Verb::Secret(args) => secret::run(&client, &args.verb, output).await,
            Verb::Key(args) => key::run(&client, &args.verb, output).await,
            Verb::Token(args) => operators::run(&client, &args.verb, global, output).await,
            Verb::Namespace(args) => namespace::run(&client, &args.verb, output).await,
            Verb::Audit(args) => operators::audit(&client, &args, output).await,
            Verb::Kv(args) => kv::run(&client, &args.verb, output).await,
            Verb::Files(args) => files::run(&client, &args.verb, output).await,
            Verb::Mqtt(args) => mqtt::run(&client, &args.verb, output).await,
            Verb::Dashboard => dashboard::run(&client, output).await,
            Verb::Doctor => node::doctor(&client, global, output).await,
            Verb::Nodes
            | Verb::Record(_)
            | Verb::Login(_)
            | Verb::Logout(_)
            | Verb::Up(_)
            | Verb::New(_)
            | Verb::Dev(_)
            | Verb::Test(_)
            | Verb::Config(_)
            | Verb::Cluster { .. }
            | Verb::Upgrade(_)
            | Verb::Explain { .. }
            | Verb::Completion { .. }
            | Verb::Export(_)
            | Verb::Import(_)
            | Verb::Simulate(_)
            | Verb::Bench(_)
            | Verb::Version => Ok(()),
        }
    })
}

/// Runs the work of a command. Ctrl-C ends the work at once.
fn attended(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        tokio::select! {
            result = work => result,
            _ = tokio::signal::ctrl_c() => Err(Failure::interrupted()),
        }
    });
    // A thread that is still waiting for standard input must not delay the end of the command.
    runtime.shutdown_background();
    result
}

/// Returns whether a verb can address several nodes.
fn takes_several(verb: &Verb) -> bool {
    matches!(
        verb,
        Verb::Deploy(_)
            | Verb::List
            | Verb::Describe { .. }
            | Verb::Rollback { .. }
            | Verb::Remove(_)
            | Verb::Secret(_)
    )
}

/// Returns whether a change of one node is treated like a change of several nodes. `--on-failure
/// rollback` requires that.
fn is_change_of_several(verb: &Verb) -> bool {
    matches!(verb, Verb::Deploy(args) if args.on_failure == OnFailure::Rollback)
}

/// Starts the async runtime of a command.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build();
    runtime.map_err(|error| Failure::new("M0103", format!("cannot start: {error}")))
}

/// Suggests the verb that differs least from the word that the user wrote. clap compares words by their
/// first letters and would suggest `simulate` for `lsit`.
fn suggest_verb(error: &mut clap::Error) {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return;
    };
    let command = super::command();
    let names = command.get_subcommands().map(clap::Command::get_name);
    if let Some(near) = mote_spec::nearest(word, names) {
        let near = ContextValue::Strings(vec![near.to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, near);
    }
}

/// Prints clap's message with `mote`'s error code in front.
fn usage(mut error: clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    suggest_verb(&mut error);
    let text = error.render().to_string();
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        eprint!("{text}");
    } else {
        eprint!("{}", text.replacen("error: ", "error[M0101]: ", 1));
    }
    ExitCode::from(exit::USAGE)
}
