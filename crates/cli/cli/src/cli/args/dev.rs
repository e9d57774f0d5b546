//! The flags of `mote dev` and `mote test`.

use std::path::PathBuf;

use clap::Args;

/// Run the tests of a function in its sandbox
///
/// Starts a node of its own, deploys the function there, and runs its tests with its packages, its
/// environment and its network: pytest or unittest, node --test, bun test, deno test, go test, or the
/// programs tests/*.sh.
#[derive(Debug, Args)]
pub(in crate::cli) struct Test {
    /// Folder of the function
    #[arg(value_name = "PATH", default_value = ".")]
    pub(in crate::cli) path: PathBuf,
    /// What the test tool receives, for example -k NAME
    #[arg(last = true, value_name = "ARGUMENT")]
    pub(in crate::cli) arguments: Vec<String>,
}

/// Run functions while you write them
///
/// Starts a node of its own, with a temporary folder, and deploys the functions again whenever a file
/// is saved. The former revision serves until the new one is ready, and goes on serving if it does not
/// start. Variables in the file .env next to a function are added to its environment.
#[derive(Debug, Args)]
pub(in crate::cli) struct Dev {
    /// Folders or files of functions
    #[arg(value_name = "PATH", default_value = ".")]
    pub(in crate::cli) paths: Vec<PathBuf>,
    /// Address for HTTP requests, or :PORT [default: 127.0.0.1:6683, or another port if it is in use]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::cli) http: Option<String>,
    /// Repeat the last call after each change, and show whether its answer has changed
    #[arg(long)]
    pub(in crate::cli) replay: bool,
    /// Let debuggers attach to functions in Node, Deno and Python, and let calls take as long as they need
    #[arg(long)]
    pub(in crate::cli) inspect: bool,
}
