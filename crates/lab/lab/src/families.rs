//! The five families of demand on which policies are compared.
//!
//! Each family is the same for every policy: the seed determines arrivals, run times and start
//! times.

use mote_spec::policy::{HpaSettings, KnativeSettings, OpenFaasSettings, Policy};

use crate::arrivals::Arrivals;
use crate::distribution::{Distribution, log_normal, stream, uniform};
use crate::scenario::{FunctionModel, NodeModel, Scenario};

pub const FAMILIES: [&str; 5] = ["steady", "bursty", "diurnal", "ramp", "heavy-tail"];

/// A one-line description of a family; `None` for an unknown name.
pub fn about(name: &str) -> Option<&'static str> {
    Some(match name {
        "steady" => "20 independent calls per second, starting without an instance",
        "bursty" => "2 calls per second for a minute, then 40 for half a minute, at random times",
        "diurnal" => {
            "two days of an hour each, 15 calls per second on average, almost none at night"
        }
        "ramp" => "up to 60 calls per second in ten minutes, down in five, then silence",
        "heavy-tail" => "1,000 functions, most called less than once an hour, a few all the time",
        _ => return None,
    })
}

/// The policies to compare: `auto`, then the presets with their documented defaults.
pub fn policies() -> [Policy; 4] {
    [
        Policy::Auto,
        Policy::Knative(KnativeSettings::default()),
        Policy::Hpa(HpaSettings::default()),
        Policy::OpenFaas(OpenFaasSettings::default()),
    ]
}

/// The family with this name, with starts of about `start_ms`. `None` for an unknown name.
pub fn family(name: &str, policy: Policy, seed: u64, start_ms: f64) -> Option<Scenario> {
    let start = Distribution::LogNormal { mean_ms: start_ms, variation: 0.2 };
    let one = |arrivals| {
        let time = Distribution::LogNormal { mean_ms: 200.0, variation: 0.5 };
        vec![FunctionModel::new("f", arrivals, time, start)]
    };
    let (duration_s, functions) = match name {
        // A load for four instances that begins at once.
        "steady" => (1_200.0, one(Arrivals::Poisson { rate: 20.0 })),
        // A minute at two calls per second alternates with half a minute at forty.
        "bursty" => (3_600.0, one(Arrivals::Modulated { quiet: (2.0, 60.0), busy: (40.0, 30.0) })),
        // Two short days with almost no calls at night.
        "diurnal" => {
            let day = Arrivals::Diurnal { mean_rate: 15.0, swing: 0.98, period_s: 3_600.0 };
            (7_200.0, one(day))
        }
        // The rate rises for ten minutes, falls for five, and is then 0.
        "ramp" => {
            let points = vec![(0.0, 0.0), (600.0, 60.0), (900.0, 0.0)];
            (1_200.0, one(Arrivals::Profile { points }))
        }
        "heavy-tail" => (7_200.0, heavy_tail(1_000, seed, start)),
        _ => return None,
    };
    Some(Scenario {
        name: name.to_owned(),
        seed,
        duration_s,
        sample_s: 5.0,
        node: NodeModel::default(),
        policy,
        balance: Default::default(),
        functions,
    })
}

/// Many functions, only a few of which are called often. The shapes are from Shahrad et al.,
/// "Serverless in the Wild", USENIX ATC 2020 (Azure Functions). In that study, 45 % of the
/// applications are called at most once an hour and 81 % at most once a minute. A lognormal
/// distribution of calls per hour with logarithmic mean 0.51 and deviation 4.08 matches these
/// numbers. Mean run times in seconds are lognormally distributed with logarithmic mean -0.38 and
/// deviation 2.36. A timer calls about one function in six.
pub fn heavy_tail(count: usize, seed: u64, start: Distribution) -> Vec<FunctionModel> {
    /// The maximum rate, so that one function does not dominate the simulation.
    const RATE_MAX: f64 = 20.0;
    /// The maximum load, which the function's 20 instances can serve.
    const ERLANGS_MAX: f64 = 8.0;
    const PERIODS_S: [f64; 6] = [60.0, 300.0, 600.0, 900.0, 1_800.0, 3_600.0];
    let mut random = stream(seed, 0x7a11);
    (0..count)
        .map(|at| {
            let rate = (log_normal(&mut random, 0.51, 4.08) / 3_600.0).min(RATE_MAX);
            let service_s = log_normal(&mut random, -0.38, 2.36).clamp(0.005, 30.0);
            let timer = uniform(&mut random) < 1.0 / 6.0;
            let period = uniform(&mut random);
            let first = uniform(&mut random);
            let arrivals = if timer {
                let period_s = PERIODS_S[(period * PERIODS_S.len() as f64) as usize];
                Arrivals::Regular { period_s, first_s: first * period_s }
            } else {
                Arrivals::Poisson { rate }
            };
            let service_s = service_s.min(ERLANGS_MAX / rate.max(1e-9));
            let time = Distribution::LogNormal { mean_ms: service_s * 1e3, variation: 0.5 };
            FunctionModel::new(&format!("f{at}"), arrivals, time, start)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_says_what_it_is() {
        for name in FAMILIES {
            assert!(about(name).is_some(), "{name}");
        }
        assert_eq!(about("unknown"), None);
    }
}
