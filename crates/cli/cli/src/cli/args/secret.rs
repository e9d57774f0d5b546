//! Flags of `mote secret set`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct SecretSet {
    /// Its name: a-z, A-Z, 0-9, -, _ and .
    pub(in crate::cli) name: String,
    /// File that holds the value [default: standard input]
    #[arg(value_name = "FILE")]
    pub(in crate::cli) file: Option<PathBuf>,
    /// Keep a line end at the end of the value
    #[arg(long)]
    pub(in crate::cli) exact: bool,
}
