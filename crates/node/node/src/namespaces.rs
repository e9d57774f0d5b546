//! The namespaces of a node: making one, counting what it uses, and removing everything in it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::Config;
use anyhow::{Context as _, Result};
use mote_access::Guard;
use mote_api::namespaces::{Namespace as Shown, NamespaceRequest, Quotas};
use mote_api::{Problem, Timestamp};
use mote_core::state::{Namespace as StateOf, State, Usage};
use mote_engine::ledger::{Held, UNLIMITED};
use mote_engine::{Engine, Revision};
use mote_journal::{Journals, Reader, problem_of};
use mote_process::clock;
use mote_spec::FunctionName;
use mote_spec::name::{of_kept, split};
use mote_store::Store;
use mote_tenants::namespaces::{Namespace, Namespaces, Wrong};
use mote_tenants::operators::tokens;

use super::store_work::{blocking, internal, store_problem, with_store};
use super::unusable::unusable;
use super::{Node, data_folders, functions, keys, operators, secrets, turns};

/// How long a removal waits until the changes, instances and invocations of the namespace have
/// ended.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long a removal pauses between two such checks.
const PAUSE: Duration = Duration::from_millis(20);

pub(super) async fn open(store: &Arc<Store>, config: &Config) -> Result<Arc<Namespaces>> {
    let store = store.clone();
    let namespaces = Arc::new(Namespaces::default());
    let loaded = namespaces.clone();
    let read = blocking(move || loaded.load(&store)).await;
    read.context("cannot read the store")??;
    let first = namespaces.all().keys().next().cloned();
    if let (Some(name), Some(setting)) = (first, shares(config)) {
        let text = format!("a node with namespaces cannot share functions or state: {name} exists");
        return Err(unusable(setting, text));
    }
    Ok(namespaces)
}

/// Passes the limits of all namespaces to the engine.
pub(super) fn apply_limits(node: &Node) {
    for (name, one) in &*node.tenants.namespaces.all() {
        limit(&node.data_path.engine, &node.callers.guard, name, &one.quotas);
    }
}

fn limit(engine: &Engine, guard: &Guard, name: &str, quotas: &Quotas) {
    let limit = Held {
        instances: quotas.instances.unwrap_or(UNLIMITED.instances),
        memory_bytes: quotas.memory_bytes.unwrap_or(UNLIMITED.memory_bytes),
        cpu_millis: quotas.cpu_millis.unwrap_or(UNLIMITED.cpu_millis),
    };
    engine.ledger().limit(name, limit);
    guard.limit_namespace(name, quotas.calls_per_s);
}

/// The setting by which the node shares functions or state with other nodes. Those nodes do not
/// know this node's namespaces.
fn shares(config: &Config) -> Option<&'static str> {
    match (&config.cell, &config.nats) {
        (Some(_), _) => Some("cell"),
        (_, Some(_)) => Some("nats"),
        _ => None,
    }
}

/// Lists all namespaces with what they use.
pub(crate) async fn list(node: &Node) -> Result<Vec<Shown>, Problem> {
    let usage = usage(&node.data_path.state).await?;
    let live = node.data_path.engine.list();
    let ledger = node.data_path.engine.ledger();
    let all = node.tenants.namespaces.all();
    let counted = node.tenants.namespaces.clone();
    let disk =
        with_store(&node.opened.store, move |store| counted.disk_bytes_of_all(store)).await?;
    let shown = all.iter().map(|(name, one)| {
        let own = Some(name.as_str());
        let Held { instances, memory_bytes, cpu_millis } = ledger.held_by(name);
        let state = usage.iter().filter(|usage| is_state_of(&usage.namespace, name));
        Shown {
            name: name.clone(),
            created_at: Timestamp::from_unix_ms(one.created_at_ms),
            functions: live.iter().filter(|one| one.spec.name.namespace() == own).count() as u64,
            instances,
            memory_bytes,
            cpu_millis,
            disk_bytes: disk.get(name).copied().unwrap_or(0),
            state_bytes: state.map(|usage| usage.bytes).sum(),
            quotas: one.quotas,
            is_being_deleted: node.tenants.namespaces.is_closed(name),
        }
    });
    Ok(shown.collect())
}

/// Describes one namespace and what it uses.
pub(crate) async fn describe(node: &Node, name: &str) -> Result<Shown, Problem> {
    let found = list(node).await?.into_iter().find(|one| one.name == name);
    found.ok_or_else(|| mote_tenants::namespaces::no_such_namespace(name))
}

pub(crate) async fn create(node: &Arc<Node>, wish: NamespaceRequest) -> Result<Shown, Problem> {
    if let Some(setting) = shares(&node.config) {
        let text = format!(
            "a node with the setting {setting} shares functions or state with other nodes, so that \
             it has no namespaces"
        );
        return Err(Problem::new(409, "M0429", text));
    }
    let _turn = node.tenants.namespace_turn.lock().await;
    let NamespaceRequest { name, quotas } = wish;
    let one = Namespace { created_at_ms: clock::unix_ms(), quotas, is_being_deleted: false };
    let wanted = name.clone();
    changed(&node.opened.store, &node.tenants.namespaces, move |namespaces, store| {
        namespaces.create(store, &wanted, one)
    })
    .await?;
    limit(&node.data_path.engine, &node.callers.guard, &name, &quotas);
    tracing::info!(namespace = %name, "created");
    describe(node, &name).await
}

/// Replaces the limits of a namespace.
pub(crate) async fn update(node: &Arc<Node>, name: &str, quotas: Quotas) -> Result<Shown, Problem> {
    let _turn = node.tenants.namespace_turn.lock().await;
    let one = Namespace { quotas, ..node.tenants.namespaces.get(name)? };
    mote_tenants::namespaces::check_limits(&quotas)?;
    put(&node.opened.store, &node.tenants.namespaces, name, Some(one)).await?;
    limit(&node.data_path.engine, &node.callers.guard, name, &quotas);
    describe(node, name).await
}

/// Fails if, with `name`, the namespace would have more functions than it may.
pub(super) fn room_for(node: &Node, name: &FunctionName) -> Result<(), Problem> {
    let Some(namespace) = name.namespace() else { return Ok(()) };
    let Some(most) = node.tenants.namespaces.get(namespace)?.quotas.functions else {
        return Ok(());
    };
    let all = node.data_path.engine.list();
    let own = || all.iter().filter(|one| one.spec.name.namespace() == Some(namespace));
    // Functions that are being deployed for the first time count as well.
    let count = own().count() as u64
        + turns::new_ones(&node.deploys.deploying, &node.data_path.engine, namespace, name);
    if own().any(|one| one.spec.name == *name) || count < most {
        return Ok(());
    }
    let text = format!("the namespace {namespace} has {count} of at most {most} functions");
    Err(Problem::new(507, "M0428", text).with_hint(format!(
        "remove a function, or let an operator raise the limit: mote namespace update {namespace} \
         --functions {}",
        most + 1
    )))
}

/// How many more bytes the namespace of a function may store on disk, in addition to these trees.
pub(super) async fn room_on_disk(
    node: &Node,
    name: &FunctionName,
    trees: Vec<PathBuf>,
) -> Result<u64, Problem> {
    if name.namespace().is_none() {
        return Ok(u64::MAX);
    }
    let name = name.clone();
    let owner = name.clone();
    let left = changed(&node.opened.store, &node.tenants.namespaces, move |namespaces, store| {
        namespaces.disk_left(store, &name, &trees)
    })
    .await?;
    match owner.namespace() {
        Some(namespace) if left < u64::MAX => {
            let data = data_folders::bytes_of(node, namespace);
            left.checked_sub(data).ok_or_else(|| {
                let text = format!(
                    "{owner}: the files and the data folders of the namespace {namespace} would take \
                     more of the disk than it may use"
                );
                let hint = "remove functions or data folders, or let an operator raise the limit: \
                            mote namespace update NAMESPACE --disk SIZE";
                Problem::new(507, "M0428", text).with_hint(hint)
            })
        }
        _ => Ok(left),
    }
}

/// Deletes a namespace. Until it is gone, nothing else can change in it. Once the node has begun to
/// remove its contents, the namespace stays closed, even after a crash.
pub(crate) async fn delete(node: &Arc<Node>, name: &str, force: bool) -> Result<(), Problem> {
    node.tenants.namespaces.get(name)?;
    if !force {
        must_be_empty(node, name).await?;
    }
    let removal = node.tenants.namespaces.remove(name)?;
    let until = Instant::now() + PATIENCE;
    wait(until, || node.tenants.namespaces.changes(name) == 0, name, "changes").await?;
    if force {
        let _turn = node.tenants.namespace_turn.lock().await;
        let one = node.tenants.namespaces.get(name)?;
        put(
            &node.opened.store,
            &node.tenants.namespaces,
            name,
            Some(Namespace { is_being_deleted: true, ..one }),
        )
        .await?;
    } else {
        // A change that ended after the first check may have put something into the namespace.
        must_be_empty(node, name).await?;
    }
    empty(node, name, until).await?;
    let _turn = node.tenants.namespace_turn.lock().await;
    put(&node.opened.store, &node.tenants.namespaces, name, None).await?;
    limit(&node.data_path.engine, &node.callers.guard, name, &Quotas::default());
    drop(removal);
    tracing::info!(namespace = %name, "deleted");
    node.deployed.trees.collect_soon();
    Ok(())
}

async fn empty(node: &Arc<Node>, name: &str, until: Instant) -> Result<(), Problem> {
    for revision in of(node.data_path.engine.list(), name) {
        let _turn = turns::last_turn(&node.deploys.deploying, &revision.spec.name)?;
        functions::remove_in_turn(node, &revision).await?;
    }
    let ledger = node.data_path.engine.ledger();
    wait(until, || ledger.held_by(name) == Held::default(), name, "instances").await?;
    forget_invocations(&node.accepted.journals, name, until).await?;
    for state in states(&node.data_path.state, name).await? {
        let cleared = node.data_path.state.clear(state).await;
        cleared.map_err(|error| Problem::new(503, "M0905", error.to_string()))?;
    }
    for (function, _) in data_folders::list(node) {
        let function = FunctionName::new(&function).ok();
        if let Some(function) = function.filter(|function| function.namespace() == Some(name)) {
            data_folders::remove(node, &function).await?;
        }
    }
    secrets::remove_all_of(&node.opened.store, &node.data_path.engine, name.to_owned()).await?;
    keys::revoke_all_of(&node.opened.store, &node.callers, name.to_owned()).await?;
    let wanted = name.to_owned();
    operators::changed(&node.opened.store, &node.tenants, move |store, all| {
        tokens::revoke_all_of(store, all, &wanted)
    })
    .await?;
    let wanted = name.to_owned();
    with_store(&node.opened.store, move |store| store.remove_all_of(&wanted)).await?;
    node.data_path.engine.forget(|function| function.namespace() == Some(name));
    // Invocations that were accepted before the functions were removed may have reached the disk
    // since the first call of this method.
    forget_invocations(&node.accepted.journals, name, until).await?;
    // The namespace publishes no more messages from here on, but earlier ones may still wait.
    let own = format!(".{name}");
    let published = || !node.mqtt.publisher.has_messages_of(|owner| owner.ends_with(&own));
    wait(until, published, name, "MQTT messages").await?;
    node.mqtt.own_broker.iter().for_each(|broker| broker.forget(name));
    Ok(())
}

async fn forget_invocations(
    journals: &Journals,
    name: &str,
    until: Instant,
) -> Result<(), Problem> {
    let patience = until.saturating_duration_since(Instant::now());
    let forgotten = journals.forget(name, patience).await;
    match forgotten.map_err(|error| problem_of(&error, Reader::Owner))? {
        true => Ok(()),
        false => Err(still(name, "accepted invocations")),
    }
}

/// Fails if the namespace still contains anything.
async fn must_be_empty(node: &Node, name: &str) -> Result<(), Problem> {
    let wanted = name.to_owned();
    let tokens = with_store(&node.opened.store, tokens::list).await?.tokens;
    let tokens = tokens.iter().filter(|one| one.namespace.as_ref() == Some(&wanted)).count();
    let own = Some(vec![format!(".{name}")]);
    let waiting = node.accepted.journals.list(own, None, None, 1).await;
    let waiting = waiting.map_err(|error| problem_of(&error, Reader::Owner))?.len();
    let counts = [
        ("function", "functions", of(node.data_path.engine.list(), name).count()),
        ("secret", "secrets", kept_secrets(&node.opened.store, name).await?.len()),
        ("key of a caller", "keys of callers", kept_keys(&node.opened.store, name).await?.len()),
        ("token", "tokens", tokens),
        (
            "function with state",
            "functions with state",
            states(&node.data_path.state, name).await?.len(),
        ),
        (
            "data folder",
            "data folders",
            data_folders::list(node)
                .iter()
                .filter(|(function, _)| split(function).1 == Some(name))
                .count(),
        ),
        ("accepted invocation or more", "accepted invocations", waiting),
    ];
    mote_tenants::namespaces::must_be_empty(name, &counts)
}

fn of(all: Vec<Arc<Revision>>, namespace: &str) -> impl Iterator<Item = Arc<Revision>> {
    all.into_iter().filter(move |one| one.spec.name.namespace() == Some(namespace))
}

async fn states(state: &Arc<dyn State>, namespace: &str) -> Result<Vec<StateOf>, Problem> {
    let all = usage(state).await?.into_iter().map(|usage| usage.namespace);
    Ok(all.filter(|state| is_state_of(state, namespace)).collect())
}

/// How much each namespace of functions' state uses.
async fn usage(state: &Arc<dyn State>) -> Result<Vec<Usage>, Problem> {
    let usage = state.usage().await;
    usage.map_err(|error| Problem::new(503, "M0905", error.to_string()))
}

fn is_state_of(state: &StateOf, namespace: &str) -> bool {
    let (StateOf::Function(name) | StateOf::Shared(name)) = state;
    split(name).1 == Some(namespace)
}

async fn kept_secrets(store: &Arc<Store>, namespace: &str) -> Result<Vec<String>, Problem> {
    let names = with_store(store, Store::secret_names).await?.into_iter();
    Ok(names.filter(|name| of_kept(name).0 == Some(namespace)).collect())
}

async fn kept_keys(store: &Arc<Store>, namespace: &str) -> Result<Vec<String>, Problem> {
    let all = with_store(store, Store::keys).await?.into_iter().filter(|key| key.is_current);
    let names = all.map(|key| key.name);
    Ok(names.filter(|name| of_kept(name).0 == Some(namespace)).collect())
}

/// Waits until `ended` returns true.
async fn wait(
    until: Instant,
    ended: impl Fn() -> bool,
    namespace: &str,
    what: &str,
) -> Result<(), Problem> {
    while !ended() {
        if Instant::now() > until {
            return Err(still(namespace, what));
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

fn still(namespace: &str, what: &str) -> Problem {
    let minutes = PATIENCE.as_secs() / 60;
    let text = format!("{what} of the namespace {namespace} have not ended within {minutes} min");
    Problem::new(409, "M0424", text).with_hint("repeat the command when they have ended")
}

async fn put(
    store: &Arc<Store>,
    namespaces: &Arc<Namespaces>,
    name: &str,
    one: Option<Namespace>,
) -> Result<(), Problem> {
    let name = name.to_owned();
    changed(store, namespaces, move |namespaces, store| namespaces.put(store, &name, one)).await
}

/// Runs `work`, which reads or changes namespaces in the store and in memory.
async fn changed<T: Send + 'static>(
    store: &Arc<Store>,
    namespaces: &Arc<Namespaces>,
    work: impl FnOnce(&Namespaces, &Store) -> Result<T, Wrong> + Send + 'static,
) -> Result<T, Problem> {
    let store = store.clone();
    let namespaces = namespaces.clone();
    let done = blocking(move || work(&namespaces, &store)).await;
    done.map_err(|error| internal(&error))?.map_err(|error| match error {
        Wrong::Problem(problem) => problem,
        Wrong::Store(error) => store_problem(&error),
    })
}
