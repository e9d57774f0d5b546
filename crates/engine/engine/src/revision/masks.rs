//! Replaces the values of secrets in log lines and error messages by `***`.
//!
//! The values themselves are not kept in memory. For the first bytes of each value, there is a tag
//! of [`TAG_BITS`] bits, which is compared at each place of a line. For the whole value, there is a
//! keyed hash, which confirms a match. Lines are written on the data path, so a line must cost the
//! same however many secrets the function has.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use parking_lot::RwLock;

/// How many bytes from the beginning of a value are compared at each place. Shorter values are not
/// masked, because they would occur in many lines by chance.
const START_BYTES: usize = 6;
const START_MASK: u64 = (1 << (8 * START_BYTES)) - 1;
const TAG_BITS: u32 = 16;
/// The maximum number of values that are masked for one function: this is more than all lines of
/// its secrets in all their forms. A newer value replaces the oldest one.
const VALUES_MAX: usize = 32_768;
/// If a text ends inside a value, this many bytes from the value's beginning are enough to confirm
/// the match.
const BEGINNING_BYTES: usize = 16;
/// The maximum number of bytes of one line that are hashed to confirm matches. A line that needs more
/// imitates the beginnings of secrets on purpose, and is masked as a whole.
const CONFIRMED_BYTES_MAX: usize = 16 << 10;
/// The text that replaces a value in a line.
const MASK: &str = "***";

/// The secrets of one function, as hashes.
#[derive(Default)]
pub(crate) struct Masks(RwLock<Option<Box<Known>>>);

struct Known {
    /// An odd random number.
    key: u64,
    keyed: RandomState,
    /// The tags that occur, one bit for each.
    tags: Vec<u64>,
    /// The lengths of the values with a tag.
    lengths: HashMap<u16, Vec<usize>>,
    /// The hashes of the values, and the same hashes in order, from the oldest to the newest.
    hashes: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Known {
    fn new() -> Self {
        Self {
            key: RandomState::new().hash_one(0_u8) | 1,
            keyed: RandomState::new(),
            tags: vec![0; 1 << (TAG_BITS - 6)],
            lengths: HashMap::new(),
            hashes: HashSet::new(),
            order: VecDeque::new(),
        }
    }

    /// The tag of the last [`START_BYTES`] bytes in `start`.
    fn tag(&self, start: u64) -> u16 {
        ((start & START_MASK).wrapping_mul(self.key) >> (u64::BITS - TAG_BITS)) as u16
    }

    fn has(&self, tag: u16) -> bool {
        self.tags[usize::from(tag >> 6)] & (1 << (tag & 63)) != 0
    }

    fn add(&mut self, text: &str) {
        let Some(start) = text.as_bytes().first_chunk::<START_BYTES>() else { return };
        let tag = self.tag(start.iter().fold(0, |start, byte| shifted(start, *byte)));
        if !self.keep(text.as_bytes()) {
            return;
        }
        if let Some(beginning) = text.as_bytes().first_chunk::<BEGINNING_BYTES>() {
            self.keep(beginning);
        }
        self.tags[usize::from(tag >> 6)] |= 1 << (tag & 63);
        let lengths = self.lengths.entry(tag).or_default();
        if !lengths.contains(&text.len()) {
            lengths.push(text.len());
        }
    }

    /// Keeps the hash of a value or of its beginning. Returns false if the hash is already known. A
    /// length that no longer occurs costs only a comparison.
    fn keep(&mut self, text: &[u8]) -> bool {
        let hash = self.keyed.hash_one(text);
        let is_new = self.hashes.insert(hash);
        if is_new {
            self.order.push_back(hash);
        }
        if self.order.len() > VALUES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.hashes.remove(&oldest);
        }
        is_new
    }

    /// The places at which values occur, in the order of their beginnings. `None` if looking for them
    /// takes too long. If the line `is_cut`, its end may be a beginning that is too short to confirm.
    fn find(&self, line: &[u8], is_cut: bool) -> Option<Vec<Range<usize>>> {
        let mut found = Vec::new();
        let mut left = CONFIRMED_BYTES_MAX;
        let mut start = 0;
        for (at, byte) in line.iter().enumerate() {
            start = shifted(start, *byte);
            let Some(begin) = (at + 1).checked_sub(START_BYTES) else { continue };
            let tag = self.tag(start);
            if !self.has(tag) {
                continue;
            }
            for length in self.lengths.get(&tag).into_iter().flatten() {
                let Some(text) = line.get(begin..begin + length) else {
                    let beginning = line.get(begin..begin + BEGINNING_BYTES);
                    left = left.checked_sub(BEGINNING_BYTES)?;
                    let is_known =
                        |beginning| self.hashes.contains(&self.keyed.hash_one(beginning));
                    if beginning.map_or(is_cut, is_known) {
                        found.push(begin..line.len());
                    }
                    continue;
                };
                left = left.checked_sub(*length)?;
                if self.hashes.contains(&self.keyed.hash_one(text)) {
                    found.push(begin..begin + length);
                }
            }
        }
        Some(found)
    }
}

fn shifted(start: u64, byte: u8) -> u64 {
    start << 8 | u64::from(byte)
}

/// The content of the JSON string for a text.
fn in_json(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// The JSON text that a program writes if it escapes everything but ASCII, as Python's `json` does.
fn in_ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter.is_ascii() {
            true => text.push(letter),
            false => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    text.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    text
}

impl Masks {
    /// Masks a secret from now on: its value, each line of the value, and both in the forms that
    /// they have inside a JSON text.
    pub(crate) fn add(&self, value: &str) {
        let mut known = self.0.write();
        let known = known.get_or_insert_with(|| Box::new(Known::new()));
        for text in std::iter::once(value).chain(value.lines()) {
            let text = text.trim();
            known.add(text);
            // Inside a JSON text, inside a JSON text that is itself in a JSON text, and in the
            // forms in which Python and Node print objects.
            let once = in_json(text);
            known.add(&in_json(&once));
            known.add(&once);
            known.add(&in_ascii(&once));
            known.add(&text.replace('\\', "\\\\"));
        }
    }

    /// The text without the values of secrets, and without the beginning of a value with which it ends.
    pub(crate) fn masked<'a>(&self, text: &'a str, is_cut: bool) -> Cow<'a, str> {
        let known = self.0.read();
        let Some(known) = known.as_ref() else { return Cow::Borrowed(text) };
        let Some(found) = known.find(text.as_bytes(), is_cut) else { return Cow::Borrowed(MASK) };
        if found.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut masked = String::with_capacity(text.len());
        let mut done = 0;
        for range in found {
            if range.start >= done {
                masked.push_str(&text[done..range.start]);
                masked.push_str(MASK);
            }
            done = done.max(range.end);
        }
        masked.push_str(&text[done..]);
        Cow::Owned(masked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_masked_wherever_they_stand() {
        let masks = Masks::default();
        assert_eq!(masks.masked("open sesame", false), "open sesame");
        masks.add("sesame\n");
        masks.add("say \"friend\" and enter");
        masks.add("-----BEGIN-----\nMIIabcdef\nMIIghijkl\n-----END-----\n");
        masks.add("short");
        masks.add("pässwört");
        masks.add("S3cr3t\"q\\e");
        for (line, expected) in [
            ("open sesame", "open ***"),
            ("sesame", "***"),
            ("sesamesesame!", "******!"),
            ("sesam", "sesam"),
            ("Sesame", "Sesame"),
            ("{\"text\":\"say \\\"friend\\\" and enter\"}", "{\"text\":\"***\"}"),
            ("key: MIIabcdef", "key: ***"),
            (r#"{"a": "p\u00e4ssw\u00f6rt"}"#, r#"{"a": "***"}"#),
            ("{'a': 'S3cr3t\"q\\\\e'}", "{'a': '***'}"),
            (r#"{"in":"{\"a\":\"S3cr3t\\\"q\\\\e\"}"}"#, r#"{"in":"{\"a\":\"***\"}"}"#),
            ("short", "short"),
            ("grüße sesame grüße", "grüße *** grüße"),
            ("", ""),
        ] {
            assert_eq!(masks.masked(line, false), expected, "{line}");
        }
    }

    #[test]
    fn values_that_overlap_leave_nothing_of_each_other() {
        let masks = Masks::default();
        masks.add("abcdefgh");
        masks.add("efghijkl");
        masks.add("cdefgh");
        assert_eq!(masks.masked("xabcdefghijkly", false), "x***y");
    }

    #[test]
    fn the_end_of_a_text_shows_no_beginning_of_a_value() {
        let masks = Masks::default();
        let long = "0123456789".repeat(2_000);
        masks.add(&long);
        masks.add("sesame-and-more");
        for (text, is_cut, expected) in [
            (format!("key {}", &long[..9_000]), false, "key ***"),
            (format!("key {}", &long[..16]), false, "key ***"),
            (format!("key {}", &long[..15]), false, "key 012345678901234"),
            (format!("key {}", &long[..6]), true, "key ***"),
            ("open sesame".to_owned(), true, "open ***"),
            ("open sesame".to_owned(), false, "open sesame"),
        ] {
            assert_eq!(masks.masked(&text, is_cut), expected, "{text}");
        }
    }

    #[test]
    fn the_number_of_values_is_bounded() {
        let masks = Masks::default();
        for at in 0..2 * VALUES_MAX {
            masks.add(&format!("secret-{at:06}"));
        }
        assert_eq!(masks.masked("secret-000000", false), "secret-000000");
        assert_eq!(masks.masked(&format!("secret-{:06}", 2 * VALUES_MAX - 1), false), MASK);
    }

    #[test]
    fn a_line_that_imitates_secrets_is_masked_as_a_whole() {
        let masks = Masks::default();
        for at in 0..64 {
            masks.add(&format!("same-start-{}", "x".repeat(500 + at)));
        }
        let line = "same-start-".repeat(700);
        assert_eq!(masks.masked(&line, false), MASK);
        assert_eq!(masks.masked("same-start-1", false), "same-start-1");
    }
}
