//! Searches the files for the lines of one function.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use memchr::memchr;
use memchr::memmem::Finder;
use mote_api::Timestamp;
use mote_api::types::{LogLine, LogStream};
use mote_store::log_files::{LogFile, files};

use super::Logs;
use crate::log_line::REMOVED;

/// Lines are passed on in pieces of about this size.
const PIECE_BYTES: usize = 64 << 10;
/// A file's lines may be this much older than its last change.
const CLOCK_SLACK: Duration = Duration::from_secs(2);

/// Which lines of a function are wanted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    /// Milliseconds since 1970.
    pub(crate) since_ms: u64,
    pub(crate) invocation: Option<String>,
    /// A text that the message contains.
    pub(crate) text: Option<String>,
    /// The lowest level, as an index of [`LEVELS`].
    pub(crate) level: usize,
}

/// The levels, lowest first.
pub(crate) const LEVELS: [&str; 4] = ["debug", "info", "warn", "error"];

impl Wanted {
    pub(crate) fn is(&self, line: &LogLine) -> bool {
        let level = LEVELS.iter().position(|level| *level == line.level);
        line.time.unix_ms() >= self.since_ms
            && level.unwrap_or_default() >= self.level
            && self.invocation.as_ref().is_none_or(|id| line.invocation.as_ref() == Some(id))
            && self.text.as_ref().is_none_or(|text| line.message.contains(text.as_str()))
    }
}

/// What to read.
pub(crate) struct Search {
    pub(crate) function: String,
    pub(crate) wanted: Wanted,
    /// Only this many lines, the last ones.
    pub(crate) tail: usize,
    /// The time and the sequence of the oldest line that the memory still has. That line and later
    /// ones are left out.
    pub(crate) before: Option<(Timestamp, u64)>,
}

/// Lines that were found: where the first one is.
pub(crate) struct Found {
    files: VecDeque<LogFile>,
    /// The offset in the first file.
    offset: usize,
    search: Search,
    own_from: u64,
    /// Whether there is any line, wanted or not, since the function was last removed.
    pub(crate) has_lines: bool,
}

/// A file that is searched.
struct Text {
    bytes: Vec<u8>,
    /// Whether this process wrote it.
    is_own: bool,
}

impl Logs {
    /// Finds the first wanted line. Blocks.
    pub(crate) fn find(&self, search: Search) -> std::io::Result<Found> {
        let mut all = files(&self.dir)?;
        let oldest = SystemTime::now().checked_sub(self.limits.age);
        let since = SystemTime::UNIX_EPOCH + Duration::from_millis(search.wanted.since_ms);
        let is_too_old = |file: &LogFile| {
            oldest.is_some_and(|oldest| file.modified < oldest)
                || file.modified + CLOCK_SLACK < since
        };
        all.retain(|file| !is_too_old(file));
        let names = Names::new(&search.function);
        let mut offset = 0;
        let mut has_lines = false;
        let mut missing = search.tail;
        let mut first = 0;
        for (at, file) in all.iter().enumerate().rev() {
            let text = Text::read(file, self.own_from)?;
            let mut matches = Vec::new();
            let mut is_used = false;
            let mut is_end = false;
            for range in lines(&text.bytes, 0) {
                let line = &text.bytes[range.clone()];
                if names.function.find(line).is_none() {
                    continue;
                }
                if names.is_removal(line) {
                    matches.clear();
                    is_used = false;
                    is_end = true;
                    offset = range.end;
                    continue;
                }
                is_used = true;
                // Without a limit, only the place of the removal matters.
                if search.tail < usize::MAX && search.parse(line, &text).is_some() {
                    matches.push(range.start);
                }
            }
            has_lines |= is_used;
            first = at;
            if !is_end {
                offset = 0;
            }
            if matches.len() >= missing {
                offset = matches.get(matches.len() - missing).copied().unwrap_or(text.bytes.len());
                break;
            }
            missing -= matches.len();
            if is_end {
                break;
            }
        }
        all.drain(..first);
        Ok(Found { files: all.into(), offset, search, own_from: self.own_from, has_lines })
    }
}

impl Found {
    /// The next wanted lines; `None` if there are no more. Blocks.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        let names = Names::new(&self.search.function);
        while let Some(file) = self.files.pop_front() {
            let offset = std::mem::take(&mut self.offset);
            // The writer may have removed the file meanwhile.
            let Ok(text) = Text::read(&file, self.own_from) else { continue };
            let mut piece = BytesMut::new();
            for range in lines(&text.bytes, offset) {
                let end = range.end + 1;
                let line = &text.bytes[range];
                let is_named = names.function.find(line).is_some();
                if is_named && self.search.parse(line, &text).is_some() {
                    piece.extend_from_slice(line);
                    piece.extend_from_slice(b"\n");
                }
                // A slow client must not hold a whole file in memory.
                if piece.len() >= PIECE_BYTES {
                    self.offset = end;
                    self.files.push_front(file);
                    return Some(piece.freeze());
                }
            }
            if !piece.is_empty() {
                return Some(piece.freeze());
            }
        }
        None
    }
}

impl Search {
    /// The line, if it is wanted.
    fn parse(&self, line: &[u8], text: &Text) -> Option<LogLine> {
        // A power cut may have left part of a line.
        let line: LogLine = serde_json::from_slice(line).ok()?;
        let is_in_memory =
            text.is_own && self.before.is_some_and(|before| (line.time, line.sequence) >= before);
        (!is_in_memory && line.function == self.function && self.wanted.is(&line)).then_some(line)
    }
}

impl Text {
    fn read(file: &LogFile, own_from: u64) -> std::io::Result<Self> {
        Ok(Self { bytes: std::fs::read(&file.path)?, is_own: file.number >= own_from })
    }
}

/// Texts that lines of a function contain. JSON escapes quotes, so no message contains them.
struct Names {
    function: Finder<'static>,
    removal: Finder<'static>,
    platform: Finder<'static>,
    of_no_revision: Finder<'static>,
}

fn is_removal(line: &LogLine) -> bool {
    line.stream == LogStream::Platform
        && line.message == REMOVED
        && line.revision == 0
        && line.instance.is_none()
        && line.invocation.is_none()
}

impl Names {
    fn new(function: &str) -> Self {
        let finder = |text: String| Finder::new(text.as_bytes()).into_owned();
        Self {
            function: finder(format!("\"function\":\"{function}\"")),
            removal: finder(format!("\"message\":\"{REMOVED}\"")),
            platform: finder("\"stream\":\"platform\"".to_owned()),
            of_no_revision: finder("\"revision\":0,".to_owned()),
        }
    }

    /// Whether the node itself wrote that the function was removed. Lines of an exception, whose text
    /// may come from a caller, are the platform's, too, but belong to a revision and an instance.
    fn is_removal(&self, line: &[u8]) -> bool {
        let finders = [&self.removal, &self.platform, &self.of_no_revision];
        if finders.iter().any(|finder| finder.find(line).is_none()) {
            return false;
        }
        serde_json::from_slice(line).is_ok_and(|line: LogLine| is_removal(&line))
    }
}

/// The lines from `offset` on, without their ends.
fn lines(text: &[u8], offset: usize) -> impl Iterator<Item = Range<usize>> {
    let mut start = offset.min(text.len());
    std::iter::from_fn(move || {
        // The last line may be in the middle of being written.
        let length = memchr(b'\n', text.get(start..)?)?;
        let line = start..start + length;
        start = line.end + 1;
        Some(line)
    })
}
