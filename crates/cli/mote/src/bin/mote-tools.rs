//! `mote-tools`: the verbs of `mote` other than `up`. `mote` becomes this program when it reads one of
//! them.

use std::process::ExitCode;

use mote_relocations as _; // contains the first function of the program

fn main() -> ExitCode {
    mote_cli::run_tools()
}
