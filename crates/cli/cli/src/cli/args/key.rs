//! Flags of `mote key`.

use clap::{Args as ClapArgs, Subcommand};

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Key {
    #[command(subcommand)]
    pub(in crate::cli) verb: KeyVerb,
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum KeyVerb {
    /// Make a key for a caller and print it, once
    Create(KeyCreate),
    /// List callers and the functions that their keys open, without the keys
    #[command(visible_alias = "ls")]
    List,
    /// Replace the key of a caller and print the new one, once
    Rotate {
        /// The caller
        name: String,
        /// How long the former key stays valid, for example 1h or 7d [default: not at all]
        #[arg(long, value_name = "DURATION")]
        grace: Option<String>,
        /// Print the identity and the pre-shared key for CoAP over DTLS instead of the key
        #[arg(long)]
        psk: bool,
    },
    /// Make the keys of callers invalid at once
    Revoke(KeyRevoke),
}

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct KeyCreate {
    /// Name of the caller, of a-z, A-Z, 0-9, - and _
    pub(in crate::cli) name: String,
    /// Function that the key opens; NAME* for all that begin with NAME; may be repeated
    /// [default: every function]
    #[arg(long = "function", value_name = "PATTERN")]
    pub(in crate::cli) functions: Vec<String>,
    /// How long the key is valid, for example 12h or 90d [default: until it is revoked]
    #[arg(long, value_name = "DURATION")]
    pub(in crate::cli) expires: Option<String>,
    /// Print the identity and the pre-shared key for CoAP over DTLS instead of the key
    #[arg(long)]
    pub(in crate::cli) psk: bool,
}

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct KeyRevoke {
    /// Names of the callers
    #[arg(required = true)]
    pub(in crate::cli) names: Vec<String>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(in crate::cli) yes: bool,
}
