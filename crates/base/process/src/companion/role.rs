//! Which part of the program a process is.
//!
//! A node and its companions are the same file. The node executes its own file with the companion's
//! name as argument 0, and the program chooses its part by that name. The file is named by
//! [`OWN_PROGRAM`] and not by its path, so that a companion always has the same version as its
//! node, even while an upgrade replaces the file.

use std::ffi::{CString, OsStr};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// The file that this process runs.
pub const OWN_PROGRAM: &str = "/proc/self/exe";

/// A companion: a separate process next to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Orders certificates.
    Acme,
    /// The MQTT broker.
    Broker,
    /// Runs chains, as the worker in a sandbox.
    Chain,
    /// Ends DTLS sessions.
    Dtls,
    /// The connection to NATS.
    Nats,
}

const ALL: [Role; 5] = [Role::Acme, Role::Broker, Role::Chain, Role::Dtls, Role::Nats];

impl Role {
    /// The name of the role. It is argument 0, and `ps` and `top` show it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acme => "mote-acme",
            Self::Broker => "mote-broker",
            Self::Chain => "mote-chain",
            Self::Dtls => "mote-dtls",
            Self::Nats => "mote-nats",
        }
    }

    /// The role of this process; `None` if the process is the command line or the node. Also sets
    /// the name of the process in the kernel, which otherwise shows the name of the file.
    pub fn of_this_process() -> Option<Self> {
        let first = std::env::args_os().next()?;
        let role = Self::of(&first)?;
        if let Ok(name) = CString::new(role.name()) {
            // If the name cannot be set, `ps` shows a wrong name, but the companion must not end.
            let _ = rustix::thread::set_name(&name);
        }
        Some(role)
    }

    fn of(argument: &OsStr) -> Option<Self> {
        let name = Path::new(argument).file_name()?;
        ALL.into_iter().find(|role| name == role.name())
    }

    /// The command that starts `program`, which is a file of `mote`, in this role. The companion
    /// does not inherit the node's environment, because the environment may contain secrets.
    pub fn command(self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.arg0(self.name()).env_clear();
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_found_by_its_name() {
        for (argument, role) in [
            ("mote-broker", Some(Role::Broker)),
            ("/mote/chain/mote-chain", Some(Role::Chain)),
            ("mote", None),
            ("/usr/bin/mote", None),
            ("mote-brokers", None),
            ("", None),
        ] {
            assert_eq!(Role::of(OsStr::new(argument)), role, "{argument}");
        }
    }
}
