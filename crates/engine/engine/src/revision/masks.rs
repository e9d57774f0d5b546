//! Replaces the values of secrets in log lines and error messages by `***`.
//!
//! The values themselves are not kept in memory. For each value there are its length, a rolling
//! hash with a random base, with which a line is searched (Rabin and Karp, 1987), and a second,
//! keyed hash, which confirms a match.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use parking_lot::RwLock;

/// Shorter values are not masked, because they would occur in many lines by chance.
const VALUE_BYTES_MIN: usize = 6;
/// The maximum number of values that are masked for one function. A newer value replaces the oldest
/// one. A function has fewer secrets than this, so earlier values of changed secrets have room, too.
const VALUES_MAX: usize = 512;
/// What stands in a line instead of a value.
const MASK: &str = "***";
/// The prime modulus of the rolling hash, 2^61 - 1.
const MODULUS: u64 = (1 << 61) - 1;

/// The secrets of one function, as hashes.
#[derive(Default)]
pub(crate) struct Masks(RwLock<Option<Box<Known>>>);

struct Known {
    base: u64,
    proofs: RandomState,
    values: VecDeque<Value>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Value {
    length: usize,
    rolling: u64,
    proof: u64,
    /// `base` to the power of `length`.
    power: u64,
}

fn times(a: u64, b: u64) -> u64 {
    (u128::from(a) * u128::from(b) % u128::from(MODULUS)) as u64
}

impl Known {
    fn new() -> Self {
        let base = RandomState::new().hash_one(0_u8) % (MODULUS - 256) + 256;
        Self { base, proofs: RandomState::new(), values: VecDeque::new() }
    }

    fn rolled(&self, bytes: &[u8]) -> u64 {
        bytes.iter().fold(0, |hash, byte| self.next(hash, *byte))
    }

    fn next(&self, hash: u64, byte: u8) -> u64 {
        (times(hash, self.base) + u64::from(byte) + 1) % MODULUS
    }

    fn add(&mut self, text: &str) {
        if text.len() < VALUE_BYTES_MIN {
            return;
        }
        let value = Value {
            length: text.len(),
            rolling: self.rolled(text.as_bytes()),
            proof: self.proofs.hash_one(text.as_bytes()),
            power: (0..text.len()).fold(1, |power, _| times(power, self.base)),
        };
        if self.values.contains(&value) {
            return;
        }
        self.values.push_back(value);
        if self.values.len() > VALUES_MAX {
            self.values.pop_front();
        }
    }

    /// Adds the places at which `value` occurs.
    fn find(&self, value: &Value, line: &[u8], found: &mut Vec<Range<usize>>) {
        if line.len() < value.length {
            return;
        }
        let mut hash = self.rolled(&line[..value.length]);
        for end in value.length..=line.len() {
            let range = end - value.length..end;
            if hash == value.rolling && self.proofs.hash_one(&line[range.clone()]) == value.proof {
                found.push(range.clone());
            }
            if let Some(byte) = line.get(end) {
                let leaving = times(value.power, u64::from(line[range.start]) + 1);
                hash = (self.next(hash, *byte) + MODULUS - leaving) % MODULUS;
            }
        }
    }
}

/// The content of the JSON string for a text.
fn in_json(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// A JSON text as programs write it that use only ASCII, such as Python's `json`.
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
    /// Masks a secret from now on: its value, each line of a value with several lines, and both as
    /// they look inside a JSON text.
    pub(crate) fn add(&self, value: &str) {
        let mut known = self.0.write();
        let known = known.get_or_insert_with(|| Box::new(Known::new()));
        for text in std::iter::once(value).chain(value.lines()) {
            let text = text.trim();
            known.add(text);
            // As a part of a JSON text, of a JSON text in a JSON text, and as Python and Node print
            // objects.
            let once = in_json(text);
            known.add(&in_json(&once));
            known.add(&once);
            known.add(&in_ascii(&once));
            known.add(&text.replace('\\', "\\\\"));
        }
    }

    /// The text without the values of secrets.
    pub(crate) fn masked<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let known = self.0.read();
        let Some(known) = known.as_ref() else { return Cow::Borrowed(text) };
        let mut found = Vec::new();
        for value in &known.values {
            known.find(value, text.as_bytes(), &mut found);
        }
        if found.is_empty() {
            return Cow::Borrowed(text);
        }
        found.sort_unstable_by_key(|range| (range.start, range.end));
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
        assert_eq!(masks.masked("open sesame"), "open sesame");
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
            assert_eq!(masks.masked(line), expected, "{line}");
        }
    }

    #[test]
    fn values_that_overlap_leave_nothing_of_each_other() {
        let masks = Masks::default();
        masks.add("abcdefgh");
        masks.add("efghijkl");
        masks.add("cdefgh");
        assert_eq!(masks.masked("xabcdefghijkly"), "x***y");
    }

    #[test]
    fn the_number_of_values_is_bounded() {
        let masks = Masks::default();
        for at in 0..2 * VALUES_MAX {
            masks.add(&format!("secret-{at:06}"));
        }
        assert_eq!(masks.masked("secret-000000"), "secret-000000");
        assert_eq!(masks.masked(&format!("secret-{:06}", 2 * VALUES_MAX - 1)), MASK);
    }
}
