//! Runs the wires on threads. This covers a whole run, from its plan to its tally.

use std::io;
use std::net::SocketAddr;

use crate::coap::CoapWire;
use crate::http::HttpWire;
use crate::turns::{Turns, TurnsPlan, take_turns};
use crate::{
    Live, Nanos, Plan, PlanError, Protocol, Request, Tally, Target, Wire, clock, drive, poller,
};

/// The time that all threads have to start before the schedule begins.
const HEAD_START: Nanos = 5_000_000;

/// Why a run could not take place.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The machine refused a resource that the generator needs.
    #[error("the generator could not continue")]
    Io(#[from] io::Error),
}

/// Runs a plan against `address`, which [`Target::address`] found. Blocks until the run is over or
/// `live` is stopped.
///
/// # Errors
/// Fails if the plan is not valid, or if the machine refuses an event queue or a thread. Failures
/// of the target are counted and are not errors.
pub fn run(
    target: &Target,
    address: SocketAddr,
    request: &Request,
    plan: &Plan,
    live: &Live,
) -> Result<Tally, LoadError> {
    plan.check()?;
    poller::raise_file_limit();
    let started = clock::now() + HEAD_START;
    let part = |thread: usize| -> io::Result<Tally> {
        let clients = plan.clients_of(thread);
        match target.protocol {
            Protocol::Http => {
                let mut wire = HttpWire::new(target, address, request, clients)?;
                drive(&mut wire, plan, thread, started, live)
            }
            Protocol::Coap => {
                let mut wire = CoapWire::new(target, address, request, clients)?;
                drive(&mut wire, plan, thread, started, live)
            }
        }
    };
    let part = &part;
    let tallies: Vec<io::Result<Tally>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.threads())
            .map(|thread| {
                let name = format!("load-{thread}");
                std::thread::Builder::new().name(name).spawn_scoped(scope, move || part(thread))
            })
            .collect();
        let join = |thread: io::Result<std::thread::ScopedJoinHandle<'_, _>>| {
            thread?.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let mut tallies = tallies.into_iter();
    let mut whole = tallies.next().ok_or(PlanError::Clients)??;
    for tally in tallies {
        whole.merge(&tally?);
    }
    Ok(whole)
}

/// Measures two targets in turns, on this thread. Blocks until all turns are over or `live` is
/// stopped.
///
/// # Errors
/// The same as those of [`run`].
pub fn run_in_turns(
    sides: [(&Target, SocketAddr, &Request); 2],
    plan: &TurnsPlan,
    live: &Live,
) -> Result<Turns, LoadError> {
    plan.check()?;
    poller::raise_file_limit();
    let wire = |(target, address, request): (&Target, SocketAddr, &Request)| {
        Ok::<Box<dyn Wire>, io::Error>(match target.protocol {
            Protocol::Http => Box::new(HttpWire::new(target, address, request, plan.clients)?),
            Protocol::Coap => Box::new(CoapWire::new(target, address, request, plan.clients)?),
        })
    };
    let [one, other] = sides;
    Ok(take_turns(&mut [wire(one)?, wire(other)?], plan, live)?)
}
