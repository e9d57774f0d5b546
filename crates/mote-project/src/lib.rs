//! Reads a project: a folder or one file becomes a function.
//!
//! The manifest says what it says, the files are asked for the rest, and every guess is reported, so
//! that it can be shown and overruled. The command line uses this crate before it packs a folder, and
//! the node after it has unpacked one. It reads files and runs nothing; it must not know of nodes,
//! of sockets or of how a function runs. Start reading at [`read`], then at [`foreign`] for the
//! manifests of other platforms.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mote_api::openwhisk::WhiskManifest;
use mote_core::FunctionSpec;
use tempfile::TempDir;

mod contract;
pub mod foreign;
mod found;
mod golang;
mod guess;
mod mistakes;
mod network;
mod plan;
mod probe;
mod render;

pub use self::foreign::packages::write_anew;
use self::foreign::{LeftOut, matches_filter};
pub use self::network::allow;
pub use self::plan::{changed, check_code, lay_out, load_manifest, planned, read};
pub use self::render::mote_toml;

/// What was read from a folder.
#[derive(Debug, Default)]
pub struct Project {
    /// Its functions.
    pub functions: Vec<Planned>,
    /// What an OpenWhisk manifest says beside them.
    pub whisk: Option<WhiskManifest>,
    /// Functions of another platform's manifest that cannot be deployed, while others of it can.
    pub left_out: Vec<LeftOut>,
}

/// A function read from a folder.
#[derive(Debug, Clone)]
pub struct Planned {
    /// What it is.
    pub spec: FunctionSpec,
    /// What was guessed and from what, for people.
    pub guesses: Vec<String>,
    /// The manifest that was read.
    pub manifest: Option<String>,
    /// Where its code is, when it is not where the manifest was looked for.
    pub code: Option<Code>,
    /// What of the manifest has no meaning here.
    pub warnings: Vec<String>,
    /// What in the code suggests that it calls other machines, if anything does.
    pub uses_network: Option<String>,
}

/// What another platform's archive may unpack to. It passes through memory once, so less than for
/// our own.
pub const UNPACKED_BYTES_MAX: u64 = 128 << 20;

/// Code that is not the folder or file that was read.
#[derive(Debug, Clone)]
pub enum Code {
    /// Somewhere else.
    At(PathBuf),
    /// Taken out of a manifest, for as long as this lives.
    Taken(Arc<TempDir>),
}

impl Code {
    /// The folder or file.
    pub fn path(&self) -> &Path {
        match self {
            Code::At(path) => path,
            Code::Taken(folder) => folder.path(),
        }
    }
}

/// How to read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options<'a> {
    /// A name that wins over manifest and folder name.
    pub name: Option<&'a str>,
    /// Whether programs must be built for this machine; off when the node is another one.
    pub check_machine: bool,
    /// Whether manifests of other platforms are read. A node never does: they may name files
    /// outside the folder.
    pub foreign: bool,
    /// Which functions of another platform's manifest are wanted; `*` stands for any characters.
    pub filter: Option<&'a str>,
}

impl Options<'_> {
    pub(crate) fn selects(&self, name: &str) -> bool {
        self.filter.is_none_or(|filter| matches_filter(filter, name))
    }
}
