//! Names and passwords for registries, from the files that `docker login` and `podman login` write.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

use crate::Reference;

/// The most bytes in a credentials file, and in a helper's answer.
const BYTES_MAX: u64 = 1 << 20;
/// The longest time that a credential helper may take. The helper may ask its user for a password.
const HELPER_TIMEOUT: Duration = Duration::from_secs(60);

/// How a client proves to a registry who it is. `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Credentials {
    Password {
        user: String,
        password: String,
    },
    /// A token that the registry issued at the login, and that it exchanges for short-lived ones.
    IdentityToken(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// Why the credentials for a registry could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("{0} cannot be read")]
    Read(PathBuf, #[source] io::Error),
    #[error("{0} is not a file of `docker login`: {1}")]
    Form(PathBuf, String),
    /// The file names a program that keeps the credentials.
    #[error("the credential helper `{0}` failed: {1}")]
    Helper(String, String),
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ConfigFile {
    auths: HashMap<String, Login>,
    cred_helpers: HashMap<String, String>,
    creds_store: String,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
struct Login {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    #[serde(default)]
    username: String,
    #[serde(default)]
    secret: String,
}

/// The files in which Docker and Podman look for credentials, in the order in which `mote` reads
/// them.
pub fn credential_files() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let home = variable("HOME");
    let mut all = Vec::new();
    all.extend(variable("REGISTRY_AUTH_FILE"));
    all.extend(match variable("DOCKER_CONFIG") {
        Some(folder) => Some(folder.join("config.json")),
        None => home.as_ref().map(|home| home.join(".docker/config.json")),
    });
    all.push(match variable("XDG_RUNTIME_DIR") {
        Some(folder) => folder.join("containers/auth.json"),
        // What podman, skopeo and buildah write without that variable, for example under sudo.
        None => format!("/run/containers/{}/auth.json", rustix::process::getuid().as_raw()).into(),
    });
    all.extend(home.map(|home| home.join(".config/containers/auth.json")));
    all
}

/// Reads the user's credentials for the registry of an image from a file such as
/// `~/.docker/config.json`. Returns `None` if there is no such file, or if it has none for this
/// registry. Runs a credential helper if the file names one, so call this on the user's side only.
/// Blocks.
pub fn credentials_from_docker_config(
    path: &Path,
    reference: &Reference,
) -> Result<Option<Credentials>, CredentialsError> {
    let read = |error| CredentialsError::Read(path.to_owned(), error);
    let mut text = Vec::new();
    match std::fs::File::open(path) {
        Ok(file) => file.take(BYTES_MAX).read_to_end(&mut text).map_err(read)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(read(error)),
    };
    let form = |reason: String| CredentialsError::Form(path.to_owned(), reason);
    let config: ConfigFile =
        serde_json::from_slice(&text).map_err(|error| form(error.to_string()))?;
    for key in keys(reference) {
        if let Some(helper) = config.cred_helpers.get(&key) {
            return ask_helper(helper, &key);
        }
        let Some(login) = config.auths.get(&key) else { continue };
        if let Some(found) = login.credentials().map_err(form)? {
            return Ok(Some(found));
        }
        // `docker login` leaves an empty row for a registry whose credentials are in its store.
        if !config.creds_store.is_empty() {
            return ask_helper(&config.creds_store, &key);
        }
    }
    Ok(None)
}

/// The rows that apply to an image, most specific first: Podman has rows for single repositories,
/// and Docker writes old addresses for its own registry.
fn keys(reference: &Reference) -> Vec<String> {
    let registry = reference.registry();
    let full = reference.name();
    let mut all = Vec::new();
    let mut part = full.as_str();
    loop {
        all.push(part.to_owned());
        match part.rsplit_once('/') {
            Some((shorter, _)) => part = shorter,
            None => break,
        }
    }
    let hosts: &[&str] =
        if registry == "docker.io" { &["index.docker.io", "registry-1.docker.io"] } else { &[] };
    for host in [&[registry], hosts].concat() {
        if host != registry {
            all.push(host.to_owned());
        }
        for form in ["https://{}/v1/", "https://{}/v2/", "https://{}", "https://{}/"] {
            all.push(form.replace("{}", host));
        }
    }
    all
}

impl Login {
    fn credentials(&self) -> Result<Option<Credentials>, String> {
        if !self.identitytoken.is_empty() {
            return Ok(Some(Credentials::IdentityToken(self.identitytoken.clone())));
        }
        if self.auth.is_empty() {
            let (user, password) = (self.username.clone(), self.password.clone());
            let is_there = !user.is_empty();
            return Ok(is_there.then_some(Credentials::Password { user, password }));
        }
        let wrong = || "a row's `auth` is not USER:PASSWORD in Base64".to_owned();
        let bytes = BASE64_STANDARD.decode(self.auth.trim()).map_err(|_| wrong())?;
        let text = String::from_utf8(bytes).map_err(|_| wrong())?;
        let (user, password) = text.split_once(':').ok_or_else(wrong)?;
        // Docker ends some passwords with a NUL.
        let password = password.trim_end_matches('\0');
        Ok(Some(Credentials::Password { user: user.to_owned(), password: password.to_owned() }))
    }
}

/// Runs `docker-credential-NAME get`.
fn ask_helper(name: &str, key: &str) -> Result<Option<Credentials>, CredentialsError> {
    let failed =
        |reason: String| CredentialsError::Helper(format!("docker-credential-{name}"), reason);
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !name.bytes().all(is_name) {
        return Err(failed("not the name of a program".to_owned()));
    }
    let mut child = Command::new(format!("docker-credential-{name}"))
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|error| match error.kind() {
            // A folder in PATH that may not be read counts as a folder without the program.
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
                failed("not installed here".to_owned())
            }
            _ => failed(error.to_string()),
        })?;
    if let Some(mut stdin) = child.stdin.take() {
        // A helper that does not read its input gives the reason in its output.
        let _ = stdin.write_all(key.as_bytes());
    }
    let (sender, receiver) = mpsc::channel();
    let stdout = child.stdout.take();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let read = stdout.map(|output| output.take(BYTES_MAX).read_to_end(&mut text));
        let _ = sender.send((text, read));
    });
    let text = match receiver.recv_timeout(HELPER_TIMEOUT) {
        Ok((text, _)) => text,
        Err(_) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(failed(format!("no answer within {} s", HELPER_TIMEOUT.as_secs())));
        }
    };
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    if !status.success() {
        let said = String::from_utf8_lossy(&text).trim().chars().take(200).collect::<String>();
        if said.contains("credentials not found") {
            return Ok(None);
        }
        return Err(failed(if said.is_empty() { status.to_string() } else { said }));
    }
    let answer: HelperAnswer =
        serde_json::from_slice(&text).map_err(|_| failed("its answer is not JSON".to_owned()))?;
    Ok(match (&*answer.username, answer.secret) {
        (_, secret) if secret.is_empty() => None,
        ("<token>", secret) => Some(Credentials::IdentityToken(secret)),
        (user, password) => Some(Credentials::Password { user: user.to_owned(), password }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(config: &str, image: &str) -> Result<Option<Credentials>, CredentialsError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, config).unwrap();
        credentials_from_docker_config(&path, &image.parse().unwrap())
    }

    fn password(user: &str, password: &str) -> Option<Credentials> {
        Some(Credentials::Password { user: user.into(), password: password.into() })
    }

    #[test]
    fn rows() {
        let file = r#"{"auths": {
            "localhost:5000": {"auth": "YW5uYTpzZWM6cmV0"},
            "https://index.docker.io/v1/": {"auth": "YW5uYTp4"},
            "quay.io/team": {"username": "u", "password": "p"},
            "quay.io": {"auth": "YW5uYTp5"},
            "ghcr.io": {"identitytoken": "t"},
            "broken.io": {"auth": "%%"},
            "empty.io": {}
        }}"#;
        let found = |image| find(file, image).unwrap();
        assert_eq!(found("localhost:5000/app"), password("anna", "sec:ret"));
        assert_eq!(found("busybox"), password("anna", "x"));
        assert_eq!(found("quay.io/team/app"), password("u", "p"));
        assert_eq!(found("quay.io/teams/app"), password("anna", "y"));
        assert_eq!(found("ghcr.io/a/b"), Some(Credentials::IdentityToken("t".into())));
        assert_eq!(found("empty.io/a"), None);
        assert_eq!(found("localhost:5001/app"), None);
        let error = find(file, "broken.io/a").unwrap_err().to_string();
        assert!(error.ends_with("a row's `auth` is not USER:PASSWORD in Base64"), "{error}");
        assert!(find("text", "a").is_err());
    }

    #[test]
    fn helpers_that_cannot_be_used() {
        let file = r#"{"credHelpers": {"a.io": "mote-test-missing", "b.io": "../sh"}}"#;
        let error = |image| find(file, image).unwrap_err().to_string();
        assert_eq!(
            error("a.io/x"),
            "the credential helper `docker-credential-mote-test-missing` failed: not installed here"
        );
        assert!(error("b.io/x").ends_with("not the name of a program"));
        assert_eq!(find(file, "c.io/x").unwrap(), None);
        let missing = Path::new("/nonexistent/config.json");
        let found = credentials_from_docker_config(missing, &"a".parse().unwrap()).unwrap();
        assert_eq!(found, None);
    }

    #[test]
    fn secrets_are_not_shown() {
        assert_eq!(format!("{:?}", password("anna", "secret")), "Some(Credentials(..))");
    }
}
