//! Prints results and talk: formats, tables, colour.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::args::{Format, Global, When};
use super::failure::Failure;

/// How this command speaks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output {
    pub(super) format: Format,
    quiet: bool,
    pub(super) verbose: bool,
    color: bool,
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
        Self { format: global.output, quiet: global.quiet, verbose: global.verbose, color }
    }

    /// A result in the chosen format. `table` draws it for people, `names` are its objects.
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
                serde_json::to_string_pretty(value).map_err(|error| bad(&error))? + "\n"
            }
            Format::Jsonl => serde_json::to_string(value).map_err(|error| bad(&error))? + "\n",
            Format::Yaml => yaml_serde::to_string(value).map_err(|error| bad(&error))?,
            Format::Name => names.iter().map(|name| format!("{name}\n")).collect(),
        };
        self.print(text.as_bytes())
    }

    /// Several results; with `jsonl` one per line.
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

    /// Bytes to standard output, at once.
    pub(super) fn print(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()?;
        Ok(())
    }

    /// Whether talk is wanted.
    pub(super) fn is_talkative(&self) -> bool {
        !self.quiet
    }

    /// A line of talk.
    pub(super) fn say(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// A finished step: mark, name, what came out, how long it took.
    pub(super) fn step(&self, name: &str, detail: &str, ms: Option<u64>) {
        let mark = self.painted("32", "\u{2713}");
        let time = match ms {
            Some(ms) if ms >= 100 => format!("   {}", mote_api::quantity::duration_text(ms)),
            _ => String::new(),
        };
        self.say(&format!("  {mark} {name:<10} {detail}{time}"));
    }

    pub(super) fn warn(&self, text: &str) {
        let word = self.painted("33", "warning");
        self.say(&format!("{word}: {text}"));
    }

    /// An error; never silenced.
    pub(super) fn failure(&self, failure: &Failure) {
        for mistake in &failure.mistakes {
            let head = self.painted("31", &format!("error[{}]", mistake.code));
            let mut text = format!("{head}: {}\n", mistake.text);
            if let Some(hint) = &mistake.hint {
                text.push_str(&format!("  {hint}\n"));
            }
            let _ = io::stderr().write_all(text.as_bytes());
        }
    }

    pub(super) fn version(&self) -> Result<(), Failure> {
        let version = env!("CARGO_PKG_VERSION");
        let value = serde_json::json!({
            "version": version,
            "machine": std::env::consts::ARCH,
        });
        self.result(&value, &[version], || format!("mote {version}\n"))
    }

    fn painted(&self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A table with two spaces between columns; what the function or node said is made harmless.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let clean: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| harmless(cell)).collect()).collect();
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in &clean {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (cell, width) in cells.zip(&widths) {
            text.push_str(&format!("{cell:<width$}  "));
        }
        text.trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut head.iter().copied());
    for row in &clean {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

/// Without control characters, so that foreign text cannot steer the terminal.
pub(super) fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}
