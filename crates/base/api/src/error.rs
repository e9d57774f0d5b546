//! The error body of the management API, and the catalogue of error codes.
//!
//! One table serves the node (titles), the command line (exit codes and `mote explain`) and the
//! reference page. A code never changes its meaning.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::exit;
pub use crate::explanations::{CATALOGUE, Explanation};

/// Returns the row of `code`. The code may be in upper or lower case, and with or without the `M`.
pub fn explain(code: &str) -> Option<&'static Explanation> {
    let digits = code.strip_prefix(['M', 'm']).unwrap_or(code);
    CATALOGUE.iter().find(|row| &row.code[1..] == digits)
}

/// The error body, `application/problem+json` (RFC 9457). Never carries secrets or internals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `urn:mote:error:M0302`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The same for every error of this code.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The code, `M0302`; see `mote explain`.
    pub code: String,
    /// What failed, on which object.
    pub detail: String,
    /// The key or parameter that is wrong, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What to do about the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Problem {
    /// Makes a body for `code`, with the title from the catalogue.
    pub fn new(status: u16, code: &str, detail: impl Into<String>) -> Self {
        let title = explain(code).map_or("error", |row| row.title);
        Self {
            kind: format!("urn:mote:error:{code}"),
            title: title.to_owned(),
            status,
            code: code.to_owned(),
            detail: detail.into(),
            field: None,
            hint: None,
        }
    }

    /// Adds a hint: the command or key that solves the problem.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the key or parameter that is wrong.
    #[must_use]
    pub fn with_field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Makes the 404 for a function that does not exist, with similar names of `existing` functions.
    /// Names are cut and escaped.
    pub fn no_such_function<'a>(name: &str, existing: impl IntoIterator<Item = &'a str>) -> Self {
        let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
        if name.is_empty() {
            let problem = Self::new(404, "M0501", "the name of the function is empty");
            return problem.with_hint("see what is there: mote list");
        }
        let problem = Self::new(404, "M0501", format!("no function is named {shown}"));
        match mote_spec::nearest(name, existing) {
            Some(near) => problem.with_hint(format!("did you mean `{near}`?")),
            None => problem.with_hint("see what is there: mote list"),
        }
    }

    /// The exit code of a command that ends with this error.
    pub fn exit_code(&self) -> u8 {
        explain(&self.code).map_or(exit::FAILED, |row| row.exit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_sorted_unique_and_explained() {
        for pair in CATALOGUE.windows(2) {
            assert!(pair[0].code < pair[1].code, "{}", pair[1].code);
        }
        for row in &CATALOGUE {
            assert!(row.code.len() == 5 && row.code.starts_with('M'));
            assert!(!row.title.is_empty() && !row.title.ends_with('.'));
            assert!(row.text().len() > 40, "{} says too little", row.code);
        }
    }

    /// Checks that the reference page in the repository is current. `MOTE_BLESS=1 cargo test -p
    /// mote-api` rewrites the page.
    #[test]
    fn the_reference_page_is_fresh() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/reference/errors.md");
        let now = reference();
        if std::env::var_os("MOTE_BLESS").is_some() {
            std::fs::write(path, &now).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(stored == now, "docs/reference/errors.md is stale; refresh it with MOTE_BLESS=1");
    }

    fn reference() -> String {
        let mut page = String::from(
            "# Errors\n\n\
             <!-- Generated from crates/base/api/src/explanations.rs: MOTE_BLESS=1 cargo test -p mote-api -->\n\n\
             Every error has a code that never changes its meaning. `mote explain CODE` prints the same text offline.\n\
             Over HTTP, the body of a failed request (application/problem+json) contains the code as `code`; the\n\
             management API also sends it in `Mote-Fault`. CoAP answers contain only the text.\n\n\
             The column \"Exit\" is the exit status of the command line:\n\n\
             | Exit | Meaning |\n|---|---|\n\
             | 0 | done |\n| 1 | failed |\n| 2 | wrong usage |\n| 3 | no such function, revision or secret |\n\
             | 4 | node not reachable |\n| 5 | function failed |\n| 6 | deadline passed |\n\
             | 7 | refused because the function or the node is full |\n| 8 | manifest or code not valid |\n\
             | 9 | limit of a benchmark exceeded |\n| 71 | the node's zygote has ended |\n\
             | 75 | an address or the data directory is in use |\n| 78 | configuration not valid |\n| 130 | interrupted |\n\n\
             | Code | Exit | What | Cause and cure |\n|---|---|---|---|\n",
        );
        for row in &CATALOGUE {
            let text = row.text().replace('|', "\\|");
            page.push_str(&format!("| {} | {} | {} | {text} |\n", row.code, row.exit, row.title));
        }
        page
    }

    #[test]
    fn codes_are_found_however_they_are_written() {
        for text in ["M0302", "m0302", "0302"] {
            assert_eq!(explain(text).map(|row| row.code), Some("M0302"));
        }
        assert_eq!(explain("M9999"), None);
        assert_eq!(explain(""), None);
    }

    #[test]
    fn a_missing_function_names_its_neighbour() {
        let problem = Problem::no_such_function("termo", ["thermo", "hello"]);
        assert_eq!(problem.hint.as_deref(), Some("did you mean `thermo`?"));
        assert_eq!(problem.exit_code(), exit::NO_FUNCTION);
        let escaped = Problem::no_such_function("a\x1b[2J", []);
        assert!(!escaped.detail.contains('\x1b'), "{}", escaped.detail);
    }
}
