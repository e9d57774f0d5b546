//! A Kubernetes API server with a controller and cells of `mote`, all of them processes on
//! loopback. The API server is a real one (`scripts/apiserver.sh`). There are no pods, so a cell is
//! a node with an agent next to it, as in a pod.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::{Node, free_port, has_one_processor, mote_binary, repository, signal, wait_for};

/// The namespace of the functions.
pub const NAMESPACE: &str = "default";

/// The cluster. Dropping it removes everything.
pub struct Cluster {
    dir: tempfile::TempDir,
    pub cells: Vec<Cell>,
    controllers: Vec<Controller>,
    made: u32,
    /// The address of the NATS servers of the cells, if they have any.
    nats: Option<String>,
}

/// A node with its agent.
pub struct Cell {
    pub name: String,
    /// Declared first, so that the agent ends before the node.
    agent: Agent,
    pub node: Node,
    ports: [u16; 2],
}

struct Controller {
    name: String,
    process: Child,
    port: u16,
}

struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        self.cells.clear();
        self.controllers.clear();
        let _ = script(self.dir.path(), &["down"]);
    }
}

fn script(dir: &Path, args: &[&str]) -> Output {
    Command::new(repository().join("scripts/apiserver.sh"))
        .args(args)
        .env("APISERVER_DIR", dir.join("api"))
        .stdin(Stdio::null())
        .output()
        .expect("the script starts")
}

/// The program that runs controllers and agents.
fn program() -> PathBuf {
    let path = mote_binary().with_file_name("mote-cluster");
    assert!(path.exists(), "build it first: cargo build -p mote-cluster");
    path
}

/// Returns what this machine lacks for these tests, if anything.
pub fn lacks() -> Option<&'static str> {
    let has = |program: &str| {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).any(|folder| folder.join(program).exists())
    };
    let cache = std::fs::read_dir(repository().join(".cache")).into_iter().flatten().flatten();
    let built = cache.into_iter().any(|entry| entry.path().join("kube-apiserver").exists());
    if !built {
        return Some("scripts/cluster.sh build has not built kube-apiserver and kubectl");
    }
    if !has("etcd") {
        return Some("etcd is not installed");
    }
    has_one_processor().then_some("one processor is too slow for a control plane and cells")
}

impl Cluster {
    /// Starts an API server, a controller and `cells` cells.
    pub fn start(cells: u32) -> Self {
        Self::start_with(cells, None)
    }

    /// Starts a cluster whose cells keep accepted invocations and schedules in NATS.
    pub fn start_durable(cells: u32, nats: String) -> Self {
        Self::start_with(cells, Some(nats))
    }

    fn start_with(cells: u32, nats: Option<String>) -> Self {
        let dir = tempfile::Builder::new().prefix("mote-cluster").tempdir().expect("temp folder");
        let up = script(dir.path(), &["up", "--here"]);
        assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
        let mut cluster = Self { dir, cells: Vec::new(), controllers: Vec::new(), made: 0, nats };
        // There are no Kubernetes nodes, so only the definitions and the permissions have an
        // effect.
        for file in ["crds.yaml", "objects.yaml"] {
            let path = repository().join("deploy/kustomize").join(file);
            cluster.apply(&std::fs::read_to_string(path).expect("a file"));
        }
        for account in ["mote-controller", "mote-agent"] {
            cluster.write_kubeconfig(account);
        }
        cluster.add_controller();
        wait_for("the keys", || {
            // The controller creates this object last.
            let args = ["get", "secret", "-n", "mote-system", "mote-keys", "-o", "name"];
            script(cluster.dir.path(), &[&["kubectl"], &args[..]].concat())
                .status
                .success()
                .then_some(())
        });
        let key = cluster.dir.path().join("cell.key");
        std::fs::write(&key, cluster.key("mote-keys", "cell")).expect("a file");
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("mode");
        for _ in 0..cells {
            cluster.add_cell();
        }
        cluster.wait_until_synced();
        cluster
    }

    /// Writes the credentials of a service account. A pod of that account has the same ones.
    fn write_kubeconfig(&self, account: &str) {
        let name = format!("mote-system/{account}");
        let token = script(self.dir.path(), &["token", &name]);
        assert!(token.status.success(), "{}", String::from_utf8_lossy(&token.stderr));
        let token = String::from_utf8(token.stdout).expect("text");
        let admin =
            std::fs::read_to_string(self.dir.path().join("api/kubeconfig")).expect("a file");
        let mut own = String::new();
        for line in admin.lines() {
            match line.split_once("token: ") {
                Some((before, _)) => own += &format!("{before}token: {}}}}}]\n", token.trim()),
                None => own += &format!("{line}\n"),
            }
        }
        std::fs::write(self.kubeconfig(account), own).expect("a file");
    }

    /// The path of the credentials of a service account.
    pub fn kubeconfig(&self, account: &str) -> PathBuf {
        self.dir.path().join(format!("{account}.kubeconfig"))
    }

    fn start_program(&self, name: &str, args: &[&str], env: &[(&str, &str)]) -> Child {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join(format!("{name}.log")))
            .expect("log file");
        Command::new(program())
            .args(args)
            .env("KUBECONFIG", self.kubeconfig(&format!("mote-{}", args[0])))
            .env("POD_NAME", name)
            .env("POD_IP", "127.0.0.1")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the program starts")
    }

    pub fn add_controller(&mut self) {
        self.made += 1;
        let name = format!("controller-{}", self.made);
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        let data = self.dir.path().join("archives");
        let data = data.to_str().expect("UTF-8");
        let args = ["controller", "--listen", &listen, "--data", data, "--url", "http://mote.test"];
        let process = self.start_program(&name, &args, &[]);
        self.controllers.push(Controller { name, process, port });
    }

    /// Kills the oldest controller, or asks it to stop.
    pub fn end_controller(&mut self, kill: bool) {
        let mut controller = self.controllers.remove(0);
        if !kill {
            signal(controller.process.id(), "TERM");
            wait_for("the controller to stop", || {
                controller.process.try_wait().expect("our child")
            });
        }
    }

    /// Starts one more cell.
    pub fn add_cell(&mut self) -> &Cell {
        self.made += 1;
        let name = format!("cell-{}", self.made);
        self.start_cell(name)
    }

    /// Ends a cell with its agent at once, as when a machine is lost: it also leaves the network,
    /// and its folder is removed. Returns the cell's name.
    pub fn lose_cell(&mut self, index: usize) -> String {
        let cell = self.cells.remove(index);
        signal(cell.node.pid(), "KILL");
        let name = cell.name.clone();
        drop(cell);
        // No machine has this address, so the network refuses connections to it. On loopback, the
        // kernel would answer in place of the process that is gone.
        let nowhere = r#"{"spec": {"address": "255.255.255.255"}}"#;
        self.kubectl(&["patch", "cell", "-n", "mote-system", &name, "--type=merge", "-p", nowhere]);
        name
    }

    /// Creates a pod for a cell. The pod exists only in the API server, and nothing runs in it.
    /// From then on the cell takes part for as long as the pod exists.
    pub fn give_pod(&self, index: usize) {
        let name = &self.cells[index].name;
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: mote-system, labels: \
             {{app.kubernetes.io/name: mote-cell}}}}\nspec:\n  serviceAccountName: mote-agent\n  \
             automountServiceAccountToken: false\n  containers: [{{name: node, image: none}}]\n"
        );
        self.apply(&pod);
        let ready = r#"{"status": {"conditions": [{"type": "Ready", "status": "True"}]}}"#;
        let system = ["-n", "mote-system"];
        let patch = ["patch", "pod", name, "--subresource=status", "--type=merge", "-p", ready];
        self.kubectl(&[&patch[..], &system].concat());
        let uid = ["get", "pod", name, "-o", "jsonpath={.metadata.uid}"];
        let uid = format!("mote.dev/pod={}", self.kubectl(&[&uid[..], &system].concat()));
        self.kubectl(&[&["annotate", "cell", name, &uid][..], &system].concat());
    }

    /// Ends a cell with its agent as the end of its pod would. Returns the cell's name.
    pub fn end_pod(&mut self, index: usize) -> String {
        let cell = self.cells.remove(index);
        let name = cell.name.clone();
        // The drop asks the node to stop, and gives it time to do so.
        drop(cell);
        let delete = ["delete", "pod", "-n", "mote-system", "--grace-period=0", "--force", &name];
        self.kubectl(&delete);
        name
    }

    /// Starts a cell with this name, for example the name of a lost cell.
    pub fn start_cell(&mut self, name: String) -> &Cell {
        let key = self.dir.path().join("cell.key");
        let listen = free_port();
        let cell = free_port();
        let address = format!("127.0.0.1:{cell}");
        let key = key.to_str().expect("UTF-8");
        let mut flags = vec!["--cell", &address, "--cell-key", key];
        if let Some(nats) = &self.nats {
            let durable =
                ["--nats", nats, "--journal-name", &name, "--schedule-journal", "schedules"];
            flags.extend(durable);
        }
        let node = Node::start_with(&flags);
        let agent = self.start_agent(&name, &node, [listen, cell]);
        self.cells.push(Cell { name, agent, node, ports: [listen, cell] });
        self.cells.last().expect("just added")
    }

    fn start_agent(&self, name: &str, node: &Node, [listen, cell]: [u16; 2]) -> Agent {
        let socket = node.dir.path().join("s");
        let socket = socket.to_str().expect("UTF-8");
        let listen = format!("127.0.0.1:{listen}");
        let cell = cell.to_string();
        let args = ["agent", "--socket", socket, "--listen", &listen, "--cell-port", &cell];
        Agent(self.start_program(name, &args, &[("NODE_NAME", &format!("machine-of-{name}"))]))
    }

    /// Kills the agent of a cell.
    pub fn kill_agent(&mut self, index: usize) {
        let agent = &mut self.cells[index].agent.0;
        agent.kill().expect("our child");
        agent.wait().expect("our child");
    }

    /// Kills the node of a cell and starts it again. Its agent keeps running.
    pub fn restart_node(&mut self, index: usize) {
        let Cell { name, agent, node, ports } = self.cells.remove(index);
        let node = node.crash_and_restart();
        self.cells.insert(index, Cell { name, agent, node, ports });
    }

    /// Kills the agent of a cell and starts it again.
    pub fn restart_agent_after_kill(&mut self, index: usize) {
        self.kill_agent(index);
        self.restart_agent(index);
    }

    /// Starts the agent of a cell again.
    pub fn restart_agent(&mut self, index: usize) {
        let cell = &self.cells[index];
        let agent = self.start_agent(&cell.name, &cell.node, cell.ports);
        self.cells[index].agent = agent;
    }

    /// Waits until every cell has reported that it has all functions, and until the controller,
    /// which learns this later, counts all cells as live.
    pub fn wait_until_synced(&self) {
        wait_for("the cells to be synced", || {
            let path = "jsonpath={.items[*].status.synced}";
            let text = self.kubectl(&["get", "cells", "-n", "mote-system", "-o", path]);
            (text.split_whitespace().filter(|word| *word == "true").count() == self.cells.len())
                .then_some(())
        });
        let all = format!("{0} of {0} answer", self.cells.len());
        wait_for("the controller to count with the cells", || {
            let status = self.mote(&["nodes", "-o", "json"]);
            String::from_utf8_lossy(&status.stdout).contains(&all).then_some(())
        });
    }

    /// Runs kubectl as the administrator, which must succeed. Returns its standard output.
    pub fn kubectl(&self, args: &[&str]) -> String {
        let output = script(self.dir.path(), &[&["kubectl"], args].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {args:?}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs kubectl as the administrator. The error is kubectl's error text.
    pub fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        let output = script(self.dir.path(), &[&["kubectl"], args].concat());
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Runs kubectl with the credentials of a service account. The error is kubectl's error text.
    pub fn kubectl_as(&self, account: &str, args: &[&str]) -> Result<String, String> {
        let path = self.kubeconfig(account);
        let path = path.to_str().expect("UTF-8");
        let own = [&["run", "kubectl", "--kubeconfig", path], args].concat();
        let output = script(self.dir.path(), &own);
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    }

    /// Applies a manifest, which must be accepted.
    pub fn apply(&self, manifest: &str) {
        if let Err(text) = self.try_apply(manifest) {
            panic!("{text}\n{manifest}");
        }
    }

    /// Applies a manifest. The error is kubectl's error text.
    pub fn try_apply(&self, manifest: &str) -> Result<(), String> {
        let path = self.write("manifest.yaml", manifest);
        let output = script(
            self.dir.path(),
            &["kubectl", "apply", "--server-side", "--force-conflicts", "-f", &path],
        );
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Replaces existing objects by those of a manifest.
    pub fn replace(&self, manifest: &str) {
        let path = self.write("manifest.yaml", manifest);
        self.kubectl(&["replace", "-f", &path]);
    }

    /// The condition `Ready` of a function: its status, reason and message.
    pub fn ready(&self, function: &str) -> (String, String, String) {
        let path = "jsonpath={range .status.conditions[?(@.type==\"Ready\")]}{.status}\n{.reason}\n{.message}{end}";
        let text = self.kubectl(&["get", "function", function, "-o", path]);
        let mut lines = text.splitn(3, '\n').map(str::to_owned);
        let mut next = || lines.next().unwrap_or_default();
        (next(), next(), next())
    }

    /// Waits until the condition `Ready` of a function has this reason, and returns the message.
    pub fn wait_for_reason(&self, function: &str, reason: &str) -> String {
        let mut last = None;
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for(&format!("{function} to be {reason}"), || {
                let ready = self.ready(function);
                let message = (ready.1 == reason).then(|| ready.2.clone());
                last = Some(ready);
                message
            })
        }));
        found.unwrap_or_else(|_| panic!("{function} is not {reason} but {last:?}"))
    }

    /// The token of the management API.
    pub fn token(&self) -> String {
        self.key("mote-api", "token")
    }

    /// An entry of a Secret of the system.
    pub fn key(&self, secret: &str, entry: &str) -> String {
        let path = format!("jsonpath={{.data.{entry}}}");
        let text = self.kubectl(&["get", "secret", "-n", "mote-system", secret, "-o", &path]);
        let mut child = Command::new("base64")
            .arg("-d")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("base64 starts");
        std::io::Write::write_all(&mut child.stdin.take().expect("piped"), text.as_bytes())
            .expect("piped");
        String::from_utf8(child.wait_with_output().expect("our child").stdout).expect("text")
    }

    /// The address of the management API of the newest controller.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.controllers.last().expect("a controller").port)
    }

    /// Runs the command line against the cluster.
    pub fn mote(&self, args: &[&str]) -> Output {
        self.mote_with_input(args, b"")
    }

    /// Runs the command line against the cluster, with standard input.
    pub fn mote_with_input(&self, args: &[&str], input: &[u8]) -> Output {
        let mut child = Command::new(mote_binary())
            .args(args)
            .env("MOTE_NODE", self.address())
            .env("MOTE_TOKEN", self.token())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let _ = std::io::Write::write_all(&mut child.stdin.take().expect("piped"), input);
        child.wait_with_output().expect("our child")
    }

    /// Runs the command line against the cluster, which must succeed. Returns its standard output.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.mote(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "mote {args:?}: {error}\n{}", self.logs());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Writes the files of a function and returns its folder.
    pub fn folder(&self, name: &str, files: &[(&str, &str)]) -> String {
        let folder = self.dir.path().join("src").join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        for (file, text) in files {
            std::fs::write(folder.join(file), text).expect("a file");
        }
        folder.to_str().expect("UTF-8").to_owned()
    }

    /// Suspends the API server's process, or lets it continue.
    pub fn freeze_api_server(&self, freeze: bool) {
        let pid =
            std::fs::read_to_string(self.dir.path().join("api/apiserver.pid")).expect("a pid");
        let pid = pid.trim().parse().expect("a number");
        signal(pid, if freeze { "STOP" } else { "CONT" });
    }

    /// The logs of the controllers and agents.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for entry in std::fs::read_dir(self.dir.path()).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|ending| ending == "log") {
                let log = std::fs::read_to_string(entry.path()).unwrap_or_default();
                text.push_str(&format!("== {}\n{log}", entry.path().display()));
            }
        }
        text
    }

    /// The names of the controllers, oldest first.
    pub fn controllers(&self) -> Vec<&str> {
        self.controllers.iter().map(|controller| controller.name.as_str()).collect()
    }

    /// The holder of the lease.
    pub fn leader(&self) -> String {
        self.kubectl(&[
            "get",
            "lease",
            "-n",
            "mote-system",
            "mote-controller",
            "-o",
            "jsonpath={.spec.holderIdentity}",
        ])
    }
}
