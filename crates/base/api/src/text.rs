//! Makes text from others safe to show, and wraps text into lines.

/// The width of lines for people, in columns.
const COLUMNS: usize = 80;

/// Replaces by `?` the characters that could control a terminal, begin a new line, or change the
/// order in which text is shown. These are the control characters (C0 and C1) except the tab,
/// Unicode's line separators, and Unicode's bidirectional controls.
pub fn harmless(text: &str) -> String {
    let steers = |c: char| {
        (c.is_control() && c != '\t')
            || matches!(c, '\u{2028}' | '\u{2029}')
            || is_bidirectional_control(c)
    };
    text.chars().map(|c| if steers(c) { '?' } else { c }).collect()
}

/// Returns whether a character changes the order in which text is shown.
pub fn is_bidirectional_control(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Wraps `text` after the label `first` into lines of at most 80 characters. Further lines are indented
/// by the width of `first`. A word that is too long for a line, such as a path, has a line to itself.
pub fn wrapped(first: &str, text: &str) -> String {
    let indent = " ".repeat(first.len());
    let mut all = String::new();
    let mut line = first.to_owned();
    for word in text.split(' ') {
        if line.len() > indent.len() && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            all += line.trim_end();
            all.push('\n');
            line = indent.clone();
        }
        if line.len() > indent.len() {
            line.push(' ');
        }
        line += word;
    }
    all + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_wrapped_and_lose_nothing() {
        let path = format!("/sys/fs/cgroup/{}", "long-name/".repeat(10));
        let text = format!(
            "cgroups: none usable: cannot create {path}: Permission denied {}",
            "and more ".repeat(20)
        );
        let wrapped = wrapped("  note   ", &text);
        let lines: Vec<&str> = wrapped.lines().collect();
        assert!(lines.len() > 4, "{wrapped}");
        for (at, line) in lines.iter().enumerate() {
            assert!(
                line.starts_with(if at == 0 { "  note   c" } else { "         " }),
                "{wrapped}"
            );
            assert!(line.chars().count() <= COLUMNS || line.contains(&path), "{wrapped}");
        }
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&wrapped)[1..], words(&text));
    }
}
