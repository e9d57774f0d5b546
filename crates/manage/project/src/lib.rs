//! Reads a project: a folder or one file becomes a function.
//!
//! The manifest has precedence, the files supply the rest, and every guess is reported, so that it
//! can be shown and overruled. The command line uses this crate before it packs a folder, and the
//! node uses it after it has unpacked one ([`read_own`]). The crate reads files and runs nothing;
//! it must not know of nodes, of sockets or of how a function runs. Start reading at [`read`], then
//! at [`foreign`] for the manifests of other platforms.
//!
//! The files:
//!
//! - `plan.rs`: a folder and its manifest as a spec
//! - `guess.rs`, `contract.rs`, `golang.rs`, `chain.rs`: what is inferred from files
//! - `memory.rs`, `network.rs`: the memory limit of a function that sets none, and code that calls
//!   other machines
//! - `foreign/`: manifests of other platforms; `cluster.rs` has the objects of a cluster,
//!   `openfaas/templates.rs` the names of templates
//! - `render.rs`: writes a `mote.toml`

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mote_api::openwhisk::WhiskManifest;
use mote_spec::FunctionSpec;
use tempfile::TempDir;

pub mod access;
mod chain;
mod contract;
pub mod foreign;
mod found;
mod golang;
mod guess;
mod http;
mod memory;
mod mistakes;
mod network;
mod plan;
mod probe;
mod program;
mod render;
mod schedules;
mod yaml;

pub use self::foreign::packages::write_anew;
use self::foreign::{LeftOut, matches_filter};
pub use self::network::{allow, egress};
pub use self::plan::{changed, lay_out, load_manifest, planned, read, read_own};
pub use self::probe::copy as copy_code;
pub use self::program::{check_code, named_files};
pub use self::render::mote_toml;

/// The content of a folder that was read.
#[derive(Debug, Default)]
pub struct Project {
    pub functions: Vec<Planned>,
    /// The entities of an OpenWhisk manifest other than its functions.
    pub whisk: Option<WhiskManifest>,
    /// Functions of another platform's manifest that cannot be deployed although others in it can.
    pub left_out: Vec<LeftOut>,
}

/// A function read from a folder.
#[derive(Debug, Clone)]
pub struct Planned {
    /// Its complete description.
    pub spec: FunctionSpec,
    /// The guesses and the evidence for them, as text for people.
    pub guesses: Vec<String>,
    /// The manifest that was read.
    pub manifest: Option<String>,
    /// The location of its code, if that is not the place of the manifest.
    pub code: Option<Code>,
    /// Parts of the manifest that have no meaning here.
    pub warnings: Vec<String>,
    /// The evidence in the code that it calls other machines, if any.
    pub uses_network: Option<String>,
}

/// Largest unpacked size of another platform's archive. The content is held in memory once, so the
/// limit is lower than for our own archives.
pub const UNPACKED_BYTES_MAX: u64 = 128 << 20;

/// Code that is not the folder or file that was read.
#[derive(Debug, Clone)]
pub enum Code {
    /// Another folder or file.
    At(PathBuf),
    /// A temporary folder with code from a manifest; it is removed when this value is dropped.
    Taken(Arc<TempDir>),
}

impl Code {
    /// The path of the folder or file.
    pub fn path(&self) -> &Path {
        match self {
            Code::At(path) => path,
            Code::Taken(folder) => folder.path(),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Options<'a> {
    /// A name that takes precedence over those of the manifest and the folder.
    pub name: Option<&'a str>,
    /// Whether programs must be built for this machine; off when the node is another machine.
    pub check_machine: bool,
    /// A filter for the functions of another platform's manifest; `*` stands for any characters.
    pub filter: Option<&'a str>,
}

impl Options<'_> {
    pub(crate) fn selects(&self, name: &str) -> bool {
        self.filter.is_none_or(|filter| matches_filter(filter, name))
    }
}
