//! Finds the programs on this machine that an exported image needs, with their libraries.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use mote_images::LayerWriter;
use serde::Deserialize;

use crate::cli::failure::Failure;

/// The place of the interpreters in the image.
pub(super) const BIN: &str = "usr/local/bin";
/// Programs that scripts use. Each is copied if this machine has it.
pub(super) const UTILITIES: &[&str] = &[
    "awk", "basename", "bash", "cat", "cp", "cut", "date", "dirname", "echo", "env", "expr",
    "false", "find", "grep", "head", "ls", "mkdir", "mktemp", "mv", "printf", "rm", "sed", "seq",
    "sh", "sleep", "sort", "tail", "tee", "test", "touch", "tr", "true", "uname", "uniq", "wc",
    "xargs",
];
/// Parts of Python that no function needs, or that belong to the machine.
const NOT_COPIED: &[&str] = &[
    "dist-packages",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "site-packages",
    "test",
    "tkinter",
    "turtledemo",
];
/// Libraries that the C library opens by name when it looks up hosts.
const LOOKUP: &[&str] = &["libnss_dns.so.2", "libnss_files.so.2", "libresolv.so.2"];
const CERTIFICATES: &[&str] =
    &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];
/// The most files that one call of `ldd` receives.
const FILES_OF_A_CALL: usize = 200;
const ELF: &[u8] = b"\x7fELF";

#[derive(Deserialize)]
struct Python {
    program: PathBuf,
    /// The standard library.
    library: PathBuf,
    version: String,
}

/// Copies this machine's Python. It finds its library by its own place.
pub(super) fn add_python(layer: &mut LayerWriter) -> Result<Vec<PathBuf>, Failure> {
    let script = "import json, os, platform, sys, sysconfig; print(json.dumps({'program': \
                  os.path.realpath(sys.executable), 'library': sysconfig.get_path('stdlib'), \
                  'version': platform.python_version()}))";
    let text = ask("python3", &["-B", "-c", script])?;
    let python: Python = serde_json::from_slice(&text)
        .map_err(|_| Failure::new("M0403", "python3 does not start"))?;
    let mut parts = python.version.split('.');
    let short = format!("{}.{}", parts.next().unwrap_or("3"), parts.next().unwrap_or("0"));
    add(layer, &python.program, &format!("{BIN}/python3"))?;
    add_link(layer, &format!("{BIN}/python"), "python3")?;
    add_link(layer, "usr/bin/python3", "/usr/local/bin/python3")?;
    let keep = |path: &Path, kind: fs::FileType| {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
        let is_top = path.parent() == Some(Path::new(""));
        if kind.is_dir() && is_top && NOT_COPIED.contains(&name) {
            return false;
        }
        !(kind.is_dir() && (name == "tests" || name.starts_with("config-")))
            && !name.ends_with(".a")
            && !name.contains(".opt-")
    };
    let to = format!("usr/local/lib/python{short}");
    layer.tree(&python.library, &to, &keep).map_err(|error| of_file(&python.library, &error))?;
    // Its modules in C need further libraries.
    let modules = files_below(&python.library.join("lib-dynload"));
    Ok(modules.into_iter().chain([python.program]).collect())
}

pub(super) fn add_node(layer: &mut LayerWriter) -> Result<PathBuf, Failure> {
    let text = ask("node", &["-p", "fs.realpathSync(process.execPath)"])?;
    let program = PathBuf::from(String::from_utf8_lossy(&text).trim());
    add(layer, &program, &format!("{BIN}/node"))?;
    add_link(layer, "usr/bin/node", "/usr/local/bin/node")?;
    Ok(program)
}

/// Copies a program of this machine. Returns its place here, or `None` if it is not installed.
pub(super) fn add_program(layer: &mut LayerWriter, name: &str) -> Result<Option<PathBuf>, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/bin", "/bin"].map(PathBuf::from);
    let found = usual
        .into_iter()
        .chain(std::env::split_paths(&path))
        .filter_map(|folder| fs::canonicalize(folder.join(name)).ok())
        .find(|program| program.is_file());
    let Some(program) = found else { return Ok(None) };
    add(layer, &program, &format!("usr/bin/{name}"))?;
    Ok(Some(program))
}

/// Copies the files that every Linux program expects.
pub(super) fn add_basics(layer: &mut LayerWriter, user: u32) -> io::Result<()> {
    layer.folder("tmp", 0o1777)?;
    layer.link("bin", "usr/bin")?;
    layer.text(
        "etc/passwd",
        &format!("root:x:0:0::/root:/bin/sh\nfunction:x:{user}:{user}::/tmp:/bin/sh\n"),
    )?;
    layer.text("etc/group", &format!("root:x:0:\nfunction:x:{user}:\n"))?;
    layer.text("etc/nsswitch.conf", "hosts: files dns\n")?;
    if let Some(file) = CERTIFICATES.iter().find(|file| Path::new(file).is_file()) {
        layer.copy(Path::new(file), CERTIFICATES[0].trim_start_matches('/'))?;
    }
    let zones = Path::new("/usr/share/zoneinfo");
    if zones.is_dir() {
        // The folders `posix` and `right` repeat all zones.
        let keep = |path: &Path, _| path != Path::new("posix") && path != Path::new("right");
        layer.tree(zones, "usr/share/zoneinfo", &keep)?;
    }
    Ok(())
}

/// Copies the shared libraries of these programs and modules to the places where they are on this
/// machine. Returns the folders in which the loader does not look by itself.
pub(super) fn add_libraries(
    layer: &mut LayerWriter,
    of: &[PathBuf],
) -> Result<BTreeSet<PathBuf>, Failure> {
    let mut libraries = BTreeSet::new();
    for files in of.chunks(FILES_OF_A_CALL) {
        let output = Command::new("ldd").args(files).env("LC_ALL", "C").output();
        // `ldd` fails if one of the files is a static program.
        let output = output.map_err(|error| {
            Failure::new("M0403", format!("ldd cannot be started: {error}"))
                .with_hint("it finds the libraries of a program, and is a part of the C library")
        })?;
        // A line is `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for the loader.
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let path = line.rsplit("=> ").next().unwrap_or_default().trim();
            if let Some((path, _)) = path.split_once(" (0x")
                && path.starts_with('/')
            {
                libraries.insert(PathBuf::from(path));
            }
        }
    }
    let libc = libraries.iter().find(|path| path.ends_with("libc.so.6")).cloned();
    if let Some(folder) = libc.as_deref().and_then(Path::parent) {
        let lookup = LOOKUP.iter().map(|name| folder.join(name)).filter(|path| path.exists());
        libraries.extend(lookup.collect::<Vec<_>>());
    }
    let mut folders = BTreeSet::new();
    for library in &libraries {
        let inside = library.strip_prefix("/").unwrap_or(library);
        add(layer, library, &inside.to_string_lossy())?;
        if let Some(folder) = library.parent()
            && !is_usual(folder)
        {
            folders.insert(folder.to_owned());
        }
    }
    Ok(folders)
}

/// Whether the loader of every distribution looks into this folder.
fn is_usual(folder: &Path) -> bool {
    let mut parts = folder.to_str().unwrap_or_default().trim_start_matches('/').split('/');
    let mut first = parts.next();
    if first == Some("usr") {
        first = parts.next();
    }
    let rest: Vec<&str> = parts.collect();
    matches!(first, Some("lib" | "lib64"))
        && match rest.as_slice() {
            [] => true,
            [triplet] => triplet.contains("-linux-"),
            _ => false,
        }
}

/// The files below a folder that the loader may load.
pub(super) fn loadable(folder: &Path) -> Vec<PathBuf> {
    let mut all = files_below(folder);
    all.retain(|file| begins_with(file, ELF));
    all
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut open = vec![folder.to_owned()];
    let mut all = Vec::new();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                Ok(kind) if kind.is_file() => all.push(entry.path()),
                _ => {}
            }
        }
    }
    all
}

fn begins_with(file: &Path, magic: &[u8]) -> bool {
    let mut begin = vec![0; magic.len()];
    fs::File::open(file).and_then(|mut file| file.read_exact(&mut begin)).is_ok() && begin == magic
}

/// The interpreter that the first line of a script names. `None` for other files.
pub(super) fn interpreter(file: &Path) -> Option<String> {
    let mut begin = Vec::new();
    fs::File::open(file).ok()?.take(256).read_to_end(&mut begin).ok()?;
    let text = String::from_utf8_lossy(&begin).into_owned();
    let line = text.strip_prefix("#!")?.lines().next()?;
    let mut words = line.split_whitespace();
    let first = Path::new(words.next()?).file_name()?.to_str()?.to_owned();
    if first == "env" {
        words.find(|word| !word.starts_with('-')).map(str::to_owned)
    } else {
        Some(first)
    }
}

fn add(layer: &mut LayerWriter, from: &Path, to: &str) -> Result<(), Failure> {
    layer.copy(from, to).map_err(|error| of_file(from, &error))
}

fn add_link(layer: &mut LayerWriter, path: &str, target: &str) -> Result<(), Failure> {
    layer.link(path, target).map_err(|error| of_file(Path::new(path), &error))
}

fn of_file(path: &Path, error: &io::Error) -> Failure {
    Failure::of_file("M0102", &path.display().to_string(), error)
}

fn ask(program: &str, args: &[&str]) -> Result<Vec<u8>, Failure> {
    let failed = |text: String| {
        let hint = format!("the image receives this machine's {program}; install it");
        Err(Failure::new("M0403", text).with_hint(hint))
    };
    match Command::new(program).args(args).output() {
        Ok(output) if output.status.success() => Ok(output.stdout),
        Ok(output) => failed(format!("{program} does not start: {}", output.status)),
        Err(error) => failed(format!("{program} cannot be started: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_of_scripts() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("script");
        for (text, expected) in [
            ("#!/bin/sh\n", Some("sh")),
            ("#! /usr/bin/env -S node --x\n", Some("node")),
            ("#!/usr/bin/env python3", Some("python3")),
            ("echo\n", None),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(interpreter(&file).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn folders_of_the_loader() {
        for (folder, expected) in [
            ("/lib", true),
            ("/usr/lib64", true),
            ("/lib/x86_64-linux-gnu", true),
            ("/usr/lib/aarch64-linux-gnu", true),
            ("/usr/local/lib", false),
            ("/usr/lib/jvm", false),
            ("/opt/python/lib", false),
        ] {
            assert_eq!(is_usual(Path::new(folder)), expected, "{folder}");
        }
    }
}
