//! Exit codes of the command line.

/// The command did its work.
pub const DONE: u8 = 0;
/// The command failed for a reason that has no exit code.
pub const FAILED: u8 = 1;
/// The command line was wrong.
pub const USAGE: u8 = 2;
/// There is no such function.
pub const NO_FUNCTION: u8 = 3;
/// The node cannot be reached.
pub const UNREACHABLE: u8 = 4;
/// The function returned an error.
pub const FUNCTION: u8 = 5;
/// The deadline has passed.
pub const DEADLINE: u8 = 6;
/// The invocation was refused because the function or the node is full.
pub const FULL: u8 = 7;
/// The manifest or the code is not valid.
pub const INVALID: u8 = 8;
/// A benchmark exceeded a limit of `--fail-if`.
pub const LIMIT: u8 = 9;
/// The zygote, the process that starts functions, has ended (`EX_OSERR`). Restarting the node starts a
/// new zygote, so service units should restart on this code.
pub const HELPER: u8 = 71;
/// An address or the data directory of the node is in use (`EX_TEMPFAIL`). It may become free, so
/// service units should restart on this code.
pub const BUSY: u8 = 75;
/// The node's configuration is not valid (`EX_CONFIG`). A restart would not help, so service units
/// should not restart on this code.
pub const CONFIG: u8 = 78;
/// The user interrupted the command.
pub const INTERRUPTED: u8 = 130;
