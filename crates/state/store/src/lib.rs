//! The durable state of a node: functions, their revisions, code and packages, secrets, keys of
//! callers, and accepted calls.
//!
//! Revisions are rows in SQLite. Code and packages are folders named by their content. A call that
//! returns `Ok` is durable (fsync). Every call blocks, so call this crate from a blocking thread.
//! It must not know how a function runs, nor anything about HTTP.
//!
//! Start with [`store::Store`]. [`archive`] and [`unzip()`] handle uploads, which are not trusted,
//! and [`pack`] makes archives that they accept.
//!
//! The files:
//!
//! - `store.rs`: the layout on disk, and the order of writes
//! - `archive.rs`, `tar.rs`, `tar_fields.rs`, `sparse.rs`, `unzip.rs`, `entry_path.rs`: hostile uploads
//! - `tree.rs`, `remove.rs`: code trees named by their content; removal of trees of any depth
//! - `commit.rs`: group commit, in which many callers share one sync
//! - `schema.rs`: tables and their migrations
//! - `keys.rs`, `secrets.rs`, `traffic.rs`, `marks.rs`: contents of the tables
//! - `documents.rs`: entities of other platforms that are not functions
//! - `calls.rs`: calls that earlier versions accepted
//! - `seal/`: keys and encrypted secrets
//! - `state/`: keys and values of functions

pub mod archive;
mod archive_error;
mod calls;
pub mod commit;
mod documents;
mod entry_path;
pub mod error;
mod files;
mod ignore;
mod keys;
pub mod log_files;
mod marks;
pub mod own;
pub mod pack;
pub mod packages;
mod remove;
mod schema;
pub mod seal;
mod secrets;
pub mod source;
pub mod sparse;
pub mod state;
pub mod store;
pub mod tar;
mod tar_fields;
mod traffic;
mod traffic_rows;
pub mod tree;
mod unzip;
mod usage;

pub use archive::{ArchiveLimits, LargeEntry};
pub use archive_error::ArchiveError;
pub use documents::DocumentChange;
pub use error::StoreError;
pub use files::{Loss, LostFile};
pub use keys::{Added, StoredKey};
pub use pack::{PackError, Packed};
pub use packages::{Lookup, PackagesStaging, StoredPackages};
pub use remove::remove_tree;
pub use secrets::SecretsThere;
pub use store::{
    Collected, Damaged, Inventory, Recovery, Revision, RevisionState, StagedCode, Store,
    StoredFunction, StoredRevision,
};
pub use unzip::unzip;
pub use usage::{bytes_below, disk_bytes};
