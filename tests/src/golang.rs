//! Go for tests that build functions in Go.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Node;

/// The packages of Go's library that the worker and most functions import.
const PACKAGES: [&str; 8] = [
    "crypto/rand",
    "encoding/base64",
    "encoding/json",
    "net/http/httptest",
    "regexp",
    "runtime/debug",
    "slices",
    "testing",
];

/// Returns whether Go is installed. Gives the node compiled packages of Go's library, so that not
/// each node of a test spends half a minute on them.
pub fn prepare(node: &Node) -> bool {
    if !is_installed() {
        return false;
    }
    let cache = node.dir.path().join("data/go-cache");
    std::fs::create_dir_all(&cache).expect("a folder");
    run(Command::new("cp").arg("-a").arg(library()).arg(cache.join("build")));
    true
}

fn is_installed() -> bool {
    Command::new("go").arg("version").output().is_ok_and(|output| output.status.success())
}

/// The compiled packages that all tests of this build share. The first caller compiles them, and
/// callers in other processes wait for it.
fn library() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tmp");
    let folder =
        std::env::var_os("CARGO_TARGET_DIR").map_or(folder, |to| PathBuf::from(to).join("tmp"));
    std::fs::create_dir_all(&folder).expect("a folder");
    let lock = std::fs::File::create(folder.join("go-library.lock")).expect("a lock file");
    lock.lock().expect("a lock");
    let library = folder.join("go-library");
    if !library.exists() {
        let unfinished = folder.join("go-library.unfinished");
        let mut go = Command::new("go");
        go.args(["build", "-trimpath"]).args(PACKAGES);
        // With other settings, `go` compiles the packages again.
        go.envs([("CGO_ENABLED", "0"), ("GOENV", "off"), ("GOTOOLCHAIN", "local")]);
        go.env("GOFLAGS", "-buildvcs=false").env("GOCACHE", &unfinished);
        run(go.current_dir(&folder));
        std::fs::rename(&unfinished, &library).expect("renamed");
    }
    library
}

fn run(command: &mut Command) {
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
