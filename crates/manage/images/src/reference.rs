//! Names of images, as Docker reads them.

use std::fmt;
use std::str::FromStr;

/// The registry for image names that contain none.
const DEFAULT_REGISTRY: &str = "docker.io";
const NAME_BYTES_MAX: usize = 255;
const TAG_BYTES_MAX: usize = 128;

/// The name of an image in a registry: `registry/repository:tag@digest`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<String>,
}

/// Why a text is not the name of an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not the name of an image: {reason}")]
pub struct ReferenceError {
    name: String,
    reason: &'static str,
}

impl Reference {
    /// The host, with its port if one was given. It is `docker.io` if the name contains no host.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    pub fn repository(&self) -> &str {
        &self.repository
    }

    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// `sha256:` and 64 hexadecimal digits.
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    /// The name without tag and digest.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// The name with this digest.
    pub(crate) fn pinned(&self, digest: &str) -> String {
        Self { digest: Some(digest.to_owned()), ..self.clone() }.to_string()
    }

    /// The host that serves the images.
    pub(crate) fn host(&self) -> &str {
        if self.registry == DEFAULT_REGISTRY { "registry-1.docker.io" } else { &self.registry }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        parse(text)
            .map_err(|reason| ReferenceError { name: text.chars().take(128).collect(), reason })
    }
}

fn parse(text: &str) -> Result<Reference, &'static str> {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (text, None),
    };
    // A colon before the last slash belongs to the port of the registry.
    let name_from = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match rest[name_from..].split_once(':') {
        Some((last, tag)) => (&rest[..name_from + last.len()], Some(tag)),
        None => (rest, None),
    };
    let (registry, repository) = match name.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
        _ => (DEFAULT_REGISTRY, name),
    };
    let registry = if registry == "index.docker.io" { DEFAULT_REGISTRY } else { registry };
    if !is_host(registry) {
        return Err("its registry is not a host with an optional port");
    }
    if repository.is_empty() {
        return Err("it is empty");
    }
    if repository.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err("only the tag may contain capital letters");
    }
    if !repository.split('/').all(is_component) {
        return Err("a name consists of lower-case letters, digits, and single separators (. _ -)");
    }
    if name.len() > NAME_BYTES_MAX {
        return Err("it is longer than 255 characters");
    }
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err("its tag is not 1 to 128 letters, digits, and characters of `_.-`");
    }
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return Err("its digest is not `sha256:` with 64 hexadecimal digits");
    }
    let is_official = registry == DEFAULT_REGISTRY && !repository.contains('/');
    Ok(Reference {
        registry: registry.to_owned(),
        repository: if is_official {
            format!("library/{repository}")
        } else {
            repository.to_owned()
        },
        tag: match (tag, digest) {
            (None, None) => Some("latest".to_owned()),
            _ => tag.map(str::to_owned),
        },
        digest: digest.map(str::to_owned),
    })
}

fn is_host(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, "")) => return address.parse::<std::net::Ipv6Addr>().is_ok(),
        Some((address, rest)) => {
            if address.parse::<std::net::Ipv6Addr>().is_err() {
                return false;
            }
            ("localhost", rest.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None if text.starts_with('[') => return false,
            None => (text, None),
        },
    };
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        !bytes.is_empty()
            && bytes.len() <= 63
            && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
            && bytes[0] != b'-'
            && bytes[bytes.len() - 1] != b'-'
    };
    let is_port = |port: &str| {
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|n| n != 0)
    };
    host.split('.').all(is_label) && port.is_none_or(is_port)
}

/// Letters and digits with a separator between them: `.`, `_`, `__` or any number of `-`.
fn is_component(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    if !is_word(*first) || !is_word(*last) {
        return false;
    }
    text.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()).all(|separator| {
        matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-')
    })
}

fn is_tag(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.len() <= TAG_BYTES_MAX
        && text.bytes().next().is_some_and(is_word)
        && text.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
}

pub(crate) fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let digest = format!("sha256:{}", "0f".repeat(32));
        for (text, full) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("index.docker.io/busybox", "docker.io/library/busybox:latest"),
            ("owner/app", "docker.io/owner/app:latest"),
            ("test.com:tag", "docker.io/library/test.com:tag"),
            ("test.com/app:Tag", "test.com/app:Tag"),
            ("localhost/app", "localhost/app:latest"),
            ("localhost:5000/a/b/c:1", "localhost:5000/a/b/c:1"),
            ("127.0.0.1:5000/app", "127.0.0.1:5000/app:latest"),
            ("[::1]:5000/app", "[::1]:5000/app:latest"),
            ("ghcr.io/o-w--n/a__p_p.x", "ghcr.io/o-w--n/a__p_p.x:latest"),
            (&format!("test:5000/app@{digest}"), &format!("test:5000/app@{digest}")),
            (&format!("test:5000/app:1@{digest}"), &format!("test:5000/app:1@{digest}")),
        ] {
            let reference: Reference = text.parse().expect(text);
            assert_eq!(reference.to_string(), full);
            assert_eq!(full.parse::<Reference>().as_ref(), Ok(&reference), "read back");
        }
    }

    #[test]
    fn what_is_not_a_name() {
        for (text, reason) in [
            ("", "it is empty"),
            ("localhost/", "it is empty"),
            ("Busybox", "only the tag may contain capital letters"),
            ("a//b", "a name consists of"),
            ("/app", "a name consists of"),
            ("./app", "its registry is not a host"),
            ("../app", "its registry is not a host"),
            ("a..b/c/../d", "its registry is not a host"),
            ("owner/../app", "a name consists of"),
            ("a___b", "a name consists of"),
            ("-a", "a name consists of"),
            ("a b", "a name consists of"),
            ("a\nb", "a name consists of"),
            ("app:", "its tag is not"),
            ("app:-x", "its tag is not"),
            ("app:a b", "its tag is not"),
            ("app@sha256:12", "its digest is not"),
            ("app@md5:00112233445566778899aabbccddeeff", "its digest is not"),
            ("host:99999/app", "its registry is not a host"),
            ("host:0/app", "its registry is not a host"),
            ("user@host/app", "its digest is not"),
            ("ho_st.com/app", "its registry is not a host"),
            ("https://host/app", "its registry is not a host"),
            ("[::x]:1/app", "its registry is not a host"),
        ] {
            let error = text.parse::<Reference>().expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!("a/".repeat(200).parse::<Reference>().is_err());
        assert!(format!("a:{}", "t".repeat(129)).parse::<Reference>().is_err());
        assert!("a".repeat(256).parse::<Reference>().is_err());
    }
}
