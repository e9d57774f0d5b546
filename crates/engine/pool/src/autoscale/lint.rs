//! Finds settings that are allowed but cripple a function, so that they are reported before a
//! caller has to wait.
//!
//! Published measurements found that default or badly chosen scaling settings are the largest cause
//! of poor results (Li et al., "Analyzing Open-Source Serverless Platforms", 2021, section V). A
//! setting that cannot work at all is not reported here, but is an error of the spec
//! ([`FunctionSpec::check`]).

use super::estimate::Estimate;
use mote_spec::policy::{KnativeMetric, Policy};
use mote_spec::{FunctionSpec, QUEUE_DEFAULT};

/// Work that runs for at least this long makes other callers wait noticeably.
const LONG_WORK_MS: u64 = 500;
/// The mean of fewer calls says little about the function: the first ones are often slow.
const CALLS_MIN: u32 = 100;
const NS_PER_MS: u64 = 1_000_000;

/// Facts that are known in addition to the spec. No warning depends on a fact that is absent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known {
    /// The number of invocations that one instance runs at once.
    pub concurrency: Option<u32>,
    /// The run time of the function's invocations.
    pub service: Estimate,
    /// The start time of the function's instances.
    pub start: Estimate,
    /// The processor time of their starts.
    pub start_cpu: Estimate,
    /// The memory that this node has for instances, in bytes.
    pub node_memory_bytes: Option<u64>,
    pub node_cores: Option<u32>,
}

/// One setting that will cause problems.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The name of the setting, as in the manifest.
    pub field: &'static str,
    /// The consequence of the setting, and a better value.
    pub text: String,
}

/// The settings of `spec` that cripple the function under `policy`.
pub fn lint(spec: &FunctionSpec, policy: &Policy, known: &Known) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |field, text: String| warnings.push(Warning { field, text });
    let scale = &spec.scale;
    let concurrency = spec.limits.concurrency.or(known.concurrency);
    let service = Some(known.service).filter(|service| service.count() >= CALLS_MIN);
    let service_ms = service.and_then(|service| service.mean_ns()).map(|mean| mean / NS_PER_MS);
    let start_ms = known.start.mean_ns().map(|mean| mean / NS_PER_MS);
    let max = scale.max.or(known.node_cores);

    if max == Some(1) && concurrency == Some(1) {
        let long = service_ms.is_some_and(|service_ms| service_ms >= LONG_WORK_MS);
        if long || spec.limits.timeout_ms > mote_spec::TIMEOUT_MS_DEFAULT {
            let text = "a single instance runs one call at a time, so every call waits for all \
                        earlier calls; raise scale.max or limits.concurrency";
            warn("scale.max", text.into());
        }
    }
    if scale.queue == 0 && scale.min == 0 {
        let text = "without a queue no call can wait for the first instance, so every call to \
                    a function at zero is refused; set scale.queue or scale.min to 1 or more";
        warn("scale.queue", text.into());
    } else if scale.queue == 0 {
        let text =
            "without a queue every call beyond the running ones is refused; raise scale.queue";
        warn("scale.queue", text.into());
    }
    if let Some(start_ms) = start_ms
        && scale.min == 0
        && scale.idle_timeout_ms < start_ms
    {
        let text = format!(
            "{} ms is shorter than a start, which takes {start_ms} ms; use at least {} ms",
            scale.idle_timeout_ms,
            start_ms * 10
        );
        warn("scale.idle", text);
    }
    if let Some(start_ms) = start_ms
        && scale.min == 0
        && spec.limits.timeout_ms < start_ms
    {
        let text = format!(
            "{} ms, but a start takes {start_ms} ms: the first call always fails; raise it or set \
             scale.min to 1",
            spec.limits.timeout_ms
        );
        warn("limits.timeout", text);
    }
    if let (Some(service_ms), Some(concurrency), Some(max)) = (service_ms, concurrency, max) {
        let slots = u64::from(concurrency) * u64::from(max);
        let wait_ms = u64::from(scale.queue) * service_ms / slots.max(1);
        // The default length is not a choice of the owner, and a queue that is never full does no
        // harm.
        let is_chosen = !matches!(scale.queue, 0 | QUEUE_DEFAULT);
        if wait_ms > spec.limits.timeout_ms && is_chosen {
            let fitting = spec.limits.timeout_ms * slots / service_ms.max(1);
            let text = format!(
                "a call at the end of a full queue would wait {wait_ms} ms, but calls time out after {} ms; use at most {}",
                spec.limits.timeout_ms,
                fitting.max(1)
            );
            warn("scale.queue", text);
        }
    }
    if let Some(node) = known.node_memory_bytes {
        let fitting = node / spec.limits.memory_bytes.max(1);
        if u64::from(scale.min) > fitting {
            let text = format!(
                "{} instances are kept, but only {fitting} fit into this node's memory",
                scale.min
            );
            warn("scale.min", text);
        } else if let Some(max) = scale.max
            && u64::from(max) > fitting
        {
            warn(
                "scale.max",
                format!(
                    "{max} instances are allowed, but only {fitting} fit into this node's memory"
                ),
            );
        }
    }
    lint_policy(policy, concurrency, service_ms, scale.min, max, &mut warn);
    warnings
}

fn lint_policy(
    policy: &Policy,
    concurrency: Option<u32>,
    service_ms: Option<u64>,
    min: u32,
    max: Option<u32>,
    warn: &mut impl FnMut(&'static str, String),
) {
    let headroom = |target: u32, concurrency: u32| {
        format!(
            "target {target}, but an instance runs {concurrency} at once: it is saturated before \
             the rule adds another; use at most {}",
            (concurrency * 7 / 10).max(1)
        )
    };
    match policy {
        Policy::Concurrency { target } => {
            if let Some(concurrency) = concurrency
                && *target > concurrency
            {
                warn("scale.target", headroom(*target, concurrency));
            }
        }
        Policy::Knative(settings) if settings.metric == KnativeMetric::Concurrency => {
            let target = settings.target * settings.utilization_percent / 100;
            if let Some(concurrency) = concurrency
                && settings.target != 100
                && target > concurrency
            {
                warn("scale.target", headroom(target, concurrency));
            }
        }
        Policy::Rps { target } => {
            if let (Some(service_ms), Some(concurrency)) = (service_ms, concurrency) {
                let able = u64::from(concurrency) * 1_000 / service_ms.max(1);
                if u64::from(*target) > able {
                    let text = format!(
                        "target {target} per second, but an instance serves {able}: it is \
                         saturated before the rule adds another"
                    );
                    warn("scale.target", text);
                }
            }
        }
        Policy::Cpu { target_percent } | Policy::Memory { target_percent }
            if *target_percent > 90 =>
        {
            let text = format!(
                "target {target_percent} %: no CPU is left while another instance starts; use \
                 at most 80"
            );
            warn("scale.target", text);
        }
        Policy::Memory { .. } if max.is_some_and(|max| max > 1) => {
            let text =
                "most runtimes keep the memory that they have used, so the rule rarely scales down";
            warn("scale.policy", text.into());
        }
        Policy::OpenFaas(settings) => {
            let step = max.map_or(1, |max| (max * settings.factor_percent).div_ceil(100));
            if step <= 1 && max.is_some_and(|max| max > 4) {
                let text = "each alert adds one instance, so it takes minutes to reach the maximum";
                warn("scale.factor", text.into());
            }
        }
        _ => {}
    }
    if !policy.scales_to_zero() && min == 0 {
        let text = format!("the {} rule keeps at least one instance", policy.as_str());
        warn("scale.min", text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mote_spec::{FunctionName, Runtime};

    fn spec(change: impl FnOnce(&mut FunctionSpec)) -> FunctionSpec {
        let name = FunctionName::new("f").unwrap();
        let mut spec = FunctionSpec::with_defaults(name, Runtime::Python, "main:run");
        change(&mut spec);
        spec
    }

    fn known(service_ms: u64, start_ms: u64) -> Known {
        let mut service = Estimate::default();
        (0..CALLS_MIN).for_each(|_| service.record(service_ms * NS_PER_MS));
        Known {
            concurrency: Some(1),
            service,
            start: Estimate::of(start_ms * NS_PER_MS),
            start_cpu: Estimate::default(),
            node_memory_bytes: Some(1 << 30),
            node_cores: Some(4),
        }
    }

    fn fields(spec: &FunctionSpec, policy: &Policy, known: &Known) -> Vec<&'static str> {
        assert!(spec.check().is_empty(), "a warning is about what is allowed");
        lint(spec, policy, known).iter().map(|warning| warning.field).collect()
    }

    #[test]
    fn defaults_are_silent() {
        assert_eq!(fields(&spec(|_| ()), &Policy::Auto, &known(20, 20)), Vec::<&str>::new());
        assert_eq!(fields(&spec(|_| ()), &Policy::Auto, &Known::default()), Vec::<&str>::new());
    }

    #[test]
    fn few_calls_and_the_default_queue_cause_no_warning() {
        let slow = |calls: u32| {
            let mut known = known(2_000, 20);
            known.service = Estimate::default();
            (0..calls).for_each(|_| known.service.record(2_000 * NS_PER_MS));
            known
        };
        let warned = |spec: &FunctionSpec, calls| {
            fields(spec, &Policy::Auto, &slow(calls)).contains(&"scale.queue")
        };
        let chosen = spec(|spec| spec.scale.queue = 5_000);
        assert!(!warned(&chosen, CALLS_MIN - 1));
        assert!(warned(&chosen, CALLS_MIN));
        assert!(!warned(&spec(|_| ()), CALLS_MIN));
    }

    #[test]
    fn each_trap_is_named() {
        type Change = fn(&mut FunctionSpec);
        let cases: [(&str, Change, Policy, Known); 10] = [
            ("scale.max", |s| s.scale.max = Some(1), Policy::Auto, known(2_000, 20)),
            ("scale.queue", |s| s.scale.queue = 0, Policy::Auto, known(20, 20)),
            ("scale.idle", |s| s.scale.idle_timeout_ms = 100, Policy::Auto, known(20, 900)),
            ("limits.timeout", |s| s.limits.timeout_ms = 500, Policy::Auto, known(1, 900)),
            ("scale.queue", |s| s.scale.queue = 5_000, Policy::Auto, known(100, 20)),
            ("scale.min", |s| s.scale.min = 20, Policy::Auto, known(20, 20)),
            ("scale.target", |_| (), Policy::Concurrency { target: 10 }, known(20, 20)),
            ("scale.target", |_| (), Policy::Rps { target: 400 }, known(20, 20)),
            ("scale.target", |_| (), Policy::Cpu { target_percent: 100 }, known(20, 20)),
            ("scale.min", |_| (), Policy::Hpa(Default::default()), known(20, 20)),
        ];
        for (at, (field, change, policy, known)) in cases.into_iter().enumerate() {
            let fields = fields(&spec(change), &policy, &known);
            assert!(fields.contains(&field), "case {at}: {field} not in {fields:?}");
        }
    }
}
