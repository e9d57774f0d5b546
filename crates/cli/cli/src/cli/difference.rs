//! Shows how two answers differ.

use super::output::{Output, harmless};

/// The longest part of an answer that is shown.
const SHOWN_LINES_MAX: usize = 20;
const SHOWN_BYTES_MAX: usize = 4 << 10;

/// The lines from the first to the last one that differ, as a terminal shows them.
pub(super) fn difference(before: &[String], after: &[String], output: &Output) -> Vec<String> {
    let same = before.iter().zip(after).take_while(|(one, other)| one == other).count();
    let (before, after) = (&before[same..], &after[same..]);
    let ends = before.iter().rev().zip(after.iter().rev());
    let end = ends.take_while(|(one, other)| one == other).count();
    let mut shown = Vec::new();
    for (sign, color, lines) in [("-", "31", before), ("+", "32", after)] {
        for line in &lines[..lines.len() - end] {
            shown.push(output.painted(color, &format!("   {sign} {}", harmless(line))));
        }
    }
    shown
}

/// A body as lines. Bytes that are not text are only counted.
pub(super) fn lines_of(body: &[u8]) -> Vec<String> {
    let Ok(text) = std::str::from_utf8(body) else {
        return vec![format!("{} bytes", body.len())];
    };
    let mut end = text.len().min(SHOWN_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut lines: Vec<String> = text[..end].lines().map(str::to_owned).collect();
    if lines.len() > SHOWN_LINES_MAX || end < text.len() {
        lines.truncate(SHOWN_LINES_MAX);
        lines.push(format!("… {} bytes", text.len()));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Global;

    #[test]
    fn only_lines_that_differ_are_shown() {
        let lines = |text: &str| lines_of(text.as_bytes());
        let output = Output::new(&Global::default());
        let shown = difference(&lines("a\nb\nc"), &lines("a\nx\ny\nc"), &output);
        assert_eq!(shown, ["   - b", "   + x", "   + y"]);
    }

    #[test]
    fn long_answers_are_cut() {
        assert_eq!(lines_of(b"a\nb"), ["a", "b"]);
        assert_eq!(lines_of(&[0xff, 0xfe]), ["2 bytes"]);
        assert_eq!(lines_of("x\n".repeat(100).as_bytes()).len(), SHOWN_LINES_MAX + 1);
    }
}
