//! Makes, lists and revokes the tokens of operators. All functions block.

use std::collections::HashMap;

use crate::namespaces::Scope;
use mote_api::operators::{NewOperatorToken, OperatorToken, OperatorTokenRequest, OperatorTokens};
use mote_api::{Problem, Timestamp};
use mote_spec::is_secret_name;
use mote_store::{DocumentChange, Store, StoreError};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::operators::admission::{Holder, Operators};
use crate::operators::credential::random_text;
use crate::operators::role::Role;

/// The collection of the store that holds the tokens.
const COLLECTION: &str = "operators";
const TOKENS_MAX: usize = 1_000;
/// The beginning of each token. People and secret scanners recognise a token by it.
const PREFIX: &str = "mote_op_";
/// Longest lifetime of a token.
const YEARS_MS_MAX: u64 = 100 * 365 * 86_400_000;

/// What the store holds of a token. It never holds the token itself.
#[derive(Serialize, Deserialize)]
struct Stored {
    /// The SHA-256 of the token in hexadecimal digits.
    sha256: String,
    role: String,
    /// The only namespace for which the token is valid; `None` for the whole node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    created_at_ms: u64,
    expires_at_ms: Option<u64>,
}

#[derive(Debug)]
pub enum NotChanged {
    /// The client's request cannot be fulfilled.
    Problem(Problem),
    /// The store could not be read or written.
    Store(StoreError),
}

impl From<StoreError> for NotChanged {
    fn from(error: StoreError) -> Self {
        NotChanged::Store(error)
    }
}

impl From<Problem> for NotChanged {
    fn from(problem: Problem) -> Self {
        NotChanged::Problem(problem)
    }
}

/// All tokens by name. The list does not contain the secret tokens themselves.
pub fn list(store: &Store) -> Result<OperatorTokens, StoreError> {
    let tokens = read(store)?.into_iter().map(|(name, stored)| OperatorToken {
        name,
        role: stored.role,
        namespace: stored.namespace,
        created_at: Timestamp::from_unix_ms(stored.created_at_ms),
        expires_at: stored.expires_at_ms.map(Timestamp::from_unix_ms),
    });
    Ok(OperatorTokens { tokens: tokens.collect() })
}

/// Makes a token at the time `now_ms`, and tells `operators` about it. No other answer ever
/// contains this token.
pub fn create(
    store: &Store,
    operators: &Operators,
    wish: OperatorTokenRequest,
    now_ms: u64,
) -> Result<NewOperatorToken, NotChanged> {
    let OperatorTokenRequest { name, role, namespace, valid_ms } = wish;
    if !is_secret_name(&name) {
        let text = format!(
            "{}: the name of a token has 1 to 253 of a-z, A-Z, 0-9, -, _ and ., and does not begin \
             with .",
            shortened(&name)
        );
        return Err(Problem::new(422, "M0303", text).with_field("name").into());
    }
    if role.parse::<Role>().is_err() {
        let text = format!("{}: a role is viewer, deployer or operator", shortened(&role));
        return Err(Problem::new(422, "M0303", text).with_field("role").into());
    }
    let expires_at_ms = match valid_ms {
        Some(ms @ 1..=YEARS_MS_MAX) => Some(now_ms + ms),
        Some(_) => {
            let text = "valid_ms: 1 ms to 100 years";
            return Err(Problem::new(422, "M0303", text).with_field("valid_ms").into());
        }
        None => None,
    };
    let all = read(store)?;
    if all.iter().any(|(other, _)| *other == name) {
        let text = format!("there is a token named {name} already");
        let hint = format!("revoke it first: mote token revoke {name}");
        return Err(Problem::new(409, "M0421", text).with_hint(hint).into());
    }
    if all.len() >= TOKENS_MAX {
        let text = format!("the node has {TOKENS_MAX} tokens, which is the limit");
        let problem = Problem::new(409, "M0303", text);
        return Err(problem.with_hint("revoke tokens that nobody uses").into());
    }
    let token = random_text().map(|text| format!("{PREFIX}{text}")).map_err(|error| {
        tracing::error!(%error, "cannot make a token");
        Problem::new(500, "M0599", "the node could not make a token; see its log")
    })?;
    let sha256 = base16ct::lower::encode_string(&Sha256::digest(&token));
    let stored = Stored {
        sha256,
        role: role.clone(),
        namespace: namespace.clone(),
        created_at_ms: now_ms,
        expires_at_ms,
    };
    let value = serde_json::to_vec(&stored).expect("plain data");
    store.put_documents(&[change(&name, Some(value))])?;
    bring_back(store, operators)?;
    let expires_at = expires_at_ms.map(Timestamp::from_unix_ms);
    Ok(NewOperatorToken { name, role, namespace, token, expires_at })
}

/// Makes a token invalid, in the store and in `operators`.
pub fn revoke(store: &Store, operators: &Operators, name: &str) -> Result<(), NotChanged> {
    if store.document(COLLECTION, name)?.is_none() {
        let text = format!("no token named {}", shortened(name));
        let problem = Problem::new(404, "M0420", text);
        return Err(problem.with_hint("list the tokens: mote token list").into());
    }
    store.put_documents(&[change(name, None)])?;
    bring_back(store, operators)?;
    Ok(())
}

/// Makes all tokens of a namespace invalid, in the store and in `operators`.
pub fn revoke_all_of(
    store: &Store,
    operators: &Operators,
    namespace: &str,
) -> Result<(), NotChanged> {
    let all = read(store)?.into_iter();
    let own = all.filter(|(_, stored)| stored.namespace.as_deref() == Some(namespace));
    let changes: Vec<_> = own.map(|(name, _)| change(&name, None)).collect();
    store.put_documents(&changes)?;
    bring_back(store, operators)?;
    Ok(())
}

/// Loads the tokens from the store into `operators`.
pub fn bring_back(store: &Store, operators: &Operators) -> Result<(), StoreError> {
    let holders = read(store)?.into_iter().filter_map(|(name, stored)| {
        let hash = base16ct::lower::decode_vec(&stored.sha256).ok()?;
        let holder = Holder {
            name: name.into(),
            role: stored.role.parse().ok()?,
            scope: match stored.namespace {
                Some(namespace) => Scope::Namespace(namespace.into()),
                None => Scope::All,
            },
            expires_unix_ms: stored.expires_at_ms,
        };
        Some((hash.try_into().ok()?, holder))
    });
    operators.replace(HashMap::from_iter(holders));
    Ok(())
}

/// The tokens in the order of their names. A token that cannot be read is left out, so it admits
/// nobody.
fn read(store: &Store) -> Result<Vec<(String, Stored)>, StoreError> {
    let mut all: Vec<(String, Stored)> = Vec::new();
    for (name, value) in store.documents(COLLECTION)? {
        match serde_json::from_slice(&value) {
            Ok(stored) => all.push((name, stored)),
            Err(error) => tracing::error!(%name, %error, "a token in the store is damaged"),
        }
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(all)
}

fn change(name: &str, value: Option<Vec<u8>>) -> DocumentChange {
    DocumentChange { collection: COLLECTION.to_owned(), key: name.to_owned(), value }
}

fn shortened(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::operators::admission::Admission;

    fn wish(name: &str, role: &str, valid_ms: Option<u64>) -> OperatorTokenRequest {
        let name = name.to_owned();
        let role = role.to_owned();
        OperatorTokenRequest { name, role, namespace: None, valid_ms }
    }

    #[test]
    fn a_token_works_until_it_is_revoked_and_survives_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a store");
        let operators = Operators::default();
        let new = create(&store, &operators, wish("ci", "deployer", None), 1_000).expect("made");
        assert!(new.token.starts_with(PREFIX) && new.token.len() == PREFIX.len() + 64);
        let from = IpAddr::from([127, 0, 0, 1]);
        let admits =
            |operators: &Operators| operators.admits(from, Some(&new.token), Role::Deployer).0;
        let Admission::Admitted(ci) = admits(&operators) else { panic!("refused") };
        assert_eq!((&*ci.name, ci.is_operator), ("ci", false));
        assert!(operators.is_valid(ci.key));
        let after = Operators::default();
        bring_back(&store, &after).expect("read");
        assert_eq!(admits(&after), Admission::Admitted(ci.clone()));
        let listed = list(&store).expect("read").tokens;
        assert_eq!((listed[0].name.as_str(), listed[0].role.as_str()), ("ci", "deployer"));
        let raw = store.document(COLLECTION, "ci").expect("read").expect("stored");
        assert!(!String::from_utf8_lossy(&raw).contains(&new.token), "only its hash is kept");
        revoke(&store, &operators, "ci").expect("revoked");
        assert_eq!(admits(&operators), Admission::Refused);
        assert!(!operators.is_valid(ci.key), "what it has begun has to end");
        assert_eq!(list(&store).expect("read").tokens, []);
    }

    #[test]
    fn wrong_wishes() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a store");
        let operators = Operators::default();
        create(&store, &operators, wish("ci", "viewer", Some(1)), 0).expect("made");
        for (wish, expected) in [
            (wish("ci", "viewer", None), (409, "M0421")),
            (wish("", "viewer", None), (422, "M0303")),
            (wish("a b", "viewer", None), (422, "M0303")),
            (wish("a", "root", None), (422, "M0303")),
            (wish("a", "viewer", Some(0)), (422, "M0303")),
            (wish("a", "viewer", Some(u64::MAX)), (422, "M0303")),
        ] {
            match create(&store, &operators, wish, 0) {
                Err(NotChanged::Problem(problem)) => {
                    assert_eq!((problem.status, problem.code.as_str()), expected);
                }
                other => panic!("{other:?}"),
            }
        }
        match revoke(&store, &operators, "nobody") {
            Err(NotChanged::Problem(problem)) => assert_eq!(problem.status, 404),
            other => panic!("{other:?}"),
        }
    }
}
