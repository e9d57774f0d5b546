//! The state of functions in the management API: the types, and the calls of the client.
//!
//! A namespace is written as the name of the function that owns it, or as `shared:NAME`.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Method;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::client::{Client, ClientError, built, encode};
use crate::paths;

/// The response header with the version of an entry.
pub const HEADER_VERSION: &str = "mote-version";
/// The response header with the time at which an entry expires, in milliseconds since 1970.
pub const HEADER_EXPIRES: &str = "mote-expires-unix-ms";

/// How much state a namespace holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KvNamespace {
    /// The name of the function that owns the namespace, or `shared:NAME`.
    pub namespace: String,
    /// Number of keys.
    pub keys: u64,
    /// Size of the keys and values in bytes.
    pub bytes: u64,
}

/// The namespaces of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KvNamespaces {
    /// The namespaces, sorted by name, without the empty ones.
    pub namespaces: Vec<KvNamespace>,
}

/// An entry without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KvKey {
    /// Its key.
    pub key: String,
    /// Its version, which increases with every change.
    pub version: u64,
    /// When the entry expires, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_ms: Option<u64>,
}

/// Keys of a namespace, sorted by their bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KvListing {
    /// The keys.
    pub entries: Vec<KvKey>,
    /// The value of `after` that continues the listing; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// The result of writing an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KvWritten {
    /// The entry's new version.
    pub version: u64,
    /// The number after an increment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<i64>,
}

/// An entry with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvEntry {
    /// The value.
    pub value: Bytes,
    /// The version of the entry.
    pub version: u64,
}

/// Conditions and options for writing an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KvPut {
    /// The number of milliseconds after which the entry expires; `None` if it does not expire.
    pub ttl_ms: Option<u64>,
    /// The version that the entry must have for the write to happen; 0 if the entry must not exist.
    /// `None` requires nothing.
    pub version: Option<u64>,
}

impl Client {
    /// Returns how many keys and bytes each namespace contains.
    pub async fn kv_namespaces(&self) -> Result<KvNamespaces, ClientError> {
        self.get(paths::KV).await
    }

    /// Removes a namespace with everything in it.
    pub async fn kv_clear(&self, namespace: &str) -> Result<(), ClientError> {
        self.delete(&namespace_path(namespace)).await
    }

    /// Returns the keys that begin with a prefix.
    pub async fn kv_list(
        &self,
        namespace: &str,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<KvListing, ClientError> {
        let mut path = namespace_path(namespace);
        path.push_str(&format!("?prefix={}&limit={limit}", encode(prefix)));
        if let Some(after) = after {
            path.push_str(&format!("&after={}", encode(after)));
        }
        self.get(&path).await
    }

    /// Reads an entry.
    pub async fn kv_get(&self, namespace: &str, key: &str) -> Result<KvEntry, ClientError> {
        let path = entry_path(namespace, key, "");
        let request = built(self.request(Method::GET, &path)?.body(Full::default()))?;
        let (status, headers, value) = self.call(request, self.timeout).await?;
        if !status.is_success() {
            return Err(self.refusal(status, &value));
        }
        let version = headers.get(HEADER_VERSION).and_then(|text| text.to_str().ok()?.parse().ok());
        let version = version.ok_or_else(|| self.unexpected("no version"))?;
        Ok(KvEntry { value, version })
    }

    /// Writes an entry.
    pub async fn kv_put(
        &self,
        namespace: &str,
        key: &str,
        value: Vec<u8>,
        put: KvPut,
    ) -> Result<KvWritten, ClientError> {
        let mut more = String::new();
        if let Some(ttl_ms) = put.ttl_ms {
            more.push_str(&format!("&ttl_ms={ttl_ms}"));
        }
        if let Some(version) = put.version {
            more.push_str(&format!("&version={version}"));
        }
        let request = self.request(Method::PUT, &entry_path(namespace, key, &more))?;
        let request = request.header("content-type", "application/octet-stream");
        let request = built(request.body(Full::new(Bytes::from(value))))?;
        let (status, _, body) = self.call(request, self.timeout).await?;
        self.decode(status, &body)
    }

    /// Removes an entry.
    pub async fn kv_delete(&self, namespace: &str, key: &str) -> Result<(), ClientError> {
        self.delete(&entry_path(namespace, key, "")).await
    }

    /// Adds to the number in an entry.
    pub async fn kv_increment(
        &self,
        namespace: &str,
        key: &str,
        by: i64,
    ) -> Result<KvWritten, ClientError> {
        let path = entry_path(namespace, key, &format!("&by={by}"));
        let request = built(self.request(Method::POST, &path)?.body(Full::default()))?;
        let (status, _, body) = self.call(request, self.timeout).await?;
        self.decode(status, &body)
    }
}

fn namespace_path(namespace: &str) -> String {
    format!("{}/{}", paths::KV, encode(namespace))
}

fn entry_path(namespace: &str, key: &str, more: &str) -> String {
    format!("{}/entry?key={}{more}", namespace_path(namespace), encode(key))
}
