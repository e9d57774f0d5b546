//! The namespaces of a node. They separate the functions of several owners.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::client::{Client, ClientError, DEPLOY_TIMEOUT, encode};
use crate::paths;
use crate::time::Timestamp;

/// What a namespace may use of the node. A limit that is absent does not exist.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Quotas {
    /// Functions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub functions: Option<u64>,
    /// Instances, those that start and those that end included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instances: Option<u64>,
    /// The sum of the memory limits of these instances, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The sum of the processor limits of these instances, in thousandths of a processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// Bytes of the code and packages of its functions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// Bytes of keys and values of all its functions together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<u64>,
    /// Calls of its functions from outside in a second.
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
    /// Its functions.
    pub functions: u64,
    /// Their instances, those that start and those that end included.
    pub instances: u64,
    /// The sum of the memory limits of these instances, in bytes.
    pub memory_bytes: u64,
    /// The sum of the processor limits of these instances, in thousandths of a processor. An instance
    /// without a limit counts as all processors of the machine.
    pub cpu_millis: u64,
    /// The bytes of the code and packages of its functions, those of revisions to which it can be rolled
    /// back included.
    pub disk_bytes: u64,
    /// The bytes of keys and values that they keep.
    pub state_bytes: u64,
    /// What it may use.
    pub quotas: Quotas,
    /// Whether it is being deleted, so that nothing in it can be changed.
    #[serde(default)]
    pub is_being_deleted: bool,
}

/// The namespaces of a node, without the default one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NamespaceList {
    /// By name.
    pub namespaces: Vec<Namespace>,
}

/// A namespace to make.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamespaceRequest {
    /// Its name: 1 to 63 of a-z, 0-9 and -, not beginning or ending with -, and not `default`.
    pub name: String,
    /// What it may use.
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
