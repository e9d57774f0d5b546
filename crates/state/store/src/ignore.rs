//! The files that a deploy leaves out: those of a fixed list, then those in `.moteignore` or,
//! without it, in `.gitignore`, and files of secrets that neither of them mentions.
//!
//! The rules are the common part of git's: comments, `!`, `/` at the start or end, `*`, `?` and
//! `**`. Only the file at the top of the folder is read.

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
    /// It is deployed.
    Packed,
    /// It is left out, because of the fixed list or a rule.
    LeftOut,
    /// It is left out although no rule says so, because files of its name hold secrets; a message
    /// tells the user.
    Secret,
}

struct Rule {
    /// Components, which are matched against the end of a path unless the rule is anchored.
    parts: Vec<String>,
    anchored: bool,
    only_dirs: bool,
    keeps: bool,
}

#[derive(Default)]
pub(crate) struct Ignore {
    rules: Vec<Rule>,
}

impl Ignore {
    /// Reads the rules; `text` is the content of `.moteignore` or `.gitignore`.
    pub(crate) fn parse(text: &str) -> Self {
        let rules = text.lines().filter_map(rule).collect();
        Self { rules }
    }

    /// The decision about the entry at `path` (components joined by `/`). The last rule that
    /// matches applies.
    pub(crate) fn verdict(&self, path: &str, is_dir: bool) -> Verdict {
        let name = path.rsplit('/').next().unwrap_or(path);
        if ALWAYS.contains(&name) || name.ends_with(".pyc") {
            return Verdict::LeftOut;
        }
        match self.rules.iter().rev().find(|rule| rule.matches(path, is_dir)) {
            Some(rule) if rule.keeps => Verdict::Packed,
            Some(_) => Verdict::LeftOut,
            None if !is_dir && holds_secrets(name) => Verdict::Secret,
            None => Verdict::Packed,
        }
    }
}

/// Whether a file of this name holds environment variables of one machine, which often are secrets:
/// `.env`, `.env.local` and so on, but not an example file that is meant to be read.
fn holds_secrets(name: &str) -> bool {
    name == ".env" || (name.starts_with(".env.") && name != ".env.example")
}

fn rule(line: &str) -> Option<Rule> {
    let line = line.trim_end();
    let (keeps, line) = match line.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let (only_dirs, line) = match line.strip_suffix('/') {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let anchored = line.contains('/');
    let parts: Vec<String> =
        line.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
    (!parts.is_empty()).then_some(Rule { parts, anchored, only_dirs, keeps })
}

impl Rule {
    fn matches(&self, path: &str, is_dir: bool) -> bool {
        if self.only_dirs && !is_dir {
            return false;
        }
        let names: Vec<&str> = path.split('/').collect();
        if self.anchored {
            parts_match(&self.parts, &names)
        } else {
            names.last().is_some_and(|name| glob(self.parts[0].as_bytes(), name.as_bytes()))
        }
    }
}

fn parts_match(parts: &[String], names: &[&str]) -> bool {
    match (parts.split_first(), names.split_first()) {
        (None, None) => true,
        (Some((part, rest)), _) if part == "**" => {
            (0..=names.len()).any(|skipped| parts_match(rest, &names[skipped..]))
        }
        (Some((part, parts)), Some((name, names))) => {
            glob(part.as_bytes(), name.as_bytes()) && parts_match(parts, names)
        }
        _ => false,
    }
}

/// Matches `*` and `?` within one name. It is linear, because it remembers one place to continue
/// from.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while n < name.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            back = Some((p + 1, n));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == b'?' || pattern[p] == name[n]) {
            p += 1;
            n += 1;
        } else if let Some((after_star, tried)) = back {
            p = after_star;
            n = tried + 1;
            back = Some((after_star, n));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules() {
        let ignore = Ignore::parse("# comment\n*.log\n!keep.log\n/build\nlogs/\na/**/z\n");
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
            assert_eq!(Ignore::parse(rules).verdict(path, is_dir), expected, "{rules:?}, {path}");
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
    fn a_hostile_pattern_is_not_slow() {
        let pattern = "*a".repeat(200);
        let name = "a".repeat(199) + "b";
        assert!(!glob(pattern.as_bytes(), name.as_bytes()));
    }
}
