//! Cells: nodes of one cluster that forward invocations to each other.
//!
//! A cell that cannot run an invocation sends it to another cell that has room. Each pair of cells
//! has one connection per direction. The engine decides when an invocation leaves and when the cell
//! takes an invocation of another cell ([`mote_core::elsewhere`]). This crate knows which cells
//! there are and how much room each has (`board.rs`), and carries invocations and answers
//! (`frames.rs`, `link.rs`). Start reading at `sender.rs` (the cell that forwards) and
//! `receiver.rs` (the cell that runs).
//!
//! It must not know revisions, queues, fronts or the management API.
//!
//! The files:
//!
//! - `board.rs`, `frames.rs`: the room at other cells, and the frames (pure)
//! - `link.rs`, `socket.rs`: a connection with its streams, credit and keep-alive
//! - `tls.rs`, `raw_keys.rs`: the key that cells share
//! - `waiters.rs`: waiting invocations that could run at another cell
//! - `view.rs`: the cells as people see them

#![forbid(unsafe_code)]

mod board;
mod frames;
mod link;
pub mod raw_keys;
mod receiver;
mod sender;
mod socket;
mod tls;
mod view;
mod waiters;

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use mote_api::cells::CELLS_MAX;
use mote_core::elsewhere::{Elsewhere, Here, Later, Place, RevisionKey};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use board::Board;
use link::Link;
use sender::Peer;
use waiters::Waiters;

pub use tls::{CellKey, KeyError};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellAddress {
    /// The cell's name; empty if it is not known.
    pub name: String,
    /// The address at which the cell listens for other cells.
    pub address: SocketAddr,
}

/// Why a list of cells is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    #[error("at most {CELLS_MAX} cells")]
    TooMany,
    #[error("{0:?} is not the name of a cell: 1 to 63 letters, digits, `-`, `.` and `_`")]
    Name(String),
    /// A name or an address appears twice.
    #[error("{0} appears twice")]
    Twice(String),
}

/// The state of another cell, as this cell sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellState {
    pub cell: CellAddress,
    /// `connected`, `draining` or `unreachable`.
    pub state: &'static str,
    /// Bytes of memory that the cell has for further instances.
    pub free_bytes: u64,
    /// Invocations of this cell that the other cell runs now.
    pub in_flight: usize,
    /// Why the last connection ended or could not be made.
    pub last_error: Option<String>,
}

/// Counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Invocations that other cells ran for this one.
    pub spilled_out: u64,
    /// Invocations that this cell ran for others.
    pub spilled_in: u64,
    /// Invocations that another cell refused, so that they came back.
    pub returned: u64,
    /// Invocations that were run again because the cell that ran them was lost.
    pub repeated: u64,
    /// Invocations that failed because the cell that ran them was lost.
    pub lost: u64,
    /// Connections that other cells have made to this one.
    pub connections: u64,
}

#[derive(Default)]
struct Counters {
    spilled_out: AtomicU64,
    spilled_in: AtomicU64,
    returned: AtomicU64,
    repeated: AtomicU64,
    lost: AtomicU64,
}

/// The data that all connections share.
struct Shared {
    key: CellKey,
    address: SocketAddr,
    runtime: Handle,
    here: Arc<dyn Here>,
    /// This cell's own name; empty until a list of cells sets it.
    name: Mutex<String>,
    board: Mutex<Board>,
    peers: Mutex<Vec<Arc<Peer>>>,
    waiters: Waiters,
    next_id: AtomicU64,
    draining: AtomicBool,
    /// Connections that other cells have made, each with the invocations on it.
    inbound: Mutex<Vec<std::sync::Weak<Link>>>,
    inbound_count: AtomicUsize,
    /// Notified when the load may have changed.
    changed: Notify,
    /// The payload of the latest LOAD frame.
    load: Mutex<Vec<u8>>,
    /// The last connection that could not prove that it comes from a cell, and why.
    stranger: Mutex<Option<String>>,
    counters: Counters,
    random: RandomState,
}

/// The connections to other cells. Cheap to clone.
#[derive(Clone)]
pub struct Cells(Arc<Shared>);

impl Cells {
    /// Listens for other cells and runs their invocations on `here`. All tasks run on `runtime`.
    pub fn start(
        listener: TcpListener,
        key: CellKey,
        here: Arc<dyn Here>,
        runtime: Handle,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            key,
            address,
            runtime: runtime.clone(),
            here,
            name: Mutex::default(),
            board: Mutex::default(),
            peers: Mutex::default(),
            waiters: Waiters::default(),
            next_id: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            inbound: Mutex::default(),
            inbound_count: AtomicUsize::new(0),
            changed: Notify::new(),
            load: Mutex::default(),
            stranger: Mutex::default(),
            counters: Counters::default(),
            random: RandomState::new(),
        });
        runtime.spawn(receiver::accept(shared.clone(), listener));
        runtime.spawn(receiver::report(shared.clone()));
        Ok(Self(shared))
    }

    /// Replaces the list of other cells, and sets this cell's own name. Connections to cells that
    /// stay in the list are kept. Each connection to a removed cell ends with the last invocation
    /// on it.
    pub fn set(&self, name: &str, cells: &[CellAddress]) -> Result<(), ListError> {
        check(name, cells)?;
        let shared = &self.0;
        name.clone_into(&mut shared.name.lock());
        let mut peers = shared.peers.lock();
        let (stay, go) =
            std::mem::take(&mut *peers).into_iter().partition(|peer| cells.contains(&peer.cell));
        *peers = stay;
        let gone: Vec<Arc<Peer>> = go;
        for cell in cells {
            if !peers.iter().any(|peer| peer.cell == *cell) {
                let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
                peers.push(Peer::start(shared, id, cell.clone()));
            }
        }
        drop(peers);
        for peer in gone {
            shared.board.lock().down(peer.id);
            peer.retire();
        }
        Ok(())
    }

    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    pub fn name(&self) -> String {
        self.0.name.lock().clone()
    }

    pub fn states(&self) -> Vec<CellState> {
        let peers = self.0.peers.lock();
        let board = self.0.board.lock();
        let state = |peer: &Arc<Peer>| {
            let (state, free_bytes) = match board.cell(peer.id) {
                Some((free_bytes, true)) => ("draining", free_bytes),
                Some((free_bytes, false)) => ("connected", free_bytes),
                None => ("unreachable", 0),
            };
            CellState {
                cell: peer.cell.clone(),
                state,
                free_bytes,
                in_flight: peer.in_flight(),
                last_error: peer.last_error(),
            }
        };
        peers.iter().map(state).collect()
    }

    /// Why the last connection from a stranger was refused, if one was refused.
    pub fn last_stranger(&self) -> Option<String> {
        self.0.stranger.lock().clone()
    }

    pub fn figures(&self) -> Figures {
        let counters = &self.0.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            spilled_out: read(&counters.spilled_out),
            spilled_in: read(&counters.spilled_in),
            returned: read(&counters.returned),
            repeated: read(&counters.repeated),
            lost: read(&counters.lost),
            connections: self.0.inbound_count.load(Ordering::Relaxed) as u64,
        }
    }

    /// Tells the other cells that this cell takes no more invocations, and lets invocations that
    /// wait here leave for other cells.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
        self.0.changed.notify_one();
        self.0.waiters.wake_all();
    }

    /// Waits until no invocation of another cell runs here.
    pub async fn drained(&self) {
        let links: Vec<_> =
            self.0.inbound.lock().iter().filter_map(|link| link.upgrade()).collect();
        for link in links {
            link.empty().await;
        }
    }
}

pub fn check(name: &str, cells: &[CellAddress]) -> Result<(), ListError> {
    if cells.len() > CELLS_MAX {
        return Err(ListError::TooMany);
    }
    let names = cells.iter().map(|cell| cell.name.as_str()).chain([name]);
    for name in names.filter(|name| !name.is_empty()) {
        if !frames::is_cell_name(name) {
            return Err(ListError::Name(name.to_owned()));
        }
    }
    for (at, cell) in cells.iter().enumerate() {
        if cells[..at].iter().any(|other| other.address == cell.address) {
            return Err(ListError::Twice(cell.address.to_string()));
        }
        if !cell.name.is_empty() && cells[..at].iter().any(|other| other.name == cell.name) {
            return Err(ListError::Twice(cell.name.clone()));
        }
    }
    Ok(())
}

impl Elsewhere for Cells {
    fn claim(&self, wanted: &RevisionKey, memory_bytes: u64) -> Option<Box<dyn Place>> {
        let now_ns = now_ns();
        let random = self.0.random.hash_one(now_ns);
        let id = self.0.board.lock().claim(wanted, memory_bytes, random, now_ns)?;
        let claim = sender::Claim::new(self.0.clone(), id, wanted.clone());
        Some(Box::new(claim))
    }

    fn room(&self, wanted: &RevisionKey) -> Later<()> {
        self.0.waiters.wait(wanted)
    }

    fn stuck(&self, wanted: &RevisionKey, waiting: usize) {
        let places = self.0.board.lock().places(wanted, now_ns());
        self.0.waiters.wake(wanted, waiting.min(places as usize));
    }

    fn changed(&self) {
        if self.0.inbound_count.load(Ordering::Relaxed) > 0 {
            self.0.changed.notify_one();
        }
    }

    fn is_leaving(&self) -> bool {
        self.0.draining.load(Ordering::Relaxed)
    }
}

/// Monotonic nanoseconds, on the clock of the engine.
fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
