//! Prints results and messages in the chosen format and colour.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

pub(super) use crate::tables::{Narrow, table, table_narrowed};
pub(super) use mote_api::harmless;
use mote_api::text::is_bidirectional_control;

use super::args::{Format, Global, When};
use super::failure::Failure;

pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The output settings of this command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output {
    pub(super) format: Format,
    quiet: bool,
    pub(super) verbose: bool,
    color: bool,
    /// Whether the terminal can show characters other than ASCII.
    unicode: bool,
}

impl Output {
    pub(super) fn new(global: &Global) -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let color = match global.color {
            When::Always => true,
            When::Never => false,
            When::Auto if set("NO_COLOR") => false,
            When::Auto if set("CLICOLOR_FORCE") => true,
            When::Auto => {
                io::stderr().is_terminal()
                    && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
            }
        };
        let unicode = is_utf8_locale(|name| std::env::var(name).ok());
        Self { format: global.output, quiet: global.quiet, verbose: global.verbose, color, unicode }
    }

    /// Returns the mark in front of a check or a step. It is coloured if colours are enabled, and ASCII
    /// if the locale has no other characters.
    pub(super) fn mark(&self, mark: Mark) -> String {
        let (color, unicode, ascii) = match mark {
            Mark::Done => ("32", "\u{2713}", "ok"),
            Mark::Absent => ("2", "-", "- "),
            Mark::Warn => ("33", "\u{203c}", "!!"),
            Mark::Fail => ("31", "\u{d7}", "x "),
        };
        self.painted(color, if self.unicode { unicode } else { ascii })
    }

    /// Prints a result in the chosen format. `table` makes the format for people, and `names` are the
    /// names of the result's objects.
    pub(super) fn result<T: Serialize>(
        &self,
        value: &T,
        names: &[&str],
        table: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        let bad = |error: &dyn std::fmt::Display| Failure::new("M0103", format!("output: {error}"));
        let text = match self.format {
            Format::Table => table(),
            Format::Json => {
                escaped(&serde_json::to_string_pretty(value).map_err(|error| bad(&error))?) + "\n"
            }
            Format::Jsonl => {
                escaped(&serde_json::to_string(value).map_err(|error| bad(&error))?) + "\n"
            }
            Format::Yaml => yaml(value).map_err(|error| bad(&error))?,
            Format::Name => names.iter().map(|name| format!("{name}\n")).collect(),
        };
        self.print(text.as_bytes())
    }

    /// Prints several results. In the format `jsonl`, each result is on one line.
    pub(super) fn results<T: Serialize, W: Serialize>(
        &self,
        whole: &W,
        items: &[T],
        names: &[&str],
        table: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        if self.format != Format::Jsonl {
            return self.result(whole, names, table);
        }
        for item in items {
            self.result(item, names, String::new)?;
        }
        Ok(())
    }

    /// Writes bytes to standard output at once.
    pub(super) fn print(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()?;
        Ok(())
    }

    /// Returns whether progress messages are enabled.
    pub(super) fn is_talkative(&self) -> bool {
        !self.quiet
    }

    /// Prints a message. Text that the message quotes cannot control the terminal.
    pub(super) fn say(&self, text: &str) {
        self.talk(&harmless(text));
    }

    /// Prints a line of a result while its command runs. Formats for programs have it in the result.
    pub(super) fn shown(&self, line: &str) {
        if self.format == Format::Table {
            let _ = writeln!(io::stdout(), "{line}");
        }
    }

    /// Prints a line that may contain `mote`'s own colours.
    fn talk(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// Prints a finished step: mark, name, result and duration.
    pub(super) fn step(&self, name: &str, detail: &str, ms: Option<u64>) {
        let mark = self.mark(Mark::Done);
        let time = match ms {
            Some(ms) if ms >= 100 => format!("   {}", mote_spec::quantity::duration_text(ms)),
            _ => String::new(),
        };
        self.talk(&format!("  {mark} {:<10} {}{time}", harmless(name), harmless(detail)));
    }

    /// Shows a line in a terminal until the next one is printed. An empty text removes the line.
    pub(super) fn passing(&self, text: &str) {
        if !self.quiet && io::stderr().is_terminal() {
            let indent = if text.is_empty() { "" } else { "    " };
            let _ = write!(io::stderr(), "\r\x1b[K{indent}{}", harmless(text));
        }
    }

    pub(super) fn warn(&self, text: &str) {
        let word = self.painted("33", "warning");
        self.talk(&format!("{word}: {}", harmless(text)));
    }

    /// Prints an error, whatever the options are.
    pub(super) fn failure(&self, failure: &Failure) {
        for mistake in &failure.mistakes {
            let head = self.painted("31", &format!("error[{}]", mistake.code));
            // The error may quote text from a function, a file or a node, so it is made harmless.
            let mut text = format!("{head}: {}\n", harmless_lines(&mistake.text, 4));
            if let Some(hint) = &mistake.hint {
                text.push_str(&format!("  {}\n", harmless_lines(hint, 2)));
            }
            let _ = io::stderr().write_all(text.as_bytes());
        }
    }

    pub(super) fn version(&self) -> Result<(), Failure> {
        let value = serde_json::json!({
            "version": VERSION,
            "machine": std::env::consts::ARCH,
        });
        self.result(&value, &[VERSION], || format!("mote {VERSION}\n"))
    }

    pub(super) fn painted(&self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The outcome of a check or a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Done,
    /// Nothing is wrong, but nothing is there either.
    Absent,
    Warn,
    Fail,
}

/// Returns whether the locale's character set is UTF-8. The first of `LC_ALL`, `LC_CTYPE` and `LANG`
/// that is set decides (POSIX, 8.2). If none is set, the system's default is assumed to be UTF-8.
fn is_utf8_locale(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
    let Some(locale) = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set) else { return true };
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Applies [`harmless`] to a text of several lines. Every line after the first is indented by at least
/// `indent` columns, so that quoted text cannot imitate a line of `mote`.
fn harmless_lines(text: &str, indent: usize) -> String {
    let mut lines = text.lines();
    let mut all = harmless(lines.next().unwrap_or_default());
    for line in lines {
        let line = harmless(line).replace('\t', "    ");
        let own = line.len() - line.trim_start_matches(' ').len();
        all.push('\n');
        all.push_str(&" ".repeat(indent.saturating_sub(own)));
        all.push_str(&line);
    }
    all
}

/// Escapes the characters in JSON that could control the terminal. JSON itself requires this only for
/// characters below U+0020. The other characters can occur only inside strings.
pub(super) fn escaped(json: &str) -> String {
    let steers = |c: char| (c.is_control() && c >= '\x7f') || is_bidirectional_control(c);
    if !json.contains(steers) {
        return json.to_owned();
    }
    let escape = |c: char| if steers(c) { format!("\\u{:04x}", c as u32) } else { c.to_string() };
    json.chars().map(escape).collect()
}

/// Formats a value as YAML. YAML without quotes has no escapes, so text with characters that could
/// control the terminal is written as JSON, which is also valid YAML.
pub(super) fn yaml(value: &impl Serialize) -> Result<String, Box<dyn std::error::Error>> {
    let text = yaml_serde::to_string(value)?;
    if text.lines().all(|line| harmless(line) == line) {
        return Ok(text);
    }
    Ok(escaped(&serde_json::to_string_pretty(value)?) + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_text_has_no_line_that_looks_like_ours() {
        for (text, expected) in [
            ("one", "one"),
            ("x failed\nok bad@1 is live", "x failed\n    ok bad@1 is live"),
            ("x\r\n  see: y", "x\n    see: y"),
            ("x\n\ty\n      z\n", "x\n    y\n      z"),
            ("x\rok\u{2028}ok\u{2029}ok\u{85}ok", "x?ok?ok?ok?ok"),
            ("", ""),
        ] {
            assert_eq!(harmless_lines(text, 4), expected, "{text:?}");
        }
    }

    #[test]
    fn foreign_text_cannot_steer_the_terminal() {
        for (text, expected) in [
            ("a\tb \u{e9}", "a\tb \u{e9}"),
            ("\x1b[2J", "?[2J"),
            ("bell\x07 csi\u{9b}31m", "bell? csi?31m"),
            ("\u{202e}evil\u{2069}", "?evil?"),
        ] {
            assert_eq!(harmless(text), expected);
        }
        for text in ["a\u{9b}31m", "\u{202e}evil", "x\u{2066}y\n", "\u{85}"] {
            let value = std::collections::BTreeMap::from([("text", text), ("fine", "\u{e9}")]);
            let yaml = yaml(&value).unwrap();
            assert!(yaml.lines().all(|line| harmless(line) == line), "{yaml:?}");
            let back: std::collections::BTreeMap<String, String> =
                yaml_serde::from_str(&yaml).unwrap();
            assert_eq!(back["text"], text);
        }
        let json = serde_json::to_string("\x1b \u{9b} \u{202e} \u{e9}").unwrap();
        assert_eq!(escaped(&json), "\"\\u001b \\u009b \\u202e \u{e9}\"");
        let value: String = serde_json::from_str(&escaped(&json)).unwrap();
        assert_eq!(value, "\x1b \u{9b} \u{202e} \u{e9}");
    }

    #[test]
    fn the_locale_says_whether_more_than_ascii_can_be_shown() {
        let check = |set: &[(&str, &str)]| {
            is_utf8_locale(|name| {
                let found = set.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert!(check(&[]));
        assert!(check(&[("LANG", "de_AT.UTF-8")]));
        assert!(check(&[("LANG", "C"), ("LC_CTYPE", "C.utf8")]));
        assert!(!check(&[("LANG", "en_US.UTF-8"), ("LC_ALL", "C")]));
        assert!(!check(&[("LC_ALL", ""), ("LANG", "POSIX")]));
    }
}
