//! Sessions of browsers, and the one-time codes that begin them.
//!
//! A session has the rights of its maker, which is a token or the user of the management socket.
//! The rights are looked up again with each request, so a token that is revoked takes its sessions
//! with it. A session can make codes, too. Such codes, and the sessions that they begin, end with
//! that session at the latest, so a stolen session cannot outlive its logout. Only the SHA-256 of a
//! session's secret and of a code is kept.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::operators::credential::{Maker, SessionKey, random_text};

/// How long a session lasts. A working day needs one login.
const SESSION_LIFETIME: Duration = Duration::from_secs(12 * 3_600);
/// How long a code is valid. A browser that a command opens uses it within seconds.
pub const CODE_LIFETIME: Duration = Duration::from_secs(60);
/// The most sessions in total, and of one maker.
const SESSIONS_MAX: usize = 256;
const SESSIONS_OF_ONE_MAX: usize = 64;
/// The most codes in total, and of one maker.
const CODES_MAX: usize = 256;
const CODES_OF_ONE_MAX: usize = 8;
/// The most bytes in a session's secret or a code that is examined.
const TEXT_BYTES_MAX: usize = 128;

/// A valid session.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    pub(crate) key: SessionKey,
    pub(crate) maker: Maker,
    /// The text that the browser's page sends with each change.
    pub(crate) csrf: String,
}

/// A session or a code. It has a maker, ends by itself, and can be ended earlier to make room.
struct Held {
    maker: Maker,
    /// Empty for a code.
    csrf: String,
    /// When a session ends, or when a code is no longer valid.
    until: Instant,
    used: Instant,
    /// The session that made the code, or whose code began this session.
    parent: Option<SessionKey>,
}

/// At most `max` things, and at most `of_one_max` of one maker.
struct Table {
    all: HashMap<[u8; 32], Held>,
    max: usize,
    of_one_max: usize,
}

impl Table {
    fn new(max: usize, of_one_max: usize) -> Self {
        Self { all: HashMap::new(), max, of_one_max }
    }

    /// Adds an entry. At the maker's limit, the maker's least recently used entry ends. At the
    /// total limit, the maker with the most entries loses its least recently used one, so that no
    /// maker can push out the entries of all others.
    fn add(&mut self, hash: [u8; 32], held: Held, now: Instant) {
        self.all.retain(|_, held| now < held.until);
        let mut counts: HashMap<Maker, usize> = HashMap::new();
        self.all.values().for_each(|held| *counts.entry(held.maker).or_default() += 1);
        let loses = if counts.get(&held.maker).is_some_and(|count| *count >= self.of_one_max) {
            Some(held.maker)
        } else if self.all.len() >= self.max {
            counts.into_iter().max_by_key(|(_, count)| *count).map(|(maker, _)| maker)
        } else {
            None
        };
        if let Some(maker) = loses {
            let of_maker = self.all.iter().filter(|(_, held)| held.maker == maker);
            let oldest = of_maker.min_by_key(|(_, held)| held.used).map(|(hash, _)| *hash);
            if let Some(oldest) = oldest {
                self.end(oldest);
            }
        }
        self.all.insert(hash, held);
    }

    /// Ends an entry, and everything that descends from it.
    fn end(&mut self, hash: [u8; 32]) {
        let mut ended = vec![hash];
        while let Some(hash) = ended.pop() {
            self.all.remove(&hash);
            let children =
                self.all.iter().filter(|(_, held)| held.parent == Some(SessionKey(hash)));
            ended.extend(children.map(|(hash, _)| *hash));
        }
    }

    fn get(&mut self, hash: [u8; 32], now: Instant) -> Option<&mut Held> {
        self.all.get_mut(&hash).filter(|held| now < held.until)
    }
}

/// The sessions of a node, and the codes that may begin one. A restart ends all of them.
pub(crate) struct Sessions {
    sessions: Mutex<Table>,
    codes: Mutex<Table>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            sessions: Mutex::new(Table::new(SESSIONS_MAX, SESSIONS_OF_ONE_MAX)),
            codes: Mutex::new(Table::new(CODES_MAX, CODES_OF_ONE_MAX)),
        }
    }
}

impl Sessions {
    /// Begins a session. Returns the secret that the browser keeps in a cookie; `None` if `parent`
    /// has ended.
    pub(crate) fn begin(
        &self,
        maker: Maker,
        parent: Option<SessionKey>,
        now: Instant,
    ) -> io::Result<Option<String>> {
        let secret = random_text()?;
        let csrf = random_text()?;
        let latest = now + SESSION_LIFETIME;
        let mut sessions = self.sessions.lock();
        let until = match parent {
            Some(parent) => sessions.get(parent.0, now).map(|parent| parent.until),
            None => Some(latest),
        };
        let Some(until) = until else { return Ok(None) };
        let held = Held { maker, csrf, until, used: now, parent };
        sessions.add(SessionKey::of(&secret).0, held, now);
        Ok(Some(secret))
    }

    /// The session with this secret. Notes that it is used.
    pub(crate) fn find(&self, secret: &str, now: Instant) -> Option<Live> {
        if secret.len() > TEXT_BYTES_MAX {
            return None;
        }
        let key = SessionKey::of(secret);
        let mut sessions = self.sessions.lock();
        let held = sessions.get(key.0, now)?;
        held.used = now;
        Some(Live { key, maker: held.maker, csrf: held.csrf.clone() })
    }

    /// The maker of a session that has not ended.
    pub(crate) fn maker(&self, key: SessionKey, now: Instant) -> Option<Maker> {
        self.sessions.lock().get(key.0, now).map(|held| held.maker)
    }

    pub(crate) fn end(&self, key: SessionKey) {
        self.sessions.lock().end(key.0);
    }

    /// Makes a code, for the session `parent` or without a session.
    pub(crate) fn make_code(
        &self,
        maker: Maker,
        parent: Option<SessionKey>,
        now: Instant,
    ) -> io::Result<String> {
        // 128 random bits are enough for a minute, and they keep the address that a person copies
        // short.
        let mut code = random_text()?;
        code.truncate(32);
        let until = now + CODE_LIFETIME;
        let held = Held { maker, csrf: String::new(), until, used: now, parent };
        self.codes.lock().add(Sha256::digest(&code).into(), held, now);
        Ok(code)
    }

    /// Takes a code, which is then no longer valid. Returns its maker, and the session that made it.
    pub(crate) fn take_code(
        &self,
        code: &str,
        now: Instant,
    ) -> Option<(Maker, Option<SessionKey>)> {
        if code.len() > TEXT_BYTES_MAX {
            return None;
        }
        let held = self.codes.lock().all.remove(&<[u8; 32]>::from(Sha256::digest(code)))?;
        (now < held.until).then_some((held.maker, held.parent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::credential::TokenKey;

    fn begun(
        sessions: &Sessions,
        maker: Maker,
        parent: Option<SessionKey>,
        now: Instant,
    ) -> String {
        sessions.begin(maker, parent, now).expect("random bits").expect("the parent lives")
    }

    fn token(number: usize) -> Maker {
        Maker::Token(TokenKey::of(&number.to_string()))
    }

    #[test]
    fn a_session_ends_by_itself_or_by_a_logout() {
        let sessions = Sessions::default();
        let now = Instant::now();
        let secret = begun(&sessions, token(1), None, now);
        let found = sessions.find(&secret, now).expect("valid");
        assert_eq!((secret.len(), found.csrf.len(), found.maker), (64, 64, token(1)));
        assert_ne!(secret, found.csrf);
        assert_eq!(sessions.maker(found.key, now), Some(token(1)));
        assert!(sessions.find("wrong", now).is_none() && sessions.find("", now).is_none());
        let late = now + SESSION_LIFETIME;
        assert!(sessions.find(&secret, late).is_none());
        assert_eq!(sessions.maker(found.key, late), None);
        sessions.end(found.key);
        assert!(sessions.find(&secret, now).is_none());
    }

    #[test]
    fn a_code_begins_one_session_within_a_minute() {
        let sessions = Sessions::default();
        let now = Instant::now();
        let code = sessions.make_code(Maker::User(7), None, now).expect("random bits");
        assert_eq!(sessions.take_code("wrong", now), None);
        assert_eq!(sessions.take_code(&code, now), Some((Maker::User(7), None)));
        assert_eq!(sessions.take_code(&code, now), None, "it was used");
        let code = sessions.make_code(Maker::User(7), None, now).expect("random bits");
        assert_eq!(sessions.take_code(&code, now + CODE_LIFETIME), None, "it has expired");
    }

    #[test]
    fn a_session_cannot_outlive_itself_with_codes() {
        let sessions = Sessions::default();
        let now = Instant::now();
        let key = |secret: &str| SessionKey::of(secret);
        let by_code = |parent: &str, at| {
            let code = sessions.make_code(token(1), Some(key(parent)), at).expect("random bits");
            let (maker, parent) = sessions.take_code(&code, at).expect("valid");
            begun(&sessions, maker, parent, at)
        };
        let first = begun(&sessions, token(1), None, now);
        let later = now + SESSION_LIFETIME / 2;
        let second = by_code(&first, later);
        assert!(sessions.find(&second, now + SESSION_LIFETIME).is_none(), "it ends with the first");

        let third = by_code(&second, later);
        let other = begun(&sessions, token(1), None, later);
        let code = sessions.make_code(token(1), Some(key(&first)), later).expect("random bits");
        sessions.end(key(&first));
        for ended in [&first, &second, &third] {
            assert!(sessions.find(ended, later).is_none());
        }
        assert!(sessions.find(&other, later).is_some());
        let (maker, parent) = sessions.take_code(&code, later).expect("it has not expired");
        assert_eq!(sessions.begin(maker, parent, later).expect("random bits"), None);
    }

    #[test]
    fn the_least_recently_used_session_makes_room() {
        let sessions = Sessions::default();
        let now = Instant::now();
        let at = |second: usize| now + Duration::from_secs(second as u64);
        let begin = |maker, second| begun(&sessions, maker, None, at(second));
        let lives = |secret: &str, second| sessions.find(secret, at(second)).is_some();
        let own: Vec<_> = (0..SESSIONS_OF_ONE_MAX).map(|second| begin(token(1), second)).collect();
        assert!(lives(&own[0], 100), "it is now the one that was used last");
        begin(token(1), 101);
        assert!(lives(&own[0], 102) && !lives(&own[1], 102));
        // The maker with the most sessions loses one to a newcomer, and others lose none.
        let others: Vec<_> = (0..SESSIONS_MAX - SESSIONS_OF_ONE_MAX)
            .map(|number| begin(token(10 + number), 103))
            .collect();
        assert!(lives(&own[2], 104));
        begin(token(9), 105);
        assert!(!lives(&own[3], 106));
        assert!(others.iter().all(|secret| lives(secret, 106)));
        assert_eq!(sessions.sessions.lock().all.len(), SESSIONS_MAX);
    }

    #[test]
    fn codes_are_limited() {
        let sessions = Sessions::default();
        let now = Instant::now();
        let make = |maker| sessions.make_code(maker, None, now).expect("random bits");
        let kept = make(token(0));
        (1..40).for_each(|number| (0..20).for_each(|_| drop(make(token(number)))));
        assert_eq!(sessions.codes.lock().all.len(), CODES_MAX);
        assert!(sessions.take_code(&kept, now).is_some(), "others cannot push it out");
    }
}
