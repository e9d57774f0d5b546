//! Restores the functions and the accepted invocations that the node had before it was restarted.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use mote_access::RefusalMetrics;
use mote_coap::notices::NoticeMetrics;
use mote_engine::gauges::FunctionGauges;
use mote_engine::{Revision, Serving};
use mote_journal::JournalMetrics;
use mote_store::{Store, StoredFunction, StoredRevision};
use tokio::runtime::Handle;

use crate::services::NodeServices;
use crate::{Node, accepted, compat, images, namespaces, operators, schedules};

/// Restores the functions. From here on, the invocations that were accepted before the restart run.
pub(super) async fn bring_back(
    node: &Arc<Node>,
    platforms: &compat::Listeners,
    management: &Handle,
) -> Result<()> {
    let engine = &node.data_path.engine;
    let journals = &node.accepted.journals;
    operators::bring_back(&node.opened.store, &node.tenants.operators).await?;
    namespaces::apply_limits(node);
    engine.set_own_apis(platforms.own_apis(node.addresses.http));
    let publish = Arc::new(node.mqtt.publisher.clone());
    journals.set_publish(publish.clone());
    let services = NodeServices::new(
        engine.clone(),
        node.data_path.state.clone(),
        Arc::new(journals.clone()),
        node.accepted.runs.clone(),
        node.deployed.notices.clone(),
        publish,
        node.tenants.namespaces.clone(),
    );
    engine.set_services(Arc::new(services));
    functions(node, management).await?;
    accepted::take_up(&journals.own(), &node.opened.store).await;
    engine.metrics().add(FunctionGauges(engine.clone()));
    engine.metrics().add(JournalMetrics(journals.clone()));
    engine.metrics().add(NoticeMetrics(node.deployed.notices.clone()));
    engine.metrics().add(RefusalMetrics(node.callers.guard.clone()));
    let running = engine.clone();
    let data_path = node.data_path.runtime.clone();
    journals.run(move |journal| data_path.spawn(mote_journal::run(journal, running.clone())));
    Ok(())
}

/// Makes every deployed function callable again. An instance starts only when its function is
/// called.
async fn functions(node: &Arc<Node>, management: &Handle) -> Result<()> {
    let store = node.opened.store.clone();
    let read = move || Ok::<_, anyhow::Error>((store.functions()?, store.scales()?));
    let (inventory, scales) =
        management.spawn_blocking(read).await.context("cannot read the store")??;
    for damaged in &inventory.damaged {
        tracing::error!(
            function = %damaged.function,
            revision = damaged.revision,
            reason = %damaged.reason,
            "function cannot be served"
        );
    }
    let mut functions = Vec::new();
    let mut created = node.deployed.created_at_ms.lock();
    for StoredFunction { live, traffic, others } in inventory.functions {
        let name = live.spec.name.clone();
        created.insert(name.clone(), live.function_created_at_ms);
        if traffic.elsewhere {
            node.deployed.elsewhere.lock().insert(name.clone());
        }
        let engine = &node.data_path.engine;
        let revisions: Vec<_> = [live]
            .into_iter()
            .chain(others)
            .map(|stored| {
                let StoredRevision { spec, revision, code_path, packages_path, .. } = stored;
                let image = images::stored(&node.opened.images, &spec);
                let revision = engine.revision(spec, revision, code_path, packages_path, image);
                node.deployed.trees.keep(&revision);
                revision
            })
            .collect();
        if let Some(bounds) = scales.get(name.as_str()) {
            revisions[0].set_bounds(*bounds);
        }
        let serving = Serving::new(traffic.split, &revisions);
        functions.push(serving.unwrap_or_else(|| revisions[0].clone().into()));
    }
    drop(created);
    let live: Vec<_> = functions.iter().map(|serving| serving.live().clone()).collect();
    node.data_path.engine.publish_all(functions);
    let elsewhere = node.deployed.elsewhere.lock().clone();
    let is_here = |live: &&Arc<Revision>| !elsewhere.contains(&live.spec.name);
    for revision in live.iter().filter(is_here).filter(|live| !live.spec.schedules.is_empty()) {
        schedules::bring_back(node, revision);
    }
    mote_engine::trees::warn_of(&node.opened.store.recovery().left);
    let (trees, engine, store) =
        (node.deployed.trees.clone(), node.data_path.engine.clone(), node.opened.store.clone());
    let images = node.opened.images.clone();
    let also = move |store: &Store| images::collect(&images, store);
    management.spawn(mote_engine::trees::collect(trees, engine.clone(), store.clone(), also));
    // If the node ended during a deploy, a complete image may belong to no revision.
    node.deployed.trees.collect_soon();
    management.spawn(mote_engine::trees::verify(engine, store));
    Ok(())
}
