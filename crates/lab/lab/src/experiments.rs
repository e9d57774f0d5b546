//! The scaling experiments of published studies, under a virtual clock.
//!
//! A is Li et al., "Analyzing Open-Source Serverless Platforms: Characteristics and Performance",
//! 2021, with its slides from 2019. B is Kjorveziroski and Filiposka, "Kubernetes Distributions for
//! the Edge", J Supercomput 2022, with the data in korvoj/k8s-distributions-iot-edge. If a paper
//! does not state a value, the value is chosen so that the simulation gives the published numbers
//! of the paper's platform, and a comment here says so.

use mote_spec::policy::{HpaSettings, KnativeMetric, KnativeSettings, OpenFaasSettings, Policy};

use crate::arrivals::Arrivals;
use crate::distribution::Distribution;
use crate::scenario::{FunctionModel, NodeModel, Scenario};

pub const EXPERIMENTS: [&str; 11] = [
    "scale-workload-steady",
    "scale-workload-bursty",
    "scale-resource",
    "keepalive-balance",
    "low-concurrency-high-rate",
    "dropped-demand",
    "native-scaling",
    "hpa-ramp2",
    "hpa-down2",
    "hpa-varied",
    "hpa-ramp4",
];

/// A one-line description of an experiment; `None` for an unknown name.
pub fn about(name: &str) -> Option<&'static str> {
    Some(match name {
        "scale-workload-steady" => "100 callers at one call per second each, short work",
        "scale-workload-bursty" => "10 s at 10 calls per second, 10 s at 100, six times",
        "scale-resource" => "100 callers that never pause, with CPU-bound work",
        "keepalive-balance" => "100 callers on kept connections: do new instances get work?",
        "low-concurrency-high-rate" => {
            "9 callers, 400 calls per second, a target of 10 that is never reached"
        }
        "dropped-demand" => "a ramp to 100 calls per second into a queue of 4",
        "native-scaling" => "6 callers at one call per second each, very short work",
        "hpa-ramp2" => "2 more callers every five minutes, up to 48",
        "hpa-down2" => "2 callers fewer every five minutes, from 40",
        "hpa-varied" => "1 to 40 callers, another number every five minutes",
        "hpa-ramp4" => "4 more callers every five minutes, up to 48",
        _ => return None,
    })
}

/// The time until a pod is ready. The containers of the studies took 5 to 7 s on their clusters
/// (B). With 4 s, the platforms of A reach their published 12 s and 26 s.
const POD_START: Distribution = Distribution::LogNormal { mean_ms: 4_000.0, variation: 0.1 };
/// The length of a step in B.
const STEP_S: f64 = 300.0;
/// The CPU time of B's float-operation with n = 100000. It follows from ten pods at 0.35 core,
/// which were fully used at 40 calls per second.
const FLOAT_MS: f64 = 84.0;

/// Knative as configured in A: a target of 10, a tick of 2 s, a window of 10 s, and a rate of 100.
pub fn knative_of_study(metric: KnativeMetric, utilization_percent: u32) -> Policy {
    Policy::Knative(KnativeSettings {
        metric,
        target: 10,
        utilization_percent,
        stable_window_ms: 10_000,
        up_rate_max: 100,
        tick_ms: 2_000,
        ..KnativeSettings::default()
    })
}

/// OpenFaaS as configured in A: a factor of 10 %, a window of 2 s, and a threshold of 10.
pub fn openfaas_of_study() -> Policy {
    Policy::OpenFaas(OpenFaasSettings {
        threshold_rps: 10,
        window_ms: 2_000,
        for_ms: 2_000,
        evaluate_ms: 2_000,
        repeat_ms: 2_000,
        factor_percent: 10,
    })
}

/// Kubernetes' rule as configured in B: a target of 100 % of a request of 0.35 core.
pub fn hpa_of_study() -> Policy {
    Policy::Hpa(HpaSettings { target_percent: 100, ..HpaSettings::default() })
}

/// The experiment with this name, under a policy. `None` for an unknown name.
pub fn experiment(name: &str, policy: Policy) -> Option<Scenario> {
    let steps = |clients: &[u32]| clients.iter().map(|count| (STEP_S, *count)).collect();
    let every = |from: u32, to: u32, by: u32| (from..=to).step_by(by as usize).collect::<Vec<_>>();
    Some(match name {
        // A, IV-C1: 100 connections make 100 requests per second in total, with short work.
        "scale-workload-steady" => {
            study(name, policy, 60.0, fetch(clients(vec![(60.0, 100)], 1.0), 8.0))
        }
        // A, backup: six times 10 s at 10 and 10 s at 100 requests per second. The shape is our
        // choice. With 80 ms of work, the load needs eight instances.
        "scale-workload-bursty" => {
            let steps = [(10.0, 10), (10.0, 100)].repeat(6);
            study(name, policy, 120.0, fetch(clients(steps, 1.0), 80.0))
        }
        // A, IV-C2: 100 connections never pause, and their work uses only CPU.
        "scale-resource" => {
            let mut function = fetch(clients(vec![(90.0, 100)], 0.0), 80.0);
            function.work.cpu_share = 1.0;
            study(name, policy, 90.0, function)
        }
        // A (slides): persistent connections must reach new instances.
        "keepalive-balance" => {
            study(name, policy, 60.0, fetch(clients(vec![(60.0, 100)], 0.0), 80.0))
        }
        // A (slides): 9 callers offer 400 requests per second. One instance serves about 220,
        // because it has one core and runs all nine at once.
        "low-concurrency-high-rate" => {
            let mut function = fetch(clients(vec![(120.0, 9)], 400.0 / 9.0), 4.5);
            function.work.cpu_share = 1.0;
            function.concurrency = 100;
            study(name, policy, 120.0, function)
        }
        // A (slides): the load rises to 100 requests per second, and a small queue refuses most of
        // them.
        "dropped-demand" => {
            let points = vec![(0.0, 0.0), (30.0, 100.0), (90.0, 100.0)];
            let mut function = fetch(Arrivals::Profile { points }, 80.0);
            function.queue = 4;
            study(name, policy, 90.0, function)
        }
        // B, 4.4.1: each of 6 callers makes one call of float-operation with n = 1000 per second.
        // There are at most 20 instances.
        "native-scaling" => {
            let mut function = fetch(clients(vec![(800.0, 6)], 1.0), 1.0);
            function.max = 20;
            study(name, policy, 800.0, function)
        }
        "hpa-ramp2" => float(name, policy, steps(&every(2, 48, 2))),
        "hpa-down2" => {
            let down: Vec<u32> = every(2, 40, 2).into_iter().rev().collect();
            float(name, policy, steps(&down))
        }
        "hpa-varied" => float(name, policy, steps(&[8, 1, 20, 4, 40, 24, 1, 4, 16, 1, 36, 32])),
        "hpa-ramp4" => float(name, policy, steps(&every(4, 48, 4))),
        _ => return None,
    })
}

fn clients(steps: Vec<(f64, u32)>, rate: f64) -> Arrivals {
    Arrivals::Clients { steps, rate }
}

/// The function of A. It waits for a page, runs one call at a time, and has 1 to 10 instances.
fn fetch(arrivals: Arrivals, ms: f64) -> FunctionModel {
    let mut function =
        FunctionModel::new("http-fetch", arrivals, Distribution::Constant { ms }, POD_START);
    function.work.cpu_share = 0.2;
    function.min = 1;
    function.max = 10;
    function.queue = 50_000;
    function
}

/// B, 4.4.2: float-operation with n = 100000, in four threads that share one interpreter lock.
fn float(name: &str, policy: Policy, steps: Vec<(f64, u32)>) -> Scenario {
    let duration_s = steps.iter().map(|(length_s, _)| length_s).sum();
    let time = Distribution::LogNormal { mean_ms: FLOAT_MS, variation: 0.05 };
    let mut function = FunctionModel::new("float", clients(steps, 1.0), time, POD_START);
    function.concurrency = 4;
    function.cpu_millis = 350;
    function.min = 1;
    function.max = 10;
    study(name, policy, duration_s, function)
}

fn study(name: &str, policy: Policy, duration_s: f64, function: FunctionModel) -> Scenario {
    Scenario {
        name: name.to_owned(),
        seed: 1,
        duration_s,
        sample_s: 1.0,
        node: NodeModel::default(),
        policy,
        balance: Default::default(),
        functions: vec![function],
    }
}
