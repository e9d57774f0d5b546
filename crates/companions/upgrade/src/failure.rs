//! The reason for which an upgrade ends without success.

use std::fmt::Display;
use std::process::ExitCode;

use mote_api::error::explain;
use mote_api::{exit, harmless};

/// The command line is not valid.
pub(crate) const USAGE: &str = "M0101";
/// A file cannot be read or written.
pub(crate) const FILE: &str = "M0102";
/// The archive is not a release, or it is damaged.
pub(crate) const ARCHIVE: &str = "M0150";
/// The signature is missing or wrong.
pub(crate) const SIGNATURE: &str = "M0151";
/// The release does not fit this machine or this installation.
pub(crate) const UNFIT: &str = "M0152";
/// The new version did not start, and the former version runs again.
pub(crate) const WENT_BACK: &str = "M0153";

/// What failed on which object, and what the user can do.
#[derive(Debug)]
pub(crate) struct Failure {
    code: &'static str,
    text: String,
    hint: String,
}

impl Failure {
    pub(crate) fn new(code: &'static str, text: impl Display, hint: impl Display) -> Self {
        Self { code, text: text.to_string(), hint: hint.to_string() }
    }

    pub(crate) fn file(path: impl AsRef<std::path::Path>, error: &std::io::Error) -> Self {
        let text = format!("{}: {error}", path.as_ref().display());
        Self::new(FILE, text, "check that the file exists, its permissions and the free space")
    }

    /// The text of this failure, for use as the reason in another failure.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Prints the failure. Returns the exit code of this process.
    pub(crate) fn show(&self) -> ExitCode {
        // The text may quote an archive, a server or a script, so control characters are made
        // harmless.
        let lines: Vec<String> = self.text.lines().map(harmless).collect();
        eprintln!("error[{}]: {}", self.code, lines.join("\n  "));
        eprintln!("  {}", harmless(&self.hint));
        ExitCode::from(explain(self.code).map_or(exit::FAILED, |row| row.exit))
    }
}
