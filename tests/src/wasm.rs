//! WebAssembly functions for tests. Those in `tests/fixtures/wasm` are compiled once for each run of
//! the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::{Node, mote_binary, repository, skip};

/// Whether `mote-wasm` is next to the binary under test. If not, reports the calling test as
/// skipped.
pub fn has_engine() -> bool {
    let found = mote_binary().with_file_name("mote-wasm").is_file();
    if !found {
        skip("wasm", "mote-wasm is not built: cargo build -p mote-wasm");
    }
    found
}

/// The component of `tests/fixtures/wasm/http`. Reports the calling test as skipped if the machine
/// cannot compile it, or has no `mote-wasm`.
pub fn component() -> Option<&'static [u8]> {
    static BUILT: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    built(&BUILT, "wasm32-wasip2", "http")
}

/// The program of `tests/fixtures/wasm/program`, as a core module of WASI preview 1.
pub fn program() -> Option<&'static [u8]> {
    static BUILT: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    built(&BUILT, "wasm32-wasip1", "program")
}

fn built(
    place: &'static OnceLock<Option<Vec<u8>>>,
    target: &str,
    package: &str,
) -> Option<&'static [u8]> {
    if !has_engine() {
        return None;
    }
    let built = place.get_or_init(|| compile(target, package));
    if built.is_none() {
        skip("wasm", &format!("the target {target} is not installed: rustup target add {target}"));
    }
    built.as_deref()
}

fn compile(target: &str, package: &str) -> Option<Vec<u8>> {
    let folder = repository().join("tests/fixtures/wasm");
    let rustc =
        Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    let libraries = PathBuf::from(String::from_utf8(rustc.ok()?.stdout).ok()?.trim());
    if !libraries.is_dir() {
        return None;
    }
    let own = std::env::current_exe().expect("a test has a path");
    let into = own.ancestors().nth(3).expect("target/PROFILE/deps/test").join("fixtures");
    let output = Command::new("cargo")
        .args(["build", "--quiet", "--release", "--locked", "--target", target, "-p", package])
        .arg("--target-dir")
        .arg(&into)
        .current_dir(&folder)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{package}: {}", String::from_utf8_lossy(&output.stderr));
    let file = into.join(target).join("release").join(format!("{package}.wasm"));
    Some(std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())))
}

/// Writes a project that consists of a WebAssembly file and a manifest, and deploys it.
pub fn deploy(node: &Node, name: &str, wasm: &[u8], manifest: &str) -> Output {
    let folder = node.dir.path().join("src").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("folder");
    std::fs::write(folder.join("main.wasm"), wasm).expect("file");
    std::fs::write(folder.join("notes.txt"), "a note").expect("file");
    if !manifest.is_empty() {
        std::fs::write(folder.join("mote.toml"), format!("version = 1\n{manifest}")).expect("file");
    }
    deploy_folder(node, name, &folder)
}

fn deploy_folder(node: &Node, name: &str, folder: &Path) -> Output {
    node.mote(&["deploy", folder.to_str().expect("UTF-8"), "--name", name])
}

/// Like [`deploy`], which must succeed. Returns what the command printed.
pub fn deploy_ok(node: &Node, name: &str, wasm: &[u8], manifest: &str) -> String {
    let output = deploy(node, name, wasm, manifest);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}\nnode: {}", node.log());
    text + &String::from_utf8_lossy(&output.stdout)
}

/// The error of a deploy that must fail.
pub fn refusal(node: &Node, name: &str, wasm: &[u8]) -> String {
    let output = deploy(node, name, wasm, "runtime = \"wasm\"\n");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{name} was deployed");
    text
}
