//! Checks that the data folder belongs to the node alone. Anyone else who can write there could
//! plant code or an operator's token, or make root write through a link. So at each start, the node
//! checks the folder before it opens anything in it.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The open refuses a link, and does not wait for the other end of a pipe.
const FLAGS: i32 = rustix::fs::OFlags::NOFOLLOW.union(rustix::fs::OFlags::NONBLOCK).bits() as i32;
/// Write permission of the group and of others.
const WRITABLE: u32 = 0o022;
const OTHERS: u32 = 0o002;
/// In a folder with this bit, only the owner of a file can remove or rename the file.
const STICKY: u32 = 0o1000;
/// The node's files with fixed names.
const FILES: [&str; 4] = ["admin.token", "lock", "mqtt.id", "secrets.key"];
/// Folders that contain code to run, or file systems to mount.
const FOLDERS: [&str; 5] = ["code", "packages", "shims", "staging", "files"];

/// A file or folder, in the data folder or above it, that others could change.
#[derive(Debug, thiserror::Error)]
#[error("{} {why}", path.display())]
pub struct NotOwn {
    pub path: PathBuf,
    why: String,
}

impl NotOwn {
    fn new(path: &Path, why: impl Into<String>) -> Self {
        Self { path: path.to_owned(), why: why.into() }
    }

    fn unreadable(path: &Path, error: &io::Error) -> Self {
        Self::new(path, format!("cannot be checked: {error}"))
    }
}

/// Checks the data folder, if it exists, and the folders above it. If others can change something
/// that belongs to the node's user, as in a fresh volume of a container, they lose that permission.
/// Returns what was changed in this way.
pub fn secure(data: &Path) -> Result<Vec<PathBuf>, NotOwn> {
    let absolute = std::path::absolute(data).map_err(|error| NotOwn::unreadable(data, &error))?;
    // This checks the path as given, with its links. The path to which the links lead is checked
    // below.
    check_above(&absolute)?;
    let folder = match std::fs::canonicalize(&absolute) {
        Ok(folder) => folder,
        // The node creates the folder later. Nobody else can create it first, because the folders
        // above were checked.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(NotOwn::unreadable(data, &error)),
    };
    check_above(&folder)?;
    let mut tightened = Vec::new();
    let meta = std::fs::metadata(&folder).map_err(|error| NotOwn::unreadable(&folder, &error))?;
    if !meta.is_dir() {
        return Err(NotOwn::new(&folder, "is not a folder"));
    }
    tighten(&folder, &meta, &mut tightened)?;
    let failed = |error| NotOwn::unreadable(&folder, &error);
    for entry in std::fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_folder = FOLDERS.contains(&name);
        if !is_folder && !is_own_file(name) {
            continue;
        }
        let meta = match std::fs::symlink_metadata(&path) {
            // A temporary file may disappear meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            meta => meta.map_err(|error| NotOwn::unreadable(&path, &error))?,
        };
        refuse_owner(&path, &meta)?;
        if !is_folder {
            refuse_kind(&path, &meta)?;
            if meta.mode() & OTHERS != 0 {
                return Err(NotOwn::new(&path, "can be changed by everybody"));
            }
            tighten(&path, &meta, &mut tightened)?;
            continue;
        }
        // The owner may have replaced the folder by a link to another disk.
        let meta = std::fs::metadata(&path).map_err(|error| NotOwn::unreadable(&path, &error))?;
        if !meta.is_dir() {
            return Err(NotOwn::new(&path, "is not a folder"));
        }
        tighten(&path, &meta, &mut tightened)?;
    }
    Ok(tightened)
}

/// Returns the folders above the data folder that belong to users other than root and the node's,
/// or in which a group may write. Those users could replace the data folder. The node accepts such
/// folders, because there always are some if a user starts a node with sudo in the home folder.
pub fn changeable_above(data: &Path) -> Vec<PathBuf> {
    let Ok(folder) = std::fs::canonicalize(data) else { return Vec::new() };
    let is_changeable = |folder: &&Path| {
        std::fs::metadata(folder).is_ok_and(|meta| {
            let is_sticky = meta.mode() & STICKY != 0;
            !is_trusted(meta.uid()) || (meta.mode() & WRITABLE != 0 && !is_sticky)
        })
    };
    folder.ancestors().skip(1).filter(is_changeable).map(Path::to_owned).collect()
}

/// Opens a file of the data folder. It must be a regular file that belongs to the node's user or to
/// root.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let refused = |error: NotOwn| io::Error::new(io::ErrorKind::InvalidInput, error);
    let file = match options.custom_flags(FLAGS).open(path) {
        // `O_NOFOLLOW` makes the open of a link fail. Opening a pipe for writing fails with another
        // error.
        Err(error) => {
            let meta = std::fs::symlink_metadata(path).ok();
            return Err(meta
                .and_then(|meta| refuse_kind(path, &meta).err())
                .map_or(error, refused));
        }
        Ok(file) => file,
    };
    let meta = file.metadata()?;
    refuse_kind(path, &meta).and_then(|()| refuse_owner(path, &meta)).map_err(refused)?;
    Ok(file)
}

/// Whether a file with this name is made by the node.
fn is_own_file(name: &str) -> bool {
    FILES.contains(&name) || name.starts_with("audit") || name.contains(".db")
}

fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

fn check_above(path: &Path) -> Result<(), NotOwn> {
    for above in path.ancestors().skip(1) {
        // A missing folder is created by the node later.
        let Ok(meta) = std::fs::metadata(above) else { continue };
        if meta.mode() & (STICKY | OTHERS) == OTHERS {
            let why = "can be changed by everybody, who could replace the data folder below it";
            return Err(NotOwn::new(above, why));
        }
    }
    for link in path.ancestors() {
        let Ok(meta) = std::fs::symlink_metadata(link) else { continue };
        if meta.is_symlink() {
            refuse_owner(link, &meta)?;
        }
    }
    Ok(())
}

fn refuse_owner(path: &Path, meta: &Metadata) -> Result<(), NotOwn> {
    if is_trusted(meta.uid()) {
        return Ok(());
    }
    let user = rustix::process::geteuid().as_raw();
    let why = format!(
        "belongs to the user with the number {}, and the node runs as the one with the number {user}",
        meta.uid()
    );
    Err(NotOwn::new(path, why))
}

fn refuse_kind(path: &Path, meta: &Metadata) -> Result<(), NotOwn> {
    let why = match meta {
        meta if meta.is_file() => return Ok(()),
        meta if meta.is_symlink() => "is a symbolic link, not a regular file",
        meta if meta.is_dir() => "is a folder, not a regular file",
        _ => "is not a regular file",
    };
    Err(NotOwn::new(path, why))
}

/// Takes the write permission from everybody except the owner.
fn tighten(path: &Path, meta: &Metadata, tightened: &mut Vec<PathBuf>) -> Result<(), NotOwn> {
    refuse_owner(path, meta)?;
    if meta.mode() & WRITABLE == 0 {
        return Ok(());
    }
    let mode = Permissions::from_mode(meta.mode() & 0o7777 & !WRITABLE);
    match std::fs::set_permissions(path, mode) {
        Ok(()) => tightened.push(path.to_owned()),
        // The folder or file belongs to root, and the node may write to it as a member of its
        // group.
        Err(_) if meta.mode() & OTHERS == 0 => {}
        Err(error) => {
            return Err(NotOwn::new(path, format!("can be changed by everybody: {error}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a data folder with this mode, below a folder of the node's user.
    fn data(mode: u32) -> (tempfile::TempDir, PathBuf) {
        let above = tempfile::tempdir().expect("a folder");
        let data = above.path().join("data");
        std::fs::create_dir(&data).expect("a folder");
        set(&data, mode);
        (above, data)
    }

    fn set(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("its owner may");
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("it exists").mode() & 0o7777
    }

    fn refusal(data: &Path) -> String {
        secure(data).expect_err("refused").to_string()
    }

    #[test]
    fn what_others_may_write_is_taken_from_them() {
        for (before, after) in [(0o777, 0o755), (0o2770, 0o2750), (0o1777, 0o1755)] {
            let (_above, data) = data(before);
            std::fs::create_dir(data.join("code")).expect("a folder");
            set(&data.join("code"), 0o777);
            std::fs::write(data.join("mote.db"), "").expect("a file");
            set(&data.join("mote.db"), 0o660);
            let mut tightened = secure(&data).expect("usable");
            tightened.sort();
            assert_eq!(tightened.len(), 3, "{tightened:?}");
            assert_eq!(mode(&data), after);
            assert_eq!((mode(&data.join("code")), mode(&data.join("mote.db"))), (0o755, 0o640));
            assert_eq!(
                secure(&data).expect("usable"),
                Vec::<PathBuf>::new(),
                "nothing is left to do"
            );
        }
        let (above, data) = data(0o700);
        assert_eq!(secure(&data).expect("usable"), Vec::<PathBuf>::new());
        assert_eq!(mode(&data), 0o700);
        assert_eq!(
            secure(&above.path().join("made/later")).expect("usable"),
            Vec::<PathBuf>::new()
        );
    }

    #[test]
    fn a_folder_above_that_everybody_may_write_is_refused() {
        let (above, data) = data(0o700);
        set(above.path(), 0o777);
        assert!(refusal(&data).contains("replace the data folder"), "{}", refusal(&data));
        assert!(refusal(&above.path().join("missing")).contains("replace the data folder"));
        // The check also works through a link.
        let other = tempfile::tempdir().expect("a folder");
        let link = other.path().join("data");
        std::os::unix::fs::symlink(&data, &link).expect("a link");
        assert!(refusal(&link).contains("replace the data folder"));
        set(above.path(), 0o1777);
        secure(&data).expect("only its owner can move it");
        secure(&link).expect("the same");
        set(above.path(), 0o770);
        secure(&data).expect("a group may");
        assert_eq!(changeable_above(&data), [above.path().canonicalize().expect("a path")]);
        set(above.path(), 0o700);
        assert_eq!(changeable_above(&data), Vec::<PathBuf>::new());
    }

    #[test]
    fn files_of_other_kinds_are_refused_by_name() {
        let fifo = |path: &Path| {
            let made = rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RUSR);
            made.expect("a pipe");
        };
        let link = |path: &Path| {
            std::os::unix::fs::symlink("/etc/passwd", path).expect("a link");
        };
        let folder = |path: &Path| std::fs::create_dir(path).expect("a folder");
        for name in ["admin.token", "audit.log", "mote.db", "secrets.key", "mote.db-wal"] {
            type Make<'a> = &'a dyn Fn(&Path);
            let kinds: [(Make<'_>, &str); 3] =
                [(&fifo, "not a regular"), (&link, "symbolic link"), (&folder, "is a folder")];
            for (make, expected) in kinds {
                let (_above, data) = data(0o700);
                let path = data.join(name);
                make(&path);
                let text = refusal(&data);
                assert!(text.contains(name) && text.contains(expected), "{text}");
                for options in
                    [OpenOptions::new().read(true), OpenOptions::new().append(true).create(true)]
                {
                    let error = open(options, &path).expect_err("refused").to_string();
                    assert!(error.contains(expected), "{name}: {error}");
                }
            }
        }
        let (_above, data) = data(0o700);
        std::fs::write(data.join("admin.token"), "x").expect("a file");
        set(&data.join("admin.token"), 0o666);
        assert!(refusal(&data).contains("changed by everybody"), "{}", refusal(&data));
    }

    #[test]
    fn what_belongs_to_somebody_else_is_refused() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let give = |path: &Path| std::os::unix::fs::chown(path, Some(65_534), None).expect("root");
        let (_above, data) = data(0o700);
        give(&data);
        assert!(refusal(&data).contains("with the number 65534"), "{}", refusal(&data));
        for name in ["admin.token", "shims", "code"] {
            let (_above, data) = self::data(0o700);
            let path = data.join(name);
            match name.contains('.') {
                true => std::fs::write(&path, "x").expect("a file"),
                false => std::fs::create_dir(&path).expect("a folder"),
            }
            give(&path);
            assert!(refusal(&data).contains(name), "{}", refusal(&data));
        }
        let link = data.parent().expect("a folder").join("link");
        std::os::unix::fs::symlink(&data, &link).expect("a link");
        std::os::unix::fs::lchown(&link, Some(65_534), None).expect("root");
        assert!(refusal(&link).contains("link belongs"), "{}", refusal(&link));
    }
}
