//! MQTT triggers: the node is a client of a broker and turns the broker's messages into
//! invocations.
//!
//! Each trigger has its own connection and its own task, because a session and its acknowledgements
//! belong to one function. [`Triggers`] starts and ends the tasks as functions are deployed and
//! removed. Until the first trigger exists, no task runs. `client.rs` is the task, `session.rs`
//! decides which messages run again, `message.rs` translates, and `packet.rs` is the codec. The
//! last three know neither sockets nor time. This crate must not know how functions run, the store,
//! or other fronts.
//!
//! Further files:
//!
//! - `host.rs`, `settings.rs`: what the front needs from the node, and the settings of a trigger's
//!   task
//! - `run.rs`: handles one message until its acknowledgement
//! - `publisher.rs`: publishes messages and results of functions; the interface is
//!   `mote_core::publish`
//! - `local.rs`: the process of the node's own broker
//! - `dial.rs`, `tls.rs`, `state.rs`: connections to brokers, TLS, and the state that a trigger
//!   reports

mod client;
mod dial;
mod host;
mod local;
pub mod message;
pub mod packet;
mod publisher;
mod reasons;
mod run;
pub mod session;
mod settings;
mod state;
mod tls;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base32ct::{Base32Unpadded, Encoding as _};
use mote_core::Invoker;
use mote_spec::FunctionName;
use mote_spec::mqtt::MqttTrigger;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use client::{Client, Order};
pub use host::{Host, Level, Local};
pub use local::{LocalBroker, LocalNamespaces, LocalSettings, LocalTls};
pub use publisher::Publisher;
use settings::Settings;
pub use state::{Counts, Problem, State, Status};

pub struct Triggers<I> {
    invoker: I,
    host: Arc<dyn Host>,
    runtime: Handle,
    running: Mutex<HashMap<FunctionName, Vec<Running>>>,
}

struct Running {
    settings: Arc<Settings>,
    orders: watch::Sender<Order>,
    shared: Arc<state::Shared>,
    task: JoinHandle<()>,
}

impl Running {
    fn is_ending(&self) -> bool {
        matches!(*self.orders.borrow(), Order::End(_))
    }
}

impl<I: Invoker> Triggers<I> {
    /// A front without any triggers. Their tasks will run on `runtime`.
    pub fn new(invoker: I, host: Arc<dyn Host>, runtime: Handle) -> Self {
        Self { invoker, host, runtime, running: Mutex::default() }
    }

    /// Replaces the triggers of `function` by `triggers`: starts new ones, changes those whose
    /// settings differ, and ends the others. A trigger that keeps its filter and broker keeps its
    /// session. `topics` are the filters to which the function may publish.
    pub fn apply(&self, function: &FunctionName, triggers: &[MqttTrigger], topics: &[String]) {
        let mut all = self.running.lock();
        if triggers.is_empty() && !all.contains_key(function) {
            return;
        }
        let running = all.entry(function.clone()).or_default();
        running.retain(|one| !one.task.is_finished());
        let wanted: Vec<_> =
            triggers.iter().map(|trigger| self.settings(function, trigger, topics)).collect();
        for one in running.iter_mut() {
            let known = wanted.iter().find(|new| new.client_id == one.settings.client_id);
            match known {
                Some(same) if *same == one.settings && !one.is_ending() => {}
                Some(changed) => {
                    one.settings = changed.clone();
                    one.orders.send_replace(Order::Run(changed.clone()));
                }
                None if one.is_ending() => {}
                None => drop(one.orders.send_replace(Order::End(one.settings.clone()))),
            }
        }
        for settings in wanted {
            if running.iter().any(|one| one.settings.client_id == settings.client_id) {
                continue;
            }
            let (orders, ordered) = watch::channel(Order::Run(settings.clone()));
            let shared = Arc::new(state::Shared::default());
            let client = Client::new(
                self.invoker.clone(),
                self.host.clone(),
                settings.clone(),
                ordered,
                shared.clone(),
            );
            let task = self.runtime.spawn(client.run());
            running.push(Running { settings, orders, shared, task });
        }
        if running.is_empty() {
            all.remove(function);
        }
    }

    fn settings(
        &self,
        function: &FunctionName,
        trigger: &MqttTrigger,
        topics: &[String],
    ) -> Arc<Settings> {
        let address = trigger.broker.clone().unwrap_or_else(|| self.host.broker());
        let mut hash = Sha256::new();
        for part in [&self.host.node_id(), function.as_str(), &address, &trigger.filter] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        // Every broker accepts a client id of up to 23 letters and digits.
        let text = Base32Unpadded::encode_string(&hash.finalize());
        let client_id = format!("mote{}", &text[..19]);
        let function = function.clone();
        let connection = trigger.connection();
        let trigger = trigger.clone();
        let topics = topics.to_vec();
        Arc::new(Settings { function, trigger, address, connection, client_id, topics })
    }

    /// The state of a function's triggers, in the order of their filters.
    pub fn status(&self, function: &FunctionName) -> Vec<Status> {
        let all = self.running.lock();
        let running = all.get(function).into_iter().flatten().filter(|one| !one.is_ending());
        let mut list: Vec<_> = running
            .map(|one| {
                let (state, counts) = one.shared.get();
                Status {
                    filter: one.settings.trigger.filter.clone(),
                    broker: one.settings.address.clone(),
                    client_id: one.settings.client_id.clone(),
                    state,
                    counts,
                }
            })
            .collect();
        list.sort_by(|a, b| (&a.filter, &a.broker).cmp(&(&b.filter, &b.broker)));
        list
    }

    /// Stops all triggers. No further messages begin to run, the running ones are finished and
    /// acknowledged, and the sessions stay at the broker. Takes at most `grace`.
    pub async fn stop(&self, grace: Duration) {
        let all: Vec<_> = self.running.lock().drain().flat_map(|(_, running)| running).collect();
        for one in &all {
            one.orders.send_replace(Order::Stop);
        }
        let ended = async {
            for one in all {
                let _ = one.task.await;
            }
        };
        let _ = tokio::time::timeout(grace, ended).await;
    }
}
