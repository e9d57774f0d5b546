//! Exit codes of the command line.

/// Done.
pub const DONE: u8 = 0;
/// Failed, for a reason without its own code.
pub const FAILED: u8 = 1;
/// Wrong usage.
pub const USAGE: u8 = 2;
/// No such function.
pub const NO_FUNCTION: u8 = 3;
/// The node cannot be reached.
pub const UNREACHABLE: u8 = 4;
/// The function returned an error.
pub const FUNCTION: u8 = 5;
/// The deadline passed.
pub const DEADLINE: u8 = 6;
/// Refused: function or node is full.
pub const FULL: u8 = 7;
/// Manifest or code is not valid.
pub const INVALID: u8 = 8;
/// A benchmark broke a limit of `--fail-if`.
pub const LIMIT: u8 = 9;
/// The zygote, which starts functions, has ended (`EX_OSERR`). A restart of the node starts a new
/// zygote, so service units should restart on this code.
pub const HELPER: u8 = 71;
/// An address or the data directory of the node is in use (`EX_TEMPFAIL`). It may become free, so
/// service units should restart on this code.
pub const BUSY: u8 = 75;
/// The node's configuration is not valid (`EX_CONFIG`); service units should not restart on this
/// code.
pub const CONFIG: u8 = 78;
/// Interrupted.
pub const INTERRUPTED: u8 = 130;
