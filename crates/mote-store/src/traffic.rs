//! Where a function's traffic goes, as rows; and which revisions are kept for it.

use mote_core::FunctionName;
use mote_core::rollout::{Split, Traffic};
use rusqlite::{Connection, params};

use crate::error::StoreError;
use crate::schema;
use crate::store::{REVISIONS_KEPT, Store, StoredRevision, crash_point};

impl Store {
    /// Moves a function's traffic, in one durable step. Its split names stored revisions only.
    pub fn set_traffic(&self, name: &FunctionName, traffic: &Traffic) -> Result<(), StoreError> {
        let text = name.as_str();
        let live = traffic.split.main();
        // What says no more than `live` does is left out, as in tables of version 1.
        let json = (traffic != &Traffic::whole(live))
            .then(|| serde_json::to_string(traffic))
            .transpose()
            .map_err(|error| StoreError::Damaged(format!("traffic of {name}: {error}")))?;
        let mut missing = None;
        let found = self.change(|change| {
            change.execute(
                "UPDATE revisions SET state = 'retired' WHERE function = ?1 AND state = 'live'",
                [text],
            )?;
            for share in traffic.split.shares() {
                let number = i64::try_from(share.revision).unwrap_or(i64::MAX);
                let state = match share.percent {
                    _ if share.revision == live => "live",
                    0 => "",
                    _ => "retired",
                };
                let found = change.execute(
                    "UPDATE revisions SET state = CASE ?3 WHEN '' THEN state ELSE ?3 END
                     WHERE function = ?1 AND revision = ?2",
                    params![text, number, state],
                )?;
                if found == 0 {
                    missing = Some(share.revision);
                    return Err(rusqlite::Error::QueryReturnedNoRows);
                }
            }
            // Bounds set by hand hold for the live revision they were set for.
            change.execute(
                "UPDATE functions SET split = ?3, live = ?2,
                 scale = CASE WHEN live IS ?2 THEN scale END WHERE name = ?1",
                params![text, i64::try_from(live).unwrap_or(i64::MAX), json],
            )?;
            crash_point("traffic-written");
            Ok(())
        });
        match (found, missing) {
            (Err(_), Some(revision)) => {
                Err(StoreError::NoSuchRevision { function: text.to_owned(), revision })
            }
            (result, _) => result,
        }
    }

    /// How a function's traffic goes; `None` when it has no live revision.
    pub fn traffic(&self, name: &FunctionName) -> Result<Option<Traffic>, StoreError> {
        let connection = self.lock();
        traffic_of(&connection, name.as_str()).map_err(|error| schema::sql(self.root(), error))
    }
}

/// How a function's traffic goes. What cannot be read counts as nothing said: serving everything
/// from the live revision is better than serving nothing.
fn traffic_of(connection: &Connection, name: &str) -> rusqlite::Result<Option<Traffic>> {
    let row = connection.query_row(
        "SELECT live, split FROM functions WHERE name = ?1 AND live IS NOT NULL",
        [name],
        |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<String>>(1)?)),
    );
    let (live, json) = match row {
        Ok(row) => row,
        Err(rusqlite::Error::QueryReturnedNoRows) => return Ok(None),
        Err(error) => return Err(error),
    };
    let live = u64::try_from(live).unwrap_or(0);
    let stored = json.and_then(|json| serde_json::from_str::<Traffic>(&json).ok());
    if let Some(traffic) = stored.filter(|traffic| traffic.split.main() == live) {
        return Ok(Some(traffic));
    }
    // Tables of version 1 know no more than what was live once.
    let mut statement = connection.prepare(
        "SELECT revision FROM revisions WHERE function = ?1 AND state = 'retired' AND revision < ?2
         ORDER BY revision",
    )?;
    let before = statement.query_map(params![name, live as i64], |row| row.get::<_, i64>(0))?;
    let before = before.map(|row| row.map(|revision| revision as u64));
    let before = before.collect::<rusqlite::Result<Vec<u64>>>()?;
    Ok(Some(Traffic { before, ..Traffic::whole(live) }))
}

/// The traffic without revisions that cannot be served; what they had goes to the live one.
pub(crate) fn without_missing(
    traffic: Traffic,
    live: &StoredRevision,
    others: &[StoredRevision],
) -> Traffic {
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

/// Forgets the oldest revisions of a function past [`REVISIONS_KEPT`].
pub(crate) fn prune(connection: &Connection, name: &str) -> rusqlite::Result<()> {
    let traffic = traffic_of(connection, name)?;
    let needed = |revision: u64| traffic.as_ref().is_some_and(|traffic| traffic.needs(revision));
    let mut statement = connection.prepare("SELECT revision FROM revisions WHERE function = ?1")?;
    let all = statement.query_map([name], |row| row.get::<_, i64>(0))?;
    let mut all: Vec<u64> =
        all.map(|row| row.map(|revision| revision as u64)).collect::<rusqlite::Result<_>>()?;
    all.sort_by_key(|revision| std::cmp::Reverse((needed(*revision), *revision)));
    for revision in all.into_iter().skip(REVISIONS_KEPT as usize) {
        if !needed(revision) {
            connection.execute(
                "DELETE FROM revisions WHERE function = ?1 AND revision = ?2",
                params![name, revision as i64],
            )?;
        }
    }
    Ok(())
}
