//! The record of changes to a node: what was changed, when, by whom and from where.
//!
//! The record is a file to which lines of JSON are appended. When the file is full, it becomes the
//! former file and the previous former file is removed, so a record never needs more disk space
//! than two files. Tokens of a namespace have separate files, so that their acts cannot push out
//! other tokens' records.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use mote_api::Timestamp;
use mote_api::operators::AuditEntry;
use mote_spec::name::of_kept;
use parking_lot::Mutex;

/// The file in the data folder. In the file name for a namespace, a dash and the namespace come
/// before the dot.
const FILE: &str = "audit.log";
/// A former file has this ending.
const FORMER: &str = ".1";
/// When a file has this many bytes, it becomes the former file.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// When the file of a namespace has this many bytes, it becomes the former file.
const NAMESPACE_BYTES_MAX: u64 = 512 << 10;
/// The maximum number of files that stay open.
const OPEN_MAX: usize = 64;
/// Longest part of a path or a name that is recorded, in characters.
const TEXT_CHARS_MAX: usize = 256;
/// Pause between two records of one sender's refused requests, and of the same request about
/// sessions, so that such requests cannot push out the record of changes.
const REFUSED_PAUSE_MS: u64 = 1_000;
/// The beginning of the paths about sessions. Every role may send these requests.
const SESSIONS: &str = "/v1/session";
/// The status of acts whose client disconnected before the answer, as in nginx.
const CLIENT_LEFT: u16 = 499;
/// The maximum number of senders whose last such request is remembered. A node has fewer tokens
/// than this, so there is room for each.
const REFUSED_MAX: usize = 4_096;

/// Whether requests with this method change nothing.
pub fn reads_only(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS")
}

/// Whether a request reads what callers send to a function. It needs the right to change the
/// function, and is recorded.
pub fn reads_calls(path: &str) -> bool {
    let function = path.strip_prefix("/v1/functions/").and_then(|rest| rest.split_once('/'));
    function.is_some_and(|(_, topic)| topic == "recording")
}

/// Whether a request to the management API, or to an API of another platform, is recorded. A
/// request that changes the node is recorded. Calls of functions are not, because there may be many
/// of them.
pub fn is_act(method: &str, path: &str) -> bool {
    let calls = path.ends_with("/invoke")
        || path.ends_with("/function_invocations")
        || (method == "POST" && (path.contains("/actions/") || path.contains("/triggers/")));
    (!reads_only(method) && !calls) || reads_calls(path)
}

/// One request that changes something.
#[derive(Debug, Clone)]
pub struct Act {
    /// When the request arrived, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// The sender: the name of a token, after its namespace and a slash if it has a namespace, or a
    /// user of this machine.
    pub who: String,
    /// The address of the sender, or `socket` for the management socket.
    pub from: String,
    pub method: String,
    /// The path of the request, without the query.
    pub path: String,
    pub status: u16,
}

/// An act that has begun. If the client disconnects before the answer, the act is still recorded,
/// because the change may have been made. Its status is then 499.
pub struct Begun<F: FnOnce(Act)> {
    act: Option<(Act, F)>,
}

impl<F: FnOnce(Act)> Begun<F> {
    /// Begins an act. `left` records the act if its client disconnects.
    pub fn new(act: Act, left: F) -> Self {
        Self { act: Some((act, left)) }
    }

    /// Ends the act with the status of its answer, and returns it.
    pub fn answered(mut self, status: u16) -> Option<Act> {
        self.act.take().map(|(act, _)| Act { status, ..act })
    }
}

impl<F: FnOnce(Act)> Drop for Begun<F> {
    fn drop(&mut self) {
        if let Some((act, left)) = self.act.take() {
            left(Act { status: CLIENT_LEFT, ..act });
        }
    }
}

/// The record of acts. Its functions block.
pub struct Audit {
    folder: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Open files by name, each with its length in bytes.
    files: HashMap<String, (File, u64)>,
    /// The time of each sender's last act that was refused, or was about a session.
    refused_at_unix_ms: HashMap<String, u64>,
    has_failed: bool,
}

impl Audit {
    /// The record in a data folder. The file is made when the first act is recorded.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), state: Mutex::default() }
    }

    /// Records an act. Acts that were refused because of a role are recorded at most once a second
    /// for each sender, and logins, logouts and codes at most once a second each. For a token of a namespace, the same applies to all acts that failed
    /// because of the request. If the disk is full, the act is not recorded, and the node's log
    /// says so once.
    pub fn record(&self, act: &Act) {
        let namespace = of_kept(&act.who).0;
        let mut state = self.state.lock();
        let fails = (400..CLIENT_LEFT).contains(&act.status);
        let is_of_session = act.path.starts_with(SESSIONS);
        if act.status == 403 || (namespace.is_some() && fails) || is_of_session {
            let who = match is_of_session {
                true => format!("{} {} {}", act.who, act.method, act.path),
                false => act.who.clone(),
            };
            let last = state.refused_at_unix_ms.get(&who).copied().unwrap_or(0);
            let since = act.at_unix_ms.saturating_sub(last);
            if since < REFUSED_PAUSE_MS {
                return;
            }
            if state.refused_at_unix_ms.len() >= REFUSED_MAX {
                state.refused_at_unix_ms.clear();
            }
            state.refused_at_unix_ms.insert(who, act.at_unix_ms);
        }
        let shortened = |text: &str| text.chars().take(TEXT_CHARS_MAX).collect::<String>();
        let entry = AuditEntry {
            at: Timestamp::from_unix_ms(act.at_unix_ms),
            who: shortened(&act.who),
            from: act.from.clone(),
            act: format!("{} {}", shortened(&act.method), shortened(&act.path)),
            status: act.status,
        };
        let mut line = serde_json::to_vec(&entry).expect("plain data");
        line.push(b'\n');
        let (name, bytes_max) = match namespace {
            None => (FILE.to_owned(), FILE_BYTES_MAX),
            Some(namespace) => (format!("audit-{namespace}.log"), NAMESPACE_BYTES_MAX),
        };
        match self.append(&mut state, &name, bytes_max, &line) {
            Ok(()) => state.has_failed = false,
            Err(error) => {
                if !std::mem::replace(&mut state.has_failed, true) {
                    let file = self.folder.join(name);
                    tracing::error!(file = %file.display(), %error, "acts are not recorded");
                }
            }
        }
    }

    fn append(&self, state: &mut State, name: &str, bytes_max: u64, line: &[u8]) -> io::Result<()> {
        let path = self.folder.join(name);
        let open = match state.files.remove(name) {
            Some((_, bytes)) if bytes >= bytes_max => {
                std::fs::rename(&path, self.folder.join(format!("{name}{FORMER}")))?;
                None
            }
            open => open,
        };
        let (mut file, bytes) = match open {
            Some(open) => open,
            None => {
                if state.files.len() >= OPEN_MAX {
                    state.files.clear();
                }
                let mut options = OpenOptions::new();
                options.read(true).append(true).create(true).mode(0o600);
                let mut file = mote_store::own::open(&mut options, &path)?;
                let bytes = file.metadata()?.len();
                // A full disk or a crash may have cut the last line. A new line begins after it.
                let mut last = [b'\n'];
                if bytes > 0 {
                    file.read_exact_at(&mut last, bytes - 1)?;
                }
                if last != [b'\n'] {
                    file.write_all(b"\n")?;
                }
                (file, bytes)
            }
        };
        file.write_all(line)?;
        state.files.insert(name.to_owned(), (file, bytes + line.len() as u64));
        Ok(())
    }

    /// The latest `most` acts, oldest first.
    pub fn latest(&self, most: usize) -> io::Result<Vec<AuditEntry>> {
        let _state = self.state.lock();
        let mut all = self.latest_of(FILE, most)?;
        for name in self.files_of_namespaces()? {
            all.extend(self.latest_of(&name, most)?);
            all.make_contiguous().sort_by_key(|entry| entry.at);
            all.drain(..all.len().saturating_sub(most));
        }
        Ok(all.into())
    }

    fn files_of_namespaces(&self) -> io::Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let name = name.strip_suffix(FORMER).unwrap_or(&name);
            if name.starts_with("audit-") && name.ends_with(".log") {
                names.insert(name.to_owned());
            }
        }
        Ok(names)
    }

    /// The latest acts in a file and in its former file.
    fn latest_of(&self, name: &str, most: usize) -> io::Result<VecDeque<AuditEntry>> {
        let mut latest = VecDeque::new();
        for name in [format!("{name}{FORMER}"), name.to_owned()] {
            let of = |error: io::Error| io::Error::new(error.kind(), format!("{name}: {error}"));
            let path = self.folder.join(&name);
            let file = match mote_store::own::open(OpenOptions::new().read(true), &path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(of(error)),
            };
            for line in BufReader::new(file).split(b'\n') {
                let line = line.map_err(of)?;
                // A line that a full disk or a crash has cut is left out.
                let Ok(entry) = serde_json::from_slice::<AuditEntry>(&line) else { continue };
                if latest.len() >= most {
                    latest.pop_front();
                }
                latest.push_back(entry);
            }
        }
        Ok(latest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(at_unix_ms: u64, path: &str, status: u16) -> Act {
        Act {
            at_unix_ms,
            who: "ci".to_owned(),
            from: "192.0.2.1".to_owned(),
            method: "PUT".to_owned(),
            path: path.to_owned(),
            status,
        }
    }

    fn paths(audit: &Audit, most: usize) -> Vec<String> {
        audit.latest(most).expect("read").into_iter().map(|entry| entry.act).collect()
    }

    #[test]
    fn acts_are_appended_and_survive_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let audit = Audit::new(folder.path());
        assert_eq!(audit.latest(10).expect("nothing yet"), []);
        audit.record(&act(1, "/v1/functions/a", 200));
        audit.record(&act(2, "/v1/functions/b\nforged", 422));
        let again = Audit::new(folder.path());
        again.record(&act(3, "/v1/functions/c", 200));
        let all = again.latest(10).expect("read");
        assert_eq!(all.len(), 3, "{all:?}");
        assert_eq!((all[1].act.as_str(), all[1].status), ("PUT /v1/functions/b\nforged", 422));
        assert_eq!(paths(&again, 1), ["PUT /v1/functions/c"]);
    }

    #[test]
    fn logins_cannot_push_out_other_acts() {
        let folder = tempfile::tempdir().expect("a folder");
        let audit = Audit::new(folder.path());
        for at in [10_000, 10_001, 10_900, 11_000] {
            audit.record(&act(at, "/v1/session", 200));
            audit.record(&act(at, "/v1/session/code", 200));
            audit.record(&act(at, "/v1/functions/a", 200));
        }
        let all = paths(&audit, 20);
        let of = |path: &str| all.iter().filter(|act| act.ends_with(path)).count();
        assert_eq!((of("/session"), of("/session/code"), of("/functions/a")), (2, 2, 4));
    }

    #[test]
    fn calls_of_functions_are_no_acts() {
        for (method, path, expected) in [
            ("PUT", "/v1/functions/hello", true),
            ("DELETE", "/v1/kv/hello/entry", true),
            ("GET", "/v1/functions", false),
            ("POST", "/v1/functions/hello/invoke", false),
            ("GET", "/v1/functions/hello/recording", true),
            ("GET", "/v1/functions/recording", false),
            ("POST", "/api/function_invocations", false),
            ("POST", "/api/v1/namespaces/_/actions/hello", false),
            ("PUT", "/api/v1/namespaces/_/actions/hello", true),
            ("POST", "/system/functions", true),
        ] {
            assert_eq!(is_act(method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn refused_acts_do_not_push_out_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let audit = Audit::new(folder.path());
        for at in 0..100 {
            audit.record(&act(10_000 + at, "/v1/tokens", 403));
        }
        audit.record(&act(10_100, "/v1/functions/a", 200));
        assert_eq!(paths(&audit, 10), ["PUT /v1/tokens", "PUT /v1/functions/a"]);
    }

    #[test]
    fn refused_acts_of_one_do_not_hide_those_of_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let audit = Audit::new(folder.path());
        for at in 0..20 {
            audit.record(&act(10_000 + at, "/v1/tokens", 403));
        }
        audit.record(&Act { who: "other".into(), ..act(10_100, "/v1/keys", 403) });
        assert_eq!(paths(&audit, 10), ["PUT /v1/tokens", "PUT /v1/keys"]);
    }

    #[test]
    fn a_namespace_pushes_out_its_own_acts_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let audit = Audit::new(folder.path());
        let of = |who: &str, act| Act { who: who.into(), ..act };
        audit.record(&act(1, "/v1/functions/a", 200));
        audit.record(&of("orchard/bob", act(2, "/v1/functions/b.orchard", 200)));
        // Most acts that changed nothing are left out, but acts that may have changed something are
        // all kept.
        for at in 0..2_000 {
            audit.record(&of("plant/ada", act(10_000 + at, "/v1/secrets/plant/x", 404)));
            audit.record(&of("plant/ada", act(10_000 + at, "/left", 499)));
        }
        assert_eq!(audit.latest(10_000).expect("read").len(), 2 + 2 + 2_000);
        let long = "x".repeat(TEXT_CHARS_MAX);
        for at in 0..2 * NAMESPACE_BYTES_MAX / TEXT_CHARS_MAX as u64 {
            audit.record(&of("plant/ada", act(20_000 + at, &long, 200)));
        }
        let entries = Audit::new(folder.path()).latest(10_000).expect("read");
        let who: Vec<&str> = entries.iter().map(|entry| &*entry.who).collect();
        assert_eq!(who[..3], ["ci", "orchard/bob", "plant/ada"]);
        assert_eq!(entries[2].act, format!("PUT {long}"), "the oldest of plant are gone");
        let bytes = |name: &str| std::fs::metadata(folder.path().join(name)).expect("a file").len();
        let bytes = bytes("audit-plant.log") + bytes("audit-plant.log.1");
        assert!(bytes < 2 * NAMESPACE_BYTES_MAX + 1_024, "{bytes}");
    }

    #[test]
    fn acts_are_recorded_if_their_client_leaves() {
        let recorded = std::cell::RefCell::new(Vec::new());
        let begin = || Begun::new(act(1, "/a", 0), |act| recorded.borrow_mut().push(act.status));
        assert_eq!(begin().answered(201).map(|act| act.status), Some(201));
        assert!(recorded.borrow().is_empty());
        drop(begin());
        assert_eq!(*recorded.borrow(), [499]);
    }

    #[test]
    fn a_full_file_becomes_the_former_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let audit = Audit::new(folder.path());
        let long = "x".repeat(TEXT_CHARS_MAX * 2);
        let line = 100 + TEXT_CHARS_MAX as u64;
        let count = 3 * FILE_BYTES_MAX / line;
        for at in 0..count {
            audit.record(&act(at, &long, 200));
        }
        audit.record(&act(count, "/last", 200));
        let bytes = |name: &str| std::fs::metadata(folder.path().join(name)).expect("a file").len();
        assert!(bytes(FILE) + bytes("audit.log.1") < 2 * FILE_BYTES_MAX + 1_024);
        assert_eq!(paths(&audit, 1), ["PUT /last"]);
    }

    #[test]
    fn a_cut_line_is_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let audit = Audit::new(folder.path());
        audit.record(&act(1, "/a", 200));
        let mut file =
            OpenOptions::new().append(true).open(folder.path().join(FILE)).expect("a file");
        file.write_all(b"{\"at\":\"20").expect("written");
        let again = Audit::new(folder.path());
        again.record(&act(2, "/b", 200));
        assert_eq!(paths(&again, 10), ["PUT /a", "PUT /b"]);
    }
}
