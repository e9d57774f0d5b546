//! Connections to a test server through the program.

#![allow(
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "each test file uses a part of it"
)]

mod process;

use mote_core::state::{
    Begun, Condition, Entry, Namespace, Operation, Outcome, Quota, State as _, StateError,
};
use mote_journal::nats::{Launch, Nats, NatsState, Settings};

pub use process::{Server, free_port};

impl Server {
    pub fn settings(&self) -> Settings {
        let servers = vec![format!("nats://127.0.0.1:{}", self.port)];
        Settings { servers, replicas: 1, uid: 1_000_000, ..Default::default() }
    }

    /// Connects with the library directly, without the program.
    pub async fn library(&self) -> async_nats::jetstream::Context {
        let client = async_nats::connect(format!("127.0.0.1:{}", self.port)).await.unwrap();
        async_nats::jetstream::new(client)
    }

    /// Starts a process of the program that is connected to this server.
    pub fn client(&self) -> Nats {
        connect(self.settings())
    }
}

/// Starts a process of the program with these settings.
pub fn connect(settings: Settings) -> Nats {
    let launch = Launch {
        program: env!("CARGO_BIN_EXE_mote").into(),
        settings: Box::new(move || Ok(settings.clone())),
    };
    Nats::start(launch, &tokio::runtime::Handle::current())
}

pub const NOW_MS: u64 = 1_000_000;

/// One node: its connection, and its view of the namespace `site`.
#[derive(Clone)]
pub struct Node {
    pub nats: Nats,
    pub state: NatsState,
    pub quota: Quota,
}

impl Node {
    pub fn of(server: &Server) -> Self {
        let nats = server.client();
        let quota = Quota { bytes: 1 << 20, keys: 10_000, together_bytes: None };
        Self { state: NatsState::new(nats.clone()), nats, quota }
    }

    pub async fn run_at(&self, operation: Operation, now_ms: u64) -> Result<Outcome, StateError> {
        let namespace = Namespace::Shared("site".to_owned());
        match self.state.begin(namespace, operation, self.quota, true, now_ms) {
            Begun::Done(result) => result,
            Begun::Later(result) => result.await,
        }
    }

    pub async fn run(&self, operation: Operation) -> Result<Outcome, StateError> {
        self.run_at(operation, NOW_MS).await
    }

    pub async fn put(
        &self,
        key: &str,
        value: &str,
        condition: Condition,
    ) -> Result<u64, StateError> {
        let key = key.to_owned();
        let value = value.to_owned().into();
        match self.run(Operation::Put { key, value, condition, ttl_ms: None }).await? {
            Outcome::Written { version } => Ok(version),
            other => panic!("{other:?}"),
        }
    }

    pub async fn entry(&self, key: &str) -> Option<Entry> {
        match self.run(Operation::Get { key: key.to_owned() }).await.unwrap() {
            Outcome::Entry(entry) => entry,
            other => panic!("{other:?}"),
        }
    }

    pub async fn get(&self, key: &str) -> Option<String> {
        let entry = self.entry(key).await;
        entry.map(|entry| String::from_utf8_lossy(&entry.value).into_owned())
    }

    pub async fn add(&self, key: &str) -> Result<i64, StateError> {
        match self.run(Operation::Increment { key: key.to_owned(), by: 1, ttl_ms: None }).await? {
            Outcome::Counted { value, .. } => Ok(value),
            other => panic!("{other:?}"),
        }
    }

    pub async fn delete(&self, key: &str, condition: Condition) -> Result<bool, StateError> {
        match self.run(Operation::Delete { key: key.to_owned(), condition }).await? {
            Outcome::Deleted(was) => Ok(was),
            other => panic!("{other:?}"),
        }
    }

    pub async fn keys(&self) -> Vec<String> {
        let list = Operation::List { prefix: String::new(), after: None, limit: 0, values: false };
        match self.run(list).await.unwrap() {
            Outcome::Listed { entries, .. } => entries.into_iter().map(|(key, _)| key).collect(),
            other => panic!("{other:?}"),
        }
    }
}
