//! `mote upgrade` in a prefix without a service: what it refuses, and how an interrupted upgrade
//! ends. `scripts/test-dist.sh upgrade` tests it with a service. SPECIFICATION.md, upgrades.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use mote_tests::releases::{Release, keys, requirements, run, sha256};
use mote_tests::{free_address, is_long, is_root, mote_binary, skip, wait_for};

const OLD: &str = "0.1.0";
const NEW: &str = "0.2.0";

/// A prefix in which the old version is installed.
struct Installed {
    dir: tempfile::TempDir,
    prefix: PathBuf,
}

impl Installed {
    fn new(flags: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("mote-upgrade").tempdir().expect("a folder");
        let prefix = dir.path().join("prefix");
        Release::new(OLD).install(dir.path(), &prefix, flags);
        Self { dir, prefix }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(mote_binary());
        command.args(["upgrade", "--prefix"]).arg(&self.prefix).args(words).stdin(Stdio::null());
        command
    }

    fn upgrade(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("it starts")
    }

    /// Returns the version that the installed program prints.
    fn version(&self) -> String {
        run(Command::new(self.prefix.join("bin/mote")).arg("version")).trim().to_owned()
    }

    /// The names, modes and contents of everything below the prefix.
    fn state(&self) -> Vec<(PathBuf, u32, Vec<u8>)> {
        let mut all = Vec::new();
        let mut folders = vec![self.prefix.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                let mode = path.symlink_metadata().expect("a file").permissions().mode();
                let text =
                    if path.is_dir() { Vec::new() } else { std::fs::read(&path).expect("a file") };
                if path.is_dir() {
                    folders.push(path.clone());
                }
                all.push((path, mode, text));
            }
        }
        all.sort();
        all
    }

    /// Checks that exactly this version is installed, and that nothing else is there except what an
    /// upgrade keeps.
    fn check(&self, version: &str, when: &str) {
        assert_eq!(self.version(), format!("mote {version}"), "{when}");
        let receipt = self.prefix.join("share/mote/receipt");
        let receipt = std::fs::read_to_string(receipt).expect("a receipt");
        assert!(receipt.starts_with(&format!("mote {version} complete\n")), "{when}: {receipt}");
        let former = self.prefix.join("share/mote/former");
        for (path, mode, text) in self.state() {
            let is_known = mode & 0o170_000 == 0o040_000
                || path.starts_with(&former)
                || path.ends_with("share/mote/receipt")
                || receipt.contains(&format!(
                    "file {} {}\n",
                    mote_tests::releases::sha256(&text),
                    path.display()
                ));
            assert!(is_known, "{when}: {} is left or changed\n{receipt}", path.display());
        }
        let upgrade = self.prefix.join("share/mote/upgrade");
        assert!(!upgrade.exists() && !upgrade.with_extension("new").exists(), "{when}");
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Checks that a command refuses with this code and text and with one line of advice, and that it
/// changed nothing.
fn check_refused(name: &str, installed: &Installed, expected: &str, run: impl FnOnce() -> Output) {
    let before = installed.state();
    let output = run();
    let said = text(&output);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{name}: it was not refused: {said}");
    assert!(said.contains(expected), "{name}: {expected:?} is not in {said}");
    let error = errors.find("error[M0").unwrap_or_else(|| panic!("{name}: {said}"));
    assert!(errors[error..].trim_end().lines().count() >= 2, "{name}: no advice: {said}");
    assert_eq!(installed.state(), before, "{name}: it changed something: {said}");
    assert_eq!(installed.version(), format!("mote {OLD}"), "{name}");
}

fn check_refused_by_script(script: &Path, flags: &[&str], expected: &str) {
    let output = Command::new(script).args(flags).output().expect("the script starts");
    assert!(!output.status.success(), "{}", text(&output));
    assert!(text(&output).contains(expected), "{}", text(&output));
}

/// Starts a server that answers each request with these bytes.
fn serve(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer);
        }
    });
    address
}

#[test]
fn an_upgrade_replaces_the_version_and_goes_back() {
    let installed = Installed::new(&[]);
    let new = Release::new(NEW).with("bin/mote-more", "#!/bin/sh\n");
    let archive = new.pack(installed.dir.path(), |_| {});
    let archive = archive.to_str().expect("UTF-8");
    let output = installed.upgrade(&["--check", "--unsigned", archive]);
    assert!(text(&output).contains("mote 0.2.0 can replace mote 0.1.0"), "{}", text(&output));
    installed.check(OLD, "after --check");
    let output = installed.upgrade(&["--yes", "--unsigned", archive]);
    assert!(output.status.success(), "{}", text(&output));
    installed.check(NEW, "after the upgrade");
    assert!(installed.prefix.join("bin/mote-more").exists());
    for version in [OLD, NEW, OLD] {
        let output = installed.upgrade(&["--rollback", "--yes"]);
        assert!(output.status.success(), "{}", text(&output));
        installed.check(version, "after --rollback");
        assert_eq!(installed.prefix.join("bin/mote-more").exists(), version == NEW);
    }
    let output = Command::new(mote_binary())
        .args(["upgrade", "--check", "--prefix"])
        .arg(&installed.prefix)
        .output()
        .expect("the binary starts");
    assert!(text(&output).contains("mote 0.1.0 is installed in"), "{}", text(&output));
    // Without a service here, the folders of a service belong to another installation.
    let uninstall = installed.prefix.join("share/mote/uninstall.sh");
    check_refused_by_script(&uninstall, &["--purge"], "are not its own");
    run(Command::new(uninstall).arg("--prefix").arg(&installed.prefix));
    assert!(!installed.prefix.exists(), "{:?}", installed.state());
}

/// Earlier releases had a program for each companion. The upgrade removes all but one, and going
/// back restores them.
#[test]
fn an_installation_of_ten_programs_becomes_one_of_one() {
    let dir = tempfile::Builder::new().prefix("mote-upgrade").tempdir().expect("a folder");
    let prefix = dir.path().join("prefix");
    let further = ["tools", "chain", "broker", "nats", "acme", "dtls", "upgrade", "pod", "cluster"];
    let further = further.map(|name| format!("bin/mote-{name}"));
    let old = further.iter().fold(Release::new(OLD), |release, path| release.with(path, path));
    old.install(dir.path(), &prefix, &[]);
    let installed = Installed { dir, prefix };
    let before = installed.state();
    let archive = Release::new(NEW).pack(installed.dir.path(), |_| {});
    let output = installed.upgrade(&["--yes", "--unsigned", archive.to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{}", text(&output));
    installed.check(NEW, "after the upgrade");
    let programs = std::fs::read_dir(installed.prefix.join("bin")).expect("a folder");
    let programs: Vec<_> = programs.map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(programs, ["mote"]);
    let output = installed.upgrade(&["--rollback", "--yes"]);
    assert!(output.status.success(), "{}", text(&output));
    installed.check(OLD, "after --rollback");
    let after = installed.state();
    for path in further.iter().map(|path| installed.prefix.join(path)) {
        let of = |state: &[(PathBuf, u32, Vec<u8>)]| {
            state.iter().find(|(one, ..)| *one == path).cloned().expect("it is there")
        };
        assert_eq!(of(&after), of(&before));
    }
}

#[test]
fn an_archive_comes_from_a_server() {
    let installed = Installed::new(&[]);
    let archive = Release::new(NEW).pack(installed.dir.path(), |_| {});
    let body = std::fs::read(archive).expect("the archive");
    let mut answer =
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    answer.extend(body);
    let address = serve(answer.leak());
    let url = format!("http://{address}/mote-0.2.0-x86_64-linux-gnu.tar.gz");
    let output = installed.upgrade(&["--yes", "--unsigned", &url]);
    assert!(output.status.success(), "{}", text(&output));
    installed.check(NEW, "after the download");
}

#[test]
fn bad_archives_are_refused() {
    let installed = Installed::new(&[]);
    let dir = installed.dir.path();
    let check = |name: &str, archive: &Path, expected: &str| {
        let archive = archive.to_str().expect("UTF-8").to_owned();
        check_refused(name, &installed, expected, || {
            installed.upgrade(&["--yes", "--unsigned", &archive])
        });
    };
    let packed = |release: Release| release.pack(dir, |_| {});
    let changed = |at: fn(usize) -> usize, cut: bool| {
        let archive = Release::new(NEW).pack(dir, |_| {});
        let mut bytes = std::fs::read(&archive).expect("the archive");
        let at = at(bytes.len());
        if cut {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 0x55;
        }
        std::fs::write(&archive, bytes).expect("the archive");
        archive
    };
    check(
        "damaged in the middle",
        &changed(|length| length / 2, false),
        "error[M0150]: the archive is damaged",
    );
    check("damaged check sum", &changed(|length| length - 6, false), "the archive is damaged");
    check("cut off", &changed(|length| length / 2, true), "the archive is damaged or cut off");
    check(
        "cut off at its end",
        &changed(|length| length - 4, true),
        "the archive is damaged or cut off",
    );
    check("empty", &changed(|_| 0, true), "not a .tar.gz file");
    let plain = dir.join("plain.tar.gz");
    std::fs::write(&plain, "PK\x03\x04 this is something else").expect("a file");
    check("not gzip", &plain, "the archive is not a .tar.gz file");
    let escape = |path| packed(Release::new(NEW).with_entry(path, b'0', ""));
    check("a path with ..", &escape("mote-0.2.0/../../etc/cron.d/x"), "is not a plain path");
    check("an absolute path", &escape("/etc/cron.d/x"), "is not a plain path");
    check("a path elsewhere", &escape("other/bin/mote"), "is outside of its folder");
    let link = |kind| packed(Release::new(NEW).with_entry("mote-0.2.0/bin/x", kind, "/etc/passwd"));
    check("a symbolic link", &link(b'2'), "is neither a file nor a folder");
    check("a hard link", &link(b'1'), "is neither a file nor a folder");
    check("a device", &link(b'3'), "is neither a file nor a folder");
    let twice = packed(Release::new(NEW).with_entry("mote-0.2.0/bin/mote", b'0', ""));
    check("a file that is there twice", &twice, "is there twice");
    let extra = packed(Release::new(NEW).with_entry("mote-0.2.0/bin/other", b'0', ""));
    check("a file without a sum", &extra, "bin/other is not in SHA256SUMS");
    let joined = |script: &str| {
        packed(Release::new(NEW));
        run(Command::new("sh").current_dir(dir).args(["-c", script]));
        dir.join("joined.tar.gz")
    };
    let more =
        "gunzip -c mote-0.2.0.tar.gz >joined.tar; echo more >>joined.tar; gzip -f joined.tar";
    check("data after the last entry", &joined(more), "has something after its last entry");
    let again = "cat mote-0.2.0.tar.gz mote-0.2.0.tar.gz >joined.tar.gz";
    check("a second archive behind it", &joined(again), "has something after its end");
    let after_sums = |change: fn(&mut Release)| Release::new(NEW).pack(dir, change);
    let other = |release: &mut Release| {
        *release = release.clone().with("bin/mote", "#!/bin/sh\nrm -r /x\n")
    };
    check("another program", &after_sums(other), "the file bin/mote does not match SHA256SUMS");
    let missing = |release: &mut Release| drop(release.files.remove("share/mote/uninstall.sh"));
    check("a missing file", &after_sums(missing), "the file share/mote/uninstall.sh is missing");
    let sums = |release: &mut Release| drop(release.files.remove("SHA256SUMS"));
    check("no sums", &after_sums(sums), "it has no SHA256SUMS");
    let line = |release: &mut Release| *release = release.clone().with("SHA256SUMS", "nonsense\n");
    check("sums that are none", &after_sums(line), "SHA256SUMS has the line");
    let no_version = packed(Release::new(NEW).with("requirements", "architecture=x86_64\n"));
    check("no version", &no_version, "requirements does not name the version");
    check("no file", &dir.join("none.tar.gz"), "error[M0102]");
    check("a folder", dir, "is not a file");
    let long = dir.join("long.tar.gz");
    std::fs::File::create(&long).and_then(|file| file.set_len(300 << 20)).expect("a file");
    check("a long file", &long, "is longer than 256 MiB");
}

#[test]
fn releases_that_do_not_fit_are_refused() {
    let installed = Installed::new(&[]);
    let check_how = |hows: &[&str], name: &str, release: Release, expected: &str| {
        let archive = release.pack(installed.dir.path(), |_| {});
        let archive = archive.to_str().expect("UTF-8").to_owned();
        for how in hows {
            check_refused(&format!("{name}, {how}"), &installed, expected, || {
                installed.upgrade(&[how, "--unsigned", &archive])
            });
        }
    };
    let check = |name: &str, release: Release, expected: &str| {
        check_how(&["--check", "--yes"], name, release, expected);
    };
    let needs = |machine: &str, kernel: &str, glibc: &str| {
        Release::new(NEW).with("requirements", &requirements(NEW, machine, kernel, glibc))
    };
    let machine = std::env::consts::ARCH;
    check(
        "another processor",
        needs("riscv64", "5.12", "2.17"),
        "error[M0152]: the archive is for riscv64",
    );
    check("a newer kernel", needs(machine, "99.1", "2.17"), "needs Linux 99.1 or newer");
    check("a newer C library", needs(machine, "5.12", "2.99"), "needs glibc 2.99 or newer");
    check("an older version", Release::new("0.0.9"), "is older than the installed 0.1.0");
    check("the same version", Release::new(OLD), "mote 0.1.0 is installed already");
    check(
        "a program that does not run",
        Release::new(NEW).with("bin/mote", "#!/nonexistent/sh\n"),
        "the new program does not run",
    );
    check(
        "a program of another version",
        Release::new(NEW).with("bin/mote", "#!/bin/sh\necho mote 7.7.7\n"),
        "says \"mote 7.7.7\" instead of its version 0.2.0",
    );
    // The program runs where it was unpacked, but not where it is installed.
    let dies =
        "#!/bin/sh\ncase $0 in */tree/*) echo mote 0.2.0 ;; *) echo broken >&2; exit 1 ;; esac\n";
    check_how(
        &["--yes"],
        "a version that does not start",
        Release::new(NEW).with("bin/mote", dies),
        "error[M0153]: mote 0.1.0 is installed again",
    );
    check_how(
        &["--yes"],
        "an installation that fails",
        Release::new(NEW).with("install.sh", "echo 'install: error: no' >&2; exit 1\n"),
        "install.sh of mote 0.2.0 failed: no",
    );
    let older = Release::new("0.0.9").pack(installed.dir.path(), |_| {});
    let older = older.to_str().expect("UTF-8");
    let output = installed.upgrade(&["--yes", "--unsigned", "--allow-downgrade", older]);
    assert!(output.status.success(), "{}", text(&output));
    installed.check("0.0.9", "after the downgrade");
}

#[test]
fn signatures_decide() {
    if Command::new("minisign").arg("-v").output().is_err() {
        return skip("signatures", "minisign is not installed");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (public, secret) = keys(folder.path(), "ours");
    let (other_public, other_secret) = keys(folder.path(), "other");
    let (public, other_public) =
        (public.to_str().expect("UTF-8"), other_public.to_str().expect("UTF-8"));
    let installed = Installed::new(&[]);
    let check = |name: &str, archive: &Path, words: &[&str], expected: &str| {
        let archive = archive.to_str().expect("UTF-8").to_owned();
        let words = [&["--yes", &archive], words].concat();
        check_refused(name, &installed, expected, || installed.upgrade(&words));
    };
    let signed = Release::new(NEW).signed(&secret).pack(folder.path(), |_| {});
    check("no key", &signed, &[], "error[M0151]: this installation has no trusted key");
    check("another key", &signed, &["--public-key", other_public], "another key made it");
    check(
        "no key in the file",
        &signed,
        &["--public-key", "/etc/hostname"],
        "is not a public key of minisign",
    );
    let words = ["--yes", "--public-key", public, signed.to_str().expect("UTF-8")];
    let output = installed.upgrade(&words);
    assert!(output.status.success(), "{}", text(&output));
    installed.check(NEW, "with a signature");

    // From now on, signatures are checked with the key. Going back keeps the key.
    let output = installed.upgrade(&["--rollback", "--yes"]);
    assert!(output.status.success(), "{}", text(&output));
    let kept = std::fs::read(installed.prefix.join("share/mote/public-key")).expect("the key");
    assert_eq!(kept, std::fs::read(public).expect("the key"));
    check("--unsigned with a key", &signed, &["--unsigned"], "so an unsigned archive is refused");
    check(
        "a second key",
        &signed,
        &["--public-key", other_public],
        "is not the key that this installation trusts",
    );
    let unsigned = Release::new(NEW).pack(folder.path(), |_| {});
    check("an unsigned archive", &unsigned, &[], "the archive is not signed");
    let theirs = Release::new(NEW).signed(&other_secret).pack(folder.path(), |_| {});
    check(
        "a signature of another key",
        &theirs,
        &[],
        "the signature of the archive is wrong: another key made it",
    );
    let sums = |release: &mut Release| {
        let more = release.clone().with("share/x", "more\n");
        *release = more;
        let (mode, text) = release.files["SHA256SUMS"].clone();
        let line = format!("{}  share/x\n", mote_tests::releases::sha256(b"more\n"));
        let text = [text, line.into_bytes()].concat();
        release.files.insert("SHA256SUMS".to_owned(), (mode, text));
    };
    let changed = Release::new(NEW).signed(&secret).pack(folder.path(), sums);
    check(
        "sums that were changed after they were signed",
        &changed,
        &[],
        "the signature of the archive is wrong",
    );
    let nonsense =
        |release: &mut Release| *release = release.clone().with("SHA256SUMS.minisig", "nonsense\n");
    let damaged = Release::new(NEW).signed(&secret).pack(folder.path(), nonsense);
    check("a damaged signature", &damaged, &[], "the signature of the archive is wrong");
    let signed = Release::new(NEW).signed(&secret).pack(folder.path(), |_| {});
    let output = installed.upgrade(&["--yes", signed.to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{}", text(&output));
    installed.check(NEW, "with the trusted key");
    // An upgrade without --public-key keeps the key. So does install.sh.
    assert!(installed.prefix.join("share/mote/public-key").exists());
}

#[test]
fn places_that_cannot_be_upgraded_are_refused() {
    let installed = Installed::new(&[]);
    let dir = installed.dir.path();
    let archive = Release::new(NEW).pack(dir, |_| {});
    let archive = archive.to_str().expect("UTF-8");
    let words = ["--yes", "--unsigned", archive];
    check_refused("no confirmation", &installed, "the upgrade must be confirmed", || {
        installed.upgrade(&["--unsigned", archive])
    });
    check_refused("no archive", &installed, "no interrupted upgrade is there", || {
        installed.upgrade(&["--yes"])
    });
    check_refused("nothing to go back to", &installed, "there is no former version", || {
        installed.upgrade(&["--yes", "--rollback"])
    });
    check_refused("not installed", &installed, "mote is not installed in /nonexistent", || {
        let mut command = Command::new(mote_binary());
        command
            .args(["upgrade", "--prefix", "/nonexistent", "--yes", "--unsigned", archive])
            .output()
            .expect("it starts")
    });
    // The package manager's database says that mote is installed.
    let fake = |name: &str, script: &str, expected: &str| {
        let bin = dir.join(format!("fake-{name}"));
        std::fs::create_dir(&bin).expect("a folder");
        std::fs::write(bin.join(name), script).expect("a file");
        std::fs::set_permissions(bin.join(name), std::fs::Permissions::from_mode(0o755))
            .expect("mode");
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        check_refused(name, &installed, expected, || {
            installed.command(&words).env("PATH", &path).output().expect("it starts")
        });
    };
    fake(
        "dpkg-query",
        "#!/bin/sh\nprintf installed\n",
        "sudo apt install ./mote_VERSION_ARCHITECTURE.deb",
    );
    fake("rpm", "#!/bin/sh\nexit 0\n", "sudo dnf install ./mote-VERSION-1.MACHINE.rpm");

    let url = |address: SocketAddr| format!("http://{address}/mote.tar.gz");
    let nobody = url(free_address());
    check_refused("an unreachable server", &installed, "cannot be downloaded", || {
        installed.upgrade(&["--yes", "--unsigned", &nobody])
    });
    for (name, answer, expected) in [
        (
            "404",
            &b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"[..],
            "the server answers 404",
        ),
        (
            "a long answer",
            b"HTTP/1.1 200 OK\r\ncontent-length: 400000000\r\n\r\n",
            "is longer than 256 MiB",
        ),
        (
            "a cut answer",
            b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n\x1f\x8b",
            "cannot be downloaded",
        ),
        ("no HTTP", b"220 mail ready\r\n\r\n", "cannot be downloaded"),
    ] {
        let url = url(serve(answer));
        check_refused(name, &installed, expected, || {
            installed.upgrade(&["--yes", "--unsigned", &url])
        });
    }

    if !is_root() {
        return skip("mounts", "mounts need root");
    }
    let prefix = installed.prefix.display();
    let upgrade = mote_binary();
    let upgrade =
        format!("{} upgrade --prefix {prefix} --yes --unsigned {archive}", upgrade.display());
    let in_namespace = |script: String| {
        Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().expect("unshare")
    };
    check_refused("a read-only prefix", &installed, "cannot be written to", || {
        in_namespace(format!(
            "mount --bind -o ro {prefix} {prefix} && mount -o remount,bind,ro {prefix} && {upgrade}"
        ))
    });
    check_refused("a prefix with noexec", &installed, "no program may run in", || {
        in_namespace(format!(
            "mount --bind {prefix} {prefix} && mount -o remount,bind,noexec {prefix} && {upgrade}"
        ))
    });
    check_refused("no space", &installed, "has 0 MiB free, and the upgrade needs", || {
        in_namespace(format!(
            "mkdir {prefix}.full && mount -t tmpfs -o size=1m tmpfs {prefix}.full && \
             cp -a {prefix}/. {prefix}.full && mount --move {prefix}.full {prefix} && \
             {{ dd if=/dev/zero of={prefix}/fill 2>/dev/null; {upgrade}; }}"
        ))
    });
}

/// Somebody who can change an installation must not be able to make root run or remove something.
#[test]
fn an_installation_that_others_can_change_is_refused() {
    if !is_root() {
        return skip("owners", "only root can give files to others");
    }
    let installed = Installed::new(&[]);
    let dir = installed.dir.path();
    let prefix = &installed.prefix;
    let archive = Release::new(NEW).pack(dir, |_| {});
    let words = ["--yes", "--unsigned", archive.to_str().expect("UTF-8")];
    let scripts = dir.join("mote-0.1.0");
    let check = |name: &str, upgrade: &str, script: &str, uninstall: &str| {
        check_refused(name, &installed, upgrade, || installed.upgrade(&words));
        for (flags, expected) in [(&["--no-service"][..], script), (&["--uninstall"], uninstall)] {
            if expected.is_empty() {
                continue;
            }
            let before = installed.state();
            let flags = [flags, &["--prefix", prefix.to_str().expect("UTF-8")]].concat();
            check_refused_by_script(&scripts.join("install.sh"), &flags, expected);
            assert_eq!(installed.state(), before, "{name}");
        }
    };
    let give = |path: &Path, to| std::os::unix::fs::chown(path, Some(to), None).expect("chown");
    let state = prefix.join("share/mote");
    let belongs = "belongs to the user with the number 65534";
    give(&state, 65_534);
    check("a folder of somebody else", belongs, belongs, belongs);
    give(&state, 0);
    give(&prefix.join("share"), 65_534);
    check("a folder above it", belongs, belongs, "");
    give(&prefix.join("share"), 0);
    let mode = |mode| {
        std::fs::set_permissions(prefix, std::fs::Permissions::from_mode(mode)).expect("a mode");
    };
    mode(0o777);
    check("everybody", "can be changed by everybody", "everybody may write to", "");
    // This group exists on every system, and its member `nobody` is an ordinary user.
    std::os::unix::fs::chown(prefix, None, Some(65_534)).expect("chown");
    mode(0o775);
    check("a group", "a member of its group", "a member of its group", "");
    // A group without members is harmless.
    std::os::unix::fs::chown(prefix, None, Some(4_000_123)).expect("chown");
    let mut install = Command::new(scripts.join("install.sh"));
    run(install.args(["--no-service", "--prefix"]).arg(prefix));
    std::os::unix::fs::chown(prefix, None, Some(0)).expect("chown");
    mode(0o755);
    let receipt = state.join("receipt");
    let honest = std::fs::read_to_string(&receipt).expect("the receipt");
    let victim = dir.join("victim");
    std::fs::write(&victim, "").expect("a file");
    let line = format!("file {} {}\n", sha256(b""), victim.display());
    std::fs::write(&receipt, format!("{honest}{line}")).expect("the receipt");
    let outside = "which is not below";
    check("a file elsewhere", outside, outside, outside);
    let line = format!("file {} {}/../victim\n", sha256(b""), prefix.display());
    std::fs::write(&receipt, format!("{honest}{line}")).expect("the receipt");
    check("a path with ..", "receipt is damaged", outside, "it names a path with ..");
    assert!(victim.exists());
    std::fs::write(&receipt, honest).expect("the receipt");

    // A link is in the place to which the installer first writes the new file.
    let link = prefix.join("bin/mote.mote-new");
    std::os::unix::fs::symlink(&victim, &link).expect("a link");
    let mut install = Command::new(scripts.join("install.sh"));
    run(install.args(["--no-service", "--prefix"]).arg(prefix));
    assert_eq!(std::fs::read(&victim).expect("the file"), b"");
    installed.check(OLD, "after a link in the way");
}

#[test]
fn two_upgrades_do_not_run_at_once() {
    let installed = Installed::new(&[]);
    let fifo = installed.dir.path().join("fifo");
    run(Command::new("mkfifo").arg(&fifo));
    let waits = format!(
        "#!/bin/sh\ncase $0 in */tree/*) read -r line <{} ;; esac\necho mote {NEW}\n",
        fifo.display()
    );
    let archive = Release::new(NEW).with("bin/mote", &waits).pack(installed.dir.path(), |_| {});
    let archive = archive.to_str().expect("UTF-8");
    let words = ["--yes", "--unsigned", archive];
    let mut first = installed
        .command(&words)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    // When this returns, the first upgrade has opened the file and holds the lock.
    let mut gate = std::fs::OpenOptions::new().write(true).open(&fifo).expect("the first upgrade");
    check_refused("a second upgrade", &installed, "another upgrade of", || {
        installed.upgrade(&words)
    });
    check_refused("a rollback meanwhile", &installed, "another upgrade of", || {
        installed.upgrade(&["--yes", "--rollback"])
    });
    gate.write_all(b"go on\n").expect("the first upgrade waits");
    drop(gate);
    let ended = wait_for("the first upgrade", || first.try_wait().expect("our child"));
    assert!(ended.success(), "{ended}");
    installed.check(NEW, "after the first upgrade");
}

/// Completes or undoes what a killed upgrade has left behind, and checks the result.
fn recover(installed: &Installed, archive: &str, goes_back: bool, when: &str) {
    // Whichever version is there must work.
    let version = installed.version();
    assert!([OLD, NEW].iter().any(|known| version == format!("mote {known}")), "{when}: {version}");
    let ended = |words: &[&str]| {
        // The script of the killed process may still be running and hold the lock.
        wait_for("the lock", || {
            let output = installed.upgrade(words);
            (!text(&output).contains("another upgrade of")).then_some(output)
        })
    };
    if goes_back {
        let output = ended(&["--yes", "--rollback"]);
        let said = text(&output);
        // If the upgrade had not begun, there is nothing to undo.
        let nothing = said.contains("there is no former version");
        assert!(output.status.success() || nothing, "{when}: {said}");
        installed.check(OLD, when);
    } else {
        let output = ended(&["--yes", "--unsigned", archive]);
        let said = text(&output);
        let is_done = said.contains("is installed already");
        assert!(output.status.success() || is_done, "{when}: {said}");
        installed.check(NEW, when);
    }
}

#[test]
fn a_killed_upgrade_is_completed_or_undone() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skip("kills", "strace is not installed");
    }
    // System calls by which the upgrade changes something, starts a program or waits for one.
    const CALLS: [&str; 11] = [
        "openat",
        "write",
        "linkat",
        "rename",
        "mkdir",
        "unlink",
        "unlinkat",
        "syncfs",
        "flock",
        "clone3,vfork,clone",
        "wait4,waitid",
    ];
    let installed = Installed::new(&[]);
    let clean = installed.dir.path().join("clean");
    run(Command::new("cp").arg("-a").arg(&installed.prefix).arg(&clean));
    let archive = Release::new(NEW).pack(installed.dir.path(), |_| {});
    let archive = archive.to_str().expect("UTF-8");
    let fresh = || {
        std::fs::remove_dir_all(&installed.prefix).expect("the prefix");
        run(Command::new("cp").arg("-a").arg(&clean).arg(&installed.prefix));
    };
    // Kills at each of these calls. The short form kills at the first call of each kind, and then
    // at every sixth.
    let step = if is_long() { 1 } else { 6 };
    let mut kills = 0;
    for kind in CALLS {
        for call in (1..).step_by(step) {
            let upgrade = installed.command(&["--yes", "--unsigned", archive]);
            let mut traced = Command::new("strace");
            traced
                .args(["-qq", "-o", "/dev/null", "-e"])
                .arg(format!("trace={kind}"))
                .arg("-e")
                .arg(format!("inject={kind}:signal=KILL:when={call}"))
                .arg(upgrade.get_program())
                .args(upgrade.get_args());
            let output = traced.output().expect("strace");
            if output.status.success() {
                installed.check(NEW, kind);
                fresh();
                break;
            }
            kills += 1;
            recover(&installed, archive, kills % 2 == 0, &format!("killed at {kind} {call}"));
            fresh();
        }
    }
    println!("{kills} kills at system calls");
    assert!(kills > 12, "{kills}");

    // Kills the whole upgrade, including its script, at moments of its run.
    let since = Instant::now();
    let output = installed.upgrade(&["--yes", "--unsigned", archive]);
    assert!(output.status.success(), "{}", text(&output));
    let took = since.elapsed();
    fresh();
    let moments = if is_long() { 60 } else { 12 };
    let mut killed = 0;
    for moment in 1..=moments {
        let mut upgrade = installed.command(&["--yes", "--unsigned", archive]);
        let upgrade = upgrade.process_group(0).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = upgrade.spawn().expect("it starts");
        let until = Instant::now() + took * moment / moments;
        while Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
        run(Command::new("sh").args(["-c", &format!("kill -9 -{} || true", child.id())]));
        let status = child.wait().expect("our child");
        killed += u32::from(!status.success());
        recover(
            &installed,
            archive,
            moment % 2 == 0 && !status.success(),
            &format!("killed at moment {moment}"),
        );
        fresh();
    }
    println!("{killed} kills within {} ms", took.as_millis());
    // The machine may now be faster than when the duration was measured.
    assert!(killed > 1, "{killed} of {moments}");
}
