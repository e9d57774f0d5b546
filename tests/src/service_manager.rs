//! A minimal service manager. It binds the sockets, hands them to one node after another, and
//! receives the messages of each node.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use crate::{PATIENCE, mote_binary, signal, wait_for};

/// Shell code for the hand-over. The shell's three standard streams become the node's descriptors 3
/// to 5, as the protocol requires, and the variable says that they are meant for the node's process
/// id.
const HAND_OVER: &str = "export LISTEN_PID=$$\n\
    exec \"$0\" \"$@\" 3<&0 4<&1 5<&2 0</dev/null 1>>\"$NODE_OUT\" 2>>\"$NODE_ERR\"";

/// Starts a program with these sockets (at most three) under these names. The program's output goes
/// to `up.out` and `up.err` in `dir`.
pub fn hand_over(sockets: Vec<(&str, OwnedFd)>, dir: &Path, program: &Path) -> Command {
    let names: Vec<&str> = sockets.iter().map(|(name, _)| *name).collect();
    let mut command = Command::new("sh");
    command
        .args(["-c", HAND_OVER])
        .arg(program)
        .env("LISTEN_FDS", names.len().to_string())
        .env("LISTEN_FDNAMES", names.join(":"))
        .env("NODE_OUT", dir.join("up.out"))
        .env("NODE_ERR", dir.join("up.err"));
    let mut sockets = sockets.into_iter().map(|(_, socket)| Stdio::from(socket));
    let mut next = || sockets.next().unwrap_or_else(Stdio::null);
    command.stdin(next()).stdout(next()).stderr(next());
    assert!(sockets.next().is_none(), "three sockets at most");
    command
}

/// The service manager with the sockets `http`, `coap` and `management`.
pub struct ServiceManager {
    /// The folder for everything that the node writes.
    pub dir: tempfile::TempDir,
    /// Address of the HTTP front.
    pub http: SocketAddr,
    /// Address of the CoAP front.
    pub coap: SocketAddr,
    /// Path of the management socket.
    pub management: PathBuf,
    sockets: (TcpListener, UdpSocket, UnixListener),
    notify: UnixDatagram,
    program: PathBuf,
    node: Option<Child>,
}

impl ServiceManager {
    /// Binds the sockets. Starts no node yet.
    pub fn bind() -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::Builder::new().prefix("mote-test").tempdir().expect("temp folder");
        // The mode lets sandboxes read the code, which they do as another user.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("mode");
        let management = dir.path().join("management");
        let sockets = (
            TcpListener::bind("127.0.0.1:0").expect("loopback"),
            UdpSocket::bind("127.0.0.1:0").expect("loopback"),
            UnixListener::bind(&management).expect("a socket"),
        );
        let notify = UnixDatagram::bind(dir.path().join("notify")).expect("a socket");
        notify.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let http = sockets.0.local_addr().expect("bound");
        let coap = sockets.1.local_addr().expect("bound");
        let program = mote_binary();
        Self { dir, http, coap, management, sockets, notify, program, node: None }
    }

    /// Starts the node, and returns without waiting for it.
    pub fn start(&mut self, flags: &[&str], env: &[(&str, &str)]) {
        assert!(self.node.is_none(), "there is a node");
        let sockets = vec![
            ("http", self.sockets.0.try_clone().expect("a descriptor").into()),
            ("coap", self.sockets.1.try_clone().expect("a descriptor").into()),
            ("management", self.sockets.2.try_clone().expect("a descriptor").into()),
        ];
        let node = hand_over(sockets, self.dir.path(), &self.program)
            .arg("up")
            .args(["--data".as_ref(), self.dir.path().join("data").as_os_str()])
            .args(flags)
            .env("NOTIFY_SOCKET", self.dir.path().join("notify"))
            .envs(env.iter().copied())
            .spawn();
        self.node = Some(node.expect("a shell"));
    }

    /// Starts the node and waits until it reports that it is ready.
    pub fn start_ready(&mut self) {
        self.start(&[], &[]);
        self.wait_told("READY=1");
    }

    /// Replaces the program for the next node by a rename, as an upgrade does.
    pub fn replace_program(&mut self, build: &Path) {
        let new = self.dir.path().join("mote.new");
        if std::fs::hard_link(build, &new).is_err() {
            std::fs::copy(build, &new).expect("a copy of the program");
        }
        self.program = self.dir.path().join("mote");
        std::fs::rename(&new, &self.program).expect("the program");
        // The rename would do nothing if both paths were already the same file.
        let _ = std::fs::remove_file(&new);
    }

    /// The version that the node reports over the management socket.
    pub fn version(&self) -> String {
        use std::io::{Read as _, Write as _};
        let mut stream = UnixStream::connect(&self.management).expect("the socket");
        write!(stream, "GET /v1/status HTTP/1.0\r\nHost: node\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (_, body) = answer.split_once("\r\n\r\n").expect("an answer with a body");
        let status: serde_json::Value = serde_json::from_str(body).expect("JSON");
        status["version"].as_str().expect("a version").to_owned()
    }

    /// Asks the node to stop. Does not wait for its end.
    pub fn begin_stop(&self) {
        signal(self.pid(), "TERM");
    }

    /// Waits for the node's end.
    pub fn ended(&mut self) -> ExitStatus {
        let mut node = self.node.take().expect("a node");
        wait_for("the node to end", || node.try_wait().expect("our child"))
    }

    /// The sockets that are handed over, as descriptors of this process.
    pub fn descriptors(&self) -> [i32; 3] {
        let (http, coap, management) = &self.sockets;
        [http.as_raw_fd(), coap.as_raw_fd(), management.as_raw_fd()]
    }

    /// The process id of the node.
    pub fn pid(&self) -> u32 {
        self.node.as_ref().expect("a node").id()
    }

    /// Returns the node's next message; `None` if none arrives within `patience`.
    pub fn told(&self, patience: Duration) -> Option<String> {
        self.notify.set_read_timeout(Some(patience)).expect("timeout");
        let mut buffer = [0; 4096];
        match self.notify.recv(&mut buffer) {
            Ok(length) => Some(String::from_utf8_lossy(&buffer[..length]).into_owned()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                None
            }
            Err(error) => panic!("the node's messages: {error}"),
        }
    }

    /// Waits for a message that contains this line, and returns the message.
    pub fn wait_told(&self, line: &str) -> String {
        loop {
            match self.told(PATIENCE) {
                Some(told) if told.lines().any(|told| told == line) => return told,
                Some(_) => {}
                None => panic!("the node does not say {line}\n{}", self.log()),
            }
        }
    }

    /// The announcement and the log of the node.
    pub fn log(&self) -> String {
        let file = |name| std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        file("up.out") + &file("up.err")
    }

    /// Runs the command line against the node.
    pub fn mote(&self, args: &[&str]) -> Output {
        Command::new(mote_binary())
            .args(args)
            .env("MOTE_SOCKET", &self.management)
            .env_remove("MOTE_NODE")
            .output()
            .expect("the binary starts")
    }

    /// Deploys a function that consists of one Python file.
    pub fn deploy(&self, name: &str, code: &str) {
        let folder = self.dir.path().join("src").join(name);
        std::fs::create_dir_all(&folder).expect("folder");
        std::fs::write(folder.join("app.py"), code).expect("file");
        let output = self.mote(&["deploy", folder.to_str().expect("UTF-8"), "--name", name]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "deploy of {name}: {text}\n{}", self.log());
    }
}

impl Drop for ServiceManager {
    fn drop(&mut self) {
        if let Some(mut node) = self.node.take() {
            // A failed test may leave a running node.
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}
