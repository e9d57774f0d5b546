//! The scaling and balancing rules that a manifest can choose. Every constant names its source.

use serde::{Deserialize, Serialize};

/// How the number of instances follows demand.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Learns run times, start times and idle times. The owner sets no threshold.
    #[default]
    Auto,
    /// Keeps the number of invocations per instance, running and waiting, at a target.
    Concurrency {
        /// The target, at least 1.
        target: u32,
    },
    /// Keeps the number of offered invocations per second and instance at a target.
    Rps {
        /// The target, at least 1.
        target: u32,
    },
    /// Keeps the CPU use at a target, in percent of the CPU that one instance is promised.
    Cpu {
        /// The target.
        target_percent: u32,
    },
    /// Keeps the memory in use at a target, in percent of the instance's limit.
    Memory {
        /// The target.
        target_percent: u32,
    },
    /// The rule of Knative's pod autoscaler.
    Knative(KnativeSettings),
    /// The rule of Kubernetes' horizontal pod autoscaler on CPU.
    Hpa(HpaSettings),
    /// The classic alert rule of OpenFaaS.
    OpenFaas(OpenFaasSettings),
}

impl Policy {
    /// The name of this rule in manifests and outputs.
    pub fn as_str(&self) -> &'static str {
        match self {
            Policy::Auto => "auto",
            Policy::Concurrency { .. } => "concurrency",
            Policy::Rps { .. } => "rps",
            Policy::Cpu { .. } => "cpu",
            Policy::Memory { .. } => "memory",
            Policy::Knative(_) => "knative",
            Policy::Hpa(_) => "hpa",
            Policy::OpenFaas(_) => "openfaas",
        }
    }

    /// Whether the rule can scale to zero instances. Kubernetes' and OpenFaaS's rules cannot.
    /// Kubernetes requires a `minReplicas` of at least 1 unless a feature gate is on. OpenFaaS's
    /// free rule has a minimum of 1.
    pub fn scales_to_zero(&self) -> bool {
        !matches!(self, Policy::Hpa(_) | Policy::OpenFaas(_))
    }
}

/// The quantity that Knative counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KnativeMetric {
    /// Invocations at once.
    Concurrency,
    /// Invocations per second.
    Rps,
}

/// Knative's pod autoscaler. Defaults: knative/serving `config/core/configmaps/autoscaler.yaml`
/// and the pages "Additional autoscaling configuration for Knative Pod Autoscaler" and
/// "Configuring scale bounds".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KnativeSettings {
    /// The counted quantity; concurrency by default.
    pub metric: KnativeMetric,
    /// `container-concurrency-target-default`: 100. A lower hard limit replaces it.
    pub target: u32,
    /// `container-concurrency-target-percentage`: 70.
    pub utilization_percent: u32,
    /// `stable-window`: 60 s.
    pub stable_window_ms: u64,
    /// `panic-window-percentage`: 10, which means 6 s.
    pub panic_window_percent: u32,
    /// `panic-threshold-percentage`: 200.
    pub panic_threshold_percent: u32,
    /// `max-scale-up-rate`: 1000 times the ready instances.
    pub up_rate_max: u32,
    /// `max-scale-down-rate`: 2, which means down to half of the ready instances.
    pub down_rate_max: u32,
    /// `scale-to-zero-grace-period`: 30 s. In the original, this is an upper bound: the last pod is
    /// stopped earlier if the network has already been switched.
    pub grace_ms: u64,
    /// `tick-interval`: 2 s.
    pub tick_ms: u64,
}

impl Default for KnativeSettings {
    fn default() -> Self {
        Self {
            metric: KnativeMetric::Concurrency,
            target: 100,
            utilization_percent: 70,
            stable_window_ms: 60_000,
            panic_window_percent: 10,
            panic_threshold_percent: 200,
            up_rate_max: 1_000,
            down_rate_max: 2,
            grace_ms: 30_000,
            tick_ms: 2_000,
        }
    }
}

/// Kubernetes' horizontal pod autoscaler (`autoscaling/v2`) on CPU. Defaults: the pages
/// "Horizontal Pod Autoscaling" and `kube-controller-manager` of the Kubernetes documentation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HpaSettings {
    /// The target use in percent of the CPU request. The default of 80 applies if no metric is
    /// named.
    pub target_percent: u32,
    /// `--horizontal-pod-autoscaler-tolerance`: 0.1.
    pub tolerance_percent: u32,
    /// `--horizontal-pod-autoscaler-sync-period`: 15 s. This is also the resolution of the metrics
    /// (`metrics-server --metric-resolution`).
    pub sync_ms: u64,
    /// The default scale-up policy: 100 % or [`HpaSettings::up_pods`] per 15 s, whichever is more.
    pub up_percent: u32,
    /// The number of instances for [`HpaSettings::up_percent`]: 4.
    pub up_pods: u32,
    /// `--horizontal-pod-autoscaler-downscale-stabilization`: 5 min. After that, 100 % may be
    /// removed at once.
    pub down_window_ms: u64,
}

impl Default for HpaSettings {
    fn default() -> Self {
        Self {
            target_percent: 80,
            tolerance_percent: 10,
            sync_ms: 15_000,
            up_percent: 100,
            up_pods: 4,
            down_window_ms: 300_000,
        }
    }
}

/// OpenFaaS's classic rule: a Prometheus alert on the rate of answers calls the gateway. The
/// gateway adds a fixed step, and returns to the minimum when the alert ends. The rule follows
/// OpenFaaS's documentation (page "Autoscaling"). The two periods reproduce the steps that
/// Kjorveziroski and Filiposka measured (J Supercomput 2022, DOI 10.1007/s11227-022-04430-6, data
/// of korvoj/k8s-distributions-iot-edge: +4 at 32, 72, 112 and 152 s).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OpenFaasSettings {
    /// The alert fires above this many answers per second: 5.
    pub threshold_rps: u32,
    /// The window over which the rate is measured: 10 s.
    pub window_ms: u64,
    /// How long the rate must be exceeded before the alert fires: 5 s.
    pub for_ms: u64,
    /// The interval at which the alert is evaluated: 15 s.
    pub evaluate_ms: u64,
    /// The interval at which a firing alert is repeated: 40 s.
    pub repeat_ms: u64,
    /// The size of a step, in percent of the maximum: 20.
    pub factor_percent: u32,
}

/// The maximum of instances under OpenFaaS's rule, unless the function sets another one (label
/// `com.openfaas.scale.max`).
pub const OPENFAAS_MAX_DEFAULT: u32 = 20;

impl Default for OpenFaasSettings {
    fn default() -> Self {
        Self {
            threshold_rps: 5,
            window_ms: 10_000,
            for_ms: 5_000,
            evaluate_ms: 15_000,
            repeat_ms: 40_000,
            factor_percent: 20,
        }
    }
}

/// How the instance for an invocation is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// Of the instances with room, takes the one that holds the fewest invocations, or the oldest
    /// of several such instances. If no instance has room, the invocation waits in the function's
    /// only queue, and the instance that is free first takes the oldest invocation. This is the
    /// default, because a slow instance then delays no other invocations, and the work stays on few
    /// instances if those can handle it.
    #[default]
    LateBinding,
    /// Takes each instance in turn.
    RoundRobin,
    /// Takes any instance at random.
    Random,
    /// Takes the instance with the fewest invocations. Instances with equally many take turns.
    LeastConnections,
    /// Takes an instance that has served no other caller.
    PerCaller,
    /// Takes an instance that has served no invocation.
    PerCall,
}

impl Balance {
    /// The word for this rule in manifests and outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            Balance::LateBinding => "late-binding",
            Balance::RoundRobin => "round-robin",
            Balance::Random => "random",
            Balance::LeastConnections => "least-connections",
            Balance::PerCaller => "per-caller",
            Balance::PerCall => "per-call",
        }
    }
}
