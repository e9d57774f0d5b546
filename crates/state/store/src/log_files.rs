//! Numbered files of lines that take a bounded part of the disk.
//!
//! Functions that write little share files, because separate files would write many more pages to
//! the disk. A function that writes more has a folder with its own files. When all files together
//! are too large, one owner loses its oldest file: the one that has the most in relation to its
//! number of functions. So no function displaces the lines of others. Nothing is synchronised to
//! the disk for each line: what was appended survives the end of the process, and a power cut may
//! lose what the kernel has not written back yet.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// The maximum size of a file, as a part of the bytes for all files.
const FILES: u64 = 64;
/// A function's share of all bytes has room for at least this many files, so that the function does
/// not lose all lines at once.
const FILES_OF_SHARE: u64 = 4;
/// Files are not made smaller than this, however many functions there are.
const FILE_BYTES_MIN: u64 = 16 << 10;
/// The maximum number of files. Each start of a node begins one for each function that writes lines.
const FILES_MAX: usize = 8_192;
const SUFFIX: &str = ".jsonl";
/// The owner of the shared files, which are in no function's folder.
pub const SHARED: &str = "";
/// The shared files count as the files of at least this many functions.
const SHARERS_MIN: usize = 4;

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
    owners: BTreeMap<String, Owner>,
    /// How many functions write to the shared files.
    sharers: usize,
    /// Of all files.
    bytes: u64,
    files: usize,
    /// The number of the next file.
    next: u64,
    day: u64,
    bytes_today: u64,
}

/// The files of one function, or the shared ones, oldest first.
#[derive(Debug, Default)]
struct Owner {
    files: VecDeque<Numbered>,
    bytes: u64,
    /// The day on which this writer has begun the newest file.
    day: Option<u64>,
    /// Whether the last write failed. If so, the last line may be incomplete.
    is_torn: bool,
}

#[derive(Debug)]
struct Numbered {
    number: u64,
    bytes: u64,
    modified: SystemTime,
}

/// All files that may contain lines of a function, oldest first.
pub fn files(dir: &Path, function: &str) -> io::Result<Vec<LogFile>> {
    let mut all = files_in(dir)?;
    all.append(&mut files_in(&dir.join(function))?);
    all.sort_unstable_by_key(|file| file.number);
    Ok(all)
}

/// The files of one folder. A folder that does not exist has none.
fn files_in(dir: &Path) -> io::Result<Vec<LogFile>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        // A function in the namespace `jsonl` may have the name of a shared file.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(Vec::new()),
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

impl Owner {
    fn new(files: Vec<LogFile>) -> Self {
        let bytes = files.iter().map(|file| file.bytes).sum();
        let files = files.into_iter().map(|LogFile { number, bytes, modified, .. }| Numbered {
            number,
            bytes,
            modified,
        });
        Self { files: files.collect(), bytes, ..Self::default() }
    }
}

impl LogWriter {
    /// Prepares the folder, which is made for this user alone. Writes no file yet.
    pub fn open(dir: &Path, limits: LogLimits, now_ms: u64) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let mut owners = BTreeMap::from([(SHARED.to_owned(), Owner::new(files_in(dir)?))]);
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().into_string();
            if let (true, Ok(name)) = (entry.file_type()?.is_dir(), name) {
                owners.insert(name, Owner::new(files_in(&entry.path())?));
            }
        }
        let day = now_ms / DAY_MS;
        let all = || owners.values().flat_map(|owner| &owner.files);
        let is_today = |file: &&Numbered| {
            let since = file.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            since.as_millis() as u64 / DAY_MS == day
        };
        let mut writer = Self {
            dir: dir.to_owned(),
            limits,
            bytes: all().map(|file| file.bytes).sum(),
            files: all().count(),
            sharers: 0,
            next: all().map(|file| file.number + 1).max().unwrap_or(1),
            day,
            bytes_today: all().filter(is_today).map(|file| file.bytes).sum(),
            owners,
        };
        writer.remove_old()?;
        Ok(writer)
    }

    /// The number of the first file that this writer makes.
    pub fn next_number(&self) -> u64 {
        self.next
    }

    /// Whether a function can have its own files. The folder of a function in the namespace `jsonl`
    /// could have the name of a shared file.
    pub fn can_own_files(function: &str) -> bool {
        !function.ends_with(SUFFIX)
    }

    /// How many bytes may still be written on the day of `now_ms`.
    pub fn left_today(&mut self, now_ms: u64) -> u64 {
        if self.day != now_ms / DAY_MS {
            self.day = now_ms / DAY_MS;
            self.bytes_today = 0;
        }
        self.limits.bytes_per_day.saturating_sub(self.bytes_today)
    }

    /// Notes how many functions write to the shared files now.
    pub fn set_sharers(&mut self, sharers: usize) {
        self.sharers = sharers;
    }

    /// Appends whole lines to the files of a function or to the [`SHARED`] ones, in one write. The
    /// lines have at most a 64th of the bytes of all files. Blocks.
    pub fn append(&mut self, function: &str, lines: &[u8], now_ms: u64) -> io::Result<()> {
        let day = now_ms / DAY_MS;
        let length = lines.len() as u64;
        while self.bytes + length > self.limits.bytes
            && let Some(most) = self.owner_with_most(|owner, functions| owner.bytes / functions)
        {
            self.remove_oldest(&most)?;
        }
        let file_bytes = self.file_bytes();
        let is_full = |owner: &Owner| {
            let newest = owner.files.back().map_or(0, |file| file.bytes);
            newest + length > file_bytes || owner.day != Some(day)
        };
        if self.owners.get(function).is_none_or(is_full) {
            self.begin(function, day)?;
        }
        let path = |number: u64| path(&self.dir, function, number);
        let Some(owner) = self.owners.get_mut(function) else { return Ok(()) };
        let Some(newest) = owner.files.back_mut() else { return Ok(()) };
        let file = OpenOptions::new().append(true).open(path(newest.number));
        // If somebody has removed the file, the next lines begin another one.
        let mut file = file.inspect_err(|_| owner.day = None)?;
        if std::mem::replace(&mut owner.is_torn, true) {
            file.write_all(b"\n")?;
        }
        file.write_all(lines)?;
        owner.is_torn = false;
        newest.bytes += length;
        newest.modified = SystemTime::now();
        owner.bytes += length;
        self.bytes += length;
        self.bytes_today += length;
        Ok(())
    }

    /// The size at which a file is full. A function's share of all bytes has room for several
    /// files.
    fn file_bytes(&self) -> u64 {
        let share = self.limits.bytes / self.owners.len().max(1) as u64;
        (share / FILES_OF_SHARE).max(FILE_BYTES_MIN).min(self.limits.bytes / FILES)
    }

    fn begin(&mut self, function: &str, day: u64) -> io::Result<()> {
        self.remove_old()?;
        DirBuilder::new().recursive(true).mode(0o700).create(self.dir.join(function))?;
        let path = path(&self.dir, function, self.next);
        OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let owner = self.owners.entry(function.to_owned()).or_default();
        let modified = SystemTime::now();
        owner.files.push_back(Numbered { number: self.next, bytes: 0, modified });
        (owner.day, owner.is_torn) = (Some(day), false);
        self.next += 1;
        self.files += 1;
        Ok(())
    }

    /// Removes files that are too old, and some if there are too many.
    pub fn remove_old(&mut self) -> io::Result<()> {
        let (now, age_max) = (SystemTime::now(), self.limits.age);
        let is_old = |owner: &Owner| {
            let age = |file: &Numbered| now.duration_since(file.modified).unwrap_or_default();
            owner.files.front().is_none_or(|file| age(file) > age_max)
        };
        let old = self.owners.iter().filter(|(_, owner)| is_old(owner));
        let mut old: Vec<String> = old.map(|(name, _)| name.clone()).collect();
        while let Some(name) = old.last() {
            self.remove_oldest(name)?;
            if !self.owners.get(name).is_some_and(is_old) {
                old.pop();
            }
        }
        while self.files >= FILES_MAX
            && let Some(most) = self.owner_with_most(|owner, _| owner.files.len() as u64)
        {
            self.remove_oldest(&most)?;
        }
        Ok(())
    }

    /// The owner with the most, by its files and its number of functions.
    fn owner_with_most(&self, of: impl Fn(&Owner, u64) -> u64) -> Option<String> {
        let of = |(name, owner): &(&String, &Owner)| {
            let is_shared = name.as_str() == SHARED;
            of(owner, if is_shared { self.sharers.max(SHARERS_MIN) as u64 } else { 1 })
        };
        self.owners.iter().max_by_key(of).map(|(name, _)| name.clone())
    }

    /// Removes the oldest file of a function, and with the last file also the function's folder.
    fn remove_oldest(&mut self, function: &str) -> io::Result<()> {
        let Some(owner) = self.owners.get_mut(function) else { return Ok(()) };
        if let Some(file) = owner.files.pop_front() {
            owner.bytes -= file.bytes;
            self.bytes -= file.bytes;
            self.files -= 1;
            match std::fs::remove_file(path(&self.dir, function, file.number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if owner.files.is_empty() {
            self.owners.remove(function);
            if function != SHARED {
                // The folder stays if it has other files.
                let _ = std::fs::remove_dir(self.dir.join(function));
            }
        }
        Ok(())
    }
}

fn path(dir: &Path, function: &str, number: u64) -> PathBuf {
    dir.join(function).join(format!("{number:06}{SUFFIX}"))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    const LIMITS: LogLimits =
        LogLimits { bytes: 1 << 20, age: Duration::from_secs(3_600), bytes_per_day: 2 << 20 };

    fn all(dir: &Path) -> Vec<LogFile> {
        let folders = std::fs::read_dir(dir).unwrap().map(|folder| folder.unwrap().path());
        folders.filter(|path| path.is_dir()).flat_map(|path| files_in(&path).unwrap()).collect()
    }

    fn numbers(dir: &Path) -> Vec<u64> {
        let mut numbers: Vec<_> = all(dir).iter().map(|file| file.number).collect();
        numbers.sort_unstable();
        numbers
    }

    fn text(dir: &Path, function: &str) -> String {
        let files = files(dir, function).unwrap();
        files.iter().map(|file| std::fs::read_to_string(&file.path).unwrap()).collect()
    }

    #[test]
    fn the_folder_is_bounded_and_the_newest_lines_stay() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("logs");
        let mut writer = LogWriter::open(&dir, LIMITS, 0).unwrap();
        assert_eq!(numbers(&dir), [0_u64; 0]);
        for at in 0..2_100 {
            writer.append("f", format!("{at:0999}\n").as_bytes(), 0).unwrap();
            let total: u64 = all(&dir).iter().map(|file| file.bytes).sum();
            assert!(total <= LIMITS.bytes && total == writer.bytes, "{total}");
        }
        assert!(text(&dir, "f").ends_with("2099\n"));
        assert_eq!(writer.left_today(0), 0);
        assert_eq!(writer.left_today(DAY_MS), LIMITS.bytes_per_day);
    }

    #[test]
    fn a_function_that_writes_much_displaces_only_its_own_lines() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = LogWriter::open(dir.path(), LIMITS, 0).unwrap();
        let quiet: String = (0..100).map(|at| format!("{at:099}\n")).collect();
        for name in ["one", "two"] {
            writer.append(name, quiet.as_bytes(), 0).unwrap();
        }
        for at in 0..3_000 {
            writer.append("loud", format!("{at:0999}\n").as_bytes(), 0).unwrap();
        }
        assert_eq!((text(dir.path(), "one"), text(dir.path(), "two")), (quiet.clone(), quiet));
        // A second function that writes much takes half of the room.
        for at in 0..3_000 {
            writer.append("also", format!("{at:0999}\n").as_bytes(), 0).unwrap();
        }
        let [loud, also] = ["loud", "also"].map(|name| text(dir.path(), name).len());
        assert!(loud > 400_000 && also > 400_000, "{loud} {also}");
        assert_eq!(text(dir.path(), "one").len(), 10_000);
    }

    #[test]
    fn shared_files_count_for_their_functions() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = LogWriter::open(dir.path(), LIMITS, 0).unwrap();
        writer.set_sharers(12);
        let line = |at| format!("{at:0999}\n");
        for at in 0..600 {
            writer.append(SHARED, line(at).as_bytes(), 0).unwrap();
        }
        for at in 0..2_000 {
            writer.append("loud", line(at).as_bytes(), 0).unwrap();
        }
        // The shares would be 600,000 / 12 bytes and the rest: only the loud function loses lines.
        let shared = files_in(dir.path()).unwrap().iter().map(|file| file.bytes).sum::<u64>();
        assert_eq!(shared, 600_000);
        let of_function = text(dir.path(), "loud");
        assert!(of_function.starts_with('0') && of_function.ends_with("1999\n"));
    }

    #[test]
    fn many_functions_keep_their_newest_lines() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = LogWriter::open(dir.path(), LIMITS, 0).unwrap();
        for at in 0..100 {
            for function in 0..20 {
                let line = format!("{at:0999}\n");
                writer.append(&format!("f{function}"), line.as_bytes(), 0).unwrap();
            }
        }
        for function in 0..20 {
            let text = text(dir.path(), &format!("f{function}"));
            assert!(text.len() >= 16_000 && text.ends_with("99\n"), "{}", text.len());
        }
    }

    #[test]
    fn another_start_begins_another_file_and_knows_what_was_written_today() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let now_ms = now.as_millis() as u64;
        std::fs::write(dir.path().join("000007.jsonl"), "old\n").unwrap();
        let mut writer = LogWriter::open(dir.path(), LIMITS, now_ms).unwrap();
        writer.append("f", b"one\n", now_ms).unwrap();
        let mut writer = LogWriter::open(dir.path(), LIMITS, now_ms).unwrap();
        assert_eq!(writer.next_number(), 9);
        assert_eq!(writer.left_today(now_ms), LIMITS.bytes_per_day - 8);
        writer.append("f", b"two\n", now_ms).unwrap();
        writer.append("f", b"three\n", now_ms + DAY_MS).unwrap();
        assert_eq!(numbers(dir.path()), [8, 9, 10]);
        assert_eq!(text(dir.path(), "f"), "old\none\ntwo\nthree\n");
    }

    #[test]
    fn old_files_are_removed_when_a_node_starts() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = LogWriter::open(dir.path(), LIMITS, 0).unwrap();
        writer.append("f", b"one\n", 0).unwrap();
        let first = File::options().append(true).open(dir.path().join("f/000001.jsonl")).unwrap();
        first.set_modified(SystemTime::now() - 2 * LIMITS.age).unwrap();
        LogWriter::open(dir.path(), LIMITS, 0).unwrap();
        assert!(!dir.path().join("f").exists());
    }
}
