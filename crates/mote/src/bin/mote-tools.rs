//! `mote-tools`: the verbs of `mote` that need no node or concern several. `mote` becomes this program
//! when it reads one of them.

use std::process::ExitCode;

fn main() -> ExitCode {
    mote_cli::run_tools()
}
