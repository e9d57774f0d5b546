//! An upgrade that has begun: what it installs, what it replaces, and how far it has got.
//!
//! The folder `PREFIX/share/mote/upgrade` appears by one rename, with everything that is needed to
//! complete the upgrade and to go back. From then on, the upgrade is either completed or undone, by
//! this process or by the next command. The folder `upgrade.new` is only a draft and is removed
//! when it is found.
//!
//! ```text
//! upgrade/plan      the versions, and whether the service is restarted
//! upgrade/tree      the unpacked release, or
//! upgrade/target    the kept version that is to come back
//! upgrade/former    the version that is replaced, with its receipt
//! upgrade/back      the upgrade is being undone
//! upgrade/done      the new version is ready
//! former            the version that the last upgrade has replaced
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use crate::data;
use crate::failure::{FILE, Failure, UNFIT};
use crate::installation::Installation;
use crate::receipt::Receipt;
use crate::service;

/// The folders of the unpacked release, of the kept version that is to be restored, and of the
/// version that is replaced.
pub(crate) const TREE: &str = "tree";
const TARGET: &str = "target";
const FORMER: &str = "former";
/// The prefix of the name of a folder in which `--check` tries a release.
pub(crate) const CHECK: &str = ".mote-check.";
/// The name of the key that `install.sh` stores.
const KEY: &str = "key";

#[derive(Debug)]
pub(crate) struct Transaction {
    /// `PREFIX/share/mote/upgrade`.
    folder: PathBuf,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) restarts: bool,
    /// The socket units that were active when the upgrade began.
    pub(crate) sockets: Vec<String>,
}

impl Transaction {
    /// Returns the upgrade that was interrupted, if there is one.
    pub(crate) fn pending(installation: &Installation) -> Result<Option<Self>, Failure> {
        let folder = installation.state.join("upgrade");
        if !folder.exists() {
            return Ok(None);
        }
        let path = folder.join("plan");
        let text = std::fs::read_to_string(&path).map_err(|error| Failure::file(&path, &error))?;
        let value = |key: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            found.unwrap_or_default().to_owned()
        };
        let restarts = value("restarts") == "true";
        let sockets = value("sockets").split_whitespace().map(str::to_owned).collect();
        Ok(Some(Self { folder, from: value("from"), to: value("to"), restarts, sockets }))
    }

    /// Makes the folder in which an upgrade is prepared. Anything that an earlier upgrade left in
    /// it is removed.
    pub(crate) fn prepare(installation: &Installation) -> Result<PathBuf, Failure> {
        let new = new_folder(installation);
        remove(&new)?;
        make(&new)?;
        Ok(new)
    }

    /// Removes what was prepared, and what a killed check has unpacked.
    pub(crate) fn discard(installation: &Installation) -> Result<(), Failure> {
        for name in list(&installation.state)? {
            if name.to_string_lossy().starts_with(CHECK) {
                remove(&installation.state.join(name))?;
            }
        }
        remove(&new_folder(installation))
    }

    /// Keeps the installed version and begins the prepared upgrade.
    pub(crate) fn begin(
        installation: &Installation,
        to: &str,
        restarts: bool,
        key: Option<&Path>,
    ) -> Result<Self, Failure> {
        let new = new_folder(installation);
        keep(installation, &new.join(FORMER))?;
        if let Some(key) = key {
            link_or_copy(key, &new.join(KEY))?;
        }
        let from = installation.receipt.version.clone();
        let sockets = if restarts { service::active_sockets() } else { Vec::new() };
        let plan =
            format!("from={from}\nto={to}\nrestarts={restarts}\nsockets={}\n", sockets.join(" "));
        let path = new.join("plan");
        std::fs::write(&path, plan).map_err(|error| Failure::file(&path, &error))?;
        sync(installation)?;
        let folder = installation.state.join("upgrade");
        std::fs::rename(&new, &folder).map_err(|error| Failure::file(&folder, &error))?;
        let sockets = sockets.into_iter().map(str::to_owned).collect();
        Ok(Self { folder, from, to: to.to_owned(), restarts, sockets })
    }

    /// When the last completed upgrade began. That upgrade has kept the former version.
    pub(crate) fn kept_at(installation: &Installation) -> Result<SystemTime, Failure> {
        data::written(&installation.state.join(FORMER).join("receipt"))
    }

    /// Prepares the return to the version that the last upgrade has replaced. Returns that version.
    pub(crate) fn prepare_back(installation: &Installation) -> Result<String, Failure> {
        let former = installation.state.join(FORMER);
        let receipt = former.join("receipt");
        if !receipt.exists() {
            let text = "there is no former version: no upgrade has been completed here";
            let hint = "install the wanted release: mote upgrade --allow-downgrade ARCHIVE";
            return Err(Failure::new(UNFIT, text, hint));
        }
        let target = Self::prepare(installation)?.join(TARGET);
        make(&target)?;
        for entry in list(&former)? {
            link_or_copy(&former.join(&entry), &target.join(&entry))?;
        }
        Ok(Receipt::read(&receipt)?.version)
    }

    pub(crate) fn began(&self) -> Result<SystemTime, Failure> {
        data::written(&self.folder.join("plan"))
    }

    pub(crate) fn is_done(&self) -> bool {
        self.folder.join("done").exists()
    }

    pub(crate) fn is_going_back(&self) -> bool {
        self.folder.join("back").exists()
    }

    /// Installs the new files. Can be repeated.
    pub(crate) fn apply(&self, installation: &Installation) -> Result<(), Failure> {
        let tree = self.folder.join(TREE);
        if tree.exists() {
            self.run_install(installation, &tree)?;
        } else {
            restore(installation, &self.folder.join(TARGET))?;
        }
        sync(installation)
    }

    fn run_install(&self, installation: &Installation, tree: &Path) -> Result<(), Failure> {
        let mut command = Command::new("sh");
        command
            .arg(tree.join("install.sh"))
            .arg("--upgrade")
            .arg("--prefix")
            .arg(&installation.prefix);
        if !installation.receipt.has_service() {
            command.arg("--no-service");
        }
        let key = self.folder.join(KEY);
        if key.exists() {
            command.arg("--public-key").arg(key);
        }
        let output = command.output();
        let output = output.map_err(|error| Failure::file("sh", &error))?;
        if output.status.success() {
            return Ok(());
        }
        // Show the script's error, or its last line. The script's advice is for an installation,
        // which is undone here, so the advice is left out.
        let said = String::from_utf8_lossy(&output.stderr);
        let error = said.lines().find_map(|line| line.strip_prefix("install: error: "));
        let said = error.or_else(|| said.lines().last()).unwrap_or_default();
        let text = format!("install.sh of mote {} failed: {said}", self.to);
        Err(Failure::new(UNFIT, text, "correct what it names, and repeat the upgrade"))
    }

    /// Marks the upgrade as being undone, and restores the former files. From now on, the next
    /// command undoes the upgrade.
    pub(crate) fn go_back(&self, installation: &Installation) -> Result<(), Failure> {
        mark(&self.folder.join("back"))?;
        restore(installation, &self.folder.join(FORMER))?;
        sync(installation)
    }

    /// Marks the new version as ready. From now on, the next command completes the upgrade.
    pub(crate) fn set_done(&self, installation: &Installation) -> Result<(), Failure> {
        mark(&self.folder.join("done"))?;
        sync(installation)
    }

    /// Keeps the replaced version as the former version, and ends the upgrade.
    pub(crate) fn finish(&self, installation: &Installation) -> Result<(), Failure> {
        let replaced = self.folder.join(FORMER);
        let former = installation.state.join(FORMER);
        if replaced.exists() {
            remove(&former)?;
            std::fs::rename(&replaced, &former).map_err(|error| Failure::file(&former, &error))?;
        }
        self.end(installation)
    }

    /// Ends the upgrade without keeping any of its files.
    pub(crate) fn end(&self, installation: &Installation) -> Result<(), Failure> {
        // Removing a folder takes several steps. After the rename, an interruption leaves only a
        // folder that is no longer needed.
        let new = new_folder(installation);
        remove(&new)?;
        std::fs::rename(&self.folder, &new).map_err(|error| Failure::file(&self.folder, &error))?;
        remove(&new)
    }
}

fn new_folder(installation: &Installation) -> PathBuf {
    installation.state.join("upgrade.new")
}

/// Keeps the installed files in a folder, as hard links if possible. `install.sh` replaces files by
/// a rename, so a kept file does not change.
fn keep(installation: &Installation, into: &Path) -> Result<(), Failure> {
    make(into)?;
    for (number, (_, path)) in installation.receipt.files().enumerate() {
        if path.is_file() {
            link_or_copy(path, &into.join(number.to_string()))?;
        }
    }
    installation.receipt.write(&into.join("receipt"), None)
}

/// Restores the files kept in a folder, and removes the files that only the present version has.
/// Until this is complete, the receipt names the files of both versions.
fn restore(installation: &Installation, from: &Path) -> Result<(), Failure> {
    let receipt_path = installation.receipt_path();
    let mut kept = Receipt::read(&from.join("receipt"))?;
    let present = Receipt::read(&receipt_path)?;
    let files: Vec<PathBuf> = kept.files().map(|(_, path)| path.to_owned()).collect();
    // A key that was trusted after the files were kept stays trusted.
    kept.adopt(&installation.trusted_key(), &present);
    kept.write(&receipt_path, Some(&present))?;
    for (number, path) in files.iter().enumerate() {
        let source = from.join(number.to_string());
        if !source.exists() {
            continue;
        }
        if let Some(folder) = path.parent() {
            make_all(folder)?;
        }
        let new = PathBuf::from(format!("{}.mote-new", path.display()));
        let _ = std::fs::remove_file(&new);
        link_or_copy(&source, &new)?;
        std::fs::rename(&new, path).map_err(|error| Failure::file(path, &error))?;
        // If both names are already links to the same file, the rename does nothing and leaves this
        // name.
        let _ = std::fs::remove_file(&new);
    }
    for (_, path) in present.files() {
        let is_kept = kept.files().any(|(_, other)| other == path);
        let _ = std::fs::remove_file(format!("{}.mote-new", path.display()));
        if !is_kept && path.is_file() {
            std::fs::remove_file(path).map_err(|error| Failure::file(path, &error))?;
        }
    }
    remove_probes(&present);
    present.remove_folders_unless(&kept);
    kept.write(&receipt_path, None)
}

/// Removes the files with which a killed `install.sh` has tested whether it can write. The test
/// files are in the folders of the installed files, and in the prefix above these folders.
fn remove_probes(receipt: &Receipt) {
    let of_files = receipt.files().filter_map(|(_, path)| path.parent());
    let folders: BTreeSet<&Path> =
        of_files.flat_map(|folder| [Some(folder), folder.parent()]).flatten().collect();
    for entry in folders.into_iter().filter_map(|folder| folder.read_dir().ok()).flatten() {
        let Ok(entry) = entry else { continue };
        let is_probe = entry.file_name().to_string_lossy().starts_with(".mote-install.");
        if is_probe && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn mark(path: &Path) -> Result<(), Failure> {
    std::fs::write(path, "").map_err(|error| Failure::file(path, &error))
}

fn make(folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir(folder).map_err(|error| Failure::file(folder, &error))
}

fn make_all(folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(|error| Failure::file(folder, &error))
}

fn remove(folder: &Path) -> Result<(), Failure> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::file(folder, &error))
        }
        _ => Ok(()),
    }
}

fn list(folder: &Path) -> Result<Vec<std::ffi::OsString>, Failure> {
    let read = || std::fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect();
    let names: std::io::Result<Vec<_>> = read();
    names.map_err(|error| Failure::file(folder, &error))
}

/// Links a file under another name, or copies it if it cannot be linked.
fn link_or_copy(from: &Path, to: &Path) -> Result<(), Failure> {
    if std::fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    let copied = std::fs::copy(from, to).map(|_| ());
    copied.map_err(|error| {
        let text = format!("{} cannot be copied to {}: {error}", from.display(), to.display());
        Failure::new(FILE, text, "free some space, and repeat the command")
    })
}

/// Writes everything to the disk, so that the order of the steps survives a power cut.
fn sync(installation: &Installation) -> Result<(), Failure> {
    let path = &installation.state;
    let folder = std::fs::File::open(path).map_err(|error| Failure::file(path, &error))?;
    rustix::fs::syncfs(&folder).map_err(|error| Failure::file(path, &error.into()))
}
