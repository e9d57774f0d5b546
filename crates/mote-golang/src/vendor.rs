//! The packages that a function brings in a folder `vendor`. `go` reads the packages in it from the
//! list `vendor/modules.txt`, and accepts the list only if it agrees with `go.mod`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

/// Most files and folders of a vendor folder that are visited.
const ENTRIES_MAX: usize = 200_000;

/// The vendor folder of a function.
pub(crate) struct Vendor {
    /// Its list, if it has one.
    list: Option<String>,
    has_go_mod: bool,
    /// The import paths of its packages, if it has no list.
    packages: BTreeSet<String>,
    folder: std::path::PathBuf,
}

/// Whether a function with this code is built from its vendor folder.
pub fn is_vendored(code: &Path) -> bool {
    Vendor::of(code).is_some()
}

impl Vendor {
    /// The vendor folder in `code`. A folder without a list next to a `go.mod` is left to `go`.
    pub(crate) fn of(code: &Path) -> Option<Self> {
        let folder = code.join("vendor");
        let has_go_mod = code.join("go.mod").is_file();
        let list = std::fs::read_to_string(folder.join("modules.txt")).ok();
        let packages = match &list {
            None if !has_go_mod => packages(&folder),
            _ => BTreeSet::new(),
        };
        let is_used = list.is_some() || !packages.is_empty();
        is_used.then_some(Self { list, has_go_mod, packages, folder })
    }

    /// Whether the folder contains a module or a part of it.
    pub(crate) fn has(&self, module: &str) -> bool {
        self.folder.join(module).is_dir()
    }

    /// The list of its packages. Without a `go.mod` of the function, the one that is written for it
    /// requires nothing, so no module may be marked as required.
    pub(crate) fn list(&self, go_mod: &str) -> String {
        match &self.list {
            Some(list) if self.has_go_mod => ended(list),
            Some(list) => {
                let lines = list.lines().filter(|line| !line.starts_with("##"));
                lines.map(|line| format!("{line}\n")).collect()
            }
            None => {
                let mut text = String::new();
                for package in &self.packages {
                    text.push_str(&entry(package, [""].into_iter(), go_mod));
                }
                text
            }
        }
    }
}

/// The lines of the list for one module with these files. A module that `go.mod` requires is marked.
pub(crate) fn entry<'a>(
    module: &str,
    files: impl Iterator<Item = &'a str>,
    go_mod: &str,
) -> String {
    let required = go_mod.lines().find_map(|line| {
        let mut words = line.trim().trim_start_matches("require ").split_whitespace();
        (words.next() == Some(module)).then(|| words.next()).flatten()
    });
    let mut text = format!("# {module} {}\n", required.unwrap_or("v0.0.0"));
    if required.is_some() {
        text.push_str("## explicit\n");
    }
    let folders: BTreeSet<&str> =
        files.map(|file| file.rsplit_once('/').map_or("", |(folder, _)| folder)).collect();
    for folder in folders {
        let slash = if folder.is_empty() { "" } else { "/" };
        let _ = writeln!(text, "{module}{slash}{folder}");
    }
    text
}

fn ended(list: &str) -> String {
    if list.is_empty() || list.ends_with('\n') { list.to_owned() } else { format!("{list}\n") }
}

/// The import paths of the folders that contain Go files. Links are not followed.
fn packages(vendor: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left = vec![(vendor.to_owned(), String::new())];
    let mut entries = 0;
    while let Some((folder, path)) = left.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            entries += 1;
            if entries > ENTRIES_MAX {
                return found;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && !name.starts_with(['.', '_']) && name != "testdata" {
                let below = if path.is_empty() { name } else { format!("{path}/{name}") };
                left.push((entry.path(), below));
            } else if kind.is_file()
                && name.ends_with(".go")
                && !name.ends_with("_test.go")
                && !path.is_empty()
            {
                found.insert(path.clone());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn a_vendor_folder_is_used_with_its_list_or_without_a_go_mod() {
        let package = ("vendor/example.com/x/y.go", "package x");
        let list = ("vendor/modules.txt", "# example.com/x v1.0.0\n");
        let module = ("go.mod", "module a\n");
        for (files, used) in [
            (&[package][..], true),
            (&[package, list], true),
            (&[package, list, module], true),
            (&[package, module], false),
            (&[module], false),
            (&[("vendor/README.md", "")], false),
        ] {
            assert_eq!(is_vendored(folder(files).path()), used, "{files:?}");
        }
    }

    #[test]
    fn a_list_is_made_of_the_folders_with_go_files() {
        let code = folder(&[
            ("vendor/example.com/x/y.go", "package x"),
            ("vendor/example.com/x/z/w.go", "package z"),
            ("vendor/example.com/x/t/only_test.go", "package t"),
            ("vendor/example.com/x/testdata/v.go", "package v"),
        ]);
        let list = Vendor::of(code.path()).unwrap().list("module a\n");
        let wanted = "# example.com/x v0.0.0\nexample.com/x\n\
                      # example.com/x/z v0.0.0\nexample.com/x/z\n";
        assert_eq!(list, wanted);
    }

    #[test]
    fn a_list_without_a_go_mod_marks_nothing_as_required() {
        let code =
            folder(&[("vendor/modules.txt", "# example.com/x v1.0.0\n## explicit\nexample.com/x")]);
        let list = Vendor::of(code.path()).unwrap().list("module a\n");
        assert_eq!(list, "# example.com/x v1.0.0\nexample.com/x\n");
    }

    #[test]
    fn a_provided_module_is_marked_as_go_mod_requires_it() {
        let go_mod = "module a\n\nrequire (\n\texample.com/sdk v1.2.3 // indirect\n)\n";
        let files = || ["pkg/a.go", "pkg/b.go"].into_iter();
        let wanted = "# example.com/sdk v1.2.3\n## explicit\nexample.com/sdk/pkg\n";
        assert_eq!(entry("example.com/sdk", files(), go_mod), wanted);
        let wanted = "# example.com/sdk v0.0.0\nexample.com/sdk/pkg\n";
        assert_eq!(entry("example.com/sdk", files(), "module a\n"), wanted);
    }
}
