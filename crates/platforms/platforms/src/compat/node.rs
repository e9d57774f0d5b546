//! The operations that a node offers to clients of other platforms: the traits that `mote-node`
//! implements.
//!
//! There is one trait per topic, so that each platform's API names only what it uses. Nothing here
//! blocks; futures may take as long as an instance takes to start.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use mote_api::Problem;
use mote_api::types::LogLine;
use mote_core::Fault;
use mote_core::body::Body;
use mote_core::invocation::{Head, Reply};
use mote_spec::manifest::FunctionManifest;
use mote_spec::{FunctionName, FunctionSpec, Platform};
pub use mote_tenants::namespaces::{Api, Change as NamespaceChange, Namespaces, Scope, Space};
pub use mote_tenants::operators::{Act, Admission, Admitted, Role, TokenKey, reads_only};

/// Authentication for the management of the node.
pub trait Access: Send + Sync + 'static {
    /// Checks the credentials of a management request. `token` is a bearer token or the password of
    /// basic authentication; `needed` is the role that the request needs. The scope is that of the
    /// token.
    fn admits(&self, from: IpAddr, token: Option<&str>, needed: Role) -> (Admission, Scope);

    /// Whether a token that was admitted is still valid.
    fn is_valid(&self, key: TokenKey) -> bool;

    /// The scope of a valid token of the node; credentials that are none are not counted as wrong.
    fn scope_of(&self, token: &str) -> Option<Scope>;

    fn namespaces(&self) -> Arc<Namespaces>;

    /// Records a request that has changed something, or was not permitted to.
    fn record(&self, act: Act) -> BoxFuture<'static, ()>;
}

/// The functions of a node in their current state.
pub trait Functions: Send + Sync + 'static {
    /// All functions, sorted by name.
    fn functions(&self) -> Vec<Function>;

    fn function(&self, name: &str) -> Option<Function>;
}

pub trait Deploys: Send + Sync + 'static {
    /// Deploys a function; resolves when it is ready and receives its traffic. On failure it
    /// returns the reason, and the previous revision stays live. The deploy runs to its end even
    /// when the future is dropped.
    fn deploy(&self, deploy: Deploy) -> BoxFuture<'static, Result<(), Problem>>;

    /// Removes a function; 404 if there is none.
    fn remove(&self, name: &str) -> BoxFuture<'static, Result<(), Problem>>;

    /// Sets the minimum number of instances until the next deploy, and starts them.
    fn scale(&self, name: &str, instances: u32) -> BoxFuture<'static, Result<(), Problem>>;
}

/// The traits of a node with which functions are managed. APIs whose requests have a namespace use
/// them through a [`Part`](crate::compat::part::Part) only.
pub trait Managed: Access + Deploys + Functions + Logs {}

impl<N: Access + Deploys + Functions + Logs> Managed for N {}

pub trait Invocations: Send + Sync + 'static {
    /// Largest request body of a function in bytes; `None` if there is no such function. Called
    /// once per call, so it must be cheaper than [`Functions::function`].
    fn body_bytes_max(&self, name: &str) -> Option<u64>;

    /// Refuses a path and query that two readers could interpret differently, as the node's own
    /// front does. `target` begins with `/` and is the part below the function.
    fn check_target(&self, target: &str) -> Result<(), Problem>;

    /// Whether the sender of a request at `from` may call a function. Asked before a body is read or
    /// anything is kept. Removes the caller's key from the head, and adds the caller's name.
    fn admit(&self, function: &str, head: &mut Head, from: IpAddr) -> Result<(), Fault>;

    /// Runs a function once and returns the head of its answer. A function that requires a key runs
    /// only if its caller was admitted. Dropping the future cancels the
    /// call.
    fn invoke(&self, call: Call) -> BoxFuture<'static, Result<Reply, Fault>>;

    /// Runs a function once, as the invocation with this number.
    fn invoke_as(&self, id: u128, call: Call) -> BoxFuture<'static, Result<Reply, Fault>>;

    /// A number that no other call returned; unique, not secret.
    fn random(&self) -> u128;
}

pub trait Logs: Send + Sync + 'static {
    /// A function's log; `None` if there is no such function.
    fn logs(&self, name: &str, follow: bool) -> Option<Log>;
}

/// Calls that were accepted and have not ended, kept over restarts.
pub trait KeptCalls: Send + Sync + 'static {
    /// Keeps an accepted call over restarts; resolves to its number when it is on disk.
    fn keep_call(&self, record: Vec<u8>) -> BoxFuture<'static, Result<u64, Problem>>;

    /// A kept call; `None` if it is not kept any more.
    fn kept_call(&self, number: u64) -> BoxFuture<'static, Result<Option<Vec<u8>>, Problem>>;

    /// Notes how far a kept call has got; it is on disk when this resolves.
    fn note_progress(
        &self,
        number: u64,
        progress: Vec<u8>,
    ) -> BoxFuture<'static, Result<(), Problem>>;

    /// What was noted last of a kept call.
    fn progress(&self, number: u64) -> BoxFuture<'static, Result<Option<Vec<u8>>, Problem>>;

    /// Forgets a kept call, once it has ended.
    fn forget_call(&self, number: u64) -> BoxFuture<'static, Result<(), Problem>>;

    /// Number and length in bytes of every kept call, oldest first.
    fn kept_calls(&self) -> BoxFuture<'static, Result<Vec<(u64, u64)>, Problem>>;
}

/// Secrets that functions read.
pub trait Secrets: Send + Sync + 'static {
    /// Names of all secrets, sorted.
    fn secrets(&self) -> BoxFuture<'static, Result<Vec<String>, Problem>>;

    /// Creates or replaces a secret; instances that start afterwards see it. 409 if `replace` is
    /// false and the secret exists, 404 if `replace` is true and it does not.
    fn put_secret(
        &self,
        name: &str,
        value: String,
        replace: bool,
    ) -> BoxFuture<'static, Result<(), Problem>>;

    /// Removes a secret; 404 if there is none.
    fn remove_secret(&self, name: &str) -> BoxFuture<'static, Result<(), Problem>>;
}

/// The data of a platform other than functions: documents in collections.
pub trait Documents: Send + Sync + 'static {
    /// Makes all of these changes or none of them; resolves when they are on disk.
    fn put_documents(&self, changes: Vec<Change>) -> BoxFuture<'static, Result<(), Problem>>;

    /// Keys and documents of a collection, by key.
    fn documents(
        &self,
        collection: &'static str,
    ) -> BoxFuture<'static, Result<Collection, Problem>>;

    fn document(
        &self,
        collection: &'static str,
        key: &str,
    ) -> BoxFuture<'static, Result<Option<Vec<u8>>, Problem>>;
}

/// Keys and documents of a collection.
pub type Collection = Vec<(String, Vec<u8>)>;

#[derive(Debug, Clone)]
pub struct Change {
    /// Its collection; names of collections begin with the platform's name.
    pub collection: &'static str,
    pub key: String,
    /// Its new content; `None` removes it.
    pub value: Option<Vec<u8>>,
}

/// A function and its current state.
#[derive(Debug, Clone)]
pub struct Function {
    pub spec: FunctionSpec,
    /// Its live revision.
    pub revision: u64,
    /// When its first revision was deployed, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// The instances that it has, or should have.
    pub instances: u32,
    pub ready: u32,
    /// Ids of its instances, as its log lines have them.
    pub instance_ids: Vec<String>,
    /// The function's address on the node's own HTTP front.
    pub http_url: Option<String>,
    /// Calls that have ended since the node started.
    pub calls: u64,
    /// Memory of its instances in bytes, as their limits count it.
    pub memory_bytes: u64,
    /// The reason why it cannot serve, if it cannot.
    pub failure: Option<String>,
}

pub struct Log {
    /// The stored lines, oldest first.
    pub held: Vec<LogLine>,
    /// The lines after them, to the end of the function; empty unless the caller asked to follow.
    pub following: BoxStream<'static, LogLine>,
}

#[derive(Debug)]
pub struct Deploy {
    pub name: FunctionName,
    pub code: Code,
    pub manifest: Manifest,
    /// Annotations of the client: kept with the revision and shown again, without any effect.
    pub annotations: BTreeMap<String, String>,
    /// Names of secrets it reads as files.
    pub secrets: Vec<String>,
    /// Whether its description may name secrets. Only a caller with the node's token may read
    /// them, by way of the code that it deploys.
    pub may_name_secrets: bool,
    /// Whether the deploy may replace a function of this name.
    pub replace: bool,
}

#[derive(Debug)]
pub enum Code {
    /// An uploaded zip archive, not trusted until it is unpacked. The function is the folder
    /// `below` in it, or the whole archive if that is empty.
    Zip {
        /// The archive.
        bytes: Bytes,
        /// A folder in it, without `/` at the ends.
        below: String,
    },
    /// Files by name; the names are plain.
    Files(Vec<(String, Vec<u8>)>),
    /// The code is in the document of [`Manifest::Document`].
    InDocument,
    /// The code of a function that is on the node, with its spec as the manifest changes it.
    Of(FunctionName),
}

/// The description of a function.
#[derive(Debug)]
pub enum Manifest {
    /// The keys of `mote.toml`; missing keys are inferred from the files, or keep their values.
    Keys(Box<FunctionManifest>),
    /// The platform's own document of one function.
    Document(Platform, Box<serde_json::Value>),
}

#[derive(Debug)]
pub struct Call {
    /// The function, or `NAME@TAG`.
    pub function: String,
    /// Method, path below the function, query, fields.
    pub head: Head,
    pub body: Body,
    /// Time limit in milliseconds, if it is shorter than the function's own limit.
    pub timeout_ms: Option<u64>,
}
