//! Finds the lines that people need in the output of pip, npm or go.

use std::collections::VecDeque;
use std::fmt::Write as _;

/// How many lines of a failed client's output are shown: the first lines that name errors, because
/// later errors follow from them, and the last lines.
const ERROR_LINES_MAX: usize = 6;
const TAIL_LINES: usize = 8;

/// Returns the part of a client's output that people need: the lines that name errors, then the
/// last lines. After an error, pip and npm print much more than is useful.
pub fn told(output: &VecDeque<String>) -> String {
    let errors: Vec<usize> =
        (0..output.len()).filter(|at| names_an_error(&output[*at])).take(ERROR_LINES_MAX).collect();
    let tail = output.len().saturating_sub(TAIL_LINES)..output.len();
    let tail: Vec<usize> = tail.filter(|at| !errors.contains(at)).collect();
    let mut text = String::new();
    for (head, lines) in [("its errors:", &errors), ("its last lines:", &tail)] {
        if lines.is_empty() {
            continue;
        }
        let _ = write!(text, "{}{head}", if text.is_empty() { "" } else { "\n" });
        for at in lines {
            let _ = write!(text, "\n  | {}", output[*at]);
        }
    }
    if text.is_empty() { "it said nothing".to_owned() } else { text }
}

/// Whether a line of pip or npm describes an error.
fn names_an_error(line: &str) -> bool {
    let line = line.trim();
    let of_npm = ["npm error ", "npm ERR! "].iter().find_map(|prefix| line.strip_prefix(prefix));
    match of_npm {
        // npm also prints a bare code, and at the end the name of a log file, which was removed
        // with the sandbox.
        Some(said) => said.contains(' ') && !said.contains("debug-0.log"),
        None => line.starts_with("ERROR: ") || line.starts_with("error: "),
    }
}

/// Returns npm's messages about wrong entries in a lock file, at most five lines.
pub fn stale_entries(output: &VecDeque<String>) -> String {
    let named = |line: &&String| line.contains("Missing: ") || line.contains("Invalid: ");
    output.iter().filter(named).take(5).map(|line| format!("\n  | {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> VecDeque<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_decisive_lines_come_first() {
        let noise = "more of it\n".repeat(20);
        let pip = format!(
            "Collecting six==99\nERROR: Could not find a version that satisfies six==99\n\
             ERROR: No matching distribution found for six==99\n{noise}"
        );
        let npm = format!(
            "npm warn old\nnpm error code E404\nnpm error 404\n\
             npm error 404 Not Found - GET https://registry.example/no-such\n{noise}\
             npm error A complete log of this run can be found in: /tmp/npm/_logs/x-debug-0.log"
        );
        for (output, decisive) in [
            (
                pip,
                "its errors:\n  | ERROR: Could not find a version that satisfies six==99\n  | ERROR: No matching distribution found for six==99\nits last lines:\n  | more of it",
            ),
            (
                npm,
                "its errors:\n  | npm error code E404\n  | npm error 404 Not Found - GET https://registry.example/no-such\nits last lines:\n  | more of it",
            ),
        ] {
            let told = told(&lines(&output));
            assert!(told.starts_with(decisive), "{told}");
            assert!(told.lines().count() <= 2 + ERROR_LINES_MAX + TAIL_LINES, "{told}");
        }
    }

    #[test]
    fn no_line_is_shown_twice_and_nothing_is_made_up() {
        let told = |text| told(&lines(text));
        assert_eq!(told("a\nERROR: b"), "its errors:\n  | ERROR: b\nits last lines:\n  | a");
        assert_eq!(told("a\nb"), "its last lines:\n  | a\n  | b");
        assert_eq!(told("ERROR: b"), "its errors:\n  | ERROR: b");
        assert_eq!(told(""), "it said nothing");
    }
}
