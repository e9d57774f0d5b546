//! Decides which topics a user may publish and subscribe to. Pure.

use mote_spec::mqtt::{matched_part, matches};

/// The most levels of a topic or a filter.
pub(crate) const LEVELS_MAX: usize = 32;
/// The longest topic or filter in bytes.
pub(crate) const BYTES_MAX: usize = 1_024;

/// Whether one of `filters` matches `topic`. Topics that begin with `$` are closed to all
/// publishers.
pub(crate) fn may_publish(filters: &[String], topic: &str) -> bool {
    is_sound(topic)
        && !topic.starts_with('$')
        && !topic.contains(['+', '#'])
        && filters.iter().any(|filter| matches(filter, topic))
}

/// Whether `filters` permit every topic that `wanted` matches. `wanted` may begin with
/// `$share/GROUP/`.
pub(crate) fn may_subscribe(filters: &[String], wanted: &str) -> bool {
    let part = matched_part(wanted);
    is_sound(wanted)
        && !part.is_empty()
        && !part.starts_with('$')
        && filters.iter().any(|filter| covers(filter, part))
}

fn is_sound(text: &str) -> bool {
    !text.is_empty() && text.len() <= BYTES_MAX && text.split('/').count() <= LEVELS_MAX
}

/// Whether `filter` matches every topic that `wanted` matches.
fn covers(filter: &str, wanted: &str) -> bool {
    let mut wanted = wanted.split('/');
    let mut filter = filter.split('/');
    loop {
        match (filter.next(), wanted.next()) {
            (Some("#"), _) => return true,
            (None, None) => return true,
            (None, _) | (_, None) | (Some(_), Some("#")) => return false,
            (Some("+"), Some(_)) => {}
            (Some(level), Some(asked)) if level == asked => {}
            (Some(_), Some(_)) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(filters: &[&str]) -> Vec<String> {
        filters.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn publishing_is_for_plain_topics() {
        let filters = list(&["#", "$SYS/#"]);
        for topic in ["a", "a/b", "/", "ü"] {
            assert!(may_publish(&filters, topic), "{topic}");
        }
        let long = "a".repeat(BYTES_MAX + 1);
        let deep = "a/".repeat(LEVELS_MAX);
        for topic in ["", "$SYS/x", "$share/g/a", "a/+", "a/#", &long, &deep] {
            assert!(!may_publish(&filters, topic), "{topic}");
        }
        assert!(!may_publish(&list(&["a/+"]), "a/b/c"));
        assert!(!may_publish(&[], "a"));
    }

    #[test]
    fn a_subscription_asks_for_no_more_than_is_allowed() {
        let filters = list(&["a/+/c", "b/#", "x"]);
        for wanted in ["a/b/c", "a/+/c", "b", "b/#", "b/+/d", "b/c/#", "x", "$share/g/x"] {
            assert!(may_subscribe(&filters, wanted), "{wanted}");
        }
        for wanted in ["#", "+", "a/#", "a/+/+", "+/b/c", "x/#", "y", "$SYS/#", "$share/g/#"] {
            assert!(!may_subscribe(&filters, wanted), "{wanted}");
        }
        let everything = list(&["#"]);
        for wanted in ["$SYS/#", "$share/g/$SYS/#", "$share/g/", "$share/g"] {
            assert!(!may_subscribe(&everything, wanted), "{wanted}");
        }
    }

    /// Compares the result of `covers` with all topics of three levels.
    #[test]
    fn covering_means_that_no_topic_escapes() {
        let levels = ["a", "b", "+"];
        let mut filters = list(&["#"]);
        let mut topics = Vec::new();
        for one in levels {
            filters.extend([one.to_owned(), format!("{one}/#")]);
            for two in levels {
                filters.extend([format!("{one}/{two}"), format!("{one}/{two}/#")]);
            }
        }
        for one in ["a", "b", "c"] {
            topics.push(one.to_owned());
            for two in ["a", "b", "c"] {
                topics.extend([format!("{one}/{two}"), format!("{one}/{two}/c")]);
            }
        }
        for filter in &filters {
            for wanted in &filters {
                let escapes =
                    topics.iter().any(|topic| matches(wanted, topic) && !matches(filter, topic));
                // `+/#` and `#` match the same topics. It is harmless that `covers` says no for
                // this pair.
                assert!(!covers(filter, wanted) || !escapes, "{filter} {wanted}");
            }
        }
    }
}
