//! The state that functions keep in their node: keys and values in namespaces.
//!
//! [`Operation`] says what can be done, as plain data. The store behind [`State`] does it: one file
//! per node, or NATS for several.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use mote_spec::QUOTA_BYTES_DEFAULT;

/// Longest key in bytes.
pub const KEY_BYTES_MAX: usize = 512;
/// Longest value in bytes.
pub const VALUE_BYTES_MAX: usize = 256 << 10;
/// Most entries of one listing.
pub const LIST_MAX: u32 = 1_000;
/// A listing ends before its keys and values would have more bytes than this, but has at least one
/// entry.
pub const LIST_BYTES_MAX: usize = 512 << 10;
/// Keys of one namespace.
pub const KEYS_MAX: u64 = 100_000;
/// Longest time to live: about ten years.
pub const TTL_MS_MAX: u64 = 10 * 366 * 24 * 3_600_000;

/// The entry that a change requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Any, or none.
    None,
    /// There is none.
    Absent,
    /// It has this version.
    Version(u64),
}

impl Condition {
    /// Whether an entry of this version meets it; 0 stands for no entry.
    pub fn holds(self, version: u64) -> bool {
        match self {
            Condition::None => true,
            Condition::Absent => version == 0,
            Condition::Version(required) => version == required,
        }
    }
}

/// What is done to the entries of one namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Reads an entry.
    Get {
        /// Its key.
        key: String,
    },
    /// Writes an entry.
    Put {
        /// Its key.
        key: String,
        /// Its value.
        value: Bytes,
        /// What is required of the entry that it replaces.
        condition: Condition,
        /// After how many milliseconds it vanishes.
        ttl_ms: Option<u64>,
    },
    /// Removes an entry.
    Delete {
        /// Its key.
        key: String,
        /// What is required of it.
        condition: Condition,
    },
    /// Reads the entries whose keys begin with a prefix, in the order of the bytes of their keys.
    List {
        /// The prefix; empty for all.
        prefix: String,
        /// The listing begins after this key.
        after: Option<String>,
        /// Entries at most; 0 for as many as one listing may have.
        limit: u32,
        /// Whether the values are read too.
        values: bool,
    },
    /// Adds to an entry that holds a whole number in decimal; without an entry, to 0.
    Increment {
        /// Its key.
        key: String,
        /// What is added.
        by: i64,
        /// After how many milliseconds it vanishes; `None` leaves that as it was.
        ttl_ms: Option<u64>,
    },
}

impl Operation {
    /// Whether the lengths are allowed; the text says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let is_key = |key: &str| {
            if (1..=KEY_BYTES_MAX).contains(&key.len()) && !key.contains('\0') {
                return Ok(());
            }
            Err(format!("a key has 1 to {KEY_BYTES_MAX} bytes of UTF-8 without NUL"))
        };
        let is_ttl = |ttl_ms: &Option<u64>| match ttl_ms {
            Some(ttl_ms) if *ttl_ms > TTL_MS_MAX => Err("a time to live is at most ten years"),
            _ => Ok(()),
        };
        match self {
            Operation::Get { key } | Operation::Delete { key, .. } => is_key(key),
            Operation::Increment { key, ttl_ms, .. } => {
                is_key(key)?;
                Ok(is_ttl(ttl_ms)?)
            }
            Operation::Put { key, value, ttl_ms, .. } => {
                is_key(key)?;
                if value.len() > VALUE_BYTES_MAX {
                    let bytes = value.len();
                    return Err(format!("a value has at most 256 KiB; this one has {bytes} bytes"));
                }
                Ok(is_ttl(ttl_ms)?)
            }
            Operation::List { prefix, after, .. } => {
                let longest = prefix.len().max(after.as_ref().map_or(0, String::len));
                if longest > KEY_BYTES_MAX {
                    return Err(format!("a prefix has at most {KEY_BYTES_MAX} bytes"));
                }
                Ok(())
            }
        }
    }

    /// Whether it changes anything.
    pub fn writes(&self) -> bool {
        !matches!(self, Operation::Get { .. } | Operation::List { .. })
    }
}

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its value; empty in a listing without values.
    pub value: Bytes,
    /// Rises with every change of any entry of its namespace, so no two values of a key share one.
    pub version: u64,
    /// When it vanishes, in milliseconds since 1970.
    pub expires_unix_ms: Option<u64>,
}

/// What an operation resulted in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The entry, if there is one.
    Entry(Option<Entry>),
    /// It was written and has this version.
    Written {
        /// The version.
        version: u64,
    },
    /// Whether there was an entry to remove.
    Deleted(bool),
    /// These entries.
    Listed {
        /// Keys and entries in order.
        entries: Vec<(String, Entry)>,
        /// Whether there are more.
        more: bool,
    },
    /// The number was changed to this one.
    Counted {
        /// The version of its entry.
        version: u64,
        /// The number.
        value: i64,
    },
}

/// Why an operation was not done. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The entry has another version; 0 if there is none.
    #[error("the entry has version {version}")]
    Conflict {
        /// Its version.
        version: u64,
    },
    /// The quota of the namespace is used up.
    #[error("{0}")]
    Full(String),
    /// It cannot be done, whatever the quota.
    #[error("{0}")]
    Invalid(String),
    /// The disk did not take it: it is full, or it fails. Or the server that keeps it does not answer;
    /// then it may have changed nevertheless.
    #[error("the state cannot be read or written: {0}")]
    Disk(String),
}

/// Where entries are kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Namespace {
    /// A function's own.
    Function(String),
    /// A shared one, by its name.
    Shared(String),
}

/// What a namespace may hold when something is written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Keys.
    pub keys: u64,
    /// Bytes of all functions in the namespace of the function, and of what they share.
    pub together_bytes: Option<u64>,
}

impl Default for Quota {
    fn default() -> Self {
        Self { bytes: QUOTA_BYTES_DEFAULT, keys: KEYS_MAX, together_bytes: None }
    }
}

/// What a namespace holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// The namespace.
    pub namespace: Namespace,
    /// Keys.
    pub keys: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
}

/// The result of an operation.
pub type StateResult = Result<Outcome, StateError>;
/// A future of this module.
pub type StateFuture<T> = Pin<Box<dyn Future<Output = Result<T, StateError>> + Send>>;

/// An operation that was begun.
pub enum Begun {
    /// It is done.
    Done(StateResult),
    /// It is under way; it happens whether or not somebody waits.
    Later(StateFuture<Outcome>),
}

/// Keeps the state.
pub trait State: Send + Sync + 'static {
    /// Begins an operation; does not block. If `durable`, the change is on disk when it is
    /// answered. Otherwise it survives the end of the node's process, and may be lost if the
    /// machine loses power.
    fn begin(
        &self,
        namespace: Namespace,
        operation: Operation,
        quota: Quota,
        durable: bool,
        now_unix_ms: u64,
    ) -> Begun;

    /// What each namespace holds.
    fn usage(&self) -> StateFuture<Vec<Usage>>;

    /// Removes a namespace with everything in it.
    fn clear(&self, namespace: Namespace) -> StateFuture<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_checked() {
        let get = |key: String| Operation::Get { key }.check();
        assert_eq!(get("k".repeat(KEY_BYTES_MAX)), Ok(()));
        assert!(get("k".repeat(KEY_BYTES_MAX + 1)).is_err());
        assert!(get(String::new()).is_err() && get("a\0".into()).is_err());
        let put = |bytes: usize, ttl_ms| {
            let value = vec![0; bytes].into();
            Operation::Put { key: "k".into(), value, condition: Condition::None, ttl_ms }.check()
        };
        assert_eq!(put(VALUE_BYTES_MAX, Some(TTL_MS_MAX)), Ok(()));
        assert!(put(VALUE_BYTES_MAX + 1, None).is_err());
        assert!(put(0, Some(TTL_MS_MAX + 1)).is_err());
    }
}
