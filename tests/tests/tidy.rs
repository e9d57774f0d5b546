//! Checks the tree against the rules of ARCHITECTURE.md and the rules of style.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use mote_tests::tree;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Files under `folder` whose name ends in `.rs`.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

fn crates() -> Vec<PathBuf> {
    tree::packages().into_values().collect()
}

/// The crates of this repository that the manifest of `folder` names before its
/// `[dev-dependencies]`.
fn dependencies(folder: &Path) -> BTreeSet<String> {
    let manifest = read(folder.join("Cargo.toml"));
    let own = manifest.split("[dev-dependencies]").next().unwrap();
    let names = own.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
    names.filter_map(|name| name.strip_prefix("mote-")).map(str::to_owned).collect()
}

/// The district of a crate: the folder of `crates/` that holds it.
fn district(folder: &Path) -> String {
    folder.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned()
}

/// For each district, the table in ARCHITECTURE.md names the districts that it uses. The district
/// must use exactly these, and no district may use itself through other districts.
#[test]
fn districts_use_what_the_table_says() {
    let architecture = read(root().join("ARCHITECTURE.md"));
    let packages = tree::packages();
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, folder) in &packages {
        let uses = found.entry(district(folder)).or_default();
        for used in dependencies(folder) {
            let used = packages.get(&format!("mote-{used}"));
            let used = district(used.unwrap_or_else(|| panic!("{name}: no such crate")));
            if used != district(folder) {
                uses.insert(used);
            }
        }
    }
    let mut above: BTreeSet<String> = BTreeSet::new();
    let rows: Vec<&str> =
        architecture.lines().filter(|line| line.starts_with("| `crates/")).collect();
    assert_eq!(rows.len(), found.len(), "a row for each district");
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let name = cells[1].trim_matches('`').trim_start_matches("crates/").to_owned();
        let uses = &found[&name];
        let mapped: BTreeSet<String> = match cells[3] {
            "–" => BTreeSet::new(),
            list => list.split(", ").map(str::to_owned).collect(),
        };
        assert_eq!(uses, &mapped, "{name}: its crates and the table of ARCHITECTURE.md differ");
        let later = uses.difference(&above).collect::<Vec<_>>();
        assert!(later.is_empty(), "{name} uses {later:?}, which stand below it in the table");
        above.insert(name);
    }
}

/// Clippy reads only the nearest `clippy.toml`, so a crate's own file must repeat the bans of the
/// root's file.
#[test]
fn bans_of_the_root_hold_in_each_crate() {
    let is_ban = |line: &&str| line.trim_start().starts_with("{ path = ");
    let root_text = read(root().join("clippy.toml"));
    let bans: Vec<&str> = root_text.lines().filter(is_ban).collect();
    assert!(!bans.is_empty(), "the root's clippy.toml bans nothing that this test finds");
    for file in
        crates().iter().map(|folder| folder.join("clippy.toml")).filter(|file| file.exists())
    {
        let text = read(&file);
        for ban in &bans {
            assert!(text.contains(ban), "{} does not repeat: {ban}", file.display());
        }
    }
}

/// Comments must not contain examples that rustdoc would compile and run. Building these costs
/// minutes for each run of the tests, and a test can show the same.
#[test]
fn comments_hold_no_code_that_nothing_compiles() {
    let mut files = Vec::new();
    crates().iter().for_each(|folder| sources(&folder.join("src"), &mut files));
    for file in files {
        let mut is_open = false;
        for (at, line) in read(&file).lines().enumerate() {
            let line = line.trim_start();
            let Some(comment) = line.strip_prefix("///").or(line.strip_prefix("//!")) else {
                is_open = false;
                continue;
            };
            let Some(language) = comment.trim_start().strip_prefix("```") else { continue };
            let place = format!("{}:{}", file.display(), at + 1);
            assert!(is_open || language == "text", "{place}: write ```text, or a test");
            is_open = !is_open;
        }
    }
}

/// A pause in a test must be in a loop that ends when the awaited condition holds. Otherwise the
/// test measures what happens during the pause, and the line above says so.
#[test]
fn tests_do_not_sleep_instead_of_waiting() {
    let mut files = Vec::new();
    crates()
        .iter()
        .map(|folder| folder.join("tests"))
        .filter(|folder| folder.is_dir())
        .for_each(|folder| sources(&folder, &mut files));
    sources(&root().join("tests"), &mut files);
    for file in files.iter().filter(|file| !file.ends_with("tidy.rs")) {
        let text = read(file);
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let pauses = ["tokio::time::sleep(", "thread::sleep("];
            if !pauses.iter().any(|pause| line.contains(pause)) {
                continue;
            }
            let above = &lines[at.saturating_sub(14)..at];
            let in_loop = above.iter().any(|line| {
                let line = line.trim();
                line.ends_with("loop {") || line.starts_with("while ") || line.starts_with("for ")
            });
            let measures = above.last().is_some_and(|line| line.trim().starts_with("// Measured"));
            let shown = file.display();
            let number = at + 1;
            assert!(
                in_loop || measures,
                "{shown}:{number}: a pause that waits for nothing: {line}"
            );
        }
    }
}

#[test]
fn the_readme_and_the_summary_name_every_guide() {
    let readme = read(root().join("README.md"));
    let summary = read(root().join("docs/SUMMARY.md"));
    for entry in std::fs::read_dir(root().join("docs/guides")).expect("the guides") {
        let name = entry.expect("a guide").file_name().to_string_lossy().into_owned();
        assert!(readme.contains(&format!("docs/guides/{name}")), "README.md lacks {name}");
        assert!(summary.contains(&format!("guides/{name}")), "docs/SUMMARY.md lacks {name}");
    }
}
