//! Reads from a manifest who may call a function.

use std::io::ErrorKind;
use std::path::{Component, Path};
use std::sync::Arc;

use mote_spec::manifest::{
    AccessName, EncodingName, FunctionManifest, HashName, SchemeName, TokensManifest,
    WebhookManifest,
};
use mote_spec::toml_reader::Mistakes;
use mote_spec::{
    Access, CertificateRules, FunctionSpec, HmacRules, SignatureEncoding, SignatureHash, TokenKeys,
    TokenRules, WebhookRules, WebhookScheme,
};

use super::mistakes::{escaped, in_manifest};

/// Sets the access mode that a manifest names, if it names one. The keys of a token issuer are read
/// from a file in `folder`.
pub(super) fn apply(
    spec: &mut FunctionSpec,
    function: &FunctionManifest,
    folder: Option<&Path>,
) -> Result<(), Mistakes> {
    let Some(name) = function.access else { return Ok(()) };
    spec.tokens = match &function.tokens {
        Some(tokens) => Some(Arc::new(rules(tokens, folder)?)),
        None => None,
    };
    spec.certificates = match name {
        AccessName::Mtls => Some(Arc::new(certificates(function)?)),
        _ => None,
    };
    spec.webhook = match &function.webhook {
        Some(webhook) => {
            let rules = signed(webhook);
            mote_access::webhook::check(&rules).map_err(|(key, wanted)| {
                in_manifest("M0303", webhook.line, &format!("{key}: {wanted}"))
            })?;
            Some(Arc::new(rules))
        }
        None => None,
    };
    spec.access = mode(name);
    Ok(())
}

/// Sets an access mode that needs no further settings.
pub fn set_mode(spec: &mut FunctionSpec, name: AccessName) {
    spec.access = mode(name);
    (spec.tokens, spec.webhook) = (None, None);
    spec.certificates = (spec.access == Access::Mtls).then(Arc::default);
}

fn mode(name: AccessName) -> Access {
    match name {
        AccessName::Key => Access::Key,
        AccessName::Basic => Access::Basic,
        AccessName::Jwt => Access::Jwt,
        AccessName::Mtls => Access::Mtls,
        AccessName::Webhook => Access::Webhook,
        AccessName::Public => Access::Public,
        AccessName::Local => Access::Local,
    }
}

/// Returns the rules for client certificates that a manifest describes.
fn certificates(function: &FunctionManifest) -> Result<CertificateRules, Mistakes> {
    let Some(callers) = &function.callers else { return Ok(CertificateRules::default()) };
    let rules = CertificateRules { callers: callers.value.clone() };
    match rules.mistake() {
        None => Ok(rules),
        Some(mistake) => Err(in_manifest("M0303", callers.line, &format!("callers: {mistake}"))),
    }
}

/// Returns the rules for signed requests that a manifest describes.
fn signed(webhook: &WebhookManifest) -> WebhookRules {
    let WebhookManifest { secret, window_ms, header, prefix, timestamp, signed, .. } =
        webhook.clone();
    let scheme = match webhook.scheme {
        SchemeName::Github => WebhookScheme::Github,
        SchemeName::Stripe => WebhookScheme::Stripe,
        SchemeName::Slack => WebhookScheme::Slack,
        SchemeName::Standard => WebhookScheme::Standard,
        SchemeName::Hmac => WebhookScheme::Hmac(Box::new(HmacRules {
            header,
            prefix,
            encoding: match webhook.encoding {
                None | Some(EncodingName::Hex) => SignatureEncoding::Hex,
                Some(EncodingName::Base64) => SignatureEncoding::Base64,
            },
            algorithm: match webhook.algorithm {
                None | Some(HashName::Sha256) => SignatureHash::Sha256,
                Some(HashName::Sha512) => SignatureHash::Sha512,
            },
            signed: signed.unwrap_or_else(|| match &timestamp {
                Some(_) => "{timestamp}.{body}".to_owned(),
                None => "{body}".to_owned(),
            }),
            timestamp,
        })),
    };
    WebhookRules { scheme, secret, window_ms }
}

fn rules(tokens: &TokensManifest, folder: Option<&Path>) -> Result<TokenRules, Mistakes> {
    let keys = match &tokens.keys {
        None => TokenKeys::Discovered,
        Some(place) if place.value.contains("://") => TokenKeys::Url(place.value.clone()),
        Some(file) => {
            let read = read(&file.value, folder).map_err(|problem| {
                let text = format!("keys: {}: {problem}", escaped(&file.value));
                in_manifest("M0303", file.line, &text)
            });
            TokenKeys::Set(read?)
        }
    };
    let TokensManifest { issuer, audience, claims, .. } = tokens.clone();
    let rules = TokenRules { issuer, audience, keys, claims };
    match mote_access::jwt::check(&rules) {
        Ok(()) => Ok(rules),
        Err((key, problem)) => {
            let line = tokens.keys.as_ref().filter(|_| key == "keys").map(|keys| keys.line);
            let text = format!("{key}: {problem}");
            Err(in_manifest("M0303", line.unwrap_or(tokens.line), &text))
        }
    }
}

/// Reads the text of a key set from a file below the folder.
fn read(file: &str, folder: Option<&Path>) -> Result<String, String> {
    let folder = folder.ok_or("a file is not possible here, only an address")?;
    let path = Path::new(file);
    let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
    if file.is_empty() || !is_below {
        return Err("a file of the project, or an https:// address".to_owned());
    }
    let file = folder.join(path);
    let read = mote_store::source::bytes(&file, folder, mote_access::jwt::SET_BYTES_MAX as u64);
    let bytes = read.map_err(|error| match error.kind() {
        ErrorKind::FileTooLarge => "not a file of at most 64 KiB".to_owned(),
        _ => error.to_string(),
    })?;
    String::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use mote_spec::toml_reader::Lined;
    use mote_spec::{FunctionName, Runtime};

    use super::*;

    const SET: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

    fn rules_of(keys: Option<&str>) -> Result<TokenKeys, String> {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("jwks.json"), SET).expect("written");
        fs::write(folder.path().join("bad.json"), "{}").expect("written");
        std::os::unix::fs::symlink("/dev/zero", folder.path().join("zero.json")).expect("a link");
        let keys = keys.map(|keys| Lined { value: keys.to_owned(), line: 6 });
        let issuer = "https://login.example".to_owned();
        let audience = "a".to_owned();
        let tokens = TokensManifest { line: 2, issuer, audience, keys, claims: Default::default() };
        let access = Some(AccessName::Jwt);
        let function = FunctionManifest { access, tokens: Some(tokens), ..Default::default() };
        let name = FunctionName::new("f").expect("valid");
        let mut spec = FunctionSpec::with_defaults(name, Runtime::Python, "a:b");
        let done = apply(&mut spec, &function, Some(folder.path()));
        done.map_err(|mistakes| mistakes.to_string())?;
        assert_eq!((spec.access, spec.check()), (Access::Jwt, vec![]));
        Ok(spec.tokens.expect("set").keys.clone())
    }

    #[test]
    fn keys_of_an_issuer() {
        assert_eq!(rules_of(None), Ok(TokenKeys::Discovered));
        assert_eq!(rules_of(Some("jwks.json")), Ok(TokenKeys::Set(SET.to_owned())));
        let url = "https://login.example/keys";
        assert_eq!(rules_of(Some(url)), Ok(TokenKeys::Url(url.to_owned())));
        for (keys, expected) in [
            ("bad.json", "keys: the key set has no list `keys` (line 6)"),
            ("none.json", "keys: none.json: No such file or directory"),
            ("zero.json", "keys: zero.json: the link leaves the folder"),
            ("../jwks.json", "a file of the project, or an https:// address (line 6)"),
            ("/etc/passwd", "a file of the project, or an https:// address (line 6)"),
            ("", "a file of the project, or an https:// address (line 6)"),
            (".", "a file of the project, or an https:// address (line 6)"),
            ("http://login.example/keys", "keys: an https:// address"),
        ] {
            let text = rules_of(Some(keys)).expect_err(keys);
            assert!(text.contains(expected), "{keys}: {text}");
        }
    }
}
