//! The interface of the log that keeps the journal's rows. The journal uses the log only through
//! this interface.

use bytes::Bytes;

/// A message: the newest state of a row, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Names the row. The log keeps the last message of each subject.
    pub subject: String,
    /// The row in bytes; `None` if the row was removed. The log forgets a message without a body
    /// after some seconds.
    pub body: Option<Bytes>,
}

impl Message {
    /// Roughly how many bytes the message occupies.
    pub fn bytes(&self) -> usize {
        self.subject.len() + self.body.as_ref().map_or(0, Bytes::len)
    }
}

/// A message that the log keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The message's place. Places grow by one with each message and are never used again.
    pub place: u64,
    pub subject: String,
    /// The message's body; empty if the row was removed.
    pub body: Bytes,
}

/// Messages of a log, in the order of their places.
#[derive(Debug, Default)]
pub struct Page {
    /// The messages. An empty page means that no more follow.
    pub messages: Vec<Kept>,
}

/// Why a call on the log failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The log cannot be reached, or did not answer in time. It may have stored messages.
    #[error("{0}")]
    Away(String),
    /// The log's last place is not the expected one. Nothing was stored.
    #[error("the log has another last message")]
    Moved,
    /// The log refuses the request, and would refuse it again later. Nothing was stored.
    #[error("{0}")]
    Refused(String),
}

/// A log that many machines can reach. Calls block, and end within about five seconds.
pub trait Log: Send {
    /// Stores messages after the place `after`, all of them or none. When this returns, the
    /// messages are safe.
    fn append(&mut self, after: u64, messages: &[Message]) -> Result<(), LogError>;

    /// The place of the newest message, even if the log no longer has that message; 0 if there
    /// never was one.
    fn last(&mut self) -> Result<u64, LogError>;

    /// Returns the message of a subject.
    fn last_of(&mut self, subject: &str) -> Result<Option<Kept>, LogError>;

    /// Returns messages from a place on.
    fn read(&mut self, from: u64) -> Result<Page, LogError>;
}
