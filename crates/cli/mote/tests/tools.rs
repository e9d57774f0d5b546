//! `mote` becomes `mote-tools` for all that is not the node; without that program the error names it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// A folder with the program `mote` alone.
fn alone() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::hard_link(env!("CARGO_BIN_EXE_mote"), folder.path().join("mote")).unwrap();
    folder
}

fn run(program: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program).env_clear().args(args).output().unwrap();
    let Output { status, stdout, stderr } = output;
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn a_missing_program_is_named() {
    let folder = alone();
    let mote = folder.path().join("mote");
    for args in [&["simulate", "--list"][..], &["list"], &["--help"], &["up", "--what"], &[]] {
        let (code, out, error) = run(&mote, args);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{args:?}: {error}");
        let program = folder.path().join("mote-tools");
        assert!(error.starts_with(&format!("error[M0104]: {}: ", program.display())), "{error}");
        assert!(error.contains("copy mote-tools from the same archive or build"), "{error}");
    }
}

#[test]
fn a_node_needs_no_other_program() {
    let folder = alone();
    let mote = folder.path().join("mote");
    assert_eq!(run(&mote, &["version"]).0, Some(0));
    let (code, _, error) = run(&mote, &["up", "--http", "nowhere"]);
    assert_eq!(code, Some(78), "{error}");
    assert!(error.starts_with("error[M0203]: http: "), "{error}");
}

#[test]
fn a_program_that_cannot_run_is_named() {
    let folder = alone();
    let program = folder.path().join("mote-tools");
    fs::write(&program, "").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
    let (code, _, error) = run(&folder.path().join("mote"), &["simulate", "--list"]);
    assert_eq!(code, Some(1));
    let expected = format!("cannot run {}: permission denied", program.display());
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn the_tools_are_found_through_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("faas");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_mote"), &link).unwrap();
    let (code, out, error) = run(&link, &["simulate", "--list"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(out.contains("bursty"), "{out}");
}

#[test]
fn the_tools_do_not_start_a_node() {
    let (code, _, error) = run(Path::new(env!("CARGO_BIN_EXE_mote-tools")), &["up"]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("run mote up"), "{error}");
}
