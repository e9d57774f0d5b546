//! The place of a request in a distributed trace: the field `traceparent` (W3C Trace Context,
//! level 1, 3.2).

use std::fmt;

/// The name of the field, in HTTP, in a message's user properties (MQTT 5) and in calls of
/// functions.
pub const TRACEPARENT: &str = "traceparent";
/// The field that tracing tools add to `traceparent`.
pub const TRACESTATE: &str = "tracestate";

/// The content of the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace; not 0.
    pub trace: u128,
    /// The span that made the request; not 0.
    pub span: u64,
    /// Whether that span is recorded.
    pub is_sampled: bool,
}

impl TraceParent {
    /// Parses the field. Returns `None` if the field does not follow the format. Such a field is
    /// ignored, and a new trace begins.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let number = |range: std::ops::Range<usize>| {
            let text = text.get(range)?;
            let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            let text = text.iter().all(is_hex).then_some(text)?;
            u128::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
        };
        let version = number(0..2).filter(|version| *version != 0xff)?;
        let is_dash = |at: usize| text.get(at) == Some(&b'-');
        // A later version may add parts after another dash.
        let ends = text.len() == 55 || (version > 0 && is_dash(55));
        let parts = is_dash(2) && is_dash(35) && is_dash(52) && ends;
        let trace = number(3..35).filter(|trace| parts && *trace != 0)?;
        let span = number(36..52).filter(|span| *span != 0)? as u64;
        let flags = number(53..55)?;
        Some(Self { trace, span, is_sampled: flags & 1 != 0 })
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.is_sampled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_standard_is_read_and_written() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let parsed = TraceParent::parse(text.as_bytes()).unwrap();
        assert_eq!(parsed.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!((parsed.span, parsed.is_sampled), (0x00f0_67aa_0ba9_02b7, true));
        assert_eq!(parsed.to_string(), text);
    }

    #[test]
    fn what_does_not_follow_the_format_is_ignored() {
        let ids = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
        for wrong in [
            String::new(),
            format!("00-{ids}"),
            format!("ff-{ids}-01"),
            format!("00-{ids}-01-more"),
            format!("01-{ids}-01more"),
            format!("00-{}-01", ids.to_uppercase()),
            format!("00-{}-01", ids.replace('-', "_")),
            format!("00-{:032}-00f067aa0ba902b7-01", 0),
            format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{:016}-01", 0),
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned(),
        ] {
            assert_eq!(TraceParent::parse(wrong.as_bytes()), None, "{wrong}");
        }
        for right in [format!("00-{ids}-00"), format!("01-{ids}-02"), format!("01-{ids}-00-more")] {
            let parsed = TraceParent::parse(right.as_bytes());
            assert!(parsed.is_some_and(|parsed| !parsed.is_sampled), "{right}");
        }
    }
}
