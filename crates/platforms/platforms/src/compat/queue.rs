//! Accepts calls that a platform answers with 202. The node's journal keeps and runs them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mote_api::Problem;
use mote_core::Fault;
use mote_core::accept::{Accept, AcceptError, Callback, Deferred};
use mote_core::body::{Body, BodyError};
use mote_core::invocation::{Head, Trigger, headers};
use mote_core::shares::{Share, Shares, address_owner};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::compat::journal::{self, Journal, Kept, Runner};
use crate::compat::node::KeptCalls;
use crate::compat::outgoing::Outgoing;

/// The most bytes of accepted bodies that may be in memory while they are received. One address may use
/// half of them. Beyond the limit, clients receive a 503.
const RECEIVING_BYTES_MAX: usize = 64 << 20;
/// The time limit for receiving one body.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a call is tried if the function fails. Clients of these platforms do not expect their
/// calls to be repeated. A manifest may ask for more attempts.
const ATTEMPTS: u32 = 1;

/// A call to run later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Later {
    pub function: String,
    pub method: String,
    /// Path and query below the function.
    pub target: String,
    /// The address to which the result is sent: `http://…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callback_fields: Vec<(String, String)>,
    /// The header block of the call (see [`Head`]).
    #[serde(skip)]
    pub fields: Bytes,
    #[serde(skip)]
    pub body: Bytes,
}

impl Later {
    /// A POST to the function's root whose result is discarded.
    pub fn plain(function: &str, fields: Bytes, body: Bytes) -> Self {
        Self {
            function: function.to_owned(),
            method: "POST".to_owned(),
            target: "/".to_owned(),
            callback: None,
            callback_fields: Vec::new(),
            fields,
            body,
        }
    }

    /// Decodes the record of a call that an earlier version of the node wrote; `None` if the record is
    /// not a call.
    pub fn decode(record: &Bytes) -> Option<Self> {
        let [description, fields, body] = journal::parts(record)?;
        let later: Later = serde_json::from_slice(&description).ok()?;
        Some(Self { fields, body, ..later })
    }

    fn head(&self) -> Head {
        let (path, query) = self.target.split_once('?').unwrap_or((&self.target, ""));
        let mut head = Head::builder(self.method.as_bytes(), path.as_bytes(), query.as_bytes());
        for (name, value) in headers(&self.fields) {
            head.header(name, value);
        }
        head.finish()
    }

    /// Converts the call into an invocation for the node's journal.
    pub fn into_deferred(self) -> Deferred {
        let head = self.head();
        let fields = self.callback_fields;
        Deferred {
            callback: self.callback.map(|url| Callback { url, fields }),
            attempts_default: ATTEMPTS,
            ..Deferred::new(self.function, Trigger::Http, head, self.body)
        }
    }
}

/// The accepted calls of a node. A clone is cheap.
#[derive(Clone)]
pub struct Queue {
    accept: Arc<dyn Accept>,
    /// The destinations that the node's own requests may reach.
    pub outgoing: Outgoing,
    /// The records of activations, which OpenWhisk's API runs itself.
    pub journal: Journal,
    receiving: Shares<IpAddr>,
}

/// A record from before the restart, which is run outside the queue, and the content of the record.
pub type Resumed = (Kept, Bytes);

/// A body in memory. Its bytes count towards the limit until this value is dropped.
pub struct Received {
    pub bytes: Bytes,
    _room: Share<IpAddr>,
}

impl Queue {
    /// Makes the queue of a node. `accept` is the node's journal.
    pub fn new<N: KeptCalls>(node: Arc<N>, accept: Arc<dyn Accept>, outgoing: Outgoing) -> Self {
        let receiving = Shares::new(RECEIVING_BYTES_MAX, RECEIVING_BYTES_MAX / 2);
        Self { accept, outgoing, journal: Journal::new(node), receiving }
    }

    /// Returns the activations that an earlier run of the node left. The caller must call this before
    /// anything is accepted, because later activations would otherwise be returned, too.
    pub async fn resumed(&self) -> mpsc::UnboundedReceiver<Resumed> {
        let (sender, resumed) = mpsc::unbounded_channel();
        let left = match self.journal.left().await {
            Ok(left) => left,
            Err(problem) => {
                let problem = problem.detail;
                tracing::error!(problem, "cannot read activations from before the restart");
                return resumed;
            }
        };
        if !left.is_empty() {
            tracing::info!(activations = left.len(), "activations from before the restart run");
        }
        for kept in left {
            let number = kept.number();
            match kept.read().await {
                Ok(Some(record)) if Runner::of(&record) == Some(Runner::Activation) => {
                    let _ = sender.send((kept, record));
                }
                Ok(Some(_)) => tracing::error!(number, "cannot parse an activation; it is kept"),
                Ok(None) => kept.forget().await,
                Err(problem) => {
                    let problem = problem.detail;
                    tracing::error!(number, problem, "cannot read an activation; it is kept");
                }
            }
        }
        resumed
    }

    /// Receives the body of a call from `peer`, up to `limit_bytes`. All such bodies share one memory
    /// limit.
    pub async fn receive(
        &self,
        body: Body,
        limit_bytes: u64,
        peer: IpAddr,
    ) -> Result<Received, Fault> {
        let wanted = body.length().unwrap_or(limit_bytes);
        if wanted > limit_bytes {
            return Err(Fault::BodyTooLarge { limit_bytes });
        }
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let room = self.receiving.take(address_owner(peer), wanted);
        let room = room.map_err(|_| Fault::NodeFull)?;
        let bytes = tokio::time::timeout(RECEIVE_TIMEOUT, body.collect(limit_bytes)).await;
        match bytes {
            Ok(Ok(bytes)) => Ok(Received { bytes, _room: room }),
            Ok(Err(BodyError::TooLarge(limit_bytes))) => Err(Fault::BodyTooLarge { limit_bytes }),
            Ok(Err(_)) | Err(_) => Err(Fault::BodyIncomplete),
        }
    }

    /// Accepts a call, which is on disk when this returns `Ok`. Fails with 429 if too many calls wait.
    pub async fn accept(&self, later: Later) -> Result<(), Problem> {
        let accepted = self.accept.accept(later.into_deferred()).await;
        accepted.map(|_| ()).map_err(|error| problem_of(&error))
    }
}

fn problem_of(error: &AcceptError) -> Problem {
    let (status, code) = match error {
        AcceptError::Full(_) => (429, "M0504"),
        AcceptError::DiskFull(_) => (507, "M0703"),
        AcceptError::Disk(_) => (507, "M0704"),
        AcceptError::Away(_) => (503, "M0706"),
        AcceptError::TakenOver(_) => (503, "M0707"),
        AcceptError::Stopping => (503, "M0506"),
        AcceptError::Invalid(_) => (400, "M1404"),
    };
    Problem::new(status, code, error.to_string())
}

#[cfg(feature = "fuzzing")]
pub(crate) fn read_again(record: Vec<u8>) -> Option<Vec<u8>> {
    let later = Later::decode(&record.into())?;
    let method = later.method.clone();
    let fields = later.fields.clone();
    let body = later.body.clone();
    let record = journal::record(&later, &fields, &body);
    assert_eq!(later.into_deferred().head.method(), method.as_bytes());
    Some(record)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::compat::fake::{Fake, Nothing};

    #[test]
    fn records_of_earlier_versions_are_read() {
        let later = Later {
            function: "f".to_owned(),
            method: "PUT".to_owned(),
            target: "/a?b=c".to_owned(),
            callback: Some("http://127.0.0.1/x".to_owned()),
            callback_fields: vec![("x-call-id".to_owned(), "1".to_owned())],
            fields: Bytes::from_static(b"x-a\n\xff\n"),
            body: Bytes::from_static(b"\0body"),
        };
        let record = Bytes::from(journal::record(&later, &later.fields, &later.body));
        assert_eq!(Later::decode(&record).as_ref(), Some(&later));
        for cut in [0, 3, 5, 20] {
            assert_eq!(Later::decode(&record.slice(..cut)), None, "{cut}");
        }
        let deferred = later.into_deferred();
        assert_eq!(deferred.head.query(), b"b=c");
        assert_eq!(deferred.callback.expect("it has one").url, "http://127.0.0.1/x");
        assert_eq!(deferred.attempts_default, 1);
    }

    /// A body that never delivers anything.
    struct Silent;

    impl mote_core::body::BodySource for Silent {
        fn poll_chunk(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<Bytes, BodyError>>> {
            std::task::Poll::Pending
        }
    }

    #[tokio::test]
    async fn bodies_of_calls_for_later_take_bounded_memory() {
        const BODY: u64 = 8 << 20;
        let node = Arc::new(Fake::new(|_| async { Err(Fault::NoSuchFunction) }.boxed()));
        let queue = Queue::new(node, Arc::new(Nothing), Outgoing::default());
        let begin = |peer: &str| {
            let body = Body::Stream { source: Box::new(Silent), length: Some(BODY) };
            let queue = queue.clone();
            let peer = peer.parse().expect("an address");
            let mut call = async move { queue.receive(body, BODY, peer).await.map(|_| ()) }.boxed();
            let ended = (&mut call).now_or_never();
            (call, ended)
        };
        let share = RECEIVING_BYTES_MAX / 2 / BODY as usize;
        let mut held = Vec::new();
        for peer in ["192.0.2.1", "192.0.2.2"] {
            for n in 0..share {
                let (call, ended) = begin(peer);
                assert!(ended.is_none(), "{peer}: body {n} of {share}: {ended:?}");
                held.push(call);
            }
            assert!(matches!(begin(peer).1, Some(Err(Fault::NodeFull))), "{peer} has its share");
        }
        // All memory is in use. A share becomes available again when it is released.
        assert!(matches!(begin("192.0.2.3").1, Some(Err(Fault::NodeFull))));
        held.truncate(share);
        assert!(begin("192.0.2.3").1.is_none());
        assert_eq!(queue.receiving.taken(), RECEIVING_BYTES_MAX / 2);
    }
}
