//! The flags of `mote new`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(in crate::cli) struct New {
    /// Folder of the new function; its last part is the name of the function
    #[arg(value_name = "NAME", required_unless_present = "list")]
    pub(in crate::cli) folder: Option<PathBuf>,
    /// What to begin with, for example mqtt or http-go
    #[arg(short, long, value_name = "TEMPLATE", default_value = "http")]
    pub(in crate::cli) template: String,
    /// List the templates
    #[arg(long, conflicts_with_all = ["folder", "template"])]
    pub(in crate::cli) list: bool,
}
