//! The authority: the connection to its server, the certificates by which the server is trusted,
//! and the account.

use std::fs;
use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use instant_acme::{Account, AccountCredentials, ExternalAccountKey, NewAccount};
use std::sync::Arc;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::arguments::Arguments;
use crate::folder::{self, Folder, Record};
use crate::order::Failure;

/// The content of files that must be read before the process is confined.
pub(crate) struct Authority {
    roots: Arc<RootCertStore>,
    /// The identifier and the key of an account elsewhere, to which the ACME account is tied.
    external_account: Option<(String, Vec<u8>)>,
}

impl Authority {
    /// Reads the files that the arguments name. Blocks.
    pub(crate) fn read(given: &Arguments) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        match &given.ca {
            Some(file) => {
                let wrong =
                    |what: String| io::Error::other(format!("acme_ca: {}: {what}", file.display()));
                let text = fs::read(file).map_err(|error| wrong(error.to_string()))?;
                for certificate in CertificateDer::pem_slice_iter(&text) {
                    let certificate = certificate.map_err(|_| wrong("not PEM".to_owned()))?;
                    roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
                }
                if roots.is_empty() {
                    return Err(wrong("the file has no certificate in PEM".to_owned()));
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let external_account = given.external_account.as_deref().map(read_key).transpose()?;
        Ok(Self { roots: Arc::new(roots), external_account })
    }

    /// Returns the account with the authority. Creates the account if there is none.
    pub(crate) async fn account(
        &self,
        given: &Arguments,
        folder: &Folder,
        record: &mut Record,
    ) -> Result<Account, Failure> {
        let file = folder.account(&given.directory);
        let credentials = fs::read(&file).ok();
        let credentials =
            credentials.and_then(|json| serde_json::from_slice::<AccountCredentials>(&json).ok());
        let contact = given.contact.as_ref().map(|address| format!("mailto:{address}"));
        let contacts: Vec<&str> = contact.as_deref().into_iter().collect();
        let builder = Account::builder_with_http(Box::new(self.client()?));
        if let Some(credentials) = credentials {
            let account = builder.from_credentials(credentials).await?;
            if record.contact != given.contact {
                account.update_contacts(&contacts).await?;
                record.contact.clone_from(&given.contact);
            }
            return Ok(account);
        }
        let asked = NewAccount {
            contact: &contacts,
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let elsewhere = self.external_account.as_ref();
        let elsewhere = elsewhere.map(|(id, key)| ExternalAccountKey::new(id.clone(), key));
        let made = builder.create(&asked, given.directory.clone(), elsewhere.as_ref()).await;
        let (account, credentials) = made?;
        record.contact.clone_from(&given.contact);
        let json = serde_json::to_vec(&credentials).map_err(io::Error::from);
        json.and_then(|json| folder::write(&file, &json)).map_err(|error| {
            Failure::Refused(format!("could not write the account to {}: {error}", file.display()))
        })?;
        Ok(account)
    }

    fn client(
        &self,
    ) -> Result<
        Client<
            hyper_rustls::HttpsConnector<hyper_util::client::legacy::connect::HttpConnector>,
            instant_acme::BodyWrapper<bytes::Bytes>,
        >,
        Failure,
    > {
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Failure::Unreachable(error.to_string()))?
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new().with_tls_config(config);
        let connector = connector.https_only().enable_http1().build();
        Ok(Client::builder(TokioExecutor::new()).build(connector))
    }
}

/// Removes the stored account, because the authority no longer knows it.
pub(crate) fn forget_account(folder: &Folder, directory: &str) {
    let _ = fs::remove_file(folder.account(directory));
}

/// Reads the identifier and the key of an account elsewhere. The file has two words, of which the
/// second is in base64url.
fn read_key(file: &Path) -> io::Result<(String, Vec<u8>)> {
    let wrong =
        |what: &str| io::Error::other(format!("acme_external_account: {}: {what}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| wrong(&error.to_string()))?;
    let [id, key] = text.split_whitespace().collect::<Vec<_>>()[..] else {
        return Err(wrong("the file must have the identifier of the key, a space, and the key"));
    };
    let key = URL_SAFE_NO_PAD.decode(key.trim_end_matches('='));
    Ok((id.to_owned(), key.map_err(|_| wrong("the key is not base64url"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_an_account_elsewhere_is_read_and_mistakes_are_named() {
        let place = tempfile::tempdir().expect("a folder");
        let file = place.path().join("key");
        fs::write(&file, "kid-1 zWNDZM6eQGHWpSRTPal5\n").expect("write");
        let (id, key) = read_key(&file).expect("a key");
        assert_eq!((id.as_str(), key.len()), ("kid-1", 15));
        for (text, wrong) in [("", "identifier"), ("a b c", "identifier"), ("a /+", "base64url")] {
            fs::write(&file, text).expect("write");
            let error = read_key(&file).expect_err("wrong").to_string();
            assert!(error.contains(wrong) && error.contains("key: "), "{error}");
        }
    }
}
