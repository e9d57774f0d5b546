//! `mote`: a function platform for the edge in one binary. Its command line is `mote-cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    mote_cli::run()
}
