//! `mote cluster`, which the program `mote-cluster` carries out. It is a separate program so that only
//! the images of a cluster contain the client of Kubernetes.

use std::env;
use std::ffi::OsString;
use std::io::{Error, ErrorKind};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::failure::Failure;

const CLUSTER: &str = "mote-cluster";

/// Replaces this process with `mote-cluster`. Returns only if `mote-cluster` cannot be executed.
pub(super) fn cluster(arguments: &[OsString]) -> Result<(), Failure> {
    let beside = env::current_exe().map(|own| own.with_file_name(CLUSTER));
    let program = beside.unwrap_or_else(|_| PathBuf::from(CLUSTER));
    let error = Command::new(&program).args(arguments).exec();
    Err(missing(&program, &error))
}

fn missing(program: &Path, error: &Error) -> Failure {
    if error.kind() != ErrorKind::NotFound {
        return Failure::of_file("M0104", &format!("cannot run {}", program.display()), error);
    }
    let text =
        format!("{}: this program carries out the command, and is missing", program.display());
    Failure::new("M0104", text).with_hint(
        "copy mote-cluster from the same build or from the image of the controller into the folder \
         of mote",
    )
}
