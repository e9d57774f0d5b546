//! The TCP ports that belong to single functions: which function has which port, and the listeners
//! on these ports.
//!
//! Such a listener is another front over the node's calls, except that one function answers every
//! request. So every rule of the HTTP front also applies here. Whoever makes a revision live first
//! [reserves](Ports::reserve) its port, which binds the port, and [serves](Reservation::serve) the
//! port once the revision is live. If a port cannot be bound, the change is refused before anything
//! has changed. This module must not know revisions, the store, or how a request is answered.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::config::FunctionPorts;
use crate::fronts::Calls;
use mote_api::Problem;
use mote_api::types::OwnPort;
use mote_http::http;
use mote_outgoing::Outgoing;
use mote_spec::{FunctionName, FunctionSpec};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Pause between attempts to open a port that was taken when the node started.
const RETRY: Duration = Duration::from_secs(10);
/// How often, and with which pause, a change checks whether the listener of a port that was just
/// closed has ended.
const CLOSING_LOOKS_MAX: u32 = 200;
const CLOSING_PAUSE: Duration = Duration::from_millis(10);

/// The ports of a node's functions. A clone is another handle to the same ports.
#[derive(Clone)]
pub struct Ports(Arc<Shared>);

struct Shared {
    permitted: FunctionPorts,
    /// The address on which the ports listen, and whether they speak TLS; `None` if the node has no
    /// HTTP front whose settings the ports could use.
    place: Option<(IpAddr, bool)>,
    outgoing: Outgoing,
    /// Serves the listeners; `None` until the front whose limits the ports share has started.
    front: Mutex<Option<Front>>,
    held: Mutex<BTreeMap<u16, Held>>,
    /// The fronts that have started and have not ended, each with its port.
    tasks: Mutex<Vec<(u16, JoinHandle<()>)>>,
}

#[derive(Clone)]
struct Front {
    calls: Calls,
    config: http::Config,
    runtime: Handle,
}

/// A port that belongs to a function.
struct Held {
    function: FunctionName,
    state: State,
}

enum State {
    /// Reserved for a revision that is about to become live.
    Reserved,
    Open(http::Stopper),
    /// The node could not open the port when it started.
    Shut(Problem),
}

/// The port of a revision that is about to become live. On drop, a port that is reserved but not
/// yet served is released.
pub struct Reservation {
    ports: Ports,
    function: FunctionName,
    port: Option<u16>,
    /// `None` if the function has no port, or if the port already belonged to it.
    listener: Option<std::net::TcpListener>,
}

impl Ports {
    /// Makes the ports, none of which is open yet. `http` and `https` are the addresses of the HTTP
    /// fronts.
    pub fn new(
        permitted: &FunctionPorts,
        http: Option<SocketAddr>,
        https: Option<SocketAddr>,
        outgoing: &Outgoing,
    ) -> Self {
        let place = https.or(http).map(|front| (front.ip(), https.is_some()));
        let permitted = permitted.clone();
        let outgoing = outgoing.clone();
        let (front, held, tasks) = Default::default();
        Self(Arc::new(Shared { permitted, place, outgoing, front, held, tasks }))
    }

    /// Gives the ports the limits of a front, and lets the ports and the front share these limits.
    /// Called for each HTTP front, last for the one at the address `https` of [`Ports::new`].
    pub fn follow(&self, config: &mut http::Config, calls: &Calls, runtime: &Handle) {
        config.bounds = Some(http::Bounds::new(config));
        // All paths on the port belong to the function, even those at which a certificate authority
        // would check challenges.
        let config = http::Config { well_known: None, ..config.clone() };
        let calls = calls.clone();
        let runtime = runtime.clone();
        *self.0.front.lock() = Some(Front { calls, config, runtime });
    }

    /// Checks whether a function may have the port that its spec asks for. A port that already
    /// belongs to the function never prevents a change.
    pub fn check(&self, spec: &FunctionSpec) -> Result<(), Problem> {
        let Some(port) = port_of(spec) else { return Ok(()) };
        if self.is_held(&spec.name, port)? || self.is_closing(port) {
            return Ok(());
        }
        self.bind(&spec.name, port).map(drop)
    }

    /// Binds the port of a revision that is about to become live, without serving it yet.
    pub async fn reserve(&self, spec: &FunctionSpec) -> Result<Reservation, Problem> {
        let ports = self.clone();
        let function = spec.name.clone();
        let port = port_of(spec);
        let mut reservation = Reservation { ports, function, port, listener: None };
        let Some(port) = port else { return Ok(reservation) };
        {
            let mut all = self.0.held.lock();
            if held_by(&all, &spec.name, port)? {
                return Ok(reservation);
            }
            let function = spec.name.clone();
            all.insert(port, Held { function, state: State::Reserved });
        }
        let mut looks = 0;
        reservation.listener = loop {
            match self.bind(&spec.name, port) {
                Ok(listener) => break Some(listener),
                Err(_) if self.is_closing(port) && looks < CLOSING_LOOKS_MAX => {
                    looks += 1;
                    tokio::time::sleep(CLOSING_PAUSE).await;
                }
                Err(problem) => return Err(problem),
            }
        };
        Ok(reservation)
    }

    /// Opens the port of a function that was live when the node stopped. If this fails, the
    /// function serves without the port, and the node keeps trying to open it.
    pub fn bring_back(&self, spec: &FunctionSpec) {
        let Some(port) = port_of(spec) else { return };
        let opened = self.is_held(&spec.name, port).and_then(|_| self.bind(&spec.name, port));
        let function = spec.name.clone();
        match opened {
            Ok(listener) => {
                let held = Held { function: function.clone(), state: State::Reserved };
                self.0.held.lock().insert(port, held);
                self.open(function, port, listener);
            }
            Err(problem) => {
                let Problem { code, detail, .. } = &problem;
                tracing::error!(%function, port, %code, "the port is not open: {detail}");
                let state = State::Shut(problem);
                self.0.held.lock().entry(port).or_insert(Held { function, state });
                // A port that the settings do not permit stays refused until the node restarts, so
                // no further attempt is made.
                if self.0.place.is_none() || !self.0.permitted.permit(port) {
                    return;
                }
                let ports = self.clone();
                let spec = spec.clone();
                tokio::spawn(async move { ports.keep_trying(spec, port).await });
            }
        }
    }

    /// Tries to open a port until that succeeds. Stops when the port no longer belongs to the
    /// function.
    async fn keep_trying(&self, spec: FunctionSpec, port: u16) {
        loop {
            tokio::time::sleep(RETRY).await;
            let is_shut = self.0.held.lock().get(&port).is_some_and(|held| {
                held.function == spec.name && matches!(held.state, State::Shut(_))
            });
            if !is_shut {
                return;
            }
            if let Ok(listener) = self.bind(&spec.name, port) {
                tracing::info!(function = %spec.name, port, "the port is open now");
                return self.open(spec.name, port, listener);
            }
        }
    }

    /// Closes the ports of a function. Requests that have begun are still answered.
    pub fn close(&self, function: &FunctionName) {
        self.close_but(function, None);
    }

    /// Closes all ports. Resolves when all requests that have begun there are answered.
    pub async fn stop(&self) {
        // Removing the entries first prevents the opening of further ports.
        for held in std::mem::take(&mut *self.0.held.lock()).into_values() {
            if let State::Open(stopper) = held.state {
                stopper.stop();
            }
        }
        let tasks = std::mem::take(&mut *self.0.tasks.lock());
        for (_, task) in tasks {
            let _ = task.await;
        }
    }

    /// A description of the function's port for people.
    pub fn shown(&self, spec: &FunctionSpec) -> Option<OwnPort> {
        let number = port_of(spec)?;
        let all = self.0.held.lock();
        let state = all.get(&number).filter(|held| held.function == spec.name);
        let (url, problem) = match state.map(|held| &held.state) {
            Some(State::Open(_)) => (self.url(number), None),
            Some(State::Shut(problem)) => (None, Some(problem.detail.clone())),
            Some(State::Reserved) | None => (None, None),
        };
        Some(OwnPort { number, url, problem })
    }

    /// All open ports, each with its function and the address on which it listens.
    pub fn all_open(&self) -> Vec<(FunctionName, SocketAddr)> {
        let all = self.0.held.lock();
        let is_open = |held: &Held| matches!(held.state, State::Open(_));
        let open = all.iter().filter(|(_, held)| is_open(held));
        let row = |(port, held): (&u16, &Held)| Some((held.function.clone(), self.address(*port)?));
        open.filter_map(row).collect()
    }

    fn address(&self, port: u16) -> Option<SocketAddr> {
        self.0.place.map(|(ip, _)| SocketAddr::new(ip, port))
    }

    fn url(&self, port: u16) -> Option<String> {
        let scheme = if self.0.place?.1 { "https" } else { "http" };
        Some(format!("{scheme}://{}/", reachable(self.address(port)?)))
    }

    fn is_held(&self, function: &FunctionName, port: u16) -> Result<bool, Problem> {
        held_by(&self.0.held.lock(), function, port)
    }

    /// Whether the port was closed but its front has not ended yet.
    fn is_closing(&self, port: u16) -> bool {
        self.0.tasks.lock().iter().any(|(other, task)| *other == port && !task.is_finished())
    }

    /// Binds a listener to a port. Must be called inside a runtime.
    fn bind(&self, function: &FunctionName, port: u16) -> Result<std::net::TcpListener, Problem> {
        let permitted = &self.0.permitted;
        if !permitted.permit(port) {
            let text = format!("{function}: the node gives functions no port {port}");
            let given = if permitted.is_empty() {
                "it gives them none (function_ports = \"off\")".to_owned()
            } else {
                format!("it gives them the ports {permitted}")
            };
            let hint = format!("{given}; its setting function_ports changes that");
            return Err(Problem::new(422, "M0430", text)
                .with_field("http.node_port")
                .with_hint(hint));
        }
        let Some(address) = self.address(port) else {
            let text = format!("{function}: port {port}: the node has no HTTP front");
            let hint = "start the node with http or https";
            return Err(Problem::new(422, "M0430", text)
                .with_field("http.node_port")
                .with_hint(hint));
        };
        let bound = http::listen(address).and_then(TcpListener::into_std);
        bound.map_err(|error| self.not_bound(function, address, &error))
    }

    fn not_bound(&self, function: &FunctionName, address: SocketAddr, error: &Error) -> Problem {
        let port = address.port();
        let (status, code, text) = match error.kind() {
            ErrorKind::AddrInUse if self.0.outgoing.own_ports.contains(&port) => {
                (409, "M0431", format!("the node itself listens on port {port}"))
            }
            ErrorKind::AddrInUse => {
                (409, "M0431", format!("something else on this machine listens on port {port}"))
            }
            ErrorKind::PermissionDenied => {
                (422, "M0430", format!("the node has no right to listen on port {port}"))
            }
            _ => (422, "M0430", format!("the node cannot listen on {address}: {error}")),
        };
        Problem::new(status, code, format!("{function}: {text}")).with_field("http.node_port")
    }

    /// Serves the listener of a function's port, unless the port no longer belongs to the function.
    fn open(&self, function: FunctionName, port: u16, listener: std::net::TcpListener) {
        let Some(Front { calls, config, runtime }) = self.0.front.lock().clone() else {
            return tracing::error!(%function, port, "the port cannot be served: the node has no HTTP front");
        };
        let mut all = self.0.held.lock();
        let Some(held) = all.get_mut(&port).filter(|held| held.function == function) else {
            return;
        };
        let name = function.clone();
        let calls = calls.only(function);
        let stopper = http::Stopper::default();
        let stopped = stopper.clone();
        let task = runtime.spawn(async move {
            // The listener must be registered with the runtime that serves it.
            let served = match TcpListener::from_std(listener) {
                Ok(listener) => crate::fronts::http(listener, calls, config, stopped).await,
                Err(error) => Err(error),
            };
            if let Err(error) = served {
                tracing::error!(function = %name, port, %error, "cannot serve the port");
            }
        });
        held.state = State::Open(stopper);
        self.0.outgoing.open_ports.open(port);
        let mut tasks = self.0.tasks.lock();
        tasks.retain(|(_, task)| !task.is_finished());
        tasks.push((port, task));
    }

    /// Closes all ports of a function except `kept`.
    fn close_but(&self, function: &FunctionName, kept: Option<u16>) {
        self.0.held.lock().retain(|port, held| {
            let stays = held.function != *function || Some(*port) == kept;
            if let (false, State::Open(stopper)) = (stays, &held.state) {
                stopper.stop();
                self.0.outgoing.open_ports.close(*port);
            }
            stays
        });
    }
}

impl Reservation {
    /// Serves the reserved port, and closes the function's previous port if that was a different
    /// one.
    pub fn serve(mut self) {
        self.ports.close_but(&self.function, self.port);
        if let (Some(port), Some(listener)) = (self.port, self.listener.take()) {
            self.ports.open(self.function.clone(), port, listener);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let Some(port) = self.port else { return };
        let mut all = self.ports.0.held.lock();
        let is_own =
            |held: &Held| held.function == self.function && matches!(held.state, State::Reserved);
        if all.get(&port).is_some_and(is_own) {
            all.remove(&port);
        }
    }
}

fn port_of(spec: &FunctionSpec) -> Option<u16> {
    Some(spec.http.as_ref()?.node_port?.get())
}

/// Whether the port belongs to the function. Fails if the port belongs to another function.
fn held_by(all: &BTreeMap<u16, Held>, function: &FunctionName, port: u16) -> Result<bool, Problem> {
    match all.get(&port).map(|held| &held.function) {
        None => Ok(false),
        Some(other) if other == function => Ok(true),
        Some(other) => {
            let text = format!("{function}: port {port} is that of the function {other}");
            Err(Problem::new(409, "M0431", text).with_field("http.node_port"))
        }
    }
}

/// Returns the address that a client on this machine can use. A wildcard address becomes loopback.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
