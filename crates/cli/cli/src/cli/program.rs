//! Commands that another program carries out, which is installed next to this one: a node does
//! without it.

use std::env;
use std::ffi::OsString;
use std::io::{Error, ErrorKind};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::failure::Failure;

/// The program with the tools, see `super::tools`.
const TOOLS: &str = "mote-tools";

/// Becomes a program that has a command line of its own. Returns only if it cannot be executed.
pub(super) fn companion(name: &str, arguments: &[OsString]) -> Result<(), Failure> {
    let program = next_to_us(name).unwrap_or_else(|| PathBuf::from(name));
    let error = Command::new(&program).args(arguments).exec();
    Err(missing(&program, &error))
}

/// Becomes the program with the tools, for the command line of this process. Returns only if it
/// cannot be executed.
pub(super) fn tools() -> Result<(), Failure> {
    let program = next_to_us(TOOLS).unwrap_or_else(|| PathBuf::from(TOOLS));
    let mut own = env::args_os();
    let mut command = Command::new(&program);
    // Its texts name the command that the user knows.
    command.arg0(own.next().unwrap_or_else(|| "mote".into())).args(own);
    Err(missing(&program, &command.exec()))
}

fn missing(program: &Path, error: &Error) -> Failure {
    if error.kind() != ErrorKind::NotFound {
        return Failure::of_file("M0104", &format!("cannot run {}", program.display()), error);
    }
    let text =
        format!("{}: this program carries out the command, and is missing", program.display());
    let name = program.file_name().unwrap_or_default().display();
    Failure::new("M0104", text).with_hint(format!(
        "install mote again, or copy {name} from the same archive or build into the folder of mote"
    ))
}

fn next_to_us(name: &str) -> Option<PathBuf> {
    env::current_exe().ok().map(|own| own.with_file_name(name))
}
