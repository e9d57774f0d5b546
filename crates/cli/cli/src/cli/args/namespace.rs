//! Flags of `mote namespace`.

use clap::{Args as ClapArgs, Subcommand};

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Namespaces {
    #[command(subcommand)]
    pub(in crate::cli) verb: NamespaceVerb,
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum NamespaceVerb {
    /// Make a namespace
    Create {
        /// Its name, of a-z, 0-9 and -
        name: String,
        #[command(flatten)]
        limits: Limits,
    },
    /// List namespaces and what they use
    #[command(visible_alias = "ls")]
    List,
    /// Show one namespace
    Describe {
        /// Its name
        name: String,
    },
    /// Change limits of a namespace
    Update {
        /// Its name
        name: String,
        #[command(flatten)]
        limits: Limits,
    },
    /// Delete a namespace
    #[command(visible_alias = "rm")]
    Delete {
        /// Its name
        name: String,
        /// Also delete everything in it: functions, secrets, state, keys, tokens, invocations
        #[arg(long)]
        force: bool,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

/// What a namespace may use.
#[derive(Debug, Default, ClapArgs)]
pub(in crate::cli) struct Limits {
    /// Maximum number of functions, or none for no limit
    #[arg(long, value_name = "NUMBER")]
    pub(in crate::cli) functions: Option<String>,
    /// Maximum number of their instances, or none for no limit
    #[arg(long, value_name = "NUMBER")]
    pub(in crate::cli) instances: Option<String>,
    /// Memory for these instances, for example 512MiB, or none for no limit
    #[arg(long, value_name = "SIZE")]
    pub(in crate::cli) memory: Option<String>,
    /// Processors for these instances, for example 1.5, or none for no limit
    #[arg(long, value_name = "NUMBER")]
    pub(in crate::cli) cpu: Option<String>,
    /// Code and packages on disk, for example 1GiB, or none for no limit
    #[arg(long, value_name = "SIZE")]
    pub(in crate::cli) disk: Option<String>,
    /// State that they keep together, for example 64MiB, or none for no limit
    #[arg(long, value_name = "SIZE")]
    pub(in crate::cli) state: Option<String>,
    /// Calls from outside per second, for example 100/s, or none for no limit
    #[arg(long, value_name = "RATE")]
    pub(in crate::cli) rate: Option<String>,
}
