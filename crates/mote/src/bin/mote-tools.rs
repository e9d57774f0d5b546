//! `mote-tools`: the verbs of `mote` other than `up`. `mote` becomes this program when it reads one of
//! them.

use std::process::ExitCode;

fn main() -> ExitCode {
    mote_cli::run_tools()
}
