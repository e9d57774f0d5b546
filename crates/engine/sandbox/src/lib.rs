//! Runs instances as processes in sandboxes that this crate sets up itself.
//!
//! The zygote ([`Zygote`]) is a single-threaded process that is forked before the daemon has
//! threads. It clones one child per instance. The child composes its namespaces, root, cgroups,
//! user, capabilities, landlock rules and system call filter, and becomes pid 1 of the sandbox.
//! [`ProcessBackend`] is the daemon's side. `main` forks the zygote first, before it reads settings
//! or starts a thread. This crate knows nothing of functions, routes or HTTP: the daemon requests
//! instances through [`mote_core::backend::Backend`].
//!
//! Needs Linux 5.12 or newer (mount_setattr). Start reading at `child`, which lists the steps.
//! `docs/decisions/0002-own-sandbox.md` explains why this is not an OCI runtime.
//!
//! The files:
//!
//! - `zygote.rs`, `plan.rs`, `message.rs`: the zygote, and the daemon's messages to it
//! - `child.rs`, `step.rs`: the steps that set up a sandbox
//! - `root.rs`, `image_root.rs`, `own_code.rs`, `proc_files.rs`: the files of a sandbox
//! - `data_folders.rs`, `data_mount.rs`, `ext4.rs`, `loop_device.rs`: the folders that outlive instances
//! - `identity.rs`, `landlock_rules.rs`, `seccomp/`, `cgroup.rs`: its rights and limits
//! - `loopback.rs`, `local_routes.rs`, `open_network.rs`: its network
//! - `init.rs`, `spawn.rs`: pid 1, and the program
//! - `prewarmed.rs`, `assignment.rs`: prewarmed interpreters, and how one receives a function
//! - `template.rs`: copies of an interpreter that has already started
//! - `seed.rs`, `seed_init.rs`, `copy_roots.rs`: copies of a program that has loaded its function
//! - `worker.rs`, `program_run.rs`, `action_loop.rs`, `contract.rs`: programs that run once per
//!   call, and actions that keep running
//! - `backend.rs`, `running.rs`, `cleanup.rs`: the daemon's side
//! - `installation.rs`: installation of packages
//! - `report.rs`: the lines of `mote doctor`
//! - `sys.rs`: system calls

#![allow(unsafe_code, reason = "namespaces, seccomp and descriptors are system calls")]

mod action_loop;
mod answers;
mod assignment;
mod backend;
mod cgroup;
mod child;
mod cleanup;
mod config;
mod contract;
mod copy_roots;
mod data_folders;
mod data_mount;
mod delivery;
mod ext4;
mod identity;
mod image_root;
mod init;
mod installation;
mod landlock_rules;
mod local_routes;
mod log_lines;
mod loop_device;
mod loopback;
mod message;
mod open_network;
mod outbox;
mod own_code;
mod plan;
mod prepared;
mod prewarmed;
mod proc_files;
mod program_run;
mod report;
mod root;
mod running;
pub mod seccomp;
mod seed;
mod seed_init;
mod slots;
mod spawn;
mod step;
mod subordinate;
mod sys;
mod template;
mod user_namespaces;
mod worker;
mod zygote;

pub use backend::{ProcessBackend, START_TIMEOUT};
pub use config::{Layer, SandboxConfig, UID_BASE_DEFAULT};
pub use data_folders::{
    DataError, DataFolder, DataFolders, file_system_bytes as data_folder_bytes,
    support as data_folder_support,
};
pub use installation::{BuildOutcome, BuildRequest};
pub use report::{Capability, Report, State, capabilities};
pub use zygote::{Zygote, ZygoteHandle};

/// Asks the kernel to let the calling thread run soon after it wakes, for a short turn, even while
/// all cores are busy. Programs in sandboxes have the same setting. Does nothing if the kernel
/// lacks this setting.
pub fn take_short_turns() {
    // If this fails, the node still works, but waits longer on a busy machine.
    let _ = sys::take_short_turns();
}
