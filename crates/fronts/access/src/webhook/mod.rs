//! Signed requests: checks whether a signature was made with a secret for this body and within the
//! time window, and whether rules for signatures can be applied. This module must not know where
//! secrets come from, what functions are, or which clock is used.

mod rules;

pub use rules::check;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use mote_core::invocation::headers;
use mote_spec::{HmacRules, SignatureEncoding, SignatureHash, WebhookRules, WebhookScheme};
use ring::hmac::{self, Algorithm};

/// The maximum number of signatures in one request. A service that is replacing its secret sends
/// two.
const SIGNATURES_MAX: usize = 8;
/// The prefix of secrets of Standard Webhooks, which may be missing. The rest of the secret is
/// base64.
const STANDARD_SECRET: &str = "whsec_";

/// Whether the head contains a signature of this scheme with the right length and a time within the
/// window. This check does not show who made the signature, which cannot be verified without the
/// body.
#[must_use]
pub fn is_signed(rules: &WebhookRules, block: &[u8], now_unix_ms: u64) -> bool {
    Signed::of(&rules.scheme, block).is_some_and(|signed| signed.is_possible(rules, now_unix_ms))
}

/// Whether a request has a valid signature made with this secret. Takes about a millisecond for 1
/// MiB.
#[must_use]
pub fn verifies(
    rules: &WebhookRules,
    secret: &str,
    block: &[u8],
    body: &[u8],
    now_unix_ms: u64,
) -> bool {
    let Some(signed) = Signed::of(&rules.scheme, block) else { return false };
    // If an editor wrote the secret's file, the file ends with a line feed.
    let text = secret.trim_end_matches(['\r', '\n']);
    let decoded;
    let secret = if rules.scheme == WebhookScheme::Standard {
        let text = text.strip_prefix(STANDARD_SECRET).unwrap_or(text);
        let Ok(bytes) = BASE64.decode(text.as_bytes()) else { return false };
        decoded = bytes;
        &decoded[..]
    } else {
        text.as_bytes()
    };
    if secret.is_empty() || !signed.is_possible(rules, now_unix_ms) {
        return false;
    }
    let key = hmac::Key::new(signed.algorithm, secret);
    let mut context = hmac::Context::with_key(&key);
    context.update(&signed.begin);
    context.update(body);
    // `ring` compares in constant time only signatures that it computes itself, and only over one
    // piece of data. So both signatures are themselves signed, and the results are compared.
    let expected = hmac::sign(&key, context.sign().as_ref());
    signed
        .signatures
        .iter()
        .any(|signature| hmac::verify(&key, signature, expected.as_ref()).is_ok())
}

/// What the head of a request says about its signature.
struct Signed<'a> {
    algorithm: Algorithm,
    /// The decoded signatures. One of them must be valid.
    signatures: Vec<Vec<u8>>,
    time: Option<&'a [u8]>,
    /// The bytes that are signed before the body.
    begin: Vec<u8>,
}

impl<'a> Signed<'a> {
    /// Whether one of the signatures has the right length, and the time is within the window.
    fn is_possible(&self, rules: &WebhookRules, now_unix_ms: u64) -> bool {
        let length = self.algorithm.digest_algorithm().output_len();
        let is_in_time = self.time.is_none_or(|time| {
            let at_ms = parse_seconds(time).and_then(|seconds| seconds.checked_mul(1_000));
            at_ms.is_some_and(|at_ms| at_ms.abs_diff(now_unix_ms) <= rules.window_ms)
        });
        is_in_time && self.signatures.iter().any(|signature| signature.len() == length)
    }

    fn of(scheme: &WebhookScheme, block: &'a [u8]) -> Option<Self> {
        let algorithm = hmac::HMAC_SHA256;
        match scheme {
            WebhookScheme::Github => {
                let value = only(block, "x-hub-signature-256")?.strip_prefix(b"sha256=")?;
                let signatures = vec![hex(value)?];
                let begin = Vec::new();
                Some(Self { algorithm, signatures, time: None, begin })
            }
            WebhookScheme::Slack => {
                let value = only(block, "x-slack-signature")?.strip_prefix(b"v0=")?;
                let time = only(block, "x-slack-request-timestamp")?;
                let begin = [b"v0:", time, b":"].concat();
                Some(Self { algorithm, signatures: vec![hex(value)?], time: Some(time), begin })
            }
            WebhookScheme::Stripe => {
                let mut time = None;
                let mut signatures = Vec::new();
                for part in only(block, "stripe-signature")?.split(|byte| *byte == b',') {
                    let at = part.iter().position(|byte| *byte == b'=')?;
                    match (part[..at].trim_ascii(), part[at + 1..].trim_ascii()) {
                        (b"t", value) if time.replace(value).is_some() => return None,
                        (b"v1", value) => signatures.push(hex(value)?),
                        // Signatures of other versions are ignored.
                        _ => {}
                    }
                }
                let time = time?;
                let begin = [time, b"."].concat();
                is_few(&signatures).then_some(Self {
                    algorithm,
                    signatures,
                    time: Some(time),
                    begin,
                })
            }
            WebhookScheme::Standard => {
                let time = only(block, "webhook-timestamp")?;
                let id = only(block, "webhook-id").filter(|id| !id.contains(&b'.'))?;
                let parts = only(block, "webhook-signature")?.split(|byte| *byte == b' ');
                let versions = parts.filter_map(|part| part.strip_prefix(b"v1,"));
                let signatures: Option<Vec<_>> =
                    versions.map(|value| BASE64.decode(value).ok()).collect();
                let begin = [id, b".", time, b"."].concat();
                let signatures = signatures.filter(|list| is_few(list))?;
                Some(Self { algorithm, signatures, time: Some(time), begin })
            }
            WebhookScheme::Hmac(rules) => Self::of_hmac(rules, block),
        }
    }

    fn of_hmac(rules: &HmacRules, block: &'a [u8]) -> Option<Self> {
        let value = only(block, &rules.header)?.strip_prefix(rules.prefix.as_bytes())?;
        let signature = match rules.encoding {
            SignatureEncoding::Hex => hex(value)?,
            SignatureEncoding::Base64 => BASE64.decode(value).ok()?,
        };
        let time = match &rules.timestamp {
            Some(field) => Some(only(block, field)?),
            None => None,
        };
        let begin = rules.signed.strip_suffix("{body}")?.as_bytes();
        let begin = match (begin, time, rules.signed.split_once("{timestamp}")) {
            (_, Some(time), Some((before, after))) => {
                let after = after.strip_suffix("{body}")?;
                [before.as_bytes(), time, after.as_bytes()].concat()
            }
            (begin, _, _) => begin.to_vec(),
        };
        let algorithm = match rules.algorithm {
            SignatureHash::Sha256 => hmac::HMAC_SHA256,
            SignatureHash::Sha512 => hmac::HMAC_SHA512,
        };
        Some(Self { algorithm, signatures: vec![signature], time, begin })
    }
}

fn is_few(signatures: &[Vec<u8>]) -> bool {
    (1..=SIGNATURES_MAX).contains(&signatures.len())
}

/// Returns the value of a field that occurs exactly once.
fn only<'a>(block: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut values =
        headers(block).filter(|(field, _)| *field == name.as_bytes()).map(|(_, value)| value);
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

fn hex(text: &[u8]) -> Option<Vec<u8>> {
    base16ct::mixed::decode_vec(text).ok()
}

fn parse_seconds(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_700_000_000_000;

    fn rules(scheme: WebhookScheme) -> WebhookRules {
        WebhookRules { scheme, secret: "s".into(), window_ms: 300_000 }
    }

    fn block(fields: &[(&str, &str)]) -> Vec<u8> {
        fields.iter().flat_map(|(name, value)| format!("{name}\n{value}\n").into_bytes()).collect()
    }

    fn sign(algorithm: Algorithm, secret: &str, text: &str) -> Vec<u8> {
        let key = hmac::Key::new(algorithm, secret.as_bytes());
        hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
    }

    /// The example in GitHub's documentation.
    #[test]
    fn the_example_of_github() {
        let rules = rules(WebhookScheme::Github);
        let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let call = |value: &str, secret: &str, body: &str| {
            let block = block(&[("x-hub-signature-256", value)]);
            verifies(&rules, secret, &block, body.as_bytes(), NOW_MS)
        };
        let secret = "It's a Secret to Everybody";
        assert!(call(signature, secret, "Hello, World!"));
        assert!(call(signature, &format!("{secret}\n"), "Hello, World!"), "a file of an editor");
        assert!(!call(signature, secret, "Hello, World?"));
        assert!(!call(signature, "another", "Hello, World!"));
        assert!(!call(signature, "", "Hello, World!"));
        let changed = signature.replace("7571", "7572");
        for wrong in [&changed[..], "", "sha256=", "sha256=zz", &signature[..70], &signature[7..]] {
            assert!(!call(wrong, secret, "Hello, World!"), "{wrong}");
        }
        let twice =
            block(&[("x-hub-signature-256", signature), ("x-hub-signature-256", signature)]);
        assert!(!is_signed(&rules, &twice, NOW_MS) && !is_signed(&rules, b"", NOW_MS));
        let short = block(&[("x-hub-signature-256", "sha256=00")]);
        assert!(!is_signed(&rules, &short, NOW_MS));
    }

    #[test]
    fn the_time_of_a_signature_counts() {
        let scheme = |signed: &str, timestamp: Option<&str>| {
            rules(WebhookScheme::Hmac(Box::new(HmacRules {
                header: "x-signature".into(),
                prefix: "v=".into(),
                encoding: SignatureEncoding::Base64,
                algorithm: SignatureHash::Sha512,
                timestamp: timestamp.map(Into::into),
                signed: signed.into(),
            })))
        };
        let timed = scheme("a:{timestamp}:{body}", Some("x-time"));
        let call = |rules: &WebhookRules, time: &str, text: &str| {
            let value = format!("v={}", BASE64.encode(sign(hmac::HMAC_SHA512, "k", text)));
            let block = block(&[("x-signature", &value), ("x-time", time)]);
            verifies(rules, "k", &block, b"body", NOW_MS)
        };
        for (time, expected) in [
            ("1700000000", true),
            ("1700000300", true),
            ("1699999700", true),
            ("1700000301", false),
            ("1699999699", false),
            ("-1700000000", false),
            ("+1700000000", false),
            ("1700000000.0", false),
            ("", false),
            ("99999999999999999999", false),
            ("18446744073709551615", false),
        ] {
            assert_eq!(call(&timed, time, &format!("a:{time}:body")), expected, "{time}");
        }
        assert!(!call(&timed, "1700000000", "a:1700000001:body"), "another time was signed");
        assert!(call(&scheme("x{body}", None), "", "xbody"));
        assert!(call(&scheme("{body}", None), "", "body"));
    }

    #[test]
    fn several_signatures_and_their_bounds() {
        let good = base16ct::lower::encode_string(&sign(hmac::HMAC_SHA256, "k", "1700000000.body"));
        let stripe = rules(WebhookScheme::Stripe);
        let call = |value: &str| {
            verifies(&stripe, "k", &block(&[("stripe-signature", value)]), b"body", NOW_MS)
        };
        let wrong = "00".repeat(32);
        assert!(call(&format!("t=1700000000,v1={good}")));
        assert!(call(&format!("t=1700000000,v1={wrong},v1={good},v0=zz")));
        for refused in [
            format!("t=1700000000,v0={good}"),
            format!("v1={good}"),
            format!("t=1700000000,t=1700000000,v1={good}"),
            format!("t=1700000001,v1={good}"),
            format!("t=1700000000,v1={wrong}"),
            format!("t=1700000000{},v1={good}", format!(",v1={wrong}").repeat(SIGNATURES_MAX)),
            "t=1700000000,v1=".into(),
            "t".into(),
        ] {
            assert!(!call(&refused), "{refused}");
        }
        let standard = rules(WebhookScheme::Standard);
        let key = BASE64.encode(b"key");
        let value = BASE64.encode(sign(hmac::HMAC_SHA256, "key", "msg_1.1700000000.body"));
        let call = |id: &str, secret: &str| {
            let value = format!("v1a,xx v1,{value}");
            let fields = [
                ("webhook-id", id),
                ("webhook-timestamp", "1700000000"),
                ("webhook-signature", &value),
            ];
            verifies(&standard, secret, &block(&fields), b"body", NOW_MS)
        };
        assert!(call("msg_1", &format!("whsec_{key}\n")) && call("msg_1", &key));
        assert!(!call("msg_2", &key) && !call("msg_1", "whsec_%") && !call("", &key));
        assert!(!call("msg_1", "key"), "no base64");
    }

    /// The examples in Slack's documentation and in the specification of Standard Webhooks.
    #[test]
    fn the_examples_of_slack_and_standard_webhooks() {
        let body = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow\
            &channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner\
            &command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com\
            %2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN\
            &trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
        let signature = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";
        let fields =
            block(&[("x-slack-request-timestamp", "1531420618"), ("x-slack-signature", signature)]);
        let secret = "8f742231b10e8888abcd99yyyzzz85a5";
        let call = |now_s: u64| {
            let rules = rules(WebhookScheme::Slack);
            verifies(&rules, secret, &fields, body.as_bytes(), now_s * 1_000)
        };
        assert!(call(1_531_420_618) && call(1_531_420_918) && !call(1_531_420_919));
        let body = br#"{"test": 2432232314}"#;
        let fields = block(&[
            ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
            ("webhook-timestamp", "1614265330"),
            ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
        ]);
        let rules = rules(WebhookScheme::Standard);
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        assert!(verifies(&rules, secret, &fields, body, 1_614_265_330_000));
        assert!(!verifies(&rules, secret, &fields, body, 1_614_265_631_000));
    }
}
