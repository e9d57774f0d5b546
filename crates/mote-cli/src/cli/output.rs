//! Prints results and messages: formats, tables, colour.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

pub(super) use mote_api::harmless;
use mote_api::text::is_bidirectional_control;

use super::args::{Format, Global, When};
use super::failure::Failure;

/// The version of this program.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// A column of text is left out if it would be cut to fewer characters than this.
const CUT_MIN: usize = 16;

/// The output settings of this command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output {
    pub(super) format: Format,
    quiet: bool,
    pub(super) verbose: bool,
    color: bool,
    /// Whether the terminal can show more than ASCII.
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

    /// The mark in front of a check or a step: coloured if colours are enabled, ASCII if the locale
    /// has no other characters.
    pub(super) fn mark(&self, mark: Mark) -> String {
        let (color, unicode, ascii) = match mark {
            Mark::Done => ("32", "\u{2713}", "ok"),
            Mark::Warn => ("33", "\u{203c}", "!!"),
            Mark::Fail => ("31", "\u{d7}", "x "),
        };
        self.painted(color, if self.unicode { unicode } else { ascii })
    }

    /// Prints a result in the chosen format. `table` is for people; `names` are the names of its
    /// objects.
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
            Format::Yaml => yaml_serde::to_string(value).map_err(|error| bad(&error))?,
            Format::Name => names.iter().map(|name| format!("{name}\n")).collect(),
        };
        self.print(text.as_bytes())
    }

    /// Prints several results; with `jsonl`, one per line.
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

    /// Whether progress messages are enabled.
    pub(super) fn is_talkative(&self) -> bool {
        !self.quiet
    }

    /// Prints a message. Text that it quotes cannot control the terminal.
    pub(super) fn say(&self, text: &str) {
        self.talk(&harmless(text));
    }

    /// Prints a line that may contain our own colours.
    fn talk(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// Prints a finished step: mark, name, result and duration.
    pub(super) fn step(&self, name: &str, detail: &str, ms: Option<u64>) {
        let mark = self.mark(Mark::Done);
        let time = match ms {
            Some(ms) if ms >= 100 => format!("   {}", mote_api::quantity::duration_text(ms)),
            _ => String::new(),
        };
        self.talk(&format!("  {mark} {:<10} {}{time}", harmless(name), harmless(detail)));
    }

    pub(super) fn warn(&self, text: &str) {
        let word = self.painted("33", "warning");
        self.talk(&format!("{word}: {}", harmless(text)));
    }

    /// Prints an error; no option suppresses errors.
    pub(super) fn failure(&self, failure: &Failure) {
        for mistake in &failure.mistakes {
            let head = self.painted("31", &format!("error[{}]", mistake.code));
            // An error may quote text of a function, a file or a node.
            let mut text = format!("{head}: {}\n", harmless_lines(&mistake.text));
            if let Some(hint) = &mistake.hint {
                text.push_str(&format!("  {}\n", harmless_lines(hint)));
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

    fn painted(&self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The outcome of a check or a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Done,
    Warn,
    Fail,
}

/// Whether the locale's character set is UTF-8. The first of `LC_ALL`, `LC_CTYPE` and `LANG` that
/// is set decides (POSIX, 8.2). If none is set, the system's default is assumed to be UTF-8.
fn is_utf8_locale(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
    let Some(locale) = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set) else { return true };
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Columns of the terminal on standard output; `None` if it is not a terminal.
fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// A table with two spaces between columns. Text from the function or node cannot control the
/// terminal. If the table is wider than the terminal, every row becomes a block with a line per
/// column, so that nothing is cut and no row wraps.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    table_within(head, rows, terminal_columns())
}

/// The same for a terminal of this many columns.
fn table_within(head: &[&str], rows: &[Vec<String>], columns: Option<usize>) -> String {
    let clean: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| harmless(cell)).collect()).collect();
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in &clean {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let whole = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
    if columns.is_some_and(|columns| whole > columns) {
        return blocks(head, &clean);
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

/// How a table is shortened when it is wider than the terminal.
#[derive(Debug, Clone, Copy)]
pub(super) enum Narrow {
    /// Leave out this column.
    Drop(usize),
    /// Cut the end of the text in this column, or leave the column out if little would remain.
    Cut(usize),
}

/// A table that is shortened, in the order of `steps`, until it fits the terminal. If it still does
/// not fit, it is drawn as in [`table`].
pub(super) fn table_narrowed(head: &[&str], rows: &[Vec<String>], steps: &[Narrow]) -> String {
    narrowed_within(head, rows, steps, terminal_columns())
}

fn narrowed_within(
    head: &[&str],
    rows: &[Vec<String>],
    steps: &[Narrow],
    columns: Option<usize>,
) -> String {
    let Some(columns) = columns else { return table_within(head, rows, None) };
    let mut rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| harmless(cell)).collect()).collect();
    let mut kept: Vec<usize> = (0..head.len()).collect();
    for step in steps {
        let width_of = |at: usize| {
            let cells = rows.iter().filter_map(|row| row.get(at)).map(String::as_str);
            cells.chain([head[at]]).map(|cell| cell.chars().count()).max().unwrap_or(0) + 2
        };
        let whole: usize = kept.iter().map(|at| width_of(*at)).sum();
        // The last column is not followed by spaces.
        let excess = whole.saturating_sub(2).saturating_sub(columns);
        if excess == 0 {
            break;
        }
        match *step {
            Narrow::Cut(at) if width_of(at) >= excess + 2 + CUT_MIN => {
                let room = width_of(at) - 2 - excess;
                for cell in rows.iter_mut().filter_map(|row| row.get_mut(at)) {
                    if cell.chars().count() > room {
                        *cell = cell.chars().take(room - 2).chain("..".chars()).collect();
                    }
                }
            }
            Narrow::Cut(at) | Narrow::Drop(at) => kept.retain(|one| *one != at),
        }
    }
    let head: Vec<&str> = kept.iter().map(|at| head[*at]).collect();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| kept.iter().filter_map(|at| row.get(*at).cloned()).collect())
        .collect();
    table_within(&head, &rows, Some(columns))
}

/// Each row as a block: its first cell, then a line for every other column that is not empty.
fn blocks(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = head.iter().skip(1).map(|name| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        text.push_str(row.first().map_or("", String::as_str));
        text.push('\n');
        for (name, cell) in head.iter().zip(row).skip(1).filter(|(_, cell)| *cell != "-") {
            text.push_str(&format!("  {name:<width$}  {cell}\n"));
        }
    }
    text
}

/// [`harmless`] for a text of several lines.
fn harmless_lines(text: &str) -> String {
    text.lines().map(harmless).collect::<Vec<_>>().join("\n")
}

/// JSON in which characters that control the terminal are escaped. JSON itself requires this only
/// for those below U+0020. None of the others can occur outside strings.
pub(super) fn escaped(json: &str) -> String {
    let steers = |c: char| (c.is_control() && c >= '\x7f') || is_bidirectional_control(c);
    if !json.contains(steers) {
        return json.to_owned();
    }
    let escape = |c: char| if steers(c) { format!("\\u{:04x}", c as u32) } else { c.to_string() };
    json.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_fit_the_terminal() {
        let rows = vec![vec!["thermo".to_owned(), "3".to_owned(), "-".to_owned()]];
        let head = ["NAME", "REQUESTS", "P50"];
        let table = "NAME    REQUESTS  P50\nthermo  3         -\n";
        assert_eq!(table_within(&head, &rows, None), table);
        assert_eq!(table_within(&head, &rows, Some(21)), table);
        let blocks = "thermo\n  REQUESTS  3\n";
        assert_eq!(table_within(&head, &rows, Some(20)), blocks);
        assert_eq!(table_within(&head, &[], Some(5)), "");
    }

    #[test]
    fn columns_are_given_up_until_a_table_fits() {
        let cells = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        let rows: Vec<Vec<String>> = vec![cells(&["thermo", "3", "0", "stopped (idle) 3 s ago"])];
        let head = ["NAME", "READY", "DRAINING", "LAST CHANGE"];
        let steps = [Narrow::Drop(2), Narrow::Cut(3)];
        for (columns, expected) in [
            (
                None,
                "NAME    READY  DRAINING  LAST CHANGE\nthermo  3      0         stopped (idle) 3 s ago\n",
            ),
            (
                Some(47),
                "NAME    READY  DRAINING  LAST CHANGE\nthermo  3      0         stopped (idle) 3 s ago\n",
            ),
            (Some(46), "NAME    READY  LAST CHANGE\nthermo  3      stopped (idle) 3 s ago\n"),
            (Some(31), "NAME    READY  LAST CHANGE\nthermo  3      stopped (idle)..\n"),
            (Some(30), "NAME    READY\nthermo  3\n"),
            (Some(8), "thermo\n  READY  3\n"),
        ] {
            assert_eq!(narrowed_within(&head, &rows, &steps, columns), expected, "{columns:?}");
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
