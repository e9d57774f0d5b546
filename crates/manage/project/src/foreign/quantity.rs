//! Parses quantities in the forms that other platforms use.

/// Parses bytes: `128Mi`, `96M`, `1Gi`, `134217728`.
pub(super) fn bytes(written: &str) -> Option<u64> {
    let written = written.trim();
    let digits = written.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(written.len());
    let number: f64 = written[..digits].parse().ok()?;
    let unit: f64 = match written[digits..].trim() {
        "" | "B" => 1.0,
        "k" | "K" | "KB" => 1e3,
        "M" | "MB" | "m" => 1e6,
        "G" | "GB" | "g" => 1e9,
        "Ki" | "KiB" => 1024.0,
        "Mi" | "MiB" => 1048576.0,
        "Gi" | "GiB" => 1073741824.0,
        _ => return None,
    };
    let bytes = number * unit;
    (bytes.is_finite() && (1.0..1e15).contains(&bytes)).then_some(bytes as u64)
}

/// Parses processor cores and returns thousandths: `500m`, `0.5`, `2`.
pub(super) fn thousandths(written: &str) -> Option<u32> {
    let written = written.trim();
    let (number, unit) = match written.strip_suffix('m') {
        Some(number) => (number, 1.0),
        None => (written, 1000.0),
    };
    let millis = number.parse::<f64>().ok()? * unit;
    (1.0..=1_024_000.0).contains(&millis).then_some((millis as u32).max(10))
}

/// Parses whole seconds (`180`) or Go's durations (`1m30s`, `500ms`).
pub(super) fn milliseconds(written: &str) -> Option<u64> {
    let mut rest = written.trim();
    if let Ok(seconds) = rest.parse::<u64>() {
        return seconds.checked_mul(1000);
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|at| *at > 0)?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        total += number
            * match &rest[..end] {
                "ms" => 1.0,
                "s" => 1e3,
                "m" => 6e4,
                "h" => 3.6e6,
                _ => return None,
            };
        rest = &rest[end..];
    }
    (total > 0.0 && total < 1e12).then_some(total as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_written_elsewhere() {
        assert_eq!(bytes("128Mi"), Some(128 << 20));
        assert_eq!(bytes("96M"), Some(96_000_000));
        assert_eq!(bytes("1.5Gi"), Some(3 << 29));
        assert_eq!(thousandths("500m"), Some(500));
        assert_eq!(thousandths("0.5"), Some(500));
        assert_eq!(milliseconds("180"), Some(180_000));
        assert_eq!(milliseconds("1m30s"), Some(90_000));
        assert_eq!(milliseconds("500ms"), Some(500));
        for bad in ["", "x", "-1", "1e9", "NaN", "inf", "1Ti", "5 parsecs"] {
            assert_eq!((bytes(bad), milliseconds(bad)), (None, None), "{bad}");
        }
    }
}
