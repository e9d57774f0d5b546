//! What a node can do for the clients of other platforms: the seam that `mote-node` implements.
//!
//! One trait per topic, so that each platform's API asks for what it uses and for no more. Nothing
//! here blocks; futures may take as long as an instance takes to start.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use mote_api::Problem;
use mote_api::manifest::FunctionManifest;
use mote_api::types::LogLine;
use mote_core::body::Body;
use mote_core::invocation::{Head, Reply};
use mote_core::spec::Platform;
use mote_core::{Fault, FunctionName, FunctionSpec};

/// Who may manage the node.
pub trait Access: Send + Sync + 'static {
    /// Whether these credentials of a management request are right. `token` is a bearer token or the
    /// password of basic authentication.
    fn admits(&self, from: IpAddr, token: Option<&str>) -> Admission;
}

/// The functions of a node, as they are.
pub trait Functions: Send + Sync + 'static {
    /// All functions, sorted by name.
    fn functions(&self) -> Vec<Function>;

    /// One function.
    fn function(&self, name: &str) -> Option<Function>;
}

/// Changes of functions.
pub trait Deploys: Send + Sync + 'static {
    /// Deploys a function; resolves when it is ready and takes its traffic, or says why not and
    /// leaves what was there serving. Runs to its end even when the future is dropped.
    fn deploy(&self, deploy: Deploy) -> BoxFuture<'static, Result<(), Problem>>;

    /// Removes a function; 404 where there is none.
    fn remove(&self, name: &str) -> BoxFuture<'static, Result<(), Problem>>;

    /// Sets how many instances there are at least, until the next deploy, and starts them.
    fn scale(&self, name: &str, instances: u32) -> BoxFuture<'static, Result<(), Problem>>;
}

/// Calls of functions.
pub trait Invocations: Send + Sync + 'static {
    /// Largest request body of a function in bytes; `None` where there is no such function. Called
    /// once per call, so cheaper than [`Functions::function`].
    fn body_bytes_max(&self, name: &str) -> Option<u64>;

    /// Refuses a path and query that could mean two things to two readers, as the node's own front
    /// does. `target` begins with `/` and is what is below the function.
    fn check_target(&self, target: &str) -> Result<(), Problem>;

    /// Runs a function once, to the head of its answer. Dropping the future cancels.
    fn invoke(&self, call: Call) -> BoxFuture<'static, Result<Reply, Fault>>;

    /// Runs a function once, as the invocation of this number.
    fn invoke_as(&self, id: u128, call: Call) -> BoxFuture<'static, Result<Reply, Fault>>;

    /// A number that no other call returned; unique, not secret.
    fn random(&self) -> u128;
}

/// What functions say.
pub trait Logs: Send + Sync + 'static {
    /// A function's log; `None` where there is no such function.
    fn logs(&self, name: &str, follow: bool) -> Option<Log>;
}

/// Calls that were accepted and have not ended, kept over restarts.
pub trait KeptCalls: Send + Sync + 'static {
    /// Keeps an accepted call over restarts; resolves to its number when it is on disk.
    fn keep_call(&self, record: Vec<u8>) -> BoxFuture<'static, Result<u64, Problem>>;

    /// A kept call; `None` where it is not kept any more.
    fn kept_call(&self, number: u64) -> BoxFuture<'static, Result<Option<Vec<u8>>, Problem>>;

    /// Forgets a kept call, once it has ended.
    fn forget_call(&self, number: u64) -> BoxFuture<'static, Result<(), Problem>>;

    /// Number and length in bytes of every kept call, oldest first.
    fn kept_calls(&self) -> BoxFuture<'static, Result<Vec<(u64, u64)>, Problem>>;
}

/// Secrets that functions read.
pub trait Secrets: Send + Sync + 'static {
    /// Names of all secrets, sorted.
    fn secrets(&self) -> BoxFuture<'static, Result<Vec<String>, Problem>>;

    /// Makes or replaces a secret; instances that start from then on see it. 409 where `replace` is
    /// false and there is one, 404 where it is true and there is none.
    fn put_secret(
        &self,
        name: &str,
        value: String,
        replace: bool,
    ) -> BoxFuture<'static, Result<(), Problem>>;

    /// Removes a secret; 404 where there is none.
    fn remove_secret(&self, name: &str) -> BoxFuture<'static, Result<(), Problem>>;
}

/// What a platform keeps that is no function: documents in collections.
pub trait Documents: Send + Sync + 'static {
    /// Makes all of these changes or none; resolves when they are on disk.
    fn put_documents(&self, changes: Vec<Change>) -> BoxFuture<'static, Result<(), Problem>>;

    /// Keys and documents of a collection, by key.
    fn documents(
        &self,
        collection: &'static str,
    ) -> BoxFuture<'static, Result<Collection, Problem>>;

    /// One document.
    fn document(
        &self,
        collection: &'static str,
        key: &str,
    ) -> BoxFuture<'static, Result<Option<Vec<u8>>, Problem>>;
}

/// Keys and documents of a collection.
pub type Collection = Vec<(String, Vec<u8>)>;

/// One change of what a front keeps.
#[derive(Debug, Clone)]
pub struct Change {
    /// Which of its collections; they are told apart by the platform's name in front.
    pub collection: &'static str,
    /// Which document in it.
    pub key: String,
    /// What it is from now on; `None` removes it.
    pub value: Option<Vec<u8>>,
}

/// Whether a management request may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Yes.
    Admitted,
    /// The credentials are missing or wrong.
    Refused,
    /// This address tried too many wrong ones.
    TooManyTries,
}

/// A function and how it does.
#[derive(Debug, Clone)]
pub struct Function {
    /// What it is.
    pub spec: FunctionSpec,
    /// Its live revision.
    pub revision: u64,
    /// When its first revision was deployed, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// Instances it is meant to have, or has.
    pub instances: u32,
    /// Instances that are ready.
    pub ready: u32,
    /// Ids of its instances, as its log lines have them.
    pub instance_ids: Vec<String>,
    /// Where the node's own front has it.
    pub http_url: Option<String>,
    /// Calls that ended, since the node started.
    pub calls: u64,
    /// Memory of its instances in bytes, as their limits count it.
    pub memory_bytes: u64,
    /// Why it cannot serve, if it cannot.
    pub failure: Option<String>,
}

/// The log of a function.
pub struct Log {
    /// The lines held, oldest first.
    pub held: Vec<LogLine>,
    /// Those after them, to the end of the function; none where nobody asked to follow.
    pub following: BoxStream<'static, LogLine>,
}

/// A function to deploy.
#[derive(Debug)]
pub struct Deploy {
    /// Its name.
    pub name: FunctionName,
    /// Where its code comes from.
    pub code: Code,
    /// What is said of it.
    pub manifest: Manifest,
    /// What the client attached to it: kept with the revision and shown again, never obeyed.
    pub annotations: BTreeMap<String, String>,
    /// Names of secrets it reads as files.
    pub secrets: Vec<String>,
    /// Whether a function of this name may be there already.
    pub replace: bool,
}

/// Where code comes from.
#[derive(Debug)]
pub enum Code {
    /// A zip archive as uploaded, hostile until unpacked; the function is what is below the folder
    /// `below` in it, the whole where that is empty.
    Zip {
        /// The archive.
        bytes: Bytes,
        /// A folder in it, without `/` at the ends.
        below: String,
    },
    /// Files by name; the names are plain.
    Files(Vec<(String, Vec<u8>)>),
    /// In the document of [`Manifest::Document`].
    InDocument,
    /// The code of a function that is on the node. Its spec is what the manifest changes.
    Of(FunctionName),
}

/// What is said of a function.
#[derive(Debug)]
pub enum Manifest {
    /// The keys of `mote.toml`; what is not said is inferred from the files, or kept.
    Keys(Box<FunctionManifest>),
    /// The platform's own document of one function.
    Document(Platform, Box<serde_json::Value>),
}

/// One call of a function.
#[derive(Debug)]
pub struct Call {
    /// The function, or `NAME@TAG`.
    pub function: String,
    /// Method, path below the function, query, fields.
    pub head: Head,
    /// The body.
    pub body: Body,
    /// Milliseconds it may take where that is less than the function's own limit.
    pub timeout_ms: Option<u64>,
}
