//! Limits the nesting of YAML that strangers have written. This module is pure.

/// The deepest nesting. The parser's time grows with the square of the depth: it needed more than a
/// minute for 260 KB of brackets.
const DEPTH_MAX: usize = 100;

/// Refuses a text whose values are nested too deeply. The check looks once at each byte.
pub(crate) fn check_depth(source: &str) -> Result<(), String> {
    if depth(source) > DEPTH_MAX {
        return Err(format!("its values are nested more than {DEPTH_MAX} deep"));
    }
    Ok(())
}

/// Returns an upper bound of the nesting depth. It counts brackets that are open, and dashes and
/// question marks that begin a line. Brackets in quoted texts count too, so the bound may be larger
/// than the depth.
fn depth(source: &str) -> usize {
    let mut open = 0_usize;
    let mut deepest = 0;
    for line in source.lines() {
        let marks = line.split(' ').take_while(|word| matches!(*word, "" | "-" | "?"));
        deepest = deepest.max(open + marks.filter(|word| !word.is_empty()).count());
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => open += 1,
                b']' | b'}' => open = open.saturating_sub(1),
                _ => {}
            }
            deepest = deepest.max(open);
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_values_are_refused_before_they_are_parsed() {
        for deep in [
            format!("a: {}{}", "[".repeat(130_000), "]".repeat(130_000)),
            format!("a:\n  {}x", "- ".repeat(100_000)),
            "{a: ".repeat(50_000),
        ] {
            assert!(check_depth(&deep).is_err_and(|text| text.contains("100 deep")));
        }
        assert_eq!(depth("do:\n  - a: { set: [1, {b: [2]}] }\n  - - c\n"), 4);
    }
}
