//! CoAP content formats and their media types (IANA CoRE registry).

/// Format numbers, each with the media type that the front writes and accepts for it.
const FORMATS: [(u16, &str); 18] = [
    (0, "text/plain; charset=utf-8"),
    (40, "application/link-format"),
    (41, "application/xml"),
    (42, "application/octet-stream"),
    (47, "application/exi"),
    (50, "application/json"),
    (51, "application/json-patch+json"),
    (52, "application/merge-patch+json"),
    (60, "application/cbor"),
    (61, "application/cwt"),
    (63, "application/cbor-seq"),
    (110, "application/senml+json"),
    (112, "application/senml+cbor"),
    (310, "application/senml+xml"),
    (432, "application/td+json"),
    (11542, "application/vnd.oma.lwm2m+tlv"),
    (11543, "application/vnd.oma.lwm2m+json"),
    (11544, "application/vnd.oma.lwm2m+cbor"),
];

/// The media type of a format. `None` if the number is unknown; the function then receives the
/// number itself.
pub fn media_type(format: u16) -> Option<&'static str> {
    FORMATS.iter().find(|(number, _)| *number == format).map(|(_, name)| *name)
}

/// The format of a media type. Parameters and the case of letters are ignored.
pub fn content_format(media_type: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(media_type).ok()?;
    let essence = text.split(';').next().unwrap_or_default().trim();
    FORMATS
        .iter()
        .find(|(_, name)| name.split(';').next().unwrap_or_default().eq_ignore_ascii_case(essence))
        .map(|(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_survives_both_ways() {
        for (number, name) in FORMATS {
            assert_eq!(media_type(number), Some(name));
            assert_eq!(content_format(name.as_bytes()), Some(number));
        }
        assert_eq!(content_format(b"Text/Plain"), Some(0));
        assert_eq!(content_format(b"application/problem+json"), None);
        assert_eq!(media_type(9999), None);
    }
}
