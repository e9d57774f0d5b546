//! Checks that every error code in the sources has a row in the catalogue, so that `mote explain` knows
//! the code.

use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn every_code_in_the_sources_is_explained() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/");
    let mut files = Vec::new();
    collect(crates, &mut files);
    let mut seen = 0;
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file");
        for (at, _) in text.match_indices("\"M") {
            let code: String = text[at + 1..].chars().take(6).collect();
            let Some(code) = code.strip_suffix('"') else { continue };
            if code.len() == 5 && code[1..].bytes().all(|byte| byte.is_ascii_digit()) {
                seen += 1;
                let explained = mote_api::explain(code).is_some();
                assert!(explained, "{code} in {} has no row", file.display());
            }
        }
    }
    assert!(seen > 100, "only {seen} codes were found: the search is broken");
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            let skip = path.ends_with("tests") || path.ends_with("target");
            if !skip {
                collect(&path, files);
            }
        } else if path.extension().is_some_and(|ending| ending == "rs")
            && !path.ends_with("error.rs")
        {
            files.push(path);
        }
    }
}
