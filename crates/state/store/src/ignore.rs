//! Decides which files a deploy leaves out: files on a fixed list, files that `.moteignore` names
//! (or, if there is none, `.gitignore`), and files with secrets that neither of these mentions.
//!
//! The rules are git's, and the crate `ignore` reads them. Only the rules at the top of the folder
//! are read.

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// Names that are never part of a function.
const ALWAYS: [&str; 11] = [
    ".git",
    ".hg",
    ".svn",
    "__pycache__",
    ".venv",
    "venv",
    ".mypy_cache",
    ".pytest_cache",
    ".DS_Store",
    ".moteignore",
    ".gitignore",
];

/// The decision about an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The entry is deployed.
    Packed,
    /// The entry is left out because of the fixed list or a rule.
    LeftOut,
    /// The entry is left out even though no rule names it, because files with its name hold
    /// secrets. A message tells the user.
    Secret,
}

pub(crate) struct Ignore {
    rules: Gitignore,
}

impl Default for Ignore {
    fn default() -> Self {
        Self { rules: Gitignore::empty() }
    }
}

impl Ignore {
    /// Reads the rules. `text` is the content of `.moteignore` or `.gitignore`. If a rule cannot be
    /// read, the error names its line. Such a rule is not skipped, because it may be meant to leave
    /// out a secret.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut rules = GitignoreBuilder::new("");
        for (at, line) in text.lines().enumerate() {
            rules.add_line(None, line).map_err(|error| format!("line {}: {error}", at + 1))?;
        }
        Ok(Self { rules: rules.build().map_err(|error| error.to_string())? })
    }

    /// Decides about the entry at `path` (components joined by `/`). The last matching rule
    /// applies.
    pub(crate) fn verdict(&self, path: &str, is_dir: bool) -> Verdict {
        let name = path.rsplit('/').next().unwrap_or(path);
        if ALWAYS.contains(&name) || name.ends_with(".pyc") {
            return Verdict::LeftOut;
        }
        match self.rules.matched(path, is_dir) {
            Match::Whitelist(_) => Verdict::Packed,
            Match::Ignore(_) => Verdict::LeftOut,
            Match::None if !is_dir && holds_secrets(name) => Verdict::Secret,
            Match::None => Verdict::Packed,
        }
    }
}

/// Whether a file of this name holds environment variables of one machine, which often are secrets.
/// Matches `.env`, `.env.local` and so on, but not an example file that is meant to be read.
fn holds_secrets(name: &str) -> bool {
    name == ".env" || (name.starts_with(".env.") && name != ".env.example")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules() {
        let text = "# comment\n*.log\n!keep.log\n/build\nlogs/\na/**/z\nv[0-9]\n\\!x\nc/*\r\n";
        let ignore = Ignore::parse(text).unwrap();
        for (path, is_dir, out) in [
            ("x.log", false, true),
            ("d/x.log", false, true),
            ("keep.log", false, false),
            ("build", true, true),
            ("d/build", true, false),
            ("logs", true, true),
            ("logs", false, false),
            ("a/z", false, true),
            ("a/b/c/z", false, true),
            ("b/z", false, false),
            ("v1", false, true),
            ("va", false, false),
            ("!x", false, true),
            ("c/d", true, true),
            ("d/c/d", true, false),
            ("main.py", false, false),
            (".git", true, true),
            ("d/__pycache__", true, true),
            ("m.pyc", false, true),
        ] {
            let expected = if out { Verdict::LeftOut } else { Verdict::Packed };
            assert_eq!(ignore.verdict(path, is_dir), expected, "{path}");
        }
    }

    #[test]
    fn files_of_secrets_are_left_out_unless_a_rule_says_otherwise() {
        let check = |rules: &str, path: &str, is_dir: bool, expected: Verdict| {
            let ignore = Ignore::parse(rules).unwrap();
            assert_eq!(ignore.verdict(path, is_dir), expected, "{rules:?}, {path}");
        };
        for path in [".env", ".env.local", "d/.env", "d/.env.production"] {
            check("", path, false, Verdict::Secret);
            check("*.log", path, false, Verdict::Secret);
            check(".env*", path, false, Verdict::LeftOut);
            check("!.env*", path, false, Verdict::Packed);
            check("", path, true, Verdict::Packed);
        }
        for path in [".env.example", ".environment", "x.env", ".envrc"] {
            check("", path, false, Verdict::Packed);
        }
    }

    #[test]
    fn a_rule_that_cannot_be_read_is_refused_with_its_line() {
        let error = Ignore::parse("*.log\n[b-a]\n").err().unwrap();
        assert!(error.starts_with("line 2: "), "{error}");
    }

    #[test]
    fn a_hostile_pattern_is_not_slow() {
        let ignore = Ignore::parse(&"*a".repeat(200)).unwrap();
        assert_eq!(ignore.verdict(&("a".repeat(199) + "b"), false), Verdict::Packed);
    }
}
