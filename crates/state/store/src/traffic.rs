//! Stores the traffic split of a function.

use mote_core::rollout::Traffic;
use mote_spec::FunctionName;
use rusqlite::params;

use crate::error::StoreError;
use crate::schema;
use crate::store::{Store, crash_point};
use crate::traffic_rows::traffic_of;

impl Store {
    /// Changes a function's traffic split in one durable step. The split must name only stored
    /// revisions.
    pub fn set_traffic(&self, name: &FunctionName, traffic: &Traffic) -> Result<(), StoreError> {
        let text = name.as_str();
        let live = traffic.split.main();
        // As in version 1 of the tables, a split that only repeats `live` is not stored.
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
            // Limits that were set by hand apply only to the revision that was live at that time.
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

    /// Returns the traffic split of a function; `None` if the function has no live revision.
    pub fn traffic(&self, name: &FunctionName) -> Result<Option<Traffic>, StoreError> {
        let connection = self.lock();
        traffic_of(&connection, name.as_str()).map_err(|error| schema::sql(self.root(), error))
    }
}
