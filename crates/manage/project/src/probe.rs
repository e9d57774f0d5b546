//! Properties of a function's files: names, first bytes, executable bits.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mote_spec::toml_reader::Mistakes;
use mote_store::source;

use super::mistakes::unreadable;

/// The most files and folders that [`copy`] copies.
const COPIED_ENTRIES_MAX: usize = 50_000;

/// Copies a folder or a file into an empty folder. Links stay links.
///
/// # Errors
/// A file cannot be read or written, or there are too many files.
pub fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    if from.is_file() {
        let name = from.file_name().ok_or(std::io::ErrorKind::InvalidInput)?;
        return fs::copy(from, to.join(name)).map(|_| ());
    }
    let mut left = vec![(from.to_owned(), to.to_owned())];
    let mut entries = 0;
    while let Some((from, to)) = left.pop() {
        fs::create_dir_all(&to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            entries += 1;
            if entries > COPIED_ENTRIES_MAX {
                let text = format!("more than {COPIED_ENTRIES_MAX} files and folders");
                return Err(std::io::Error::other(text));
            }
            let source = entry.path();
            let target = to.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                left.push((source, target));
            } else if kind.is_symlink() {
                std::os::unix::fs::symlink(fs::read_link(source)?, target)?;
            } else if kind.is_file() {
                fs::copy(source, target)?;
            }
        }
    }
    Ok(())
}

/// A folder, or a single file that is treated as a folder which contains only that file.
#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    stem: String,
    /// The names of the files at the top of the folder.
    files: BTreeSet<String>,
    /// Whether the path was a file.
    pub(super) single: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) executable: bool,
    pub(super) has_shebang: bool,
    pub(super) shebang_cr: bool,
    /// The ELF machine number, if the program is an ELF file.
    pub(super) machine: Option<u16>,
}

impl Folder {
    pub(super) fn read(path: &Path) -> Result<Self, Mistakes> {
        let io = |error: std::io::Error| unreadable(path, &error);
        let meta = fs::metadata(path).map_err(io)?;
        // `.` and `..` do not contain the folder's name.
        let full = fs::canonicalize(path).map_err(io)?;
        let text = |name: Option<&std::ffi::OsStr>| {
            name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
        };
        if meta.is_file() {
            return Ok(Self {
                root: full.parent().unwrap_or(&full).to_owned(),
                stem: text(path.file_stem()),
                files: BTreeSet::from([text(full.file_name())]),
                single: true,
            });
        }
        let mut files = BTreeSet::new();
        for entry in fs::read_dir(path).map_err(io)? {
            let entry = entry.map_err(io)?;
            if entry.path().is_file() {
                files.insert(entry.file_name().to_string_lossy().into_owned());
            }
        }
        Ok(Self { stem: text(full.file_name()), root: full, files, single: false })
    }

    /// The folder itself.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns these files under the name of another folder or file.
    pub(super) fn named_as(self, other: &Self) -> Self {
        Self { stem: other.stem.clone(), ..self }
    }

    /// The name of the folder, or the name of the file without its extension.
    pub(super) fn stem(&self) -> &str {
        &self.stem
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.files.contains(name)
    }

    /// Returns whether a file exists. The path may lead below the top of the folder.
    pub(super) fn has_path(&self, path: &str) -> bool {
        if self.single {
            return self.has(path);
        }
        !path.split('/').any(|part| part == "..") && self.root.join(path).is_file()
    }

    /// Returns the files at the top that have one of these endings.
    pub(super) fn with_ending(&self, endings: &[&str]) -> Vec<&str> {
        self.files
            .iter()
            .map(String::as_str)
            .filter(|name| endings.iter().any(|ending| name.ends_with(ending)))
            // A file with types has no code.
            .filter(|name| !name.starts_with('.') && !name.ends_with(".d.ts"))
            .collect()
    }

    pub(super) fn has_go(&self) -> bool {
        self.has("go.mod") || !self.with_ending(&[".go"]).is_empty()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(String::as_str)
    }

    /// Returns the text of a source file. The text is empty if the file cannot be searched.
    pub(super) fn source(&self, path: &str) -> String {
        let mut text = String::new();
        if let Ok(file) = source::open(&self.root.join(path), &self.root) {
            // A file that is not UTF-8 cannot be searched. The language reports the error later.
            let _ = file.take(source::TEXT_BYTES_MAX).read_to_string(&mut text);
        }
        text
    }

    /// Returns the kind of program that `path` is; `None` if the folder has no such file.
    pub(super) fn program(&self, path: &str) -> Result<Option<Program>, Mistakes> {
        if !self.has_path(path) {
            return Ok(None);
        }
        let full = self.root.join(path);
        let io = |error: std::io::Error| unreadable(Path::new(path), &error);
        let file = source::open(&full, &self.root).map_err(io)?;
        let mode = file.metadata().map_err(io)?.permissions().mode();
        let mut head = Vec::new();
        file.take(256).read_to_end(&mut head).map_err(io)?;
        let first_line = head.split(|byte| *byte == b'\n').next().unwrap_or(&[]);
        let has_shebang = head.starts_with(b"#!");
        Ok(Some(Program {
            executable: mode & 0o111 != 0,
            has_shebang,
            shebang_cr: has_shebang && first_line.ends_with(b"\r"),
            machine: elf_machine(&head),
        }))
    }
}

fn elf_machine(head: &[u8]) -> Option<u16> {
    if !head.starts_with(b"\x7fELF") || head.len() < 20 {
        return None;
    }
    let bytes = [head[18], head[19]];
    Some(if head[5] == 2 { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
}

/// Machine numbers of the ELF format, with the names that people use.
const MACHINES: [(u16, &str, &str); 7] = [
    (3, "x86", "x86"),
    (8, "mips", "mips"),
    (20, "ppc", "powerpc"),
    (40, "arm", "arm"),
    (62, "x86-64", "x86_64"),
    (183, "aarch64", "aarch64"),
    (243, "riscv64", "riscv64"),
];

pub(super) fn machine_name(machine: u16) -> String {
    MACHINES
        .iter()
        .find(|(number, ..)| *number == machine)
        .map_or_else(|| format!("machine {machine}"), |(_, name, _)| (*name).to_owned())
}

/// Returns whether this machine's kernel usually runs such programs: those of the machine's
/// architecture and of its 32-bit variant.
pub(super) fn runs_here(machine: u16) -> bool {
    let here = std::env::consts::ARCH;
    match machine {
        3 => here == "x86_64" || here == "x86",
        40 => here == "aarch64" || here == "arm",
        other => MACHINES.iter().any(|(number, _, arch)| *number == other && *arch == here),
    }
}
