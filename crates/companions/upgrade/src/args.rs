//! Flags of `mote upgrade`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

/// Replace this installation by another release, and go back if it does not start
///
/// The archive is checked before anything changes. The service is restarted; with the socket units
/// of systemd, no request is lost. The former version is kept.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// The archive of a release: a file, or an http or https URL
    ///
    /// Without it, an interrupted upgrade is completed.
    pub(crate) archive: Option<String>,
    /// Go back to the former version, or undo an interrupted upgrade
    #[arg(
        long,
        conflicts_with_all = ["archive", "check", "public_key", "unsigned", "allow_downgrade"],
    )]
    pub(crate) rollback: bool,
    /// Check the archive, this machine and the installation, and change nothing
    #[arg(long)]
    pub(crate) check: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Public key of minisign with which the archive must be signed; it is kept for later upgrades
    #[arg(long, value_name = "FILE")]
    pub(crate) public_key: Option<PathBuf>,
    /// Accept an archive without checking its signature; refused if the installation has a key
    #[arg(long, conflicts_with = "public_key")]
    pub(crate) unsigned: bool,
    /// Accept an older version; it may refuse the data of the newer one, and then nothing changes
    #[arg(long)]
    pub(crate) allow_downgrade: bool,
    /// Where mote is installed [default: the prefix of this program]
    #[arg(long, value_name = "DIR")]
    pub(crate) prefix: Option<PathBuf>,
    /// Seconds within which the new version must be ready
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=3600),
    )]
    pub(crate) ready_within: u64,
    /// Management socket of the node [default: that of its configuration]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}
