//! Waiting pods as processes on loopback: the program that is the main process of such a pod, run as
//! a user without rights.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::{Node, is_root, mote_binary, wait_for};

/// The user and group of pods, as in a cluster.
const USER: u32 = 65_532;

/// A waiting pod; dropping it ends it.
pub struct Pod {
    process: Child,
    /// Its name.
    pub name: String,
    /// Where it waits.
    pub address: SocketAddr,
    /// Its public key.
    pub key: String,
    shape: String,
    root: tempfile::TempDir,
    printed: Arc<Mutex<String>>,
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Pod {
    /// Starts a pod of this shape, which accepts the cells with this public key.
    pub fn start(name: &str, shape: &str, cells: &str) -> Self {
        let secret = format!("a secret of {name}, long enough for a key");
        Self::start_with(name, shape, cells, &secret, "127.0.0.1:0")
    }

    /// Starts a pod with this secret, which listens there.
    pub fn start_with(name: &str, shape: &str, cells: &str, secret: &str, listen: &str) -> Self {
        let root = tempfile::Builder::new().prefix("mote-pod").tempdir().expect("temp folder");
        // The folder of the build may not be readable for the pod's user.
        let program = root.path().join("mote-pod");
        let built = mote_binary().with_file_name("mote-pod");
        assert!(built.exists(), "build it first: cargo build -p mote-pod");
        // Another process copies it: a program that is open for writing anywhere cannot be started,
        // and what this process has open is inherited for a moment by all that it starts.
        let copied = Command::new("cp").arg(built).arg(&program).status().expect("cp starts");
        assert!(copied.success());
        // A container has only the first three files open; a test may have inherited more.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "exec 3>&- 4>&- 5>&-; exec \"$0\""]).arg(program);
        if is_root() {
            std::os::unix::fs::chown(root.path(), Some(USER), Some(USER)).expect("chown");
            command.uid(USER).gid(USER);
        }
        let runtime = shape.split('-').next().expect("a first part");
        let mut process = command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("MOTE_POD_RUNTIME", runtime)
            .env("MOTE_POD_LISTEN", listen)
            .env("MOTE_POD_CELLS", cells)
            .env("MOTE_POD_SECRET", secret)
            .env("MOTE_POD_ROOT", root.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the pod starts");
        let mut stderr = BufReader::new(process.stderr.take().expect("piped"));
        let mut first = String::new();
        stderr.read_line(&mut first).expect("text");
        let words: Vec<_> = first.split_whitespace().collect();
        let ["mote-pod:", "waits", "at", address, "with", "the", "key", key] = words[..] else {
            let mut rest = String::new();
            let _ = stderr.read_to_string(&mut rest);
            panic!("the pod does not wait: {first}{rest}");
        };
        let (address, key) = (address.parse().expect("an address"), key.to_owned());
        let printed = Arc::new(Mutex::new(String::new()));
        let into = printed.clone();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                into.lock().expect("no panic").push_str(&format!("{line}\n"));
            }
        });
        let (name, shape) = (name.to_owned(), shape.to_owned());
        Self { process, name, address, key, shape, root, printed }
    }

    /// The process id of its main process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The folder that stands for `/` in it.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// What it has printed since it waits.
    pub fn printed(&self) -> String {
        self.printed.lock().expect("no panic").clone()
    }

    /// Whether its port is open.
    pub fn is_open(&self) -> bool {
        std::net::TcpStream::connect(self.address).is_ok()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().expect("our child").is_some()
    }

    /// Waits until it has ended.
    pub fn ended(&mut self) -> std::process::ExitStatus {
        wait_for("the end of the pod", || self.process.try_wait().expect("our child"))
    }

    /// The pod as the management API of a cell takes it.
    pub fn place(&self) -> Value {
        json!({
            "name": self.name, "address": self.address.to_string(), "key": self.key,
            "shape": self.shape,
        })
    }
}

/// The public key of the cells, from one of them.
pub fn key_of_cells(node: &Node) -> String {
    node.management("/v1/pods")["key"].as_str().expect("a cell").to_owned()
}

/// Tells a cell which pods wait.
pub fn tell(node: &Node, pods: &[&Pod]) {
    let list: Vec<_> = pods.iter().map(|pod| pod.place()).collect();
    let answer = node.manage("PUT", "/v1/pods", &json!({"pods": list}).to_string());
    assert_eq!(answer.0, 200, "{}", answer.1);
}
