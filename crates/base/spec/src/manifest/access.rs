//! Reads `[access]`: who may call a function.

use std::collections::BTreeMap;

use toml::de::DeValue;

use crate::toml_reader::{Lined, Section, TomlReader};

use super::{FunctionManifest, TOP_KEYS, read_word};

/// The access modes that a manifest may name.
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
    /// `mtls`.
    Mtls,
    /// `webhook`.
    Webhook,
    /// `local`.
    Local,
}

pub(super) const ACCESSES: [(&str, AccessName); 7] = [
    ("public", AccessName::Public),
    ("key", AccessName::Key),
    ("basic", AccessName::Basic),
    ("jwt", AccessName::Jwt),
    ("mtls", AccessName::Mtls),
    ("webhook", AccessName::Webhook),
    ("local", AccessName::Local),
];
/// The keys that belong to the mode `jwt`.
pub(super) const OF_TOKENS: [&str; 4] = ["issuer", "audience", "keys", "claims"];

/// The key that belongs to the mode `mtls`.
pub(super) const OF_CERTIFICATES: [&str; 1] = ["callers"];

/// The keys that belong to the mode `webhook`.
pub(super) const OF_WEBHOOKS: [&str; 9] = [
    "scheme",
    "secret",
    "window",
    "header",
    "prefix",
    "encoding",
    "algorithm",
    "timestamp",
    "signed",
];
/// The keys of a webhook that belong to the scheme `hmac`.
const OF_HMAC: [&str; 6] = ["header", "prefix", "encoding", "algorithm", "timestamp", "signed"];
/// The default for how much the time of a signature may differ from the node's clock. The libraries
/// of Stripe and Standard Webhooks use the same value.
const WINDOW_MS_DEFAULT: u64 = 300_000;

/// If a mode needs further settings in addition to its word, returns the reason. Returns `None` for
/// other words.
pub fn access_needs_more(word: &str) -> Option<&'static str> {
    match word {
        "jwt" => {
            Some("jwt needs an issuer and an audience, which only [access] in a mote.toml gives")
        }
        "webhook" => {
            Some("webhook needs a scheme and a secret, which only [access] in a mote.toml gives")
        }
        _ => None,
    }
}

/// Reads a mode that needs no other settings: `public`, `key`, `basic`, `mtls` or `local`.
pub fn access(word: &str) -> Option<AccessName> {
    let found = ACCESSES.iter().find(|(known, _)| *known == word).map(|(_, access)| *access);
    found.filter(|access| !matches!(access, AccessName::Jwt | AccessName::Webhook))
}

/// The schemes of signed requests that a manifest may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SchemeName {
    /// `github`.
    #[default]
    Github,
    /// `stripe`.
    Stripe,
    /// `slack`.
    Slack,
    /// `standard`.
    Standard,
    /// `hmac`.
    Hmac,
}

pub(super) const SCHEMES: [(&str, SchemeName); 5] = [
    ("github", SchemeName::Github),
    ("stripe", SchemeName::Stripe),
    ("slack", SchemeName::Slack),
    ("standard", SchemeName::Standard),
    ("hmac", SchemeName::Hmac),
];

/// The encodings of a signature that a manifest may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodingName {
    /// `hex`.
    Hex,
    /// `base64`.
    Base64,
}

/// The hash functions that a manifest may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashName {
    /// `sha256`.
    Sha256,
    /// `sha512`.
    Sha512,
}

/// The rules for signed requests, not yet checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WebhookManifest {
    /// The line of the section.
    pub line: usize,
    /// `scheme`.
    pub scheme: SchemeName,
    /// `secret`.
    pub secret: String,
    /// `window`, in milliseconds.
    pub window_ms: u64,
    /// `header`, in lower case.
    pub header: String,
    /// `prefix`.
    pub prefix: String,
    /// `encoding`.
    pub encoding: Option<EncodingName>,
    /// `algorithm`.
    pub algorithm: Option<HashName>,
    /// `timestamp`, in lower case.
    pub timestamp: Option<String>,
    /// `signed`.
    pub signed: Option<String>,
}

/// The rules for callers' tokens, not yet checked.
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
    function: &mut FunctionManifest,
    line: usize,
) {
    let known: Vec<&str> =
        ["mode"].into_iter().chain(OF_TOKENS).chain(OF_CERTIFICATES).chain(OF_WEBHOOKS).collect();
    reader.check_keys(at, &known, &[], &TOP_KEYS);
    let mode = read_word(reader, at, "mode", &ACCESSES);
    if reader.get(at, "mode").is_none() {
        reader.mistake("M0306", line, "[access] needs mode, e.g. mode = \"key\"", None);
    }
    function.access = mode;
    match mode {
        Some(AccessName::Jwt) => function.tokens = Some(read_tokens(reader, at, line)),
        Some(AccessName::Mtls) => {
            let wanted = "a list of names, e.g. [\"*.plant.example\"]";
            function.callers = reader.strings(at, "callers", wanted);
            if let Some(callers) = function.callers.as_ref().filter(|list| list.value.is_empty()) {
                let text = "callers: no name; leave it out to accept every name";
                reader.mistake("M0303", callers.line, text, None);
            }
        }
        Some(AccessName::Webhook) => function.webhook = Some(read_webhook(reader, at, line)),
        Some(_) => {}
        // The mode itself is wrong, and this mistake has already been reported.
        None => return,
    }
    for (of, word, keys) in [
        (AccessName::Jwt, "jwt", &OF_TOKENS[..]),
        (AccessName::Mtls, "mtls", &OF_CERTIFICATES),
        (AccessName::Webhook, "webhook", &OF_WEBHOOKS),
    ] {
        for key in keys.iter().filter(|_| mode != Some(of)) {
            if let Some((_, line)) = reader.get(at, key) {
                let text = format!("{key}: only for mode = \"{word}\"");
                reader.mistake("M0303", line, &text, None);
            }
        }
    }
}

fn read_webhook(reader: &mut TomlReader<'_>, at: &Section<'_>, line: usize) -> WebhookManifest {
    let needs = |reader: &mut TomlReader<'_>, of: &str, key: &str, example: &str| {
        if reader.get(at, key).is_none() {
            let text = format!("{of} needs {key}, e.g. {key} = \"{example}\"");
            reader.mistake("M0306", line, &text, None);
        }
    };
    let scheme = read_word(reader, at, "scheme", &SCHEMES);
    needs(reader, "mode = \"webhook\"", "scheme", "github");
    let text = |reader: &mut TomlReader<'_>, key: &str, example: &str| {
        let wanted = format!("a string, e.g. \"{example}\"");
        reader.string(at, key, &wanted).map(|found| found.value)
    };
    let secret = text(reader, "secret", "github-webhook").unwrap_or_default();
    needs(reader, "mode = \"webhook\"", "secret", "github-webhook");
    let window = reader.duration_ms(at, "window", 1_000..=3_600_000, "1s to 1h, e.g. \"5m\"");
    let mut webhook = WebhookManifest {
        line,
        scheme: scheme.unwrap_or_default(),
        secret,
        window_ms: window.map_or(WINDOW_MS_DEFAULT, |window| window.value),
        ..Default::default()
    };
    if scheme == Some(SchemeName::Hmac) {
        webhook.header = text(reader, "header", "X-Signature").unwrap_or_default();
        needs(reader, "scheme = \"hmac\"", "header", "X-Signature");
        webhook.header.make_ascii_lowercase();
        webhook.prefix = text(reader, "prefix", "sha256=").unwrap_or_default();
        let encodings = [("hex", EncodingName::Hex), ("base64", EncodingName::Base64)];
        webhook.encoding = read_word(reader, at, "encoding", &encodings);
        let hashes = [("sha256", HashName::Sha256), ("sha512", HashName::Sha512)];
        webhook.algorithm = read_word(reader, at, "algorithm", &hashes);
        webhook.timestamp = text(reader, "timestamp", "X-Timestamp");
        webhook.timestamp.iter_mut().for_each(|field| field.make_ascii_lowercase());
        webhook.signed = text(reader, "signed", "{timestamp}.{body}");
    } else if scheme.is_some() {
        for key in OF_HMAC {
            if let Some((_, line)) = reader.get(at, key) {
                let text = format!("{key}: only for scheme = \"hmac\"");
                reader.mistake("M0303", line, &text, None);
            }
        }
    }
    let has_time = match scheme {
        Some(SchemeName::Github) => false,
        Some(SchemeName::Hmac) => webhook.timestamp.is_some(),
        _ => true,
    };
    if let (Some((_, line)), false) = (reader.get(at, "window"), has_time) {
        let text = "window: these signatures have no time";
        let hint = (scheme == Some(SchemeName::Hmac))
            .then(|| "timestamp names the field with the time".to_owned());
        reader.mistake("M0303", line, text, hint);
    }
    webhook
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
        assert_eq!(access("mtls"), Some(AccessName::Mtls));
        assert_eq!((access("jwt"), access("webhook"), access("keys")), (None, None, None));
    }

    fn webhook(section: &str) -> Result<WebhookManifest, String> {
        let source = format!("version = 1\n[access]\nmode = \"webhook\"\n{section}");
        let manifest = Manifest::parse(FILE_NAME, &source).map_err(|error| error.to_string())?;
        let function = manifest.functions.into_iter().next().expect("one function");
        assert_eq!(function.access, Some(AccessName::Webhook));
        Ok(function.webhook.expect("a webhook"))
    }

    #[test]
    fn certificates() {
        let read = |section: &str| {
            let source = format!("version = 1\n[access]\nmode = \"mtls\"\n{section}");
            let manifest =
                Manifest::parse(FILE_NAME, &source).map_err(|error| error.to_string())?;
            let function = manifest.functions.into_iter().next().expect("one function");
            assert_eq!(function.access, Some(AccessName::Mtls));
            Ok::<_, String>(function.callers.map(|callers| callers.value))
        };
        assert_eq!(read(""), Ok(None));
        let callers = vec!["pump-*".to_owned(), "b".to_owned()];
        assert_eq!(read("callers = [\"pump-*\", \"b\"]\n"), Ok(Some(callers)));
        for (section, expected) in [
            ("callers = []\n", "callers: no name; leave it out to accept every name (line 4)"),
            ("callers = \"a\"\n", "callers: a list of names, e.g. [\"*.plant.example\"]"),
            ("issuer = \"b\"\n", "issuer: only for mode = \"jwt\" (line 4)"),
        ] {
            let text = read(section).expect_err(section);
            assert!(text.contains(expected), "{section}: {text}");
        }
        let source = "version = 1\n[access]\nmode = \"key\"\ncallers = [\"a\"]\n";
        let text = Manifest::parse(FILE_NAME, source).expect_err("contradicts").to_string();
        assert!(text.contains("callers: only for mode = \"mtls\" (line 4)"), "{text}");
    }

    #[test]
    fn webhooks() {
        let least = webhook("scheme = \"stripe\"\nsecret = \"a\"\n").expect("valid");
        assert_eq!((least.scheme, &*least.secret), (SchemeName::Stripe, "a"));
        assert_eq!(least.window_ms, 300_000);
        let all = webhook(
            "scheme = \"hmac\"\nsecret = \"a\"\nheader = \"X-Sig\"\nprefix = \"v=\"\n\
             encoding = \"base64\"\nalgorithm = \"sha512\"\ntimestamp = \"X-Time\"\n\
             signed = \"{timestamp}.{body}\"\nwindow = \"1m\"\n",
        );
        let all = all.expect("valid");
        assert_eq!((&*all.header, &*all.prefix, all.window_ms), ("x-sig", "v=", 60_000));
        assert_eq!(all.timestamp.as_deref(), Some("x-time"));
        assert_eq!(
            (all.encoding, all.algorithm),
            (Some(EncodingName::Base64), Some(HashName::Sha512))
        );
        for (section, expected) in [
            (
                "secret = \"a\"\n",
                "mode = \"webhook\" needs scheme, e.g. scheme = \"github\" (line 2)",
            ),
            ("scheme = \"github\"\n", "needs secret, e.g. secret = \"github-webhook\" (line 2)"),
            ("scheme = \"gitlab\"\nsecret = \"a\"\n", "\"standard\" or \"hmac\" (line 4)"),
            ("scheme = \"hmac\"\nsecret = \"a\"\n", "scheme = \"hmac\" needs header"),
            (
                "scheme = \"github\"\nsecret = \"a\"\nheader = \"b\"\n",
                "header: only for scheme = \"hmac\" (line 6)",
            ),
            (
                "scheme = \"github\"\nsecret = \"a\"\nwindow = \"1m\"\n",
                "window: these signatures have no time (line 6)",
            ),
            ("scheme = \"stripe\"\nsecret = \"a\"\nwindow = \"2h\"\n", "window: 1s to 1h"),
            (
                "scheme = \"stripe\"\nsecret = \"a\"\nissuer = \"b\"\n",
                "issuer: only for mode = \"jwt\" (line 6)",
            ),
        ] {
            let text = webhook(section).expect_err(section);
            assert!(text.contains(expected), "{section}: {text}");
        }
    }
}
