//! Consistency of the documents: the claims of the front page are tested promises, citations match
//! the published pages, and links have targets.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file of the tree with one of these extensions. Leaves out the output of builds and tools.
fn files(endings: &[&str]) -> Vec<String> {
    let left_out = ["target", "node_modules", "corpus", "artifacts"];
    let mut folders = vec![root()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if name.starts_with('.') || left_out.contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                found.push(path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// The cells of a row of a table.
fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split('|').map(str::trim).collect()
}

/// The words between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The values of `before…after` in a text.
fn between<'a>(text: &'a str, before: &str, after: char) -> Vec<&'a str> {
    text.split(before).skip(1).filter_map(|rest| rest.split(after).next()).collect()
}

/// A row of SPECIFICATION.md.
struct Promise {
    anchor: Option<String>,
    line: String,
    /// The tests that show the promise; `None` if the table has no such column.
    shown_by: Option<String>,
}

/// The rows of SPECIFICATION.md by section.
fn promises() -> Vec<(String, Vec<Promise>)> {
    let mut sections: Vec<(String, Vec<Promise>)> = Vec::new();
    let mut column = None;
    for line in read("SPECIFICATION.md").lines() {
        if let Some(title) = line.strip_prefix("## ") {
            sections.push((title.to_owned(), Vec::new()));
        } else if line.starts_with("| Promise") {
            column = cells(line).iter().position(|cell| *cell == "Checked by");
        } else if line.starts_with("| ") {
            let shown_by = column.map(|column| cells(line)[column].to_owned());
            let anchor = between(line, "<a id=\"", '"').first().map(|&anchor| anchor.to_owned());
            let promise = Promise { anchor, line: line.to_owned(), shown_by };
            sections.last_mut().unwrap().1.push(promise);
        }
    }
    sections
}

/// Returns why a word does not show a promise: a file, target or crate is missing.
fn is_missing(word: &str) -> Option<String> {
    let exists = |path: String| root().join(path).exists();
    let mut words = word.split_whitespace();
    let found = match words.next().unwrap_or_default() {
        "make" => {
            let verb = words.next().unwrap_or_default();
            read("Makefile").split([' ', '\n', ':']).any(|name| name == verb)
        }
        "cargo" => {
            let name = word.split("-p ").nth(1).and_then(|rest| rest.split(' ').next());
            name.is_some_and(|name| {
                name == "mote-tests" || mote_tests::tree::package(name).is_some()
            })
        }
        "mote" | "./lab" | "pytest" => true,
        path if path.contains('/') => exists(path.to_owned()) || exists(format!("bench/{path}")),
        name => {
            exists(format!("tests/tests/{name}.rs"))
                || exists(format!("crates/lab/lab/tests/{name}.rs"))
        }
    };
    (!found).then(|| word.to_owned())
}

/// Whether a cell names a test of the promise. Panics if the cell names something that does not
/// exist.
fn is_tested(promise: &Promise) -> bool {
    let Some(shown_by) = &promise.shown_by else { return false };
    let says_not = ["no test yet", "not supported", "not offered", "not measured"];
    if says_not.iter().any(|words| shown_by.to_lowercase().contains(words)) {
        return false;
    }
    let of_above = ["the same", "the escape test", "the shims' tests"];
    let words = quoted(shown_by);
    for word in &words {
        // Further words in backticks are the names of tests within the first word's file.
        let is_more =
            word.split_whitespace().count() == 1 && words.len() > 1 && word.contains("::");
        assert!(
            is_more || is_missing(word).is_none(),
            "SPECIFICATION.md: `{word}` is not there: {}",
            promise.line
        );
    }
    !words.is_empty() || of_above.iter().any(|phrase| shown_by.contains(phrase))
}

#[test]
fn every_promise_says_what_shows_it() {
    for (section, promises) in promises() {
        for promise in promises.iter().filter(|promise| promise.shown_by.is_some()) {
            let shown_by = promise.shown_by.as_deref().unwrap();
            assert!(
                is_tested(promise) || shown_by.contains("no test yet") || shown_by.contains("not "),
                "SPECIFICATION.md, {section}: neither a test nor a reason: {}",
                promise.line
            );
        }
    }
}

/// Every claim in README.md has a tested line in SPECIFICATION.md, and every line with an anchor
/// there is in README.md.
#[test]
fn the_front_page_claims_what_is_tested() {
    let readme = read("README.md");
    let begin = readme.find("| Area | Works |").expect("README.md has its table of what works");
    let rows: Vec<&str> =
        readme[begin..].lines().take_while(|line| line.starts_with('|')).collect();
    let promises = promises();
    let tested: BTreeMap<&str, bool> = promises
        .iter()
        .flat_map(|(_, rows)| rows)
        .filter_map(|promise| Some((promise.anchor.as_deref()?, is_tested(promise))))
        .collect();
    let mut claimed = BTreeSet::new();
    for row in &rows[2..] {
        let links = between(row, "](SPECIFICATION.md#", ')');
        assert!(!links.is_empty(), "README.md claims without a line of SPECIFICATION.md: {row}");
        for link in links {
            assert_eq!(
                tested.get(link),
                Some(&true),
                "README.md claims what SPECIFICATION.md does not say is tested: #{link} in {row}"
            );
            claimed.insert(link);
        }
    }
    let all: BTreeSet<&str> = tested.keys().copied().collect();
    assert_eq!(all, claimed, "lines of SPECIFICATION.md with an anchor, and claims of README.md");
    for (section, rows) in &promises {
        let is_shown = rows.iter().any(|promise| promise.shown_by.is_some());
        assert!(
            !is_shown || rows.iter().any(|promise| promise.anchor.is_some()),
            "SPECIFICATION.md, {section}: README.md says nothing of it"
        );
    }
}

/// The requirement numbers in a text. Each is a separate word that consists of an R and one to
/// three digits.
fn requirements(text: &str) -> BTreeSet<u32> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices('R') {
        let before = text[..at].chars().next_back();
        let rest = &text[at + 1..];
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        let after = rest[digits.len()..].chars().next();
        let alone = !before.is_some_and(is_word) && !after.is_some_and(is_word);
        if alone && (1..=3).contains(&digits.len()) {
            found.insert(digits.parse().unwrap());
        }
    }
    found
}

#[test]
fn requirement_numbers_are_found() {
    let found = requirements("R1, R2–R4 (R160); CR9, R12a, R1234 and R_5");
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [1, 2, 4, 160]);
}

/// The page of requirements counts its own rows correctly, and the tests, crates and files that its
/// rows name exist.
#[test]
fn requirements_name_what_exists() {
    const PAGE: &str = "docs/reference/requirements.md";
    let page = read(PAGE);
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| <a id=\"r")).collect();
    let count = |state: &str| rows.iter().filter(|row| cells(row)[3] == state).count();
    let said =
        format!("{} are met, {} partly, {} not.", count("met"), count("partly"), count("no"));
    assert!(page.contains(&said), "{PAGE}: its rows say: {said}");
    assert_eq!(rows.len(), count("met") + count("partly") + count("no"));
    let mut checked = 0;
    for row in rows {
        let shown = cells(row)[4];
        // `e2e` and `lab` apply to the names in backticks that follow.
        let mut folder = None;
        for (number, part) in shown.split('`').enumerate() {
            if number % 2 == 0 {
                if part.trim_end().ends_with("e2e") {
                    folder = Some("tests/tests");
                } else if part.trim_end().ends_with("lab") {
                    folder = Some("crates/lab/lab/tests");
                } else if part.trim() != "," {
                    folder = None;
                }
                continue;
            }
            let path = match folder {
                Some(folder) => format!("{folder}/{part}.rs"),
                None if part.contains('/')
                    && !part.contains([' ', '<'])
                    && !part.starts_with('/') =>
                {
                    part.to_owned()
                }
                None => continue,
            };
            let exists = root().join(&path).exists();
            assert!(exists, "{PAGE}: {path} does not exist: {row}");
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked} names were found");
}

#[test]
fn every_cited_requirement_is_published() {
    const PAGE: &str = "docs/reference/requirements.md";
    let page = read(PAGE);
    let rows = page.lines().filter(|line| line.starts_with("| <a id=\"r"));
    let mut published = BTreeSet::new();
    for row in rows {
        let number = *requirements(cells(row)[0]).first().expect("a row begins with its number");
        assert!(published.insert(number), "{PAGE}: R{number} stands there twice");
        assert!(row.contains(&format!("<a id=\"r{number}\">")), "{PAGE}: the anchor of R{number}");
        assert!(cells(row).iter().all(|cell| !cell.is_empty()), "{PAGE}: an empty cell: {row}");
    }
    for file in files(&[".md", ".rs", ".py", ".sh", ".mjs", ".go", ".toml"]) {
        if file == PAGE || file.ends_with("pages.rs") {
            continue;
        }
        for number in requirements(&read(&file)) {
            assert!(published.contains(&number), "{file} cites R{number}, which {PAGE} lacks");
        }
    }
}

/// The anchors that GitHub and mdBook generate for a page's headings, and the anchors written in
/// the page.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors: BTreeSet<String> =
        between(text, "<a id=\"", '"').into_iter().map(str::to_owned).collect();
    let mut in_block = false;
    for line in text.lines() {
        in_block ^= line.trim_start().starts_with("```");
        let Some(title) = line.trim_start_matches('#').strip_prefix(' ') else { continue };
        if in_block || !line.starts_with('#') {
            continue;
        }
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        anchors.insert(kept.collect::<String>().to_lowercase().replace(' ', "-"));
    }
    anchors
}

/// Links of a page to files in this repository.
fn links(text: &str) -> Vec<String> {
    let mut shown = String::new();
    let mut in_block = false;
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        if !in_block && !is_fence {
            // Text in backticks is not a link.
            let pieces: Vec<&str> = line.split('`').step_by(2).collect();
            shown.push_str(&pieces.join(" "));
            shown.push('\n');
        }
    }
    let mut links: Vec<&str> = between(&shown, "](", ')');
    links.extend(between(&shown, "src=\"", '"'));
    links
        .into_iter()
        .filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let mut checked = 0;
    for page in files(&[".md"]) {
        let text = read(&page);
        let folder = root().join(&page).parent().unwrap().to_owned();
        for link in links(&text) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { root().join(&page) } else { folder.join(path) };
            assert!(target.exists(), "{page}: nothing is at {link}");
            if !anchor.is_empty() && target.extension().is_some_and(|name| name == "md") {
                let there = anchors(&std::fs::read_to_string(&target).unwrap());
                assert!(there.contains(anchor), "{page}: no heading is at {link}");
            }
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked} links were found");
}

/// Every page of docs/ appears exactly once in the contents of the site.
#[test]
fn the_site_has_every_page() {
    let summary = read("docs/SUMMARY.md");
    let listed = links(&summary);
    let unique: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
    assert_eq!(unique.len(), listed.len(), "docs/SUMMARY.md lists a page twice");
    for page in files(&[".md"]) {
        if let Some(page) = page.strip_prefix("docs/").filter(|page| *page != "SUMMARY.md") {
            assert!(unique.contains(page), "docs/SUMMARY.md lacks {page}");
        }
    }
}

/// The index of decisions lists each of them under its own title.
#[test]
fn the_index_has_every_decision() {
    let index = read("docs/decisions/README.md");
    for page in files(&[".md"]) {
        let Some(name) = page
            .strip_prefix("docs/decisions/")
            .filter(|name| !["README.md", "archive.md"].contains(name))
        else {
            continue;
        };
        let row = index.lines().find(|line| line.contains(&format!("]({name})")));
        let row = row.unwrap_or_else(|| panic!("docs/decisions/README.md lacks {name}"));
        assert!(row.contains(&name[..4]), "{row}: the number of {name}");
        let cells = cells(row);
        assert!(cells.len() == 4 && cells.iter().all(|cell| !cell.is_empty()), "{row}");
    }
}

/// The drawing of the recording matches the recording.
#[test]
fn the_recording_is_drawn_from_what_was_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let drawn = folder.path().join("demo.svg");
    let output = Command::new("python3")
        .args(["-B", "scripts/recording.py", "draw", "docs/images/demo.cast"])
        .arg(&drawn)
        .args(["make", "demo"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let drawn = std::fs::read_to_string(&drawn).unwrap();
    assert!(drawn == read("docs/images/demo.svg"), "scripts/record-demo.sh --draw");
    assert!(drawn.contains("6000 readings of 60 sensors"), "the demo did not run to its end");
}
