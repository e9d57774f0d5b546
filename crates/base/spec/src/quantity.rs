//! Sizes and durations as people write them: `64MiB`, `10s`.

/// Why a text is not a quantity. The caller adds the key and the permitted range to the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// There is no number or no unit, or text follows the unit.
    #[error("not a quantity")]
    Malformed,
    /// A decimal unit. Only binary units are accepted, to avoid ambiguity.
    #[error("write {0}")]
    DecimalUnit(String),
    /// The number is too large.
    #[error("too large")]
    TooLarge,
}

/// Reads a size such as `64MiB`, `512KiB`, `2GiB` or `100B` and returns bytes. Accepts only whole
/// numbers.
pub fn parse_size(text: &str) -> Result<u64, QuantityError> {
    let (number, unit) = split(text)?;
    let factor: u64 = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        other => {
            let letter = match other.to_ascii_lowercase().as_str() {
                "k" | "kb" | "kib" | "ki" => 'K',
                "m" | "mb" | "mib" | "mi" => 'M',
                "g" | "gb" | "gib" | "gi" => 'G',
                _ => return Err(QuantityError::Malformed),
            };
            return Err(QuantityError::DecimalUnit(format!("{number}{letter}iB")));
        }
    };
    number.checked_mul(factor).ok_or(QuantityError::TooLarge)
}

/// Reads a duration such as `100ms`, `10s`, `5m`, `1h` or `14d` and returns milliseconds. Accepts
/// only whole numbers.
pub fn parse_duration_ms(text: &str) -> Result<u64, QuantityError> {
    let (number, unit) = split(text)?;
    let factor: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(QuantityError::Malformed),
    };
    number.checked_mul(factor).ok_or(QuantityError::TooLarge)
}

fn split(text: &str) -> Result<(u64, &str), QuantityError> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return Err(QuantityError::Malformed);
    }
    let number = text[..digits].parse().map_err(|_| QuantityError::TooLarge)?;
    Ok((number, text[digits..].trim_start_matches(' ')))
}

/// Formats a size for people, with the largest fitting binary unit and at most one decimal: `6.1
/// KiB`.
pub fn size_text(bytes: u64) -> String {
    for (unit, size) in [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= size {
            let tenths = (u128::from(bytes) * 10 + u128::from(size) / 2) / u128::from(size);
            return if tenths.is_multiple_of(10) {
                format!("{} {unit}", tenths / 10)
            } else {
                format!("{}.{} {unit}", tenths / 10, tenths % 10)
            };
        }
    }
    format!("{bytes} B")
}

/// Formats a duration for people: `180 ms`, `2.1 s`, `3 min`, `5 h`, `12 d`.
pub fn duration_text(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        60_000..3_600_000 => format!("{} min", ms / 60_000),
        3_600_000..172_800_000 => format!("{} h", ms / 3_600_000),
        _ => format!("{} d", ms / 86_400_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("64MiB", Ok(64 << 20)),
            ("64 MiB", Ok(64 << 20)),
            ("1GiB", Ok(1 << 30)),
            ("0B", Ok(0)),
            ("64mb", Err(QuantityError::DecimalUnit("64MiB".into()))),
            ("64M", Err(QuantityError::DecimalUnit("64MiB".into()))),
            ("-1", Err(QuantityError::Malformed)),
            ("1e999", Err(QuantityError::Malformed)),
            ("64", Err(QuantityError::Malformed)),
            ("", Err(QuantityError::Malformed)),
            ("MiB", Err(QuantityError::Malformed)),
            ("99999999999999999999B", Err(QuantityError::TooLarge)),
            ("18446744073709551615GiB", Err(QuantityError::TooLarge)),
        ] {
            assert_eq!(parse_size(text), expected, "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, expected) in [
            ("100ms", Ok(100)),
            ("10s", Ok(10_000)),
            ("5m", Ok(300_000)),
            ("1h", Ok(3_600_000)),
            ("14d", Ok(1_209_600_000)),
            ("10", Err(QuantityError::Malformed)),
            ("10 sec", Err(QuantityError::Malformed)),
            ("1.5s", Err(QuantityError::Malformed)),
        ] {
            assert_eq!(parse_duration_ms(text), expected, "{text}");
        }
    }

    #[test]
    fn quantities_for_people() {
        assert_eq!(size_text(900), "900 B");
        assert_eq!(size_text(6246), "6.1 KiB");
        assert_eq!(size_text(64 << 20), "64 MiB");
        assert_eq!(size_text(u64::MAX), "17179869184 GiB");
        assert_eq!(duration_text(180), "180 ms");
        assert_eq!(duration_text(2149), "2.1 s");
        assert_eq!(duration_text(200_000), "3 min");
    }
}
