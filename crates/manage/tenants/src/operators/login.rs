//! Begins and ends sessions, and decides about requests that belong to one.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use mote_spec::name::kept;

use crate::namespaces::Scope;
use crate::operators::admission::{Admission, Operators};
use crate::operators::credential::{Credential, Maker, SessionKey, TokenKey};
use crate::operators::role::Role;

/// What begins a session.
#[derive(Clone, Copy)]
pub enum Proof<'a> {
    Token(&'a str),
    Code(&'a str),
}

/// The answer to a [`Proof`].
pub enum LogIn {
    Begun {
        secret: String,
        session: Session,
    },
    /// The token or the code is not valid.
    Refused,
    /// This address has sent too many wrong tokens or codes.
    TooManyTries,
}

/// A valid session.
#[derive(Debug, Clone)]
pub struct Session {
    pub key: SessionKey,
    pub maker: Maker,
    /// The name of its maker, without a namespace.
    pub name: Arc<str>,
    pub role: Role,
    pub scope: Scope,
    /// The text that must accompany each change.
    pub csrf: String,
}

impl Session {
    /// The name of the session's maker in the record of acts.
    pub fn full_name(&self) -> Arc<str> {
        kept(&self.name, self.scope.namespace().map(|it| &**it)).into()
    }

    /// Whether the session has at least the role `needed`.
    pub fn admission(&self, needed: Role) -> Admission {
        Admission::of_role(
            (&self.name, self.role, &self.scope),
            needed,
            Credential::Session(self.key),
        )
    }
}

impl Operators {
    /// Begins a session for the holder of a token, or for the maker of a code. Counts wrong tokens
    /// and codes. Valid ones are never slowed down.
    pub fn log_in(&self, from: IpAddr, proof: Proof<'_>, now: Instant) -> io::Result<LogIn> {
        let maker = match proof {
            Proof::Token(token) => self.of_token(token).map(|key| (Maker::Token(key), None)),
            Proof::Code(code) => self.sessions.take_code(code, now),
        };
        let maker = maker.filter(|(maker, _)| self.rights(*maker).is_some());
        let Some((maker, parent)) = maker else {
            let may_guess = self.guesses.may_guess(from, now);
            return Ok(if may_guess { LogIn::Refused } else { LogIn::TooManyTries });
        };
        let Some(secret) = self.sessions.begin(maker, parent, now)? else {
            return Ok(LogIn::Refused);
        };
        Ok(match self.session(&secret, now) {
            Some(session) => LogIn::Begun { secret, session },
            // The token was revoked just now.
            None => LogIn::Refused,
        })
    }

    fn of_token(&self, token: &str) -> Option<TokenKey> {
        let key = TokenKey::of(Self::examined(token)?);
        self.rights(Maker::Token(key)).map(|_| key)
    }

    /// The session with this secret, if its maker still has the rights. Notes that it is used.
    pub fn session(&self, secret: &str, now: Instant) -> Option<Session> {
        let live = self.sessions.find(secret, now)?;
        let Some(holder) = self.rights(live.maker) else {
            self.sessions.end(live.key);
            return None;
        };
        Some(Session {
            key: live.key,
            maker: live.maker,
            name: holder.name,
            role: holder.role,
            scope: holder.scope,
            csrf: live.csrf,
        })
    }

    pub fn log_out(&self, key: SessionKey) {
        self.sessions.end(key);
    }

    /// Makes a code that begins one session with the rights of `maker`. If a session asks for the
    /// code, the code and the session that it begins end with the asking session at the latest.
    pub fn make_code(
        &self,
        maker: Maker,
        session: Option<SessionKey>,
        now: Instant,
    ) -> io::Result<String> {
        self.sessions.make_code(maker, session, now)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use sha2::{Digest as _, Sha256};

    use super::*;
    use crate::operators::admission::Holder;

    const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// Operators with one token, `token`, for the namespace `plant`.
    fn operators() -> Operators {
        let operators = Operators::default();
        let holder = Holder {
            name: "ada".into(),
            role: Role::Deployer,
            scope: Scope::Namespace("plant".into()),
            expires_unix_ms: None,
        };
        operators.replace(HashMap::from([(Sha256::digest("token").into(), holder)]));
        operators
    }

    fn begun(operators: &Operators, proof: Proof<'_>) -> (String, Session) {
        match operators.log_in(FROM, proof, Instant::now()).expect("random bits") {
            LogIn::Begun { secret, session } => (secret, session),
            _ => panic!("refused"),
        }
    }

    #[test]
    fn a_session_has_the_rights_of_its_token_and_ends_with_it() {
        let operators = operators();
        let now = Instant::now();
        let (secret, session) = begun(&operators, Proof::Token(" token "));
        assert_eq!((&*session.name, session.role), ("ada", Role::Deployer));
        assert_eq!(&*session.full_name(), "plant/ada");
        assert!(matches!(session.admission(Role::Viewer), Admission::Admitted(_)));
        assert!(matches!(session.admission(Role::Operator), Admission::OtherRole { .. }));
        let credential = Credential::Session(session.key);
        assert!(operators.is_valid(credential));
        let code = operators.make_code(session.maker, None, now).expect("random bits");
        operators.replace(HashMap::new());
        assert!(!operators.is_valid(credential));
        assert!(operators.session(&secret, now).is_none());
        let refused = operators.log_in(FROM, Proof::Code(&code), now).expect("no fault");
        assert!(matches!(refused, LogIn::Refused), "the code ends with the token, too");
    }

    #[test]
    fn a_code_of_a_local_user_permits_everything() {
        let operators = operators();
        let now = Instant::now();
        let code = operators.make_code(Maker::User(7), None, now).expect("random bits");
        let (secret, session) = begun(&operators, Proof::Code(&code));
        assert_eq!((&*session.name, session.role), ("user 7", Role::Operator));
        assert_eq!(session.scope, Scope::All);
        operators.log_out(session.key);
        assert!(operators.session(&secret, now).is_none());
        assert!(!operators.is_valid(Credential::Session(session.key)));
    }

    #[test]
    fn wrong_tokens_and_codes_are_counted_together_and_right_ones_are_not_slowed_down() {
        let operators = operators();
        let now = Instant::now();
        let wrong = |proof| operators.log_in(FROM, proof, now).expect("no fault");
        for _ in 0..10 {
            assert!(matches!(wrong(Proof::Token("wrong")), LogIn::Refused));
            assert!(matches!(wrong(Proof::Code("wrong")), LogIn::Refused));
            let (answer, _) = operators.admits(FROM, Some("wrong"), Role::Viewer);
            assert_eq!(answer, Admission::Refused);
        }
        assert!(matches!(wrong(Proof::Code("wrong")), LogIn::TooManyTries));
        begun(&operators, Proof::Token("token"));
    }
}
