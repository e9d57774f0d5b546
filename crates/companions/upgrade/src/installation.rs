//! The installation that is to be upgraded.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::failure::{Failure, UNFIT};
use crate::receipt::Receipt;
use crate::release::Release;

/// The number of bytes that `install.sh` writes in addition to the files of a release.
const SPARE_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) struct Installation {
    pub(crate) prefix: PathBuf,
    /// `PREFIX/share/mote`.
    pub(crate) state: PathBuf,
    pub(crate) receipt: Receipt,
}

impl Installation {
    /// Finds the installation that `install.sh` has made. Refuses one that a package manager has
    /// made.
    pub(crate) fn find(prefix: Option<&Path>) -> Result<Self, Failure> {
        refuse_packages()?;
        let own = std::env::current_exe().ok();
        let own = own.as_deref().and_then(|own| own.parent()?.parent()).map(Path::to_owned);
        let candidates = match prefix {
            Some(prefix) => vec![prefix.to_owned()],
            None => own.into_iter().chain([PathBuf::from("/usr/local")]).collect(),
        };
        let has_receipt = |prefix: &&PathBuf| receipt_of(prefix).exists();
        let Some(prefix) = candidates.iter().find(has_receipt) else {
            let places: Vec<_> =
                candidates.iter().map(|place| place.display().to_string()).collect();
            let text = format!("mote is not installed in {}", places.join(" or "));
            let hint =
                "name the --prefix of the installation, or install the archive with its install.sh";
            return Err(Failure::new(UNFIT, text, hint));
        };
        let prefix = std::path::absolute(prefix).map_err(|error| Failure::file(prefix, &error))?;
        refuse_others(&prefix)?;
        let receipt = Receipt::read(&receipt_of(&prefix))?;
        if let Some(path) = receipt.outside(&prefix) {
            let text = format!(
                "{} is damaged: it names {}, which is not below {}",
                receipt_of(&prefix).display(),
                path.display(),
                prefix.display()
            );
            return Err(Failure::new(UNFIT, text, "restore it, or install mote again"));
        }
        if let Some(keeper) = receipt.other_service() {
            let text =
                format!("the service mote is one of {keeper}, which mote upgrade cannot restart");
            let advice = "unpack the archive and run its install.sh, which restarts the service";
            return Err(Failure::new(UNFIT, text, advice));
        }
        Ok(Self { state: prefix.join("share/mote"), prefix, receipt })
    }

    pub(crate) fn receipt_path(&self) -> PathBuf {
        receipt_of(&self.prefix)
    }

    /// The key that `install.sh --public-key` has stored.
    pub(crate) fn trusted_key(&self) -> PathBuf {
        self.state.join("public-key")
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.prefix.join("bin/mote")
    }

    /// Checks that this user may change the installation.
    pub(crate) fn check_writable(&self) -> Result<(), Failure> {
        if self.receipt.has_service() && !rustix::process::geteuid().is_root() {
            let text = "mote was installed with a service, which only root can upgrade";
            return Err(Failure::new(UNFIT, text, "run the same command with sudo"));
        }
        // The test creates a file, because a file system can be read-only even though the
        // permissions allow writing. The file's name is always the same, so that the next command
        // removes a file that a killed command has left.
        for folder in [&self.state, &self.prefix.join("bin")] {
            let probe = folder.join(".mote-upgrade-probe");
            let _ = std::fs::remove_file(&probe);
            // The file must be new, so that a link made by someone else is not followed.
            let made = std::fs::OpenOptions::new().write(true).create_new(true).open(&probe);
            made.and_then(|_| std::fs::remove_file(&probe)).map_err(|error| {
                let text = format!("{} cannot be written to: {error}", folder.display());
                let hint = "run the same command with sudo, or make the file system writable";
                Failure::new(UNFIT, text, hint)
            })?;
        }
        Ok(())
    }

    /// Checks that there is enough space. Until the new version is ready, it takes space twice:
    /// unpacked and installed.
    pub(crate) fn check_space(&self, release: &Release) -> Result<(), Failure> {
        let needed = 2 * release.unpacked_bytes + SPARE_BYTES;
        let found = rustix::fs::statvfs(&self.state)
            .map_err(|error| Failure::file(&self.state, &error.into()))?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        if free < needed {
            let text = format!(
                "{} has {} MiB free, and the upgrade needs {} MiB",
                self.prefix.display(),
                free >> 20,
                needed.div_ceil(1 << 20)
            );
            return Err(Failure::new(UNFIT, text, "free some space there"));
        }
        Ok(())
    }

    /// Takes the lock that keeps other upgrades out until it is dropped. The kernel releases the
    /// lock when this process and the script that it runs have ended, whatever the reason.
    pub(crate) fn lock(&self) -> Result<OwnedFd, Failure> {
        let failed = |error: rustix::io::Errno| Failure::file(&self.state, &error.into());
        // Opened without close-on-exec, because install.sh must hold the lock, too: it may outlive
        // this process.
        let folder =
            rustix::fs::open(&self.state, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
                .map_err(failed)?;
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(folder),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let text = format!("another upgrade of {} is running", self.prefix.display());
                Err(Failure::new(UNFIT, text, "wait until it has ended, and look at mote version"))
            }
            Err(error) => Err(failed(error)),
        }
    }
}

fn receipt_of(prefix: &Path) -> PathBuf {
    prefix.join("share/mote/receipt")
}

/// Refuses an installation that another user could change, because this command runs its programs.
fn refuse_others(prefix: &Path) -> Result<(), Failure> {
    let state = prefix.join("share/mote");
    let own = rustix::process::geteuid().as_raw();
    let folders = [prefix.to_owned(), prefix.join("bin"), prefix.join("share"), state.clone()];
    let inner = ["receipt", "public-key", "upgrade", "upgrade.new", "former"];
    for path in folders.into_iter().chain(inner.map(|name| state.join(name))) {
        let Ok(meta) = std::fs::metadata(&path) else { continue };
        let why = if ![0, own].contains(&meta.uid()) {
            format!("belongs to the user with the number {}", meta.uid())
        } else if meta.mode() & 0o1002 == 0o0002 {
            "can be changed by everybody".to_owned()
        } else if let Some(member) = other_member(&meta, own) {
            format!("can be changed by {member}, a member of its group")
        } else {
            continue;
        };
        let text = format!("{} {why}, who could change what is installed", path.display());
        let hint = "run the same command as the user to whom the installation belongs";
        return Err(Failure::new(UNFIT, text, hint));
    }
    Ok(())
}

/// Finds a user other than root and `own` who may write to the file as a member of its group.
/// Debian gives /usr/local to the group staff, which usually has no members.
fn other_member(meta: &std::fs::Metadata, own: u32) -> Option<String> {
    if meta.mode() & 0o1020 != 0o0020 || meta.gid() == 0 {
        return None;
    }
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let users = read("/etc/passwd");
    let groups = read("/etc/group");
    member_of(meta.gid(), own, &users, &groups)
}

/// Finds such a member in the texts of /etc/passwd and /etc/group.
fn member_of(group: u32, own: u32, users: &str, groups: &str) -> Option<String> {
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let is = |field: Option<&String>, number: u32| {
        field.and_then(|field| field.parse::<u32>().ok()) == Some(number)
    };
    let is_trusted = |user: &[String]| is(user.get(2), 0) || is(user.get(2), own);
    let users: Vec<Vec<String>> = users.lines().map(fields).collect();
    let primary = users.iter().find(|user| is(user.get(3), group) && !is_trusted(user));
    if let Some(user) = primary {
        return user.first().cloned();
    }
    let line = groups.lines().map(fields).find(|line| is(line.get(2), group))?;
    let members = line.get(3)?.split(',').filter(|name| !name.is_empty());
    let trusted = |name: &&str| {
        users.iter().any(|user| user.first().is_some_and(|own| own == name) && is_trusted(user))
    };
    members.filter(|name| !trusted(name)).map(str::to_owned).next()
}

/// Refuses an installation by a package manager, because the package manager must replace it.
fn refuse_packages() -> Result<(), Failure> {
    let refusal = |kind: &str, command: &str| {
        let text =
            format!("mote is installed by the {kind} mote, which this command must not change");
        Err(Failure::new(UNFIT, text, format!("install the newer package: {command}")))
    };
    let dpkg = Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status}", "mote"])
        .output();
    if dpkg.is_ok_and(|output| output.stdout == b"installed") {
        return refusal("Debian package", "sudo apt install ./mote_VERSION_ARCHITECTURE.deb");
    }
    let rpm = Command::new("rpm").args(["--query", "--quiet", "mote"]).output();
    if rpm.is_ok_and(|output| output.status.success()) {
        return refusal("RPM package", "sudo dnf install ./mote-VERSION-1.MACHINE.rpm");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_counts_by_its_members() {
        let users =
            "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/:/bin/sh\nbob:x:1001:50::/:/bin/sh\n";
        let groups = "root:x:0:\nstaff:x:50:\nann:x:1000:\nwheel:x:7:root,ann\nops:x:8:bob,ann\n";
        let of = |group, own| member_of(group, own, users, groups);
        assert_eq!(of(50, 0).as_deref(), Some("bob"), "it is bob's own group");
        assert_eq!(of(1000, 1000), None, "the group of the user who runs the command");
        assert_eq!(of(7, 0).as_deref(), Some("ann"));
        assert_eq!(of(7, 1000), None);
        assert_eq!(of(8, 1000).as_deref(), Some("bob"));
        assert_eq!(of(9, 0), None, "a group that nothing names");
    }
}
