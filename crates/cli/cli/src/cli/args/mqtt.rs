//! Flags of `mote mqtt`.

use clap::{Args as ClapArgs, Subcommand};

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Mqtt {
    #[command(subcommand)]
    pub(in crate::cli) verb: MqttVerb,
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum MqttVerb {
    /// Add, list and remove users; the broker takes up changes within a second
    Users(MqttUsers),
}

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct MqttUsers {
    #[command(subcommand)]
    pub(in crate::cli) verb: MqttUsersVerb,
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum MqttUsersVerb {
    /// Add or replace a user; the password is read from standard input
    Add {
        /// Its name
        name: String,
        /// Topic filter of messages that the user may receive; can be given several times
        #[arg(long, value_name = "FILTER")]
        read: Vec<String>,
        /// Topic filter of messages that the user may publish; can be given several times
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
