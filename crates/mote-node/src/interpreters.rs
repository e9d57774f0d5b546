//! The commands with which the engine starts interpreters.

pub(crate) use mote_interpreters::{Found, Interpreter, find};

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
        node: command(&found.node, &[&format!("/mote/{}", mote_shims::NODE_SHIM)]),
        path: found.path(),
    }
}
