//! The threads of the data path, and how they wait for work.

pub(crate) mod busy_poll;
pub(crate) mod halt_poll;
pub(crate) mod nearby;
pub(crate) mod threads;
