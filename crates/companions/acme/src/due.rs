//! Decides when a certificate must be replaced.

use std::hash::{DefaultHasher, Hasher as _};

use instant_acme::SuggestedWindow;

use crate::folder::Present;

/// The longest time until the next check, in seconds. Checks are this frequent because the
/// machine's clock and the authority's suggestion may change.
pub(crate) const LOOK_MAX_S: u64 = 12 * 3_600;

/// The window in which the authority suggests replacing a certificate (RFC 9773, 4.2), and the
/// seconds after which the node should ask again.
pub(crate) struct Window {
    pub(crate) suggested: SuggestedWindow,
    pub(crate) again_s: u64,
}

/// Returns the seconds until a certificate is due (0 if it is due now) and the seconds after which
/// the next check must happen at the latest. Nodes that were set up at the same time would all
/// contact the authority at once, so each certificate gets its own point in the window that the
/// authority suggests (RFC 9773, 4.2). Without a suggestion, a certificate is due after two thirds
/// of its lifetime.
pub(crate) fn until(present: &Present, window: Option<&Window>, now_s: i64) -> (u64, u64) {
    let lifetime = present.not_after_s - present.not_before_s;
    let (at, again) = match window {
        Some(window) => {
            let (start, end) =
                (window.suggested.start.unix_timestamp(), window.suggested.end.unix_timestamp());
            let length = (end - start).max(0) as u128;
            let part = (length * u128::from(place(&present.der)) / u128::from(u32::MAX)) as i64;
            // Whatever the authority suggests, a tenth of the lifetime is left for a second try.
            let latest = present.not_after_s - lifetime / 10;
            (start.saturating_add(part).min(latest), window.again_s.clamp(60, LOOK_MAX_S))
        }
        None => (present.not_before_s + lifetime / 3 * 2, LOOK_MAX_S),
    };
    (u64::try_from(at.saturating_sub(now_s)).unwrap_or(0), again)
}

/// A number that is always the same for a certificate and differs between certificates.
fn place(certificate: &[u8]) -> u32 {
    let mut hasher = DefaultHasher::new();
    hasher.write(certificate);
    (hasher.finish() >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(der: &[u8]) -> Present {
        Present {
            der: der.to_vec().into(),
            not_before_s: 1_000_000,
            not_after_s: 1_900_000,
            names: vec!["a.example".to_owned()],
        }
    }

    fn window(from: &str, to: &str, again_s: u64) -> Window {
        let json = format!(r#"{{"start":"{from}","end":"{to}"}}"#);
        Window { suggested: serde_json::from_str(&json).expect("a window"), again_s }
    }

    #[test]
    fn a_third_of_its_time_is_left() {
        let present = present(b"x");
        assert_eq!(until(&present, None, 1_000_000), (600_000, LOOK_MAX_S));
        assert_eq!(until(&present, None, 1_600_001), (0, LOOK_MAX_S));
        // The clock runs behind, so the certificate does not seem valid yet.
        assert_eq!(until(&present, None, 0), (1_600_000, LOOK_MAX_S));
    }

    #[test]
    fn the_authority_suggests_a_window_and_certificates_differ_in_it() {
        let start = "1970-01-13T00:00:00Z";
        let end = "1970-01-14T00:00:00Z"; // 1,036,800 s
        let window = window(start, end, 5);
        let all: Vec<_> =
            (0..50u8).map(|n| until(&present(&[n; 32]), Some(&window), 1_000_000)).collect();
        assert!(all.iter().all(|(due, again)| (36_800..=123_200).contains(due) && *again == 60));
        let early = all.iter().filter(|(due, _)| *due < 36_800 + 43_200).count();
        assert!((10..=40).contains(&early), "{early} of 50 in the first half");
        assert_eq!(until(&present(b"x"), Some(&window), 2_000_000).0, 0);
        let late = self::window("1980-01-01T00:00:00Z", "1980-01-02T00:00:00Z", 60);
        assert_eq!(until(&present(b"x"), Some(&late), 1_000_000).0, 810_000);
    }
}
