//! A function that was scaled to zero loses no call, not even one that arrives while its last
//! instance is being stopped (T-ZERO).
//!
//! A caller calls again at about the time at which the idle time ends, a little earlier or later
//! each time. It learns from each answer whether an instance had to start. Between two such calls
//! there is a burst. Afterwards the test counts the stops that coincided with an arrival. For this
//! purpose, it compares the times of stops in the function's log with the times at which calls were
//! sent. Both use this machine's clock.
//!
//! `MOTE_LONG=1` makes a million calls and at least 20,000 such stops, in 35 minutes at most.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mote_tests::log::{LogLine, unix_us};
use mote_tests::schedule::pace_until;
use mote_tests::{Answer, Connection, Node, has_one_processor, is_long, skip, wait_for};

/// The idle time is longer than the interval at which the node checks a working function, so that
/// the time of a stop is exact.
const IDLE: Duration = Duration::from_millis(22);
/// A stop and an arrival coincide if they are at most this far apart.
const OVERLAP_US: u64 = 1_000;
/// The largest distance of a call from its target time.
const JITTER_US: u64 = 600;
const CALLERS: u32 = 4;
/// The most failures that are kept as text.
const SHOWN_MAX: usize = 10;

struct Kind {
    name: &'static str,
    /// The smallest number of calls.
    calls: u32,
    /// The smallest number of stops that coincide with an arrival.
    overlaps: u32,
    /// Number of calls in a burst between two stops.
    burst: u32,
    length_max: Duration,
    /// Number of functions of this kind. They are called in parallel, because most of the time is
    /// spent waiting for the idle time. The counts of calls and stops are totals over all of them.
    functions: u32,
}

/// A program of 156 bytes that writes `ok`. It is the fastest possible start.
fn tiny_program() -> Option<Vec<u8>> {
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    // write(1, "ok\n", 3); exit(0)
    let code = b"\xb8\x01\0\0\0\xbf\x01\0\0\0\x48\x8d\x35\x10\0\0\0\xba\x03\0\0\0\x0f\x05\xb8\x3c\0\0\0\x31\xff\x0f\x05ok\n";
    const BASE: u64 = 0x40_0000;
    const HEADS: u64 = 64 + 56;
    let length = HEADS + code.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    for word in [BASE + HEADS, 64, 0] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file.extend_from_slice(b"\0\0\0\0\x40\0\x38\0\x01\0\0\0\0\0\0\0\x01\0\0\0\x05\0\0\0");
    for word in [0, BASE, BASE, length, length, 0x1000] {
        file.extend_from_slice(&u64::to_le_bytes(word));
    }
    file.extend_from_slice(code);
    Some(file)
}

fn deploy(node: &Node, kind: &str, name: &str) {
    let scale = format!("[scale]\nidle = \"{}ms\"\n", IDLE.as_millis());
    let manifest = format!("version = 1\n{scale}");
    match kind {
        "python" => {
            let code = "def handle(event, ctx):\n    return 'ok'\n";
            node.deploy_ok(name, &[("app.py", code), ("mote.toml", &manifest)]);
        }
        "node" => {
            let code = "export default () => 'ok'\n";
            node.deploy_ok(name, &[("app.mjs", code), ("mote.toml", &manifest)]);
        }
        _ => {
            let head = |command| format!("version = 1\nruntime = \"exec\"\ncommand = {command}\n");
            let Some(program) = tiny_program() else {
                let manifest = head("[\"sh\", \"-c\", \"echo ok\"]") + &scale;
                return node.deploy_ok(name, &[("x", ""), ("mote.toml", &manifest)]);
            };
            use std::os::unix::fs::PermissionsExt;
            let folder = node.dir.path().join("src").join(name);
            std::fs::create_dir_all(&folder).expect("folder");
            std::fs::write(folder.join("ok"), program).expect("file");
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(folder.join("ok"), mode).expect("mode");
            let manifest = head("[\"./ok\"]") + &scale;
            std::fs::write(folder.join("mote.toml"), manifest).expect("file");
            node.ok(&["deploy", folder.to_str().expect("UTF-8"), "--name", name]);
        }
    }
}

/// The observations of one caller.
#[derive(Default)]
struct Seen {
    calls: u32,
    failed: u32,
    failures: Vec<String>,
}

impl Seen {
    /// Makes one call. Returns whether an instance had to start for it.
    fn call(&mut self, connection: &mut Connection, http: SocketAddr, path: &str) -> bool {
        self.calls += 1;
        let failure = match connection.try_call("POST", path, &[], b"x") {
            Ok(answer) if answer.status == 200 && answer.text().trim() == "ok" => {
                return is_cold(&answer);
            }
            Ok(answer) => format!("{}: {}", answer.status, answer.text()),
            Err(error) => {
                *connection = Connection::open(http);
                error.to_string()
            }
        };
        self.failed += 1;
        if self.failures.len() < SHOWN_MAX {
            self.failures.push(failure);
        }
        false
    }
}

impl Seen {
    fn add(&mut self, other: Seen) {
        self.calls += other.calls;
        self.failed += other.failed;
        self.failures.extend(other.failures);
    }
}

fn is_cold(answer: &Answer) -> bool {
    let timing = answer.header("server-timing").unwrap_or_default();
    let init = timing.split(", ").find_map(|part| part.strip_prefix("init;dur="));
    init.is_some_and(|init| init != "0")
}

/// Stops, and the arrivals that coincided with them.
#[derive(Default)]
struct Overlaps {
    sends: Vec<u64>,
    undecided: VecDeque<u64>,
    stops: u32,
    met: u32,
    missed_lines: bool,
}

impl Overlaps {
    fn stop(&mut self, line: &LogLine) {
        self.missed_lines |= line.message.contains("because they arrived too fast");
        if line.message.starts_with("stopping (idle)") {
            self.stops += 1;
            self.undecided.push_back(line.unix_us);
        }
    }

    /// Evaluates the stops that are older than any future send.
    fn judge(&mut self) {
        let now = unix_us();
        while let Some(stop) = self.undecided.pop_front() {
            if stop + 2 * OVERLAP_US > now {
                return self.undecided.push_front(stop);
            }
            let after = self.sends.partition_point(|sent| *sent < stop.saturating_sub(OVERLAP_US));
            self.met +=
                u32::from(self.sends.get(after).is_some_and(|sent| *sent <= stop + OVERLAP_US));
        }
    }
}

/// The target time of the next call. It approaches the latest time at which a call still finds the
/// instance.
struct Aim {
    offset_us: i64,
    random: u64,
}

impl Aim {
    /// Returns how long after the last answer the next call is made.
    fn next(&mut self) -> Duration {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let jitter_us = ((self.random >> 33) % (2 * JITTER_US)) as i64 - JITTER_US as i64;
        let us = IDLE.as_micros() as i64 + self.offset_us + jitter_us;
        Duration::from_micros(us.max(0) as u64)
    }

    /// If the instance stopped before the call, the next call is earlier. If the call came in time,
    /// the next call is later, but by less, because only stops count.
    fn learn(&mut self, cold: bool) {
        let moved = self.offset_us + if cold { -25 } else { 75 };
        self.offset_us = moved.clamp(-5_000, 20_000);
    }
}

/// Calls until there were enough calls and stops, or until the time is over.
fn run(node: &Node, kind: &Kind, name: &str) -> (Seen, Overlaps) {
    let path = format!("/{name}");
    let http = node.http;
    let calls_min = kind.calls / kind.functions;
    let overlaps_min = kind.overlaps / kind.functions;
    let follower = node.follow(name);
    wait_for("the follower", || follower.lines.try_recv().ok());
    let begin = Barrier::new(CALLERS as usize);
    let end = Barrier::new(CALLERS as usize);
    let each = AtomicU32::new(0);
    let mut seen = Seen::default();
    let mut overlaps = Overlaps::default();
    let mut aim = Aim { offset_us: 0, random: u64::from(node.pid()) };
    let since = Instant::now();
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..CALLERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = Seen::default();
                    let mut connection = Connection::open(http);
                    loop {
                        begin.wait();
                        let calls = each.load(Ordering::Acquire);
                        for _ in 0..calls {
                            seen.call(&mut connection, http, &path);
                        }
                        end.wait();
                        if calls == 0 {
                            return seen;
                        }
                    }
                })
            })
            .collect();
        let mut connection = Connection::open(http);
        let mut rested = Instant::now();
        let mut calls = 0;
        loop {
            pace_until(rested + aim.next());
            overlaps.sends.push(unix_us());
            aim.learn(seen.call(&mut connection, http, &path));
            follower.lines.try_iter().for_each(|line| overlaps.stop(&line));
            overlaps.judge();
            let enough = calls >= calls_min && overlaps.met >= overlaps_min;
            let over = enough || since.elapsed() > kind.length_max;
            let burst = match () {
                () if over => 0,
                () if overlaps.met >= overlaps_min => 8 * kind.burst,
                () if calls >= calls_min => CALLERS,
                () => kind.burst,
            };
            each.store(burst / CALLERS, Ordering::Release);
            begin.wait();
            for _ in 0..burst / CALLERS {
                seen.call(&mut connection, http, &path);
            }
            end.wait();
            rested = Instant::now();
            calls += 1 + burst;
            if over {
                break;
            }
        }
        for other in others {
            seen.add(other.join().expect("a caller"));
        }
    });
    (seen, overlaps)
}

#[test]
fn no_call_is_lost_to_a_stop() {
    let kind = |name, calls, overlaps, burst, seconds, functions| Kind {
        name,
        functions,
        calls,
        overlaps,
        burst,
        length_max: Duration::from_secs(seconds),
    };
    let kinds = if is_long() {
        [
            kind("exec", 980_000, 19_800, 32, 30 * 60, 2),
            kind("python", 10_000, 100, 32, 150, 1),
            kind("node", 10_000, 100, 32, 150, 1),
        ]
    } else {
        [
            kind("exec", 16_000, 100, 48, 60, 2),
            kind("python", 2_000, 10, 48, 30, 1),
            kind("node", 2_000, 10, 48, 30, 1),
        ]
    };
    let node = Node::start();
    let mut calls = 0;
    let mut met = 0;
    for kind in &kinds {
        let names: Vec<_> = (1..=kind.functions).map(|n| format!("{}-{n}", kind.name)).collect();
        names.iter().for_each(|name| deploy(&node, kind.name, name));
        let since = Instant::now();
        let mut seen = Seen::default();
        let mut overlaps = Overlaps::default();
        std::thread::scope(|scope| {
            let runs: Vec<_> =
                names.iter().map(|name| scope.spawn(|| run(&node, kind, name))).collect();
            for run in runs {
                let (other_seen, other_overlaps) = run.join().expect("a run");
                seen.add(other_seen);
                overlaps.stops += other_overlaps.stops;
                overlaps.met += other_overlaps.met;
                overlaps.missed_lines |= other_overlaps.missed_lines;
            }
        });
        println!(
            "{}: {} calls, {} failed; {} idle stops, {} with an arrival within 1 ms; {:.0} s",
            kind.name,
            seen.calls,
            seen.failed,
            overlaps.stops,
            overlaps.met,
            since.elapsed().as_secs_f64()
        );
        assert_eq!(seen.failed, 0, "{}: {:?}", kind.name, seen.failures);
        assert!(!overlaps.missed_lines, "the log was too fast to follow");
        // A kernel with slow system calls and one processor does not reach the numbers in time.
        let is_small = has_one_processor() || mote_tests::SLOWNESS > 1;
        if is_small && (seen.calls < kind.calls || overlaps.met < kind.overlaps) {
            skip(kind.name, "this machine is too slow for so many calls");
            continue;
        }
        assert!(seen.calls >= kind.calls, "{}: {} calls in time", kind.name, seen.calls);
        assert!(overlaps.met >= kind.overlaps, "{}: {} met", kind.name, overlaps.met);
        calls += seen.calls;
        met += overlaps.met;
    }
    println!("{calls} calls, 0 failed; {met} stops met an arrival");
}
