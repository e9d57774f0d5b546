//! The commands with which the engine starts interpreters.

use std::path::Path;

pub(crate) use mote_interpreters::{Found, Interpreter, find};
use tokio::runtime::Handle;

/// Folder of the shims, program, version.
type Compile = fn(&Path, &Path, &str) -> std::io::Result<()>;

/// Compiles the shims while the node starts, so that interpreters need not do so at each start.
/// Those that start meanwhile do.
pub(super) fn compile_shims(found: &Found, shims: &Path, on: &Handle) {
    let (found, shims) = (found.clone(), shims.to_owned());
    drop(mote_tasks::blocking_on(on, move || {
        let compile = |language: &str, interpreter: Result<Interpreter, String>, by: Compile| {
            let Ok(interpreter) = interpreter else { return };
            if let Err(error) = by(&shims, &interpreter.program, &interpreter.version) {
                tracing::warn!(
                    "starts of {language} take longer, its shim cannot be compiled: {error}"
                );
            }
        };
        compile("Python", found.python, mote_shims::compile_python);
        compile("Node", found.node, mote_shims::compile_node);
    }));
}

/// The shims lie under `/mote` in the sandbox.
pub(super) fn for_engine(found: &Found) -> mote_engine::Interpreters {
    let command = |interpreter: &Result<Interpreter, String>, args: &[&str]| {
        interpreter.as_ref().ok().map(|interpreter| {
            std::iter::once(interpreter.program.to_string_lossy().into_owned())
                .chain(args.iter().map(|arg| (*arg).to_owned()))
                .collect()
        })
    };
    mote_engine::Interpreters {
        python: command(
            &found.python,
            &[mote_shims::PYTHON_OPTIONS, &format!("/mote/{}", mote_shims::PYTHON_SHIM)],
        ),
        node: command(&found.node, &[&format!("/mote/{}", mote_shims::NODE_START)]),
        path: found.path(),
    }
}
