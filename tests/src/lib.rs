//! A node under test, with the actions of a user. The built binary is started with a separate data
//! folder and free ports, and is used through its command line and its sockets.
//!
//! The binary is `$MOTE_BIN`, or `mote` in the folder of the built tests. A test that needs
//! something that the machine does not have calls [`skip`]. It then counts neither as passed nor as
//! failed.

pub mod acme;
pub mod answering;
pub mod certificates;
pub mod cluster;
pub mod compat;
pub mod golang;
mod http2_wire;
pub mod images;
pub mod kubernetes;
pub mod load;
pub mod log;
pub mod mqtt;
pub mod namespaces;
#[path = "../../crates/cli/mote/tests/nats_server/process.rs"]
pub mod nats;
pub mod network;
#[path = "../../crates/manage/images/tests/registry_server/process.rs"]
pub mod registry;
pub mod releases;
pub mod restarting;
pub mod schedule;
pub mod service_manager;
pub mod tree;
pub mod wasm;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{self as unix, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest time for any single step of a test. It is long because the machine is shared. Tests for
/// emulated machines are built with a different value.
pub const PATIENCE: Duration =
    Duration::from_secs(match option_env!("MOTE_TEST_PATIENCE_SECONDS") {
        Some(text) => match u64::from_str_radix(text, 10) {
            Ok(seconds) => seconds,
            Err(_) => panic!("MOTE_TEST_PATIENCE_SECONDS is not a number"),
        },
        None => PATIENCE_SECONDS_DEFAULT,
    });
const PATIENCE_SECONDS_DEFAULT: u64 = 60;

/// How much slower the machine under test is than usual: 1, or more in tests that are built for
/// emulated machines. Timeouts of functions and of tests are multiplied by this.
#[allow(clippy::cast_possible_truncation)] // hours
pub const SLOWNESS: u32 = (PATIENCE.as_secs() / PATIENCE_SECONDS_DEFAULT) as u32;

/// How often a test repeats something: `usual` times, or fewer on a slow machine, but never fewer
/// than `least`.
pub fn rounds(usual: u32, least: u32) -> u32 {
    (usual / SLOWNESS).max(least)
}

/// The binary under test.
pub fn mote_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("MOTE_BIN") {
        return path.into();
    }
    let own = std::env::current_exe().expect("a test has a path");
    let path = own.ancestors().nth(2).expect("target/PROFILE/deps/test").join("mote");
    assert!(path.exists(), "build it first: cargo build -p mote ({} is missing)", path.display());
    path
}

/// Whether `pip` is installed. If not, reports the calling test as skipped.
pub fn has_pip() -> bool {
    runs("python3", &["-m", "pip", "--version"])
}

/// Whether `npm` is installed. If not, reports the calling test as skipped.
pub fn has_npm() -> bool {
    runs("npm", &["--version"])
}

fn runs(program: &str, args: &[&str]) -> bool {
    let output = Command::new(program).args(args).output();
    let runs = output.is_ok_and(|output| output.status.success());
    if !runs {
        skip("packages", &format!("{program} {} cannot be run", args.join(" ")));
    }
    runs
}

/// Reports that the calling test, or a part of it, cannot run here. `make test` counts the test as
/// skipped. The line bypasses the test runner, which hides the output of passing tests.
pub fn skip(what: &str, why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("test");
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {what}: {why}");
}

/// Whether the long form of the tests was requested with `MOTE_LONG=1`.
pub fn is_long() -> bool {
    std::env::var_os("MOTE_LONG").is_some_and(|value| value == "1")
}

/// Whether this machine has only one processor. If so, a test skips the parts that need several
/// things to run at the same time, and reports that.
pub fn has_one_processor() -> bool {
    std::thread::available_parallelism().is_ok_and(|all| all.get() == 1)
}

/// Whether the tests run as root, which most sandboxes need.
pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Uid:\t0\t"))
}

/// A running node. Dropping it stops the node and removes its folder.
pub struct Node {
    child: Child,
    /// The folder for everything that the node writes.
    pub dir: tempfile::TempDir,
    /// Address of the HTTP front.
    pub http: SocketAddr,
    /// Address of the CoAP front.
    pub coap: SocketAddr,
    /// The text that the node printed when it was ready.
    pub announcement: String,
    /// Time from the node's start until it was ready.
    pub ready_after: Duration,
    extra: Vec<String>,
    env: Vec<(String, String)>,
}

/// The ports that tests give to servers. The kernel never uses them for the near end of a
/// connection (`net.ipv4.ip_local_port_range` begins at 32,768). A port that is free when it is
/// chosen is therefore still free when the server binds it.
const PORTS: std::ops::Range<u16> = 16_000..32_000;

/// A process takes this many of [`PORTS`] at a time.
const PORTS_AT_A_TIME: u16 = 50;

/// Ports that belong to this process until it ends.
struct Taken {
    ports: std::ops::Range<u16>,
    /// Its name says which ports they are. No two processes of a machine can have the same one.
    _name: UnixListener,
}

impl Taken {
    /// Takes the first ports that no other process has taken, beginning at different ones in
    /// different processes.
    fn take() -> Self {
        let count = (PORTS.end - PORTS.start) / PORTS_AT_A_TIME;
        let first = std::process::id() % u32::from(count);
        for block in (0..count).cycle().skip(first as usize).take(usize::from(count)) {
            let name = format!("mote-test-ports-{block}");
            let address = unix::SocketAddr::from_abstract_name(name).expect("a short name");
            if let Ok(name) = UnixListener::bind_addr(&address) {
                let start = PORTS.start + block * PORTS_AT_A_TIME;
                return Self { ports: start..start + PORTS_AT_A_TIME, _name: name };
            }
        }
        panic!("other tests have taken all ports from {} to {}", PORTS.start, PORTS.end - 1)
    }
}

/// Returns a loopback port that is free for TCP and UDP. No process gets a port twice, and no two
/// processes that run at the same time get the same one.
pub fn free_port() -> u16 {
    static TAKEN: Mutex<Vec<Taken>> = Mutex::new(Vec::new());
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(last) = taken.last_mut() {
            for port in last.ports.by_ref() {
                let tcp = TcpListener::bind(("127.0.0.1", port));
                if tcp.is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok() {
                    return port;
                }
            }
        }
        taken.push(Taken::take());
    }
}

/// Returns a loopback address with a [`free_port`].
pub fn free_address() -> SocketAddr {
    ([127, 0, 0, 1], free_port()).into()
}

/// A folder that sandboxes can read. Sandboxes read as another user.
fn readable_folder() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::Builder::new().prefix("mote-test").tempdir().expect("temp folder");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("mode");
    dir
}

/// A variable for [`Node::start_with_env`] that limits how many files the node may open.
pub const OPEN_FILES: &str = "TEST_OPEN_FILES";

impl Node {
    /// Starts a node on an empty data folder.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a node with more flags.
    pub fn start_with(flags: &[&str]) -> Self {
        Self::start_with_env(flags, &[])
    }

    /// Starts a node with more flags and with these environment variables.
    pub fn start_with_env(flags: &[&str], env: &[(&str, &str)]) -> Self {
        let dir = readable_folder();
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self::start_in_env(dir, flags, env.iter().map(owned).collect())
    }

    /// Starts a node on a folder that may already contain functions.
    pub fn start_in(dir: tempfile::TempDir, flags: &[&str]) -> Self {
        Self::start_in_env(dir, flags, Vec::new())
    }

    /// Starts a node whose log is a pipe without a reader.
    pub fn start_unheard(flags: &[&str]) -> Self {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        Self::start_to(readable_folder(), flags, Vec::new(), writer.into())
    }

    fn start_in_env(dir: tempfile::TempDir, flags: &[&str], env: Vec<(String, String)>) -> Self {
        let err = std::fs::File::create(dir.path().join("up.err")).expect("log file");
        Self::start_to(dir, flags, env, err.into())
    }

    fn start_to(
        dir: tempfile::TempDir,
        flags: &[&str],
        env: Vec<(String, String)>,
        err: Stdio,
    ) -> Self {
        let http = free_address();
        let coap = free_address();
        let out = std::fs::File::create(dir.path().join("up.out")).expect("log file");
        // A node that is open to other machines is also reachable over loopback.
        let is_open = flags.contains(&"--lan");
        let listen = |at: SocketAddr| {
            let host = if is_open { Ipv4Addr::UNSPECIFIED.into() } else { at.ip() };
            SocketAddr::new(host, at.port()).to_string()
        };
        let started = Instant::now();
        let mut command = Command::new(mote_binary());
        if let Some((_, files)) = env.iter().find(|(name, _)| name == OPEN_FILES) {
            command = Command::new("sh");
            command.arg("-c").arg(format!("ulimit -n {files} && exec \"$0\" \"$@\""));
            command.arg(mote_binary());
        }
        let child = command
            .arg("up")
            .args(["--data".as_ref(), dir.path().join("data").as_os_str()])
            .args(["--socket".as_ref(), dir.path().join("s").as_os_str()])
            .args(["--http", &listen(http), "--coap", &listen(coap)])
            .args(flags)
            .env("MOTE_TIMEOUT_FACTOR", SLOWNESS.to_string())
            .envs(env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .expect("the binary starts");
        let mut node = Self {
            child,
            dir,
            http,
            coap,
            announcement: String::new(),
            ready_after: Duration::ZERO,
            extra: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            env,
        };
        node.announcement = wait_for("the node to be ready", || {
            let text = node.file("up.out");
            if let Some(status) = node.child.try_wait().expect("our child") {
                panic!("the node ended: {status}\n{}{}", text, node.file("up.err"));
            }
            // The announcement is a single write. Its last line before the notes is `reach`.
            text.contains("  reach ").then_some(text)
        });
        node.ready_after = started.elapsed();
        node
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    pub fn log(&self) -> String {
        self.file("up.err")
    }

    /// The address for the clients of another platform, as in the announcement: `openfaas`,
    /// `tinyfaas http` and so on. A flag with port 0 must have switched the platform on.
    pub fn platform(&self, name: &str) -> SocketAddr {
        let mut lines = self.announcement.lines();
        let line = lines.find_map(|line| line.trim().strip_prefix(name)?.strip_prefix("  "));
        let line = line.unwrap_or_else(|| panic!("{name} is not in: {}", self.announcement));
        let (_, address) = line.split_once("://").expect("an address");
        address.trim().parse().unwrap_or_else(|error| panic!("{address}: {error}"))
    }

    /// The token of the management API over TCP.
    pub fn token(&self) -> String {
        let path = self.dir.path().join("data/admin.token");
        std::fs::read_to_string(path).expect("a token").trim().to_owned()
    }

    /// Whether the node's instances are in control groups. If not, the announcement has a note.
    pub fn has_cgroups(&self) -> bool {
        !self.announcement.contains("note   cgroups")
    }

    /// The node's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the node without warning and starts it again on the same folder.
    pub fn crash_and_restart(mut self) -> Self {
        self.child.kill().expect("our child");
        self.start_again()
    }

    /// Asks the node to stop and starts it again on the same folder.
    pub fn stop_and_restart(self) -> Self {
        signal(self.child.id(), "TERM");
        self.start_again()
    }

    /// Asks the node to stop and starts it again on the same folder with other flags.
    pub fn stop_and_restart_with(mut self, flags: &[&str]) -> Self {
        self.extra = flags.iter().map(|flag| (*flag).to_owned()).collect();
        self.stop_and_restart()
    }

    /// Asks the node to stop, or kills it. Then calls `while_off` and starts the node on the same
    /// folder.
    pub fn restart_after(mut self, kill: bool, while_off: impl FnOnce()) -> Self {
        match kill {
            true => self.child.kill().expect("our child"),
            false => signal(self.child.id(), "TERM"),
        }
        wait_for("the node to stop", || self.child.try_wait().expect("our child"));
        while_off();
        self.start_again()
    }

    /// Waits for the node's end, then starts it again.
    fn start_again(mut self) -> Self {
        wait_for("the node to stop", || self.child.try_wait().expect("our child"));
        let flags = std::mem::take(&mut self.extra);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        // The new node takes over the folder, so dropping the rest of `self` must not remove it.
        let dir = std::mem::replace(&mut self.dir, tempfile::tempdir().expect("temp folder"));
        let env = std::mem::take(&mut self.env);
        drop(self);
        Self::start_in_env(dir, &flags, env)
    }

    /// Asks the node to stop and returns its exit status.
    pub fn stop(mut self) -> std::process::ExitStatus {
        signal(self.child.id(), "TERM");
        wait_for("the node to stop", || self.child.try_wait().expect("our child"))
    }

    /// Waits until the node has ended by itself, and returns its exit status.
    pub fn ended(&mut self) -> std::process::ExitStatus {
        wait_for("the node to end", || self.child.try_wait().expect("our child"))
    }

    /// Runs the command line against this node.
    pub fn mote(&self, args: &[&str]) -> Output {
        self.mote_with_input(args, b"")
    }

    /// Runs the command line against this node, with standard input.
    pub fn mote_with_input(&self, args: &[&str], input: &[u8]) -> Output {
        let mut child = Command::new(mote_binary())
            .args(args)
            .env("MOTE_SOCKET", self.dir.path().join("s"))
            .env_remove("MOTE_NODE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        // This fails if the command closes its input without reading it.
        let _ = child.stdin.take().expect("piped").write_all(input);
        child.wait_with_output().expect("our child")
    }

    /// Runs the command line, which must succeed. Returns its standard output.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.mote(args);
        assert!(
            output.status.success(),
            "mote {args:?} ended with {}\n{}{}\nnode: {}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
            self.log()
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns the output of `mote doctor`. The command exits with 1 if the machine lacks
    /// something, but that does not matter to the test.
    pub fn doctor(&self, args: &[&str]) -> String {
        let output = self.mote(&[&["doctor"], args].concat());
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Whether the node has sandboxes with a waiting interpreter. If not, the announcement has a
    /// note.
    pub fn has_prewarmed(&self) -> bool {
        !self.announcement.contains("note   prewarming")
    }

    /// Writes a function's files and deploys them under `name`.
    pub fn deploy(&self, name: &str, files: &[(&str, &str)]) -> Output {
        let folder = self.dir.path().join("src").join(name);
        let _ = std::fs::remove_dir_all(&folder);
        for (file, text) in files {
            let path = folder.join(file);
            std::fs::create_dir_all(path.parent().expect("has a parent")).expect("folder");
            std::fs::write(&path, text).expect("file");
            if text.starts_with("#!") {
                use std::os::unix::fs::PermissionsExt;
                let mode = std::fs::Permissions::from_mode(0o755);
                std::fs::set_permissions(&path, mode).expect("mode");
            }
        }
        self.mote(&["deploy", folder.to_str().expect("UTF-8"), "--name", name])
    }

    /// Writes a file with this name and deploys it.
    pub fn deploy_file(&self, name: &str, text: &str) -> Output {
        let folder = self.dir.path().join("src");
        std::fs::create_dir_all(&folder).expect("folder");
        let path = folder.join(name);
        std::fs::write(&path, text).expect("file");
        self.mote(&["deploy", path.to_str().expect("UTF-8")])
    }

    /// Deploys a function, which must succeed.
    pub fn deploy_ok(&self, name: &str, files: &[(&str, &str)]) {
        let output = self.deploy(name, files);
        assert!(
            output.status.success(),
            "deploy of {name} ended with {}\n{}\nnode: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr),
            self.log()
        );
    }

    /// Runs the command line and returns its JSON answer.
    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        let text = self.ok(args);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}: {text}"))
    }

    /// Sends a GET to the management API over its socket. The answer must be JSON.
    pub fn management(&self, path: &str) -> serde_json::Value {
        let socket = self.dir.path().join("s");
        let mut stream = std::os::unix::net::UnixStream::connect(socket).expect("the socket");
        // The connection ends after the answer, because the request uses HTTP/1.0.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: node\r\n\r\n").expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let (_, body) = text.split_once("\r\n\r\n").expect("a head");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Sends any request to the management API over its socket. Returns status and body.
    pub fn manage(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let socket = self.dir.path().join("s");
        let mut stream = std::os::unix::net::UnixStream::connect(socket).expect("the socket");
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.0\r\nHost: node\r\nContent-Length: {length}");
        write!(stream, "{head}\r\n\r\n{body}").expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
        let (_, body) = text.split_once("\r\n\r\n").expect("a head");
        (status.expect("a status"), body.to_owned())
    }

    /// Sends a GET over a fresh connection.
    pub fn get(&self, path: &str) -> Answer {
        self.call("GET", path, &[], b"")
    }

    /// Sends a POST over a fresh connection.
    pub fn post(&self, path: &str, body: &[u8]) -> Answer {
        self.call("POST", path, &[], body)
    }

    /// Sends any request over a fresh connection.
    pub fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut connection = Connection::open(self.http);
        connection.call(method, path, headers, body)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            signal(self.child.id(), "TERM");
            let until = Instant::now() + Duration::from_secs(10);
            while Instant::now() < until {
                if let Ok(Some(_)) = self.child.try_wait() {
                    return;
                }
                std::thread::yield_now();
                std::thread::park_timeout(Duration::from_millis(5));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

pub fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
}

/// Repeats `ask` until it returns a value, but no longer than [`PATIENCE`].
pub fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < until, "waited {} s for {what}", PATIENCE.as_secs());
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Sends one request to any address over a fresh connection.
pub fn call_at(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let host = address.to_string();
    let mut all = headers.to_vec();
    if !headers.iter().any(|(name, _)| *name == "host") {
        all.push(("host", &host));
    }
    Connection::open(address).call(method, path, &all, body)
}

/// Returns the value of `Authorization` for a user and password.
pub fn basic_auth(user: &str, password: &str) -> String {
    format!("Basic {}", base64(format!("{user}:{password}").as_bytes()))
}

/// Base64 with padding.
pub fn base64(bytes: impl AsRef<[u8]>) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.as_ref().chunks(3) {
        let all = three.iter().fold(0u32, |all, byte| all << 8 | u32::from(*byte));
        let all = all << (8 * (3 - three.len()));
        for at in 0..4 {
            let letter = LETTERS[(all >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= three.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    /// Header fields, with names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    /// Returns the first header field with this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }
}

/// A persistent HTTP/1.1 connection.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    received: usize,
}

impl Connection {
    pub fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the front listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream.set_nodelay(true).expect("nodelay");
        Self { stream, buffer: Vec::new(), received: 0 }
    }

    /// Connects, or returns the error.
    pub fn try_open(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new(), received: 0 })
    }

    /// Sends a request and reads its answer.
    pub fn call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        self.try_call(method, path, headers, body).expect("an answer")
    }

    /// Sends a request and reads its answer, or returns the error of a connection that ended early.
    pub fn try_call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<Answer> {
        // If the body is refused, the node may answer and close the connection before the whole
        // body is sent.
        let sent = self.send(method, path, headers, body);
        self.read_answer(method == "HEAD").map_err(|error| sent.err().unwrap_or(error))
    }

    /// Sends a request without waiting for its answer.
    pub fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<()> {
        let mut request = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            request.push_str("host: localhost\r\n");
        }
        if !body.is_empty() || matches!(method, "POST" | "PUT" | "PATCH") {
            request.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        let mut bytes = request.into_bytes();
        bytes.extend_from_slice(body);
        self.stream.write_all(&bytes)
    }

    fn fill(&mut self) -> std::io::Result<()> {
        let mut piece = [0; 64 << 10];
        let count = loop {
            match self.stream.read(&mut piece) {
                // The suspension of a machine interrupts reads that have a time limit.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.buffer.extend_from_slice(&piece[..count]);
        self.received += count;
        Ok(())
    }

    /// The number of bytes received so far.
    pub fn received(&self) -> usize {
        self.received
    }

    fn take(&mut self, count: usize) -> std::io::Result<Vec<u8>> {
        while self.buffer.len() < count {
            self.fill()?;
        }
        let rest = self.buffer.split_off(count);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    fn line(&mut self) -> std::io::Result<String> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.take(at + 2)?;
                return Ok(String::from_utf8_lossy(&line[..at]).into_owned());
            }
            self.fill()?;
        }
    }

    /// Reads the answer to the last request. The answer to a HEAD request is `bodiless`.
    pub fn read_answer(&mut self, bodiless: bool) -> std::io::Result<Answer> {
        let status_line = self.line()?;
        let status = status_line
            .split(' ')
            .nth(1)
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| panic!("status line {status_line:?}"));
        let mut answer = Answer { status, headers: Vec::new(), body: Vec::new() };
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').expect("a field");
            answer.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        if bodiless || status == 204 || status == 304 {
            return Ok(answer);
        }
        if answer.header("transfer-encoding") == Some("chunked") {
            loop {
                let size = usize::from_str_radix(&self.line()?, 16).expect("a chunk size");
                let chunk = self.take(size + 2)?;
                answer.body.extend_from_slice(&chunk[..size]);
                if size == 0 {
                    return Ok(answer);
                }
            }
        }
        let length = answer.header("content-length").and_then(|text| text.parse().ok());
        answer.body = self.take(length.unwrap_or(0))?;
        Ok(answer)
    }
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// The control group folders of the node with this process id, one for each hierarchy.
pub fn cgroup_folders(pid: u32) -> Vec<PathBuf> {
    let name = format!("mote-{pid}");
    let output = Command::new("find")
        .args(["/sys/fs/cgroup", "-maxdepth", "6"])
        .args(["-name", &name, "-o", "-name", &format!("{name}-*")])
        .output()
        .expect("find");
    String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect()
}

/// All processes in the instances of the node with this process id.
pub fn cgroup_processes(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for instance in cgroup_folders(pid).iter().filter_map(|base| base.read_dir().ok()).flatten() {
        let Ok(instance) = instance else { continue };
        let text = std::fs::read_to_string(instance.path().join("cgroup.procs"));
        found.extend(text.unwrap_or_default().lines().filter_map(|line| line.parse::<u32>().ok()));
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The programs in a node's instances. They are children of the first processes of its sandboxes,
/// which are children of its zygote. Prewarmed interpreters have no code yet and do not count.
pub fn programs(node: u32) -> Vec<u32> {
    let children = |pid: u32| -> Vec<u32> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        text.unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    };
    let sandboxes = children(node).into_iter().flat_map(children);
    let has_function = |pid: &u32| {
        let code = std::fs::read_dir(format!("/proc/{pid}/root/function"));
        // The root of an image has a folder for devices, and no folder for code.
        code.map_or_else(
            |_| std::fs::symlink_metadata(format!("/proc/{pid}/root/dev/shm")).is_ok(),
            |mut entries| entries.next().is_some(),
        )
    };
    sandboxes.flat_map(children).filter(has_function).collect()
}

/// The libcoap client, under its name in this distribution.
pub fn coap_client() -> Option<&'static str> {
    ["coap-client-notls", "coap-client", "coap-client-openssl", "coap-client-gnutls"]
        .into_iter()
        .find(|name| Command::new(name).arg("-h").output().is_ok())
}

/// The libcoap clients with TLS and DTLS on this machine, named after their libraries OpenSSL and
/// GnuTLS.
pub fn secure_coap_clients() -> Vec<&'static str> {
    let all = ["coap-client-openssl", "coap-client-gnutls"];
    all.into_iter().filter(|name| Command::new(name).arg("-h").output().is_ok()).collect()
}

/// The 99th percentile of times in any order.
pub fn p99(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    sorted[(sorted.len() * 99 / 100).min(sorted.len() - 1)]
}
