//! Runs a NATS server with JetStream for tests.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// The name of the server that `scripts/nats-server.sh` installs.
const SERVER: &str = "nats-server-v2.15.2";
/// How long the server may take to accept connections.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the server's program. If it is not installed, prints that the test is skipped and returns
/// `None`.
pub fn program() -> Option<PathBuf> {
    let named = std::env::var_os("MOTE_NATS_SERVER").map(PathBuf::from);
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let installed = folders.map(|folder| folder.join(".cache").join(SERVER));
    let found = named.into_iter().chain(installed).find(|path| path.is_file());
    if found.is_none() {
        // The message bypasses the test runner, which hides the output of tests that pass.
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("test");
        let why = "nats-server is not installed; scripts/nats-server.sh installs it";
        let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: NATS: {why}");
    }
    found
}

/// Returns a free port of loopback from outside the kernel's ephemeral range. The kernel gives such a
/// port to no outgoing connection, so it is still free when the server binds it.
pub fn free_port() -> u16 {
    const FIRST: u16 = 16_000;
    const COUNT: u16 = 16_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test programs that run at the same time begin at different ports. The end-to-end tests give
    // ports of the same range to nodes, and begin in the other half of it.
    let begin = ((std::process::id() * 97 + u32::from(COUNT) / 2) % u32::from(COUNT)) as u16;
    let mut ports = std::iter::repeat_with(|| {
        FIRST + (begin + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT
    });
    ports.find(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()).expect("no end")
}

/// A running server. Dropping this value kills the server.
#[derive(Debug)]
pub struct Server {
    program: PathBuf,
    folder: tempfile::TempDir,
    pub port: u16,
    child: Option<Child>,
}

impl Server {
    /// Starts a server with these additional lines of configuration.
    pub fn start(lines: &str) -> Option<Self> {
        let program = program()?;
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let store = folder.path().join("store");
        let config = format!(
            "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: {store:?}, sync_interval: always }}\n{lines}\n",
        );
        std::fs::write(folder.path().join("server.conf"), config).expect("written");
        let mut server = Self { program, folder, port, child: None };
        server.again();
        Some(server)
    }

    /// Starts the server again after [`Server::kill`], with the data that it has kept.
    pub fn again(&mut self) {
        let child = Command::new(&self.program)
            .arg("-c")
            .arg(self.folder.path().join("server.conf"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        self.child = Some(child);
        let (address, until) =
            (SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)), Instant::now() + PATIENCE);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < until, "the server did not start");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the server in the way that a crash would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
