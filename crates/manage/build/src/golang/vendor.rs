//! The packages that a function contains in its folder `vendor`. `go` reads the list of these
//! packages, `vendor/modules.txt`, and accepts the list only if it agrees with `go.mod`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

/// At most this many files and folders in a vendor folder are visited.
const ENTRIES_MAX: usize = 200_000;

/// The vendor folder of a function.
pub(crate) struct Vendor {
    list: Option<String>,
    has_go_mod: bool,
    /// The import paths of the packages in the folder, if it contains no list.
    packages: BTreeSet<String>,
    folder: std::path::PathBuf,
}

/// Whether a function with this code is built from its vendor folder.
pub fn is_vendored(code: &Path) -> bool {
    Vendor::of(code).is_some()
}

impl Vendor {
    /// Finds the vendor folder in `code`. If the code has a `go.mod` and the folder has no list,
    /// returns `None` and leaves the folder to `go`.
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

    /// Whether the folder contains a module, or a part of it.
    pub(crate) fn has(&self, module: &str) -> bool {
        self.folder.join(module).is_dir()
    }

    /// Returns the list of the folder's packages. If the function has no `go.mod`, adds the
    /// packages' requirements to `go_mod`, the text of the `go.mod` that is written for the
    /// function.
    pub(crate) fn list(&self, go_mod: &mut String) -> String {
        match &self.list {
            Some(list) if self.has_go_mod => ended(list),
            Some(list) => required(list, go_mod),
            None => {
                let mut text = String::new();
                for module in &self.packages {
                    // If another package is above this one, both belong to the same module.
                    let is_below = |other: &String| module.starts_with(&format!("{other}/"));
                    if self.packages.iter().any(is_below) {
                        continue;
                    }
                    let below = self.packages.iter().filter_map(|one| {
                        let rest = one.strip_prefix(module.as_str())?;
                        (rest.is_empty() || rest.starts_with('/'))
                            .then(|| format!("{}/.", rest.trim_start_matches('/')))
                    });
                    let files: Vec<String> = below.collect();
                    text.push_str(&entry(module, files.iter().map(String::as_str), go_mod));
                }
                text
            }
        }
    }
}

/// Returns the lines of the list for one module with these files. Adds the module's requirement to
/// `go_mod` if it is missing.
pub(crate) fn entry<'a>(
    module: &str,
    files: impl Iterator<Item = &'a str>,
    go_mod: &mut String,
) -> String {
    let version = require(go_mod, module, &version_of(module));
    // The Go version in this line decides which syntax the module may use.
    let mut text = format!("# {module} {version}\n## explicit; go 1.21\n");
    let folders: BTreeSet<&str> =
        files.map(|file| file.rsplit_once('/').map_or("", |(folder, _)| folder)).collect();
    for folder in folders {
        let slash = if folder.is_empty() { "" } else { "/" };
        let _ = writeln!(text, "{module}{slash}{folder}");
    }
    text
}

/// Returns a version that the module's path permits.
fn version_of(module: &str) -> String {
    let last = module.rsplit('/').next().unwrap_or_default();
    let suffix = if module.starts_with("gopkg.in/") {
        last.rsplit_once('.').map_or("", |(_, suffix)| suffix)
    } else {
        last
    };
    let major = suffix.strip_prefix('v').and_then(|digits| digits.parse::<u32>().ok());
    format!("v{}.0.0", major.unwrap_or(0))
}

/// Returns the version in which `go_mod` requires a module. If `go_mod` does not require the
/// module, adds the requirement with `version`.
fn require(go_mod: &mut String, module: &str, version: &str) -> String {
    let known = go_mod.lines().find_map(|line| {
        let mut words = line.trim().trim_start_matches("require ").split_whitespace();
        (words.next() == Some(module)).then(|| words.next()).flatten().map(str::to_owned)
    });
    known.unwrap_or_else(|| {
        let _ = write!(go_mod, "\nrequire {module} {version} // indirect\n");
        version.to_owned()
    })
}

/// Returns a list whose `go.mod` is missing, with changes so that it agrees with `go_mod`. Every
/// module in the list becomes a requirement there.
fn required(list: &str, go_mod: &mut String) -> String {
    let mut text = String::new();
    let mut lines = list.lines().peekable();
    while let Some(line) = lines.next() {
        let mut words = line.strip_prefix("# ").unwrap_or_default().split_whitespace();
        let (Some(module), Some(version)) = (words.next(), words.next()) else {
            let _ = writeln!(text, "{line}");
            continue;
        };
        let version = require(go_mod, module, version);
        let marks = lines.next_if(|next| next.starts_with("## ")).unwrap_or("## explicit");
        let marks = marks.replacen("## go", "## explicit; go", 1);
        let _ = write!(text, "# {module} {version}\n{marks}\n");
    }
    text
}

fn ended(list: &str) -> String {
    if list.is_empty() || list.ends_with('\n') { list.to_owned() } else { format!("{list}\n") }
}

/// The import paths of all folders that contain Go files. Links are not followed.
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
            ("vendor/example.com/y/v3/u.go", "package y"),
            ("vendor/gopkg.in/yaml.v2/t.go", "package yaml"),
        ]);
        let mut go_mod = "module a\n".to_owned();
        let list = Vendor::of(code.path()).unwrap().list(&mut go_mod);
        let wanted = "# example.com/x v0.0.0\n## explicit; go 1.21\nexample.com/x\nexample.com/x/z\n\
                      # example.com/y/v3 v3.0.0\n## explicit; go 1.21\nexample.com/y/v3\n\
                      # gopkg.in/yaml.v2 v2.0.0\n## explicit; go 1.21\ngopkg.in/yaml.v2\n";
        assert_eq!(list, wanted);
        assert!(go_mod.contains("\nrequire example.com/y/v3 v3.0.0 // indirect\n"), "{go_mod}");
        assert_eq!(go_mod.matches("require").count(), 3);
    }

    #[test]
    fn each_module_of_a_list_without_a_go_mod_is_required() {
        let list = "# example.com/x v1.0.0\n## explicit\nexample.com/x\n# example.com/y v1.1.0 => ../y\n\
                    ## go 1.17\nexample.com/y\n# example.com/z v0.1.0\nexample.com/z";
        let code = folder(&[("vendor/modules.txt", list)]);
        let mut go_mod = "module a\n".to_owned();
        let list = Vendor::of(code.path()).unwrap().list(&mut go_mod);
        let wanted = "# example.com/x v1.0.0\n## explicit\nexample.com/x\n# example.com/y v1.1.0\n\
                      ## explicit; go 1.17\nexample.com/y\n# example.com/z v0.1.0\n## explicit\n\
                      example.com/z\n";
        assert_eq!(list, wanted);
        assert_eq!(go_mod.matches("// indirect").count(), 3, "{go_mod}");
    }

    #[test]
    fn a_provided_module_has_the_version_that_go_mod_requires() {
        let mut go_mod =
            "module a\n\nrequire (\n\texample.com/sdk v1.2.3 // indirect\n)\n".to_owned();
        let before = go_mod.clone();
        let files = || ["pkg/a.go", "pkg/b.go"].into_iter();
        let wanted = "# example.com/sdk v1.2.3\n## explicit; go 1.21\nexample.com/sdk/pkg\n";
        assert_eq!(entry("example.com/sdk", files(), &mut go_mod), wanted);
        assert_eq!(go_mod, before);
        let wanted = "# example.com/other v0.0.0\n## explicit; go 1.21\nexample.com/other/pkg\n";
        assert_eq!(entry("example.com/other", files(), &mut go_mod), wanted);
        assert!(go_mod.ends_with("\nrequire example.com/other v0.0.0 // indirect\n"));
    }
}
