//! The scaling experiments of published studies on a real node (R91 to R106, R125, R127).
//! Experiments with the same names under a virtual clock are in
//! `crates/lab/lab/tests/experiments.rs`.
//!
//! The shapes are those of the studies. Times are shortened, and the work is scaled to a machine
//! with two cores. `MOTE_LONG=1` restores the original lengths, which takes about six hours (`make
//! experiments`). Times are printed. Counts and directions decide the tests.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mote_tests::schedule::{Load, closed, open};
use mote_tests::{Node, cgroup_processes, has_one_processor, is_long, skip};

/// Experiments share the machine, so only one runs at a time.
static MACHINE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A length in the short form, and in the original form of the study.
fn seconds(short: f64, long: f64) -> Duration {
    Duration::from_secs_f64(if is_long() { long } else { short })
}

/// A function that waits for `ms` and names its instance.
fn waits_python(ms: u32) -> String {
    format!(
        "import os, time\nME = os.urandom(4).hex()\ndef handle(event, ctx):\n    time.sleep({ms} / 1000)\n    return ME\n"
    )
}

fn waits_node(ms: u32) -> String {
    format!(
        "import {{ randomBytes }} from 'node:crypto';\nconst me = randomBytes(4).toString('hex');\nexport default async () => {{ await new Promise(r => setTimeout(r, {ms})); return me; }};\n"
    )
}

/// A function that uses `ms` of processor time on one core.
fn burns_python(ms: f64) -> String {
    format!(
        "import os, time\nME = os.urandom(4).hex()\ndef handle(event, ctx):\n    end = time.thread_time() + {ms} / 1000\n    while time.thread_time() < end:\n        pass\n    return ME\n"
    )
}

/// The same function in Node, which runs many calls at once.
fn burns_node(ms: f64) -> String {
    format!(
        "import {{ randomBytes }} from 'node:crypto';\nconst me = randomBytes(4).toString('hex');\nexport default () => {{ const from = process.cpuUsage(); for (;;) {{ const used = process.cpuUsage(from); if (used.user + used.system >= {ms} * 1000) return me; }} }};\n"
    )
}

fn manifest(limits: &str, scale: &str) -> String {
    format!("version = 1\n[limits]\n{limits}\n[scale]\n{scale}\n")
}

/// The observations of an experiment: the load, and the number of instances over time.
struct Seen {
    load: Load,
    /// The number of ready instances after each change, with the time in seconds from the start of
    /// the load.
    instances: Vec<(f64, i32)>,
}

impl Seen {
    fn new(node: &Node, function: &str, load: Load) -> Self {
        let seconds = |unix_us: u64| (unix_us as f64 - load.unix_us as f64) / 1e6;
        let over_time = node.instances_over_time(function);
        let instances = over_time.into_iter().map(|(at, count)| (seconds(at), count)).collect();
        Self { load, instances }
    }

    /// Returns the first time at which this many instances were ready.
    fn time_to(&self, count: i32) -> Option<f64> {
        self.instances.iter().find(|(_, ready)| *ready >= count).map(|(at, _)| at.max(0.0))
    }

    fn peak(&self) -> i32 {
        self.instances.iter().map(|(_, ready)| *ready).max().unwrap_or(0)
    }

    /// Returns the mean number of ready instances between two times.
    fn mean(&self, from: f64, to: f64) -> f64 {
        let mut area = 0.0;
        for (at, (since, ready)) in self.instances.iter().enumerate() {
            let until = self.instances.get(at + 1).map_or(to, |(next, _)| *next);
            area += (until.min(to) - since.max(from)).max(0.0) * f64::from(*ready);
        }
        area / (to - from)
    }

    /// Counts the answers after a time, by instance.
    fn shares(&self, from: f64) -> BTreeMap<&str, usize> {
        let mut shares = BTreeMap::new();
        for call in &self.load.calls {
            if call.status == 200 && call.ended.as_secs_f64() >= from {
                *shares.entry(call.text.as_str()).or_default() += 1;
            }
        }
        shares
    }

    fn print(&self, name: &str) {
        let (p50, p99) = self.load.latency();
        let changes = self.instances.iter().filter(|(at, _)| *at > 0.0);
        let steps: Vec<_> = changes.map(|(at, ready)| format!("{ready}@{at:.2}")).collect();
        let shown = steps.len().min(24);
        println!(
            "{name}: {} calls, {} answered, {} refused; p50 {:.0} ms, p99 {:.0} ms; peak {}; \
             instances@seconds: {}{}",
            self.load.calls.len(),
            self.load.count(200),
            self.load.count(429),
            p50.as_secs_f64() * 1e3,
            p99.as_secs_f64() * 1e3,
            self.peak(),
            steps[..shown].join(" "),
            if shown < steps.len() { " ..." } else { "" }
        );
    }

    fn all_answered(&self, name: &str) {
        let failed = self.load.calls.iter().find(|call| call.status != 200);
        assert!(failed.is_none(), "{name}: {failed:?}");
    }
}

#[test]
fn scale_workload_steady() {
    let _alone = alone();
    let node = Node::start();
    // 100 calls per second that wait for 90 ms each need nine instances, plus some for the queue.
    let one = manifest("concurrency = 1", "max = 10");
    node.deploy_ok("python", &[("app.py", &waits_python(90)), ("mote.toml", &one)]);
    node.deploy_ok("node", &[("app.mjs", &waits_node(90)), ("mote.toml", &one)]);
    let length = seconds(2.5, 60.0);
    for kind in ["python", "node"] {
        let load = closed(node.http, &format!("/{kind}"), &[(length, 100)], 1.0);
        let seen = Seen::new(&node, kind, load);
        seen.print(&format!("scale-workload-steady, {kind}"));
        seen.all_answered(kind);
        let to_ten = seen.time_to(10).expect("ten instances");
        println!("  1 to 10 instances in {to_ten:.2} s (Knative 12 s, OpenFaaS 26 s)");
        let described = node.json(&["describe", kind, "-o", "json"]);
        let memory: Vec<_> = described["instances"]
            .as_array()
            .expect("instances")
            .iter()
            .filter_map(|instance| instance["memory_bytes"].as_u64())
            .collect();
        let mib = memory.iter().sum::<u64>() as f64 / memory.len().max(1) as f64 / 1048576.0;
        println!("  memory per instance: {mib:.1} MiB");
        assert_eq!(seen.peak(), 10);
        node.ok(&["remove", kind, "--yes"]);
    }
}

#[test]
fn scale_workload_bursty() {
    let _alone = alone();
    let node = Node::start();
    let one = manifest("concurrency = 1", "max = 10");
    node.deploy_ok("f", &[("app.py", &waits_python(80)), ("mote.toml", &one)]);
    let half = seconds(1.2, 10.0);
    let rounds = if is_long() { 6 } else { 2 };
    let steps = [(half, 10), (half, 100)].repeat(rounds);
    let load = closed(node.http, "/f", &steps, 1.0);
    let seen = Seen::new(&node, "f", load);
    seen.print("scale-workload-bursty");
    seen.all_answered("bursty");
    let half_s = half.as_secs_f64();
    let mut quiet = 0.0;
    let mut busy = 0.0;
    for round in 0..rounds {
        let from = 2.0 * half_s * round as f64;
        let (low, high) =
            (seen.mean(from, from + half_s), seen.mean(from + half_s * 1.25, from + 2.0 * half_s));
        println!("  round {round}: {low:.1} instances at 10 per second, {high:.1} at 100");
        (quiet, busy) = (quiet + low, busy + high);
    }
    assert!(busy > quiet, "instances follow bursts");
    assert!(seen.peak() >= 8, "8 erlangs: {}", seen.peak());
}

#[test]
fn scale_resource() {
    let _alone = alone();
    let node = Node::start();
    if cgroup_processes(node.pid()).is_empty() && mote_tests::cgroup_folders(node.pid()).is_empty()
    {
        return skip("scale-resource", "no control groups here");
    }
    let length = seconds(3.5, 90.0);
    let cpu = manifest("concurrency = 1\ncpu = 0.2", "max = 4\npolicy = \"cpu\"\ntarget = 50");
    node.deploy_ok("cpu", &[("app.py", &burns_python(8.0)), ("mote.toml", &cpu)]);
    let held = "HELD = bytearray(40 << 20)\nHELD[::4096] = b'x' * len(HELD[::4096])\n";
    let code = waits_python(20).replacen("ME =", &format!("{held}ME ="), 1);
    let memory = |target: u32| {
        let scale = format!("max = 4\npolicy = \"memory\"\ntarget = {target}");
        manifest("concurrency = 1\nmemory = \"80MiB\"", &scale)
    };
    node.deploy_ok("memory", &[("app.py", &code), ("mote.toml", &memory(50))]);
    node.deploy_ok("enough", &[("app.py", &code), ("mote.toml", &memory(95))]);
    for (name, peak) in [("cpu", 4), ("memory", 4), ("enough", 1)] {
        let load = closed(node.http, &format!("/{name}"), &[(length, 8)], 0.0);
        let seen = Seen::new(&node, name, load);
        seen.print(&format!("scale-resource, {name}"));
        println!("  time to {peak}: {:?} s", seen.time_to(peak));
        seen.all_answered(name);
        assert_eq!(seen.peak(), peak, "{name}");
    }
}

#[test]
fn keepalive_balance() {
    let _alone = alone();
    let node = Node::start();
    let four = manifest("concurrency = 1", "max = 4");
    node.deploy_ok("f", &[("app.py", &waits_python(80)), ("mote.toml", &four)]);
    let length = seconds(3.0, 60.0);
    let load = closed(node.http, "/f", &[(length, 20)], 0.0);
    let seen = Seen::new(&node, "f", load);
    seen.print("keepalive-balance");
    seen.all_answered("keepalive-balance");
    let end = length.as_secs_f64();
    let shares = seen.shares(end / 2.0);
    let after = seen.load.rate(length / 2, length);
    println!("  {after:.0} per second after scaling, 12.5 by one instance; shares {shares:?}");
    assert_eq!(shares.len(), 4, "kept connections reach every instance");
    assert!(after > 2.0 * 12.5, "throughput rises: {after}");
    let even = shares.values().sum::<usize>() / 4;
    assert!(shares.values().all(|share| (even / 2..=even * 2).contains(share)), "{shares:?}");
}

#[test]
fn low_concurrency_high_rate() {
    let _alone = alone();
    let node = Node::start();
    // A quarter of a core serves about 100 of these calls per second when all nine callers call at
    // once.
    let limits = "concurrency = 100\ncpu = 0.25";
    let code = burns_node(2.5);
    let target = manifest(limits, "max = 4\npolicy = \"concurrency\"\ntarget = 10");
    node.deploy_ok("threshold", &[("app.mjs", &code), ("mote.toml", &target)]);
    node.deploy_ok("auto", &[("app.mjs", &code), ("mote.toml", &manifest(limits, "max = 4"))]);
    let length = seconds(4.0, 120.0);
    let mut rates = Vec::new();
    for (name, alone) in [("threshold", true), ("auto", false)] {
        let load = closed(node.http, &format!("/{name}"), &[(length, 9)], 200.0 / 9.0);
        let seen = Seen::new(&node, name, load);
        seen.print(&format!("low-concurrency-high-rate, {name}"));
        seen.all_answered(name);
        rates.push(seen.load.rate(length / 2, length));
        if has_one_processor() {
            return skip("numbers of instances", "one processor is too slow for these rates");
        }
        assert_eq!(seen.peak() == 1, alone, "{name}: {}", seen.peak());
    }
    println!("  answered per second of 200: threshold {:.0}, auto {:.0}", rates[0], rates[1]);
    assert!(rates[1] > rates[0], "{rates:?}");
}

#[test]
fn dropped_demand() {
    let _alone = alone();
    let node = Node::start();
    let ramp = seconds(1.5, 30.0).as_secs_f64();
    let end = seconds(3.5, 90.0).as_secs_f64();
    // The rate rises from 0 to 100 per second and then stays at 100. Returns the time of the n-th
    // call.
    let time = |n: f64| {
        let in_ramp = 50.0 * ramp;
        if n < in_ramp { (n * ramp / 50.0).sqrt() } else { ramp + (n - in_ramp) / 100.0 }
    };
    let calls = 0..(50.0 * ramp + 100.0 * (end - ramp)) as u32;
    let times: Vec<_> = calls.map(|n| Duration::from_secs_f64(time(f64::from(n)))).collect();
    for (name, policy) in [("rps", "policy = \"rps\"\ntarget = 20"), ("auto", "")] {
        let scale = manifest("concurrency = 1", &format!("max = 10\nqueue = 4\n{policy}"));
        node.deploy_ok(name, &[("app.py", &waits_python(80)), ("mote.toml", &scale)]);
        let load = open(node.http, &format!("/{name}"), &times, 48);
        let seen = Seen::new(&node, name, load);
        seen.print(&format!("dropped-demand, {name}"));
        let answered = seen.load.count(200);
        let refused = seen.load.count(429);
        assert_eq!(answered + refused, times.len(), "refused cleanly or answered");
        // One instance answers 12 calls per second. At this rate, the rule never asks for a second
        // instance.
        assert!(seen.peak() >= 5, "{name}: {}", seen.peak());
        let late = Duration::from_secs_f64(end - 1.0);
        let rate = seen.load.rate(late, Duration::from_secs_f64(end));
        println!("  {rate:.0} of 100 answered in the last second");
    }
}

#[test]
fn native_scaling() {
    let _alone = alone();
    let node = Node::start();
    let twenty = manifest("concurrency = 1", "max = 20");
    node.deploy_ok("f", &[("app.py", &burns_python(1.0)), ("mote.toml", &twenty)]);
    let load = closed(node.http, "/f", &[(seconds(5.0, 800.0), 6)], 1.0);
    let seen = Seen::new(&node, "f", load);
    seen.print("native-scaling");
    seen.all_answered("native-scaling");
    assert!(seen.peak() <= 2, "6 per second need one instance: {}", seen.peak());
}

/// The four load strategies. `directions` contains pairs of times, as shares of the duration. At
/// the second time of each pair there must be more instances than at the first.
fn hpa(name: &str, callers: &[u32], short_s: f64, directions: &[(f64, f64)]) {
    let _alone = alone();
    let node = Node::start();
    // The study's pods were fully used at four calls per second; an instance here is at 20. `auto`
    // keeps an instance until its memory has cost as much as a start. That takes seconds, which is
    // longer than the short form lasts, so the short form shortens this time in the same way as the
    // steps.
    let idle = if is_long() { "" } else { "\nidle = \"200ms\"" };
    let ten = manifest("concurrency = 1", &format!("max = 10\nmin = 1{idle}"));
    node.deploy_ok("f", &[("app.py", &waits_python(50)), ("mote.toml", &ten)]);
    let step = seconds(short_s, 300.0);
    let steps: Vec<_> = callers.iter().map(|callers| (step, *callers)).collect();
    let load = closed(node.http, "/f", &steps, 3.0);
    let seen = Seen::new(&node, "f", load);
    seen.print(name);
    seen.all_answered(name);
    if has_one_processor() {
        return skip("numbers of instances", "one processor is too slow for these rates");
    }
    let end = step.as_secs_f64() * callers.len() as f64;
    // Uses the interval of a tenth of the duration around each time.
    let around = |share: f64| {
        let from = (share - 0.05).clamp(0.0, 0.9) * end;
        seen.mean(from, from + 0.1 * end)
    };
    for (fewer, more) in directions {
        let low = around(*fewer);
        let high = around(*more);
        println!("  {low:.1} instances at {:.0} %, {high:.1} at {:.0} %", fewer * 1e2, more * 1e2);
        assert!(low < high, "{name}: {low} at {fewer}, {high} at {more}");
    }
}

#[test]
fn hpa_ramp2() {
    let callers: Vec<u32> = (2..=48).step_by(2).collect();
    hpa("hpa-ramp2", &callers, 0.2, &[(0.1, 0.5), (0.5, 0.95)]);
}

#[test]
fn hpa_down2() {
    let callers: Vec<u32> = (1..=20).rev().map(|half| 2 * half).collect();
    hpa("hpa-down2", &callers, 0.25, &[(0.95, 0.5), (0.95, 0.2)]);
}

#[test]
fn hpa_varied() {
    // Compares the steps with 1 caller with a step between them, which has 40 callers.
    let callers = [8, 1, 20, 4, 40, 24, 1, 4, 16, 1, 36, 32];
    hpa("hpa-varied", &callers, 0.45, &[(0.15, 0.39), (0.62, 0.39)]);
}

#[test]
fn hpa_ramp4() {
    let callers: Vec<u32> = (4..=48).step_by(4).collect();
    hpa("hpa-ramp4", &callers, 0.4, &[(0.05, 0.5), (0.5, 0.95)]);
}
