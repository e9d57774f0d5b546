//! Records of activations. A record is held in memory and is in the store half a second later. When
//! there are too many, the oldest are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::compat::node::{Change, Documents, Space};
use crate::compat::part::Part;
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use super::id::Id;
use super::{NAMESPACE, Node, Refused, Whisk};

const COLLECTION: &str = "openwhisk/activations";
/// The member of a record that contains the creation time of the record's namespace. Clients do not see
/// this member.
pub(super) const CREATED: &str = "namespaceCreated";
/// The most records that are kept, and the most bytes that they may use.
const RECORDS_MAX: usize = 10_000;
const BYTES_MAX: usize = 32 << 20;
/// The longest record. A longer record is shortened, so that one activation does not displace all
/// others. The limit has room for a result and the usual logs.
const RECORD_BYTES_MAX: usize = 4 << 20;
/// The last line of shortened logs. The wording is OpenWhisk's.
const LOGS_CUT: &str =
    "Logs were truncated because the total bytes size exceeds the limit of the node.";
/// How long a record may exist only in memory.
const WRITE_AFTER: Duration = Duration::from_millis(500);
/// How often the node looks for records whose namespace was deleted. It looks only while there are
/// records.
const FORGET_EVERY: Duration = Duration::from_secs(10);
/// The length of a list if the client gives no limit, and the longest permitted list.
const LIST_DEFAULT: usize = 30;
const LIST_MAX: usize = 200;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Activations {
    held: Mutex<Held>,
    /// Wakes the writer when a record is added.
    came: Notify,
    /// How many added records have been written so far.
    written: watch::Sender<u64>,
    /// Only one task writes at a time, so that an earlier state never overwrites a later one.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Held {
    /// Records by id. An id begins with the time, so the oldest record comes first.
    records: BTreeMap<String, Value>,
    bytes: usize,
    /// For each namespace, the number of its records and their bytes.
    owners: BTreeMap<Owner, (usize, usize)>,
    /// The ids of records that differ from their copies in the store.
    unwritten: BTreeSet<String>,
    added: u64,
}

/// The name of a namespace, and the time at which it was created. The time of the default namespace is
/// 0, because that namespace has always existed.
type Owner = (String, u64);

fn owner(record: &Value) -> Owner {
    let name = record["namespace"].as_str().unwrap_or(NAMESPACE);
    (name.to_owned(), record[CREATED].as_u64().unwrap_or(0))
}

fn owner_of(space: Option<&Space>) -> Owner {
    space.map_or((NAMESPACE.to_owned(), 0), |it| (it.name.to_string(), it.created_at_ms))
}

impl Held {
    fn add(&mut self, id: String, record: Value) {
        self.added += 1;
        self.unwritten.insert(id.clone());
        self.remove(&id);
        let Some((record, bytes)) = shortened(record) else {
            tracing::warn!(%id, "the record of an activation is too long to store");
            return;
        };
        self.insert(id, record, bytes);
        while self.records.len() > RECORDS_MAX || self.bytes > BYTES_MAX {
            // The namespace that uses the largest share loses its oldest record.
            let weight = |(count, bytes): &(usize, usize)| {
                bytes.div_ceil(BYTES_MAX / RECORDS_MAX).max(*count)
            };
            let most = self.owners.iter().max_by_key(|(_, held)| weight(held));
            let Some(most) = most.map(|(owner, _)| owner.clone()) else { break };
            let oldest = self.records.iter().find(|(_, record)| owner(record) == most);
            let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { break };
            self.remove(&oldest);
            self.unwritten.insert(oldest);
        }
    }

    fn insert(&mut self, id: String, record: Value, bytes: usize) {
        self.bytes += bytes;
        let held = self.owners.entry(owner(&record)).or_default();
        *held = (held.0 + 1, held.1 + bytes);
        self.records.insert(id, record);
    }

    fn remove(&mut self, id: &str) {
        let Some(record) = self.records.remove(id) else { return };
        let bytes = record.to_string().len();
        let owner = owner(&record);
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some(held) = self.owners.get_mut(&owner) {
            *held = (held.0 - 1, held.1.saturating_sub(bytes));
            if held.0 == 0 {
                self.owners.remove(&owner);
            }
        }
    }

    /// Removes the records of namespaces that no longer exist.
    fn forget(&mut self, exists: impl Fn(&Owner) -> bool) {
        let gone: Vec<Owner> = self.owners.keys().filter(|one| !exists(one)).cloned().collect();
        for gone in gone {
            let own = self.records.iter().filter(|(_, record)| owner(record) == gone);
            let ids: Vec<String> = own.map(|(id, _)| id.clone()).collect();
            for id in ids {
                self.remove(&id);
                self.unwritten.insert(id);
            }
        }
    }
}

/// Shortens a record to at most [`RECORD_BYTES_MAX`] and returns it with its length. A long result is
/// removed first, then the last lines of the logs. Returns `None` if the rest is still too long.
fn shortened(mut record: Value) -> Option<(Value, usize)> {
    let mut bytes = record.to_string().len();
    if bytes > RECORD_BYTES_MAX
        && record["response"]["result"].to_string().len() > RECORD_BYTES_MAX / 2
    {
        record["response"]["result"] = json!({ "error": "The result is too long to be kept." });
        bytes = record.to_string().len();
    }
    if bytes > RECORD_BYTES_MAX
        && let Some(lines) = record["logs"].as_array_mut()
    {
        while bytes + LOGS_CUT.len() + 3 > RECORD_BYTES_MAX
            && let Some(line) = lines.pop()
        {
            // Each line except the first has a comma, which counts as well.
            bytes = bytes.saturating_sub(line.to_string().len() + 1);
        }
        lines.push(LOGS_CUT.into());
        bytes = record.to_string().len();
    }
    (bytes <= RECORD_BYTES_MAX).then_some((record, bytes))
}

impl Activations {
    /// Reads the stored records into memory.
    pub(super) async fn load(node: &dyn Documents) -> Self {
        let mut held = Held::default();
        for (id, bytes) in node.documents(COLLECTION).await.unwrap_or_default() {
            let Ok(record) = serde_json::from_slice(&bytes) else { continue };
            if bytes.len() > RECORD_BYTES_MAX {
                held.add(id, record);
                continue;
            }
            held.insert(id, record, bytes.len());
        }
        Self { held: Mutex::new(held), ..Self::default() }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, id: Id, record: Value) {
        self.held().add(id.to_string(), record);
        self.came.notify_one();
    }

    pub(super) fn get(&self, id: &str) -> Option<Value> {
        self.held().records.get(id).cloned()
    }

    /// Returns a record in the form that clients of its namespace see.
    fn get_in(&self, space: Option<&Space>, id: &str) -> Result<Value, Refused> {
        let found = self.get(id).filter(|record| owner(record) == owner_of(space));
        found.map(without_created).ok_or_else(Refused::not_found)
    }

    /// Waits until every record added so far is in the store.
    pub(super) async fn written(&self) {
        let added = self.held().added;
        // The wait cannot fail, because `self` holds the sender.
        let _ = self.written.subscribe().wait_for(|written| *written >= added).await;
    }

    /// Writes new records to the store.
    pub(super) async fn write(&self, node: &dyn Documents) {
        let _turn = self.turn.lock().await;
        let (changes, added) = {
            let mut held = self.held();
            let unwritten = std::mem::take(&mut held.unwritten);
            let change = |key: String| {
                let value = held.records.get(&key).map(|record| record.to_string().into_bytes());
                Change { collection: COLLECTION, key, value }
            };
            (unwritten.into_iter().map(change).collect::<Vec<_>>(), held.added)
        };
        if changes.is_empty() {
            return;
        }
        let keys: Vec<String> = changes.iter().map(|change| change.key.clone()).collect();
        match node.put_documents(changes).await {
            Ok(()) => drop(self.written.send_replace(added)),
            Err(problem) => {
                tracing::warn!(problem = problem.detail, "activations are not written to disk yet");
                self.held().unwritten.extend(keys);
            }
        }
    }

    /// Writes new records half a second after they were added, and removes the records of deleted
    /// namespaces. While there are no records, this function does not wake up.
    pub(super) async fn keep(&self, node: &dyn Node) {
        loop {
            self.until_due().await;
            let all = node.namespaces();
            self.held().forget(|(name, created)| {
                let space = || Space { name: name.as_str().into(), created_at_ms: *created };
                name == NAMESPACE || all.has(&space())
            });
            self.write(node).await;
        }
    }

    /// Waits until there may be something to write or to remove.
    async fn until_due(&self) {
        let (is_behind, may_forget) = {
            let held = self.held();
            let may_forget = held.owners.keys().any(|(name, _)| name != NAMESPACE);
            (!held.unwritten.is_empty(), may_forget)
        };
        match (is_behind, may_forget) {
            (true, _) => {}
            (false, true) => {
                let _ = tokio::time::timeout(FORGET_EVERY, self.came.notified()).await;
            }
            (false, false) => self.came.notified().await,
        }
        tokio::time::sleep(WRITE_AFTER).await;
    }
}

/// Returns a record in the form that clients see.
pub(super) fn without_created(mut record: Value) -> Value {
    if let Some(members) = record.as_object_mut() {
        members.remove(CREATED);
    }
    record
}

/// The parameters of a list request.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    name: Option<String>,
    pub(super) limit: Option<usize>,
    pub(super) skip: usize,
    since: Option<u64>,
    upto: Option<u64>,
    docs: bool,
    count: bool,
}

impl Asked {
    /// Returns the largest number of records that the list may contain.
    pub(super) fn limit(&self) -> Result<usize, Refused> {
        match self.limit.unwrap_or(LIST_DEFAULT) {
            0 => Ok(LIST_MAX),
            many if many > LIST_MAX => {
                let text = format!(
                    "The value '{many}' is not in the range of 0 to {LIST_MAX} for activation list."
                );
                Err(Refused::bad(text))
            }
            limit => Ok(limit),
        }
    }
}

pub(super) async fn list(
    State(whisk): State<Whisk>,
    part: Part,
    Query(asked): Query<Asked>,
) -> Result<Response, Refused> {
    let limit = asked.limit()?;
    let held = whisk.activations.held();
    let wanted = owner_of(part.space());
    let matches = |record: &&Value| {
        let start = record["start"].as_u64().unwrap_or(0);
        let path = record["annotations"].as_array().into_iter().flatten();
        let path = path.filter(|pair| pair["key"] == "path").map(|pair| &pair["value"]);
        owner(record) == wanted
            && asked.since.is_none_or(|since| start >= since)
            && asked.upto.is_none_or(|upto| start <= upto)
            && asked.name.as_ref().is_none_or(|name| {
                record["name"] == name.as_str()
                    || path.clone().any(|path| path == &json!(format!("{}/{name}", part.shown())))
            })
    };
    let found = held.records.values().rev().filter(matches);
    if asked.count {
        let count = found.skip(asked.skip).count();
        return Ok(Json(json!({ "activations": count })).into_response());
    }
    let shown = |record: &Value| {
        let mut record = without_created(record.clone());
        if !asked.docs
            && let Some(members) = record.as_object_mut()
        {
            members.remove("logs");
            let response = members.remove("response").unwrap_or_default();
            members.insert("statusCode".into(), response["statusCode"].clone());
        }
        record
    };
    let all: Vec<Value> = found.skip(asked.skip).take(limit).map(shown).collect();
    Ok(Json(all).into_response())
}

pub(super) async fn show(
    State(whisk): State<Whisk>,
    part: Part,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refused> {
    whisk.activations.get_in(part.space(), &id).map(Json)
}

pub(super) async fn show_part(
    State(whisk): State<Whisk>,
    part: Part,
    Path((id, member)): Path<(String, String)>,
) -> Result<Json<Value>, Refused> {
    let record = whisk.activations.get_in(part.space(), &id)?;
    match member.as_str() {
        "logs" => Ok(Json(json!({ "logs": record["logs"] }))),
        "result" => Ok(Json(record["response"].clone())),
        _ => Err(Refused::not_found()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> Id {
        Id::try_from(format!("{n:032x}")).expect("an id")
    }

    fn kept(activations: &Activations, n: usize) -> Option<Value> {
        activations.get(&id(n).to_string())
    }

    fn filled() -> Activations {
        let activations = Activations::default();
        for n in 0..100 {
            activations.add(id(n), json!({ "n": n, "logs": [] }));
        }
        activations
    }

    #[test]
    fn a_long_record_pushes_no_other_out() {
        let line = "x".repeat(1 << 10);
        let logs = vec![line.as_str(); 40 << 10];
        let long = "y".repeat(BYTES_MAX);
        let too_long = json!({ "error": "The result is too long to be kept." });
        for (logs, result, lines, shown) in [
            (json!(logs), json!("fine"), 4_000..4_096, json!("fine")),
            (json!(logs), json!(long), 4_000..4_096, too_long.clone()),
            (json!([]), json!(long), 0..1, too_long),
        ] {
            let activations = filled();
            activations.add(id(1_000), json!({ "logs": logs, "response": { "result": result } }));
            assert!((0..100).all(|n| kept(&activations, n).is_some()), "others are gone");
            let record = kept(&activations, 1_000).expect("a shorter one");
            let found = record["logs"].as_array().expect("lines");
            assert!(lines.contains(&found.len()), "{} lines", found.len());
            assert!(found.last().is_none_or(|last| last == LOGS_CUT));
            assert_eq!(record["response"]["result"], shown);
            let held = activations.held();
            let counted: usize = held.records.values().map(|one| one.to_string().len()).sum();
            assert_eq!(held.bytes, counted);
        }
    }

    #[test]
    fn a_record_that_cannot_be_shortened_is_left_out() {
        let activations = filled();
        activations.add(id(1_000), json!({ "name": "z".repeat(BYTES_MAX), "logs": [] }));
        assert_eq!(kept(&activations, 1_000), None);
        assert!((0..100).all(|n| kept(&activations, n).is_some()), "others are gone");
    }

    #[test]
    fn the_oldest_are_forgotten_first() {
        let activations = Activations::default();
        let result = "y".repeat(1 << 20);
        for n in 0..40 {
            activations.add(id(n), json!({ "response": { "result": result }, "logs": [] }));
        }
        let held = activations.held();
        assert!(held.bytes <= BYTES_MAX && held.records.len() == 31, "{}", held.records.len());
        assert_eq!(*held.records.first_key_value().expect("some").0, id(9).to_string());
    }

    #[test]
    fn a_namespace_pushes_out_its_own_records_and_is_forgotten() {
        let activations = Activations::default();
        let mine = |n: usize| json!({ "namespace": NAMESPACE, "n": n, "logs": [] });
        let of_plant = |n: usize| json!({ "namespace": "plant", CREATED: 7, "n": n, "logs": [] });
        for n in 0..10 {
            activations.add(id(n), mine(n));
        }
        for n in 10..RECORDS_MAX + 100 {
            activations.add(id(n), of_plant(n));
        }
        assert!((0..10).all(|n| kept(&activations, n).is_some()), "others are gone");
        assert_eq!(activations.held().records.len(), RECORDS_MAX);
        let space = |created_at_ms| Space { name: "plant".into(), created_at_ms };
        let last = id(RECORDS_MAX).to_string();
        let shown = activations.get_in(Some(&space(7)), &last).expect("its own");
        assert!(shown.get(CREATED).is_none());
        assert!(activations.get_in(Some(&space(8)), &last).is_err(), "one that was made again");
        assert!(activations.get_in(None, &last).is_err());
        assert!(activations.get_in(Some(&space(7)), &id(1).to_string()).is_err());
        activations.held().forget(|(name, _)| name == NAMESPACE);
        let held = activations.held();
        assert_eq!((held.records.len(), held.owners.len()), (10, 1));
        let counted: usize = held.records.values().map(|one| one.to_string().len()).sum();
        assert_eq!(held.bytes, counted);
    }

    #[tokio::test(start_paused = true)]
    async fn records_are_due_when_they_came_and_namespaces_from_time_to_time() {
        let hour = Duration::from_secs(3600);
        let activations = Activations::default();
        let due = async || {
            let began = tokio::time::Instant::now();
            let due = tokio::time::timeout(hour, activations.until_due()).await;
            due.ok().map(|()| began.elapsed())
        };
        assert_eq!(due().await, None, "nothing wakes up without records");
        activations.add(id(1), json!({ "logs": [] }));
        assert_eq!(due().await, Some(WRITE_AFTER));
        assert_eq!(due().await, Some(WRITE_AFTER), "it is not written yet");
        activations.held().unwritten.clear();
        // The second wait ended because the record was still unwritten, so the notification that
        // the record had arrived is still pending.
        assert_eq!(due().await, Some(WRITE_AFTER));
        assert_eq!(due().await, None);
        activations.add(id(2), json!({ "namespace": "plant", CREATED: 7, "logs": [] }));
        activations.held().unwritten.clear();
        assert_eq!(due().await, Some(WRITE_AFTER));
        assert_eq!(due().await, Some(FORGET_EVERY + WRITE_AFTER));
    }
}
