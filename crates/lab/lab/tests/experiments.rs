//! The presets must reproduce what published studies found for the rules of other platforms. Where
//! such a rule behaves incorrectly, `auto` must behave correctly (R79, R91, R92, R94, R95, R99 to
//! R106, R125, R127).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use mote_lab::experiments::{
    EXPERIMENTS, about, experiment, hpa_of_study, knative_of_study, openfaas_of_study,
};
use mote_lab::{Report, simulate};
use mote_spec::policy::{HpaSettings, KnativeMetric, OpenFaasSettings, Policy};

fn run(name: &str, policy: Policy) -> Report {
    let report = simulate(&experiment(name, policy).unwrap());
    assert_eq!(report.lost, 0, "{name}");
    report
}

fn openfaas() -> Policy {
    Policy::OpenFaas(OpenFaasSettings::default())
}

#[test]
fn every_name_is_an_experiment() {
    for name in EXPERIMENTS {
        assert_eq!(experiment(name, Policy::Auto).unwrap().name, name);
        assert!(about(name).is_some(), "{name}");
    }
    assert_eq!(about("unknown"), None);
    assert_eq!(experiment("unknown", Policy::Auto), None);
}

#[test]
fn scale_workload_steady() {
    let knative = run("scale-workload-steady", knative_of_study(KnativeMetric::Rps, 70));
    let openfaas = run("scale-workload-steady", openfaas_of_study());
    let ours = run("scale-workload-steady", Policy::Rps { target: 10 });
    let auto = run("scale-workload-steady", Policy::Auto);
    let to_ten = |report: &Report| report.time_to(10).unwrap();
    // The paper reports 12 s for Knative, which starts several instances at a time, and 26 s for
    // OpenFaaS, which starts one at a time.
    assert!(to_ten(&knative) <= 12.0, "{}", to_ten(&knative));
    assert!((20.0..=30.0).contains(&to_ten(&openfaas)), "{}", to_ten(&openfaas));
    let most_at_once = |report: &Report| report.series.iter().map(|point| point.starting).max();
    assert!(most_at_once(&knative) >= Some(4), "several at a time");
    assert!(to_ten(&ours) <= to_ten(&knative), "{}", to_ten(&ours));
    // The target asks for ten instances. The load is below one erlang, so `auto` needs only a few,
    // however many calls were queued at the start.
    let most = auto.most_ready(20.0, 60.0);
    assert!(most <= 4, "{most}: {:?} {:?}", auto.start_reasons, auto.series);
    assert!(auto.wait.p50_ms <= 10.0, "{:?}", auto.wait);
}

#[test]
fn scale_workload_bursty() {
    let auto = run("scale-workload-bursty", Policy::Auto);
    let knative = run("scale-workload-bursty", knative_of_study(KnativeMetric::Rps, 70));
    let openfaas = run("scale-workload-bursty", openfaas_of_study());
    for other in [knative, openfaas] {
        assert!(auto.wait.p99_ms < other.wait.p99_ms, "{} {}", auto.wait.p99_ms, other.policy);
        assert!(auto.answered >= other.answered, "{}", other.policy);
    }
    // 8 erlangs need nearly ten instances. `auto` starts several at a time, within the paper's 12 s
    // after the beginning of the first burst.
    assert!(auto.time_to(8).unwrap() <= 22.0, "{:?}", auto.time_to(8));
    // After the first burst, each burst of 10 s has an empty queue by its second half.
    for burst in 1..6 {
        let from_s = f64::from(burst) * 20.0 + 15.0;
        let queued = auto.series.iter().find(|point| point.time_s >= from_s).unwrap().queued;
        assert!(queued <= 10, "burst {burst}: {queued}");
    }
}

#[test]
fn scale_resource() {
    let cpu = run("scale-resource", Policy::Cpu { target_percent: 50 });
    let hpa = HpaSettings { target_percent: 50, ..HpaSettings::default() };
    let hpa = run("scale-resource", Policy::Hpa(hpa));
    let auto = run("scale-resource", Policy::Auto);
    assert!(cpu.time_to(10).unwrap() <= 40.0, "{:?}", cpu.time_to(10));
    assert!(auto.time_to(10).unwrap() <= 40.0, "{:?}", auto.time_to(10));
    // At full use, the rule measures twice the target, so it doubles the instances once per period
    // of 15 s.
    let times: Vec<f64> = [2, 4, 10].iter().map(|ready| hpa.time_to(*ready).unwrap()).collect();
    assert!(times[1] - times[0] >= 10.0 && (55.0..=75.0).contains(&times[2]), "{times:?}");
}

#[test]
fn keepalive_balance() {
    let auto = run("keepalive-balance", Policy::Auto);
    let before = auto.answered_rate(0.0, 3.0);
    let after = auto.answered_rate(30.0, 60.0);
    assert!(after > 5.0 * before, "from {before} to {after} per second with the same callers");
    let most = *auto.served_by.iter().max().unwrap();
    let least = *auto.served_by.iter().min().unwrap();
    assert_eq!(auto.served_by.len(), 10);
    assert!(least * 2 > most, "{:?}", auto.served_by);
}

#[test]
fn low_concurrency_high_rate() {
    // Nine calls at once never reach a target of ten. In the paper, this case answers about 220
    // calls per second.
    let knative =
        run("low-concurrency-high-rate", knative_of_study(KnativeMetric::Concurrency, 100));
    assert_eq!(knative.peak_instances, 1);
    let rate = knative.answered_rate(60.0, 120.0);
    assert!((200.0..240.0).contains(&rate), "{rate}");
    let auto = run("low-concurrency-high-rate", Policy::Auto);
    let rate = auto.answered_rate(60.0, 120.0);
    assert!(rate > 380.0, "{rate}");
    assert!(auto.peak_instances < 10, "and no more than it takes: {}", auto.peak_instances);
}

#[test]
fn dropped_demand() {
    // Refused calls must count: a rule with the same target that counts only answers never asks for
    // a second instance.
    let offered = run("dropped-demand", Policy::Rps { target: 20 });
    let served = run("dropped-demand", {
        let Policy::Knative(mut settings) = knative_of_study(KnativeMetric::Rps, 100) else {
            unreachable!("the study's Knative is Knative")
        };
        settings.target = 20;
        Policy::Knative(settings)
    });
    let auto = run("dropped-demand", Policy::Auto);
    assert_eq!(served.peak_instances, 1);
    assert!(offered.peak_instances >= 5, "{}", offered.peak_instances);
    let rate = auto.answered_rate(60.0, 90.0);
    assert!(rate > 95.0, "auto answers {rate} of 100 per second");
    assert!(auto.refused < offered.refused && offered.refused < served.refused);
}

#[test]
fn native_scaling() {
    let openfaas = run("native-scaling", openfaas());
    // On Kubernetes, the study measured 5, 9, 13, 17 and 20 instances at 32, 72, 112, 152 and
    // 192 s. Here, pods need 4 s to start.
    for (ready, at_s) in [(5, 32.0), (9, 72.0), (13, 112.0), (17, 152.0), (20, 192.0)] {
        let reached = openfaas.time_to(ready).unwrap();
        assert!((reached - at_s).abs() <= 8.0, "{ready} instances at {reached} s, not {at_s}");
    }
    assert_eq!(openfaas.most_ready(200.0, 800.0), 20, "constant load, and all there is");
    let auto = run("native-scaling", Policy::Auto);
    assert!(auto.peak_instances <= 2, "{}", auto.peak_instances);
    assert!(auto.wait.p99_ms < 5.0, "{}", auto.wait.p99_ms);
}

#[test]
fn hpa_ramp4_and_ramp2() {
    // The calls per second, and the fewest and most replicas on the study's three clusters at the
    // end of each step.
    let measured = [
        (4, 1, 2),
        (8, 2, 3),
        (12, 3, 3),
        (16, 4, 5),
        (20, 5, 5),
        (24, 6, 6),
        (28, 7, 8),
        (32, 8, 8),
        (36, 8, 10),
        (40, 10, 10),
        (44, 10, 10),
    ];
    let ramp4 = run("hpa-ramp4", hpa_of_study());
    for (step, (load, least, most)) in measured.into_iter().enumerate() {
        let end_s = (step + 1) as f64 * 300.0;
        let ready = ramp4.most_ready(end_s - 60.0, end_s);
        assert!((least - 1..=most + 1).contains(&ready), "{ready} replicas at {load} per second");
    }
    let ramp2 = run("hpa-ramp2", hpa_of_study());
    assert_eq!(ramp2.most_ready(6_900.0, 7_200.0), 10);
    for (name, hpa) in [("hpa-ramp4", ramp4), ("hpa-ramp2", ramp2)] {
        let auto = run(name, Policy::Auto);
        assert!(auto.response.mean_ms < hpa.response.mean_ms, "{name}: {:?}", auto.response);
    }
}

#[test]
fn hpa_down2_and_varied() {
    let down = run("hpa-down2", hpa_of_study());
    assert_eq!(down.most_ready(0.0, 600.0), 10);
    assert!(down.most_ready(5_700.0, 6_000.0) <= 2, "it follows down, five minutes late");
    let varied = run("hpa-varied", hpa_of_study());
    let auto = run("hpa-varied", Policy::Auto);
    // When the callers rise from 1 to 20, the rule needs more than a period. `auto` reacts to the
    // backlog at once.
    let slow = varied.series.iter().filter(|point| point.queued > 0).count();
    let quick = auto.series.iter().filter(|point| point.queued > 0).count();
    assert!(quick < slow, "seconds with a queue: {quick} against {slow}");
    assert!(auto.response.p99_ms < varied.response.p99_ms);
}
