//! Verbs that `mote-tools` carries out look like all others; without that program the error names
//! it.

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
    for args in [&["simulate", "--list"][..], &["bench", "hello"], &["nodes"]] {
        let (code, out, error) = run(&mote, args);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{args:?}: {error}");
        let program = folder.path().join("mote-tools");
        assert!(error.starts_with(&format!("error[M0104]: {}: ", program.display())), "{error}");
        assert!(error.contains("mote-tools is in the package mote"), "{error}");
    }
    // What the parser knows does not need it.
    assert_eq!(run(&mote, &["simulate", "--help"]).0, Some(0));
    assert_eq!(run(&mote, &["simulate", "--what"]).0, Some(2));
    assert_eq!(run(&mote, &["version"]).0, Some(0));
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
fn the_tools_refuse_what_mote_does() {
    let (code, _, error) = run(Path::new(env!("CARGO_BIN_EXE_mote-tools")), &["explain", "M0101"]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("run it as mote"), "{error}");
}
