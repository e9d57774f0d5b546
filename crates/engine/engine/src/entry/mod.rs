//! How invocations enter the engine: the functions of a node and their routes, and invocations that
//! leave for another cell or arrive from one.

pub(crate) mod elsewhere;
pub(crate) mod engine;
pub(crate) mod offer;
pub(crate) mod placed;
pub(crate) mod routes;
pub(crate) mod settings;
pub(crate) mod traces;
pub(crate) mod watch;
