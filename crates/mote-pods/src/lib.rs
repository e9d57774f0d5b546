//! Instances of functions that are pods of their own, for a node in a Kubernetes cluster.
//!
//! The cluster keeps pods that wait, with an interpreter that has started but has no function. The
//! node is told where they are ([`Pods::put`]). [`PodBackend`] stands in front of the backend that
//! makes sandboxes: an instance that is to be a pod is started by claiming a waiting one
//! (`claim.rs`), and its worker is spoken to over the same connection (`instance.rs`). For the
//! engine it is an instance like others. `records.rs` has the records of that connection, which the
//! program `mote-pod` at its other end uses too; `waiting.rs` decides which pod is claimed.
//!
//! It must not know Kubernetes, revisions, queues or what a function's frames say.

#![forbid(unsafe_code)]

mod claim;
mod files;
mod instance;
pub mod records;
mod view;
mod waiting;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mote_core::backend::{Backend, BoxFuture, InstanceRequest, Prewarmed, StartError, Started};
use mote_core::spec::PodKind;
use mote_raw_keys::KeyPair;
use parking_lot::Mutex;
use tokio::sync::watch;

pub use claim::prepare;
use waiting::Waiting;

/// How long a start waits for a pod. A pod that its cluster makes anew takes a second or two if the
/// machine has the image.
const WAIT: Duration = Duration::from_secs(30);
/// Shortest secret from which a key is derived.
const SECRET_BYTES_MIN: usize = 32;

/// Why the key of the cells cannot be used for pods.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read the key of the cells: {0}")]
    Unreadable(#[from] std::io::Error),
    /// The secret is too short.
    #[error("the key of the cells has {0} bytes; it needs {SECRET_BYTES_MIN}")]
    Length(usize),
    /// TLS does not accept it.
    #[error("the key of the cells cannot be used: {0}")]
    Unusable(#[from] mote_raw_keys::Error),
}

/// The key with which cells claim pods, from the secret that the cells share. It differs from the
/// key that cells use among each other, so nothing that a pod sees is of use there.
pub fn claim_key(secret: &[u8]) -> Result<KeyPair, KeyError> {
    if secret.len() < SECRET_BYTES_MIN {
        return Err(KeyError::Length(secret.len()));
    }
    Ok(KeyPair::derive("mote claims of pods, Ed25519, 1", secret)?)
}

/// The key of one pod, from the secret that only this pod has.
pub fn pod_key(secret: &[u8]) -> Result<KeyPair, KeyError> {
    if secret.len() < SECRET_BYTES_MIN {
        return Err(KeyError::Length(secret.len()));
    }
    Ok(KeyPair::derive("mote pod, Ed25519, 1", secret)?)
}

/// The pods that wait for this node and the others of its cluster. Cheap to clone.
#[derive(Clone)]
pub struct Pods(Arc<Shared>);

struct Shared {
    key: KeyPair,
    waiting: Mutex<Waiting>,
    /// Counts the lists that arrived; 0 as long as there was none.
    lists: watch::Sender<u64>,
    claimed: AtomicU64,
    in_vain: AtomicU64,
    running: AtomicU64,
    /// The names of the pods that are being claimed or are instances.
    held: Mutex<BTreeSet<String>>,
}

/// A pod that this node has: it is in [`Shared::held`] until this is dropped.
struct Held {
    shared: Arc<Shared>,
    name: String,
}

impl Held {
    fn new(shared: &Arc<Shared>, name: &str) -> Self {
        shared.held.lock().insert(name.to_owned());
        Self { shared: shared.clone(), name: name.to_owned() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.held.lock().remove(&self.name);
    }
}

impl Pods {
    /// Reads the key that the cells share; white space at both ends does not count.
    pub fn read(key: &Path) -> Result<Self, KeyError> {
        Self::new(std::fs::read(key)?.trim_ascii())
    }

    /// The pods of the cluster whose cells share this secret. None wait yet.
    pub fn new(secret: &[u8]) -> Result<Self, KeyError> {
        Ok(Self(Arc::new(Shared {
            key: claim_key(secret)?,
            waiting: Mutex::new(Waiting::new()),
            lists: watch::Sender::new(0),
            claimed: AtomicU64::new(0),
            in_vain: AtomicU64::new(0),
            running: AtomicU64::new(0),
            held: Mutex::default(),
        })))
    }

    /// Whether the node was told of pods, even if none waits.
    pub fn are_known(&self) -> bool {
        *self.0.lists.borrow() > 0
    }

    /// Claims a waiting pod for an instance.
    async fn start(self, request: InstanceRequest, kind: PodKind) -> Result<Started, StartError> {
        let mut lists = self.0.lists.subscribe();
        let until = Instant::now() + WAIT;
        let mut last = None;
        loop {
            let seen = *lists.borrow_and_update();
            while let Some(pod) = {
                let mut waiting = self.0.waiting.lock();
                waiting.take(&kind, Instant::now())
            } {
                match claim::claim(&self, &pod, &request).await {
                    Ok(started) => {
                        self.0.claimed.fetch_add(1, Ordering::Relaxed);
                        return Ok(started);
                    }
                    Err(claim::Failure::Refused(text)) => {
                        return Err(StartError::Unavailable(format!("{}: {text}", pod.name)));
                    }
                    Err(failure) => {
                        self.0.in_vain.fetch_add(1, Ordering::Relaxed);
                        self.0.waiting.lock().failed(pod.key, Instant::now());
                        tracing::debug!(pod = pod.name, "not claimed: {failure}");
                        last = Some(format!("{}: {failure}", pod.name));
                    }
                }
            }
            let now = Instant::now();
            let again = self.0.waiting.lock().next(&kind).map_or(until, |next| next.min(until));
            let newer = lists.wait_for(|lists| *lists != seen);
            let rest = again.saturating_duration_since(now);
            if tokio::time::timeout(rest, newer).await.is_err() && Instant::now() >= until {
                return Err(StartError::Unavailable(none_waits(&kind, last)));
            }
        }
    }
}

fn none_waits(kind: &PodKind, last: Option<String>) -> String {
    let seconds = WAIT.as_secs();
    let last =
        last.map(|last| format!("; the last one that was tried, {last}")).unwrap_or_default();
    let PodKind { shape, function } = kind;
    let of = if function.is_empty() {
        String::new()
    } else {
        format!(" with the network of {function}")
    };
    format!(
        "no pod {shape}{of} was waiting within {seconds} s{last}; see: kubectl get pods -n mote-functions"
    )
}

/// Starts instances that are pods by claiming one, and all others with the backend behind it.
pub struct PodBackend {
    pods: Pods,
    others: Arc<dyn Backend>,
}

impl PodBackend {
    /// Stands in front of `others`.
    pub fn new(pods: Pods, others: Arc<dyn Backend>) -> Self {
        Self { pods, others }
    }
}

impl Backend for PodBackend {
    fn start(&self, mut request: InstanceRequest) -> BoxFuture<Result<Started, StartError>> {
        match request.pod.take() {
            None => self.others.start(request),
            Some(kind) => Box::pin(self.pods.clone().start(request, kind)),
        }
    }

    fn keep_prewarmed(&self, wanted: Vec<Prewarmed>) {
        self.others.keep_prewarmed(wanted);
    }
}
