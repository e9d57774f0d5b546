//! The reading half of the registry protocol (OCI distribution): manifests, blobs, tokens.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use mote_outgoing::{
    Answer, HeaderMap, HeaderValue, Method, Outgoing, OutgoingError, Reach, TlsError, Uri,
};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::documents::{ACCEPTED, DOCUMENT_BYTES_MAX, digest, shown};
use crate::{Credentials, ImageError, Reference};

/// Longest answer that contains a token or an error.
const SHORT_BYTES_MAX: usize = 64 << 10;
/// How often a registry may redirect the node for one request. Two redirects are usual.
const REDIRECTS_MAX: usize = 5;
/// How many tags a message may show.
const TAGS_MAX: usize = 100;
/// What is escaped in a query or a form (RFC 3986).
const RESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// How often one request is repeated with a new token.
const LOGINS_MAX: usize = 2;

/// One registry, for the duration of one pull.
pub(crate) struct Registry<'a> {
    reference: &'a Reference,
    credentials: Option<&'a Credentials>,
    outgoing: &'a Outgoing,
    /// `https`, or `http` for a registry on this machine that does not speak TLS.
    scheme: Mutex<Option<&'static str>>,
    authorization: Mutex<Option<HeaderValue>>,
    /// The smallest setting that permits the registry's address.
    reach: Mutex<Reach>,
}

/// A document, with the type that the registry gave it.
pub(crate) struct Fetched {
    pub(crate) json: Vec<u8>,
    pub(crate) digest: String,
    pub(crate) media_type: Option<String>,
}

/// What a registry asks for before it answers.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

#[derive(Deserialize)]
struct Tags {
    tags: Vec<String>,
}

#[derive(Deserialize)]
struct Errors {
    errors: Vec<OneError>,
}

#[derive(Deserialize)]
struct OneError {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

impl<'a> Registry<'a> {
    /// The registry and the repository: `ghcr.io/owner/name`.
    pub(crate) fn repository(&self) -> String {
        self.reference.name()
    }

    pub(crate) fn new(
        reference: &'a Reference,
        credentials: Option<&'a Credentials>,
        outgoing: &'a Outgoing,
    ) -> Self {
        Self {
            reference,
            credentials,
            outgoing,
            scheme: Mutex::new(None),
            authorization: Mutex::new(None),
            reach: Mutex::new(Reach::Public),
        }
    }

    /// Fetches a manifest or index by its tag or digest.
    pub(crate) async fn manifest(&self, key: &str) -> Result<Fetched, ImageError> {
        let name = self.reference.name();
        let answer = self.get(&format!("manifests/{key}"), ACCEPTED, None).await?;
        if answer.status != 200 {
            return Err(self.manifest_refused(answer, key).await);
        }
        let media_type = text_field(&answer.fields, "content-type");
        let said = text_field(&answer.fields, "docker-content-digest");
        let what = || format!("the manifest of {name}");
        let json = match answer.rest(DOCUMENT_BYTES_MAX as usize).await {
            Ok(json) => json.to_vec(),
            Err(OutgoingError::TooLong(_)) => {
                return Err(ImageError::TooLarge(format!("{} is longer than 4 MiB", what())));
            }
            Err(error) => return Err(self.failed(error)),
        };
        let found = digest(&json);
        let expected = if key.starts_with("sha256:") { Some(key.to_owned()) } else { said };
        match expected {
            // A registry may use another algorithm for the digest of a tag.
            Some(expected) if expected.starts_with("sha256:") && expected != found => {
                Err(ImageError::WrongDigest { what: what(), found, expected })
            }
            _ => Ok(Fetched { json, digest: found, media_type }),
        }
    }

    /// Begins to fetch a blob, starting at an offset. The answer is 200 or 206.
    pub(crate) async fn blob(&self, digest: &str, from: u64) -> Result<Answer, ImageError> {
        let range = (from > 0).then(|| format!("bytes={from}-"));
        let answer = self.get(&format!("blobs/{digest}"), "*/*", range).await?;
        match answer.status {
            200 | 206 => Ok(answer),
            // The blob has no bytes after the offset, so the download starts again from 0.
            416 if from > 0 => Box::pin(self.blob(digest, 0)).await,
            _ => Err(self.refused(answer).await),
        }
    }

    /// Sends a request, with a login if the registry asks for one, and follows redirects.
    async fn get(
        &self,
        path: &str,
        accept: &'static str,
        range: Option<String>,
    ) -> Result<Answer, ImageError> {
        let mut logins = 0;
        loop {
            let answer = self.ask(path, accept, range.as_deref()).await?;
            if answer.status != 401 || logins == LOGINS_MAX {
                return Ok(answer);
            }
            let has_sent = self.authorization.lock().take().is_some();
            let Some(challenge) = challenge(&answer.fields) else { return Ok(answer) };
            // A refused password is not sent again. A token is requested again, because it may have
            // expired.
            if has_sent && challenge == Challenge::Basic {
                return Ok(answer);
            }
            match self.log_in(&challenge).await? {
                Some(authorization) => *self.authorization.lock() = Some(authorization),
                None => return Ok(answer),
            }
            logins += 1;
        }
    }

    /// Sends one request to the registry, and to the addresses to which it redirects.
    async fn ask(
        &self,
        path: &str,
        accept: &'static str,
        range: Option<&str>,
    ) -> Result<Answer, ImageError> {
        let mut fields = HeaderMap::new();
        fields.insert("accept", HeaderValue::from_static(accept));
        if let Some(range) = range.and_then(|range| HeaderValue::from_str(range).ok()) {
            fields.insert("range", range);
        }
        let tail = format!("{}/v2/{}/{path}", self.reference.host(), self.reference.repository());
        let (mut uri, mut answer) = self.first(&tail, &fields).await?;
        *self.reach.lock() = answer.reach;
        for _ in 0..REDIRECTS_MAX {
            if !matches!(answer.status, 301 | 302 | 303 | 307 | 308) {
                return Ok(answer);
            }
            let next = text_field(&answer.fields, "location")
                .and_then(|location| resolve(&uri, &location))
                .ok_or_else(|| self.protocol("redirects to something that is not an address"))?;
            let is_own = next.authority() == uri.authority() && next.scheme() == uri.scheme();
            self.check_scheme(&next)?;
            let mut fields = fields.clone();
            if is_own {
                self.authorize(&mut fields);
            }
            answer = self.send(&next, fields, &self.beyond()).await?;
            uri = next;
        }
        Err(self.protocol("redirects too often"))
    }

    /// The first request decides whether a registry on this machine speaks TLS.
    async fn first(&self, tail: &str, fields: &HeaderMap) -> Result<(Uri, Answer), ImageError> {
        let scheme = *self.scheme.lock();
        let schemes = match scheme {
            Some(scheme) => vec![scheme],
            None if is_loopback(self.reference.host()) => vec!["https", "http"],
            None => vec!["https"],
        };
        let mut last = None;
        for scheme in schemes {
            let uri: Uri = format!("{scheme}://{tail}")
                .parse()
                .map_err(|_| self.protocol("has a name that is not an address"))?;
            let mut fields = fields.clone();
            // No credentials are sent in clear text before it is known that the registry does not
            // speak TLS.
            self.authorize(&mut fields);
            match mote_outgoing::open(
                Method::GET,
                &uri,
                self.with_agent(fields),
                Default::default(),
                self.outgoing,
            )
            .await
            {
                Ok(answer) => {
                    *self.scheme.lock() = Some(scheme);
                    return Ok((uri, answer));
                }
                // The server answered with something other than TLS, or it listens only on the
                // other port.
                Err(
                    error @ (OutgoingError::Tls(TlsError::Exchange(_)) | OutgoingError::Connect(_)),
                ) => last = Some(error),
                Err(error) => return Err(self.failed(error)),
            }
        }
        Err(match last {
            Some(error) => self.failed(error),
            None => self.protocol("has no address"),
        })
    }

    async fn send(
        &self,
        uri: &Uri,
        fields: HeaderMap,
        outgoing: &Outgoing,
    ) -> Result<Answer, ImageError> {
        let fields = self.with_agent(fields);
        mote_outgoing::open(Method::GET, uri, fields, Default::default(), outgoing)
            .await
            .map_err(|error| ImageError::request(uri.host().unwrap_or_default(), error))
    }

    fn with_agent(&self, mut fields: HeaderMap) -> HeaderMap {
        let agent = concat!("mote/", env!("CARGO_PKG_VERSION"));
        fields.insert("user-agent", HeaderValue::from_static(agent));
        fields
    }

    fn authorize(&self, fields: &mut HeaderMap) {
        if let Some(authorization) = self.authorization.lock().clone() {
            fields.insert("authorization", authorization);
        }
    }

    /// The rule for addresses that the registry names. A registry on the internet must not reach
    /// services on this machine or its network through the node.
    fn beyond(&self) -> Outgoing {
        let reach = self.outgoing.reach.min(*self.reach.lock());
        Outgoing { reach, ..self.outgoing.clone() }
    }

    fn check_scheme(&self, uri: &Uri) -> Result<(), ImageError> {
        match uri.scheme_str() {
            Some("https") => Ok(()),
            Some("http") if is_loopback(uri.authority().map_or("", |host| host.as_str())) => Ok(()),
            _ => Err(self.protocol("sends its clients to an address without TLS")),
        }
    }

    /// Returns the value of the field Authorization, or `None` if the client has no credentials of
    /// the kind that the registry asks for.
    async fn log_in(&self, challenge: &Challenge) -> Result<Option<HeaderValue>, ImageError> {
        let basic = match self.credentials {
            Some(Credentials::Password { user, password }) => {
                let text = BASE64_STANDARD.encode(format!("{user}:{password}"));
                HeaderValue::from_str(&format!("Basic {text}")).ok().map(|mut value| {
                    value.set_sensitive(true);
                    value
                })
            }
            _ => None,
        };
        let Challenge::Bearer { realm, service, scope } = challenge else { return Ok(basic) };
        let realm: Uri = realm
            .parse()
            .ok()
            .filter(|realm: &Uri| realm.host().is_some())
            .ok_or_else(|| self.protocol("names no address for tokens"))?;
        self.check_scheme(&realm)?;
        let own_scope = format!("repository:{}:pull", self.reference.repository());
        let scope = scope.as_deref().unwrap_or(&own_scope);
        let mut query = vec![("scope", scope)];
        query.extend(service.as_deref().map(|service| ("service", service)));
        let mut fields = HeaderMap::new();
        let answer = if let Some(Credentials::IdentityToken(token)) = self.credentials {
            query.extend([
                ("grant_type", "refresh_token"),
                ("client_id", "mote"),
                ("refresh_token", token),
            ]);
            let form = "application/x-www-form-urlencoded";
            fields.insert("content-type", HeaderValue::from_static(form));
            let fields = self.with_agent(fields);
            let body = encode(&query).into();
            mote_outgoing::open(Method::POST, &realm, fields, body, &self.beyond())
                .await
                .map_err(|error| ImageError::request(realm.host().unwrap_or_default(), error))?
        } else {
            if let Some(basic) = basic {
                fields.insert("authorization", basic);
            }
            let joint = if realm.query().is_some() { '&' } else { '?' };
            let uri: Uri = format!("{realm}{joint}{}", encode(&query))
                .parse()
                .map_err(|_| self.protocol("names no address for tokens"))?;
            self.send(&uri, fields, &self.beyond()).await?
        };
        match answer.status {
            200 => {
                let json =
                    answer.rest(SHORT_BYTES_MAX).await.map_err(|error| self.failed(error))?;
                let token: Token = serde_json::from_slice(&json)
                    .map_err(|_| self.protocol("answers with something that is not a token"))?;
                let token = token.token.or(token.access_token).unwrap_or_default();
                let value = HeaderValue::from_str(&format!("Bearer {token}"))
                    .map_err(|_| self.protocol("answers with something that is not a token"))?;
                Ok(Some(value))
            }
            400 | 401 | 403 => Err(self.not_let_in()),
            _ => Err(self.refused(answer).await),
        }
    }

    fn not_let_in(&self) -> ImageError {
        let registry = self.reference.registry().to_owned();
        match self.credentials {
            Some(_) => ImageError::WrongPassword { registry },
            None => ImageError::LoginNeeded { name: self.reference.name(), registry },
        }
    }

    async fn manifest_refused(&self, answer: Answer, key: &str) -> ImageError {
        if answer.status != 404 {
            return self.refused(answer).await;
        }
        let name = self.reference.name();
        let registry = self.reference.registry().to_owned();
        if has_code(answer, "NAME_UNKNOWN").await {
            return ImageError::NoSuchImage { name, registry };
        }
        // With some registries, only the list of tags shows that there is no such image.
        let mut there = Vec::new();
        if let Ok(answer) = self.get(&format!("tags/list?n={TAGS_MAX}"), "*/*", None).await {
            if answer.status == 200 {
                let json = answer.rest(SHORT_BYTES_MAX).await.unwrap_or_default();
                there = serde_json::from_slice(&json).map_or(there, |tags: Tags| tags.tags);
                there.truncate(TAGS_MAX);
                there.iter_mut().for_each(|tag| *tag = shown(tag));
            } else if answer.status == 404 && has_code(answer, "NAME_UNKNOWN").await {
                return ImageError::NoSuchImage { name, registry };
            }
        }
        if key.starts_with("sha256:") {
            ImageError::NoSuchDigest { name, digest: key.to_owned() }
        } else {
            ImageError::NoSuchTag { name, tag: key.to_owned(), there }
        }
    }

    /// The error for an answer other than the expected one.
    async fn refused(&self, answer: Answer) -> ImageError {
        let registry = self.reference.registry().to_owned();
        let name = self.reference.name();
        let status = answer.status;
        match status {
            401 => match self.credentials {
                // With a token, the registry knows the user.
                Some(_) if self.authorization.lock().is_some() => {
                    ImageError::Denied { name, registry }
                }
                _ => self.not_let_in(),
            },
            403 => match self.credentials {
                Some(_) => ImageError::Denied { name, registry },
                None => ImageError::LoginNeeded { name, registry },
            },
            429 => {
                let retry_after = text_field(&answer.fields, "retry-after")
                    .and_then(|text| text.parse::<u32>().ok())
                    .map(|seconds| format!("{seconds} s"));
                ImageError::TooManyRequests { registry, retry_after }
            }
            _ => {
                let errors = errors(answer).await;
                let said = errors.first().map(|error| {
                    let text = if error.message.is_empty() { &error.code } else { &error.message };
                    format!(": {}", shown(text))
                });
                ImageError::Registry { registry, status, said: said.unwrap_or_default() }
            }
        }
    }

    pub(crate) fn failed(&self, error: OutgoingError) -> ImageError {
        ImageError::request(self.reference.registry(), error)
    }

    pub(crate) fn protocol(&self, reason: &str) -> ImageError {
        ImageError::Protocol {
            registry: self.reference.registry().to_owned(),
            reason: reason.to_owned(),
        }
    }
}

async fn has_code(answer: Answer, code: &str) -> bool {
    errors(answer).await.iter().any(|error| error.code == code)
}

async fn errors(answer: Answer) -> Vec<OneError> {
    let Ok(json) = answer.rest(SHORT_BYTES_MAX).await else { return Vec::new() };
    serde_json::from_slice(&json).map(|errors: Errors| errors.errors).unwrap_or_default()
}

pub(crate) fn text_field(fields: &HeaderMap, name: &str) -> Option<String> {
    fields.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// Whether a host, with or without a port, means the local machine everywhere.
fn is_loopback(authority: &str) -> bool {
    let host = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, _)) => host,
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    };
    host == "localhost"
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The address to which an answer redirects.
fn resolve(from: &Uri, location: &str) -> Option<Uri> {
    if location.starts_with('/') && !location.starts_with("//") {
        let (scheme, authority) = (from.scheme_str()?, from.authority()?);
        return format!("{scheme}://{authority}{location}").parse().ok();
    }
    let next: Uri = location.parse().ok()?;
    let is_plain = next.authority().is_some_and(|name| !name.as_str().contains('@'));
    (is_plain && next.scheme().is_some()).then_some(next)
}

/// Reads the field WWW-Authenticate. Prefers a token over a password.
fn challenge(fields: &HeaderMap) -> Option<Challenge> {
    let mut found = None;
    for value in fields.get_all("www-authenticate") {
        let Ok(challenges) = value.to_str().map(http_auth::parse_challenges) else { continue };
        for challenge in challenges.unwrap_or_default() {
            let parameter = |name: &str| {
                let (_, value) =
                    challenge.params.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))?;
                Some(value.to_unescaped())
            };
            if challenge.scheme.eq_ignore_ascii_case("basic") {
                found = Some(Challenge::Basic);
            } else if challenge.scheme.eq_ignore_ascii_case("bearer")
                && let Some(realm) = parameter("realm")
            {
                let (service, scope) = (parameter("service"), parameter("scope"));
                return Some(Challenge::Bearer { realm, service, scope });
            }
        }
    }
    found
}

/// Encodes a query or a form.
fn encode(pairs: &[(&str, &str)]) -> String {
    let pairs: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, &RESERVED)))
        .collect();
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges() {
        let read = |values: &[&'static str]| {
            let mut fields = HeaderMap::new();
            for value in values {
                fields.append("www-authenticate", HeaderValue::from_static(value));
            }
            challenge(&fields)
        };
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            Some(Challenge::Bearer {
                realm: realm.into(),
                service: service.map(Into::into),
                scope: scope.map(Into::into),
            })
        };
        assert_eq!(read(&["Basic realm=\"x\""]), Some(Challenge::Basic));
        assert_eq!(
            read(&[
                "Bearer realm=\"https://a/t\",service=\"s\",scope=\"repository:a/b:pull,push\""
            ]),
            bearer("https://a/t", Some("s"), Some("repository:a/b:pull,push"))
        );
        assert_eq!(
            read(&["Basic realm=x, bearer service=s , realm=\"https://a\""]),
            bearer("https://a", Some("s"), None)
        );
        assert_eq!(read(&["Bearer realm=\"a\\\"b\""]), bearer("a\"b", None, None));
        for nothing in [&["Bearer"][..], &["Bearer scope=x"], &["Digest realm=x"], &["="], &[]] {
            assert_eq!(read(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn redirects() {
        let from: Uri = "https://a:5000/v2/x".parse().unwrap();
        let to = |location: &str| resolve(&from, location).map(|uri| uri.to_string());
        assert_eq!(to("/b?c=d").as_deref(), Some("https://a:5000/b?c=d"));
        assert_eq!(to("https://c/d").as_deref(), Some("https://c/d"));
        for wrong in ["//c/d", "", "d", "https://user@c/", "https://", "a b"] {
            assert_eq!(to(wrong), None, "{wrong}");
        }
    }

    /// A registry on the internet cannot aim the node at services in the node's own network.
    #[tokio::test]
    async fn where_a_registry_may_send_the_node() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let uri: Uri = format!("http://{}/", socket.local_addr().unwrap()).parse().unwrap();
        let reference: Reference = "registry.example/app".parse().unwrap();
        let outgoing = Outgoing { reach: Reach::Machine, ..Outgoing::default() };
        let registry = Registry::new(&reference, None, &outgoing);
        for reach in [Reach::Public, Reach::Network] {
            *registry.reach.lock() = reach;
            let sent = registry.send(&uri, HeaderMap::new(), &registry.beyond()).await;
            let error = sent.map(|_| ()).unwrap_err();
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(cause.contains("is not a public address"), "{cause}");
        }
        for address in ["http://10.0.0.1/", "http://example.com/", "ftp://127.0.0.1/", "/x"] {
            assert!(registry.check_scheme(&address.parse().unwrap()).is_err(), "{address}");
        }
    }

    #[test]
    fn hosts_of_this_machine() {
        for host in ["localhost", "localhost:5000", "127.0.0.1:1", "127.9.9.9", "[::1]:5000"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["localhost.example", "10.0.0.1", "[::2]:1", "example.com:443", ""] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn queries() {
        assert_eq!(
            encode(&[("scope", "repository:a/b:pull"), ("x", "ä &")]),
            "scope=repository%3Aa%2Fb%3Apull&x=%C3%A4%20%26"
        );
    }
}
