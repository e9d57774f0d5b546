//! The traits through which the platforms' APIs use a node. `mote-node` implements them.
//!
//! There is one trait per topic, so that the API of each platform names only what it uses. Nothing here
//! blocks. A future may take as long as an instance takes to start.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use mote_api::Problem;
use mote_api::types::{LogLine, RegistryLogin};
use mote_core::Fault;
use mote_core::body::Body;
use mote_core::invocation::{Head, Reply};
use mote_spec::manifest::FunctionManifest;
use mote_spec::{FunctionName, FunctionSpec, Platform};
pub use mote_tenants::namespaces::{Api, Change as NamespaceChange, Namespaces, Scope, Space};
pub use mote_tenants::operators::{Act, Admission, Admitted, Credential, Role, reads_only};

/// Authentication and the record of management requests.
pub trait Access: Send + Sync + 'static {
    /// Checks the credentials of a management request. `token` is a bearer token or the password of
    /// basic authentication; `needed` is the role that the request requires. The returned scope is the
    /// scope of the token.
    fn admits(&self, from: IpAddr, token: Option<&str>, needed: Role) -> (Admission, Scope);

    /// Returns whether a token that was admitted earlier is still valid.
    fn is_valid(&self, key: Credential) -> bool;

    /// Returns the scope of a valid token of the node. Credentials that are not a token of the node do
    /// not count as a wrong try.
    fn scope_of(&self, token: &str) -> Option<Scope>;

    fn namespaces(&self) -> Arc<Namespaces>;

    /// Records a request that has changed something or was not permitted to.
    fn record(&self, act: Act) -> BoxFuture<'static, ()>;
}

/// Shows the functions of a node in their current state.
pub trait Functions: Send + Sync + 'static {
    /// All functions, sorted by name.
    fn functions(&self) -> Vec<Function>;

    fn function(&self, name: &str) -> Option<Function>;
}

pub trait Deploys: Send + Sync + 'static {
    /// Deploys a function. The future resolves when the function is ready and receives its traffic. On
    /// failure it returns the reason, and the previous revision stays live. The deploy runs to its end
    /// even if the future is dropped.
    fn deploy(&self, deploy: Deploy) -> BoxFuture<'static, Result<(), Problem>>;

    /// Removes a function. Fails with 404 if there is no such function.
    fn remove(&self, name: &str) -> BoxFuture<'static, Result<(), Problem>>;

    /// Sets the minimum number of instances, which applies until the next deploy, and starts missing
    /// instances.
    fn scale(&self, name: &str, instances: u32) -> BoxFuture<'static, Result<(), Problem>>;
}

/// The traits that are needed to manage functions. An API whose requests have a namespace may use them
/// only through a [`Part`](crate::compat::part::Part).
pub trait Managed: Access + Deploys + Functions + Logs {}

impl<N: Access + Deploys + Functions + Logs> Managed for N {}

pub trait Invocations: Send + Sync + 'static {
    /// Returns the largest request body of a function in bytes; `None` if there is no such function.
    /// This is called once per call, so it must be cheaper than [`Functions::function`].
    fn body_bytes_max(&self, name: &str) -> Option<u64>;

    /// Refuses a path and query that two readers could interpret differently. The node's own front
    /// refuses the same. `target` begins with `/` and is the part of the path below the function.
    fn check_target(&self, target: &str) -> Result<(), Problem>;

    /// Checks whether the sender at `from` may call a function. The caller asks before it reads a body
    /// or keeps anything. Removes the sender's key from the head, and adds the sender's name.
    fn admit(&self, function: &str, head: &mut Head, from: IpAddr) -> Result<(), Fault>;

    /// Runs a function once and returns the answer when its head has arrived. A function that requires
    /// a key runs only if the sender was admitted. Dropping the future cancels the call.
    fn invoke(&self, call: Call) -> BoxFuture<'static, Result<Reply, Fault>>;

    /// Runs a function once, as the invocation with number `id`.
    fn invoke_as(&self, id: u128, call: Call) -> BoxFuture<'static, Result<Reply, Fault>>;

    /// Returns a number that no other call has returned. The number is unique, but not secret.
    fn random(&self) -> u128;
}

pub trait Logs: Send + Sync + 'static {
    /// Returns the log of a function; `None` if there is no such function.
    fn logs(&self, name: &str, follow: bool) -> Option<Log>;
}

/// Calls that were accepted and have not ended. They survive restarts.
pub trait KeptCalls: Send + Sync + 'static {
    /// Keeps an accepted call. The future resolves to the call's number once the call is on disk.
    fn keep_call(&self, record: Vec<u8>) -> BoxFuture<'static, Result<u64, Problem>>;

    /// Reads a kept call; `None` if it is no longer kept.
    fn kept_call(&self, number: u64) -> BoxFuture<'static, Result<Option<Vec<u8>>, Problem>>;

    /// Notes the progress of a kept call. The note is on disk when the future resolves.
    fn note_progress(
        &self,
        number: u64,
        progress: Vec<u8>,
    ) -> BoxFuture<'static, Result<(), Problem>>;

    /// Returns the progress that was noted last for a kept call.
    fn progress(&self, number: u64) -> BoxFuture<'static, Result<Option<Vec<u8>>, Problem>>;

    /// Removes a kept call that has ended.
    fn forget_call(&self, number: u64) -> BoxFuture<'static, Result<(), Problem>>;

    /// Returns the number and the length in bytes of every kept call, oldest first.
    fn kept_calls(&self) -> BoxFuture<'static, Result<Vec<(u64, u64)>, Problem>>;
}

/// The secrets that functions read.
pub trait Secrets: Send + Sync + 'static {
    /// Names of all secrets, sorted.
    fn secrets(&self) -> BoxFuture<'static, Result<Vec<String>, Problem>>;

    /// Creates or replaces a secret. Instances that start afterwards see the new value. Fails with 409
    /// if `replace` is false and the secret exists, and with 404 if `replace` is true and it does not
    /// exist.
    fn put_secret(
        &self,
        name: &str,
        value: String,
        replace: bool,
    ) -> BoxFuture<'static, Result<(), Problem>>;

    /// Removes a secret. Fails with 404 if it does not exist.
    fn remove_secret(&self, name: &str) -> BoxFuture<'static, Result<(), Problem>>;
}

/// Stores a platform's data that is not part of a function, as documents in collections.
pub trait Documents: Send + Sync + 'static {
    /// Makes either all of these changes or none. The changes are on disk when the future resolves.
    fn put_documents(&self, changes: Vec<Change>) -> BoxFuture<'static, Result<(), Problem>>;

    /// Returns the keys and documents of a collection, sorted by key.
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
    /// The document's collection. The name of a collection begins with the name of its platform.
    pub collection: &'static str,
    pub key: String,
    /// The new content of the document; `None` removes the document.
    pub value: Option<Vec<u8>>,
}

/// A function and its current state.
#[derive(Debug, Clone)]
pub struct Function {
    pub spec: FunctionSpec,
    /// The live revision.
    pub revision: u64,
    /// The time at which the first revision was deployed, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// The number of instances that the function has, or should have.
    pub instances: u32,
    pub ready: u32,
    /// The ids of the instances, as they appear in log lines.
    pub instance_ids: Vec<String>,
    /// The function's address on the node's own HTTP front.
    pub http_url: Option<String>,
    /// The number of calls that have ended since the node started.
    pub calls: u64,
    /// The memory of the function's instances in bytes, counted as their limits count it.
    pub memory_bytes: u64,
    /// The reason why the function cannot serve, if it cannot.
    pub failure: Option<String>,
}

pub struct Log {
    /// The lines that are already stored, oldest first.
    pub held: Vec<LogLine>,
    /// The lines after the stored ones, until the function is removed. Empty unless the caller asked to
    /// follow.
    pub following: BoxStream<'static, LogLine>,
}

#[derive(Debug)]
pub struct Deploy {
    pub name: FunctionName,
    pub code: Code,
    pub manifest: Manifest,
    /// The client's annotations. They are kept with the revision and shown again, but have no effect.
    pub annotations: BTreeMap<String, String>,
    /// The names of the secrets that the function reads as files.
    pub secrets: Vec<String>,
    /// Whether the function's description may name secrets. Only a caller with the node's token may
    /// read secrets, and code that a caller deploys can read every secret that its description names.
    pub may_name_secrets: bool,
    /// Whether the deploy may replace an existing function of this name.
    pub replace: bool,
    /// The login at the registry of an image. The node uses it for this deploy and does not keep it.
    pub registry_login: Option<RegistryLogin>,
}

#[derive(Debug)]
pub enum Code {
    /// An uploaded zip archive, which is not trusted until it is unpacked. The function is in the
    /// folder `below` of the archive. If `below` is empty, the function is the whole archive.
    Zip {
        /// The archive.
        bytes: Bytes,
        /// A folder in the archive, without `/` at either end.
        below: String,
    },
    /// Files by name. The names contain no folders.
    Files(Vec<(String, Vec<u8>)>),
    /// The code is in the document of [`Manifest::Document`].
    InDocument,
    /// The code of a function that is already on the node. The manifest's keys change that function's
    /// spec.
    Of(FunctionName),
    /// A container image, which the node pulls. The manifest has its name.
    Image,
}

/// The description of a function.
#[derive(Debug)]
pub enum Manifest {
    /// The keys of `mote.toml`. Missing keys are inferred from the files, or keep their values.
    Keys(Box<FunctionManifest>),
    /// The document in which the platform describes one function.
    Document(Platform, Box<serde_json::Value>),
}

#[derive(Debug)]
pub struct Call {
    /// The name of the function, or `NAME@TAG`.
    pub function: String,
    /// Method, path below the function, query and header fields.
    pub head: Head,
    pub body: Body,
    /// A time limit in milliseconds that is shorter than the function's own limit.
    pub timeout_ms: Option<u64>,
}
