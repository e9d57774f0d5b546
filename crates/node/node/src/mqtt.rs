//! The node's side of MQTT triggers and of publishing over MQTT.

use std::hash::{BuildHasher as _, RandomState};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, Result};
use mote_api::types::MqttStatus;
use mote_core::InvocationId;
use mote_core::accept::Accept;
use mote_engine::Engine;
use mote_engine::revision::logs::LogLevel;
use mote_mqtt::{
    Host, Level, Local, LocalBroker, LocalNamespaces, LocalSettings, LocalTls, Publisher, State,
    Status, Triggers,
};
use mote_process::clock;
use mote_spec::FunctionName;
use mote_tenants::namespaces::Namespaces;
use mote_tls::handover::Handover;
use tokio::runtime::Handle;

use super::unusable::busy;
use crate::admin::MqttUserTurns;
use crate::config::OwnBroker;

/// The file with the node's id, in the data folder. It exists once a function of the node has had
/// an MQTT trigger.
const ID_FILE: &str = "mqtt.id";

/// The folder of the node's own broker, in the data folder.
pub(crate) const BROKER_FOLDER: &str = "broker";
/// How long the start of the node waits until its own broker is ready.
const BROKER_PATIENCE: Duration = Duration::from_secs(5);

/// The node's MQTT parts.
pub(crate) struct Mqtt {
    /// The functions' subscriptions at MQTT brokers.
    pub(crate) triggers: Triggers<Engine>,
    /// Publishes the messages of functions.
    pub(crate) publisher: Publisher,
    /// The node's own MQTT broker, if it is on.
    pub(crate) own_broker: Option<Arc<LocalBroker>>,
    /// Lets one request about the broker's users run at a time.
    pub(crate) user_turns: MqttUserTurns,
}

/// Starts the node's own broker. `handover` is set if the broker speaks TLS. Each of `namespaces`
/// has its own part of the space in which the broker keeps messages.
pub(super) async fn start_broker(
    own: &OwnBroker,
    data: &Path,
    uid_base: u32,
    handover: Option<Handover>,
    namespaces: &Arc<Namespaces>,
    runtime: &Handle,
) -> Result<Arc<LocalBroker>> {
    for (setting, listen) in [("mqtt", Some(own.listen)), ("mqtt_tls", own.tls)] {
        if let Some(listen) = listen.filter(|listen| listen.port() != 0) {
            drop(TcpListener::bind(listen).map_err(|error| busy(setting, listen, error))?);
        }
    }
    let folder = data.join(BROKER_FOLDER);
    let uid = uid_base - 1;
    mote_process::companion::own_folder::make(&folder, uid)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let tls = own.tls.zip(handover).map(|(listen, handover)| {
        let changes = handover.changes();
        LocalTls { listen, message: Box::new(move || handover.message()), changes }
    });
    let changes = namespaces.listed();
    let of_node = namespaces.clone();
    let names = Box::new(move || of_node.all().keys().cloned().collect::<Vec<_>>());
    let mut random = [0; 20];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut random)?;
    let settings = LocalSettings {
        folder,
        listen: own.listen,
        tls,
        anonymous: own.anonymous,
        uid,
        password: base16ct::lower::encode_string(&random),
        namespaces: LocalNamespaces { names, changes },
    };
    let broker = Arc::new(LocalBroker::start(settings, runtime));
    broker.ready(BROKER_PATIENCE).await;
    Ok(broker)
}

/// The triggers of a node, and the publisher. Neither of them has a connection yet.
pub(super) fn parts(
    engine: &Engine,
    data: PathBuf,
    broker: String,
    local: Option<Arc<LocalBroker>>,
    journal: Arc<dyn Accept>,
    data_path: Handle,
) -> (Triggers<Engine>, Publisher) {
    let host = MqttHost {
        engine: engine.clone(),
        data,
        broker,
        local,
        journal,
        id: OnceLock::new(),
        random: RandomState::new(),
        counter: AtomicU64::new(0),
    };
    let host = Arc::new(host);
    let publisher = Publisher::new(host.clone(), data_path.clone());
    (Triggers::new(engine.clone(), host, data_path), publisher)
}

struct MqttHost {
    engine: Engine,
    data: PathBuf,
    broker: String,
    local: Option<Arc<LocalBroker>>,
    journal: Arc<dyn Accept>,
    id: OnceLock<String>,
    random: RandomState,
    counter: AtomicU64,
}

impl MqttHost {
    /// Reads the id of the node from its file, or makes one.
    fn load_id(&self) -> std::io::Result<String> {
        let path = self.data.join(ID_FILE);
        match std::fs::read_to_string(&path) {
            Ok(text) if text.trim().len() >= 16 => return Ok(text.trim().to_owned()),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut bytes = [0; 10];
        std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
        let text = base16ct::lower::encode_string(&bytes);
        let whole = self.data.join("mqtt.id.new");
        let mut file = std::fs::File::create(&whole)?;
        std::io::Write::write_all(&mut file, format!("{text}\n").as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&whole, &path)?;
        std::fs::File::open(&self.data)?.sync_all()?;
        Ok(text)
    }
}

impl Host for MqttHost {
    fn invocation_id(&self) -> InvocationId {
        let random = u128::from(self.random()) << 64 | u128::from(self.random());
        InvocationId::new(clock::unix_ms(), random)
    }

    fn now_ns(&self) -> u64 {
        clock::now_ns()
    }

    fn random(&self) -> u64 {
        self.random.hash_one(self.counter.fetch_add(1, Ordering::Relaxed))
    }

    fn secret(&self, name: &str) -> Option<String> {
        Some(self.engine.secrets().get(name).ok()?.to_string())
    }

    fn log(&self, function: &FunctionName, level: Level, text: &str) {
        let revision = self.engine.get(function.as_str()).map_or(0, |revision| revision.number);
        let to = match level {
            Level::Info => LogLevel::Info,
            Level::Warn => LogLevel::Warn,
            Level::Error => LogLevel::Error,
        };
        if revision > 0 {
            self.engine.log(function).platform(to, revision, 0, text);
        }
        match level {
            Level::Info => tracing::info!(%function, "{text}"),
            Level::Warn => tracing::warn!(%function, "{text}"),
            Level::Error => tracing::error!(%function, "{text}"),
        }
    }

    fn journal(&self) -> Arc<dyn Accept> {
        self.journal.clone()
    }

    fn node_id(&self) -> String {
        let made = || {
            self.load_id().unwrap_or_else(|error| {
                tracing::error!(%error, "cannot keep {ID_FILE}: MQTT sessions end with the node");
                format!("{:016x}", self.random())
            })
        };
        self.id.get_or_init(made).clone()
    }

    fn broker(&self) -> String {
        self.broker.clone()
    }

    fn local(&self) -> Option<Local> {
        self.local.as_ref()?.local()
    }
}

/// Converts a trigger's status into the form that the management API shows.
pub(super) fn described(status: Status) -> MqttStatus {
    let (state, problem) = match status.state {
        State::Connecting => ("connecting", None),
        State::Subscribed => ("subscribed", None),
        State::Failing(problem) => ("failing", Some(problem)),
    };
    MqttStatus {
        filter: status.filter,
        broker: status.broker,
        client_id: status.client_id,
        state: state.to_owned(),
        code: problem.as_ref().map(|problem| problem.code().to_owned()),
        message: problem.map(|problem| problem.to_string()),
        received: status.counts.received,
        done: status.counts.done,
        given_up: status.counts.given_up,
        running: status.counts.running,
    }
}
