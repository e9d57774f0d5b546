//! Tests with valid tokens and with attackers' tokens. `ring` makes the signatures. The end-to-end
//! tests use tokens from another implementation.

use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P256_SHA256_FIXED_SIGNING,
    ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RsaKeyPair,
};
use serde_json::json;

use super::*;
use mote_spec::TokenKeys;

const NOW: u64 = 1_800_000_000;

/// The keys of an issuer, with their private halves.
struct Signer {
    rsa: RsaKeyPair,
    p256: EcdsaKeyPair,
    p384: EcdsaKeyPair,
    ed25519: Ed25519KeyPair,
    pkcs8_p256: Vec<u8>,
    random: SystemRandom,
}

fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Signer {
    fn new() -> Self {
        let random = SystemRandom::new();
        let rsa = RsaKeyPair::from_pkcs8(include_bytes!("rsa-2048.pk8")).expect("a key");
        let curve = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8_p256 = EcdsaKeyPair::generate_pkcs8(curve, &random).expect("random");
        let p256 = EcdsaKeyPair::from_pkcs8(curve, pkcs8_p256.as_ref(), &random).expect("a key");
        let curve = &ECDSA_P384_SHA384_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(curve, &random).expect("random");
        let p384 = EcdsaKeyPair::from_pkcs8(curve, pkcs8.as_ref(), &random).expect("a key");
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&random).expect("random");
        let ed25519 = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).expect("a key");
        let pkcs8_p256 = pkcs8_p256.as_ref().to_vec();
        Self { rsa, p256, p384, ed25519, pkcs8_p256, random }
    }

    /// The public keys. The id of each key is the name of its type.
    fn set(&self) -> Vec<Value> {
        let rsa = ring::rsa::PublicKeyComponents::<Vec<u8>>::from(self.rsa.public());
        let point = |key: &EcdsaKeyPair, kid: &str, crv: &str| {
            let (x, y) =
                key.public_key().as_ref()[1..].split_at(key.public_key().as_ref().len() / 2);
            json!({ "kid": kid, "kty": "EC", "crv": crv, "x": encode(x), "y": encode(y) })
        };
        vec![
            json!({ "kid": "rsa", "kty": "RSA", "n": encode(&rsa.n), "e": encode(&rsa.e), "use": "sig" }),
            point(&self.p256, "p256", "P-256"),
            point(&self.p384, "p384", "P-384"),
            json!({ "kid": "ed", "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA",
                    "x": encode(self.ed25519.public_key().as_ref()) }),
        ]
    }

    fn keys(&self) -> KeySet {
        KeySet::parse(json!({ "keys": self.set() }).to_string().as_bytes()).expect("valid")
    }

    fn sign(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let rsa = |how: &'static dyn ring::signature::RsaEncoding| {
            let mut signature = vec![0; self.rsa.public().modulus_len()];
            self.rsa.sign(how, &self.random, message, &mut signature).expect("signed");
            signature
        };
        let ec =
            |key: &EcdsaKeyPair| key.sign(&self.random, message).expect("signed").as_ref().to_vec();
        match algorithm {
            "RS256" => rsa(&RSA_PKCS1_SHA256),
            "RS384" => rsa(&RSA_PKCS1_SHA384),
            "RS512" => rsa(&RSA_PKCS1_SHA512),
            "PS256" => rsa(&RSA_PSS_SHA256),
            "ES256" => ec(&self.p256),
            "ES384" => ec(&self.p384),
            "EdDSA" => self.ed25519.sign(message).as_ref().to_vec(),
            other => panic!("{other}"),
        }
    }

    /// Signs a token with this head and these claims, which are given as texts.
    fn raw(&self, algorithm: &str, head: &[u8], claims: &[u8]) -> String {
        let signed = format!("{}.{}", encode(head), encode(claims));
        let signature = encode(&self.sign(algorithm, signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    fn token(&self, algorithm: &str, kid: &str, claims: &Value) -> String {
        let head = json!({ "alg": algorithm, "kid": kid, "typ": "JWT" });
        self.raw(algorithm, head.to_string().as_bytes(), claims.to_string().as_bytes())
    }
}

fn rules() -> TokenRules {
    TokenRules {
        issuer: "https://login.example".into(),
        audience: "thermometers".into(),
        keys: TokenKeys::Discovered,
        claims: Default::default(),
    }
}

fn good() -> Value {
    json!({ "iss": "https://login.example", "aud": "thermometers", "sub": "alice", "exp": NOW + 300 })
}

fn with(name: &str, value: impl Into<Value>) -> Value {
    let mut claims = good();
    claims[name] = value.into();
    claims
}

fn without(name: &str) -> Value {
    let mut claims = good();
    claims.as_object_mut().expect("an object").remove(name);
    claims
}

#[test]
fn each_algorithm_is_accepted_with_its_type_of_key_only() {
    let signer = Signer::new();
    let rules = rules();
    let keys = signer.keys();
    let of = [
        ("RS256", "rsa"),
        ("RS384", "rsa"),
        ("RS512", "rsa"),
        ("PS256", "rsa"),
        ("ES256", "p256"),
        ("ES384", "p384"),
        ("EdDSA", "ed"),
    ];
    for (algorithm, kid) in of {
        let token = signer.token(algorithm, kid, &good());
        let verified = verify(token.as_bytes(), &keys, &rules, NOW);
        let expected =
            Verified { subject: "alice".into(), until_s: NOW + 300 + SKEW_S, has_claims: true };
        assert_eq!(verified, Ok(expected), "{algorithm}");
        for (_, other) in of.iter().filter(|(_, other)| *other != kid) {
            let token = signer.token(algorithm, other, &good());
            let refused = verify(token.as_bytes(), &keys, &rules, NOW);
            assert_eq!(refused, Err(Refused::Wrong("no key fits")), "{algorithm} {other}");
        }
        // A signature by another algorithm, under the name of this one.
        for (other, _) in of.iter().filter(|(other, _)| *other != algorithm) {
            let head = json!({ "alg": algorithm, "kid": kid }).to_string();
            let token = signer.raw(other, head.as_bytes(), good().to_string().as_bytes());
            let refused = verify(token.as_bytes(), &keys, &rules, NOW);
            assert_eq!(refused, Err(Refused::Wrong("signature")), "{other} as {algorithm}");
        }
    }
}

#[test]
fn tokens_without_a_signature_and_with_shared_secrets_are_refused() {
    let signer = Signer::new();
    let rules = rules();
    let keys = signer.keys();
    let claims = encode(good().to_string().as_bytes());
    let valid = signer.token("ES256", "p256", &good());
    let signature = valid.rsplit('.').next().expect("a part");
    for name in [
        "none", "None", "NONE", "nOnE", "", " none", "none\0", "es256", "ES256 ", "ES512", "RS1",
        "HS256", "HS384", "HS512", "dir", "A128KW", "PS384",
    ] {
        let head = encode(json!({ "alg": name, "kid": "p256" }).to_string().as_bytes());
        for signature in ["", signature, "AA"] {
            let token = format!("{head}.{claims}.{signature}");
            let refused = verify(token.as_bytes(), &keys, &rules, NOW);
            assert_eq!(refused, Err(Refused::Wrong("algorithm")), "{name:?}");
        }
    }
    // The public key, in each of its forms, used as the secret of an HMAC.
    let rsa = ring::rsa::PublicKeyComponents::<Vec<u8>>::from(signer.rsa.public());
    let set = json!({ "keys": signer.set() }).to_string();
    for secret in [signer.rsa.public().as_ref(), &rsa.n, set.as_bytes()] {
        let head = encode(br#"{"alg":"HS256","kid":"rsa"}"#);
        let signed = format!("{head}.{claims}");
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
        let tag = encode(ring::hmac::sign(&key, signed.as_bytes()).as_ref());
        let refused = verify(format!("{signed}.{tag}").as_bytes(), &keys, &rules, NOW);
        assert_eq!(refused, Err(Refused::Wrong("algorithm")));
        let head = encode(br#"{"alg":"RS256","kid":"rsa"}"#);
        let signed = format!("{head}.{claims}");
        let tag = encode(ring::hmac::sign(&key, signed.as_bytes()).as_ref());
        let refused = verify(format!("{signed}.{tag}").as_bytes(), &keys, &rules, NOW);
        assert_eq!(refused, Err(Refused::Wrong("signature")));
    }
}

#[test]
fn heads_that_change_the_meaning_are_refused() {
    let signer = Signer::new();
    let rules = rules();
    let keys = signer.keys();
    let answer = |head: &str| {
        let token = signer.raw("ES256", head.as_bytes(), good().to_string().as_bytes());
        verify(token.as_bytes(), &keys, &rules, NOW).map(|_| ())
    };
    assert_eq!(answer(r#"{"alg":"ES256","kid":"p256"}"#), Ok(()));
    assert_eq!(answer(r#"{"alg":"ES256"}"#), Ok(()), "only one key fits");
    // Keys in the token itself are ignored.
    assert_eq!(
        answer(r#"{"alg":"ES256","jku":"https://evil.example","x5u":"a","jwk":{}}"#),
        Ok(())
    );
    for kind in ["JWT", "jwt", "at+jwt", "application/at+jwt", "Application/JWT"] {
        assert_eq!(answer(&format!(r#"{{"alg":"ES256","typ":"{kind}"}}"#)), Ok(()), "{kind}");
    }
    for head in [
        r#"{"alg":"ES256","crit":["exp"],"exp":1}"#,
        r#"{"alg":"ES256","crit":[]}"#,
        r#"{"alg":"ES256","b64":false}"#,
        r#"{"alg":"ES256","zip":"DEF"}"#,
        r#"{"alg":"ES256","cty":"JWT"}"#,
        r#"{"alg":"ES256","typ":"logout+jwt"}"#,
        r#"{"alg":"ES256","typ":1}"#,
        r#"{"alg":"ES256","alg":"ES256"}"#,
        r#"{"alg":"ES256","kid":1}"#,
        r#"{"alg":"ES256","kid":null}"#,
        r#"{"alg":["ES256"]}"#,
        r#"{"kid":"p256"}"#,
        r#"["ES256"]"#,
        "",
        r#"{"alg":"ES256"} "x""#,
        "{\"alg\":\"ES256\"}\0",
    ] {
        assert!(matches!(answer(head), Err(Refused::Wrong(_))), "{head}");
    }
    let token =
        signer.raw("ES256", b"{\"alg\":\"ES256\",\"a\":\"\xff\"}", good().to_string().as_bytes());
    assert!(verify(token.as_bytes(), &keys, &rules, NOW).is_err(), "not UTF-8");
}

#[test]
fn a_key_id_is_only_compared() {
    let signer = Signer::new();
    let rules = rules();
    let keys = signer.keys();
    for kid in [
        "",
        "P256",
        "p256 ",
        "p256\n",
        "../../etc/passwd",
        "/dev/null",
        "' OR 1=1 --",
        "p256\0",
        "https://evil.example/k",
        "*",
        "%70256",
        &"k".repeat(4_000),
    ] {
        let token = signer.token("ES256", kid, &good());
        let refused = verify(token.as_bytes(), &keys, &rules, NOW);
        assert_eq!(refused, Err(Refused::UnknownKey), "{kid}");
    }
    // Another issuer's set, in which another key has the same id.
    let others = Signer::new().keys();
    let token = signer.token("ES256", "p256", &good());
    assert_eq!(verify(token.as_bytes(), &others, &rules, NOW), Err(Refused::Wrong("signature")));
}

#[test]
fn signatures_have_one_form() {
    let signer = Signer::new();
    let rules = rules();
    let keys = signer.keys();
    let answer = |token: &str| verify(token.as_bytes(), &keys, &rules, NOW).map(|_| ());
    let token = signer.token("ES256", "p256", &good());
    assert_eq!(answer(&token), Ok(()));
    let (signed, signature) = token.rsplit_once('.').expect("three parts");
    let bytes = URL_SAFE_NO_PAD.decode(signature.as_bytes()).expect("valid");
    let again = |bytes: &[u8]| format!("{signed}.{}", encode(bytes));
    for (what, wrong) in [
        ("empty", again(b"")),
        ("cut", again(&bytes[..63])),
        ("half", again(&bytes[..32])),
        ("longer", again(&[&bytes[..], &[0]].concat())),
        ("r = 0", again(&[&[0; 32], &bytes[32..]].concat())),
        ("s = 0", again(&[&bytes[..32], &[0; 32]].concat())),
        ("both 0", again(&[0; 64])),
        ("both the largest", again(&[0xff; 64])),
        ("padded", format!("{token}==")),
        ("the other alphabet", format!("{signed}.+/{}", &signature[2..])),
        ("a space", format!("{token} ")),
        ("a line", format!("{token}\n")),
        ("a fourth part", format!("{token}.")),
        ("a fifth part", format!("{token}.a.b")),
        ("a dot in front", format!(".{token}")),
        ("two parts", signed.to_owned()),
        ("one part", signed.replace('.', "")),
        ("nothing", String::new()),
        ("dots", "..".to_owned()),
    ] {
        assert!(matches!(answer(&wrong), Err(Refused::Wrong(_))), "{what}: {wrong}");
    }
    // The same bits in another spelling: 64 bytes leave four bits of the last letter unused.
    let last = signature.as_bytes()[85];
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let at = letters.iter().position(|letter| *letter == last).expect("a letter");
    let other = char::from(letters[at + 1]);
    assert!(answer(&format!("{signed}.{}{other}", &signature[..85])).is_err(), "spare bits");
    // DER, the form that TLS uses.
    let der = EcdsaKeyPair::from_pkcs8(
        &ECDSA_P256_SHA256_ASN1_SIGNING,
        &signer.pkcs8_p256,
        &signer.random,
    );
    let der = der.expect("a key").sign(&signer.random, signed.as_bytes()).expect("signed");
    assert_eq!(answer(&again(der.as_ref())), Err(Refused::Wrong("signature")));
    for (algorithm, kid) in [("RS256", "rsa"), ("EdDSA", "ed"), ("ES384", "p384")] {
        let token = signer.token(algorithm, kid, &good());
        let (signed, signature) = token.rsplit_once('.').expect("three parts");
        let bytes = URL_SAFE_NO_PAD.decode(signature.as_bytes()).expect("valid");
        let mut changed = bytes.clone();
        changed[0] ^= 1;
        let longer = [&[0], &bytes[..]].concat();
        for wrong in [&bytes[1..], &bytes[..bytes.len() - 1], &changed, &longer] {
            assert!(answer(&format!("{signed}.{}", encode(wrong))).is_err(), "{algorithm}");
        }
    }
    let long = signer.token("ES256", "p256", &with("x", "x".repeat(TOKEN_BYTES_MAX)));
    assert_eq!(answer(&long), Err(Refused::Wrong("too long")));
}

#[test]
fn claims_are_checked() {
    let signer = Signer::new();
    let rules = rules();
    let keys = signer.keys();
    let at = |claims: &Value, now_s: u64| {
        verify(signer.token("EdDSA", "ed", claims).as_bytes(), &keys, &rules, now_s)
    };
    let is_right = |claims: &Value| at(claims, NOW).is_ok();
    for claims in [
        with("aud", json!(["other", "thermometers"])),
        with("nbf", NOW + SKEW_S),
        with("iat", NOW + SKEW_S),
        with("exp", (NOW - SKEW_S) as f64 + 0.5),
        with("sub", "a".repeat(128)),
        with("sub", "auth0|5f7c8ec7c33c6c004bbafe82"),
    ] {
        assert!(is_right(&claims), "{claims}");
    }
    for claims in [
        with("iss", "https://login.example/"),
        with("iss", "https://LOGIN.example"),
        with("iss", "https://evil.example"),
        with("iss", json!(["https://login.example"])),
        without("iss"),
        with("aud", "thermometer"),
        with("aud", "Thermometers"),
        with("aud", json!([])),
        with("aud", json!([["thermometers"]])),
        with("aud", json!({ "thermometers": true })),
        without("aud"),
        with("exp", NOW - SKEW_S),
        with("exp", 0),
        with("exp", -1),
        with("exp", "1900000000"),
        with("exp", Value::Null),
        with("exp", true),
        without("exp"),
        with("nbf", NOW + SKEW_S + 1),
        with("nbf", "0"),
        with("nbf", Value::Null),
        with("iat", NOW + SKEW_S + 1),
        with("iat", "x"),
        with("sub", ""),
        with("sub", "a b"),
        with("sub", "a\nb"),
        with("sub", "é"),
        with("sub", "a\0"),
        with("sub", "\u{7f}"),
        with("sub", "a".repeat(129)),
        with("sub", 7),
        without("sub"),
    ] {
        assert!(!is_right(&claims), "{claims}");
    }
    let head = br#"{"alg":"EdDSA","kid":"ed"}"#;
    let text = good().to_string();
    let twice = text.replacen('{', r#"{"sub":"root","#, 1);
    for claims in [
        &b""[..],
        b"[]",
        b"\"x\"",
        b"null",
        twice.as_bytes(),
        &text.as_bytes()[..text.len() - 1],
        &[text.as_bytes(), b"x"].concat(),
        &text.replace("alice", "a\\ud800").into_bytes(),
        &[&text.as_bytes()[..text.len() - 1], b",\"x\":\"\xff\"}"].concat(),
    ] {
        let token = signer.raw("EdDSA", head, claims);
        let refused = verify(token.as_bytes(), &keys, &rules, NOW);
        assert_eq!(refused, Err(Refused::Wrong("claims are no object")));
    }
    // The signature does not cover the same claims in other bytes.
    let token = signer.token("EdDSA", "ed", &good());
    let mut parts: Vec<_> = token.split('.').map(str::to_owned).collect();
    parts[1] = encode(with("sub", "root").to_string().as_bytes());
    assert!(verify(parts.join(".").as_bytes(), &keys, &rules, NOW).is_err());
    assert_eq!(at(&good(), NOW + 300 + SKEW_S), Err(Refused::Wrong("expired")));
}

#[test]
fn required_claims_have_a_value_or_contain_it() {
    let signer = Signer::new();
    let keys = signer.keys();
    let mut rules = rules();
    rules.claims.insert("role".into(), "operator".into());
    rules.claims.insert("level".into(), 3.into());
    let has = |role: Value, level: Value| {
        let mut claims = with("role", role);
        claims["level"] = level;
        let token = signer.token("EdDSA", "ed", &claims);
        verify(token.as_bytes(), &keys, &rules, NOW).expect("valid").has_claims
    };
    assert!(has("operator".into(), 3.into()));
    assert!(has(json!(["user", "operator"]), json!([1, 3])));
    for (role, level) in [
        (Value::from("operator"), Value::from(4)),
        ("operator".into(), "3".into()),
        ("Operator".into(), 3.into()),
        ("operator user".into(), 3.into()),
        (json!({ "operator": true }), 3.into()),
        (json!([["operator"]]), 3.into()),
        (Value::Null, 3.into()),
        (true.into(), 3.into()),
    ] {
        assert!(!has(role.clone(), level.clone()), "{role} {level}");
    }
}

#[test]
fn key_sets_are_read_strictly() {
    let signer = Signer::new();
    let set = signer.set();
    let of = |keys: Value| KeySet::parse(json!({ "keys": keys }).to_string().as_bytes());
    let changed = |at: usize, name: &str, value: Value| {
        let mut key = set[at].clone();
        key[name] = value;
        of(json!([key]))
    };
    assert_eq!(of(json!(set)).expect("valid").keys().len(), 4);
    assert_eq!(of(json!(vec![set[1].clone(); 64])).expect("valid").keys().len(), 64);
    assert!(of(json!(vec![set[1].clone(); 65])).is_err());
    for text in [
        "",
        "[]",
        "{}",
        r#"{"keys":{}}"#,
        r#"{"keys":[1]}"#,
        r#"{"keys":[],"keys":[]}"#,
        r#"{"keys":[]}"#,
    ] {
        assert!(KeySet::parse(text.as_bytes()).is_err(), "{text}");
    }
    let long = format!("{{\"x\":\"{}\",\"keys\":[]}}", "x".repeat(crate::jwt::SET_BYTES_MAX));
    assert_eq!(KeySet::parse(long.as_bytes()), Err("the key set is longer than 64 KiB"));
    for (name, secret) in [("d", set[0]["n"].clone()), ("k", "AA".into())] {
        let text = changed(0, name, secret).expect_err("secret");
        assert!(text.contains("only public keys belong there"), "{text}");
    }
    let zero_first = encode(&[&[0; 1], &[0xc1; 256][..]].concat());
    for (at, name, value) in [
        (0, "use", "enc".into()),
        (0, "use", 1.into()),
        (0, "key_ops", json!(["encrypt"])),
        (0, "key_ops", "verify".into()),
        (0, "n", encode(&[0xc1; 255]).into()),
        (0, "n", encode(&[0xc1; 1_025]).into()),
        (0, "n", zero_first.into()),
        (0, "n", "".into()),
        (0, "e", "".into()),
        (0, "e", encode(&[1; 9]).into()),
        (0, "e", "AQAB=".into()),
        (0, "kid", 5.into()),
        (0, "alg", 5.into()),
        (1, "crv", "P-521".into()),
        (1, "crv", "secp256k1".into()),
        (1, "crv", "P-384".into()),
        (1, "x", "AA".into()),
        (1, "kty", "OKP".into()),
        (3, "crv", "X25519".into()),
        (3, "crv", "Ed448".into()),
        (3, "x", "AA".into()),
        (3, "kty", "oct".into()),
    ] {
        assert!(changed(at, name, value.clone()).is_err(), "{name} {value}");
    }
    for (at, name, value) in [
        (0, "key_ops", json!(["sign", "verify"])),
        (0, "x5c", json!(["AA"])),
        (1, "kid", "".into()),
    ] {
        assert!(changed(at, name, value.clone()).is_ok(), "{name} {value}");
    }
}

#[test]
fn a_key_with_an_algorithm_serves_no_other() {
    let signer = Signer::new();
    let rules = rules();
    let mut key = signer.set()[0].clone();
    key["alg"] = "PS256".into();
    let keys = KeySet::parse(json!({ "keys": [key] }).to_string().as_bytes()).expect("valid");
    let answer = |algorithm: &str| {
        let token = signer.token(algorithm, "rsa", &good());
        verify(token.as_bytes(), &keys, &rules, NOW).map(|_| ())
    };
    assert_eq!(answer("PS256"), Ok(()));
    assert_eq!(answer("RS256"), Err(Refused::Wrong("no key fits")));
}

#[test]
fn one_of_several_fitting_keys_needs_an_id() {
    let signer = Signer::new();
    let other = Signer::new();
    let rules = rules();
    let mut second = other.set()[1].clone();
    let set = |second: &Value| {
        let text = json!({ "keys": [signer.set()[1], second] }).to_string();
        KeySet::parse(text.as_bytes()).expect("valid")
    };
    let head = br#"{"alg":"ES256"}"#;
    let token = signer.raw("ES256", head, good().to_string().as_bytes());
    let refused = Err(Refused::Wrong("several keys fit"));
    assert_eq!(verify(token.as_bytes(), &set(&second), &rules, NOW), refused);
    let named = signer.token("ES256", "p256", &good());
    assert_eq!(verify(named.as_bytes(), &set(&second), &rules, NOW), refused, "the same id twice");
    second["kid"] = "second".into();
    assert!(verify(named.as_bytes(), &set(&second), &rules, NOW).is_ok());
}
