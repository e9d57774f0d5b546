//! The destinations of the log, and the thread that writes to them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};

use crate::access_log::{Entry, Format, line};

/// The socket of the system journal.
const JOURNAL: &str = "/run/systemd/journal/socket";
/// The journal fields that are the same for each line (see systemd.journal-fields). Priority 6
/// means information.
const JOURNAL_FIELDS: &str = "PRIORITY=6\nSYSLOG_IDENTIFIER=mote-access\nMESSAGE=";
/// How long lines are collected before they are written.
const GATHER: Duration = Duration::from_millis(100);
/// The most bytes of lines that may wait to be written. This is room for about 20,000 lines, and
/// because lines are written every 100 ms, for ten times as many lines per second.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// A buffer that has grown larger than this is freed after use.
const KEEP_BYTES: usize = 64 << 10;
/// How long the stopping node waits for the destination to take the last lines.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// How often the node's log reports a destination that fails.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Where the lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// A file to which lines are appended. The file is opened again after it has been moved or
    /// removed, for example by logrotate.
    File(PathBuf),
    /// The standard output of the node.
    Stdout,
    /// The journal of systemd.
    Journal,
}

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be opened.
    #[error("cannot open {path}: {error}")]
    File { path: PathBuf, error: io::Error },
    /// The journal does not run or does not answer.
    #[error("cannot reach the journal of systemd at {JOURNAL}: {0}")]
    Journal(io::Error),
    /// The thread that writes the log cannot be started.
    #[error("cannot start its thread: {0}")]
    Thread(io::Error),
}

/// The access log of a node. A clone is cheap and shares the thread that writes.
#[derive(Clone)]
pub struct AccessLog {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for AccessLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AccessLog")
    }
}

struct Shared {
    format: Format,
    waiting: Mutex<Waiting>,
    /// Notified when the first line starts to wait, and when the log is closed.
    more: Condvar,
    /// Notified when the thread has ended.
    ended: Condvar,
}

/// Lines that the thread has not yet taken.
#[derive(Default)]
struct Waiting {
    lines: Vec<u8>,
    /// The number of lines dropped because the buffer was full.
    lost: u64,
    is_closed: bool,
    has_ended: bool,
}

impl AccessLog {
    /// Opens the destination and starts the thread that writes to it. Blocks while the destination
    /// is being opened.
    pub fn open(destination: &Destination, format: Format) -> Result<Self, OpenError> {
        let sink = Sink::open(destination)?;
        let waiting = Mutex::default();
        let more = Condvar::new();
        let ended = Condvar::new();
        let shared = Arc::new(Shared { format, waiting, more, ended });
        let of_thread = shared.clone();
        std::thread::Builder::new()
            .name("mote-access-log".to_owned())
            .spawn(move || {
                of_thread.serve(sink);
                of_thread.waiting.lock().has_ended = true;
                of_thread.ended.notify_all();
            })
            .map_err(OpenError::Thread)?;
        Ok(Self { shared })
    }

    /// Appends the line of a request that has just ended. Does not block: if too many lines wait
    /// for a slow destination, this line is lost. The node's log reports the number of lost lines.
    pub fn write(&self, entry: &Entry) {
        let now = SystemTime::now();
        let took = entry.began.elapsed();
        let mut waiting = self.shared.waiting.lock();
        if waiting.lines.len() >= WAITING_BYTES_MAX {
            waiting.lost += 1;
            return;
        }
        let was_empty = waiting.lines.is_empty();
        line::put(&mut waiting.lines, self.shared.format, entry, now, took);
        drop(waiting);
        if was_empty {
            self.shared.more.notify_one();
        }
    }

    /// Writes the waiting lines and ends the thread. Blocks until the destination has taken every
    /// line, but for at most 2 s. After that, the end of the process ends the thread. Lines written
    /// after this call are lost.
    pub fn close(&self) {
        let mut waiting = self.shared.waiting.lock();
        waiting.is_closed = true;
        self.shared.more.notify_one();
        let until = Instant::now() + CLOSE_MAX;
        while !waiting.has_ended {
            if self.shared.ended.wait_until(&mut waiting, until).timed_out() {
                tracing::warn!("lines of the access log are missing: its destination is too slow");
                return;
            }
        }
    }
}

impl Shared {
    fn serve(&self, mut sink: Sink) {
        let mut lines = Vec::new();
        let mut troubles = Troubles::default();
        loop {
            let mut waiting = self.waiting.lock();
            while waiting.lines.is_empty() && !waiting.is_closed {
                self.more.wait(&mut waiting);
            }
            if !waiting.is_closed {
                // Lines that arrive during this wait are written with the same call.
                let until = Instant::now() + GATHER;
                while !waiting.is_closed && !self.more.wait_until(&mut waiting, until).timed_out() {
                }
            }
            std::mem::swap(&mut lines, &mut waiting.lines);
            let lost = std::mem::take(&mut waiting.lost);
            let is_closed = waiting.is_closed;
            drop(waiting);
            troubles.lost += lost;
            if let Err(error) = sink.write(&lines) {
                troubles.lost += lines.iter().filter(|byte| **byte == b'\n').count() as u64;
                troubles.last = Some(error);
            }
            troubles.report(is_closed);
            lines.clear();
            lines.shrink_to(KEEP_BYTES);
            if is_closed {
                return;
            }
        }
    }
}

/// The number of lines missing from the log.
#[derive(Default)]
struct Troubles {
    lost: u64,
    last: Option<io::Error>,
    reported: Option<Instant>,
}

impl Troubles {
    fn report(&mut self, at_once: bool) {
        let is_due = at_once || self.reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY);
        if self.lost == 0 || !is_due {
            return;
        }
        match &self.last {
            Some(error) => {
                tracing::warn!(lines = self.lost, "the access log cannot be written: {error}");
            }
            None => tracing::warn!(
                lines = self.lost,
                "lines of the access log are missing: its destination is too slow"
            ),
        }
        *self = Self { reported: Some(Instant::now()), ..Self::default() };
    }
}

/// An open destination.
enum Sink {
    File { path: PathBuf, file: File },
    Stdout,
    Journal(UnixDatagram),
}

impl Sink {
    fn open(destination: &Destination) -> Result<Self, OpenError> {
        match destination {
            Destination::File(path) => open_file(path)
                .map(|file| Self::File { path: path.clone(), file })
                .map_err(|error| OpenError::File { path: path.clone(), error }),
            Destination::Stdout => Ok(Self::Stdout),
            Destination::Journal => {
                journal(Path::new(JOURNAL)).map(Self::Journal).map_err(OpenError::Journal)
            }
        }
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::File { path, file } => {
                if is_moved(path, file) {
                    *file = open_file(path)?;
                }
                file.write_all(lines)
            }
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(lines)?;
                stdout.flush()
            }
            Self::Journal(socket) => {
                let mut message = JOURNAL_FIELDS.as_bytes().to_vec();
                for line in lines.split_inclusive(|byte| *byte == b'\n') {
                    message.truncate(JOURNAL_FIELDS.len());
                    message.extend_from_slice(line);
                    socket.send(&message)?;
                }
                Ok(())
            }
        }
    }
}

/// Opens a file for appending, and creates it if it does not exist. Only its owner and group may
/// read it, because the log contains addresses of clients.
fn open_file(path: &Path) -> io::Result<File> {
    // Without NONBLOCK, opening a pipe that has no reader would block.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let opened =
        OpenOptions::new().append(true).create(true).mode(0o640).custom_flags(flags).open(path);
    let not_ordinary = || io::Error::other("it is not an ordinary file");
    let file = match opened {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {
            return Err(not_ordinary());
        }
        opened => opened?,
    };
    let kind = file.metadata()?.file_type();
    if kind.is_file() || kind.is_char_device() {
        return Ok(file);
    }
    Err(not_ordinary())
}

/// Whether the path now leads to another file or to no file.
fn is_moved(path: &Path, file: &File) -> bool {
    let Ok(open) = file.metadata() else { return true };
    match std::fs::metadata(path) {
        Ok(found) => (found.dev(), found.ino()) != (open.dev(), open.ino()),
        Err(_) => true,
    }
}

fn journal(at: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(at)?;
    // A journal that accepts no data must not delay the end of the node.
    socket.set_write_timeout(Some(Duration::from_secs(1)))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn entry(method: &str) -> Entry {
        let mut entry = Entry::unreadable(IpAddr::V4(Ipv4Addr::LOCALHOST), "HTTP/1.1", b"");
        entry.method = method.as_bytes().to_vec();
        entry.status = 200;
        entry
    }

    fn lines(path: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_file_that_was_moved_is_made_again() {
        let dir = tempfile::tempdir().expect("temp folder");
        let path = dir.path().join("a.log");
        let moved = dir.path().join("a.log.1");
        let log = AccessLog::open(&Destination::File(path.clone()), Format::Common).expect("opens");
        log.write(&entry("FIRST"));
        let until = Instant::now() + Duration::from_secs(60);
        while lines(&path).is_empty() {
            assert!(Instant::now() < until, "waited 60 s for a line");
            std::thread::yield_now();
        }
        std::fs::rename(&path, &moved).expect("moves");
        log.write(&entry("SECOND"));
        log.close();
        assert!(lines(&moved)[0].contains("FIRST") && lines(&moved).len() == 1);
        assert!(lines(&path)[0].contains("SECOND") && lines(&path).len() == 1);
        let mode = std::fs::metadata(&path).expect("a file").mode();
        assert_eq!(mode & 0o7, 0, "{mode:o}");
    }

    #[test]
    fn what_waits_is_written_at_the_end() {
        let dir = tempfile::tempdir().expect("temp folder");
        let path = dir.path().join("a.log");
        let log = AccessLog::open(&Destination::File(path.clone()), Format::Json).expect("opens");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1_000).for_each(|_| log.write(&entry("GET"))));
            }
        });
        log.close();
        assert_eq!(lines(&path).len(), 4_000);
        // The log is closed, so this line is lost.
        log.write(&entry("LATE"));
        log.close();
    }

    #[test]
    fn a_journal_gets_an_entry_for_each_line() {
        let dir = tempfile::tempdir().expect("temp folder");
        let at = dir.path().join("socket");
        let server = UnixDatagram::bind(&at).expect("binds");
        let mut sink = Sink::Journal(journal(&at).expect("connects"));
        sink.write(b"one\ntwo\n").expect("sends");
        let mut buffer = [0; 1_024];
        for wanted in ["MESSAGE=one\n", "MESSAGE=two\n"] {
            let length = server.recv(&mut buffer).expect("a datagram");
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            assert!(text.ends_with(wanted) && text.starts_with("PRIORITY=6\n"), "{text}");
        }
    }

    #[test]
    fn a_destination_that_takes_nothing_does_not_hold_back_the_end() {
        let dir = tempfile::tempdir().expect("temp folder");
        let path = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("a pipe");
        let both = OpenOptions::new().read(true).write(true).open(&path).expect("opens");
        let shared = Shared {
            format: Format::Common,
            waiting: Mutex::default(),
            more: Condvar::new(),
            ended: Condvar::new(),
        };
        let log = AccessLog { shared: Arc::new(shared) };
        let of_thread = log.shared.clone();
        // `File` opens its path again when the file has been moved, so the path must lead to the
        // pipe itself.
        std::thread::spawn(move || of_thread.serve(Sink::File { path, file: both }));
        let mut long = entry("GET");
        long.target = vec![b'a'; 8 << 10];
        (0..100).for_each(|_| log.write(&long));
        let began = Instant::now();
        log.close();
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().expect("temp folder");
        let text = |path: &Path| {
            let opened = AccessLog::open(&Destination::File(path.to_owned()), Format::Common);
            opened.expect_err("not a file").to_string()
        };
        assert!(text(dir.path()).contains("cannot open"));
        let missing = dir.path().join("missing/a.log");
        assert!(text(&missing).contains("No such file"));
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("a pipe");
        assert!(text(&pipe).contains("not an ordinary file"));
    }
}
