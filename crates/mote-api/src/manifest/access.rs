//! `[access]`: who may call a function.

use std::collections::BTreeMap;

use toml::de::DeValue;

use crate::toml_reader::{Lined, Section, TomlReader};

use super::{TOP_KEYS, read_word};

/// Who may call a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessName {
    /// `public`.
    Public,
    /// `key`.
    Key,
    /// `basic`.
    Basic,
    /// `jwt`.
    Jwt,
    /// `local`.
    Local,
}

const ACCESSES: [(&str, AccessName); 5] = [
    ("public", AccessName::Public),
    ("key", AccessName::Key),
    ("basic", AccessName::Basic),
    ("jwt", AccessName::Jwt),
    ("local", AccessName::Local),
];
/// The keys that belong to the mode `jwt`.
const OF_TOKENS: [&str; 4] = ["issuer", "audience", "keys", "claims"];

/// Why `jwt` alone is not enough to say who may call a function.
pub const ACCESS_NEEDS_MORE: &str =
    "jwt needs an issuer and an audience, which only [access] in a mote.toml gives";

/// Reads the mode that one word can say: `public`, `key`, `basic` or `local`.
pub fn access(word: &str) -> Option<AccessName> {
    let found = ACCESSES.iter().find(|(known, _)| *known == word).map(|(_, access)| *access);
    found.filter(|access| *access != AccessName::Jwt)
}

/// The tokens that a function accepts, not yet checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokensManifest {
    /// The line of the section.
    pub line: usize,
    /// `issuer`.
    pub issuer: String,
    /// `audience`.
    pub audience: String,
    /// `keys`: a file of the project, or an address.
    pub keys: Option<Lined<String>>,
    /// `claims`: texts, whole numbers and truth values.
    pub claims: BTreeMap<String, serde_json::Value>,
}

/// Reads `[access]`, which is at `line`.
pub(super) fn read(
    reader: &mut TomlReader<'_>,
    at: &Section<'_>,
    line: usize,
) -> (Option<AccessName>, Option<TokensManifest>) {
    let known = ["mode", "issuer", "audience", "keys", "claims"];
    reader.check_keys(at, &known, &[], &TOP_KEYS);
    let mode = read_word(reader, at, "mode", &ACCESSES);
    if reader.get(at, "mode").is_none() {
        reader.mistake("M0306", line, "[access] needs mode, e.g. mode = \"key\"", None);
    }
    if mode == Some(AccessName::Jwt) {
        return (mode, Some(read_tokens(reader, at, line)));
    }
    for key in OF_TOKENS {
        // A mistake in the mode is reported already.
        if let (Some((_, line)), Some(_)) = (reader.get(at, key), mode) {
            reader.mistake("M0303", line, &format!("{key}: only for mode = \"jwt\""), None);
        }
    }
    (mode, None)
}

fn read_tokens(reader: &mut TomlReader<'_>, at: &Section<'_>, line: usize) -> TokensManifest {
    let mut needed = |key: &str, example: &str| {
        let wanted = format!("a string, e.g. \"{example}\"");
        let found = reader.string(at, key, &wanted);
        if reader.get(at, key).is_none() {
            let text = format!("mode = \"jwt\" needs {key}, e.g. {key} = \"{example}\"");
            reader.mistake("M0306", line, &text, None);
        }
        found.map(|found| found.value).unwrap_or_default()
    };
    let issuer = needed("issuer", "https://login.example");
    let audience = needed("audience", "thermometers");
    let keys = reader.string(at, "keys", "a file or an address, e.g. \"jwks.json\"");
    TokensManifest { line, issuer, audience, keys, claims: read_claims(reader, at) }
}

fn read_claims(
    reader: &mut TomlReader<'_>,
    at: &Section<'_>,
) -> BTreeMap<String, serde_json::Value> {
    let mut claims = BTreeMap::new();
    let Some((value, line)) = reader.get(at, "claims") else { return claims };
    let Some(table) = value.as_table() else {
        reader.wrong_type("claims", line, "a table, e.g. { role = \"operator\" }", value);
        return claims;
    };
    for (name, value) in table {
        let claim = match value.get_ref() {
            DeValue::String(text) => Some(text.as_ref().into()),
            DeValue::Boolean(value) => Some((*value).into()),
            DeValue::Integer(number) => {
                i64::from_str_radix(number.as_str(), number.radix()).ok().map(Into::into)
            }
            _ => None,
        };
        let name: &str = name.get_ref();
        match claim {
            Some(claim) => drop(claims.insert(name.to_owned(), claim)),
            None => {
                let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
                let wanted = "a text, a whole number, true or false";
                reader.wrong_type(&format!("claims.{shown}"), line, wanted, value.get_ref());
            }
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use crate::manifest::{FILE_NAME, Manifest};

    use super::*;

    fn read(section: &str) -> Result<TokensManifest, String> {
        let source = format!("version = 1\n[access]\nmode = \"jwt\"\n{section}");
        let manifest = Manifest::parse(FILE_NAME, &source).map_err(|error| error.to_string())?;
        let function = manifest.functions.into_iter().next().expect("one function");
        assert_eq!(function.access, Some(AccessName::Jwt));
        Ok(function.tokens.expect("with tokens"))
    }

    #[test]
    fn tokens_of_an_issuer() {
        let needed = "issuer = \"https://a\"\naudience = \"b\"\n";
        let least = read(needed).expect("valid");
        assert_eq!((&*least.issuer, &*least.audience), ("https://a", "b"));
        assert_eq!((least.keys, least.claims.len()), (None, 0));
        let more = "keys = \"jwks.json\"\nclaims = { role = \"x\", level = 0x10, staff = true }\n";
        let all = read(&format!("{needed}{more}")).expect("valid");
        assert_eq!(all.keys.expect("given").value, "jwks.json");
        let claims = serde_json::to_value(all.claims).expect("JSON");
        assert_eq!(claims, serde_json::json!({ "role": "x", "level": 16, "staff": true }));
        for (section, expected) in [
            (
                "issuer = \"a\"\n",
                "mode = \"jwt\" needs audience, e.g. audience = \"thermometers\" (line 2)",
            ),
            (
                "audience = \"a\"\n",
                "mode = \"jwt\" needs issuer, e.g. issuer = \"https://login.example\" (line 2)",
            ),
            (
                "issuer = 1\naudience = \"a\"\n",
                "issuer: a string, e.g. \"https://login.example\"; found an integer (line 4)",
            ),
            (
                "claims = 1\n",
                "claims: a table, e.g. { role = \"operator\" }; found an integer (line 4)",
            ),
            (
                "claims = { a = [1] }\n",
                "claims.a: a text, a whole number, true or false; found an array (line 4)",
            ),
            (
                "claims = { a = 1.5 }\n",
                "claims.a: a text, a whole number, true or false; found a number (line 4)",
            ),
            ("issuers = \"a\"\n", "unknown key `issuers` in [access] (line 4)"),
        ] {
            let text = read(section).expect_err(section);
            assert!(text.contains(expected), "{section}: {text}");
        }
    }

    #[test]
    fn other_modes_have_no_tokens() {
        let source = "version = 1\n[access]\nmode = \"key\"\nissuer = \"https://a\"\n";
        let text = Manifest::parse(FILE_NAME, source).expect_err("contradicts").to_string();
        assert!(text.contains("issuer: only for mode = \"jwt\" (line 4)"), "{text}");
    }

    #[test]
    fn one_word_is_not_enough_for_tokens() {
        assert_eq!(access("basic"), Some(AccessName::Basic));
        assert_eq!((access("jwt"), access("keys")), (None, None));
    }
}
