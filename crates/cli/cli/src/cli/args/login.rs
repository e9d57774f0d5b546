//! Flags of `mote login` and `mote logout`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Login {
    /// Address of the node's management API: https://HOST:PORT
    pub(in crate::cli) address: String,
    /// Name by which --node finds the node afterwards [default: the host]
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) name: Option<String>,
    /// File with the token [default: standard input, or a question in a terminal]
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) token_file: Option<PathBuf>,
    /// SHA-256 of the node's certificate, as the node prints it when it starts
    #[arg(long, value_name = "SHA256", conflicts_with = "ca")]
    pub(in crate::cli) fingerprint: Option<String>,
    /// File (PEM) with the authorities that have signed the node's certificate
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) ca: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Logout {
    /// Names of the nodes
    #[arg(required = true)]
    pub(in crate::cli) names: Vec<String>,
}
