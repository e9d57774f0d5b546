//! Decides whether a management request is admitted.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::namespaces::Scope;
use arc_swap::ArcSwap;
use mote_spec::name::kept;
use sha2::{Digest as _, Sha256};

use crate::operators::credential::{Credential, Maker, TokenKey, random_text};
use crate::operators::guesses::Guesses;
use crate::operators::role::Role;
use crate::operators::sessions::Sessions;

/// Longest token that is examined, in bytes.
const TOKEN_BYTES_MAX: usize = 1_024;
/// Shortest token, in bytes, that a person may put into the file of the owner's token.
const TOKEN_BYTES_MIN: usize = 32;
/// At most this many bytes of that file are read.
const FILE_BYTES_MAX: u64 = 2 * TOKEN_BYTES_MAX as u64;
/// The name of the holder of the file's token in the record of acts.
const OWNER: &str = "admin.token";

/// What is kept of a token in memory.
#[derive(Debug, Clone)]
pub(crate) struct Holder {
    pub(crate) name: Arc<str>,
    pub(crate) role: Role,
    pub(crate) scope: Scope,
    pub(crate) expires_unix_ms: Option<u64>,
}

/// The decision about a management request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// The token is valid, and its role is sufficient.
    Admitted(Admitted),
    /// The token is valid, but its role is not sufficient.
    OtherRole {
        /// The name of the token, in the form of [`Admitted::name`].
        name: Arc<str>,
        role: Role,
    },
    /// The token is missing or not valid.
    Refused,
    /// This address has sent too many wrong tokens.
    TooManyTries,
}

/// A valid token, or a session of its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// The name of the token. If the token is for a namespace, the namespace and a slash come
    /// first.
    pub name: Arc<str>,
    /// Whether the token permits everything on the whole node.
    pub is_operator: bool,
    /// Identifies the token or session, so that [`Operators::is_valid`] can check it again later.
    pub key: Credential,
}

impl Admission {
    /// The decision about the holder with this name, role and scope.
    pub(crate) fn of_role(
        (name, role, scope): (&str, Role, &Scope),
        needed: Role,
        key: Credential,
    ) -> Self {
        let name = kept(name, scope.namespace().map(|it| &**it)).into();
        if role < needed {
            return Admission::OtherRole { name, role };
        }
        let is_operator = role == Role::Operator && *scope == Scope::All;
        Admission::Admitted(Admitted { name, is_operator, key })
    }
}

/// The tokens of a node.
///
/// Only the SHA-256 of each token is kept, and a sent token is looked up by its SHA-256. The
/// duration of the look-up reveals something about hashes, which a client cannot choose, but
/// nothing about tokens.
#[derive(Default)]
pub struct Operators {
    owner: Option<[u8; 32]>,
    holders: ArcSwap<HashMap<[u8; 32], Holder>>,
    pub(crate) guesses: Guesses,
    pub(crate) sessions: Sessions,
}

impl Operators {
    /// Reads the owner's token from a file. If the file does not exist, makes a token with 256
    /// random bits in a file that only its owner can read.
    pub fn with_owner(path: &Path) -> io::Result<Self> {
        let mut given = String::new();
        let read = mote_store::own::open(std::fs::OpenOptions::new().read(true), path);
        let read = read.and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut given));
        let text = match read {
            Ok(_) => given.trim().to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = random_text()?;
                let mut options = std::fs::OpenOptions::new();
                let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
                file.write_all(format!("{text}\n").as_bytes())?;
                text
            }
            Err(error) => return Err(error),
        };
        if text.len() < TOKEN_BYTES_MIN {
            return Err(io::Error::other("the token must have at least 32 characters"));
        }
        Ok(Self { owner: Some(Sha256::digest(&text).into()), ..Self::default() })
    }

    /// Decides whether the sender of `token` at this address has at least the role `needed`, and
    /// for which scope. Counts wrong tokens. Valid tokens are never slowed down.
    pub fn admits(&self, from: IpAddr, token: Option<&str>, needed: Role) -> (Admission, Scope) {
        let key = token.and_then(Self::examined).map(TokenKey::of);
        let holder = key.and_then(|key| Some((self.holder(key)?, key)));
        match holder {
            Some((Holder { name, role, scope, .. }, key)) => {
                let of = (&*name, role, &scope);
                (Admission::of_role(of, needed, Credential::Token(key)), scope)
            }
            // A request without a token guesses nothing.
            None if token.is_none() || self.guesses.may_guess(from, Instant::now()) => {
                (Admission::Refused, Scope::All)
            }
            None => (Admission::TooManyTries, Scope::All),
        }
    }

    /// The part of a sent token that is compared with the tokens. `None` if the token is too long.
    pub(crate) fn examined(token: &str) -> Option<&str> {
        Some(token.trim()).filter(|token| token.len() <= TOKEN_BYTES_MAX)
    }

    /// The scope of a valid token. Other tokens are not counted as wrong ones, because they may be
    /// credentials for a function.
    pub fn scope_of(&self, token: &str) -> Option<Scope> {
        Some(self.holder(TokenKey::of(Self::examined(token)?))?.scope)
    }

    /// Whether a token or session that was admitted is still valid, so that it was not ended or
    /// revoked and has not expired.
    pub fn is_valid(&self, key: Credential) -> bool {
        let maker = match key {
            Credential::Token(key) => Some(Maker::Token(key)),
            Credential::Session(key) => self.sessions.maker(key, Instant::now()),
        };
        maker.is_some_and(|maker| self.rights(maker).is_some())
    }

    /// The maker's rights, as long as the maker has any.
    pub(crate) fn rights(&self, maker: Maker) -> Option<Holder> {
        match maker {
            Maker::Token(key) => self.holder(key),
            Maker::User(uid) => Some(Holder {
                name: user_name(uid).into(),
                role: Role::Operator,
                scope: Scope::All,
                expires_unix_ms: None,
            }),
        }
    }

    fn holder(&self, TokenKey(hash): TokenKey) -> Option<Holder> {
        if self.owner == Some(hash) {
            return Some(Holder {
                name: OWNER.into(),
                role: Role::Operator,
                scope: Scope::All,
                expires_unix_ms: None,
            });
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let is_valid =
            |until: Option<u64>| until.is_none_or(|until| now.as_millis() < u128::from(until));
        self.holders.load().get(&hash).filter(|holder| is_valid(holder.expires_unix_ms)).cloned()
    }

    /// Replaces all tokens except the owner's.
    pub(crate) fn replace(&self, holders: HashMap<[u8; 32], Holder>) {
        self.holders.store(Arc::new(holders));
    }
}

/// The name in the record of acts for a user of the management socket.
pub fn user_name(uid: u32) -> String {
    format!("user {uid}")
}

/// Returns the token in the value of `Authorization`. The scheme's name may be in either case (RFC
/// 9110, 11.1).
pub fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn holder(name: &str, role: Role, expires_unix_ms: Option<u64>) -> ([u8; 32], Holder) {
        let token = format!("token-of-{name}");
        let scope = Scope::All;
        (Sha256::digest(token).into(), Holder { name: name.into(), role, scope, expires_unix_ms })
    }

    fn admitted(name: &str, token: &str, is_operator: bool) -> Admission {
        let key = Credential::Token(TokenKey::of(token));
        Admission::Admitted(Admitted { name: name.into(), is_operator, key })
    }

    #[test]
    fn tokens_admit_by_role() {
        let operators = Operators::default();
        operators.replace(HashMap::from([
            holder("reads", Role::Viewer, None),
            holder("ships", Role::Deployer, Some(u64::MAX)),
            holder("old", Role::Operator, Some(1)),
        ]));
        let admits = |token: &str, needed| operators.admits(FROM, Some(token), needed).0;
        let name = Arc::<str>::from("reads");
        let reads = admitted("reads", "token-of-reads", false);
        assert_eq!(admits("token-of-reads", Role::Viewer), reads);
        assert_eq!(
            admits(" token-of-reads ", Role::Deployer),
            Admission::OtherRole { name, role: Role::Viewer }
        );
        let ships = admitted("ships", "token-of-ships", false);
        assert_eq!(admits("token-of-ships", Role::Viewer), ships);
        let key = Credential::Token(TokenKey::of("token-of-old"));
        assert!(!operators.is_valid(key), "what an expired one has begun has to end");
        assert_eq!(admits("token-of-old", Role::Viewer), Admission::Refused, "expired");
        assert_eq!(admits("", Role::Viewer), Admission::Refused);
        assert_eq!(operators.admits(FROM, None, Role::Viewer).0, Admission::Refused);
    }

    #[test]
    fn tokens_of_a_namespace_admit_within_it() {
        let operators = Operators::default();
        let (hash, mut one) = holder("ada", Role::Operator, None);
        one.scope = Scope::Namespace("plant".into());
        operators.replace(HashMap::from([(hash, one)]));
        assert_eq!(
            operators.admits(FROM, Some("token-of-ada"), Role::Operator),
            (admitted("plant/ada", "token-of-ada", false), Scope::Namespace("plant".into()))
        );
        let scope = Some(Scope::Namespace("plant".into()));
        assert_eq!(operators.scope_of(" token-of-ada"), scope);
        assert_eq!(operators.scope_of("token-of-orchard"), None);
    }

    #[test]
    fn the_owners_token_is_in_a_file_that_others_cannot_read() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("admin.token");
        Operators::with_owner(&path).expect("made");
        let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).expect("a token");
        let operators = Operators::with_owner(&path).expect("read");
        assert_eq!(
            operators.admits(FROM, Some(&text), Role::Operator),
            (admitted(OWNER, text.trim(), true), Scope::All)
        );
        std::fs::write(&path, "short\n").expect("written");
        assert!(Operators::with_owner(&path).is_err());
        std::fs::remove_file(&path).expect("it was there");
        std::os::unix::fs::symlink("/dev/zero", &path).expect("a link");
        let error = Operators::with_owner(&path).err().expect("refused").to_string();
        assert!(error.contains("is a symbolic link"), "{error}");
    }

    #[test]
    fn wrong_tokens_are_slowed_down_and_right_ones_are_not() {
        let operators = Operators::default();
        operators.replace(HashMap::from([holder("reads", Role::Viewer, None)]));
        let answers: Vec<_> =
            (0..40).map(|_| operators.admits(FROM, Some("wrong"), Role::Viewer).0).collect();
        assert_eq!(answers[29], Admission::Refused);
        assert_eq!(answers[30], Admission::TooManyTries);
        let right = operators.admits(FROM, Some("token-of-reads"), Role::Viewer);
        assert_eq!(right.0, admitted("reads", "token-of-reads", false));
    }
}
