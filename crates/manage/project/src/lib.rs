//! Reads a project and turns a folder or a file into a function.
//!
//! The manifest has precedence, the files supply the rest, and every guess is reported, so that the
//! user can see and overrule it. The command line uses this crate before it packs a folder. The
//! node uses the crate after it has unpacked a folder ([`read_own`]). The crate reads files and
//! runs nothing. It must not know of nodes, of sockets or of how a function runs. Start reading at
//! [`read`], then at [`foreign`] for the manifests of other platforms.
//!
//! The files:
//!
//! - `plan.rs`: turns a folder and its manifest into a spec
//! - `guess.rs`, `contract.rs`, `golang.rs`, `chain.rs`: infer settings from the function's files
//! - `memory.rs`: chooses the memory limit of a function whose manifest sets none
//! - `network.rs`: recognises code that calls other machines
//! - `image.rs`: functions that are container images
//! - `foreign/`: reads the manifests of other platforms; `cluster.rs` reads the objects of a cluster,
//!   and `openfaas/templates.rs` knows the names of templates
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
pub mod image;
mod memory;
mod mistakes;
mod network;
mod plan;
mod probe;
mod program;
mod render;
mod rust;
mod schedules;
mod yaml;

pub use self::foreign::packages::write_anew;
use self::foreign::{LeftOut, matches_filter};
pub use self::network::{allow, egress};
pub use self::plan::{changed, lay_out, load_manifest, planned, read, read_own};
pub use self::probe::copy as copy_code;
pub use self::program::{check_code, named_files};
pub use self::render::mote_toml;
pub use self::rust::{WASM_BUILD, build_command};

/// The functions and entities that were read from a folder.
#[derive(Debug, Default)]
pub struct Project {
    pub functions: Vec<Planned>,
    /// The entities of an OpenWhisk manifest that are not functions.
    pub whisk: Option<WhiskManifest>,
    /// The functions of another platform's manifest that cannot be deployed. Its other functions
    /// can be deployed.
    pub left_out: Vec<LeftOut>,
}

/// A function read from a folder.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The complete description of the function.
    pub spec: FunctionSpec,
    /// The guesses and the evidence for them, as text for people.
    pub guesses: Vec<String>,
    /// The name of the manifest that was read.
    pub manifest: Option<String>,
    /// The location of the function's code, if the code is not next to the manifest.
    pub code: Option<Code>,
    /// The archive or the folder that contains the function's image, if no registry has it.
    pub image_archive: Option<PathBuf>,
    /// Warnings about parts of the manifest that have no meaning here.
    pub warnings: Vec<String>,
    /// The evidence that the code calls other machines, if there is any.
    pub uses_network: Option<String>,
}

/// The largest unpacked size of another platform's archive. The whole content is in memory once, so the
/// limit is lower than that for `mote`'s own archives.
pub const UNPACKED_BYTES_MAX: u64 = 128 << 20;

/// Code in another place than the folder or file that was read.
#[derive(Debug, Clone)]
pub enum Code {
    /// Another folder or file.
    At(PathBuf),
    /// A temporary folder with code that the manifest contained. The folder is removed when this value
    /// is dropped.
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
    /// A name that takes precedence over the names of the manifest and the folder.
    pub name: Option<&'a str>,
    /// Whether to check that programs are built for this machine. False if the node is another machine.
    pub check_machine: bool,
    /// A filter that selects functions of another platform's manifest; `*` stands for any characters.
    pub filter: Option<&'a str>,
}

impl Options<'_> {
    pub(crate) fn selects(&self, name: &str) -> bool {
        self.filter.is_none_or(|filter| matches_filter(filter, name))
    }
}
