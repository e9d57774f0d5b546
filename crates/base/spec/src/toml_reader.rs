//! Reads a TOML file strictly and collects every mistake with its line.
//!
//! This module reads both the manifest and the node's configuration, so both report unknown keys,
//! misplaced keys and values out of range in the same way.

use std::fmt;
use std::ops::RangeInclusive;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::quantity::{self, QuantityError};
use crate::spelling::nearest;

/// A value and the line of its key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lined<T> {
    /// The value.
    pub value: T,
    /// The line in the file, counted from 1.
    pub line: usize,
}

/// One mistake in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    /// The line in the file, counted from 1; 0 if the mistake concerns the whole file.
    pub line: usize,
    /// Error code.
    pub code: &'static str,
    /// The text of the mistake, including file and line.
    pub text: String,
    /// A hint on how to correct it.
    pub hint: Option<String>,
}

/// All mistakes in a file, in the order of their lines. The command line prints its text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Mistakes(pub Vec<Mistake>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "error[{}]: {}", mistake.code, mistake.text)?;
            if let Some(hint) = &mistake.hint {
                write!(f, "\n  {hint}")?;
            }
        }
        Ok(())
    }
}

/// A table that is being read, with its names for messages.
#[derive(Debug, Clone, Copy)]
pub struct Section<'t> {
    table: &'t DeTable<'t>,
    /// `[limits]`, or empty for the top level of the file.
    label: &'t str,
    /// The name of the part to which TOML assigns a key that follows this section: `[limits]`,
    /// `that trigger`.
    part: &'t str,
}

impl<'t> Section<'t> {
    /// The keys and values.
    pub fn table(&self) -> &'t DeTable<'t> {
        self.table
    }
}

/// A file that is being read.
#[derive(Debug)]
pub struct TomlReader<'a> {
    file: &'a str,
    source: &'a str,
    mistakes: Vec<Mistake>,
    /// The keys of each section, for hints about a key in the wrong section.
    sections: &'static [(&'static str, &'static [&'static str])],
}

impl<'a> TomlReader<'a> {
    /// Begins to read the text of `file`. The file's name is used only in messages.
    pub fn new(file: &'a str, source: &'a str) -> Self {
        Self { file, source, mistakes: Vec::new(), sections: &[] }
    }

    /// Sets the sections to which keys belong.
    pub fn with_sections(
        self,
        sections: &'static [(&'static str, &'static [&'static str])],
    ) -> Self {
        Self { sections, ..self }
    }

    /// Parses the text. A syntax error ends the reading at once.
    pub fn parse(&self) -> Result<Spanned<DeTable<'a>>, Mistakes> {
        DeTable::parse(self.source).map_err(|error| {
            let line = error.span().map_or(0, |span| self.line(span.start));
            let words = error.message().lines().next().unwrap_or("not TOML");
            // The most frequent mistake gets its own message, because the parser's message would
            // mention booleans.
            let (text, hint) = match self.bare_word(line) {
                Some((key, word)) => {
                    (format!("`{word}` needs quotes"), Some(format!("write {key} = \"{word}\"")))
                }
                None => (words.to_owned(), None),
            };
            Mistakes(vec![Mistake {
                line,
                code: "M0301",
                text: format!("{}: {text} (line {line})", self.file),
                hint,
            }])
        })
    }

    /// Finds `key = word` on this line, where the word is a text without quotes.
    fn bare_word(&self, line: usize) -> Option<(&'a str, &'a str)> {
        let text = self.source.lines().nth(line.checked_sub(1)?)?;
        let (key, word) = text.split_once('=')?;
        let key = key.trim();
        let word = word.trim();
        let plain = |c: char| c.is_alphanumeric() || "-_./:".contains(c);
        let is_bare = word.starts_with(|c: char| c.is_alphabetic() || c == '/' || c == '.')
            && word.chars().all(plain)
            && !matches!(word, "true" | "false" | "inf" | "nan");
        (is_bare && key.chars().all(plain)).then_some((key, word))
    }

    /// Ends the reading. Returns all mistakes as an error, if there are any.
    pub fn finish(self) -> Result<(), Mistakes> {
        let mistakes = self.mistakes();
        if mistakes.is_empty() { Ok(()) } else { Err(Mistakes(mistakes)) }
    }

    /// Ends the reading. Returns all mistakes in the order of their lines, for a caller that makes
    /// further checks.
    pub fn mistakes(mut self) -> Vec<Mistake> {
        self.mistakes.sort_unstable();
        self.mistakes
    }

    /// The line of a byte offset, counted from 1.
    pub fn line(&self, offset: usize) -> usize {
        let end = offset.min(self.source.len());
        self.source.as_bytes()[..end].iter().filter(|byte| **byte == b'\n').count() + 1
    }

    /// Records a mistake at `line`. The file and the line are added to the message.
    pub fn mistake(&mut self, code: &'static str, line: usize, text: &str, hint: Option<String>) {
        let text = match line {
            0 => format!("{}: {text}", self.file),
            line => format!("{}: {text} (line {line})", self.file),
        };
        self.mistakes.push(Mistake { line, code, text, hint });
    }

    /// The top level of the file as a section.
    pub fn top<'t>(&self, table: &'t DeTable<'t>) -> Section<'t> {
        Section { table, label: "", part: "" }
    }

    /// Reads a table as a section. `part` names the part of the file in which a misplaced key should
    /// have been written.
    pub fn section<'t>(
        &self,
        table: &'t DeTable<'t>,
        label: &'t str,
        part: &'t str,
    ) -> Section<'t> {
        Section { table, label, part }
    }

    /// Records every key that is not in `known`. `later` are keys that are planned, and `top` are
    /// keys that belong above the first section.
    pub fn check_keys(
        &mut self,
        section: &Section<'_>,
        known: &[&str],
        later: &[&str],
        top: &[&str],
    ) {
        for key in section.table.keys() {
            let name: &str = key.get_ref();
            let line = self.line(key.span().start);
            if known.contains(&name) {
                continue;
            }
            if later.contains(&name) {
                let place = place(section);
                self.mistake(
                    "M0305",
                    line,
                    &format!("`{name}`{place} is not supported yet"),
                    Some("remove it for now".to_owned()),
                );
            } else if top.contains(&name) && !section.label.is_empty() {
                let text = format!(
                    "{}: `{name}` (line {line}) is below {}, so TOML reads it as part of {}",
                    self.file, section.label, section.part
                );
                self.mistakes.push(Mistake {
                    line,
                    code: "M0304",
                    text,
                    hint: Some("move it above the first [section]".to_owned()),
                });
            } else {
                let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
                let elsewhere: Vec<&str> = self
                    .sections
                    .iter()
                    .filter(|(label, keys)| *label != section.label && keys.contains(&name))
                    .map(|(label, _)| *label)
                    .collect();
                let hint = match nearest(name, known.iter().copied()) {
                    Some(near) if elsewhere.is_empty() => format!("did you mean `{near}`?"),
                    Some(near) => format!(
                        "did you mean `{near}`? If not, write it below {}",
                        elsewhere.join(" or ")
                    ),
                    None if !elsewhere.is_empty() => {
                        format!("write it below {}", elsewhere.join(" or "))
                    }
                    None => format!("known here: {}", known.join(", ")),
                };
                let place = place(section);
                self.mistake("M0302", line, &format!("unknown key `{shown}`{place}"), Some(hint));
            }
        }
    }

    /// The value of `key` with its line.
    pub fn get<'t>(&self, section: &Section<'t>, key: &str) -> Option<(&'t DeValue<'t>, usize)> {
        let (key, value) = section.table.get_key_value(key)?;
        Some((value.get_ref(), self.line(key.span().start)))
    }

    /// Records that `key` has the wrong type.
    pub fn wrong_type(&mut self, key: &str, line: usize, wanted: &str, found: &DeValue<'_>) {
        let found = match found {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a number",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "an array",
            DeValue::Table(_) => "a table",
        };
        self.mistake("M0303", line, &format!("{key}: {wanted}; found {found}"), None);
    }

    /// Reads a string.
    pub fn string(
        &mut self,
        section: &Section<'_>,
        key: &str,
        wanted: &str,
    ) -> Option<Lined<String>> {
        let (value, line) = self.get(section, key)?;
        match value.as_str() {
            Some(text) => Some(Lined { value: text.to_owned(), line }),
            None => {
                self.wrong_type(key, line, wanted, value);
                None
            }
        }
    }

    /// Reads an array of strings.
    pub fn strings(
        &mut self,
        section: &Section<'_>,
        key: &str,
        wanted: &str,
    ) -> Option<Lined<Vec<String>>> {
        let (value, line) = self.get(section, key)?;
        let items = value.as_array().and_then(|array| {
            array
                .iter()
                .map(|item| item.get_ref().as_str().map(str::to_owned))
                .collect::<Option<Vec<_>>>()
        });
        if items.is_none() {
            self.wrong_type(key, line, wanted, value);
        }
        items.map(|value| Lined { value, line })
    }

    /// Reads true or false.
    pub fn boolean(&mut self, section: &Section<'_>, key: &str) -> Option<Lined<bool>> {
        let (value, line) = self.get(section, key)?;
        match value.as_bool() {
            Some(value) => Some(Lined { value, line }),
            None => {
                self.wrong_type(key, line, "true or false", value);
                None
            }
        }
    }

    /// Reads a whole number within `range`.
    pub fn integer(
        &mut self,
        section: &Section<'_>,
        key: &str,
        range: RangeInclusive<u64>,
    ) -> Option<Lined<u64>> {
        let (value, line) = self.get(section, key)?;
        let wanted = format!("a whole number from {} to {}", range.start(), range.end());
        let DeValue::Integer(integer) = value else {
            self.wrong_type(key, line, &wanted, value);
            return None;
        };
        match i128::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number)
                if number >= i128::from(*range.start()) && number <= i128::from(*range.end()) =>
            {
                u64::try_from(number).ok().map(|value| Lined { value, line })
            }
            _ => {
                let text = format!("{key}: {wanted}; found {}", integer.as_str());
                self.mistake("M0303", line, &text, None);
                None
            }
        }
    }

    /// Reads a whole number or a fraction, within `range` thousandths, and returns thousandths.
    pub fn thousandths(
        &mut self,
        section: &Section<'_>,
        key: &str,
        range: RangeInclusive<u32>,
        wanted: &str,
    ) -> Option<Lined<u32>> {
        let (value, line) = self.get(section, key)?;
        let number: Option<f64> = match value {
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().parse().ok(),
            DeValue::Float(number) => number.as_str().parse().ok(),
            _ => None,
        };
        let milli = number.map(|number| (number * 1000.0).round());
        match milli {
            Some(milli)
                if milli >= f64::from(*range.start()) && milli <= f64::from(*range.end()) =>
            {
                // The number is in the range, so the conversion is exact.
                Some(Lined { value: milli as u32, line })
            }
            _ => {
                self.mistake("M0303", line, &format!("{key}: {wanted}"), None);
                None
            }
        }
    }

    /// Reads a size such as `64MiB`. `wanted` is the range as text.
    pub fn size(
        &mut self,
        section: &Section<'_>,
        key: &str,
        range: RangeInclusive<u64>,
        wanted: &str,
    ) -> Option<Lined<u64>> {
        self.quantity(section, key, range, wanted, quantity::parse_size)
    }

    /// Reads a duration such as `10s`, and returns milliseconds. `wanted` is the range as text.
    pub fn duration_ms(
        &mut self,
        section: &Section<'_>,
        key: &str,
        range: RangeInclusive<u64>,
        wanted: &str,
    ) -> Option<Lined<u64>> {
        self.quantity(section, key, range, wanted, quantity::parse_duration_ms)
    }

    fn quantity(
        &mut self,
        section: &Section<'_>,
        key: &str,
        range: RangeInclusive<u64>,
        wanted: &str,
        parse: fn(&str) -> Result<u64, QuantityError>,
    ) -> Option<Lined<u64>> {
        let (value, line) = self.get(section, key)?;
        let Some(text) = value.as_str() else {
            self.wrong_type(key, line, wanted, value);
            return None;
        };
        let shown: String = text.chars().take(32).flat_map(char::escape_debug).collect();
        let hint = match parse(text) {
            Ok(number) if range.contains(&number) => {
                return Some(Lined { value: number, line });
            }
            Err(QuantityError::DecimalUnit(cure)) => Some(format!("did you mean `{cure}`?")),
            _ => None,
        };
        let text = format!("{key}: {wanted}; found \"{shown}\"");
        self.mistake("M0303", line, &text, hint);
        None
    }
}

fn place(section: &Section<'_>) -> String {
    if section.label.is_empty() { String::new() } else { format!(" in {}", section.label) }
}
