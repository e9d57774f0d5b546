//! Flags of `mote config`.

use clap::{Args as ClapArgs, Subcommand};

use super::NodeFlags;

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Config {
    #[command(subcommand)]
    pub(in crate::cli) verb: ConfigVerb,
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum ConfigVerb {
    /// Check the configuration
    Check(NodeFlags),
    /// Print each value with its origin
    Show(NodeFlags),
}
