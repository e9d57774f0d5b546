//! Flags of `mote config`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::node_flags::NodeFlags;

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Config {
    #[command(subcommand)]
    pub(in crate::cli) verb: ConfigVerb,
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum ConfigVerb {
    /// Check the configuration
    Check {
        /// The file [default: the one that the node reads]
        #[arg(value_name = "FILE", conflicts_with = "config")]
        file: Option<PathBuf>,
        #[command(flatten)]
        flags: NodeFlags,
    },
    /// Print each value with its origin
    Show(NodeFlags),
    /// Print the JSON Schema of mote.toml, for editors
    Schema,
}
