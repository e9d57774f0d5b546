//! `mote mqtt`: the users of the node's own broker. Their passwords are hashed by `mote-broker`,
//! which also keeps their file.

use std::path::PathBuf;
use std::process::Command;

use clap::{Args as ClapArgs, Subcommand};

use super::failure::Failure;
use crate::config::{Given, Loaded};

#[derive(Debug, ClapArgs)]
pub(super) struct Mqtt {
    #[command(subcommand)]
    pub(super) verb: MqttVerb,
}

#[derive(Debug, Subcommand)]
pub(super) enum MqttVerb {
    /// Add, list and remove users; the broker takes up changes within a second
    Users(MqttUsers),
}

#[derive(Debug, ClapArgs)]
pub(super) struct MqttUsers {
    #[command(subcommand)]
    pub(super) verb: MqttUsersVerb,
    /// Data folder of the node
    #[arg(long, value_name = "DIR", global = true)]
    pub(super) data: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(super) enum MqttUsersVerb {
    /// Add or replace a user; the password is read from standard input
    Add {
        /// Its name
        name: String,
        /// Topic filter of what it may receive; can be given several times
        #[arg(long, value_name = "FILTER")]
        read: Vec<String>,
        /// Topic filter of what it may publish; can be given several times
        #[arg(long, value_name = "FILTER")]
        write: Vec<String>,
    },
    /// List users and their topic filters
    #[command(visible_alias = "ls")]
    List,
    /// Remove a user
    #[command(visible_alias = "rm")]
    Remove {
        /// Its name
        name: String,
    },
}

pub(super) fn run(verb: &MqttVerb) -> Result<(), Failure> {
    let MqttVerb::Users(users) = verb;
    let flags = users.data.iter().map(|data| ("data", data.display().to_string())).collect();
    let loaded = Loaded::load(&Given::from_process(flags, None)).map_err(Failure::from)?;
    let program = std::env::current_exe()
        .map(|program| program.with_file_name("mote-broker"))
        .map_err(|error| Failure::new("M0103", format!("cannot find mote-broker: {error}")))?;
    let mut command = Command::new(&program);
    command.args(["users", "--folder"]).arg(loaded.config.data.join("broker"));
    match &users.verb {
        MqttUsersVerb::List => command.arg("list"),
        MqttUsersVerb::Remove { name } => command.args(["remove", name]),
        MqttUsersVerb::Add { name, read, write } => {
            command.args(["add", name]);
            for (flag, filters) in [("--read", read), ("--write", write)] {
                for filter in filters {
                    command.args([flag, filter]);
                }
            }
            &mut command
        }
    };
    let status = command.status().map_err(|error| {
        Failure::new("M0103", format!("cannot run {}: {error}", program.display()))
    })?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::new("M1209", "the users of the MQTT broker were not changed"))
}
