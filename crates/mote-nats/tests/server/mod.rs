//! A server of NATS with JetStream for tests, and connections to it over the program.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part of it")]

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mote_nats_client::{Launch, Nats, Settings};

/// The server that `scripts/nats-server.sh` installs.
const SERVER: &str = "nats-server-v2.15.2";
/// How long it may take until it accepts connections.
const PATIENCE: Duration = Duration::from_secs(20);

/// The program, or `None` where it is not installed; the test is skipped then, and says so.
pub fn program() -> Option<PathBuf> {
    let path = match std::env::var_os("MOTE_NATS_SERVER") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache").join(SERVER),
    };
    if path.is_file() {
        return Some(path);
    }
    eprintln!("skipped: no {}; scripts/nats-server.sh installs it", path.display());
    None
}

/// A running server, which is killed when it is dropped.
pub struct Server {
    program: PathBuf,
    folder: tempfile::TempDir,
    pub port: u16,
    child: Option<Child>,
}

impl Server {
    /// Starts one with these further lines of configuration.
    pub fn start(lines: &str) -> Option<Self> {
        let program = program()?;
        let folder = tempfile::tempdir().expect("a folder");
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = free.local_addr().expect("bound").port();
        drop(free);
        let store = folder.path().join("store");
        let config = format!(
            "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: {store:?}, sync_interval: always }}\n{lines}\n",
        );
        std::fs::write(folder.path().join("server.conf"), config).expect("written");
        let mut server = Self { program, folder, port, child: None };
        server.again();
        Some(server)
    }

    /// Starts it again after [`Server::kill`], with what it has kept.
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

    /// Ends it as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
    }

    pub fn settings(&self) -> Settings {
        let servers = vec![format!("nats://127.0.0.1:{}", self.port)];
        Settings { servers, replicas: 1, uid: 1_000_000, ..Default::default() }
    }

    /// A process of the program that is connected here.
    pub fn client(&self) -> Nats {
        connect(self.settings())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A process of the program with these settings.
pub fn connect(settings: Settings) -> Nats {
    let launch = Launch {
        program: env!("CARGO_BIN_EXE_mote-nats").into(),
        settings: Box::new(move || Ok(settings.clone())),
    };
    Nats::start(launch, &tokio::runtime::Handle::current())
}
