//! The verbs of the program `mote-tools`. `mote` becomes this program when it reads one of them, so
//! a node does not contain the load generator, the simulator, charts, the readers and writers of
//! other platforms' manifests, and changes of several nodes.

use std::process::ExitCode;

use clap::Parser;

use super::args::{Args, Global, OnFailure, Verb};
use super::failure::Failure;
use super::output::Output;
use super::{
    bench, boxed, completion, ended, export, fleet, import, nodes, runtime, simulate, usage,
};

/// Whether this program carries out a verb, for whatever nodes.
pub(super) fn has(verb: &Verb) -> bool {
    matches!(
        verb,
        Verb::Completion { .. }
            | Verb::Export(_)
            | Verb::Import(_)
            | Verb::Simulate(_)
            | Verb::Bench(_)
            | Verb::Nodes
    )
}

/// Whether a verb can address several nodes; then this program carries it out.
pub(super) fn takes_several(verb: &Verb) -> bool {
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

/// Whether a change of a single node is a change of several, of which there is one.
pub(super) fn is_needed_for_one(verb: &Verb) -> bool {
    matches!(verb, Verb::Deploy(args) if args.on_failure == OnFailure::Rollback)
}

/// Runs the command line of this process as `mote-tools`.
pub fn run() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage(&error),
    };
    let output = Output::new(&args.global);
    let result = match args.verb {
        Verb::Completion { shell } => completion::run(shell),
        Verb::Export(export) => export::run(&export.to, &output),
        Verb::Import(args) => import::run(&args, &output),
        Verb::Simulate(args) => simulate::run(&args, output),
        Verb::Bench(bench) => bench::run(&bench, &args.global, &output),
        verb => several_nodes(&verb, &args.global, &output),
    };
    ended(result, &output)
}

/// Verbs for several nodes. A change of several nodes ends itself on Ctrl-C, to tell what is true of
/// each node.
fn several_nodes(verb: &Verb, global: &Global, output: &Output) -> Result<(), Failure> {
    let all = match verb {
        Verb::Nodes => Vec::new(),
        verb if takes_several(verb) => nodes::chosen(global)?,
        _ => {
            let text = "mote-tools does not carry out this command";
            return Err(Failure::new("M0101", text).with_hint("run it as mote"));
        }
    };
    runtime()?.block_on(boxed(fleet::run(&all, verb, global, output)))
}
