//! What the journal needs of the log that keeps its rows. The journal knows nothing else of it.

use bytes::Bytes;

/// A message: the newest state of a row, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The row. The log keeps the last message of each subject.
    pub subject: String,
    /// The row in bytes; `None` if there is no such row any more. The log forgets such a message
    /// after some seconds.
    pub body: Option<Bytes>,
}

impl Message {
    /// About the bytes that it occupies.
    pub fn bytes(&self) -> usize {
        self.subject.len() + self.body.as_ref().map_or(0, Bytes::len)
    }
}

/// A message that the log keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Its place. Places grow by one with each message and are never used again.
    pub place: u64,
    pub subject: String,
    /// Its body; empty if there is no such row any more.
    pub body: Bytes,
}

/// Messages of a log, in the order of their places.
#[derive(Debug, Default)]
pub struct Page {
    /// The messages. None means that no more follow.
    pub messages: Vec<Kept>,
}

/// Why the log did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The log cannot be reached, or did not answer in time. Messages may have been stored.
    #[error("{0}")]
    Away(String),
    /// The log's last place is another one, and nothing was stored.
    #[error("the log has another last message")]
    Moved,
    /// The log will not do this, also not later. Nothing was stored.
    #[error("{0}")]
    Refused(String),
}

/// A log that many machines can reach. Calls block, and end within about five seconds.
pub trait Log: Send {
    /// Stores messages after the place `after`, all of them or none. They are safe when this
    /// returns.
    fn append(&mut self, after: u64, messages: &[Message]) -> Result<(), LogError>;

    /// The place of the newest message, even if that message is gone; 0 if there never was one.
    fn last(&mut self) -> Result<u64, LogError>;

    /// The message of a subject.
    fn last_of(&mut self, subject: &str) -> Result<Option<Kept>, LogError>;

    /// Messages from a place on.
    fn read(&mut self, from: u64) -> Result<Page, LogError>;
}
