//! The receipt of an installation: the list of files and folders that `install.sh` made.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, UNFIT};

/// The unit that `install.sh` writes.
pub(crate) const SERVICE: &str = "service mote.service";

/// Services that are managed by something other than systemd.
const OTHER_SERVICES: [&str; 2] = ["service openrc", "service procd"];

/// The lines of a receipt, which `install.sh` writes and `uninstall.sh` reads.
#[derive(Debug, Clone)]
pub(crate) struct Receipt {
    pub(crate) version: String,
    lines: Vec<String>,
}

impl Receipt {
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
        let mut lines = text.lines().map(str::to_owned);
        let head = lines.next().unwrap_or_default();
        let words: Vec<&str> = head.split(' ').collect();
        let lines: Vec<String> = lines.collect();
        let is_known = |line: &String| {
            line.starts_with("dir /")
                || line == SERVICE
                || OTHER_SERVICES.contains(&line.as_str())
                || file(line).is_some()
        };
        match words.as_slice() {
            ["mote", version, "complete" | "incomplete"]
                if lines.iter().all(is_known)
                    && !text.contains("/../")
                    && !lines.iter().any(|line| line.ends_with("/..")) =>
            {
                Ok(Self { version: (*version).to_owned(), lines })
            }
            _ => {
                let text = format!("{} is damaged", path.display());
                Err(Failure::new(UNFIT, text, "run install.sh of the installed version again"))
            }
        }
    }

    /// The sum and the path of each file.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.lines.iter().filter_map(|line| file(line))
    }

    /// Finds a file or folder that does not belong to an installation in this prefix. A folder
    /// above the prefix is permitted.
    pub(crate) fn outside(&self, prefix: &Path) -> Option<&Path> {
        let units = ["/etc/systemd/system/mote.service", "/etc/init.d/mote"].map(Path::new);
        let is_own = |path: &Path| path.starts_with(prefix) || units.contains(&path);
        let file = self.files().map(|(_, path)| path).find(|path| !is_own(path));
        let mut folders = self.lines.iter().filter_map(|line| line.strip_prefix("dir "));
        file.or_else(|| {
            let folder = folders.find(|folder| {
                !Path::new(folder).starts_with(prefix) && !prefix.starts_with(folder)
            });
            folder.map(Path::new)
        })
    }

    pub(crate) fn has_service(&self) -> bool {
        self.lines.iter().any(|line| line == SERVICE)
    }

    /// The service manager of this installation, if it is not systemd.
    pub(crate) fn other_service(&self) -> Option<&'static str> {
        let other = |service: &&str| self.lines.iter().any(|line| line == service);
        OTHER_SERVICES.into_iter().find(other)?.strip_prefix("service ")
    }

    /// Copies another receipt's line for the file `path`, unless this receipt already names the
    /// file.
    pub(crate) fn adopt(&mut self, path: &Path, other: &Receipt) {
        let names = |line: &&String| file(line).is_some_and(|(_, named)| named == path);
        if let Some(line) = other.lines.iter().find(names)
            && !self.lines.iter().any(|line| names(&line))
        {
            self.lines.push(line.clone());
        }
    }

    /// Removes the empty folders that this receipt names and the other one does not.
    pub(crate) fn remove_folders_unless(&self, other: &Receipt) {
        let mut folders: Vec<&String> =
            self.lines.iter().filter(|line| line.starts_with("dir /")).collect();
        folders.sort_unstable();
        for line in folders.into_iter().rev().filter(|line| !other.lines.contains(line)) {
            let _ = std::fs::remove_dir(&line["dir ".len()..]);
        }
    }

    /// Writes the receipt, using a rename. `other` is a receipt whose files also exist for the time
    /// being.
    pub(crate) fn write(&self, path: &Path, other: Option<&Receipt>) -> Result<(), Failure> {
        let state = if other.is_some() { "incomplete" } else { "complete" };
        let mut lines: Vec<&str> = self.lines.iter().map(String::as_str).collect();
        lines.extend(other.iter().flat_map(|other| &other.lines).map(String::as_str));
        lines.sort_unstable();
        lines.dedup();
        let mut text = format!("mote {} {state}\n", self.version);
        lines.iter().for_each(|line| text.extend([line, "\n"]));
        let new = PathBuf::from(format!("{}.new", path.display()));
        // The file must be new, so that a link made by someone else is not followed.
        let _ = std::fs::remove_file(&new);
        let made = std::fs::File::create_new(&new);
        let written = made.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| Failure::file(&new, &error))?;
        std::fs::rename(&new, path).map_err(|error| Failure::file(path, &error))
    }
}

/// The sum and the path, if the line names a file.
fn file(line: &str) -> Option<(&str, &Path)> {
    let (sum, path) = line.strip_prefix("file ")?.split_at_checked(64)?;
    let path = path.strip_prefix(' ').filter(|path| path.starts_with('/'))?;
    sum.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some((sum, Path::new(path)))
}
