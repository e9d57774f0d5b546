//! `mote key`: manages the keys with which callers call functions. A key is printed only once, when it
//! is made.

use std::time::{SystemTime, UNIX_EPOCH};

use mote_api::Timestamp;
use mote_api::client::Client;
use mote_api::keys::{CallerKeyRequest, CallerKeyRotation, NewCallerKey};
use mote_api::types::Function;
use mote_spec::name::of_kept;
use mote_spec::quantity::{QuantityError, parse_duration_ms};

use super::args::{KeyCreate, KeyRevoke, KeyVerb};
use super::failure::Failure;
use super::functions::is_agreed;
use super::output::{Output, harmless, table};

const DAY_MS: u64 = 86_400_000;
/// The longest lifetime that a node gives to a key or a token.
const LONGEST_MS: u64 = 100 * 365 * DAY_MS;

pub(super) async fn run(client: &Client, verb: &KeyVerb, output: &Output) -> Result<(), Failure> {
    match verb {
        KeyVerb::Create(args) => create(client, args, output).await,
        KeyVerb::List => list(client, output).await,
        KeyVerb::Rotate { name, grace, psk } => {
            let grace_ms = grace.as_deref().map(|text| duration("--grace", text)).transpose()?;
            let wish = CallerKeyRotation { grace_ms: grace_ms.unwrap_or(0) };
            let new = client.rotate_key(name, &wish).await?;
            print(&new, *psk, output)
        }
        KeyVerb::Revoke(args) => revoke(client, args, output).await,
    }
}

async fn create(client: &Client, args: &KeyCreate, output: &Output) -> Result<(), Failure> {
    let expires = args.expires.as_deref();
    let wish = CallerKeyRequest {
        name: args.name.clone(),
        functions: args.functions.clone(),
        valid_ms: expires.map(|text| lifetime("--expires", text)).transpose()?,
    };
    let new = client.create_key(&wish).await?;
    let printed = print(&new, args.psk, output);
    if !wish.functions.is_empty()
        && let Ok(list) = client.functions().await
    {
        let namespace = new.name.split_once('/').map(|(namespace, _)| namespace);
        let opens = |wanted: &&String| opens_some(wanted, namespace, &list.functions);
        for wanted in wish.functions.iter().filter(|wanted| !opens(wanted)) {
            output.warn(&format!(
                "no function with access mode key or basic is named {} yet",
                harmless(wanted)
            ));
        }
    }
    printed
}

/// Returns whether a key opens one of these functions. The key belongs to `namespace`, and `wanted` is
/// the name of a function or the beginning of one, followed by `*`.
fn opens_some(wanted: &str, namespace: Option<&str>, functions: &[Function]) -> bool {
    functions.iter().any(|function| {
        let parts = function.name.split_once('.');
        let name = parts.map_or(function.name.as_str(), |(name, _)| name);
        matches!(function.access.as_str(), "key" | "basic")
            && parts.map(|(_, namespace)| namespace) == namespace
            && match wanted.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == wanted || function.name == wanted,
            }
    })
}

/// Prints only the key to standard output, so that a script can read it. The explanation goes to
/// standard error. With `psk`, prints the identity and pre-shared key for CoAP over DTLS, from
/// which nobody can compute the key.
fn print(new: &NewCallerKey, psk: bool, output: &Output) -> Result<(), Failure> {
    let opens = match new.functions.as_slice() {
        [] => match of_kept(&new.name).0 {
            Some(own) => format!("every function of the namespace {own} with access mode key"),
            None => "every function with access mode key".to_owned(),
        },
        all => all.join(", "),
    };
    let until = new.expires_at.map(|at| format!(" until {at}")).unwrap_or_default();
    output.say(&format!("{} opens {opens}{until}; this key is not shown again:", new.name));
    if psk {
        let (identity, psk) = mote_access::psk_of(&new.name, &new.key);
        let shown = serde_json::json!({ "name": new.name, "identity": identity, "psk": psk });
        output.result(&shown, &[&new.name], || format!("{} {psk}\n", harmless(&identity)))?;
    } else {
        output.result(new, &[&new.name], || format!("{}\n", harmless(&new.key)))?;
    }
    if let Some(until) = new.previous_until {
        output.say(&format!("the former key is valid until {until}"));
    }
    Ok(())
}

async fn list(client: &Client, output: &Output) -> Result<(), Failure> {
    let list = client.keys().await?;
    if list.keys.is_empty() {
        output.say("no keys yet; make one: mote key create NAME");
    }
    let names: Vec<&str> = list.keys.iter().map(|key| key.name.as_str()).collect();
    output.results(&list, &list.keys, &names, || {
        if list.keys.is_empty() {
            return String::new();
        }
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let rows: Vec<Vec<String>> = list
            .keys
            .iter()
            .map(|key| {
                let functions = if key.functions.is_empty() {
                    "*".to_owned()
                } else {
                    key.functions.join(", ")
                };
                vec![
                    key.name.clone(),
                    functions,
                    key.created_at.to_string(),
                    or_dash(key.expires_at.map(expiry)),
                    or_dash(key.previous_until.map(|at| at.to_string())),
                ]
            })
            .collect();
        table(&["NAME", "OPENS", "CREATED", "EXPIRES", "FORMER UNTIL"], &rows)
    })
}

/// Formats the time at which a key expires, with a mark if that time has passed.
pub(super) fn expiry(at: Timestamp) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mark = if u128::from(at.unix_ms()) <= now.as_millis() { " (expired)" } else { "" };
    format!("{at}{mark}")
}

async fn revoke(client: &Client, args: &KeyRevoke, output: &Output) -> Result<(), Failure> {
    if !args.yes && !is_agreed(&format!("revoke {}?", args.names.join(", ")), output).await? {
        return Ok(());
    }
    for name in &args.names {
        client.revoke_key(name).await?;
        output.say(&format!("{} is revoked", harmless(name)));
    }
    Ok(())
}

/// Parses a duration as [`duration`] does, but refuses 0.
pub(super) fn lifetime(flag: &str, text: &str) -> Result<u64, Failure> {
    match duration(flag, text)? {
        0 => Err(Failure::new("M0101", format!("{flag} {}: too short", harmless(text)))
            .with_hint("write for example 30m, 12h or 90d")),
        ms => Ok(ms),
    }
}

/// Parses a duration such as `30m`, `12h` or `90d`. Returns milliseconds, at most 100 years.
pub(super) fn duration(flag: &str, text: &str) -> Result<u64, Failure> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u64>().ok());
    let ms = match days {
        Some(days) => days.checked_mul(DAY_MS).ok_or(QuantityError::TooLarge),
        None => parse_duration_ms(text),
    };
    let ms = ms.map_err(|_| {
        let text = format!("{flag} {}: not a duration", harmless(text));
        Failure::new("M0101", text).with_hint("write for example 30m, 12h or 90d")
    })?;
    if ms > LONGEST_MS {
        let text = format!("{flag} {}: more than 100 years", harmless(text));
        return Err(Failure::new("M0101", text));
    }
    Ok(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_may_be_days() {
        for (text, ms) in [("90d", 90 * DAY_MS), ("1h", 3_600_000), ("0s", 0)] {
            assert_eq!(duration("--grace", text).ok(), Some(ms), "{text}");
        }
        for text in ["", "d", "90", "1.5d", "99999999999999d", "soon"] {
            assert!(duration("--grace", text).is_err(), "{text}");
        }
        assert_eq!(duration("--grace", "36500d").ok(), Some(LONGEST_MS));
        assert!(duration("--grace", "36501d").is_err());
        assert!(lifetime("--expires", "0s").is_err() && lifetime("--expires", "0d").is_err());
        assert_eq!(lifetime("--expires", "1h").ok(), Some(3_600_000));
    }
}
