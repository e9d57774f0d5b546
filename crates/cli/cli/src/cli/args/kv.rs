//! Flags of `mote kv`.

use clap::{Args as ClapArgs, Subcommand};

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Kv {
    #[command(subcommand)]
    pub(in crate::cli) verb: KvVerb,
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum KvVerb {
    /// Print the value of a key
    Get {
        /// Function, or shared:NAME
        #[arg(id = "state", value_name = "NAMESPACE")]
        namespace: String,
        /// The key
        key: String,
    },
    /// Write the value of a key
    Put {
        /// Function, or shared:NAME
        #[arg(id = "state", value_name = "NAMESPACE")]
        namespace: String,
        /// The key
        key: String,
        /// The value [default: standard input]
        value: Option<String>,
        /// Remove it after this time, e.g. 90s or 12h
        #[arg(long, value_name = "TIME")]
        ttl: Option<String>,
        /// Write only if the entry has this version; 0 if there is none
        #[arg(long, value_name = "VERSION")]
        if_version: Option<u64>,
    },
    /// Remove a key
    #[command(visible_alias = "rm")]
    Delete {
        /// Function, or shared:NAME
        #[arg(id = "state", value_name = "NAMESPACE")]
        namespace: String,
        /// The key
        key: String,
    },
    /// List the keys of a namespace, or all namespaces
    #[command(visible_alias = "ls")]
    List(KvKeys),
    /// Add to a number
    #[command(visible_alias = "incr", allow_negative_numbers = true)]
    Increment {
        /// Function, or shared:NAME
        #[arg(id = "state", value_name = "NAMESPACE")]
        namespace: String,
        /// The key
        key: String,
        /// What is added
        #[arg(default_value_t = 1)]
        by: i64,
    },
    /// Remove everything in a namespace
    Clear {
        /// Function, or shared:NAME
        #[arg(id = "state", value_name = "NAMESPACE")]
        namespace: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct KvKeys {
    /// Function, or shared:NAME [default: list the namespaces]
    #[arg(id = "state", value_name = "NAMESPACE")]
    pub(in crate::cli) namespace: Option<String>,
    /// Only keys that begin with this
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(in crate::cli) prefix: String,
    /// Only keys after this one
    #[arg(long, value_name = "KEY")]
    pub(in crate::cli) after: Option<String>,
    /// List at most this many keys
    #[arg(long, default_value_t = 1000)]
    pub(in crate::cli) limit: u32,
}
