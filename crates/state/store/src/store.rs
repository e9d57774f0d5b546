//! The store of one node: one data directory, one process.
//!
//! ```text
//! DATA/lock                 held with flock; the holder's pid for the error message DATA/mote.db
//! functions and revisions (SQLite, WAL, every commit synced) DATA/code/<sha256>/       code trees,
//! read-only, shared by equal revisions DATA/packages/<key>/      installed packages DATA/staging/
//! work in progress; emptied at start
//! ```
//! A tree is written in staging, synced, and renamed before a row names it. So every tree that a
//! row names is complete. Trees that no row names are removed at start and by
//! [`Store::collect_garbage`].

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use mote_core::rollout::{Split, Traffic};
use mote_spec::{FunctionName, FunctionSpec, ScaleOverride};
use rusqlite::{Connection, Row, params};
use rustix::fs::FlockOperation;

use crate::archive::{self, ArchiveLimits};
use crate::archive_error::ArchiveError;
use crate::error::StoreError;
use crate::remove::remove_tree;
use crate::schema;
pub use crate::traffic_rows::REVISIONS_KEPT;
use crate::traffic_rows::prune;

/// All calls of the store block. Share it behind an `Arc`.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    connection: Mutex<Connection>,
    pins: Arc<Pins>,
    staged: AtomicU64,
    recovery: Recovery,
    /// Held for the life of the store; closing it releases the lock.
    _lock: File,
}

/// Leftovers that were removed when the store was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Unfinished work in `staging`.
    pub staging_removed: u64,
    /// Trees that no revision names.
    pub trees_removed: u64,
    /// Leftovers that could not be removed, each with the reason. They only use space, and the next
    /// start tries again.
    pub left: Vec<String>,
}

/// The result of [`Store::collect_garbage`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Collected {
    /// Trees that were removed from use.
    pub trees: u64,
    /// Trees that could not be removed, each with the reason.
    pub left: Vec<String>,
}

/// Uploaded code, complete and durable, that is not yet part of a revision. The garbage collector
/// keeps it until this is dropped.
#[derive(Debug)]
pub struct StagedCode {
    /// The hash of the code's content, which is also its name.
    pub hash: String,
    pub path: PathBuf,
    pub files: u64,
    /// Bytes in the files.
    pub bytes: u64,
    /// Notes for the user about what was removed from the archive, one line each.
    pub notes: Vec<String>,
    /// Content of the entry that [`ArchiveLimits::set_aside`] names, if that entry came first.
    pub set_aside: Option<Vec<u8>>,
    _pin: Pin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevisionState {
    /// The revision is stored, and has never received traffic.
    Added,
    /// The revision has the largest share of the traffic.
    Live,
    /// The revision has a smaller share of the traffic, or had a share before.
    Retired,
}

/// A revision that was just added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    pub function: FunctionName,
    /// The revision's number, from 1.
    pub revision: u64,
    /// When the revision was added, in milliseconds since 1970.
    pub created_at_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRevision {
    pub spec: FunctionSpec,
    pub revision: u64,
    /// The hash that names the code.
    pub code_hash: String,
    pub code_path: PathBuf,
    /// The key that names the packages, if there are any.
    pub packages_key: Option<String>,
    pub packages_path: Option<PathBuf>,
    /// When this revision was added, in milliseconds since 1970.
    pub created_at_ms: u64,
    /// When the function's first revision was added.
    pub function_created_at_ms: u64,
    pub state: RevisionState,
}

/// A function that is stored but cannot be served. Other functions are not affected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    pub function: String,
    pub revision: u64,
    pub reason: String,
}

/// A function with all revisions that serve it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFunction {
    /// The revision with the largest share.
    pub live: StoredRevision,
    /// The traffic split. It names only `live` and `others`.
    pub traffic: Traffic,
    /// Further revisions that a share or tag reaches.
    pub others: Vec<StoredRevision>,
}

/// All functions with a live revision, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Functions that can be served.
    pub functions: Vec<StoredFunction>,
    /// Functions that cannot be served.
    pub damaged: Vec<Damaged>,
}

impl Store {
    /// Opens or creates the store in `data_dir`, locks it against other processes, and removes
    /// unfinished work that a crash left. Fails before any write if a newer version made the
    /// tables.
    pub fn open(data_dir: &Path) -> Result<Self, StoreError> {
        let database = data_dir.join("mote.db");
        schema::refuse_newer(&database, schema::VERSION)?;
        make_dir(data_dir, 0o711)?;
        // The path is resolved once, so that a later change of the working directory has no effect.
        let root = std::fs::canonicalize(data_dir).map_err(|e| StoreError::io(data_dir, e))?;
        let lock = lock_dir(&root)?;
        // Sandboxes receive folders below these as mounts, which the zygote opens as the node's
        // user. No other user can read the code of functions, even with the hash of the code.
        for name in ["code", "packages", "staging"] {
            let folder = root.join(name);
            make_dir(&folder, 0o700)?;
            let io = |error| StoreError::io(&folder, error);
            let mode = std::fs::metadata(&folder).map_err(io)?.permissions().mode() & 0o7777;
            if mode & 0o077 != 0 {
                std::fs::set_permissions(&folder, Permissions::from_mode(mode & !0o077))
                    .map_err(io)?;
            }
        }
        let database = root.join("mote.db");
        // Code is stored only after the tables exist. If there is code without tables, the tables
        // were lost.
        let connection = schema::open(&database, any_tree(&root)?.as_deref())?;
        for name in ["mote.db", "mote.db-wal", "mote.db-shm"] {
            let path = root.join(name);
            if path.exists() {
                std::fs::set_permissions(&path, Permissions::from_mode(0o600))
                    .map_err(|error| StoreError::io(&path, error))?;
            }
        }
        sync_dir(&root)?;
        let mut store = Self {
            root,
            connection: Mutex::new(connection),
            pins: Arc::default(),
            staged: AtomicU64::new(0),
            recovery: Recovery::default(),
            _lock: lock,
        };
        let (staging_removed, mut left) = store.empty_staging()?;
        let collected = store.collect_garbage(&HashSet::new())?;
        left.extend(collected.left);
        store.recovery = Recovery { staging_removed, trees_removed: collected.trees, left };
        Ok(store)
    }

    /// The absolute path of the data directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Leftovers that were removed when the store was opened.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Unpacks an uploaded archive (plain or gzip tar) and makes its tree durable. After an error
    /// nothing is left on disk. Equal content has the same hash and is stored once.
    pub fn stage_archive(
        &self,
        input: impl Read,
        limits: &ArchiveLimits,
    ) -> Result<StagedCode, StoreError> {
        let staging = self.new_staging_dir()?;
        let result = self.unpack_into(&staging, input, limits);
        if result.is_err() || staging.exists() {
            remove_tree(&staging).map_err(|error| StoreError::io(&staging, error))?;
        }
        result
    }

    fn unpack_into(
        &self,
        staging: &Path,
        input: impl Read,
        limits: &ArchiveLimits,
    ) -> Result<StagedCode, StoreError> {
        let unpacked = archive::unpack(input, staging, limits).map_err(|error| match error {
            ArchiveError::Io(error) => StoreError::io(staging, error),
            other => StoreError::Archive(other),
        })?;
        crash_point("unpacked");
        let path = self.code_path(&unpacked.hash);
        let _guard = self.lock();
        let pin = self.pin(&unpacked.hash);
        if !path.is_dir() {
            std::fs::rename(staging, &path).map_err(|error| StoreError::io(&path, error))?;
            sync_dir(&self.root.join("code"))?;
        }
        crash_point("renamed");
        Ok(StagedCode {
            hash: unpacked.hash,
            path,
            files: unpacked.files,
            bytes: unpacked.bytes,
            notes: unpacked.notes,
            set_aside: unpacked.set_aside,
            _pin: pin,
        })
    }

    /// Adds a revision of `spec.name`. The live revision stays live. The oldest revisions in excess
    /// of [`REVISIONS_KEPT`] are removed.
    pub fn add_revision(
        &self,
        spec: &FunctionSpec,
        code_hash: &str,
        packages_key: Option<&str>,
    ) -> Result<Revision, StoreError> {
        self.add(spec, code_hash, packages_key, None)
    }

    /// Adds a revision with a number that the caller chooses. Fails if the number is already
    /// stored.
    pub fn place_revision(
        &self,
        spec: &FunctionSpec,
        code_hash: &str,
        packages_key: Option<&str>,
        number: u64,
    ) -> Result<Revision, StoreError> {
        self.add(spec, code_hash, packages_key, Some(number))
    }

    fn add(
        &self,
        spec: &FunctionSpec,
        code_hash: &str,
        packages_key: Option<&str>,
        number: Option<u64>,
    ) -> Result<Revision, StoreError> {
        if !self.code_path(code_hash).is_dir() {
            return Err(StoreError::NotStored(format!("code {code_hash}")));
        }
        if let Some(key) = packages_key
            && !self.packages_path(key).is_dir()
        {
            return Err(StoreError::NotStored(format!("packages {key}")));
        }
        let json = mote_spec::json::to_json(spec);
        let created_at_ms = now_ms();
        let name = spec.name.as_str();
        let revision = self.change(|change| {
            change.execute(
                "INSERT INTO functions (name, live, next_revision, created_at_ms)
                 VALUES (?1, NULL, 1, ?2) ON CONFLICT (name) DO NOTHING",
                params![name, created_at_ms as i64],
            )?;
            let revision: i64 = match number {
                None => change.query_row(
                    "UPDATE functions SET next_revision = next_revision + 1 WHERE name = ?1
                     RETURNING next_revision - 1",
                    [name],
                    |row| row.get(0),
                )?,
                Some(number) => {
                    change.execute(
                        "UPDATE functions SET next_revision = max(next_revision, ?2 + 1)
                         WHERE name = ?1",
                        params![name, number as i64],
                    )?;
                    number as i64
                }
            };
            change.execute(
                "INSERT INTO revisions VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'added')",
                params![name, revision, json, code_hash, packages_key, created_at_ms as i64],
            )?;
            prune(change, name)?;
            crash_point("row-written");
            Ok(revision as u64)
        })?;
        crash_point("row-committed");
        Ok(Revision { function: spec.name.clone(), revision, created_at_ms })
    }

    /// Removes a revision that never became ready and whose function was never live. Otherwise its
    /// files would stay, because no user could find or remove the revision. Its number is not
    /// reused.
    pub fn forget_failed(&self, name: &FunctionName, revision: u64) -> Result<(), StoreError> {
        self.change(|change| {
            change.execute(
                "DELETE FROM revisions WHERE function = ?1 AND revision = ?2 AND function IN
                 (SELECT name FROM functions WHERE live IS NULL)",
                params![name.as_str(), revision as i64],
            )
        })?;
        Ok(())
    }

    /// Stores limits for the number of a function's instances, which apply until another revision
    /// is live. `None` removes the limits. Returns false if there is no such function.
    pub fn set_scale(
        &self,
        name: &FunctionName,
        bounds: Option<&ScaleOverride>,
    ) -> Result<bool, StoreError> {
        let json = bounds.map(serde_json::to_string).transpose();
        let json = json.map_err(|e| StoreError::Damaged(format!("bounds of {name}: {e}")))?;
        let changed = self.change(|change| {
            let sql = "UPDATE functions SET scale = ?2 WHERE name = ?1";
            change.execute(sql, params![name.as_str(), json])
        })?;
        Ok(changed > 0)
    }

    /// Returns the limits stored by [`Store::set_scale`]. Limits that cannot be read are left out,
    /// so that the manifest's limits apply.
    pub fn scales(&self) -> Result<HashMap<String, ScaleOverride>, StoreError> {
        let connection = self.lock();
        let sql = |error| schema::sql(&self.root, error);
        let mut statement = connection
            .prepare("SELECT name, scale FROM functions WHERE scale IS NOT NULL")
            .map_err(sql)?;
        let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?));
        let rows = statement.query_map([], read).map_err(sql)?;
        let mut scales = HashMap::new();
        for row in rows {
            let (name, json) = row.map_err(sql)?;
            if let Ok(bounds) = serde_json::from_str(&json) {
                scales.insert(name, bounds);
            }
        }
        Ok(scales)
    }

    /// Returns all functions with a live revision. A damaged row or tree is reported and does not
    /// affect other functions. The traffic of a damaged revision goes to the live one.
    pub fn functions(&self) -> Result<Inventory, StoreError> {
        let mut inventory = Inventory::default();
        for row in self.rows("r.state = 'live'", "")? {
            let live = match self.check(row) {
                Ok(live) => live,
                Err(damaged) => {
                    inventory.damaged.push(damaged);
                    continue;
                }
            };
            let name = live.spec.name.clone();
            let stored = self.traffic(&name)?.unwrap_or_else(|| Traffic::whole(live.revision));
            let mut others = Vec::new();
            let reached = |revision| revision != live.revision && stored.split.reaches(revision);
            if stored.split.shares().len() > 1 {
                for row in self.rows("r.function = ?1", name.as_str())? {
                    if !reached(row.revision) {
                        continue;
                    }
                    match self.check(row) {
                        Ok(other) => others.push(other),
                        Err(damaged) => inventory.damaged.push(damaged),
                    }
                }
            }
            let traffic = without_missing(stored, &live, &others);
            inventory.functions.push(StoredFunction { live, traffic, others });
        }
        Ok(inventory)
    }

    /// Returns the revisions of one function, newest first. Empty if there is no such function.
    pub fn revisions(&self, name: &FunctionName) -> Result<Vec<StoredRevision>, StoreError> {
        let rows = self.rows("r.function = ?1", name.as_str())?;
        let mut revisions: Vec<_> =
            rows.into_iter().filter_map(|row| self.check(row).ok()).collect();
        revisions.sort_unstable_by_key(|stored| std::cmp::Reverse(stored.revision));
        Ok(revisions)
    }

    /// Removes a function and its revisions. Returns false if there was none. The code stays on
    /// disk until [`Store::collect_garbage`], because instances may still run it.
    pub fn remove(&self, name: &FunctionName) -> Result<bool, StoreError> {
        let removed = self.change(|change| {
            change.execute("DELETE FROM functions WHERE name = ?1", [name.as_str()])
        })?;
        Ok(removed > 0)
    }

    /// Removes all functions of a namespace with their revisions, including functions that were
    /// never live.
    pub fn remove_all_of(&self, namespace: &str) -> Result<(), StoreError> {
        let end = format!(".{namespace}");
        let sql = "DELETE FROM functions WHERE substr(name, -length(?1)) = ?1";
        self.change(|change| change.execute(sql, [end]))?;
        Ok(())
    }

    /// Removes code and packages that no revision names and that are not in use. `in_use` contains
    /// the hashes and keys of running instances. A tree that cannot be removed is reported and does
    /// not stop the collection.
    pub fn collect_garbage(&self, in_use: &HashSet<String>) -> Result<Collected, StoreError> {
        let mut trash = Vec::new();
        let mut left = Vec::new();
        {
            // While this lock is held, no tree can be renamed into place, and no new row can name a
            // tree.
            let connection = self.lock();
            let mut named: HashSet<String> = HashSet::new();
            let sql = |error| schema::sql(&self.root, error);
            let mut statement = connection
                .prepare("SELECT code_hash FROM revisions UNION SELECT packages_key FROM revisions WHERE packages_key IS NOT NULL")
                .map_err(sql)?;
            let names = statement.query_map([], |row| row.get::<_, String>(0)).map_err(sql)?;
            for name in names {
                named.insert(name.map_err(sql)?);
            }
            for folder in ["code", "packages"] {
                let folder = self.root.join(folder);
                for entry in std::fs::read_dir(&folder).map_err(|e| StoreError::io(&folder, e))? {
                    let entry = entry.map_err(|error| StoreError::io(&folder, error))?;
                    let name = entry.file_name().to_string_lossy().into_owned();
                    if named.contains(&name) || in_use.contains(&name) || self.is_pinned(&name) {
                        continue;
                    }
                    // The rename makes the tree disappear in one step. A crash during the slow
                    // removal then leaves only files in staging.
                    let away = self.staging_path();
                    match std::fs::rename(entry.path(), &away) {
                        Ok(()) => trash.push(away),
                        Err(error) => left.push(format!("{}: {error}", entry.path().display())),
                    }
                }
            }
        }
        for path in &trash {
            if let Err(error) = remove_tree(path) {
                left.push(format!("{}: {error}", path.display()));
            }
        }
        Ok(Collected { trees: trash.len() as u64, left })
    }

    /// The digests of the container images that stored revisions name: those of all functions, or
    /// of the functions in one namespace. Reads the specs of all functions with images.
    pub fn image_digests(&self, namespace: Option<&str>) -> Result<Vec<String>, StoreError> {
        #[derive(serde::Deserialize)]
        struct Spec {
            name: FunctionName,
            image: Option<Image>,
        }
        #[derive(serde::Deserialize)]
        struct Image {
            digest: Option<String>,
        }
        let connection = self.lock();
        let sql = |error| schema::sql(&self.root, error);
        let mut statement = connection
            .prepare("SELECT spec FROM revisions WHERE spec LIKE '%\"image\"%'")
            .map_err(sql)?;
        let specs = statement.query_map([], |row| row.get::<_, String>(0)).map_err(sql)?;
        let mut digests = Vec::new();
        for spec in specs {
            // A damaged spec cannot be served, so it needs no image.
            let spec: Option<Spec> = serde_json::from_str(&spec.map_err(sql)?).ok();
            let spec =
                spec.filter(|spec| namespace.is_none() || spec.name.namespace() == namespace);
            digests.extend(spec.and_then(|spec| spec.image?.digest));
        }
        Ok(digests)
    }

    /// Whether the code named `hash` is unchanged. Reads all of the code.
    pub fn verify_code(&self, hash: &str) -> Result<bool, StoreError> {
        let path = self.code_path(hash);
        let now = crate::tree::hash_dir(&path).map_err(|error| StoreError::io(&path, error))?;
        Ok(now == hash)
    }

    fn check(&self, row: RawRevision) -> Result<StoredRevision, Damaged> {
        let damaged = |reason: String| Damaged {
            function: row.function.clone(),
            revision: row.revision,
            reason,
        };
        let spec = mote_spec::json::from_json(row.spec.as_bytes())
            .map_err(|error| damaged(format!("its spec cannot be read: {error}")))?;
        if spec.name.as_str() != row.function {
            return Err(damaged(format!("its spec is of another function, {}", spec.name)));
        }
        let code_path = self.code_path(&row.code_hash);
        if !code_path.is_dir() {
            return Err(damaged(format!("its code {} is missing", row.code_hash)));
        }
        let packages_path = row.packages_key.as_deref().map(|key| self.packages_path(key));
        if packages_path.as_ref().is_some_and(|path| !path.is_dir()) {
            return Err(damaged("its packages are missing".to_owned()));
        }
        Ok(StoredRevision {
            spec,
            revision: row.revision,
            code_hash: row.code_hash,
            code_path,
            packages_key: row.packages_key,
            packages_path,
            created_at_ms: row.created_at_ms,
            function_created_at_ms: row.function_created_at_ms,
            state: row.state,
        })
    }

    fn rows(&self, filter: &str, value: &str) -> Result<Vec<RawRevision>, StoreError> {
        let connection = self.lock();
        let sql = |error| schema::sql(&self.root, error);
        let mut statement = connection
            .prepare(&format!(
                "SELECT r.function, r.revision, r.spec, r.code_hash, r.packages_key,
                        r.created_at_ms, f.created_at_ms, r.state
                 FROM revisions r JOIN functions f ON f.name = r.function
                 WHERE {filter} AND ?1 = ?1 ORDER BY r.function, r.revision"
            ))
            .map_err(sql)?;
        let rows = statement.query_map([value], RawRevision::read).map_err(sql)?;
        rows.collect::<Result<Vec<_>, _>>().map_err(sql)
    }

    /// Makes one durable change: either all of it takes effect or nothing.
    pub(crate) fn change<T>(
        &self,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let mut connection = self.lock();
        let sql = |error| schema::sql(&self.root, error);
        let change = connection.transaction().map_err(sql)?;
        let value = work(&change).map_err(sql)?;
        change.commit().map_err(sql)?;
        Ok(value)
    }

    /// A poisoned lock is safe to use: a panic under the lock leaves no partial change, because
    /// transactions roll back.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn code_path(&self, hash: &str) -> PathBuf {
        self.root.join("code").join(hash)
    }

    pub(crate) fn packages_root(&self) -> PathBuf {
        self.root.join("packages")
    }

    fn staging_path(&self) -> PathBuf {
        let number = self.staged.fetch_add(1, Ordering::Relaxed);
        self.root.join("staging").join(number.to_string())
    }

    pub(crate) fn new_staging_dir(&self) -> Result<PathBuf, StoreError> {
        let path = self.staging_path();
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| StoreError::io(&path, error))?;
        Ok(path)
    }

    /// Removes unfinished work. Returns how many entries were removed, and which could not be
    /// removed. The names of those that remain are not used again.
    fn empty_staging(&self) -> Result<(u64, Vec<String>), StoreError> {
        let folder = self.root.join("staging");
        let io = |error| StoreError::io(&folder, error);
        let mut removed = 0;
        let mut left = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(io)? {
            let entry = entry.map_err(io)?;
            let path = entry.path();
            match remove_tree(&path) {
                Ok(()) => removed += 1,
                Err(error) => {
                    left.push(format!("{}: {error}", path.display()));
                    let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
                    let above = number.map_or(0, |number: u64| number.saturating_add(1));
                    self.staged.fetch_max(above, Ordering::Relaxed);
                }
            }
        }
        Ok((removed, left))
    }

    pub(crate) fn pin(&self, name: &str) -> Pin {
        *self.pins.lock().entry(name.to_owned()).or_default() += 1;
        Pin { pins: Arc::clone(&self.pins), name: name.to_owned() }
    }

    fn is_pinned(&self, name: &str) -> bool {
        self.pins.lock().contains_key(name)
    }
}

/// Names in use by work in progress, each with a count because two deploys may share a tree.
#[derive(Debug, Default)]
struct Pins(Mutex<HashMap<String, u64>>);

impl Pins {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Protects one tree from the garbage collector until dropped.
#[derive(Debug)]
pub(crate) struct Pin {
    pins: Arc<Pins>,
    name: String,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = self.pins.lock();
        if let Some(count) = pins.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&self.name);
            }
        }
    }
}

struct RawRevision {
    function: String,
    revision: u64,
    spec: String,
    code_hash: String,
    packages_key: Option<String>,
    created_at_ms: u64,
    function_created_at_ms: u64,
    state: RevisionState,
}

impl RawRevision {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let number = |at: usize| row.get::<_, i64>(at).map(|n| u64::try_from(n).unwrap_or(0));
        // Text that is not UTF-8 must make only its own revision unreadable, not the whole query.
        let text = |at: usize| -> rusqlite::Result<Option<String>> {
            let bytes = row.get_ref(at)?.as_bytes_or_null()?;
            Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
        };
        Ok(Self {
            function: text(0)?.unwrap_or_default(),
            revision: number(1)?,
            spec: text(2)?.unwrap_or_default(),
            code_hash: text(3)?.unwrap_or_default(),
            packages_key: text(4)?,
            created_at_ms: number(5)?,
            function_created_at_ms: number(6)?,
            state: match row.get_ref(7)?.as_str()? {
                "live" => RevisionState::Live,
                "added" => RevisionState::Added,
                _ => RevisionState::Retired,
            },
        })
    }
}

fn now_ms() -> u64 {
    // A clock before 1970 counts as 1970. These times are only displayed.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Creates a folder if it is missing. An existing folder only gains the search bits that it needs.
fn make_dir(path: &Path, mode: u32) -> Result<(), StoreError> {
    let io = |error| StoreError::io(path, error);
    if !path.exists() {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(io)?;
        // The mode is set separately, because the umask restricts it at creation.
        return std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(io);
    }
    let now = std::fs::metadata(path).map_err(io)?.permissions().mode() & 0o7777;
    if now & mode != mode {
        std::fs::set_permissions(path, Permissions::from_mode(now | mode)).map_err(io)?;
    }
    Ok(())
}

/// Returns one tree of code or packages, if there are any.
fn any_tree(root: &Path) -> Result<Option<PathBuf>, StoreError> {
    for name in ["code", "packages"] {
        let folder = root.join(name);
        let io = |error| StoreError::io(&folder, error);
        if let Some(entry) = std::fs::read_dir(&folder).map_err(io)?.next() {
            return Ok(Some(entry.map_err(io)?.path()));
        }
    }
    Ok(None)
}

fn lock_dir(root: &Path) -> Result<File, StoreError> {
    let path = root.join("lock");
    let io = |error| StoreError::io(&path, error);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(io)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            let _ = (&mut file).take(16).read_to_string(&mut pid);
            let pid = pid.trim();
            return Err(StoreError::InUse {
                path: root.to_owned(),
                pid: if pid.is_empty() { "?" } else { pid }.to_owned(),
            });
        }
        Err(errno) => return Err(io(errno.into())),
    }
    file.set_len(0).map_err(io)?;
    writeln!(file, "{}", std::process::id()).map_err(io)?;
    Ok(file)
}

/// Returns the traffic split without revisions that cannot be served. The live revision receives
/// their shares.
fn without_missing(traffic: Traffic, live: &StoredRevision, others: &[StoredRevision]) -> Traffic {
    let there = |revision| {
        revision == live.revision || others.iter().any(|other| other.revision == revision)
    };
    let mut shares = traffic.split.shares().to_vec();
    let mut lost = 0;
    shares.retain(|share| {
        lost += if there(share.revision) { 0 } else { share.percent };
        there(share.revision)
    });
    if let Some(share) = shares.iter_mut().find(|share| share.revision == live.revision) {
        share.percent += lost;
    }
    let split = Split::new(shares).unwrap_or_else(|_| Split::whole(live.revision));
    Traffic { split, ..traffic }
}

/// Makes renames in a folder durable.
pub(crate) fn sync_dir(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(|error| StoreError::io(path, error))
}

/// In the test binary, kills the process here if the environment says so. As in a power cut,
/// nothing is unwound.
#[cfg(test)]
pub(crate) fn crash_point(step: &str) {
    if std::env::var("MOTE_STORE_CRASH_AT").is_ok_and(|at| at == step) {
        std::process::abort();
    }
}

/// Does nothing outside the test binary.
#[cfg(not(test))]
pub(crate) fn crash_point(_step: &str) {}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
