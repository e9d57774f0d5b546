//! Client certificates: the authorities that sign them, and the names in them.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};
use webpki::{EndEntityCert, KeyUsage};

use crate::files::{Stamp, stamp};
use crate::unusable::{Unusable, bad_pem, unusable};

/// The largest file of authorities, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Refused certificates with the same names are logged at most once in this time. The next two
/// numbers limit such lines in this time, and the characters of the names in one line.
const PAUSE: Duration = Duration::from_secs(60);
const LINES_MAX: usize = 16;
const NAMES_SHOWN_MAX: usize = 200;
/// The longest name that is used, in bytes.
const NAME_BYTES_MAX: usize = 256;
/// The DER encoding of the identifier of `commonName`, an attribute of a subject (X.520).
const COMMON_NAME: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x03];

/// The authorities that sign client certificates, and their revocation lists.
///
/// A client without a certificate is served. A client is refused if its certificate is not signed
/// by these authorities, has expired, or is in one of the lists.
#[derive(Debug)]
pub struct ClientAuthorities {
    file: PathBuf,
    provider: Arc<CryptoProvider>,
    read: RwLock<Read>,
    /// For the names in refused certificates: when the log last reported them.
    told: Mutex<HashMap<String, Instant>>,
}

/// The content of the file that was read last, and the stamp that the file had.
#[derive(Debug)]
struct Read {
    stamp: Stamp,
    verifier: Arc<dyn ClientCertVerifier>,
    /// The content of the file, for [`crate::handover`].
    text: Arc<[u8]>,
}

impl ClientAuthorities {
    /// Reads a file with certificates and revocation lists (PEM). Blocks.
    pub fn open(file: &Path) -> Result<Self, Unusable> {
        let provider = Arc::new(ring::default_provider());
        let stamp = stamp_of(file)?;
        let read = RwLock::new(parse(file, stamp, &content(file)?, &provider)?);
        Ok(Self { file: file.to_owned(), provider, read, told: Mutex::default() })
    }

    /// Uses the content of such a file that another process has read. `name` stands for the file in
    /// messages.
    pub(crate) fn of_text(name: &str, text: &[u8]) -> Result<Self, Unusable> {
        let file = PathBuf::from(name);
        let provider = Arc::new(ring::default_provider());
        let read = RwLock::new(parse(&file, Stamp::default(), text, &provider)?);
        Ok(Self { file, provider, read, told: Mutex::default() })
    }

    /// Replaces the content that [`Self::of_text`] was given.
    pub(crate) fn replace(&self, text: &[u8]) -> Result<(), Unusable> {
        *self.read.write() = parse(&self.file, Stamp::default(), text, &self.provider)?;
        Ok(())
    }

    /// The names in a certificate (DER) that a client has presented. `None` unless these
    /// authorities have signed the certificate and it is valid now.
    pub fn names_if_signed(&self, certificate: &[u8]) -> Option<Vec<String>> {
        let certificate = CertificateDer::from(certificate);
        self.verify_client_cert(&certificate, &[], UnixTime::now()).ok()?;
        Some(names(&certificate))
    }

    /// The content of the file.
    pub fn text(&self) -> Arc<[u8]> {
        self.read.read().text.clone()
    }

    /// Reads the file again if it has changed. Returns whether it has changed. If the new content
    /// cannot be used, the previous content stays in use. Blocks.
    pub fn renew(&self) -> Result<bool, Unusable> {
        let stamp = stamp_of(&self.file)?;
        if stamp == self.read.read().stamp {
            return Ok(false);
        }
        let read = parse(&self.file, stamp, &content(&self.file)?, &self.provider)?;
        *self.read.write() = read;
        Ok(true)
    }

    fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        self.read.read().verifier.clone()
    }

    /// Logs why a certificate is refused, because the client may not learn the reason.
    fn tell(&self, certificate: &CertificateDer<'_>, reason: &Error) {
        let names: String = names(certificate).join(", ").chars().take(NAMES_SHOWN_MAX).collect();
        if !self.is_news(&names) {
            return;
        }
        let reason = in_words(reason);
        tracing::warn!(
            names,
            reason,
            "the certificate of a client was not accepted; further ones with these names are not \
             logged for a minute"
        );
    }

    /// Whether these names have not been logged in this pause yet and the log has room for another
    /// line.
    fn is_news(&self, names: &str) -> bool {
        let mut told = self.told.lock();
        told.retain(|_, at| at.elapsed() < PAUSE);
        let is_news = told.len() < LINES_MAX && !told.contains_key(names);
        if is_news {
            told.insert(names.to_owned(), Instant::now());
        }
        is_news
    }
}

/// Why a certificate is refused, in words for the owner of the node.
fn in_words(reason: &Error) -> String {
    let Error::InvalidCertificate(what) = reason else { return reason.to_string() };
    let words = match what {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet by the clock of this machine"
        }
        CertificateError::UnknownIssuer => "no authority in client_ca has signed it",
        CertificateError::BadSignature => {
            "its signature is not that of the authority in client_ca with this name"
        }
        CertificateError::Revoked => "its authority has revoked it",
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "it is not for clients (extendedKeyUsage has no clientAuth)"
        }
        CertificateError::BadEncoding => "it cannot be read",
        _ => return reason.to_string(),
    };
    words.to_owned()
}

fn stamp_of(file: &Path) -> Result<Stamp, Unusable> {
    stamp(file, FILE_BYTES_MAX, "name a file with certificates in PEM")
}

fn content(file: &Path) -> Result<Vec<u8>, Unusable> {
    fs::read(file).map_err(|error| bad_pem(file, &pem::Error::Io(error)))
}

fn parse(
    file: &Path,
    stamp: Stamp,
    text: &[u8],
    provider: &Arc<CryptoProvider>,
) -> Result<Read, Unusable> {
    let bad = |error: pem::Error| bad_pem(file, &error);
    let mut authorities = RootCertStore::empty();
    for (certificate, number) in CertificateDer::pem_slice_iter(text).zip(1..) {
        let certificate = certificate.map_err(bad)?;
        if is_of_no_authority(&certificate, provider) {
            let names = names(&certificate).join(", ");
            let what = format!("certificate {number} ({names}) is not the one of an authority");
            return Err(unusable(file, what, "name those who sign certificates, not clients"));
        }
        authorities.add(certificate).map_err(|error| {
            let what = format!("certificate {number} cannot be used: {error}");
            unusable(file, what, "write the file again")
        })?;
    }
    if authorities.is_empty() {
        let what = "the file has no certificate in PEM";
        let hint = "convert it from DER: openssl x509 -inform der -in FILE -out NEW";
        return Err(unusable(file, what, hint));
    }
    let lists = CertificateRevocationListDer::pem_slice_iter(text);
    let lists = lists.collect::<Result<Vec<_>, _>>().map_err(bad)?;
    // An authority without a list counts as having revoked nothing. An outdated list still counts,
    // because a node without a network must not lock its clients out.
    let builder = WebPkiClientVerifier::builder_with_provider(authorities.into(), provider.clone())
        .with_crls(lists)
        .allow_unknown_revocation_status()
        .clear_root_hint_subjects()
        .allow_unauthenticated();
    let verifier = builder.build().map_err(|error| {
        unusable(file, format!("a revocation list cannot be used: {error}"), "make it anew")
    })?;
    Ok(Read { stamp, verifier, text: text.into() })
}

/// Whether a certificate belongs to someone who may not sign certificates. webpki accepts every
/// certificate in the file as an authority. Without this check, a client whose certificate is in
/// the file could give itself any name.
fn is_of_no_authority(certificate: &CertificateDer<'_>, provider: &CryptoProvider) -> bool {
    // Version 1 certificates cannot carry this information, so they are not checked here.
    let (Ok(anchor), Ok(client)) =
        (webpki::anchor_from_trusted_cert(certificate), EndEntityCert::try_from(certificate))
    else {
        return false;
    };
    let known = provider.signature_verification_algorithms.all;
    let usage = KeyUsage::client_auth();
    let anchors = [anchor];
    let now = UnixTime::now();
    let as_client = client.verify_for_usage(known, &anchors, &[], now, usage, None, None);
    // If a certificate has expired or is not yet valid, it fails before the check of what it may
    // sign, so these errors prove nothing.
    !matches!(
        as_client.err(),
        Some(
            webpki::Error::CaUsedAsEndEntity
                | webpki::Error::CertExpired { .. }
                | webpki::Error::CertNotValidYet { .. }
        )
    )
}

impl ClientCertVerifier for ClientAuthorities {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// The server names no authorities in the handshake, so a client may offer any of its
    /// certificates. A list could become outdated, because the file may change and then name other
    /// authorities.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let checked = self.verifier().verify_client_cert(end_entity, intermediates, now);
        checked.inspect_err(|reason| self.tell(end_entity, reason))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier().verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier().verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier().supported_verify_schemes()
    }
}

/// The names in a certificate, in this order: the common name of its subject, its DNS names, and
/// its URIs (`subjectAltName`, RFC 5280, 4.2.1.6). Returns only names of 1 to 256 visible ASCII
/// characters, which may have spaces between them. Other bytes are left out, because the languages of
/// functions read them in different ways.
pub fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let common = common_name(certificate.subject()).into_iter();
    let others = certificate.valid_dns_names().chain(certificate.valid_uri_names());
    let all = common.chain(others.map(str::to_owned));
    all.filter(|name| is_plain(name)).collect()
}

fn is_plain(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        && name.trim_ascii().len() == name.len()
}

/// The last common name of a subject. `subject` is the content of a DER `Name`: a sequence of sets
/// with one attribute each, which consists of an identifier and a text (RFC 5280, 4.1.2.4). `None`
/// if the last common name has another form.
fn common_name(subject: &[u8]) -> Option<String> {
    let mut rest = subject;
    let mut found = None;
    while let Some((set, after)) = element(rest, 0x31) {
        rest = after;
        let mut attributes = set;
        while let Some((attribute, after)) = element(attributes, 0x30) {
            attributes = after;
            // Authorities write names as PrintableString, UTF8String or IA5String.
            if let Some(value) = attribute.strip_prefix(&COMMON_NAME) {
                let mut forms = [0x0c, 0x13, 0x16].into_iter();
                let text = forms.find_map(|tag| Some(element(value, tag)?.0));
                found = text.and_then(|text| String::from_utf8(text.to_vec()).ok());
            }
        }
    }
    found
}

/// The content of the first element, if it has this tag, and the bytes after it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let rest = der.strip_prefix(&[tag])?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (first as usize, rest),
        0x81 => (*rest.first()? as usize, &rest[1..]),
        0x82 => (u16::from_be_bytes([*rest.first()?, *rest.get(1)?]) as usize, &rest[2..]),
        _ => return None,
    };
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    /// The names that are found in a certificate with this common name and these other names.
    fn names_of(common: Option<&str>, others: &[SanType]) -> Vec<String> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "plant");
        if let Some(common) = common {
            params.distinguished_name.push(DnType::CommonName, common);
        }
        params.subject_alt_names = others.to_vec();
        let key = KeyPair::generate().expect("a key");
        names(params.self_signed(&key).expect("a certificate").der())
    }

    #[test]
    fn the_common_name_is_first() {
        let dns = SanType::DnsName("pump.example".try_into().expect("a name"));
        let uri = SanType::URI("spiffe://plant/pump".try_into().expect("an address"));
        let others = [uri, dns];
        let all = ["pump 3 (south)", "pump.example", "spiffe://plant/pump"];
        assert_eq!(names_of(Some(all[0]), &others), all);
        assert_eq!(names_of(None, &others), all[1..]);
        let long = "x".repeat(256);
        let longer = "x".repeat(257);
        for bad in ["", " a", "a\nmote-caller: b", "Süd", "a\u{202e}b", &longer] {
            assert_eq!(names_of(Some(bad), &[]), Vec::<String>::new(), "{bad}");
        }
        assert_eq!(names_of(Some(&long), &[]), [long]);
    }

    #[test]
    fn subjects_that_are_not_whole_have_no_name() {
        let attribute = [&COMMON_NAME[..], &[0x0c, 2, b'a', b'b']].concat();
        let sequence = [&[0x30, attribute.len() as u8][..], &attribute].concat();
        let subject = [&[0x31, sequence.len() as u8][..], &sequence].concat();
        assert_eq!(common_name(&subject).as_deref(), Some("ab"));
        // Of several common names, the last one is the most specific.
        let later: Vec<u8> =
            subject.iter().map(|byte| if *byte == b'b' { b'c' } else { *byte }).collect();
        assert_eq!(common_name(&[&subject[..], &later].concat()).as_deref(), Some("ac"));
        // If the last common name has another form, an earlier one must not be used instead.
        let other: Vec<u8> =
            subject.iter().map(|byte| if *byte == 0x0c { 0x14 } else { *byte }).collect();
        assert_eq!(common_name(&[&subject[..], &other].concat()), None);
        for end in 0..subject.len() {
            assert_eq!(common_name(&subject[..end]), None, "{end}");
        }
        for at in 0..subject.len() {
            for byte in 0..=u8::MAX {
                let mut changed = subject.clone();
                changed[at] = byte;
                // Whatever the bytes are, reading ends and stays within their bounds.
                let _ = common_name(&changed);
            }
        }
        for length in [&[0x82][..], &[0x82, 0xff], &[0x84, 0xff, 0xff, 0xff, 0xff]] {
            assert_eq!(common_name(&[&[0x31][..], length].concat()), None);
        }
    }
}
