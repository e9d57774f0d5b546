//! The conditions of a request: the version of the file that it requires (RFC 9110, 13), and the
//! part of the file that it asks for (14).

/// The fields of a request that decide how the file is answered.
pub(crate) struct Asked<'a> {
    pub(crate) none_match: Option<&'a [u8]>,
    pub(crate) if_match: Option<&'a [u8]>,
    pub(crate) range: Option<&'a [u8]>,
    pub(crate) if_range: Option<&'a [u8]>,
}

/// Whether to send the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Validity {
    /// Send the file.
    Asked,
    /// The client already has this version.
    Unchanged,
    /// The client asked for another version only.
    Changed,
}

/// Which part of the file to send.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    /// The position of the first byte, and the number of bytes.
    Range(u64, u64),
    /// A part beyond the end of the file.
    Beyond,
}

impl Asked<'_> {
    pub(crate) fn validity(&self, tag: &str) -> Validity {
        if self.if_match.is_some_and(|wanted| !names(wanted, tag)) {
            return Validity::Changed;
        }
        match self.none_match {
            Some(known) if names(known, tag) => Validity::Unchanged,
            _ => Validity::Asked,
        }
    }

    /// The part to send of a file with this many bytes. A request for several ranges gets the whole
    /// file, which RFC 9110, 14.2 permits.
    pub(crate) fn part(&self, tag: &str, bytes: u64) -> Part {
        let is_same = self.if_range.is_none_or(|known| known == tag.as_bytes());
        let range = self.range.and_then(|range| str::from_utf8(range).ok());
        let Some((unit, range)) = range.and_then(|range| range.split_once('=')) else {
            return Part::Whole;
        };
        if !unit.eq_ignore_ascii_case("bytes") {
            return Part::Whole;
        }
        let Some((first, last)) = range.trim().split_once('-').filter(|_| is_same) else {
            return Part::Whole;
        };
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            // A number that is too large for the type is beyond the end of every file.
            is_number.then(|| text.parse::<u64>().unwrap_or(u64::MAX))
        };
        match (first, last) {
            ("", last) => match number(last) {
                Some(0) => Part::Beyond,
                Some(_) if bytes == 0 => Part::Beyond,
                Some(count) => Part::Range(bytes - count.min(bytes), count.min(bytes)),
                None => Part::Whole,
            },
            (first, last) => {
                let end = if last.is_empty() { Some(u64::MAX) } else { number(last) };
                match (number(first), end) {
                    (Some(first), Some(end)) if end < first => Part::Whole,
                    (Some(first), Some(_)) if first >= bytes => Part::Beyond,
                    (Some(first), Some(end)) => Part::Range(first, end.min(bytes - 1) - first + 1),
                    _ => Part::Whole,
                }
            }
        }
    }
}

/// Whether a list of tags contains `tag` or is `*`. A weak tag matches, too.
fn names(list: &[u8], tag: &str) -> bool {
    list.split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .any(|one| one == b"*" || one.strip_prefix(b"W/").unwrap_or(one) == tag.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Asked<'_> = Asked { none_match: None, if_match: None, range: None, if_range: None };

    #[test]
    fn a_version_that_the_sender_has_is_not_sent_again() {
        let with = |value: &'static str| Asked { none_match: Some(value.as_bytes()), ..NONE };
        for value in ["\"a\"", "\"b\", \"a\"", "W/\"a\"", "*"] {
            assert_eq!(with(value).validity("\"a\""), Validity::Unchanged, "{value}");
        }
        for value in ["\"b\"", "a", ""] {
            assert_eq!(with(value).validity("\"a\""), Validity::Asked, "{value}");
        }
        let other = Asked { if_match: Some(b"\"b\""), ..NONE };
        assert_eq!(other.validity("\"a\""), Validity::Changed);
    }

    #[test]
    fn parts_of_ten_bytes() {
        for (range, part) in [
            ("bytes=0-3", Part::Range(0, 4)),
            ("bytes=4-", Part::Range(4, 6)),
            ("bytes=9-99", Part::Range(9, 1)),
            ("bytes=-3", Part::Range(7, 3)),
            ("bytes=-99", Part::Range(0, 10)),
            ("bytes=10-", Part::Beyond),
            ("bytes=-0", Part::Beyond),
            ("bytes=3-2", Part::Whole),
            ("bytes=0-1,4-5", Part::Whole),
            ("bytes=+1-2", Part::Whole),
            ("Bytes=0-1", Part::Range(0, 2)),
            ("bytes=99999999999999999999-", Part::Beyond),
            ("bytes=0-99999999999999999999", Part::Range(0, 10)),
            ("items=0-3", Part::Whole),
            ("bytes=-", Part::Whole),
        ] {
            let asked = Asked { range: Some(range.as_bytes()), ..NONE };
            assert_eq!(asked.part("\"a\"", 10), part, "{range}");
        }
        let asked = Asked { range: Some(b"bytes=0-3"), if_range: Some(b"\"b\""), ..NONE };
        assert_eq!(asked.part("\"a\"", 10), Part::Whole);
        let empty = Asked { range: Some(b"bytes=-5"), ..NONE };
        assert_eq!(empty.part("\"a\"", 0), Part::Beyond);
    }
}
