//! Instances that are copies of one that has loaded the function.
//!
//! Loading a function with heavy imports takes much longer than all other parts of a start. A worker
//! that took long to load says in READY whether copies of it can be made. If so, the next start
//! begins a *seed*: it loads the function and serves no calls, and further instances are copies of
//! it. For the pool, a copy is an instance like any other.
//!
//! A seed lives as long as its copies: each of them holds it. So a function without instances takes
//! no memory. The seed takes only memory that is free; without such memory, instances load the
//! function themselves.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mote_core::backend::{InstanceControl, InstanceRequest, Started};
use mote_core::fault::error_chain;
use mote_spec::policy::Balance;

use crate::instance::handshake::{StartFailure, Told, handshake, secrets_and_variables, stream};
use crate::instance::{egress, output};
use crate::ledger::{Reservation, RoomRequest};
use crate::link::worker::Connection;
use crate::revision::Revision;
use crate::revision::family::OwnSeed;
use crate::revision::logs::LogLevel;
use mote_process::clock::now_ns;

/// How often a start looks for a seed. The second time, it begins a new one, because the one that it
/// has found makes no more copies.
const ATTEMPTS: u32 = 2;

/// Makes an instance as a copy, and starts the seed for it if there is none. `None` if the instance
/// must load the function itself.
pub(crate) async fn copy(
    revision: &Arc<Revision>,
    request: &InstanceRequest,
) -> Option<(Started, Arc<OwnSeed>)> {
    let family = &revision.family;
    if !family.is_useful() || revision.instances_max() < 2 {
        return None;
    }
    // Copies share a sandbox, and this owner wants instances apart from each other.
    if matches!(revision.spec.scale.balance, Balance::PerCaller | Balance::PerCall) {
        family.give_up("balance keeps the instances apart".to_owned());
        return None;
    }
    let variables = secrets_and_variables(revision).ok()?;
    let mut held = family.seed.lock().await;
    let mut failure = String::new();
    for _ in 0..ATTEMPTS {
        // While this start waited, another one may have found that no copies can be made.
        if !family.is_useful() {
            return None;
        }
        let fits = |seed: &Arc<OwnSeed>| {
            let request = InstanceRequest { instance: seed.request.instance, ..request.clone() };
            seed.request == request && seed.variables == variables
        };
        let seed = match held.upgrade().filter(fits) {
            Some(seed) => seed,
            None => {
                if listens(revision, instances(revision)).await {
                    return None;
                }
                start(revision, request, &variables).await?
            }
        };
        *held = Arc::downgrade(&seed);
        // All copies have the network of the seed.
        let look = listens(revision, vec![seed.control.clone()]);
        let (copied, listens) = tokio::join!(seed.copies.copy(), look);
        if listens {
            return None;
        }
        match copied {
            Ok(started) => return Some((started, seed)),
            Err(error) => failure = error_chain(&error),
        }
        // The seed has ended, or has made all its copies.
        *held = Weak::new();
    }
    family.give_up(format!("two seeds made no copy: {failure}"));
    None
}

fn instances(revision: &Revision) -> Vec<Arc<dyn InstanceControl>> {
    let pool = revision.pool.lock();
    pool.workers().map(|(_, worker)| worker.instance().control.clone()).collect()
}

/// Whether a program of these instances listens on a port. Two copies could not both listen there,
/// so no further copies are made. The look takes milliseconds, because the kernel lists the
/// connections of the whole machine.
async fn listens(revision: &Revision, controls: Vec<Arc<dyn InstanceControl>>) -> bool {
    let look = move || controls.iter().flat_map(|control| control.listening()).collect::<Vec<_>>();
    let ports = tokio::task::spawn_blocking(look).await.unwrap_or_default();
    let doors = revision.spec.doors();
    let own = ports.iter().find(|port| !doors.iter().any(|door| door.port == **port));
    if let Some(port) = own {
        let why = format!("an instance listens on port {port}, which copies would share");
        revision.family.give_up(why);
    }
    own.is_some()
}

/// Starts a seed in free memory. If this fails for another reason than memory, it is not tried again.
async fn start(
    revision: &Arc<Revision>,
    request: &InstanceRequest,
    variables: &BTreeMap<String, String>,
) -> Option<Arc<OwnSeed>> {
    let wish = RoomRequest {
        memory_bytes: revision.spec.limits.memory_bytes,
        cpu_millis: revision.spec.limits.cpu_millis,
        evict: false,
        function: revision.spec.name.as_str(),
        revision: revision.number,
        is_part_of_start: true,
        waiter: None,
    };
    let mut reservation = revision.shared.ledger.reserve(&wish).ok()?;
    reservation.room().await;
    let number = revision.shared.next_instance();
    let since_ns = now_ns();
    let request = InstanceRequest { instance: number, ..request.clone() };
    match load(revision, request, variables, reservation).await {
        Ok(seed) => {
            let ms = (now_ns() - since_ns) / 1_000_000;
            let text = format!("seed loaded after {ms} ms: instances are copies of it");
            revision.log.platform(LogLevel::Info, revision.number, number, &text);
            Some(seed)
        }
        Err(failure) => {
            let why = revision.log.masked_reason(&error_chain(&failure));
            let text = format!("no copies are made of this instance: {why}");
            revision.log.platform(LogLevel::Warn, revision.number, number, &text);
            revision.family.give_up(why);
            None
        }
    }
}

async fn load(
    revision: &Arc<Revision>,
    request: InstanceRequest,
    variables: &BTreeMap<String, String>,
    reservation: Reservation,
) -> Result<Arc<OwnSeed>, StartFailure> {
    let number = request.instance;
    let runtime = revision.shared.runtime.clone();
    let (started, copies) = revision.shared.backend.start_seed(request.clone()).await?;
    let Started { channel, output, egress, control, .. } = started;
    let mut seed = OwnSeed {
        copies,
        control: control.into(),
        request,
        variables: variables.clone(),
        doors: Box::new(egress::serve(revision, number, egress)),
        reservation: Some(reservation),
        runtime: runtime.clone(),
    };
    // From here on, a failure ends the seed, and its memory is given back when it has ended.
    runtime.spawn(output::read(revision.clone(), number, output));
    let mut connection = Connection::new(stream(channel)?)?;
    let limit_ms = revision.init_timeout_ms();
    let ready = tokio::time::timeout(
        Duration::from_millis(limit_ms),
        handshake(revision, number, &mut connection, Told::Seed),
    );
    let ready = ready.await.map_err(|_| StartFailure::TimedOut(limit_ms))??;
    match ready.no_copies {
        Some(why) if !why.is_empty() => return Err(StartFailure::Load(why)),
        Some(_) => {}
        None => return Err(StartFailure::Protocol("the worker makes no copies".to_owned())),
    }
    let held = seed.copies.settle();
    if let Some(reservation) = &mut seed.reservation {
        reservation.shrink(held);
    }
    Ok(Arc::new(seed))
}
