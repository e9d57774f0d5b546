//! Takes a log. Afterwards, only this node can append to the log, and the node's file is equal to
//! the log.

use mote_store::StoreError;
use rusqlite::Connection;

use super::epoch::{EPOCH, Epoch};
use super::log::{Kept, Log, LogError, Message};
use super::rows::{self, NoRow, Restoring};
use crate::records::unix_ms;

/// The format of the log that this version writes.
const FORMAT: u32 = 1;
/// How many times to try to take a log to which another node keeps appending.
const TRIES: u32 = 100;
/// The maximum number of messages in one append while the log is filled, and of their bytes.
const FILL_MESSAGES: usize = 500;
const FILL_BYTES: usize = 4 << 20;

/// How to make the file and the log equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    /// The file and the log are already equal.
    Keep,
    /// Rebuild the file from the log.
    Rebuild,
    /// The log is empty or incomplete, so append the contents of the file.
    Fill,
}

/// Takes the log. Returns the place of the message by which it was taken, and the log's last place.
pub(super) fn take(
    connection: &mut Connection,
    log: &mut dyn Log,
    node: &str,
) -> Result<(u64, u64), StoreError> {
    for _ in 0..TRIES {
        // The order matters: if another node appends a message between the two reads, the append
        // below fails.
        let last = log.last().map_err(of_log)?;
        let current = log.last_of(EPOCH).map_err(of_log)?;
        let plan = plan(connection, current.as_ref(), last)?;
        let epoch = match append_epoch(log, last, node, plan == Plan::Fill) {
            Err(LogError::Moved) => continue,
            other => other.map_err(of_log)?,
        };
        return match plan {
            Plan::Keep => rows::set_mark(connection, epoch, epoch).map(|()| (epoch, epoch)),
            Plan::Rebuild => return rebuild(connection, log, epoch).map(|()| (epoch, epoch)),
            Plan::Fill => return fill(connection, log, epoch, node),
        }
        .map_err(StoreError::Database);
    }
    Err(StoreError::Away("another node keeps writing to this journal's stream".to_owned()))
}

fn append_epoch(log: &mut dyn Log, last: u64, node: &str, filling: bool) -> Result<u64, LogError> {
    let epoch = Epoch { format: FORMAT, node: node.to_owned(), at_ms: unix_ms(), filling };
    let body = serde_json::to_vec(&epoch).expect("it has only string keys");
    log.append(last, &[Message { subject: EPOCH.to_owned(), body: Some(body.into()) }])?;
    Ok(last + 1)
}

fn plan(connection: &Connection, current: Option<&Kept>, last: u64) -> Result<Plan, StoreError> {
    let mark = rows::mark(connection).map_err(StoreError::Database)?;
    let Some(current) = current else {
        if mark.is_some() {
            tracing::warn!(
                "the journal's stream is new or was removed: it receives what this node has on disk"
            );
        }
        return Ok(Plan::Fill);
    };
    let epoch: Epoch = serde_json::from_slice(&current.body)
        .map_err(|_| StoreError::Damaged("the journal's stream is not one of mote".to_owned()))?;
    if epoch.format > FORMAT {
        let text = "a newer version of mote wrote the journal's stream; use that version";
        return Err(StoreError::Damaged(text.to_owned()));
    }
    match mark {
        Some((taken, _)) if epoch.filling && taken == current.place => Ok(Plan::Fill),
        Some((taken, place)) if taken == current.place && place == last => Ok(Plan::Keep),
        None if rows::has_work(connection).map_err(StoreError::Database)? => {
            Err(StoreError::Damaged(format!(
                "this node has accepted work on its disk that the journal's stream, which {} wrote, \
                 does not have. Choose another --journal-name to keep that work, or remove \
                 journal.db to continue with the stream",
                epoch.node
            )))
        }
        _ => {
            if epoch.filling {
                tracing::warn!(
                    node = epoch.node,
                    "the journal's stream was not complete when its node ended"
                );
            }
            Ok(Plan::Rebuild)
        }
    }
}

/// Rebuilds the file from all messages up to the place `epoch`.
fn rebuild(connection: &mut Connection, log: &mut dyn Log, epoch: u64) -> Result<(), StoreError> {
    let began = std::time::Instant::now();
    let change = connection.transaction().map_err(StoreError::Database)?;
    let mut restoring = Restoring::begin(&change).map_err(StoreError::Database)?;
    let mut from = 1;
    let mut messages = 0_u64;
    loop {
        let page = log.read(from).map_err(of_log)?;
        let Some(newest) = page.messages.last() else { break };
        from = newest.place + 1;
        for message in page.messages {
            messages += 1;
            restoring.take(&message.subject, message.body).map_err(of_row)?;
        }
        if from > epoch {
            break;
        }
    }
    restoring.end(epoch).map_err(StoreError::Database)?;
    rows::set_mark(&change, epoch, epoch).map_err(StoreError::Database)?;
    change.commit().map_err(StoreError::Database)?;
    let took_ms = began.elapsed().as_millis() as u64;
    tracing::info!(messages, took_ms, "the journal was read from its stream");
    Ok(())
}

/// Appends all rows of the file to the log.
fn fill(
    connection: &Connection,
    log: &mut dyn Log,
    epoch: u64,
    node: &str,
) -> Result<(u64, u64), StoreError> {
    // If the node crashes from here on, the mark shows that the log is incomplete, and the log is
    // filled again.
    rows::set_mark(connection, epoch, epoch).map_err(StoreError::Database)?;
    connection.execute("DELETE FROM replica_parts", []).map_err(StoreError::Database)?;
    let mut place = epoch;
    let mut waiting = Vec::new();
    let mut bytes = 0;
    let mut append = |messages: &mut Vec<Message>| -> Result<(), StoreError> {
        log.append(place, messages).map_err(of_log)?;
        place += messages.len() as u64;
        messages.clear();
        Ok(())
    };
    rows::all(connection, |row| {
        bytes += row.iter().map(Message::bytes).sum::<usize>();
        waiting.extend(row);
        if waiting.len() >= FILL_MESSAGES || bytes >= FILL_BYTES {
            bytes = 0;
            append(&mut waiting)?;
        }
        Ok::<_, Filling>(())
    })
    .map_err(|Filling(error)| error)?;
    if !waiting.is_empty() {
        append(&mut waiting)?;
    }
    if place == epoch {
        tracing::info!("the journal's stream is new");
    } else {
        tracing::info!(messages = place - epoch, "the journal's stream holds what this node has");
    }
    let epoch = append_epoch(log, place, node, false).map_err(of_log)?;
    rows::set_mark(connection, epoch, epoch).map_err(StoreError::Database)?;
    Ok((epoch, epoch))
}

struct Filling(StoreError);

impl From<rusqlite::Error> for Filling {
    fn from(error: rusqlite::Error) -> Self {
        Self(StoreError::Database(error))
    }
}

impl From<StoreError> for Filling {
    fn from(error: StoreError) -> Self {
        Self(error)
    }
}

fn of_log(error: LogError) -> StoreError {
    match error {
        LogError::Away(text) | LogError::Refused(text) => StoreError::Away(text),
        LogError::Moved => StoreError::Away("another node takes the journal".to_owned()),
    }
}

fn of_row(error: NoRow) -> StoreError {
    match error {
        NoRow::Sql(error) => StoreError::Database(error),
        other => StoreError::Damaged(format!("the journal's stream: {other}")),
    }
}
