//! Tests `mote simulate` as users see it: tables, JSON, CSV and pictures. `cli_errors.rs` tests the
//! input that the verb refuses.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn simulate(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mote"));
    command.env_clear().current_dir(folder).arg("simulate").args(args);
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {error}");
    output
}

fn text(folder: &Path, args: &[&str]) -> String {
    String::from_utf8(simulate(folder, args).stdout).unwrap()
}

fn json(folder: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&text(folder, args)).unwrap()
}

#[test]
fn a_table_per_scenario_with_marks_and_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let text = text(folder.path(), &["steady", "bursty", "--for", "30s"]);
    let blocks: Vec<&str> = text.trim_end().split("\n\n").collect();
    assert_eq!(blocks.len(), 2, "{text}");
    for (block, name) in blocks.iter().zip(["steady", "bursty"]) {
        let lines: Vec<&str> = block.lines().collect();
        assert!(lines[0].starts_with(&format!("{name}: 1 function, 30.0 s, starts of 50 ms")));
        assert!(lines[1].starts_with("POLICY ") && lines[1].ends_with("PEAK MiB"), "{block}");
        for (line, policy) in lines[2..].iter().zip(["auto", "knative", "hpa", "openfaas"]) {
            assert!(line.starts_with(policy), "{block}");
            assert_eq!(line.split_whitespace().count(), 15, "{line}");
        }
        assert!(block.contains('*'), "{block}");
        let last = lines.last().unwrap();
        assert!(last.starts_with("auto ") && last.ends_with('.'), "{last}");
    }
}

#[test]
fn json_has_every_measure_with_its_unit() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["ramp", "--for", "1m", "--policy", "auto,concurrency:1", "--json"];
    let whole = json(folder.path(), &args);
    let scenario = &whole["scenarios"][0];
    assert_eq!(scenario["scenario"], "ramp");
    assert_eq!(scenario["duration_s"], 60.0);
    assert_eq!(scenario["start_ms"], 50.0);
    assert_eq!(scenario["policies"][1]["policy"], "concurrency:1");
    assert!(scenario["remarks"].is_array());
    for policy in scenario["policies"].as_array().unwrap() {
        let count = |key: &str| policy[key].as_u64().unwrap();
        assert_eq!(count("offered"), count("answered") + count("lost") + count("refused"));
        assert!(count("starts") > 0 && count("peak_memory_bytes") > 0);
        for key in ["cold_share", "instance_seconds", "idle_seconds", "cost_s"] {
            assert!(policy[key].as_f64().is_some(), "{key}");
        }
        for key in ["mean_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms"] {
            assert!(policy["wait"][key].as_f64().is_some(), "{key}");
        }
        assert!(policy["best"].is_array());
    }
    assert_eq!(whole, json(folder.path(), &args), "equal seeds give equal results");
    let other = json(folder.path(), &[&args[..], &["--seed", "12"]].concat());
    assert_ne!(whole, other);
}

#[test]
fn limits_are_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    let peak = |args: &[&str]| {
        let args = [&["bursty", "--for", "5m", "--policy", "auto", "--json"], args].concat();
        let policy = &json(folder.path(), &args)["scenarios"][0]["policies"][0];
        (policy["peak_instances"].as_u64().unwrap(), policy["wait"]["max_ms"].as_f64().unwrap())
    };
    let (free, max_ms) = peak(&[]);
    assert!(free > 4, "{free}");
    assert_eq!(peak(&["--max", "2"]).0, 2);
    assert_eq!(peak(&["--memory", "192MiB"]).0, 3, "64 MiB each");
    assert!(peak(&["--start-ms", "3000"]).1 > max_ms);
}

#[test]
fn a_trace_is_simulated_as_it_was_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let lines: String = (0..50).map(|at| format!("{at},f{},20\n", at % 2)).collect();
    fs::write(folder.path().join("a <b> & \"c\".csv"), lines).unwrap();
    let args = ["a <b> & \"c\".csv", "--policy", "auto", "--json", "--plot", "x.svg"];
    let whole = json(folder.path(), &args);
    let scenario = &whole["scenarios"][0];
    assert_eq!(scenario["functions"], 2);
    assert_eq!(scenario["duration_s"], 50.0);
    assert_eq!(scenario["policies"][0]["offered"], 50);
    assert_eq!(scenario["policies"][0]["answered"], 50);
    let svg = fs::read_to_string(folder.path().join("x.svg")).unwrap();
    assert!(well_formed(&svg).contains(&"a <b> & \"c\".csv".to_owned()), "the name is escaped");
}

#[test]
fn the_course_is_written_as_csv() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("x.csv"), "longer than what comes ".repeat(10_000)).unwrap();
    let args = ["steady", "scale-workload-steady", "--for", "10s", "--policy", "auto,hpa"];
    let output = simulate(folder.path(), &[&args[..], &["--csv", "x.csv"]].concat());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "wrote x.csv\n");
    let csv = fs::read_to_string(folder.path().join("x.csv")).unwrap();
    let mut lines = csv.lines();
    let heading =
        "scenario,policy,time_s,offered,answered,ready,starting,in_flight,queued,memory_bytes";
    assert_eq!(lines.next(), Some(heading));
    let mut runs = BTreeSet::new();
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields.len(), 10, "{line}");
        assert!(fields[2..].iter().all(|field| field.parse::<f64>().is_ok()), "{line}");
        runs.insert((fields[0].to_owned(), fields[1].to_owned()));
    }
    assert_eq!(runs.len(), 4, "two scenarios, two policies: {runs:?}");
}

#[test]
fn the_picture_is_one_well_formed_file() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["bursty", "ramp", "--for", "2m", "--policy", "auto,knative,rps:5", "-q"];
    let output = simulate(folder.path(), &[&args[..], &["--plot", "x.svg"]].concat());
    assert!(output.stderr.is_empty(), "-q");
    let svg = fs::read_to_string(folder.path().join("x.svg")).unwrap();
    let texts = well_formed(&svg);
    let count = |wanted: &str| texts.iter().filter(|text| *text == wanted).count();
    for policy in ["auto", "knative", "rps:5"] {
        assert_eq!(count(policy), 2, "{policy} once per scenario");
    }
    for (axis, panels) in
        [("time (s)", 6), ("calls per second", 6), ("instances", 6), ("calls waiting", 6)]
    {
        assert_eq!(count(axis), panels, "{axis}");
    }
    for legend in ["demand", "answered", "instances ready", "and starting", "waiting"] {
        assert_eq!(count(legend), 1, "{legend}");
    }
    // The picture must load nothing and run no scripts.
    for foreign in ["href", "<script", "<image", "url("] {
        assert!(!svg.contains(foreign), "{foreign}");
    }
}

#[test]
fn lists_are_readable_by_programs() {
    let folder = tempfile::tempdir().unwrap();
    let list = json(folder.path(), &["--list", "--json"]);
    let of = |kind: &str| list.as_array().unwrap().iter().filter(|it| it["kind"] == kind).count();
    assert_eq!((of("family"), of("experiment"), of("policy")), (5, 11, 8));
    assert!(list.as_array().unwrap().iter().all(|it| it["about"].as_str().unwrap().len() > 10));
}

/// Checks that tags are nested, attributes are quoted and characters are escaped. Returns the texts.
fn well_formed(xml: &str) -> Vec<String> {
    let mut open = Vec::new();
    let mut texts = Vec::new();
    let mut rest = xml.trim();
    assert!(rest.starts_with("<svg "), "one root");
    while let Some((before, after)) = rest.split_once('<') {
        let before = before.trim();
        if !before.is_empty() {
            assert!(!open.is_empty(), "text outside: {before}");
            texts.push(unescaped(before));
        }
        let (tag, behind) = after.split_once('>').unwrap();
        rest = behind;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "tags nest");
            continue;
        }
        let empty = tag.ends_with('/');
        let (name, attributes) = tag.trim_end_matches('/').split_once(' ').unwrap();
        let parts: Vec<&str> = attributes.trim().split('"').collect();
        assert!(parts.len() % 2 == 1 && parts.last() == Some(&""), "quotes: {tag}");
        for (at, part) in parts.iter().enumerate().take(parts.len() - 1) {
            let fine = if at % 2 == 0 { part.ends_with('=') } else { unescaped(part) == *part };
            assert!(fine, "{tag}");
        }
        if !empty {
            open.push(name);
        }
    }
    assert!(open.is_empty() && rest.is_empty(), "everything is closed: {open:?}");
    texts
}

fn unescaped(text: &str) -> String {
    let escapes = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    let bare = escapes.iter().fold(text.to_owned(), |text, (escape, _)| text.replace(escape, ""));
    assert!(!bare.contains('&'), "unescaped: {text}");
    escapes.iter().fold(text.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
}
