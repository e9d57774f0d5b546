//! `mote-cluster`: the controller of a Kubernetes cluster, the agent of a cell, and the installer
//! of both. This is a separate program next to `mote` because only images contain it.

use std::process::ExitCode;

fn main() -> ExitCode {
    mote_cluster::run()
}
