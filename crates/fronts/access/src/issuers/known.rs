//! All issuers that functions name, and the tokens that were verified for these functions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::jwt::{Refused, TOKEN_BYTES_MAX};
use mote_outgoing::Outgoing;
use mote_spec::{TokenKeys, TokenRules};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use crate::issuers::fetch;
use crate::issuers::issuer::Issuer;
use crate::issuers::verified::VerifiedTokens;

/// The maximum number of issuers from which keys are fetched at the same time.
const FETCHES_MAX: usize = 8;

/// Why the sender of a token may not call a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejected {
    /// The token is not valid here.
    Wrong,
    /// The token is valid, but lacks a claim that the function requires.
    Claims,
    /// The keys of the issuer are not known yet, or they are too old.
    NoKeys,
}

/// The issuers of tokens. A clone is cheap and refers to the same issuers.
#[derive(Clone, Default)]
pub struct Issuers(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Indexed by the memory address of the rules. While the rules are kept here, nothing else can
    /// have this address. An issuer may be locked while this lock is held, but never the other way
    /// round.
    users: Mutex<Users>,
    verified: Mutex<VerifiedTokens>,
    wake: Notify,
}

#[derive(Default)]
struct Users {
    by_rules: HashMap<usize, User>,
    /// How many users have been added so far.
    made: u64,
}

/// The rules of a revision, and the issuer that they name.
#[derive(Clone)]
struct User {
    rules: Arc<TokenRules>,
    issuer: Arc<Issuer>,
    /// Identifies these rules in the table of verified tokens.
    number: u64,
}

impl Issuers {
    /// Verifies a token by these rules, and returns the name of the caller that it proves. Does not
    /// wait.
    pub fn check(
        &self,
        token: &[u8],
        rules: &Arc<TokenRules>,
        now_unix_s: u64,
    ) -> Result<Arc<str>, Rejected> {
        let user = self.user(rules);
        let now = Instant::now();
        let keys = user.issuer.keys(now).ok_or(Rejected::NoKeys)?;
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Rejected::Wrong);
        }
        let name = (Sha256::digest(token).into(), user.number);
        let known = lock(&self.0.verified).get(&name, &keys, now_unix_s);
        let verified = match known {
            Some(verified) => verified,
            None => match crate::jwt::verify(token, &keys, rules, now_unix_s) {
                Ok(verified) => {
                    lock(&self.0.verified).insert(name, verified.clone(), keys);
                    verified
                }
                Err(refused) => {
                    if refused == Refused::UnknownKey && user.issuer.lacks_a_key(now) {
                        self.0.wake.notify_one();
                    }
                    return Err(Rejected::Wrong);
                }
            },
        };
        if verified.has_claims { Ok(verified.subject) } else { Err(Rejected::Claims) }
    }

    /// Requests an early fetch of the keys for these rules, if they have to be fetched and are not
    /// known yet.
    pub fn expect(&self, rules: &Arc<TokenRules>) {
        self.user(rules);
    }

    /// Does the same for rules that are being deployed. Returns a warning if the rule for the
    /// node's own requests does not permit the address of the keys.
    pub fn warning(&self, rules: &Arc<TokenRules>, outgoing: &Outgoing) -> Option<String> {
        self.expect(rules);
        let url = match &rules.keys {
            TokenKeys::Discovered => &rules.issuer,
            TokenKeys::Url(url) => url,
            TokenKeys::Set(_) => return None,
        };
        let error = outgoing.check_url(url).err()?;
        Some(format!("the keys of {} cannot be fetched: {url}: {error}", rules.issuer))
    }

    /// The reason why tokens cannot be verified yet; `None` if they can be.
    pub fn unknown(&self, rules: &Arc<TokenRules>) -> Option<String> {
        let issuer = self.user(rules).issuer;
        issuer.keys(Instant::now()).is_none().then(|| unknown(&issuer))
    }

    /// Describes who may call a function with these rules. If nobody can, gives the reason.
    pub fn who(&self, rules: &Arc<TokenRules>) -> String {
        let issuer = self.user(rules).issuer;
        let name = &issuer.name;
        let problem = issuer.problem().map(|problem| format!(": {problem}")).unwrap_or_default();
        match issuer.keys(Instant::now()) {
            Some(_) if problem.is_empty() => format!("callers with a token of {name}"),
            Some(_) => format!("callers with a token of {name}, whose keys are old{problem}"),
            None => format!("nobody yet, because {}", unknown(&issuer)),
        }
    }

    /// Fetches keys as long as the node runs. `outgoing` is the rule for the node's own requests.
    pub async fn run(self, outgoing: Outgoing) {
        let room = Arc::new(Semaphore::new(FETCHES_MAX));
        let mut fetches = JoinSet::new();
        loop {
            let now = Instant::now();
            let mut next: Option<Instant> = None;
            for issuer in self.issuers() {
                if issuer.begin(now) {
                    let outgoing = outgoing.clone();
                    let room = room.clone();
                    fetches.spawn(refresh(issuer, outgoing, room));
                } else if let Some(at) = issuer.next(now) {
                    next = Some(next.map_or(at, |next| next.min(at)));
                }
            }
            let pause = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.0.wake.notified() => {}
                () = pause => {}
                Some(_) = fetches.join_next() => {}
            }
        }
    }

    /// Returns each issuer once. First forgets issuers that no revision names any longer.
    fn issuers(&self) -> Vec<Arc<Issuer>> {
        let mut users = lock(&self.0.users);
        users.by_rules.retain(|_, user| Arc::strong_count(&user.rules) > 1);
        let mut all: Vec<Arc<Issuer>> = Vec::new();
        for user in users.by_rules.values() {
            if !all.iter().any(|known| Arc::ptr_eq(known, &user.issuer)) {
                all.push(user.issuer.clone());
            }
        }
        all
    }

    fn user(&self, rules: &Arc<TokenRules>) -> User {
        let mut users = lock(&self.0.users);
        match users.by_rules.get(&(Arc::as_ptr(rules) as usize)) {
            Some(user) => user.clone(),
            None => self.add(&mut users, rules),
        }
    }

    #[cold]
    fn add(&self, users: &mut Users, rules: &Arc<TokenRules>) -> User {
        let is_same =
            |user: &&User| user.issuer.name == rules.issuer && user.issuer.place == rules.keys;
        let issuer = match users.by_rules.values().find(is_same) {
            Some(user) => user.issuer.clone(),
            None => Arc::new(Issuer::new(&rules.issuer, &rules.keys)),
        };
        users.made += 1;
        let user = User { rules: rules.clone(), issuer, number: users.made };
        users.by_rules.insert(Arc::as_ptr(rules) as usize, user.clone());
        self.0.wake.notify_one();
        user
    }
}

async fn refresh(issuer: Arc<Issuer>, outgoing: Outgoing, room: Arc<Semaphore>) {
    // This cannot fail, because the semaphore is never closed.
    let _place = room.acquire().await;
    let fetched = fetch::keys(&issuer, &outgoing).await;
    let now = Instant::now();
    let name = issuer.name.as_str();
    match fetched {
        Ok((keys, fresh)) => issuer.found(keys, fresh, now),
        Err(problem) => {
            if issuer.failed(problem.clone(), now) {
                tracing::warn!(
                    issuer = name,
                    problem,
                    "cannot fetch the keys of an issuer of tokens; further failures are not logged"
                );
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
fn unknown(issuer: &Issuer) -> String {
    let problem = issuer.problem().map(|problem| format!(": {problem}")).unwrap_or_default();
    format!("the keys of {} are not known{problem}", issuer.name)
}
