//! The files that are shipped for monitoring, alert rules and a Grafana dashboard, tested with a
//! real Prometheus.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use mote_tests::{Node, call_at, free_address, repository, skip, wait_for};

const CODE: &str = "def handle(event, ctx):\n    return str(1 / len(event.text))\n";

/// The names of metrics in a text. The sample names of a histogram become the name of the
/// histogram.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(|letter: char| !is_part(letter));
    let names = words.filter(|word| word.starts_with("mote_"));
    names.map(|name| name.trim_end_matches("_bucket").to_owned()).collect()
}

struct Prometheus {
    child: Child,
    address: SocketAddr,
    dir: tempfile::TempDir,
}

impl Prometheus {
    /// Starts Prometheus, which reads a node's metrics every second and loads the shipped rules.
    fn start(node: &Node, admin: SocketAddr) -> Option<Self> {
        let dir = tempfile::tempdir().expect("a folder");
        let address = free_address();
        let token = node.dir.path().join("data/admin.token");
        let settings = format!(
            "global: {{scrape_interval: 3s, evaluation_interval: 1s}}\n\
             rule_files: ['{}']\n\
             scrape_configs: [{{job_name: mote, authorization: {{credentials_file: '{}'}}, \
             static_configs: [{{targets: ['{admin}']}}]}}]\n",
            repository().join("deploy/prometheus/mote-alerts.yml").display(),
            token.display(),
        );
        std::fs::write(dir.path().join("prometheus.yml"), settings).expect("a file");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", dir.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(dir.path().join("log")).expect("a file"))
            .spawn()
            .ok()?;
        Some(Self { child, address, dir })
    }

    /// The results of a query, if Prometheus answers it.
    fn query(&self, query: &str) -> Vec<serde_json::Value> {
        std::net::TcpStream::connect(self.address).map_or(Vec::new(), |_| {
            let path = format!("/api/v1/query?query={query}");
            let answer = call_at(self.address, "GET", &path, &[], b"");
            // It listens before it is ready.
            if answer.status == 503 {
                return Vec::new();
            }
            answer.json()["data"]["result"].as_array().cloned().unwrap_or_default()
        })
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn prometheus_has_every_metric_that_rules_and_dashboard_use() {
    let admin = free_address();
    let node = Node::start_with(&["--admin", &admin.to_string()]);
    let Some(prometheus) = Prometheus::start(&node, admin) else {
        return skip("rules and dashboard", "prometheus is not installed");
    };
    node.deploy_ok("divides", &[("app.py", CODE)]);
    assert_eq!(node.post("/divides", b"1234").text(), "0.25");
    assert_eq!(node.post("/divides", b"").status, 500);
    // There is also a series for the ends of instances.
    node.ok(&["scale", "divides", "0"]);
    assert_eq!(node.post("/divides", b"12").text(), "0.5");
    let folder = repository().join("deploy");
    let read = |path: &str| std::fs::read_to_string(folder.join(path)).expect("a file");
    let mut used = metrics_in(&read("prometheus/mote-alerts.yml"));
    used.extend(metrics_in(&read("grafana/mote.json")));
    assert!(used.len() > 12, "{used:?}");
    for name in used {
        wait_for(&name, || {
            let of_histogram = format!("{name}_bucket");
            let asked = [name.as_str(), of_histogram.as_str()];
            asked.into_iter().any(|name| !prometheus.query(name).is_empty()).then_some(())
        });
    }
    assert_eq!(prometheus.query("up")[0]["value"][1], "1");
    let bearer = format!("Bearer {}", node.token());
    let fields = [
        ("authorization", bearer.as_str()),
        ("accept", "application/openmetrics-text"),
        ("accept-encoding", "gzip"),
    ];
    let scrape = call_at(admin, "GET", "/metrics", &fields, b"");
    assert_eq!(scrape.header("content-encoding"), Some("gzip"));
    let cpu = prometheus.query("mote_function_cpu_seconds_total");
    let seconds: f64 = cpu[0]["value"][1].as_str().and_then(|text| text.parse().ok()).expect("cpu");
    assert!(seconds > 0.0, "{cpu:?}");
    let log = std::fs::read_to_string(prometheus.dir.path().join("log")).expect("a log");
    assert!(!log.contains("level=error") && !log.contains("level=ERROR"), "{log}");
}

#[test]
fn the_rules_for_alerts_are_tested() {
    let folder = repository().join("deploy/prometheus");
    for args in [["check", "rules", "mote-alerts.yml"], ["test", "rules", "mote-alerts-test.yml"]] {
        let Ok(output) = Command::new("promtool").args(args).current_dir(&folder).output() else {
            return skip("rules for alerts", "promtool is not installed");
        };
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn a_function_that_does_not_fit_its_settings_gets_advice() {
    let node = Node::start();
    let code = r#"
import time

def handle(event, ctx):
    if event.text == "grow":
        return str(len(bytearray(b"x") * (200 << 20)))
    time.sleep(float(event.text or 0))
    return "ok"
"#;
    let manifest = "version = 1\n[limits]\nmemory = \"64MiB\"\n[scale]\nmax = 1\nqueue = 0\n";
    node.deploy_ok("tight", &[("app.py", code), ("mote.toml", manifest)]);
    assert_eq!(node.post("/tight", b"").text(), "ok");
    assert!(node.json(&["describe", "tight", "-o", "json"])["advice"].is_null());
    let calls = (0..24).map(|_| {
        let http = node.http;
        std::thread::spawn(move || call_at(http, "POST", "/tight", &[], b"2").status)
    });
    let calls: Vec<_> = calls.collect();
    let statuses: Vec<_> = calls.into_iter().map(|call| call.join().expect("a status")).collect();
    assert!(statuses.iter().filter(|status| **status == 429).count() >= 10, "{statuses:?}");
    let mut expected = vec![("queue-full", "scale", "max = 2")];
    if node.has_cgroups() {
        // With this queue, a call that must wait for a start is refused.
        wait_for("an instance", || (node.post("/tight", b"grow").status == 502).then_some(()));
        expected.insert(0, ("memory-low", "limits", "memory = \"128MiB\""));
    }
    wait_for("the advice", || {
        let shown = node.json(&["describe", "tight", "-o", "json"]);
        let all = shown["advice"].as_array().cloned().unwrap_or_default();
        let text = |one: &serde_json::Value, key: &str| one[key].as_str().unwrap_or("").to_owned();
        let all = all.iter().map(|one| ["code", "section", "change"].map(|key| text(one, key)));
        let wanted = expected
            .iter()
            .map(|(code, section, change)| [code, section, change].map(|text| (*text).to_owned()));
        all.eq(wanted).then_some(())
    });
    let shown = node.ok(&["describe", "tight"]);
    assert!(shown.contains("in mote.toml: [scale] max = 2"), "{shown}");
    let doctor = node.doctor(&[]);
    assert!(doctor.contains("queue-full: ") && doctor.contains("[scale] max = 2"), "{doctor}");
    // A deploy begins anew.
    let manifest = manifest.replace("max = 1", "max = 2");
    node.deploy_ok("tight", &[("app.py", code), ("mote.toml", &manifest)]);
    assert!(node.json(&["describe", "tight", "-o", "json"])["advice"].is_null());
}
