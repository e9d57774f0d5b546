//! `mote-cluster`: the controller of a Kubernetes cluster, the agent of a cell, and the installer of
//! both. It is a program next to `mote` because only images carry it.

use std::process::ExitCode;

fn main() -> ExitCode {
    mote_cluster::run()
}
