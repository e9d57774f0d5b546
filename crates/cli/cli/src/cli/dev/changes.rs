//! Notices changes of the files that a deploy packs.

use std::collections::HashMap;
use std::ffi::{CStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mote_store::pack::Rules;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::net::unix::pipe::Receiver;

/// A change counts once nothing else has changed for this long, because an editor writes a file in
/// several steps.
const QUIET: Duration = Duration::from_millis(10);
/// The longest time for which further changes can delay the first one.
const LONGEST: Duration = Duration::from_millis(50);
/// The most folders that are watched. A project with more is probably a mistake, such as the home
/// folder.
const FOLDERS_MAX: usize = 8_192;
/// Bytes that one read of events may return.
const EVENT_BYTES: usize = 16 << 10;
/// The file with variables, which is not packed.
pub(super) const ENV_FILE: &str = ".env";
const RULE_FILES: [&str; 2] = [".moteignore", ".gitignore"];

/// The changes of a project.
pub(super) struct Changes {
    /// The descriptor of inotify, which is read like a pipe.
    inotify: Receiver,
    /// The folder of the project.
    root: PathBuf,
    /// The only file of the project, if it is one file.
    only: Option<OsString>,
    rules: Option<Rules>,
    /// The watched folders, as paths below `root`.
    folders: HashMap<i32, String>,
    /// The watch of the folder above, which reports when `root` is gone. The watch of `root` itself
    /// may not report it, because a removed folder continues to exist while it is a process's
    /// working directory.
    above: Option<i32>,
    /// Whether `root` was removed or moved away. The watch then waits until it exists again.
    is_gone: bool,
}

impl Changes {
    /// Watches a folder, or a file. Must be called within a runtime.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let path = std::fs::canonicalize(path)?;
        let (root, only) = match (path.is_dir(), path.parent(), path.file_name()) {
            (false, Some(folder), Some(name)) => (folder.to_owned(), Some(name.to_owned())),
            _ => (path, None),
        };
        Self::watch(root, only)
    }

    fn watch(root: PathBuf, only: Option<OsString>) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        // A mistake in the rules is reported by the deploy. Until the mistake is corrected, every
        // file counts.
        let rules = Rules::of(&root).ok();
        let inotify = Receiver::from_owned_fd_unchecked(inotify)?;
        let folders = HashMap::new();
        let flags = WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::ONLYDIR;
        let above = root.parent();
        let above = above.and_then(|above| inotify::add_watch(&inotify, above, flags).ok());
        let mut all = Self { inotify, root, only, rules, folders, above, is_gone: false };
        all.add("")?;
        Ok(all)
    }

    /// Watches a folder and the folders in it.
    fn add(&mut self, first: &str) -> io::Result<()> {
        let mut waiting = vec![first.to_owned()];
        while let Some(below) = waiting.pop() {
            if self.folders.len() >= FOLDERS_MAX {
                let text = format!("more than {FOLDERS_MAX} folders; exclude some in .moteignore");
                return Err(io::Error::other(text));
            }
            let folder = self.root.join(&below);
            let flags = WatchFlags::CLOSE_WRITE
                | WatchFlags::CREATE
                | WatchFlags::DELETE
                | WatchFlags::MOVED_FROM
                | WatchFlags::MOVED_TO
                | WatchFlags::ATTRIB
                | WatchFlags::ONLYDIR;
            match inotify::add_watch(&self.inotify, &folder, flags) {
                Ok(watch) => drop(self.folders.insert(watch, below.clone())),
                // The folder is gone again.
                Err(Errno::NOENT | Errno::NOTDIR) if !below.is_empty() => continue,
                Err(Errno::NOSPC) => {
                    let text = "the system watches too many folders: raise \
                                fs.inotify.max_user_watches with sysctl";
                    return Err(io::Error::other(text));
                }
                Err(error) => return Err(error.into()),
            }
            if self.only.is_some() {
                return Ok(());
            }
            let Ok(entries) = std::fs::read_dir(&folder) else { continue };
            for entry in entries.flatten() {
                let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
                let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
                let path = joined(&below, &name);
                if is_dir && self.counts(&path, &name, true) {
                    waiting.push(path);
                }
            }
        }
        Ok(())
    }

    /// Whether the entry at `path` is a part of the project.
    fn counts(&self, path: &str, name: &str, is_dir: bool) -> bool {
        if let Some(only) = &self.only {
            return only == name || name == ENV_FILE;
        }
        let is_setting = !is_dir && (name == ENV_FILE || RULE_FILES.contains(&name));
        let is_packed = self.rules.as_ref().is_none_or(|rules| rules.packs(path, is_dir));
        is_setting || (is_packed && name != "node_modules")
    }

    /// Waits until files have changed.
    pub(super) async fn next(&mut self) -> io::Result<()> {
        while !self.read().await? {}
        let first = Instant::now();
        while let Ok(more) = tokio::time::timeout(QUIET, self.read()).await {
            more?;
            if first.elapsed() >= LONGEST {
                break;
            }
        }
        Ok(())
    }

    /// Waits until the project's folder exists again, and watches it. Until then, watches the
    /// nearest existing folder above.
    async fn come_back(&mut self) -> io::Result<()> {
        let flags = WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        loop {
            let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            let watch = |above: &&Path| inotify::add_watch(&inotify, *above, flags).is_ok();
            let above = self.root.ancestors().skip(1).find(watch);
            above.ok_or(io::ErrorKind::NotFound)?;
            match Self::watch(self.root.clone(), self.only.clone()) {
                Ok(again) => {
                    *self = again;
                    return Ok(());
                }
                Err(error) if is_absence(&error) => {}
                Err(error) => return Err(error),
            }
            Receiver::from_owned_fd_unchecked(inotify)?.readable().await?;
        }
    }

    /// Reads the events that have arrived. Returns whether one of them counts.
    async fn read(&mut self) -> io::Result<bool> {
        if self.is_gone {
            self.come_back().await?;
            return Ok(true);
        }
        let mut has_changed = false;
        let mut is_stale = false;
        let mut new = Vec::new();
        {
            self.inotify.readable().await?;
            let mut buffer = [MaybeUninit::uninit(); EVENT_BYTES];
            let mut reader = Reader::new(&self.inotify, &mut buffer);
            loop {
                let event = match reader.next() {
                    Ok(event) => event,
                    Err(Errno::WOULDBLOCK) => break,
                    Err(Errno::INTR) => continue,
                    Err(error) => return Err(error.into()),
                };
                let flags = event.events();
                is_stale |= flags.contains(ReadFlags::QUEUE_OVERFLOW);
                if flags.contains(ReadFlags::IGNORED) {
                    self.folders.remove(&event.wd());
                    continue;
                }
                if Some(event.wd()) == self.above {
                    let name = event.file_name().map(CStr::to_bytes);
                    self.is_gone |= name == self.root.file_name().map(OsStrExt::as_bytes);
                    continue;
                }
                let name = event.file_name().and_then(|name| name.to_str().ok());
                let (Some(below), Some(name)) = (self.folders.get(&event.wd()), name) else {
                    continue;
                };
                let path = joined(below, name);
                let is_dir = flags.contains(ReadFlags::ISDIR);
                if !self.counts(&path, name, is_dir) {
                    continue;
                }
                has_changed = true;
                is_stale |= below.is_empty() && RULE_FILES.contains(&name);
                // The contents of a folder that was moved away no longer belong to the project.
                is_stale |= is_dir && flags.contains(ReadFlags::MOVED_FROM);
                if is_dir && flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
                    new.push(path);
                }
            }
            // Tells the runtime that no event is left. An event that has arrived meanwhile does not
            // fit into one byte, so it stays.
            let _ = self.inotify.try_read(&mut [0]);
        }
        if self.is_gone {
            return Ok(true);
        }
        if is_stale {
            match Self::watch(self.root.clone(), self.only.clone()) {
                Ok(again) => *self = again,
                Err(error) if is_absence(&error) => self.is_gone = true,
                Err(error) => return Err(error),
            }
            return Ok(true);
        }
        for folder in new {
            self.add(&folder)?;
        }
        Ok(has_changed)
    }
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn joined(below: &str, name: &str) -> String {
    if below.is_empty() { name.to_owned() } else { format!("{below}/{name}") }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Whether a change is noticed. After a change that must be ignored, the test makes one that
    /// must be noticed, so it need not wait for a timeout.
    async fn notices(changes: &mut Changes, marker: &Path, change: impl FnOnce()) -> bool {
        change();
        let noticed = changes.read().await.expect("readable");
        if !noticed {
            fs::write(marker, "x").expect("written");
            while !changes.read().await.expect("readable") {}
        }
        // All events of this change are read before the next change.
        while tokio::time::timeout(QUIET, changes.read()).await.is_ok() {}
        noticed
    }

    #[tokio::test]
    async fn only_files_that_are_packed_count() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |path: &str| folder.path().join(path);
        fs::create_dir_all(at("lib/deep")).expect("made");
        fs::create_dir_all(at("node_modules/x")).expect("made");
        fs::write(at(".gitignore"), "*.log\n/out\n").expect("written");
        let marker = at("marker.py");
        let mut changes = Changes::of(folder.path()).expect("watched");
        for (path, counts) in [
            ("app.py", true),
            ("lib/deep/a.py", true),
            (".env", true),
            ("note.log", false),
            ("x.pyc", false),
            (".moteignore", true),
        ] {
            let noticed =
                notices(&mut changes, &marker, || fs::write(at(path), "1").expect("written"));
            assert_eq!(noticed.await, counts, "{path}");
        }
    }

    #[tokio::test]
    async fn new_folders_are_watched_and_new_rules_apply() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |path: &str| folder.path().join(path);
        let mut changes = Changes::of(folder.path()).expect("watched");
        fs::create_dir_all(at("new/deep")).expect("made");
        changes.next().await.expect("noticed");
        fs::write(at("new/deep/a.py"), "1").expect("written");
        changes.next().await.expect("noticed");
        fs::write(at(".moteignore"), "new\n").expect("written");
        changes.next().await.expect("noticed");
        let marker = at("marker.py");
        let write = || fs::write(at("new/deep/a.py"), "2").expect("written");
        fs::write(&marker, "1").expect("written");
        changes.next().await.expect("noticed");
        write();
        fs::write(&marker, "2").expect("written");
        changes.next().await.expect("noticed");
        assert!(!changes.folders.values().any(|folder| folder.starts_with("new")));
    }

    #[tokio::test]
    async fn a_folder_that_was_deleted_and_made_again_is_watched() {
        let above = tempfile::tempdir().expect("a folder");
        let folder = above.path().join("deep/project");
        let at = |path: &str| folder.join(path);
        let make = || {
            fs::create_dir_all(at("lib")).expect("made");
            fs::write(at("lib/a.py"), "1").expect("written");
        };
        make();
        let marker = at("marker.py");
        let mut changes = Changes::of(&folder).expect("watched");
        let new = || {
            fs::create_dir_all(&folder).expect("made");
            fs::rename(&folder, above.path().join("old")).expect("moved");
            make();
        };
        let ways: [&dyn Fn(); 4] = [
            // A folder in the project.
            &|| {
                fs::remove_dir_all(at("lib")).expect("removed");
                make();
            },
            // Makes the project again, once alone and once together with the folder above.
            &|| {
                fs::remove_dir_all(&folder).expect("removed");
                make();
            },
            &|| {
                fs::remove_dir_all(above.path().join("deep")).expect("removed");
                make();
            },
            &new,
        ];
        for (number, way) in ways.into_iter().enumerate() {
            assert!(notices(&mut changes, &marker, way).await, "{number}");
            let write = || fs::write(at("lib/a.py"), format!("{number}")).expect("written");
            assert!(notices(&mut changes, &marker, write).await, "{number}");
        }
        // The folder comes back later.
        fs::remove_dir_all(above.path().join("deep")).expect("removed");
        while tokio::time::timeout(QUIET, changes.read()).await.is_ok() {}
        assert!(notices(&mut changes, &marker, make).await);
        let write = || fs::write(at("lib/a.py"), "5").expect("written");
        assert!(notices(&mut changes, &marker, write).await);
    }

    #[tokio::test]
    async fn of_one_file_only_that_file_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |path: &str| folder.path().join(path);
        fs::write(at("a.py"), "1").expect("written");
        let mut changes = Changes::of(&at("a.py")).expect("watched");
        let marker = at(".env");
        for (path, counts) in [("a.py", true), ("b.py", false)] {
            let noticed =
                notices(&mut changes, &marker, || fs::write(at(path), "2").expect("written"));
            assert_eq!(noticed.await, counts, "{path}");
        }
    }
}
