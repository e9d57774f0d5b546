//! Mistakes in a project other than those that the reader of its manifest finds.

use std::path::Path;

use mote_spec::manifest;
use mote_spec::toml_reader::{Mistake, Mistakes};

/// Returns a mistake that does not belong to a line of the manifest.
pub(crate) fn mistake(code: &'static str, text: String, hint: Option<String>) -> Mistakes {
    Mistakes(vec![Mistake { line: 0, code, text, hint }])
}

/// Returns a mistake in a line of the manifest. Line 0 stands for a value that the files implied.
pub(super) fn in_manifest(code: &'static str, line: usize, text: &str) -> Mistakes {
    let text = match line {
        0 => text.to_owned(),
        line => format!("{}: {text} (line {line})", manifest::FILE_NAME),
    };
    Mistakes(vec![Mistake { line, code, text, hint: None }])
}

pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> Mistakes {
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or("").to_lowercase();
    let code = match error.kind() {
        // The file is a pipe, a device, or a link that leaves the folder. No archive may contain such a
        // file.
        std::io::ErrorKind::InvalidInput => "M1301",
        _ => "M0102",
    };
    mistake(code, format!("{}: {words}", path.display()), None)
}

pub(super) fn escaped(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}
