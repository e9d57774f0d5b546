//! Numbered files of lines that take a bounded part of the disk.
//!
//! Lines are appended to the newest file, and the oldest files are removed. Nothing is synchronised
//! to the disk for each line: what was appended survives the end of the process, and a power cut
//! may lose what the kernel has not written back yet.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// A new file begins when the newest one has this part of all bytes.
const FILES: u64 = 64;
/// The maximum number of files. Each start of a node that writes lines begins one.
const FILES_MAX: usize = 256;
const SUFFIX: &str = ".jsonl";

/// The limits of a folder of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Of all files together, in bytes.
    pub bytes: u64,
    /// How long a file is kept after its last line.
    pub age: Duration,
    /// Bytes that may be written in one day (UTC).
    pub bytes_per_day: u64,
}

/// A file of lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFile {
    /// Its number; larger numbers are newer.
    pub number: u64,
    pub path: PathBuf,
    pub bytes: u64,
    /// When its last line was written.
    pub modified: SystemTime,
}

/// Writes the files of one folder. Only one writer may exist for each folder.
#[derive(Debug)]
pub struct LogWriter {
    dir: PathBuf,
    limits: LogLimits,
    current: Option<Current>,
    /// The number of the next file.
    next: u64,
    day: u64,
    bytes_today: u64,
}

#[derive(Debug)]
struct Current {
    file: File,
    bytes: u64,
    day: u64,
    /// Whether the last write failed, so that its last line may have no end.
    is_torn: bool,
}

/// All files of a folder, oldest first. A folder that does not exist has none.
pub fn files(dir: &Path) -> io::Result<Vec<LogFile>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)?.parse().ok());
        // The writer may remove the file meanwhile.
        let (Some(number), Ok(metadata)) = (number, entry.metadata()) else { continue };
        if metadata.is_file() {
            let modified = metadata.modified()?;
            all.push(LogFile { number, path: entry.path(), bytes: metadata.len(), modified });
        }
    }
    all.sort_unstable_by_key(|file| file.number);
    Ok(all)
}

impl LogWriter {
    /// Prepares the folder, which is made for this user alone. Writes no file yet.
    pub fn open(dir: &Path, limits: LogLimits, now_ms: u64) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let mut writer = Self {
            dir: dir.to_owned(),
            limits,
            current: None,
            next: 1,
            day: now_ms / DAY_MS,
            bytes_today: 0,
        };
        writer.remove_old()?;
        let all = files(dir)?;
        writer.next = all.last().map_or(1, |file| file.number + 1);
        let is_today = |file: &&LogFile| {
            let since = file.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            since.as_millis() as u64 / DAY_MS == writer.day
        };
        writer.bytes_today = all.iter().filter(is_today).map(|file| file.bytes).sum();
        Ok(writer)
    }

    /// The number of the first file that this writer makes.
    pub fn next_number(&self) -> u64 {
        self.next
    }

    /// How many bytes may still be written on the day of `now_ms`.
    pub fn left_today(&mut self, now_ms: u64) -> u64 {
        if self.day != now_ms / DAY_MS {
            self.day = now_ms / DAY_MS;
            self.bytes_today = 0;
        }
        self.limits.bytes_per_day.saturating_sub(self.bytes_today)
    }

    /// Appends whole lines, in one write, at most a 64th of the bytes of all files. Blocks.
    pub fn append(&mut self, lines: &[u8], now_ms: u64) -> io::Result<()> {
        let day = now_ms / DAY_MS;
        let is_full = |current: &Current| {
            let bytes = current.bytes + lines.len() as u64;
            bytes > self.limits.bytes / FILES || current.day != day
        };
        if self.current.as_ref().is_none_or(is_full) {
            self.begin(day)?;
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        let torn = std::mem::replace(&mut current.is_torn, true);
        if torn {
            current.file.write_all(b"\n")?;
        }
        current.file.write_all(lines)?;
        current.is_torn = false;
        current.bytes += lines.len() as u64;
        self.bytes_today += lines.len() as u64;
        Ok(())
    }

    /// Writes everything to the disk. Blocks.
    pub fn sync(&mut self) -> io::Result<()> {
        self.current.as_ref().map_or(Ok(()), |current| current.file.sync_data())
    }

    fn begin(&mut self, day: u64) -> io::Result<()> {
        self.sync()?;
        let path = self.dir.join(format!("{:06}{SUFFIX}", self.next));
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        self.current = Some(Current { file, bytes: 0, day, is_torn: false });
        self.next += 1;
        self.remove_old()
    }

    /// Removes files that are too old, and the oldest ones while all together are too large.
    pub fn remove_old(&mut self) -> io::Result<()> {
        let mut all = files(&self.dir)?;
        let newest = self.current.is_some().then(|| self.next - 1);
        all.retain(|file| Some(file.number) != newest);
        let now = SystemTime::now();
        // The newest file may grow to its full size.
        let room = self.limits.bytes - self.limits.bytes / FILES;
        let mut total: u64 = all.iter().map(|file| file.bytes).sum();
        let mut left = all.len();
        for file in all {
            let age = now.duration_since(file.modified).unwrap_or_default();
            if total <= room && left < FILES_MAX && age <= self.limits.age {
                continue;
            }
            std::fs::remove_file(&file.path)?;
            total -= file.bytes;
            left -= 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: LogLimits =
        LogLimits { bytes: 64 * 1_000, age: Duration::from_secs(3_600), bytes_per_day: 90_000 };

    fn numbers(dir: &Path) -> Vec<u64> {
        files(dir).unwrap().iter().map(|file| file.number).collect()
    }

    #[test]
    fn the_folder_is_bounded_and_the_newest_lines_stay() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("logs");
        let mut writer = LogWriter::open(&dir, LIMITS, 0).unwrap();
        assert_eq!(numbers(&dir), [0_u64; 0]);
        for at in 0..900 {
            writer.append(format!("{at:099}\n").as_bytes(), 0).unwrap();
            let total: u64 = files(&dir).unwrap().iter().map(|file| file.bytes).sum();
            assert!(total <= LIMITS.bytes, "{total}");
        }
        let last = files(&dir).unwrap().pop().unwrap();
        let text = std::fs::read_to_string(&last.path).unwrap();
        assert!(text.ends_with("899\n"), "{text}");
        assert_eq!(writer.left_today(0), 0);
        assert_eq!(writer.left_today(DAY_MS), LIMITS.bytes_per_day);
    }

    #[test]
    fn another_start_begins_another_file_and_knows_what_was_written_today() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let now_ms = now.as_millis() as u64;
        let mut writer = LogWriter::open(dir.path(), LIMITS, now_ms).unwrap();
        writer.append(b"one\n", now_ms).unwrap();
        let mut writer = LogWriter::open(dir.path(), LIMITS, now_ms).unwrap();
        assert_eq!(writer.next_number(), 2);
        assert_eq!(writer.left_today(now_ms), LIMITS.bytes_per_day - 4);
        writer.append(b"two\n", now_ms).unwrap();
        writer.append(b"three\n", now_ms + DAY_MS).unwrap();
        assert_eq!(numbers(dir.path()), [1, 2, 3]);
    }

    #[test]
    fn old_files_are_removed_when_a_node_starts() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = LogWriter::open(dir.path(), LIMITS, 0).unwrap();
        writer.append(b"one\n", 0).unwrap();
        let first = File::options().append(true).open(dir.path().join("000001.jsonl")).unwrap();
        first.set_modified(SystemTime::now() - 2 * LIMITS.age).unwrap();
        LogWriter::open(dir.path(), LIMITS, 0).unwrap();
        assert_eq!(numbers(dir.path()), [0_u64; 0]);
    }
}
