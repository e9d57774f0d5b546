//! Finds Python, Node and Go on this machine, and the folders that a sandbox must show for them.
//!
//! This module must not know functions, sandboxes or the engine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;

/// The oldest versions on which the shims run.
const PYTHON_MIN: (u32, u32) = (3, 9);
const NODE_MIN: (u32, u32) = (18, 0);
const GO_MIN: (u32, u32) = (1, 21);
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
    /// The folder in which the interpreter is installed.
    pub prefix: PathBuf,
}

/// For each language, the interpreter that was found, or the reason why there is none.
#[derive(Debug, Clone)]
pub struct Found {
    pub python: Result<Interpreter, String>,
    pub node: Result<Interpreter, String>,
    /// Go only builds functions and does not run them, so the sandboxes of functions do not show
    /// it.
    pub go: Result<Interpreter, String>,
}

#[derive(Deserialize)]
struct Facts {
    program: PathBuf,
    version: String,
    prefix: PathBuf,
}

/// Asks `python3`, `node` and `go` on `PATH` for their versions. Takes as long as the slowest of
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
    let (python, node, go) = tokio::join!(python, node, go());
    Found { python, node, go }
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
    /// Folders outside the system folders that sandboxes must show.
    pub fn prefixes(&self) -> Vec<PathBuf> {
        [&self.python, &self.node]
            .into_iter()
            .flatten()
            .map(|interpreter| interpreter.prefix.clone())
            .filter(|prefix| !is_system(prefix))
            .collect()
    }

    /// The value of `PATH` inside sandboxes.
    pub fn path(&self) -> String {
        let mut path = String::new();
        for interpreter in [&self.python, &self.node].into_iter().flatten() {
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
