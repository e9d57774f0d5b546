//! Archives of releases for tests of `mote upgrade`. The layout, `install.sh` and the unit are
//! those of `scripts/dist.sh`. The programs are scripts that print their version.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::repository;

/// The files of a release by their paths, with their modes.
#[derive(Debug, Clone)]
pub struct Release {
    pub version: String,
    /// Path, mode and content of each file in the folder of the release.
    pub files: BTreeMap<String, (u32, Vec<u8>)>,
    /// Further entries of the archive: path from its root, type, link target and content.
    pub extra: Vec<(String, u8, String, Vec<u8>)>,
    /// The secret minisign key with which the checksums are signed.
    pub key: Option<PathBuf>,
}

fn source(path: &str) -> Vec<u8> {
    std::fs::read(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The text of `requirements`.
pub fn requirements(version: &str, machine: &str, kernel: &str, glibc: &str) -> String {
    format!(
        "version={version}\narchitecture={machine}\nbits={}\nkernel={kernel}\nglibc={glibc}\n",
        usize::BITS
    )
}

impl Release {
    pub fn new(version: &str) -> Self {
        let program = format!("#!/bin/sh\n[ \"$1\" != version ] || echo mote {version}\n");
        let needed = requirements(version, std::env::consts::ARCH, "5.12", "2.17");
        let files = [
            ("bin/mote", 0o755, program.into_bytes()),
            ("install.sh", 0o755, source("deploy/packages/install.sh")),
            ("share/mote/uninstall.sh", 0o755, source("deploy/packages/uninstall.sh")),
            ("share/doc/mote/LICENSE", 0o644, format!("{version}\n").into_bytes()),
            ("services/systemd", 0o644, source("deploy/systemd/mote.service")),
            ("requirements", 0o644, needed.into_bytes()),
        ];
        let files =
            files.into_iter().map(|(path, mode, text)| (path.to_owned(), (mode, text))).collect();
        Self { version: version.to_owned(), files, extra: Vec::new(), key: None }
    }

    /// Replaces the content of a file of the release.
    pub fn with(mut self, path: &str, text: &str) -> Self {
        let mode = if path.starts_with("bin/") { 0o755 } else { 0o644 };
        self.files.insert(path.to_owned(), (mode, text.as_bytes().to_vec()));
        self
    }

    /// Adds an entry to the archive that is not in the checksums.
    pub fn with_entry(mut self, path: &str, kind: u8, target: &str) -> Self {
        self.extra.push((path.to_owned(), kind, target.to_owned(), Vec::new()));
        self
    }

    /// Signs the release with a secret minisign key.
    pub fn signed(mut self, key: &Path) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// Writes the archive into a folder. `change` can change its files after the checksums were
    /// made.
    pub fn pack(&self, folder: &Path, change: impl FnOnce(&mut Self)) -> PathBuf {
        let mut packed = self.clone();
        let mut sums = String::new();
        for (path, (_, text)) in &self.files {
            sums.push_str(&format!("{}  {path}\n", sha256(text)));
        }
        packed.files.insert("SHA256SUMS".to_owned(), (0o644, sums.clone().into_bytes()));
        if let Some(key) = &self.key {
            let file = folder.join("SHA256SUMS");
            std::fs::write(&file, &sums).expect("a file");
            run(Command::new("minisign").arg("-S").arg("-s").arg(key).arg("-m").arg(&file));
            let signature = std::fs::read(folder.join("SHA256SUMS.minisig")).expect("a signature");
            packed.files.insert("SHA256SUMS.minisig".to_owned(), (0o644, signature));
        }
        change(&mut packed);
        let name = format!("mote-{}", self.version);
        let mut tar = Vec::new();
        for (path, (mode, text)) in &packed.files {
            entry(&mut tar, &format!("{name}/{path}"), *mode, b'0', "", text);
        }
        for (path, kind, target, text) in &packed.extra {
            entry(&mut tar, path, 0o644, *kind, target, text);
        }
        tar.resize(tar.len() + 1024, 0);
        let plain = folder.join(format!("{name}.tar"));
        std::fs::write(&plain, tar).expect("a file");
        run(Command::new("gzip").arg("--force").arg(&plain));
        folder.join(format!("{name}.tar.gz"))
    }

    /// Unpacks the archive and installs the release with its own `install.sh`.
    pub fn install(&self, folder: &Path, prefix: &Path, flags: &[&str]) {
        let archive = self.pack(folder, |_| {});
        run(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(folder));
        let script = folder.join(format!("mote-{}/install.sh", self.version));
        let mut install = Command::new(script);
        run(install.arg("--no-service").arg("--prefix").arg(prefix).args(flags));
        std::fs::remove_file(archive).expect("the archive");
    }
}

/// Makes a pair of minisign keys. Returns the paths of the public key and the secret key.
pub fn keys(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let public = folder.join(format!("{name}.pub"));
    let secret = folder.join(format!("{name}.key"));
    run(Command::new("minisign").args(["-G", "-W", "-p"]).arg(&public).arg("-s").arg(&secret));
    (public, secret)
}

/// Runs a program, which must succeed.
pub fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The SHA-256 checksum of a text, computed by `sha256sum`.
pub fn sha256(text: &[u8]) -> String {
    use std::io::Write as _;
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sha256sum");
    child.stdin.take().expect("a pipe").write_all(text).expect("written");
    let output = child.wait_with_output().expect("sha256sum");
    String::from_utf8_lossy(&output.stdout)[..64].to_owned()
}

/// Writes one entry of a tar archive (ustar).
fn entry(tar: &mut Vec<u8>, path: &str, mode: u32, kind: u8, target: &str, text: &[u8]) {
    let mut head = [0; 512];
    let mut put = |at: usize, text: &[u8]| head[at..at + text.len()].copy_from_slice(text);
    put(0, path.as_bytes());
    put(100, format!("{mode:07o}\0{0:07o}\0{0:07o}\0", 0).as_bytes());
    put(124, format!("{:011o}\0{:011o}\0", text.len(), 0).as_bytes());
    put(148, b"        ");
    put(156, &[kind]);
    put(157, target.as_bytes());
    put(257, b"ustar\x0000");
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    tar.extend_from_slice(&head);
    tar.extend_from_slice(text);
    tar.resize(tar.len().div_ceil(512) * 512, 0);
}
