//! Finds the word that was probably meant.

/// Returns the candidate that is most similar to `text`, if it is similar enough that `text` may be
/// a typo.
pub fn nearest<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (text.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(text, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn slips_find_their_word_and_strangers_find_nothing() {
        for (text, expected) in
            [("timeot", Some("timeout")), ("memroy", Some("memory")), ("banana", None), ("x", None)]
        {
            assert_eq!(nearest(text, ["timeout", "memory", "cpu"]), expected, "{text}");
        }
    }
}
