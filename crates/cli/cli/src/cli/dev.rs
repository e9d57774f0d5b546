//! `mote dev` and `mote test`: a node that only the developer uses.
//!
//! The verb makes the node's configuration, and the guest that runs next to the node
//! (`mote_node::develop`). Start reading at `session.rs`.

mod changes;
mod env_file;
mod project;
mod session;
mod show;
mod tests;

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, IsTerminal as _, Read as _};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mote_api::exit;
use mote_node::develop::Guest;
use mote_node::settings::{Given, Loaded};
use mote_project::Options;
use mote_store::seal::KeySource;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::process::geteuid;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

use self::project::Project;
use self::session::Wishes;
use super::args::{Dev, Test};
use super::failure::Failure;
use super::output::Output;

/// With this factor, the usual timeout of 10 s becomes a day, so that no call ends while somebody
/// looks at it in a debugger.
const INSPECT_TIMEOUT_FACTOR: u32 = 8_640;
/// A node's usual ports. If another node already uses them, the kernel chooses others.
const HTTP_PORT: u16 = 6683;
const COAP_PORT: u16 = 5683;
/// If the developer is root: the first user id for such nodes, and the number of ids that each node
/// gets. The functions of two nodes therefore never share a user.
const UID_BASE: u32 = 3_000_000_000;
const UIDS: u32 = 100_000;
const NODES: u32 = 10_000;
/// How often the removal of the node's folder is tried.
const REMOVALS_MAX: u32 = 100;

/// Runs the node and the session. Returns the exit code, after everything has ended.
pub(super) fn run(args: &Dev, output: &Output) -> Result<ExitCode, Failure> {
    for path in &args.paths {
        let shown = path.display().to_string();
        path.metadata().map_err(|error| Failure::of_file("M0102", &shown, &error))?;
    }
    let folder = Folder::choose();
    let http = match &args.http {
        Some(_) => None,
        None => Some(bound(HTTP_PORT, |at| {
            let socket = TcpListener::bind(at)?;
            socket.set_nonblocking(true).map(|()| socket)
        })?),
    };
    let coap = bound(COAP_PORT, |at| {
        let socket = UdpSocket::bind(at)?;
        socket.set_nonblocking(true).map(|()| socket)
    })?;
    let mut config = config(&folder.0, args.http.as_deref(), needs_broker(args))?;
    let cache = GoCache::take();
    config.go_cache = cache.as_ref().map(|cache| cache.folder.clone());
    config.packages_cache = kept().map(|kept| kept.join("packages"));
    if args.inspect {
        config.inspect = true;
        config.timeout_factor = INSPECT_TIMEOUT_FACTOR;
    }
    let output = *output;
    let terminal = Terminal::there();
    let quiet = terminal.as_ref().map(Terminal::quiet);
    let (paths, replay, inspect) = (args.paths.clone(), args.replay, args.inspect);
    let guest = Guest {
        run: Box::new(move |node| {
            let builder = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = builder else { return exit::FAILED };
            // The terminal is changed only once the node serves, because until then a signal may
            // end the process.
            let set =
                |quiet: &_| tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, quiet).is_ok();
            let has_keys = quiet.as_ref().is_some_and(set);
            let keys = keys(has_keys);
            let wishes = Wishes { paths, replay, inspect, keys, has_keys };
            let code = runtime.block_on(session::run(node, wishes, output));
            // A build may still run.
            runtime.shutdown_background();
            code
        }),
        folder: folder.0.clone(),
        sockets: (http, Some(coap)),
    };
    let code = mote_node::develop(config, guest);
    drop(terminal);
    drop(folder);
    Ok(code)
}

/// Runs the tests of a function. Returns their exit code.
pub(super) fn test(args: &Test, output: &Output) -> Result<ExitCode, Failure> {
    let shown = args.path.display().to_string();
    args.path.metadata().map_err(|error| Failure::of_file("M0102", &shown, &error))?;
    let folder = Folder::choose();
    let mut config = config(&folder.0, Some("off"), false)?;
    config.coap = None;
    config.go_tests = true;
    let cache = GoCache::take();
    config.go_cache = cache.as_ref().map(|cache| cache.folder.clone());
    config.packages_cache = kept().map(|kept| kept.join("packages"));
    let output = *output;
    let work = (Project::for_tests(&args.path), args.arguments.clone());
    let guest = Guest {
        run: Box::new(move |node| {
            let builder = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = builder else { return exit::FAILED };
            let code = runtime.block_on(async {
                tokio::select! {
                    code = tests::run(node, work, output) => code,
                    _ = tokio::signal::ctrl_c() => exit::INTERRUPTED,
                }
            });
            runtime.shutdown_background();
            code
        }),
        folder: folder.0.clone(),
        sockets: (None, None),
    };
    let code = mote_node::develop(config, guest);
    drop(folder);
    Ok(code)
}

/// The beginning of the name of each node's folder.
const FOLDER: &str = "mote-dev-";

/// The folder of the node. Dropping this removes it.
struct Folder(PathBuf);

impl Folder {
    /// Chooses a name that nobody can guess. The node makes the folder. Also removes the folders of
    /// nodes that were killed.
    fn choose() -> Self {
        remove_abandoned(&std::env::temp_dir());
        let random = RandomState::new().hash_one(std::process::id());
        Self(std::env::temp_dir().join(format!("{FOLDER}{random:016x}")))
    }
}

/// Removes the folders of the same user's nodes that no longer run. A node holds a lock on its
/// folder.
fn remove_abandoned(above: &Path) {
    let Ok(entries) = std::fs::read_dir(above) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(FOLDER) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(folder) = open(entry.path(), flags, Mode::empty()).map(File::from) else { continue };
        let is_own = folder.metadata().is_ok_and(|meta| meta.uid() == geteuid().as_raw());
        if is_own && flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A thread of the node may still be writing into the folder.
        for _ in 0..REMOVALS_MAX {
            match std::fs::remove_dir_all(&self.0) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {}
                _ => return,
            }
        }
    }
}

/// Binds a loopback port, or any other port if a node already uses this one.
fn bound<S>(port: u16, bind: impl Fn((Ipv4Addr, u16)) -> io::Result<S>) -> Result<S, Failure> {
    let bound = bind((Ipv4Addr::LOCALHOST, port));
    let bound = bound.or_else(|_| bind((Ipv4Addr::LOCALHOST, 0)));
    bound.map_err(|error| Failure::of_file("M0203", "127.0.0.1", &error))
}

/// Returns the settings of a node that nobody else uses. The configuration file of the machine's
/// own node does not apply, and of its variables only the one for user ids does.
fn config(folder: &Path, http: Option<&str>, broker: bool) -> Result<mote_node::Config, Failure> {
    let text = |path: &Path| path.display().to_string();
    let mut flags = vec![
        ("data", text(&folder.join("data"))),
        ("socket", text(&folder.join("mote.sock"))),
        ("http", http.unwrap_or("127.0.0.1:0").to_owned()),
        ("coap", "127.0.0.1:0".to_owned()),
        ("polling", "false".to_owned()),
    ];
    if broker {
        flags.push(("mqtt", "127.0.0.1:0".to_owned()));
    }
    let mut given = Given::from_process(flags, Some("/dev/null".into()));
    given.env.retain(|(name, _)| name == "MOTE_UID_BASE");
    if given.env.is_empty() {
        let base = UID_BASE + std::process::id() % NODES * UIDS;
        given.flags.push(("uid_base", base.to_string()));
    }
    let mut config = Loaded::load(&given)?.config;
    // With a key in memory, nobody can read what a killed session leaves on the disk. Its secrets
    // are not needed again.
    config.secrets_key = vec![KeySource::Memory];
    Ok(config)
}

/// Whether a function of the projects uses MQTT without naming a broker. Mistakes in a project are
/// reported later.
fn needs_broker(args: &Dev) -> bool {
    let read = |path| mote_project::read(path, Options::default()).ok();
    let functions = args.paths.iter().filter_map(|path| read(path)).flat_map(|one| one.functions);
    functions.into_iter().any(|planned| {
        let spec = planned.spec;
        let publishes = !spec.publishing.topics.is_empty();
        let names_none = spec.publishing.connection.broker.is_none();
        (publishes && names_none) || spec.mqtt.iter().any(|trigger| trigger.broker.is_none())
    })
}

/// The folder for files that outlive a session.
fn kept() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let home = set("XDG_CACHE_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")))?;
    Some(home.join("mote"))
}

/// Go's compiled packages. They are kept, because the first build of the standard library takes a
/// minute on a small machine.
struct GoCache {
    folder: PathBuf,
    /// Locked while a node uses the folder.
    _lock: File,
}

impl GoCache {
    /// Returns `None` if another node uses the folder, or if there is no place for it. Go then
    /// compiles everything again.
    fn take() -> Option<Self> {
        let folder = kept()?.join("go");
        std::fs::create_dir_all(&folder).ok()?;
        let lock = File::create(folder.with_extension("lock")).ok()?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(Self { folder, _lock: lock })
    }
}

/// Reads keys on a separate thread, which ends with the process.
fn keys(has_keys: bool) -> mpsc::Receiver<u8> {
    let (sender, keys) = mpsc::channel(8);
    if has_keys {
        std::thread::spawn(move || {
            for byte in io::stdin().lock().bytes() {
                if byte.is_err() || byte.is_ok_and(|key| sender.blocking_send(key).is_err()) {
                    return;
                }
            }
        });
    }
    keys
}

/// The terminal's state before the session. Dropping this value restores it.
struct Terminal(Termios);

impl Terminal {
    /// Returns `None` if nobody is at a terminal.
    fn there() -> Option<Self> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return None;
        }
        tcgetattr(rustix::stdio::stdin()).ok().map(Self)
    }

    /// The state in which the terminal sends each key at once and does not show it. Signals stay
    /// enabled.
    fn quiet(&self) -> Termios {
        let mut quiet = self.0.clone();
        quiet.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        quiet
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.0);
    }
}
