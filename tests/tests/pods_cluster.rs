//! Functions with `isolation = "pod"` in a cluster: a real API server, the controller, and a cell
//! with its agent. There is no kubelet; the test starts the waiting pods that the controller makes,
//! as processes, and writes their states.

use std::collections::BTreeMap;

use mote_tests::cluster::{Cluster, lacks};
use mote_tests::pods::Pod;
use mote_tests::{skip, wait_for};
use serde_json::Value;

const NAMESPACE: &str = "mote-functions";

/// What the kubelets of the cluster would do.
struct Kubelet<'a> {
    cluster: &'a Cluster,
    pods: BTreeMap<String, Pod>,
    /// How many were started: each has an address of its own, also while an earlier one is ended.
    started: usize,
}

impl Kubelet<'_> {
    fn list(&self) -> Vec<Value> {
        let text = self.cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-o", "json"]);
        let list: Value = serde_json::from_str(&text).expect("JSON");
        list["items"].as_array().expect("a list").clone()
    }

    /// Starts the pods that do not run yet, and says of all of them whether they are ready.
    fn look(&mut self) {
        for pod in self.list() {
            let name = pod["metadata"]["name"].as_str().expect("a name");
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                self.pods.remove(name);
                let now = ["--force", "--grace-period=0", "-n", NAMESPACE];
                self.cluster
                    .kubectl(&[&["delete", "pod", "--ignore-not-found", name], &now[..]].concat());
                continue;
            }
            if !self.pods.contains_key(name) {
                let Some(started) = self.start(&pod) else { continue };
                self.pods.insert(name.to_owned(), started);
            }
            let running = self.pods.get_mut(name).expect("just added");
            let ended = running.has_ended();
            let ready = !ended && running.is_open();
            let phase = if ended { "Succeeded" } else { "Running" };
            let ip = running.address.ip();
            let status = serde_json::json!({"status": {
                "phase": phase, "podIP": ip, "podIPs": [{"ip": ip}],
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
            }});
            let patch = ["patch", "pod", name, "-n", NAMESPACE, "--subresource=status", "-p"];
            // It may have been removed since.
            let _ = self.cluster.try_kubectl(&[&patch[..], &[&status.to_string()]].concat());
        }
    }

    fn start(&mut self, pod: &Value) -> Option<Pod> {
        let name = pod["metadata"]["name"].as_str().expect("a name");
        let env = pod["spec"]["containers"][0]["env"].as_array().expect("a list");
        let of = |name: &str| {
            let found = env.iter().find(|one| one["name"] == name);
            found.and_then(|one| one["value"].as_str()).expect("a variable").to_owned()
        };
        let path = "go-template={{.data.secret | base64decode}}";
        let secret = ["get", "secret", "-n", NAMESPACE, name, "-o", path];
        let secret = self.cluster.try_kubectl(&secret).ok()?;
        let at = format!(
            "127.{}.{}.{}:8097",
            10 + std::process::id() % 100,
            self.started / 250,
            1 + self.started % 250
        );
        self.started += 1;
        Some(Pod::start_with(name, &of("MOTE_POD_RUNTIME"), &of("MOTE_POD_CELLS"), &secret, &at))
    }

    /// The number of pods with this state.
    fn count(&self, state: &str) -> usize {
        let pods = self.list();
        pods.iter().filter(|pod| pod["metadata"]["labels"]["mote.dev/state"] == state).count()
    }

    fn wait<T>(&mut self, what: &str, mut ask: impl FnMut(&mut Self) -> Option<T>) -> T {
        wait_for(what, || {
            self.look();
            ask(self)
        })
    }
}

#[test]
fn the_controller_keeps_pods_waiting_and_cells_claim_them() {
    if let Some(why) = lacks() {
        let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!is_ci, "CI must be able to run these tests: {why}");
        skip("a Kubernetes API server", why);
        return;
    }
    let cluster = Cluster::start(1);
    // In a cluster, its own controllers make this account.
    cluster.kubectl(&["create", "serviceaccount", "default", "-n", NAMESPACE]);
    let mut kubelet = Kubelet { cluster: &cluster, pods: BTreeMap::new(), started: 0 };
    let manifest = |net: &str| {
        format!(
            "apiVersion: mote.dev/v1alpha1
kind: Function
metadata: {{name: alone}}
spec:
  isolation: pod
  runtime: python{net}
  files:
    app.py: |
      import os
      def handle(event, ctx):
          return str(os.getppid())
"
        )
    };
    cluster.apply(&manifest(""));
    let cell = &cluster.cells[0].node;
    let first = kubelet.wait("the first answer", |_| {
        let answer = cell.get("/alone");
        (answer.status == 200).then(|| answer.text())
    });
    let claimed = kubelet.pods.values().find(|pod| pod.pid().to_string() == first);
    let claimed = claimed.expect("it runs in a pod of the controller").name.clone();
    // Its place among the waiting pods is taken, and no secret of a pod is left.
    kubelet.wait("two waiting pods", |kubelet| {
        (kubelet.count("waiting") == 2 && kubelet.count("claimed") == 1).then_some(())
    });
    kubelet.wait("the report of the claim", |kubelet| {
        let pod = kubelet.list().into_iter().find(|pod| pod["metadata"]["name"] == claimed)?;
        let conditions = pod["status"]["conditions"].as_array()?;
        let is_claim = |it: &&Value| it["type"] == "mote.dev/Claimed" && it["status"] == "True";
        conditions.iter().find(is_claim).map(|_| ())
    });
    let secrets = ["get", "secrets", "-n", NAMESPACE, "-o", "name"];
    kubelet.wait("no secrets", |_| cluster.kubectl(&secrets).is_empty().then_some(()));
    for pod in kubelet.list() {
        assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
        assert_eq!(pod["metadata"]["labels"]["mote.dev/shape"], "python-67108864");
    }

    // The pod dies: the next answer comes from one of the others.
    let before = kubelet.pods[&claimed].pid();
    mote_tests::signal(before, "KILL");
    let second = kubelet.wait("the next answer", |_| {
        let answer = cell.get("/alone");
        (answer.status == 200 && answer.text() != first).then(|| answer.text())
    });
    assert!(kubelet.pods.values().any(|pod| pod.pid().to_string() == second));

    // A function that reaches hosts has pods and a policy of its own.
    cluster.apply(&manifest("\n  allow: {net: [\"192.0.2.9:5432\"]}"));
    kubelet.wait("the second revision", |_| cluster.ready("alone").2.contains("@2").then_some(()));
    let policy =
        cluster.kubectl(&["get", "networkpolicy", "-n", NAMESPACE, "allow-alone", "-o", "json"]);
    let policy: Value = serde_json::from_str(&policy).expect("JSON");
    assert_eq!(policy["spec"]["egress"][0]["to"][0]["ipBlock"]["cidr"], "192.0.2.9/32");
    assert_eq!(policy["spec"]["podSelector"]["matchLabels"]["mote.dev/function"], "alone");
    let pids: Vec<String> = kubelet
        .list()
        .iter()
        .filter(|pod| pod["metadata"]["labels"]["mote.dev/function"] == "alone")
        .filter_map(|pod| kubelet.pods.get(pod["metadata"]["name"].as_str()?))
        .map(|pod| pod.pid().to_string())
        .collect();
    assert!(pids.contains(&cell.get("/alone").text()));

    // Nothing is left of a function that is removed.
    cluster.kubectl(&["delete", "function", "alone"]);
    kubelet.wait("no pods", |kubelet| kubelet.list().is_empty().then_some(()));
    let policies = cluster.kubectl(&["get", "networkpolicies", "-n", NAMESPACE, "-o", "name"]);
    assert!(!policies.contains("allow-alone"), "{policies}");
}

#[test]
fn other_runtimes_are_refused_with_what_helps() {
    if lacks().is_some() {
        skip("a Kubernetes API server", "see the other test");
        return;
    }
    let cluster = Cluster::start(1);
    cluster.apply(
        "apiVersion: mote.dev/v1alpha1
kind: Function
metadata: {name: shell}
spec:
  isolation: pod
  runtime: exec
  command: [sh, run.sh]
  files: {run.sh: echo hello}
",
    );
    let text = cluster.wait_for_reason("shell", "Invalid");
    assert!(text.contains("isolation") && text.contains("python and node"), "{text}");
}
