//! The parts between callers, operators and the engine: the journals, the namespaces, the broker
//! and the guard.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use mote_access::Guard;
use mote_core::RouteInfo;
use mote_journal::Deferring;
use mote_outgoing::Outgoing;
use mote_tenants::operators::{Audit, Operators};
use mote_tls::handover::Handover;
use tokio::runtime::Handle;

use super::data_path::DataPath;
use super::listen::Listening;
use super::open::Opened;
use crate::accepted::Accepted;
use crate::config::Config;
use crate::deployed::Deployed;
use crate::keys::Callers;
use crate::mqtt::Mqtt;
use crate::operators::Tenants;
use crate::ports::Ports;
use crate::services::Runs;
use crate::unusable::unusable;
use crate::{accepted, keys, mqtt, namespaces, schedules};

/// The parts that manage the node, and those that admit and keep its calls.
pub(super) struct Management {
    pub(super) tenants: Tenants,
    pub(super) accepted: Accepted,
    pub(super) mqtt: Mqtt,
    pub(super) callers: Callers,
    pub(super) deployed: Deployed,
    pub(super) outgoing: Outgoing,
}

/// Makes the parts. None of them runs an invocation yet.
pub(super) async fn prepare(
    config: &Config,
    opened: &Opened,
    data_path: &DataPath,
    listening: &Listening,
    management: &Handle,
) -> Result<Management> {
    let store = &opened.store;
    let engine = &data_path.engine;
    let audit = Arc::new(Audit::new(&config.data));
    let operators = Arc::new(operators(config)?);
    let outgoing = Outgoing {
        reach: config.outgoing,
        own_ports: listening.tcp_ports().collect(),
        open_ports: Default::default(),
    };
    let nats = data_path.nats.as_ref();
    let journals = accepted::journals(config, store, outgoing.clone(), nats, management);
    let schedules = {
        let shared = config.schedule_journal.clone();
        let store = store.clone();
        let journals = journals.clone();
        let runtime = management.clone();
        let open = move || schedules::open(store, &journals, shared, runtime);
        let opening = management.spawn_blocking(open).await;
        opening.context("cannot read the store")??
    };
    let namespaces = namespaces::open(store, config).await?;
    let own_broker = match &config.mqtt {
        Some(own) => {
            let clients = listening.clients.clone();
            let to_broker = listening.certificates.clone().map(|all| Handover::new(all, clients));
            let data = &config.data;
            let uid_base = config.uid_base;
            let broker =
                mqtt::start_broker(own, data, uid_base, to_broker, &namespaces, management);
            Some(broker.await?)
        }
        None => None,
    };
    let (triggers, publisher) = mqtt::parts(
        engine,
        config.data.clone(),
        config.mqtt_broker.clone(),
        own_broker.clone(),
        Arc::new(journals.clone()),
        data_path.runtime.clone(),
    );
    let guard = guard(data_path);
    keys::bring_back(store, &guard).await?;
    management.spawn(guard.issuers().clone().run(outgoing.clone()));
    let of_callers = guard.clone();
    let opens = Arc::new(move |head: &_, route: &RouteInfo<'_>| of_callers.proves(head, route));
    let invoker = Deferring::new(engine.clone(), journals.clone()).with_callers(opens);
    let addresses = listening.addresses();
    let ports = Ports::new(&config.function_ports, addresses.http, addresses.https, &outgoing);
    let (namespace_turn, token_turn) = Default::default();
    let uid = rustix::process::geteuid().as_raw();
    Ok(Management {
        tenants: Tenants { operators, namespaces, namespace_turn, token_turn, audit, uid },
        accepted: Accepted { runs: Runs::new(journals.clone()), journals, schedules },
        mqtt: Mqtt { triggers, publisher, own_broker, user_turns: Default::default() },
        callers: Callers { invoker, guard, key_turn: Default::default() },
        deployed: Deployed::new(ports),
        outgoing,
    })
}

/// The tokens of those who manage the node over TCP. Empty if no API listens on TCP.
fn operators(config: &Config) -> Result<Operators> {
    if config.admin.is_none() && config.compat.is_off() {
        return Ok(Operators::default());
    }
    let path = config.data.join("admin.token");
    let unusable = |error| unusable("data", format!("the token {}: {error}", path.display()));
    Operators::with_owner(&path).map_err(unusable)
}

/// Makes a guard that can read the node's secrets and has no keys yet.
fn guard(data_path: &DataPath) -> Guard {
    let guard = Guard::default();
    let of_node = data_path.engine.clone();
    guard.set_secrets(Box::new(move |name, use_secret| {
        // If no key can decrypt a secret, the secret is treated as if it did not exist.
        if let Ok(value) = of_node.secrets().get(name) {
            use_secret(&value);
        }
    }));
    guard
}
