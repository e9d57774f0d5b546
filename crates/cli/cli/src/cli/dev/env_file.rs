//! Reads `.env`, in the form that most tools understand.

use std::collections::BTreeMap;
use std::path::Path;

use mote_store::source;

/// The largest `.env` that is read.
const BYTES_MAX: u64 = 256 << 10;
/// The longest name of a variable. The name of a secret contains it.
const NAME_BYTES_MAX: usize = 128;

/// What a file with variables says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct EnvFile {
    pub(super) variables: BTreeMap<String, String>,
    /// The lines that are not variables, counted from 1.
    pub(super) odd_lines: Vec<usize>,
}

impl EnvFile {
    /// Reads the file of a folder. Returns `None` if there is none.
    pub(super) fn read(folder: &Path) -> std::io::Result<Option<Self>> {
        let file = folder.join(super::changes::ENV_FILE);
        match source::bytes(&file, folder, BYTES_MAX) {
            Ok(bytes) => Ok(Some(Self::parse(&String::from_utf8_lossy(&bytes)))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads `NAME=value`, optionally after `export`. A value in quotes may contain `#`; in double
    /// quotes, `\n` is a line end. Values have one line.
    fn parse(text: &str) -> Self {
        let mut file = Self::default();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let pair = line.strip_prefix("export ").unwrap_or(line).split_once('=');
            match pair.map(|(name, value)| (name.trim(), value_of(value.trim()))) {
                Some((name, Some(value))) if is_name(name) => {
                    file.variables.insert(name.to_owned(), value);
                }
                _ => file.odd_lines.push(at + 1),
            }
        }
        file
    }
}

/// Whether a function may have a variable with this name. `mote` itself sets all variables with
/// other names.
fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    name.len() <= NAME_BYTES_MAX
        && bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.starts_with("MOTE_")
        && name != "PORT"
}

fn value_of(text: &str) -> Option<String> {
    let quote = text.chars().next().filter(|first| matches!(first, '"' | '\''));
    let Some(quote) = quote else {
        let end = text.find(" #").unwrap_or(text.len());
        return Some(text[..end].trim_end().to_owned());
    };
    let mut value = String::new();
    let mut rest = text[1..].chars();
    while let Some(next) = rest.next() {
        match next {
            '\\' if quote == '"' => match rest.next()? {
                'n' => value.push('\n'),
                'r' => value.push('\r'),
                't' => value.push('\t'),
                other => value.push(other),
            },
            end if end == quote => {
                let after = rest.as_str().trim_start();
                return (after.is_empty() || after.starts_with('#')).then_some(value);
            }
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_forms() {
        let text = "# a comment\n\nPLAIN=one two # a comment\nexport TOKEN=a#b\nEMPTY=\n\
                    SINGLE='$a \\n # b'\nDOUBLE=\"a\\n\\\"b\\\"\" # c\n SPACED = x \n";
        let file = EnvFile::parse(text);
        let expected = [
            ("PLAIN", "one two"),
            ("TOKEN", "a#b"),
            ("EMPTY", ""),
            ("SINGLE", "$a \\n # b"),
            ("DOUBLE", "a\n\"b\""),
            ("SPACED", "x"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(file, EnvFile { variables: expected.into(), odd_lines: Vec::new() });
    }

    #[test]
    fn lines_that_are_no_variables_are_counted() {
        let text = "A\n1B=x\nMOTE_X=1\nPORT=1\nOPEN=\"x\nAFTER='x' y\nGOOD=1\n";
        let file = EnvFile::parse(text);
        assert_eq!(file.odd_lines, [1, 2, 3, 4, 5, 6]);
        assert_eq!(file.variables.len(), 1);
    }
}
