//! The phases of an operation, as the target reports them in `Server-Timing` (W3C).

use crate::Nanos;

/// Names of the phases, in order.
pub const PHASES: [&str; 4] = ["queue", "init", "handover", "invoke"];

/// The durations of the phases of one operation, in the order of [`PHASES`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases(pub [Nanos; 4]);

impl Phases {
    /// Parses the value of a field. Metrics with other names are skipped. `None` if none of the
    /// metrics is in [`PHASES`].
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let mut phases = Self::default();
        let mut found = false;
        for metric in value.split(|byte| *byte == b',') {
            let mut parts = metric.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let name = parts.next().unwrap_or_default();
            let Some(at) = PHASES.iter().position(|phase| phase.as_bytes() == name) else {
                continue;
            };
            if let Some(nanos) = parts.find_map(|part| millis(part.strip_prefix(b"dur=")?)) {
                phases.0[at] = nanos;
                found = true;
            }
        }
        found.then_some(phases)
    }
}

/// Parses a decimal number of milliseconds. Digits below a nanosecond are cut off.
fn millis(text: &[u8]) -> Option<Nanos> {
    let mut nanos: u64 = 0;
    let mut unit = 1_000_000;
    let mut fraction = false;
    for byte in text {
        match byte {
            b'.' if !fraction => fraction = true,
            b'0'..=b'9' if fraction => {
                unit /= 10;
                nanos = nanos.checked_add(u64::from(byte - b'0') * unit)?;
            }
            b'0'..=b'9' => {
                let digit = u64::from(byte - b'0') * 1_000_000;
                nanos = nanos.checked_mul(10)?.checked_add(digit)?;
            }
            _ => return None,
        }
    }
    (!text.is_empty()).then_some(nanos)
}

#[cfg(test)]
mod tests {
    use super::Phases;

    #[test]
    fn reads_what_the_node_writes_and_skips_the_rest() {
        let check = |text: &str, expected: Option<[u64; 4]>| {
            assert_eq!(Phases::parse(text.as_bytes()).map(|phases| phases.0), expected, "{text}");
        };
        check(
            "queue;dur=0.012, init;dur=0, handover;dur=1.5, invoke;dur=20",
            Some([12_000, 0, 1_500_000, 20_000_000]),
        );
        check("db;dur=3, invoke;desc=x;dur=0.0000019", Some([0, 0, 0, 1]));
        check("cache, total;dur=4", None);
        check("invoke;dur=", None);
        check("invoke;dur=-1", None);
        check("invoke;dur=99999999999999999999", None);
        check("", None);
    }
}
