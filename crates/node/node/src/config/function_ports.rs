//! The TCP ports that functions may have for themselves.

use std::fmt;
use std::ops::RangeInclusive;

/// Ranges of TCP ports. The list is empty if no function may have a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionPorts(Vec<RangeInclusive<u16>>);

impl Default for FunctionPorts {
    /// The ports that Kubernetes gives to services (NodePort). Common services do not use these
    /// ports, and Linux takes ports for outgoing connections only from 32768 on.
    fn default() -> Self {
        Self(vec![30_000..=32_767])
    }
}

impl FunctionPorts {
    /// Reads `off`, or ports and ranges such as `443, 30000-32767`; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "off" {
            return Some(Self(Vec::new()));
        }
        let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let range = port(first)?..=port(last)?;
            (!range.is_empty()).then_some(range)
        };
        text.split(',').map(range).collect::<Option<_>>().map(Self)
    }

    /// Whether no function may have a port.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a function may have this port.
    pub fn permit(&self, port: u16) -> bool {
        self.0.iter().any(|range| range.contains(&port))
    }
}

impl fmt::Display for FunctionPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("off");
        }
        for (at, range) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(f, "{comma}{first}")?,
                (first, last) => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_ranges_and_single_ports() {
        for (text, shown, permitted, refused) in [
            ("off", "off", &[][..], &[1, 30_000][..]),
            ("443", "443", &[443], &[442, 444]),
            (" 80 , 9000-9002", "80,9000-9002", &[80, 9_000, 9_002], &[81, 8_999, 9_003]),
            ("65535-65535", "65535", &[65_535], &[65_534]),
        ] {
            let ports = FunctionPorts::parse(text).expect(text);
            assert_eq!(ports.to_string(), shown);
            assert_eq!(FunctionPorts::parse(shown), Some(ports.clone()));
            assert!(permitted.iter().all(|port| ports.permit(*port)), "{text}");
            assert!(!refused.iter().any(|port| ports.permit(*port)), "{text}");
        }
        for wrong in ["", "on", "0", "65536", "9-8", "1-", "-1", "1,,2", "1-2-3", "0-5", "+80-x"] {
            assert_eq!(FunctionPorts::parse(wrong), None, "{wrong}");
        }
        assert!(
            FunctionPorts::default().permit(30_000) && !FunctionPorts::default().permit(32_768)
        );
    }
}
