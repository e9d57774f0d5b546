//! The kind of machine for which an image was built.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An operating system and a processor, as `linux/arm64` or `linux/arm/v7`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    pub os: String,
    /// The processor as Go names it: `amd64`, not `x86_64`.
    pub architecture: String,
    pub variant: Option<String>,
}

impl Platform {
    /// The platform of this program.
    pub fn host() -> Self {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", None),
            "aarch64" => ("arm64", None),
            "x86" => ("386", None),
            "arm" => ("arm", Some("v7".to_owned())),
            "powerpc64" if cfg!(target_endian = "little") => ("ppc64le", None),
            other => (other, None),
        };
        Self { os: "linux".into(), architecture: architecture.into(), variant }
    }

    /// How well an image for `there` suits this platform; `None` if it does not. Higher is better.
    pub(crate) fn suits(&self, there: &Self) -> Option<u32> {
        if self.os != there.os || self.architecture != there.architecture {
            return None;
        }
        let (wanted, there) = (self.level(), there.level());
        match self.architecture.as_str() {
            // A processor also runs programs for its earlier versions.
            "arm" | "amd64" => (there <= wanted).then_some(there),
            _ => (wanted == there).then_some(there),
        }
    }

    fn level(&self) -> u32 {
        let default = match self.architecture.as_str() {
            "arm" => 7,
            "arm64" => 8,
            _ => 1,
        };
        let variant = self.variant.as_deref().and_then(|text| text.strip_prefix('v'));
        variant.and_then(|number| number.parse().ok()).unwrap_or(default)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        if let Some(variant) = &self.variant { write!(f, "/{variant}") } else { Ok(()) }
    }
}

impl FromStr for Platform {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_word = |part: &&str| {
            !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        let parts: Vec<&str> = text.split('/').collect();
        match parts.as_slice() {
            [os, architecture, variant @ ..] if variant.len() < 2 && parts.iter().all(is_word) => {
                let architecture = match *architecture {
                    "x86_64" => "amd64",
                    "aarch64" => "arm64",
                    other => other,
                };
                Ok(Self {
                    os: (*os).to_owned(),
                    architecture: architecture.to_owned(),
                    variant: variant.first().map(|variant| (*variant).to_owned()),
                })
            }
            _ => Err(format!("`{text}` is not a platform, such as linux/amd64 or linux/arm/v7")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_suits() {
        let suits = |wanted: &str, there: &str| {
            let parse = |text: &str| text.parse::<Platform>().expect("a platform");
            parse(wanted).suits(&parse(there)).is_some()
        };
        for (wanted, there, expected) in [
            ("linux/amd64", "linux/amd64", true),
            ("linux/x86_64", "linux/amd64", true),
            ("linux/amd64", "linux/amd64/v2", false),
            ("linux/amd64/v3", "linux/amd64/v2", true),
            ("linux/amd64", "windows/amd64", false),
            ("linux/amd64", "linux/arm64", false),
            ("linux/arm64", "linux/arm64/v8", true),
            ("linux/arm/v7", "linux/arm/v6", true),
            ("linux/arm/v6", "linux/arm/v7", false),
            ("linux/arm", "linux/arm/v7", true),
        ] {
            assert_eq!(suits(wanted, there), expected, "{there} on {wanted}");
        }
        for text in ["", "linux", "linux/", "/amd64", "linux/arm/v7/x", "linux/a b"] {
            assert!(text.parse::<Platform>().is_err(), "{text}");
        }
    }
}
