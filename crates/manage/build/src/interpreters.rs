//! Finds Python, Node, Bun, Deno, Go and `mote-wasm` on this machine, and the folders that a sandbox must show
//! for them.
//!
//! This module must not know functions, sandboxes or the engine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;

/// The oldest versions on which the shims run.
const PYTHON_MIN: (u32, u32) = (3, 9);
const NODE_MIN: (u32, u32) = (18, 0);
const BUN_MIN: (u32, u32) = (1, 3);
const DENO_MIN: (u32, u32) = (2, 9);
const GO_MIN: (u32, u32) = (1, 21);
/// The program that compiles and runs WebAssembly.
const WASM: &str = "mote-wasm";
/// An interpreter that has not printed its version within this time is not used. A small board that
/// has just started and reads Node from its card needs more than 10 s.
const ASK_TIMEOUT: Duration = Duration::from_secs(60);
/// The search path inside sandboxes. The folders of the interpreters that were found come before
/// it.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Debug, Clone)]
pub struct Interpreter {
    /// The program itself, with links resolved.
    pub program: PathBuf,
    /// For example `3.11.2`.
    pub version: String,
    /// The folder in which the interpreter is installed, or the program itself if it needs no other
    /// file.
    pub prefix: PathBuf,
}

/// For each language, the interpreter that was found, or the reason why there is none.
#[derive(Debug, Clone)]
pub struct Found {
    pub python: Result<Interpreter, String>,
    pub node: Result<Interpreter, String>,
    /// Bun and Deno consist of one file each. Sandboxes show this file and not its folder, which may
    /// contain other programs.
    pub bun: Result<Interpreter, String>,
    pub deno: Result<Interpreter, String>,
    /// Go only builds functions and does not run them, so the sandboxes of functions do not show
    /// it.
    pub go: Result<Interpreter, String>,
    /// `mote-wasm`, which compiles and runs WebAssembly. The version is that of its engine. The
    /// node shows the program itself in sandboxes, so its folder does not matter.
    pub wasm: Result<Interpreter, String>,
}

#[derive(Deserialize)]
struct Facts {
    program: PathBuf,
    version: String,
    prefix: PathBuf,
}

/// Asks `python3`, `node`, `bun`, `deno`, `go` and `mote-wasm` for their versions. Takes as long as the slowest of
/// them needs to start.
pub async fn find() -> Found {
    let python = ask(
        "python3",
        &[
            "-B", // root would write compiled modules next to those of the machine
            "-c",
            "import json, os, platform, sys; print(json.dumps({'program': \
             os.path.realpath(sys.executable), 'version': platform.python_version(), 'prefix': \
             os.path.realpath(sys.base_prefix)}))",
        ],
        PYTHON_MIN,
    );
    let node = ask(
        "node",
        &[
            "-p",
            "JSON.stringify({program: fs.realpathSync(process.execPath), version: \
             process.versions.node, prefix: path.dirname(path.dirname(fs.realpathSync(\
             process.execPath)))})",
        ],
        NODE_MIN,
    );
    // Both consist of one file. The settings that Bun finds in the current folder are not read.
    let bun = ask(
        "bun",
        &[
            "--config=/dev/null",
            "--no-env-file",
            "-p",
            "const program = fs.realpathSync(process.execPath); JSON.stringify({program, version: \
             Bun.version, prefix: program})",
        ],
        BUN_MIN,
    );
    let deno = ask(
        "deno",
        &[
            "eval",
            "--no-config",
            "--no-lock",
            "const program = Deno.realPathSync(Deno.execPath()); console.log(JSON.stringify({program, \
             version: Deno.version.deno, prefix: program}))",
        ],
        DENO_MIN,
    );
    let (python, node, bun, deno, go, wasm) = tokio::join!(python, node, bun, deno, go(), wasm());
    Found { python, node, bun, deno, go, wasm }
}

#[derive(Deserialize)]
struct GoFacts {
    #[serde(rename = "GOROOT")]
    root: PathBuf,
    #[serde(rename = "GOVERSION")]
    version: String,
}

async fn go() -> Result<Interpreter, String> {
    let text = output("go", &["env", "-json", "GOROOT", "GOVERSION"]).await?;
    let facts: GoFacts =
        serde_json::from_slice(&text).map_err(|_| "go does not start: go env".to_owned())?;
    let version = facts.version.trim_start_matches("go").to_owned();
    recent("go", &version, GO_MIN)?;
    Ok(Interpreter { program: facts.root.join("bin/go"), version, prefix: facts.root })
}

#[derive(Deserialize)]
struct WasmFacts {
    version: String,
    engine: String,
}

/// Looks for `mote-wasm` next to this program, and then on `PATH`. It must have the version of this
/// program, because both were tested together.
async fn wasm() -> Result<Interpreter, String> {
    let own = std::env::current_exe().ok();
    let folder = own.as_deref().and_then(Path::parent).map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program = (folder.into_iter().chain(std::env::split_paths(&path)))
        .map(|folder| folder.join(WASM))
        .find(|program| program.is_file())
        .ok_or_else(|| format!("{WASM} is not installed"))?;
    let program = program.canonicalize().map_err(|error| format!("{WASM}: {error}"))?;
    let text = output(&program.to_string_lossy(), &["--version"]).await?;
    let facts: WasmFacts =
        serde_json::from_slice(&text).map_err(|_| format!("{WASM} does not start"))?;
    let own = env!("CARGO_PKG_VERSION");
    if facts.version != own {
        return Err(format!("{WASM} is version {}, but {own} is required", facts.version));
    }
    let prefix = program.parent().unwrap_or(Path::new("/")).to_owned();
    Ok(Interpreter { program, version: facts.engine, prefix })
}

async fn ask(name: &str, args: &[&str], min: (u32, u32)) -> Result<Interpreter, String> {
    let text = output(name, args).await?;
    let facts: Facts =
        serde_json::from_slice(&text).map_err(|_| format!("{name} does not start"))?;
    recent(name, &facts.version, min)?;
    Ok(Interpreter { program: facts.program, version: facts.version, prefix: facts.prefix })
}

fn recent(name: &str, found: &str, min: (u32, u32)) -> Result<(), String> {
    if version(found) < Some(min) {
        return Err(format!(
            "{name} is version {found}, but {}.{} or newer is required",
            min.0, min.1
        ));
    }
    Ok(())
}

/// Runs a program with these arguments and returns its output.
async fn output(name: &str, args: &[&str]) -> Result<Vec<u8>, String> {
    let output = Command::new(name).args(args).kill_on_drop(true).output();
    let output = match tokio::time::timeout(ASK_TIMEOUT, output).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(format!("{name} is not installed"));
        }
        Ok(Err(error)) => return Err(format!("{name} cannot be started: {error}")),
        Err(_) => return Err(format!("{name} did not answer in {} s", ASK_TIMEOUT.as_secs())),
    };
    if !output.status.success() {
        return Err(format!("{name} does not start: exit {}", output.status));
    }
    Ok(output.stdout)
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

impl Found {
    /// Folders and programs outside the system folders that sandboxes must show.
    pub fn prefixes(&self) -> Vec<PathBuf> {
        [&self.python, &self.node, &self.bun, &self.deno]
            .into_iter()
            .flatten()
            .map(|interpreter| interpreter.prefix.clone())
            .filter(|prefix| !is_system(prefix))
            .collect()
    }

    /// The value of `PATH` inside sandboxes.
    pub fn path(&self) -> String {
        let mut path = String::new();
        let all = [&self.python, &self.node, &self.bun, &self.deno];
        for interpreter in all.into_iter().flatten() {
            if let Some(folder) = interpreter.program.parent()
                && !is_system(folder)
            {
                path.push_str(&folder.to_string_lossy());
                path.push(':');
            }
        }
        path + PATH
    }
}

/// Whether every sandbox shows this path anyway.
fn is_system(path: &Path) -> bool {
    ["/usr", "/bin", "/lib"].iter().any(|system| path.starts_with(system))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(version("3.11.2"), Some((3, 11)));
        assert!(version("3.8.9") < Some(PYTHON_MIN));
        assert!(version("18.0.0") >= Some(NODE_MIN));
        assert!(version("garbage") < Some(NODE_MIN));
    }
}
