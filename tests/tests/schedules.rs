//! Functions that run by schedule: at their times, across restarts and crashes, and no longer after
//! they were removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mote_tests::{Node, repository, skip, wait_for};
use serde_json::{Value, json};

/// Longest time until a due run reports. A loaded machine needs some of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server outside of the node that receives one line of JSON from each run of a function.
struct Reports {
    port: u16,
    lines: Receiver<Value>,
}

impl Reports {
    fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut line = String::new();
                let read = BufReader::new(stream).read_line(&mut line);
                // A killed run may have sent only a part of the line.
                let Ok(report) = serde_json::from_str(&line) else { continue };
                if read.is_err() || sender.send(report).is_err() {
                    return;
                }
            }
        });
        Self { port, lines }
    }

    fn next(&self) -> Value {
        self.lines.recv_timeout(PATIENCE).expect("a run")
    }

    /// Waits for a run for which `fits` returns true.
    fn wait(&self, fits: impl Fn(&Value) -> bool) -> Value {
        loop {
            let report = self.next();
            if fits(&report) {
                return report;
            }
        }
    }

    /// Deploys a function that reports its runs.
    fn deploy(&self, node: &Node, name: &str, triggers: &str) {
        let port = self.port;
        let code = format!(
            "import json, socket\n\
             def handle(event, ctx):\n    \
                 report = dict(name='{name}', id=event.id, trigger=event.trigger, method=event.method,\n        \
                     path=event.path, query=event.query, body=event.text,\n        \
                     schedule=event.headers.get('mote-schedule'),\n        \
                     due=event.headers.get('mote-schedule-due'), x=event.headers.get('x-a'))\n    \
                 with socket.create_connection(('127.0.0.1', {port}), 10) as s:\n        \
                     s.sendall((json.dumps(report) + '\\n').encode())\n"
        );
        let manifest = format!("version = 1\n[allow]\nnet = [\"127.0.0.1:{port}\"]\n{triggers}");
        node.deploy_ok(name, &[("app.py", &code), ("mote.toml", &manifest)]);
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Returns the second at which a run was due. The report has it as RFC 3339 in UTC, the result is
/// in seconds since 1970.
fn due(report: &Value) -> u64 {
    let text = report["due"].as_str().unwrap();
    let number = |range: std::ops::Range<usize>| text.get(range).unwrap().parse::<u64>().unwrap();
    let year = number(0..4);
    let month = number(5..7);
    let day = number(8..10);
    // Years begin in March here, so that a leap day is the last day of its year.
    let year = year - u64::from(month < 3);
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * ((month + 9) % 12) + 2) / 5;
    let since_1970 = days + day - 1 - 719_468;
    since_1970 * 86_400 + number(11..13) * 3_600 + number(14..16) * 60 + number(17..19)
}

fn schedules(node: &Node) -> Vec<Value> {
    node.json(&["schedules", "-o", "json"])["schedules"].as_array().unwrap().clone()
}

#[test]
fn a_function_runs_by_its_schedules_until_it_is_removed() {
    let node = Node::start();
    let reports = Reports::listen();
    let one = "[[trigger]]\nevery = \"1s\"\nmethod = \"PUT\"\npath = \"/tidy?deep=1\"\nbody = \"b\"\n\
        headers = { X-A = \"1\" }\n[[trigger]]\ncron = \"0 3 * * *\"\ntimezone = \"Europe/Berlin\"\n";
    reports.deploy(&node, "f", one);
    let first = reports.next();
    let expected = json!({
        "name": "f", "id": first["id"], "trigger": "schedule", "method": "PUT", "path": "/tidy",
        "query": "deep=1", "body": "b", "schedule": "every 1s", "due": first["due"], "x": "1",
    });
    assert_eq!(first, expected);
    let second = reports.next();
    assert!(due(&second) > due(&first), "{first} {second}");
    assert_ne!(first["id"], second["id"]);

    let listed = schedules(&node);
    let shown = |one: &Value| (one["expression"].clone(), one["timezone"].clone());
    assert_eq!(shown(&listed[0]), (json!("every 1s"), Value::Null));
    assert_eq!(shown(&listed[1]), (json!("0 3 * * *"), json!("Europe/Berlin")));
    let last = &listed[0]["last"];
    assert_eq!(last["outcome"], "accepted", "{last}");
    let states = ["waiting", "running", "succeeded"];
    assert!(states.iter().any(|state| last["state"] == *state), "{last}");
    let next = listed[1]["next"].as_str().unwrap();
    assert!(next.contains("T01:00:00") || next.contains("T02:00:00"), "{next}");
    let table = node.ok(&["schedules", "f"]);
    assert!(table.starts_with("FUNCTION") && table.contains("every 1s"), "{table}");
    let described = node.ok(&["describe", "f"]);
    assert!(described.contains("schedules    every 1s  next 20"), "{described}");
    assert!(described.contains("0 3 * * * Europe/Berlin  next 20"), "{described}");
    assert!(node.ok(&["list"]).contains("NEXT RUN"));

    // A redeploy replaces the schedules; a rollback brings the old ones back.
    reports.deploy(&node, "f", "[[trigger]]\ncron = \"@yearly\"\n");
    let listed = schedules(&node);
    assert_eq!((listed.len(), &listed[0]["expression"]), (1, &json!("@yearly")));
    node.ok(&["rollback", "f"]);
    assert_eq!(schedules(&node).len(), 2);
    let since = now_s();
    reports.wait(|report| due(report) >= since);

    // A removed function does not run, while another function still does.
    node.ok(&["remove", "f", "--yes"]);
    let removed = now_s();
    assert!(schedules(&node).is_empty());
    reports.deploy(&node, "g", "[[trigger]]\nevery = \"1s\"\n");
    reports.wait(|report| {
        assert!(report["name"] == "g" || due(report) <= removed + 1, "{report}");
        report["name"] == "g" && due(report) > removed + 2
    });
}

#[test]
fn mistakes_in_schedules_name_their_lines() {
    let node = Node::start();
    let check = |triggers: &str, expected: &str| {
        let manifest = format!("version = 1\n{triggers}");
        let code = "def handle(event, ctx):\n    return 1\n";
        let output = node.deploy("f", &[("app.py", code), ("mote.toml", &manifest)]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{expected}: {said}");
    };
    check("[[trigger]]\ncron = \"* * * * 8\"\n", "found \"* * * * 8\" (line 3)");
    check("[[trigger.schedule]]\ncron = \"* * * * *\"\n", "write a section [[trigger]] with cron");
    check("[[trigger]]\nevery = \"1s\"\njitter = \"x\"\n", "found \"x\" (line 4)");
}

#[test]
fn a_node_refuses_a_zone_that_only_the_client_knows() {
    let zones = tempfile::tempdir().unwrap();
    std::fs::create_dir(zones.path().join("Asia")).unwrap();
    let kolkata = zones.path().join("Asia/Kolkata");
    if std::fs::copy("/usr/share/zoneinfo/Asia/Kolkata", kolkata).is_err() {
        return skip("zones", "this machine has no /usr/share/zoneinfo");
    }
    let node = Node::start_with_env(&[], &[("TZDIR", zones.path().to_str().unwrap())]);
    let code = "def handle(event, ctx):\n    return 1\n";
    let deploy = |zone: &str| {
        let manifest =
            format!("version = 1\n[[trigger]]\ncron = \"0 3 * * *\"\ntimezone = \"{zone}\"\n");
        let output = node.deploy("f", &[("app.py", code), ("mote.toml", &manifest)]);
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert!(deploy("UTC").0 && deploy("Asia/Kolkata").0);
    let (is_deployed, said) = deploy("Europe/Berlin");
    let expected = "the schedule \"0 3 * * *\" in Europe/Berlin: no zone of this name";
    assert!(!is_deployed && said.contains(expected), "{said}");
}

/// Returns the times of a function's runs that lie between two seconds.
fn between(runs: &BTreeMap<String, BTreeSet<u64>>, name: &str, from: u64, to: u64) -> Vec<u64> {
    runs.get(name).into_iter().flatten().copied().filter(|due| (from..to).contains(due)).collect()
}

#[test]
fn a_restart_makes_up_for_what_the_manifest_says() {
    let node = Node::start();
    let reports = Reports::listen();
    let policies = ["skip", "run-once", "run-all"];
    for missed in policies {
        let trigger = format!("[[trigger]]\nevery = \"1s\"\nmissed = \"{missed}\"\n");
        reports.deploy(&node, missed, &trigger);
    }
    let mut runs: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    let mut ids: BTreeMap<(String, u64), BTreeSet<String>> = BTreeMap::new();
    let mut note = |report: &Value, runs: &mut BTreeMap<String, BTreeSet<u64>>| {
        let name = report["name"].as_str().unwrap().to_owned();
        let at = due(report);
        runs.entry(name.clone()).or_default().insert(at);
        let all = ids.entry((name, at)).or_default();
        all.insert(report["id"].as_str().unwrap().to_owned());
        assert_eq!(all.len(), 1, "a time ran twice: {report}");
    };
    while runs.len() < 3 {
        note(&reports.next(), &mut runs);
    }
    let mut off = (0, 0);
    let node = node.restart_after(false, || {
        // The clock moves while the node is off.
        off.0 = now_s() + 1;
        wait_for("the clock", || (now_s() > off.0 + 4).then_some(()));
        off.1 = now_s();
    });
    let ready = now_s() + 2;
    let reached = |runs: &BTreeMap<String, BTreeSet<u64>>| {
        policies.iter().all(|name| runs[*name].last().is_some_and(|last| *last >= ready))
    };
    while !reached(&runs) {
        note(&reports.next(), &mut runs);
    }
    let (from, to) = off;
    // If a restart takes less than a minute, the newest missed time runs under every policy.
    assert!(between(&runs, "skip", from, to).len() <= 1, "{runs:?}");
    let all: Vec<u64> = (from..to).collect();
    assert_eq!(between(&runs, "run-all", from, to), all, "{runs:?}");
    // One run stands for all times from the stop to the start. Its time may be after `to`.
    assert!(between(&runs, "run-once", from, to).len() <= 1, "{runs:?}");
    let since = runs["run-once"].range(from..).next().copied().unwrap();
    let first_of_all = runs["run-all"].range(from..).next().copied().unwrap();
    assert!(since > first_of_all, "only the newest of the missed times runs: {runs:?}");
    drop(node);
}

#[test]
fn kill_9_neither_loses_nor_repeats_a_time() {
    let mut node = Node::start();
    let reports = Reports::listen();
    reports.deploy(
        &node,
        "f",
        "[[trigger]]\nevery = \"1s\"\nmissed = \"run-all\"\noverlap = \"queue\"\n",
    );
    let mut ids: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    let mut note = |report: Value| {
        let at = due(&report);
        ids.entry(at).or_default().insert(report["id"].as_str().unwrap().to_owned());
        at
    };
    for _ in 0..3 {
        note(reports.next());
        note(reports.next());
        node = node.crash_and_restart();
    }
    let ready = now_s();
    while note(reports.next()) < ready + 1 {}
    // A run that the kill interrupted runs again with the same id.
    assert!(ids.values().all(|ids| ids.len() == 1), "{ids:?}");
    let times: Vec<u64> = ids.keys().copied().collect();
    let all: Vec<u64> = (times[0]..=times[times.len() - 1]).collect();
    assert_eq!(times, all, "every second from the first to the last");
    match reports.lines.recv_timeout(Duration::ZERO) {
        Ok(_) | Err(RecvTimeoutError::Timeout) => {}
        Err(error) => panic!("{error}"),
    }
    drop(node);
}

/// Returns the seconds in [`from`, `to`] at which these expressions are due in these zones,
/// computed by croniter.
fn oracle(schedules: &[(String, String, &str)], from: u64, to: u64) -> BTreeMap<String, Vec<u64>> {
    let script = "import json, sys\nfrom datetime import datetime\nfrom zoneinfo import ZoneInfo\n\
        from croniter import croniter\nasked = json.load(sys.stdin)\nresult = {}\n\
        for name, expression, zone in asked['schedules']:\n    \
            start = datetime.fromtimestamp(asked['from'] - 1, ZoneInfo(zone))\n    \
            times = croniter(expression, start, second_at_beginning=True)\n    \
            result[name] = []\n    \
            while (time := int(times.get_next(float))) <= asked['to']:\n        \
                result[name].append(time)\n\
        json.dump(result, sys.stdout)\n";
    let mut running = std::process::Command::new(repository().join(".cache/test-venv/bin/python"))
        .args(["-c", script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let asked = json!({ "schedules": schedules, "from": from, "to": to });
    let mut stdin = running.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, asked.to_string().as_bytes()).unwrap();
    drop(stdin);
    let output = running.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Two thousand due times in ten zones, while the node is stopped and killed at random moments.
#[test]
fn every_due_time_while_the_node_runs_runs_exactly_once() {
    let python = repository().join(".cache/test-venv/bin/python");
    let has = std::process::Command::new(python).args(["-c", "import croniter"]).output();
    if !has.is_ok_and(|ran| ran.status.success()) {
        return skip("due times", "croniter is not in .cache/test-venv: scripts/setup.sh test");
    }
    const ZONES: [&str; 10] = [
        "UTC",
        "Europe/Berlin",
        "Europe/Lisbon",
        "America/New_York",
        "America/Santiago",
        "Australia/Lord_Howe",
        "Pacific/Auckland",
        "Africa/Cairo",
        "Asia/Kolkata",
        "Asia/Kathmandu",
    ];
    const EXPRESSIONS: [&str; 6] = [
        "* * * * * *",
        "*/2 * * * * *",
        "1-59/2 * * * * *",
        "* * * * * *",
        "*/3 * * * * *",
        "0-59 * * * * *",
    ];
    const WANTED: usize = 2_000;
    let mut node = Node::start();
    let reports = Reports::listen();
    let mut schedules = Vec::new();
    for zone in ZONES {
        for (number, expression) in EXPRESSIONS.iter().enumerate() {
            let name = format!("{}-{number}", zone.replace(['/', '_'], "-").to_lowercase());
            schedules.push((name, (*expression).to_owned(), zone));
        }
    }
    for (name, expression, zone) in &schedules {
        let trigger = format!(
            "[[trigger]]\ncron = \"{expression}\"\ntimezone = \"{zone}\"\noverlap = \"allow\"\n"
        );
        reports.deploy(&node, name, &trigger);
    }
    let from = now_s() + 1;
    // The ids of the runs by function and time. A run that a kill interrupted runs again with the
    // same id.
    let mut ran: BTreeMap<(String, u64), BTreeSet<String>> = BTreeMap::new();
    let mut note = |report: Value| {
        let at = due(&report);
        let ids = ran.entry((report["name"].as_str().unwrap().to_owned(), at)).or_default();
        ids.insert(report["id"].as_str().unwrap().to_owned());
        at
    };
    let mut off: Vec<(u64, u64)> = Vec::new();
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut random = seed;
    let mut expected = 0;
    while expected < WANTED {
        // The node lives for up to six seconds, measured by the times that run.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let until = now_s() + (random >> 33) % 6;
        while note(reports.next()) < until {}
        let began = now_s();
        node = match random >> 63 {
            0 => node.stop_and_restart(),
            _ => node.crash_and_restart(),
        };
        off.push((began, now_s()));
        expected = oracle(&schedules, from, now_s())
            .values()
            .flatten()
            .filter(|at| is_on(&off, **at))
            .count();
    }
    let to = now_s() + 2;
    let due_times = oracle(&schedules, from, to);
    let wanted: BTreeSet<(String, u64)> = due_times
        .iter()
        .flat_map(|(name, all)| all.iter().map(|at| (name.clone(), *at)))
        .filter(|(_, at)| is_on(&off, *at))
        .collect();
    let mut missing: BTreeSet<_> = wanted.clone();
    loop {
        missing.retain(|one| !ran.contains_key(one));
        if missing.is_empty() {
            break;
        }
        let report = reports.lines.recv_timeout(PATIENCE);
        let report = report.unwrap_or_else(|_| panic!("did not run: {missing:?}; off {off:?}"));
        let name = report["name"].as_str().unwrap().to_owned();
        let ids = ran.entry((name, due(&report))).or_default();
        ids.insert(report["id"].as_str().unwrap().to_owned());
    }
    let twice: Vec<_> = ran.iter().filter(|(_, ids)| ids.len() > 1).collect();
    assert!(twice.is_empty(), "ran twice: {twice:?}; off {off:?}");
    let never_due: Vec<_> = ran
        .keys()
        .filter(|(name, at)| (from..=to).contains(at) && !due_times[name].contains(at))
        .collect();
    assert!(never_due.is_empty(), "{never_due:?}");
    println!("{} due times, {} restarts", wanted.len(), off.len());
}

/// Whether the node was certainly running at this second.
fn is_on(off: &[(u64, u64)], at: u64) -> bool {
    !off.iter().any(|(from, to)| (*from..=*to).contains(&at))
}
