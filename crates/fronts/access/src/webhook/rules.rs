//! Checks whether rules for signatures can be applied.

use mote_spec::fields::is_set_by_node;
use mote_spec::{HmacRules, WebhookRules, WebhookScheme, is_secret_name};

/// Longest time window of a signature. Within it, anybody who has seen a request can send it again.
const WINDOW_MS_MAX: u64 = 3_600_000;
/// Longest text in the rules of the scheme `hmac`, in bytes.
const TEXT_BYTES_MAX: usize = 128;

/// Finds the first mistake in the rules: the key in `[access]`, and what its value must be.
pub fn check(rules: &WebhookRules) -> Result<(), (&'static str, &'static str)> {
    let is_window = (1_000..=WINDOW_MS_MAX).contains(&rules.window_ms);
    let mut wishes = vec![
        (
            is_secret_name(&rules.secret),
            "secret",
            "the name of a secret of the node (letters, digits and -_.), not the secret itself",
        ),
        (is_window, "window", "1s to 1h"),
    ];
    if let WebhookScheme::Hmac(rules) = &rules.scheme {
        wishes.extend(of_hmac(rules));
    }
    match wishes.into_iter().find(|(is_met, ..)| !is_met) {
        Some((_, key, wanted)) => Err((key, wanted)),
        None => Ok(()),
    }
}

fn of_hmac(rules: &HmacRules) -> [(bool, &'static str, &'static str); 5] {
    let is_field = |name: &str| {
        let is_sign =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        (1..=TEXT_BYTES_MAX).contains(&name.len())
            && name.bytes().all(is_sign)
            && !is_set_by_node(name.as_bytes())
    };
    let is_text = |text: &str| {
        text.len() <= TEXT_BYTES_MAX && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
    };
    let begin = rules.signed.strip_suffix("{body}");
    // Another word in braces is a placeholder that only another service knows.
    let is_begin = |begin: &str| is_text(begin) && !begin.replace("{timestamp}", "").contains('{');
    let times = rules.signed.matches("{timestamp}").count();
    let field = "the name of a header field";
    [
        (is_field(&rules.header), "header", field),
        (is_text(&rules.prefix), "prefix", "at most 128 visible ASCII characters"),
        (
            rules.timestamp.as_deref().is_none_or(|name| is_field(name) && name != rules.header),
            "timestamp",
            "the name of another header field",
        ),
        (
            begin.is_some_and(is_begin),
            "signed",
            "a text that ends with {body} and has no placeholder but {timestamp}, for example \
             {timestamp}.{body}",
        ),
        (
            times == usize::from(rules.timestamp.is_some()),
            "signed",
            "a text with {timestamp} if timestamp names the field with the time, and without it \
             otherwise",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_cannot_be_obeyed_are_named() {
        let right = HmacRules {
            header: "x-signature".into(),
            prefix: "v1=".into(),
            encoding: Default::default(),
            algorithm: Default::default(),
            timestamp: Some("x-time".into()),
            signed: "{timestamp}.{body}".into(),
        };
        let with = |edit: &dyn Fn(&mut WebhookRules, &mut HmacRules)| {
            let scheme = WebhookScheme::Github;
            let mut rules = WebhookRules { scheme, secret: "a".into(), window_ms: 300_000 };
            let mut hmac = right.clone();
            edit(&mut rules, &mut hmac);
            rules.scheme = WebhookScheme::Hmac(Box::new(hmac));
            check(&rules).map_err(|(key, _)| key)
        };
        assert_eq!(with(&|_, _| {}), Ok(()));
        assert_eq!(
            with(&|_, hmac| (hmac.timestamp, hmac.signed) = (None, "{body}".into())),
            Ok(())
        );
        type Edit = fn(&mut WebhookRules, &mut HmacRules);
        let wrong: [(&str, Edit); 14] = [
            ("secret", |rules, _| rules.secret = "../a".into()),
            ("window", |rules, _| rules.window_ms = 999),
            ("window", |rules, _| rules.window_ms = 3_600_001),
            ("header", |_, hmac| hmac.header = String::new()),
            ("header", |_, hmac| hmac.header = "X-Signature".into()),
            ("prefix", |_, hmac| hmac.prefix = "a\nb".into()),
            ("timestamp", |_, hmac| hmac.timestamp = Some("a b".into())),
            ("signed", |_, hmac| hmac.signed = "{body}.{timestamp}".into()),
            ("signed", |_, hmac| hmac.signed = "{body}{timestamp}{body}".into()),
            ("signed", |_, hmac| hmac.signed = "{body}".into()),
            ("signed", |_, hmac| hmac.signed = "{url}{timestamp}{body}".into()),
            ("header", |_, hmac| hmac.header = "mote-caller".into()),
            ("timestamp", |_, hmac| hmac.timestamp = Some("x-signature".into())),
            ("signed", |_, hmac| hmac.timestamp = None),
        ];
        for (key, edit) in wrong {
            assert_eq!(with(&edit), Err(key));
        }
    }
}
