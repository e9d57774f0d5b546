//! Orders a certificate for the given names.

use std::error::Error as _;
use std::net::IpAddr;
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeHandle, ChallengeType, Error,
    Identifier, NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};

use crate::arguments::Arguments;
use crate::due::Window;
use crate::folder::{Folder, Present, Record};

/// How long the authority may take to check the answers, and how long to issue the certificate.
const PATIENCE: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(120));

/// The longest accepted chain, in bytes (PEM). The node does not read a longer one.
const CHAIN_BYTES_MAX: usize = 256 << 10;
/// Problem types (RFC 8555, 6.7).
const NO_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";
const NEEDS_ACCOUNT: &str = "urn:ietf:params:acme:error:externalAccountRequired";
const LIMITED: &str = "urn:ietf:params:acme:error:rateLimited";

/// Why there is no certificate.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The authority could not be asked, so it is unknown whether there is an order.
    Unreachable(String),
    /// The authority or this machine refused the order. Authorities limit how often this may
    /// happen.
    Refused(String),
    /// The authority accepts no further orders for some time.
    Limited(String),
    /// The authority could not verify that a name belongs to this machine.
    Unproven(String),
    /// The authority no longer knows the account.
    NoAccount,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Api(problem) if problem.r#type.as_deref() == Some(NO_ACCOUNT) => Self::NoAccount,
            Error::Api(problem) if problem.r#type.as_deref() == Some(LIMITED) => {
                Self::Limited(words(&problem))
            }
            Error::Api(problem) if problem.r#type.as_deref() == Some(NEEDS_ACCOUNT) => {
                Self::Refused(format!("{}; set acme_external_account", words(&problem)))
            }
            Error::Api(problem) => Self::Refused(words(&problem)),
            Error::Timeout(_) => Self::Refused(
                "the authority did not check the names or issue the certificate in time".to_owned(),
            ),
            other => Self::Unreachable(with_causes(&other)),
        }
    }
}

/// The authority's description of a problem.
fn words(problem: &Problem) -> String {
    let detail = problem.detail.as_deref().unwrap_or("something is wrong");
    let kind = problem.r#type.as_deref().and_then(|kind| kind.rsplit(':').next());
    format!("the authority says: {detail} ({})", kind.unwrap_or("no type"))
}

/// The text of an error and of its causes, because the error itself often names only what was
/// tried.
fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        let more = one.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = one.source();
    }
    text
}

/// A new certificate and its key (PEM).
pub(crate) struct Issued {
    pub(crate) chain: String,
    pub(crate) key: String,
    pub(crate) certificate: Present,
}

/// The window in which the authority suggests replacing the certificate, if it suggests one.
pub(crate) async fn window(account: &Account, present: &Present) -> Option<Window> {
    let id = CertificateIdentifier::try_from(&present.der).ok()?;
    let (info, again) = account.renewal_info(&id).await.ok()?;
    Some(Window { suggested: info.suggested_window, again_s: again.as_secs() })
}

/// Orders a certificate. The kind of challenge that last succeeded is tried first, and then the
/// other kind. Which of them reaches the node depends on the network between the node and the
/// authority.
pub(crate) async fn order(
    account: &Account,
    given: &Arguments,
    folder: &Folder,
    record: &mut Record,
    mut replaced: Option<CertificateIdentifier<'static>>,
    now_s: fn() -> i64,
) -> Result<Issued, Failure> {
    let mut kinds = [("tls-alpn-01", ChallengeType::TlsAlpn01), ("http-01", ChallengeType::Http01)];
    if record.challenge.as_deref() == Some("http-01") {
        kinds.reverse();
    }
    let mut texts = Vec::new();
    for (word, kind) in kinds {
        // The failure is recorded before the order, so that the order counts even if this process
        // is killed. Success removes it again.
        record.failed(now_s());
        folder.write_record(record).map_err(|error| {
            Failure::Refused(format!("could not write down that an order begins: {error}"))
        })?;
        match try_kind(account, given, folder, kind, replaced.take()).await {
            Ok(issued) => {
                record.challenge = Some(word.to_owned());
                return Ok(issued);
            }
            Err(Failure::Unproven(text)) => texts.push(format!("{word}: {text}")),
            Err(refused @ Failure::Refused(_)) => return Err(refused),
            Err(no_order) => {
                record.failures.pop();
                return Err(no_order);
            }
        }
        folder.clear_challenges();
    }
    Err(Failure::Refused(texts.join("; ")))
}

async fn try_kind(
    account: &Account,
    given: &Arguments,
    folder: &Folder,
    kind: ChallengeType,
    replaced: Option<CertificateIdentifier<'static>>,
) -> Result<Issued, Failure> {
    let names: Vec<_> = given.names.iter().map(|name| identifier(name)).collect();
    let asked = || match &given.profile {
        Some(profile) => NewOrder::new(&names).profile(profile),
        None => NewOrder::new(&names),
    };
    let replacing = match replaced {
        Some(replaced) => account.new_order(&asked().replaces(replaced)).await.ok(),
        None => None,
    };
    // An authority that refuses to replace the earlier certificate may accept the order without the
    // reference to it.
    let mut order = match replacing {
        Some(order) => order,
        None => account.new_order(&asked()).await?,
    };
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        // A name that the authority has verified recently needs no new proof.
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        let name = authorization.identifier().to_string();
        // The name is used as a file name, so it must be one that was ordered.
        if !given.names.contains(&name) {
            return Err(Failure::Refused(
                "the authority asked for proof of a name that was not ordered".to_owned(),
            ));
        }
        let Some(mut challenge) = authorization.challenge(kind.clone()) else {
            return Err(Failure::Unproven(format!(
                "the authority does not offer this challenge for {name}"
            )));
        };
        put_answer(folder, &kind, &name, &challenge).map_err(|error| {
            Failure::Refused(format!(
                "could not write the answer to the challenge for {name}: {error}"
            ))
        })?;
        challenge.set_ready().await?;
    }
    match order.poll_ready(&PATIENCE).await {
        Ok(OrderStatus::Ready) => {}
        Ok(_) => return Err(what_failed(&mut order, &kind, None).await),
        Err(Error::Api(problem)) => {
            return Err(what_failed(&mut order, &kind, Some(words(&problem))).await);
        }
        Err(other) => return Err(other.into()),
    }
    let key = order.finalize().await?;
    let chain = order.poll_certificate(&PATIENCE).await?;
    let certificate = Present::of(&chain, &key).filter(|_| chain.len() <= CHAIN_BYTES_MAX);
    match certificate.filter(|certificate| certificate.is_for(&given.names)) {
        Some(certificate) => Ok(Issued { chain, key, certificate }),
        None => {
            let text = "the authority sent something other than a certificate for these names";
            Err(Failure::Refused(text.to_owned()))
        }
    }
}

fn put_answer(
    folder: &Folder,
    kind: &ChallengeType,
    name: &str,
    challenge: &ChallengeHandle<'_>,
) -> std::io::Result<()> {
    let answer = challenge.key_authorization();
    if *kind == ChallengeType::Http01 {
        return folder.answer_over_http(&challenge.token, answer.as_str());
    }
    folder.answer_in_handshake(&sni(name), name, answer.digest().as_ref())
}

/// The authority's description of the names that it could not verify, or otherwise of the failure
/// of the whole order.
async fn what_failed(order: &mut Order, kind: &ChallengeType, of_all: Option<String>) -> Failure {
    let mut texts = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let name = authorization.identifier().to_string();
        let Ok(state) = authorization.refresh().await else { continue };
        let of_kind = state.challenges.iter().find(|challenge| challenge.r#type == *kind);
        if let Some(problem) = of_kind.and_then(|challenge| challenge.error.as_ref()) {
            texts.push(format!("{name}: {}", words(problem)));
        }
    }
    if texts.is_empty() {
        texts.push(of_all.unwrap_or_else(|| "the authority does not say why".to_owned()));
    }
    Failure::Unproven(texts.join("; "))
}

fn identifier(name: &str) -> Identifier {
    name.parse().map_or_else(|_| Identifier::Dns(name.to_owned()), Identifier::Ip)
}

/// The host name that the authority uses in its handshake. For an address, it is the address's name
/// in the reverse zone (RFC 8738, 6).
fn sni(name: &str) -> String {
    match name.parse() {
        Ok(IpAddr::V4(address)) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        Ok(IpAddr::V6(address)) => {
            let digits = address.octets().into_iter().rev();
            let digits = digits.map(|byte| format!("{:x}.{:x}.", byte & 15, byte >> 4));
            digits.collect::<String>() + "ip6.arpa"
        }
        Err(_) => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_a_handshake_for_an_address_is_its_name_in_the_reverse_zone() {
        assert_eq!(sni("a.example"), "a.example");
        assert_eq!(sni("192.0.2.7"), "7.2.0.192.in-addr.arpa");
        let expected = "1.".to_owned() + &"0.".repeat(23) + "8.b.d.0.1.0.0.2.ip6.arpa";
        assert_eq!(sni("2001:db8::1"), expected);
        assert_eq!(identifier("192.0.2.7"), Identifier::Ip(IpAddr::from([192, 0, 2, 7])));
    }
}
