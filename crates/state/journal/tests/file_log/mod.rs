//! A log in a file that behaves like the real one. It keeps the last message of each subject,
//! places grow by one, and an append is stored as a whole, and only if the last place is the
//! expected one.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use mote_journal::replica::{Kept, Log, LogError, Message, Page, Replication};

/// The faults that a test can switch on.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// The log does not answer.
    pub(crate) away: AtomicBool,
    /// The number of further appends that are stored but not answered.
    pub(crate) unanswered: AtomicUsize,
    /// The number of messages after which the machine loses its network; 0 for never.
    pub(crate) cut_after: AtomicUsize,
}

pub(crate) struct FileLog {
    file: File,
    faults: Arc<Faults>,
    read_to: u64,
    last: u64,
    messages: BTreeMap<u64, Kept>,
    places: HashMap<String, u64>,
}

pub(crate) fn replication(path: &Path, node: &str, faults: &Arc<Faults>) -> Replication {
    let (path, faults): (PathBuf, _) = (path.to_owned(), faults.clone());
    let log = move || Box::new(FileLog::open(&path, faults.clone())) as Box<dyn Log>;
    Replication { log: Box::new(log), node: node.to_owned() }
}

impl FileLog {
    pub(crate) fn open(path: &Path, faults: Arc<Faults>) -> Self {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path);
        let messages = BTreeMap::new();
        let places = HashMap::new();
        Self { file: file.expect("opens"), faults, read_to: 0, last: 0, messages, places }
    }

    fn reach(&mut self) -> Result<(), LogError> {
        if self.faults.away.load(Ordering::SeqCst) {
            return Err(LogError::Away("switched off".to_owned()));
        }
        self.file.seek(SeekFrom::Start(self.read_to)).expect("seeks");
        let mut bytes = Vec::new();
        self.file.read_to_end(&mut bytes).expect("reads");
        let mut rest = &bytes[..];
        while let Some((length, after)) = rest.split_first_chunk::<8>() {
            let length = u64::from_le_bytes(*length) as usize;
            let (frame, after) = after.split_at(length);
            let (subject, body) = frame.split_at(frame.iter().position(|b| *b == 0).expect("NUL"));
            self.last += 1;
            let subject = String::from_utf8(subject.to_vec()).expect("UTF-8");
            if let Some(before) = self.places.remove(&subject) {
                self.messages.remove(&before);
            }
            let body = Bytes::copy_from_slice(&body[1..]);
            // A message without a body is forgotten after a while.
            if !body.is_empty() {
                self.places.insert(subject.clone(), self.last);
                self.messages.insert(self.last, Kept { place: self.last, subject, body });
            }
            rest = after;
        }
        self.read_to += bytes.len() as u64;
        Ok(())
    }

    /// The subjects of the messages in the log.
    pub(crate) fn subjects(&mut self) -> Vec<String> {
        self.reach().expect("here");
        let mut all: Vec<String> = self.places.keys().cloned().collect();
        all.sort();
        all
    }
}

impl Log for FileLog {
    fn append(&mut self, after: u64, messages: &[Message]) -> Result<(), LogError> {
        self.file.lock().expect("locks");
        let done = self.reach().and_then(|()| {
            if self.last != after {
                return Err(LogError::Moved);
            }
            let cut = self.faults.cut_after.load(Ordering::SeqCst);
            if cut > 0 && self.last >= cut as u64 {
                self.faults.away.store(true, Ordering::SeqCst);
                return Err(LogError::Away("cut off".to_owned()));
            }
            let mut bytes = Vec::new();
            for message in messages {
                let body = message.body.as_deref().unwrap_or_default();
                let length = (message.subject.len() + 1 + body.len()) as u64;
                bytes.extend_from_slice(&length.to_le_bytes());
                bytes.extend_from_slice(message.subject.as_bytes());
                bytes.push(0);
                bytes.extend_from_slice(body);
            }
            self.file.write_all(&bytes).expect("writes");
            self.reach()
        });
        self.file.unlock().expect("unlocks");
        done?;
        let lost = |left: usize| left.checked_sub(1);
        let unanswered = &self.faults.unanswered;
        match unanswered.try_update(Ordering::SeqCst, Ordering::SeqCst, lost) {
            Ok(_) => Err(LogError::Away("the answer was lost".to_owned())),
            Err(_) => Ok(()),
        }
    }

    fn last(&mut self) -> Result<u64, LogError> {
        self.reach().map(|()| self.last)
    }

    fn last_of(&mut self, subject: &str) -> Result<Option<Kept>, LogError> {
        self.reach()?;
        Ok(self.places.get(subject).map(|place| self.messages[place].clone()))
    }

    fn read(&mut self, from: u64) -> Result<Page, LogError> {
        self.reach()?;
        Ok(Page { messages: self.messages.range(from..).take(7).map(|(_, m)| m.clone()).collect() })
    }
}
