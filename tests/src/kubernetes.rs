//! A Kubernetes API server without nodes, for tests of objects (`scripts/apiserver.sh`).

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::{repository, skip};

/// A running server on loopback. It ends on drop.
pub struct ApiServer {
    dir: tempfile::TempDir,
}

impl ApiServer {
    /// Starts a server, or reports why the test `what` cannot run here.
    pub fn start(what: &str) -> Option<Self> {
        let programs = programs();
        if !programs.join("kube-apiserver").exists() {
            skip(what, "needs scripts/cluster.sh build, once");
            return None;
        }
        let server = Self { dir: tempfile::tempdir().expect("temp folder") };
        let output = server.script(&["up", "--here"], "");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        Some(server)
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("server")
    }

    fn script(&self, args: &[&str], input: &str) -> Output {
        let mut child = Command::new(repository().join("scripts/apiserver.sh"))
            .args(args)
            .env("APISERVER_DIR", self.folder())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("bash");
        let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
        child.wait_with_output().expect("our child")
    }

    /// Runs kubectl as the administrator.
    pub fn kubectl(&self, args: &[&str], input: &str) -> Output {
        self.script(&[&["kubectl"], args].concat(), input)
    }

    /// Runs kubectl as the administrator, which must succeed. Returns its standard output.
    pub fn ok(&self, args: &[&str], input: &str) -> String {
        let output = self.kubectl(args, input);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "kubectl {args:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The values of `KUBECONFIG` and `PATH` for programs that call kubectl.
    pub fn env(&self) -> [(&'static str, String); 2] {
        let path = std::env::var("PATH").unwrap_or_default();
        [
            ("KUBECONFIG", self.folder().join("kubeconfig").display().to_string()),
            ("PATH", format!("{}:{path}", programs().display())),
        ]
    }
}

fn programs() -> PathBuf {
    repository().join(".cache/kubernetes-v1.36.3")
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.script(&["down"], "");
    }
}
