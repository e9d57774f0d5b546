//! Flags of `mote token` and `mote audit`.

use clap::{Args as ClapArgs, Subcommand};

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Token {
    #[command(subcommand)]
    pub(in crate::cli) verb: TokenVerb,
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum TokenVerb {
    /// Make a token for managing the node and print it, once
    Create(TokenCreate),
    /// List tokens and their roles, without the tokens themselves
    #[command(visible_alias = "ls")]
    List,
    /// Make tokens invalid at once
    Revoke(TokenRevoke),
}

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct TokenCreate {
    /// Name of the token, of a-z, A-Z, 0-9, -, _ and .
    pub(in crate::cli) name: String,
    /// What its holder may do: viewer (reads), deployer (also deploys and invokes) or operator
    /// (everything)
    #[arg(long, value_name = "ROLE", value_parser = ["viewer", "deployer", "operator"])]
    pub(in crate::cli) role: String,
    /// How long the token is valid, for example 12h or 90d [default: until it is revoked]
    #[arg(long, value_name = "DURATION")]
    pub(in crate::cli) expires: Option<String>,
}

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct TokenRevoke {
    /// Names of the tokens
    #[arg(required = true)]
    pub(in crate::cli) names: Vec<String>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(in crate::cli) yes: bool,
}

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct AuditArgs {
    /// Entries to show, the latest ones
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 100)]
    pub(in crate::cli) limit: u32,
}
