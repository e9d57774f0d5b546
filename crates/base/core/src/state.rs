//! The state that functions keep in their node: keys and values in namespaces.
//!
//! [`Operation`] describes, as plain data, what can be done. The store behind [`State`] carries the
//! operation out: one file per node, or NATS for several nodes.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use mote_spec::QUOTA_BYTES_DEFAULT;

/// Longest key in bytes.
pub const KEY_BYTES_MAX: usize = 512;
/// Longest value in bytes.
pub const VALUE_BYTES_MAX: usize = 256 << 10;
/// The maximum number of entries in one listing.
pub const LIST_MAX: u32 = 1_000;
/// A listing ends before its keys and values exceed this number of bytes, but it always has at
/// least one entry.
pub const LIST_BYTES_MAX: usize = 512 << 10;
/// The maximum number of keys of one namespace.
pub const KEYS_MAX: u64 = 100_000;
/// Longest time to live: about ten years.
pub const TTL_MS_MAX: u64 = 10 * 366 * 24 * 3_600_000;

/// What a change requires of the existing entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Nothing: the entry may exist or not.
    None,
    /// The entry does not exist.
    Absent,
    /// The entry has this version.
    Version(u64),
}

impl Condition {
    /// Whether an entry of this version meets the condition. Version 0 stands for a missing entry.
    pub fn holds(self, version: u64) -> bool {
        match self {
            Condition::None => true,
            Condition::Absent => version == 0,
            Condition::Version(required) => version == required,
        }
    }
}

/// An operation on the entries of one namespace.
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
        /// What the operation requires of the entry that it replaces.
        condition: Condition,
        /// The time in milliseconds after which the entry vanishes.
        ttl_ms: Option<u64>,
    },
    /// Removes an entry.
    Delete {
        /// Its key.
        key: String,
        /// What the operation requires of the entry.
        condition: Condition,
    },
    /// Reads the entries whose keys begin with a prefix, in the order of the bytes of their keys.
    List {
        /// The prefix; empty for all.
        prefix: String,
        /// The listing begins after this key.
        after: Option<String>,
        /// The most entries to return; 0 for as many as one listing may have.
        limit: u32,
        /// Whether to read the values as well as the keys.
        values: bool,
    },
    /// Adds to an entry that holds a whole number in decimal. A missing entry counts as 0.
    Increment {
        /// Its key.
        key: String,
        /// The number to add.
        by: i64,
        /// The time in milliseconds after which the entry vanishes; `None` leaves it as it was.
        ttl_ms: Option<u64>,
    },
}

impl Operation {
    /// Checks that all lengths are allowed. The error says what is wrong.
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

    /// Whether the operation can change anything.
    pub fn writes(&self) -> bool {
        !matches!(self, Operation::Get { .. } | Operation::List { .. })
    }
}

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its value; empty in a listing without values.
    pub value: Bytes,
    /// The version rises with every change of any entry in the namespace, so no two values of a key
    /// have the same version.
    pub version: u64,
    /// The time at which the entry vanishes, in milliseconds since 1970.
    pub expires_unix_ms: Option<u64>,
}

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The entry, if there is one.
    Entry(Option<Entry>),
    /// The entry was written and now has this version.
    Written {
        /// The version.
        version: u64,
    },
    /// Whether there was an entry to remove.
    Deleted(bool),
    /// The entries that were found.
    Listed {
        /// Keys and entries in order.
        entries: Vec<(String, Entry)>,
        /// Whether the listing has more entries.
        more: bool,
    },
    /// The number was changed.
    Counted {
        /// The new version of the entry.
        version: u64,
        /// The new number.
        value: i64,
    },
}

/// Why an operation was not done. Nothing has changed, except where a variant says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The entry does not have the required version.
    #[error("the entry has version {version}")]
    Conflict {
        /// The version of the entry; 0 if it does not exist.
        version: u64,
    },
    /// The quota of the namespace is used up.
    #[error("{0}")]
    Full(String),
    /// The operation cannot be carried out, whatever the quota.
    #[error("{0}")]
    Invalid(String),
    /// The disk is full or failed, so nothing was stored. Or the server that keeps the state did
    /// not answer; in that case, the entry may have changed.
    #[error("the state cannot be read or written: {0}")]
    Disk(String),
}

/// Where entries are kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Namespace {
    /// The function's own namespace.
    Function(String),
    /// A shared namespace, by its name.
    Shared(String),
}

/// The limits that are checked when something is written to a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// The maximum number of bytes in keys and values.
    pub bytes: u64,
    /// The maximum number of keys.
    pub keys: u64,
    /// The maximum number of bytes in all functions in the same namespace as the function, together
    /// with the state that they share.
    pub together_bytes: Option<u64>,
}

impl Default for Quota {
    fn default() -> Self {
        Self { bytes: QUOTA_BYTES_DEFAULT, keys: KEYS_MAX, together_bytes: None }
    }
}

/// How much a namespace holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// The namespace.
    pub namespace: Namespace,
    /// The number of keys.
    pub keys: u64,
    /// The number of bytes of keys and values.
    pub bytes: u64,
}

/// The result of an operation.
pub type StateResult = Result<Outcome, StateError>;
/// The future of an operation.
pub type StateFuture<T> = Pin<Box<dyn Future<Output = Result<T, StateError>> + Send>>;

/// An operation that was begun.
pub enum Begun {
    /// The operation is done.
    Done(StateResult),
    /// The operation is under way. It completes whether or not the future is kept.
    Later(StateFuture<Outcome>),
}

/// A store for the state.
pub trait State: Send + Sync + 'static {
    /// Begins an operation; does not block. If `durable`, the change is on disk before the
    /// operation is answered. Otherwise the change survives the end of the node's process, but may
    /// be lost if the machine loses power.
    fn begin(
        &self,
        namespace: Namespace,
        operation: Operation,
        quota: Quota,
        durable: bool,
        now_unix_ms: u64,
    ) -> Begun;

    /// The usage of each namespace.
    fn usage(&self) -> StateFuture<Vec<Usage>>;

    /// Removes a namespace and everything in it.
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
