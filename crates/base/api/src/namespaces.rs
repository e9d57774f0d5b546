//! The namespaces of a node. They separate the functions of several owners.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::client::{Client, ClientError, DEPLOY_TIMEOUT, encode};
use crate::paths;
use crate::time::Timestamp;

/// What a namespace may use of the node. An absent field means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Quotas {
    /// Number of functions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub functions: Option<u64>,
    /// Number of instances, including those that are starting or ending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instances: Option<u64>,
    /// The sum of the memory limits of these instances, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The sum of the processor limits of these instances, in thousandths of a processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// Size of the code and packages of its functions, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// Size of the keys and values of all its functions together, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<u64>,
    /// Calls per second from outside to its functions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_per_s: Option<u32>,
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Namespace {
    /// Its name.
    pub name: String,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Number of functions.
    pub functions: u64,
    /// Number of their instances, including those that are starting or ending.
    pub instances: u64,
    /// The sum of the memory limits of these instances, in bytes.
    pub memory_bytes: u64,
    /// The sum of the processor limits of these instances, in thousandths of a processor. An instance
    /// without a limit counts as all processors of the machine.
    pub cpu_millis: u64,
    /// Size of the code and packages of its functions in bytes, including the revisions to which
    /// the functions can be rolled back.
    pub disk_bytes: u64,
    /// Size of the keys and values that its functions keep, in bytes.
    pub state_bytes: u64,
    /// The limits of the namespace.
    pub quotas: Quotas,
    /// Whether the namespace is being deleted, so that nothing in it can be changed.
    #[serde(default)]
    pub is_being_deleted: bool,
}

/// The namespaces of a node, without the default one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NamespaceList {
    /// The namespaces, sorted by name.
    pub namespaces: Vec<Namespace>,
}

/// A namespace to make.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamespaceRequest {
    /// The name: 1 to 63 characters from a-z, 0-9 and -, not beginning or ending with -, and not
    /// `default`.
    pub name: String,
    /// The limits of the namespace.
    #[serde(default)]
    pub quotas: Quotas,
}

impl Client {
    /// Returns all namespaces that the sender may see.
    pub async fn namespaces(&self) -> Result<NamespaceList, ClientError> {
        self.get(paths::NAMESPACES).await
    }

    /// Returns one namespace.
    pub async fn namespace(&self, name: &str) -> Result<Namespace, ClientError> {
        self.get(&format!("{}/{}", paths::NAMESPACES, encode(name))).await
    }

    /// Creates a namespace.
    pub async fn create_namespace(
        &self,
        wish: &NamespaceRequest,
    ) -> Result<Namespace, ClientError> {
        self.send_json(hyper::Method::POST, paths::NAMESPACES, wish, self.timeout).await
    }

    /// Replaces the limits of a namespace.
    pub async fn update_namespace(
        &self,
        name: &str,
        quotas: &Quotas,
    ) -> Result<Namespace, ClientError> {
        let path = format!("{}/{}", paths::NAMESPACES, encode(name));
        self.send_json(hyper::Method::PUT, &path, quotas, self.timeout).await
    }

    /// Deletes a namespace. With `force`, everything in the namespace is deleted too; without it, the
    /// namespace must be empty.
    pub async fn delete_namespace(&self, name: &str, force: bool) -> Result<(), ClientError> {
        let path = format!("{}/{}?force={force}", paths::NAMESPACES, encode(name));
        self.clone().with_timeout(self.timeout.max(DEPLOY_TIMEOUT)).delete(&path).await
    }
}
