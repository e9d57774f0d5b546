//! The rows of a function's traffic split, and the revisions that are kept for it.

use mote_core::rollout::Traffic;
use rusqlite::{Connection, params};

/// Revisions kept per function, including the live one. Further revisions are kept only while
/// traffic or a tag reaches them, or while a rollback would select them.
pub const REVISIONS_KEPT: u64 = 10;

/// Returns the traffic split of a function. A split that cannot be read counts as absent, because
/// serving everything from the live revision is better than serving nothing.
pub(crate) fn traffic_of(connection: &Connection, name: &str) -> rusqlite::Result<Option<Traffic>> {
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
    // Version 1 of the tables records only which revisions were live.
    let mut statement = connection.prepare(
        "SELECT revision FROM revisions WHERE function = ?1 AND state = 'retired' AND revision < ?2
         ORDER BY revision",
    )?;
    let before = statement.query_map(params![name, live as i64], |row| row.get::<_, i64>(0))?;
    let before = before.map(|row| row.map(|revision| revision as u64));
    let before = before.collect::<rusqlite::Result<Vec<u64>>>()?;
    Ok(Some(Traffic { before, ..Traffic::whole(live) }))
}

/// Removes the oldest revisions of a function in excess of [`REVISIONS_KEPT`].
pub(crate) fn prune(connection: &Connection, name: &str) -> rusqlite::Result<()> {
    let traffic = traffic_of(connection, name)?;
    let needed = |revision: u64| traffic.as_ref().is_some_and(|traffic| traffic.needs(revision));
    let mut statement = connection.prepare("SELECT revision FROM revisions WHERE function = ?1")?;
    let all = statement.query_map([name], |row| row.get::<_, i64>(0))?;
    let mut all: Vec<u64> =
        all.map(|row| row.map(|revision| revision as u64)).collect::<rusqlite::Result<_>>()?;
    all.sort_unstable_by_key(|revision| std::cmp::Reverse((needed(*revision), *revision)));
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
