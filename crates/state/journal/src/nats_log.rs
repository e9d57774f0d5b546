//! The journal of a node in a NATS JetStream stream.
//!
//! [`NatsLog`] implements the journal's log over a connection to NATS. This module must know
//! neither the meaning of the messages nor the protocol of NATS.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use crate::Named;
use crate::nats::{Nats, NatsError, PageOf, Publishing};
use crate::replica::{Kept, Log, LogError, Message, Page, Replication};
use tokio::runtime::Handle;

/// How long a call may take.
const PATIENCE: Duration = Duration::from_secs(3);
const PAGE: u32 = 2_000;

const NAME_BYTES_MAX: usize = 64;

/// Whether a journal can have this name. The name becomes a part of the stream's name.
pub fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

/// The log of a journal in a NATS stream.
pub struct NatsLog {
    nats: Nats,
    runtime: Handle,
    stream: String,
    /// The prefix of the stream's subjects.
    prefix: String,
    /// Whether the stream is known to exist.
    is_ensured: bool,
}

impl NatsLog {
    /// The log in the stream of the journal `name`. Nothing is sent yet.
    pub fn new(nats: Nats, runtime: Handle, name: &str) -> Self {
        let stream = format!("MOTE_JOURNAL_{name}");
        let prefix = format!("mote.journal.{name}.");
        Self { nats, runtime, stream, prefix, is_ensured: false }
    }

    fn wait<T>(&self, answer: impl Future<Output = Result<T, NatsError>>) -> Result<T, LogError> {
        let timed = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, answer).await });
        match timed {
            Ok(answer) => answer.map_err(of_nats),
            Err(_) => {
                let text = format!("NATS did not answer within {} s", PATIENCE.as_secs());
                Err(LogError::Away(text))
            }
        }
    }

    fn ensure(&mut self) -> Result<(), LogError> {
        if !self.is_ensured {
            let subjects = format!("{}>", self.prefix);
            self.wait(self.nats.ensure_log(self.stream.clone(), subjects))?;
            self.is_ensured = true;
        }
        Ok(())
    }

    fn page(&self, from: u64) -> PageOf {
        PageOf { stream: self.stream.clone(), subjects: None, from, most: PAGE }
    }

    fn kept(&self, stored: crate::nats::Stored) -> Kept {
        let subject = match stored.subject.strip_prefix(&self.prefix) {
            Some(subject) => subject.to_owned(),
            None => stored.subject,
        };
        Kept { place: stored.sequence, subject, body: stored.body }
    }
}

/// The settings for a node whose journals are in NATS. The node's own journal is named `own`, the
/// files of other journals are in `folder`, and other nodes show this node as `node`.
pub fn named(nats: Nats, runtime: Handle, own: String, folder: PathBuf, node: String) -> Named {
    let replication = move |name: &str| {
        let nats = nats.clone();
        let runtime = runtime.clone();
        let name = name.to_owned();
        let log = move || Box::new(NatsLog::new(nats.clone(), runtime.clone(), &name)) as Box<_>;
        Replication { log: Box::new(log), node: node.clone() }
    };
    Named { own, folder, replication: Box::new(replication) }
}

fn of_nats(error: NatsError) -> LogError {
    match error {
        NatsError::OtherLast => LogError::Moved,
        NatsError::Refused(text) => LogError::Refused(text),
        NatsError::Unreachable(_) | NatsError::NoStream(_) => LogError::Away(error.to_string()),
    }
}

impl Log for NatsLog {
    fn append(&mut self, after: u64, messages: &[Message]) -> Result<(), LogError> {
        let publishing = messages.iter().map(|message| Publishing {
            subject: format!("{}{}", self.prefix, message.subject),
            body: message.body.clone().unwrap_or_default(),
        });
        self.wait(self.nats.append(publishing.collect(), after))
    }

    fn last(&mut self) -> Result<u64, LogError> {
        self.ensure()?;
        // No message has this place, so the answer contains no message but only the state of the
        // stream.
        self.wait(self.nats.read(self.page(u64::MAX))).map(|(_, last)| last)
    }

    fn last_of(&mut self, subject: &str) -> Result<Option<Kept>, LogError> {
        let subject = format!("{}{subject}", self.prefix);
        let found = self.wait(self.nats.last(self.stream.clone(), subject))?;
        Ok(found.map(|stored| self.kept(stored)))
    }

    fn read(&mut self, from: u64) -> Result<Page, LogError> {
        let (messages, _) = self.wait(self.nats.read(self.page(from)))?;
        Ok(Page { messages: messages.into_iter().map(|stored| self.kept(stored)).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_into_subjects() {
        for name in ["a", "shop-1", "Line_4", &"x".repeat(64)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "a.b", "a b", "*", ">", "a/b", "\u{e9}", &"x".repeat(65)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
