//! Searches the files for the lines of one function.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
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

/// The part of a file that is read and passed on at a time. It is longer than any line.
const PART_BYTES: u64 = 128 << 10;
/// A search lets others read after this much. Each pause costs two changes of threads.
const TURN_BYTES: u64 = 1 << 20;
/// A file's lines may be this much older than its last change.
const CLOCK_SLACK: Duration = Duration::from_secs(2);

/// Which lines of a function are wanted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    /// Milliseconds since 1970.
    pub(crate) since_ms: u64,
    pub(crate) invocation: Option<String>,
    /// A text that the message contains.
    pub(crate) text: Option<Text>,
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
            && self.text.as_ref().is_none_or(|text| text.is_in(&line.message))
    }
}

/// A text to look for.
#[derive(Debug, Clone)]
pub(crate) enum Text {
    AsItIs(String),
    /// In lower case, because case is ignored in comparisons.
    InAnyCase(String),
}

impl Text {
    pub(crate) fn new(text: &str, ignore_case: bool) -> Self {
        match ignore_case {
            true => Self::InAnyCase(text.to_lowercase()),
            false => Self::AsItIs(text.to_owned()),
        }
    }

    fn is_in(&self, message: &str) -> bool {
        match self {
            Self::AsItIs(text) => message.contains(text.as_str()),
            Self::InAnyCase(text) => message.to_lowercase().contains(text.as_str()),
        }
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

/// The place of the first line that was found.
pub(crate) struct Found {
    files: VecDeque<LogFile>,
    /// The offset in the first file.
    offset: usize,
    search: Search,
    own_from: u64,
    /// Whether there is any line, requested or not, since the function was last removed.
    pub(crate) has_lines: bool,
}

/// A file to search, or a part of a file.
#[derive(Default)]
struct Content {
    bytes: Vec<u8>,
    /// Whether this process wrote it.
    is_own: bool,
}

/// A search for the first wanted line, from the newest file to the oldest.
pub(crate) struct Finding {
    found: Found,
    names: Names,
    /// The number of files that were not searched yet.
    left: usize,
    /// How many lines are missing.
    missing: usize,
    /// The oldest file that was searched.
    first: usize,
}

impl Logs {
    /// Begins to look for the first wanted line. Blocks.
    pub(crate) fn begin(&self, search: Search) -> std::io::Result<Finding> {
        let mut all = files(&self.dir, &search.function)?;
        let oldest = SystemTime::now().checked_sub(self.limits.age);
        let since = SystemTime::UNIX_EPOCH + Duration::from_millis(search.wanted.since_ms);
        let is_too_old = |file: &LogFile| {
            oldest.is_some_and(|oldest| file.modified < oldest)
                || file.modified + CLOCK_SLACK < since
        };
        all.retain(|file| !is_too_old(file));
        let (names, missing, left) = (Names::new(&search.function), search.tail, all.len());
        let own_from = self.own_from;
        let found = Found { files: all.into(), offset: 0, search, own_from, has_lines: false };
        Ok(Finding { found, names, left, missing, first: 0 })
    }
}

impl Finding {
    /// Searches the next files, about [`TURN_BYTES`]. Returns whether the search has ended. Blocks.
    pub(crate) fn step(&mut self) -> std::io::Result<bool> {
        let mut bytes = 0;
        while bytes < TURN_BYTES {
            let next = self.left.checked_sub(1).and_then(|at| self.found.files.get(at));
            bytes += next.map_or(0, |file| file.bytes);
            if self.search_file()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Searches the next file. Returns whether the search has ended.
    fn search_file(&mut self) -> std::io::Result<bool> {
        let Some(at) = self.left.checked_sub(1) else { return Ok(true) };
        self.left = at;
        let Found { files, offset, search, own_from, has_lines } = &mut self.found;
        let text = match Content::read(&files[at], *own_from, 0, u64::MAX) {
            Ok(text) => text,
            // Meanwhile, the writer has removed this file and all older ones.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(error),
        };
        let mut matches = Vec::new();
        let mut is_used = false;
        let mut is_end = false;
        for range in lines(&text.bytes) {
            let line = &text.bytes[range.clone()];
            if self.names.function.find(line).is_none() {
                continue;
            }
            if self.names.is_removal(line) {
                matches.clear();
                is_used = false;
                is_end = true;
                *offset = range.end;
                continue;
            }
            is_used = true;
            // Without a limit on lines, only the place of the removal matters.
            if search.tail < usize::MAX && search.parse(line, &text).is_some() {
                matches.push(range.start);
            }
        }
        *has_lines |= is_used;
        self.first = at;
        if !is_end {
            *offset = 0;
        }
        if matches.len() >= self.missing {
            *offset =
                matches.get(matches.len() - self.missing).copied().unwrap_or(text.bytes.len());
            return Ok(true);
        }
        self.missing -= matches.len();
        Ok(is_end || at == 0)
    }

    /// The place of the first wanted line, after the search has ended.
    pub(crate) fn found(mut self) -> Found {
        self.found.files.drain(..self.first);
        self.found
    }
}

impl Found {
    /// The next wanted lines, or nothing if about [`TURN_BYTES`] have none; `None` after the last part.
    /// Reads one part of a file at a time, because a slow client must not keep a whole file in memory,
    /// and a search without a match must not keep others from the disk. Blocks.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        let names = Names::new(&self.search.function);
        let mut piece = self.part(&names)?;
        let mut bytes = PART_BYTES;
        while piece.is_empty() && bytes < TURN_BYTES {
            piece = self.part(&names)?;
            bytes += PART_BYTES;
        }
        Some(piece)
    }

    /// The wanted lines in the next part of a file.
    fn part(&mut self, names: &Names) -> Option<Bytes> {
        let file = self.files.front()?;
        // The writer may have removed the file meanwhile.
        let text = Content::read(file, self.own_from, self.offset as u64, PART_BYTES);
        let text = text.unwrap_or_default();
        let mut piece = BytesMut::new();
        let mut end = 0;
        for range in lines(&text.bytes) {
            end = range.end + 1;
            let line = &text.bytes[range];
            let is_named = names.function.find(line).is_some();
            if is_named && self.search.parse(line, &text).is_some() {
                piece.extend_from_slice(line);
                piece.extend_from_slice(b"\n");
            }
        }
        self.offset += end;
        if end == 0 {
            self.files.pop_front();
            self.offset = 0;
        }
        Some(piece.freeze())
    }
}

impl Search {
    /// The line, if it is wanted.
    fn parse(&self, line: &[u8], text: &Content) -> Option<LogLine> {
        // A power cut may have left part of a line.
        let line: LogLine = serde_json::from_slice(line).ok()?;
        let is_in_memory =
            text.is_own && self.before.is_some_and(|before| (line.time, line.sequence) >= before);
        (!is_in_memory && line.function == self.function && self.wanted.is(&line)).then_some(line)
    }
}

impl Content {
    /// Reads at most `limit` bytes of a file from `offset` on.
    fn read(file: &LogFile, own_from: u64, offset: u64, limit: u64) -> std::io::Result<Self> {
        let mut from = File::open(&file.path)?;
        from.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        from.take(limit).read_to_end(&mut bytes)?;
        Ok(Self { bytes, is_own: file.number >= own_from })
    }
}

/// Texts by which the lines of a function are found. JSON escapes quotes, so no message contains
/// these texts.
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

    /// Whether the node itself wrote that the function was removed. The lines of an exception,
    /// whose text may come from a caller, also count as the platform's, but they belong to a
    /// revision and an instance.
    fn is_removal(&self, line: &[u8]) -> bool {
        let finders = [&self.removal, &self.platform, &self.of_no_revision];
        if finders.iter().any(|finder| finder.find(line).is_none()) {
            return false;
        }
        serde_json::from_slice(line).is_ok_and(|line: LogLine| is_removal(&line))
    }
}

/// The whole lines of a text, without their ends. The last line may not be completely written yet.
fn lines(text: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let length = memchr(b'\n', text.get(start..)?)?;
        let line = start..start + length;
        start = line.end + 1;
        Some(line)
    })
}

#[cfg(test)]
mod tests {
    use mote_api::types::LogStream;

    use super::*;
    use crate::logs::Queue;

    const LINES: u64 = 5_000;

    fn line(at: u64, function: &str, stream: LogStream, message: &str) -> String {
        let line = LogLine {
            time: Timestamp::from_unix_us(at),
            level: "info".into(),
            message: message.into(),
            function: function.into(),
            revision: u64::from(stream != LogStream::Platform),
            instance: None,
            invocation: None,
            stream,
            sequence: at,
        };
        serde_json::to_string(&line).unwrap() + "\n"
    }

    fn logs(dir: &std::path::Path, texts: &[String]) -> Logs {
        for (at, text) in texts.iter().enumerate() {
            std::fs::write(dir.join(format!("{:06}.jsonl", at + 1)), text).unwrap();
        }
        let limits = mote_store::log_files::LogLimits {
            bytes: 1 << 30,
            age: Duration::from_secs(3_600),
            bytes_per_day: 1 << 30,
        };
        Logs { dir: dir.to_owned(), limits, own_from: 9, queue: std::sync::Arc::<Queue>::default() }
    }

    fn found(logs: &Logs, tail: usize) -> Vec<u64> {
        let search = Search { function: "f".into(), wanted: Wanted::default(), tail, before: None };
        let mut finding = logs.begin(search).unwrap();
        while !finding.step().unwrap() {}
        let mut found = finding.found();
        let mut all = Vec::new();
        while let Some(piece) = found.next() {
            assert!(piece.len() as u64 <= PART_BYTES);
            let lines = piece.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            let lines = lines.map(|line| serde_json::from_slice::<LogLine>(line).unwrap());
            all.extend(lines.map(|line| line.sequence));
        }
        all
    }

    #[test]
    fn every_line_is_found_once_in_parts_of_files() {
        let dir = tempfile::tempdir().unwrap();
        let text = |from: u64| -> String {
            let of = |at| if at % 5 == 0 { "other" } else { "f" };
            (from..from + LINES).map(|at| line(at, of(at), LogStream::Stdout, "x")).collect()
        };
        let logs = logs(dir.path(), &[text(1), text(1 + LINES), "{\"torn".to_owned()]);
        let expected: Vec<u64> = (1..=2 * LINES).filter(|at| at % 5 != 0).collect();
        assert_eq!(found(&logs, usize::MAX), expected);
        for tail in [0, 1, 3_999, 4_000, 4_001, 7_999, 8_000, 9_000] {
            let first = expected.len().saturating_sub(tail);
            assert_eq!(found(&logs, tail), expected[first..], "{tail}");
        }
    }

    /// Other searches wait only for a part of the files.
    #[test]
    fn a_search_without_a_match_is_done_in_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let text: String =
            (1..=2 * LINES).map(|at| line(at, "f", LogStream::Stdout, "x")).collect();
        let turns = 3 * text.len() as u64 / (TURN_BYTES + PART_BYTES);
        let logs = logs(dir.path(), &[text.clone(), text.clone(), text]);
        let wanted = Wanted { text: Some(Text::new("nowhere", false)), ..Wanted::default() };
        let search = Search { function: "f".into(), wanted, tail: 10, before: None };
        let mut finding = logs.begin(search).unwrap();
        let mut steps = 1;
        while !finding.step().unwrap() {
            steps += 1;
        }
        assert!(steps >= turns && turns >= 2, "{steps} steps, {turns} turns");
        let mut found = finding.found();
        let pieces: Vec<Bytes> = std::iter::from_fn(|| found.next()).collect();
        assert!(pieces.len() as u64 >= turns, "{} pieces, {turns} turns", pieces.len());
        assert!(pieces.iter().all(Bytes::is_empty));
    }

    #[test]
    fn lines_before_a_removal_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let old = line(1, "f", LogStream::Stdout, "old");
        let removed = line(2, "f", LogStream::Platform, REMOVED);
        let said = line(3, "f", LogStream::Stdout, REMOVED);
        let logs = logs(dir.path(), &[old.clone(), old + &removed + &said, said]);
        assert_eq!(found(&logs, usize::MAX), [3, 3]);
        assert_eq!(found(&logs, 9), [3, 3]);
        assert_eq!(found(&logs, 1), [3]);
    }
}
