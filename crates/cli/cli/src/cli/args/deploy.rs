//! The flags of `mote deploy`.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, ValueEnum};
use mote_spec::manifest::{self, AccessName};

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Deploy {
    /// Folders, files, or container images: a name such as ghcr.io/owner/name:1, or an archive
    #[arg(value_name = "PATH", required = true)]
    pub(in crate::cli) paths: Vec<PathBuf>,
    /// Name of the function, if there is only one path
    #[arg(long)]
    pub(in crate::cli) name: Option<String>,
    /// Run it once afterwards and print its answer
    #[arg(long, conflicts_with = "dry_run")]
    pub(in crate::cli) invoke: bool,
    /// Check everything, change nothing
    #[arg(long)]
    pub(in crate::cli) dry_run: bool,
    /// Send no traffic to the new revision; NAME@TAG reaches it
    #[arg(long, value_name = "TAG")]
    pub(in crate::cli) tag: Option<String>,
    /// Let the functions reach these destinations too: HOST:PORT, udp://HOST:PORT, *:PORT, or * for any host
    ///
    /// For functions of other platforms, whose manifests have no such setting. A mote.toml has it in
    /// [allow] net.
    #[arg(long, value_name = "DESTINATION", value_delimiter = ',')]
    pub(in crate::cli) allow_net: Vec<String>,
    /// Who may call the functions, instead of what their manifests say
    ///
    /// For functions of other platforms, whose manifests have no such setting. A mote.toml has it in
    /// [access] mode.
    #[arg(long, value_name = "MODE", value_parser = access_mode())]
    pub(in crate::cli) access: Option<AccessName>,
    /// The platform to choose in an image that has several, e.g. linux/arm64 [default: that of the node]
    #[arg(long, value_name = "PLATFORM")]
    pub(in crate::cli) platform: Option<String>,
    /// Only these functions of another platform's manifest; * matches any characters
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) filter: Option<String>,
    /// Send no traffic to the new revision
    #[arg(long, conflicts_with = "invoke")]
    pub(in crate::cli) no_traffic: bool,
    /// Deploy nothing if the function has this code and these settings already
    // For `mote up PATH`. Hidden, because a deploy by a person says what should be live now.
    #[arg(long, hide = true, conflicts_with_all = ["dry_run", "no_traffic", "tag"])]
    pub(in crate::cli) if_changed: bool,
    /// With several nodes: how many are changed at the same time, after the first
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(in crate::cli) parallel: u16,
    /// With several nodes: what to do with the changed nodes when one fails [default: stop]
    #[arg(long, value_enum, default_value = "stop", hide_default_value = true, conflicts_with_all = ["dry_run", "no_traffic", "tag"])]
    pub(in crate::cli) on_failure: OnFailure,
}

fn access_mode() -> impl TypedValueParser<Value = AccessName> {
    let names = ["public", "key", "basic", "mtls", "local"].map(PossibleValue::new);
    // These words are hidden in the help. They are accepted only so that the error can explain why they
    // need a manifest.
    let hidden = ["jwt", "webhook"].map(|word| PossibleValue::new(word).hide(true));
    let names = PossibleValuesParser::new(names.into_iter().chain(hidden));
    names.try_map(|word| {
        manifest::access(&word).ok_or(manifest::access_needs_more(&word).unwrap_or_default())
    })
}

/// What happens to the nodes that a deploy has already changed when it fails on another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum OnFailure {
    /// Change nothing more; the changed nodes keep the new revision
    Stop,
    /// Return the changed nodes to their previous state
    Rollback,
}
