//! What `mote` decides and the words it uses, with nothing that touches the outside world.
//!
//! Names, specs, faults, the worker wire format, and the decisions of the engine as pure functions
//! with time as an argument. This crate must not know about sockets, files, clocks, the environment
//! or an async runtime (`clippy.toml` bans them), so all of it runs in a test in microseconds.
//!
//! Start with [`spec`] (what a function is), then [`invocation`] (what is asked of it), then
//! [`wire`] (how a worker is asked), then [`fault`] (who is to blame when it fails). How many
//! instances there are is decided in [`autoscale`], what the node affords in [`budget`].

pub mod admission;
pub mod autoscale;
pub mod backend;
pub mod balance;
pub mod base64;
pub mod body;
pub mod budget;
pub mod destination;
pub mod fault;
pub mod gathering;
pub mod h2_frames;
pub mod halt_poll;
pub mod invocation;
pub mod line_budget;
pub mod name;
pub mod pool;
pub mod prewarm;
pub mod rollout;
pub mod shares;
pub mod spec;
pub mod turn;
pub mod whisk;
pub mod wire;

pub use fault::{Fault, FaultClass};
pub use invocation::{Invocation, InvocationId, Invoker, Phases, Reply, RouteInfo, Trigger};
pub use name::FunctionName;
pub use spec::FunctionSpec;
