//! The commands with which the engine starts interpreters.

use std::io;
use std::path::Path;
use std::time::Duration;

pub(crate) use mote_build::interpreters::{Found, Interpreter, find};
use mote_build::shims::{Compilation, compile_node, compile_python};
use tokio::process::Command;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// The time within which an interpreter must have compiled its shim.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(120);

/// Compiles the shims while the node starts, so that interpreters load them compiled. An
/// interpreter that starts earlier compiles its shim itself.
pub(super) fn compile_shims(found: &Found, shims: &Path, on: &Handle) -> JoinHandle<()> {
    let to_do = |found: &Result<Interpreter, String>, by: Compile| {
        let found = found.as_ref().ok()?;
        by(shims, &found.program, &found.version)
    };
    let python = to_do(&found.python, compile_python).map(|one| ("Python", one));
    let node = to_do(&found.node, compile_node).map(|one| ("Node", one));
    on.spawn(async move {
        for (language, compilation) in python.into_iter().chain(node) {
            if let Err(error) = compile(compilation).await {
                tracing::warn!(
                    "starts of {language} take longer, its shim cannot be compiled: {error}"
                );
            }
        }
    })
}

/// Arguments: the folder of the shims, the interpreter's program, and its version.
type Compile = fn(&Path, &Path, &str) -> Option<Compilation>;

async fn compile(compilation: Compilation) -> io::Result<()> {
    let Compilation { command, note } = compilation;
    let output = Command::from(command).kill_on_drop(true).output();
    let output = tokio::time::timeout(COMPILE_TIMEOUT, output).await?;
    note.ended(&output?)
}

/// The commands that start the interpreters. In a sandbox, the shims are in `/mote`.
pub(super) fn for_engine(found: &Found) -> mote_engine::Interpreters {
    let command = |interpreter: &Result<Interpreter, String>, args: &[&str]| {
        interpreter.as_ref().ok().map(|interpreter| {
            std::iter::once(interpreter.program.to_string_lossy().into_owned())
                .chain(args.iter().map(|arg| (*arg).to_owned()))
                .collect()
        })
    };
    let with_options = |interpreter, options: &[&str], shim: &str| {
        command(interpreter, &[options, &[&format!("/mote/{shim}")]].concat())
    };
    mote_engine::Interpreters {
        python: command(
            &found.python,
            &[
                mote_build::shims::PYTHON_OPTIONS,
                &format!("/mote/{}", mote_build::shims::PYTHON_SHIM),
            ],
        ),
        node: command(&found.node, &[&format!("/mote/{}", mote_build::shims::NODE_START)]),
        bun: with_options(&found.bun, &mote_build::shims::BUN_OPTIONS, mote_build::shims::BUN_SHIM),
        deno: with_options(
            &found.deno,
            &mote_build::shims::DENO_OPTIONS,
            mote_build::shims::DENO_SHIM,
        ),
        path: found.path(),
    }
}
