//! Text that others wrote, made safe to show.

/// The text without characters that control a terminal or change the order in which text is shown:
/// control characters (C0 and C1) and Unicode's bidirectional controls.
pub fn harmless(text: &str) -> String {
    let steers = |c: char| (c.is_control() && c != '\t') || is_bidirectional_control(c);
    text.chars().map(|c| if steers(c) { '?' } else { c }).collect()
}

/// Whether a character changes the order in which text is shown.
pub fn is_bidirectional_control(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
