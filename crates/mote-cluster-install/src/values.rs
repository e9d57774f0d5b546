//! The values that an installation can choose.

/// One value of an installation.
#[derive(Debug, Clone, Copy)]
pub struct Value {
    /// Its name, also in the chart's values.yaml.
    pub name: &'static str,
    /// Its default.
    pub default: &'static str,
    /// Its description.
    pub text: &'static str,
}

const fn value(name: &'static str, default: &'static str, text: &'static str) -> Value {
    Value { name, default, text }
}

/// Every value, in the order of the chart's values.yaml.
pub const VALUES: [Value; 25] = [
    value("namespace", "mote-system", "The namespace of the cells and of the controller."),
    value("functionsNamespace", "default", "The namespace of the functions."),
    value("image", concat!("mote.local/cell:", env!("CARGO_PKG_VERSION")), "The image of a cell."),
    value(
        "controllerImage",
        concat!("mote.local/controller:", env!("CARGO_PKG_VERSION")),
        "The image of the controller. The image of a cell serves too.",
    ),
    value("pullPolicy", "IfNotPresent", "When machines pull the images."),
    value(
        "serviceType",
        "ClusterIP",
        "The type of the Service mote: ClusterIP, NodePort or LoadBalancer.",
    ),
    value(
        "nodeSelector",
        "{}",
        "The labels of the machines that have a cell, for example {mote.dev/cell: \"yes\"}.",
    ),
    value("controllerReplicas", "1", "Controllers; one works, the others wait to take over."),
    value("controllerVolume", "false", "Whether the controller keeps archives in a volume claim."),
    value("cpuRequest", "100m", "The processor that a cell asks for. It has no limit."),
    value("memoryRequest", "128Mi", "The memory that a cell asks for."),
    value("memoryLimit", "1Gi", "The memory that a cell and its functions may use."),
    value("memoryShare", "75%", "The share of that limit for the instances of functions."),
    value(
        "closedNetworks",
        "private",
        "Networks that functions reach only if their manifest names the host: add the networks of pods, Services and machines if they are not private ones. Functions in pods do not follow it.",
    ),
    value(
        "nats",
        "",
        "The NATS servers that keep the state of functions, accepted invocations and schedules, for example nats://nats.nats:4222; separate several with commas. Without them, each cell keeps its own.",
    ),
    value(
        "natsSecret",
        "",
        "A Secret whose key credentials has the credentials for NATS: a .creds file, or a line USER:PASSWORD.",
    ),
    value("natsReplicas", "1", "Copies that a cluster of NATS servers keeps: 1 to 5."),
    value(
        "pods",
        "true",
        "Whether functions may have isolation = \"pod\"; needs spillOver, for the key of the cells.",
    ),
    value("podsNamespace", "mote-functions", "The namespace of these pods."),
    value("waitingPods", "2", "How many pods of each kind wait for functions: 1 or more."),
    value(
        "podNodes",
        "",
        "Labels that the machines of these pods must have, as KEY=VALUE, separated by commas.",
    ),
    value("spillOver", "true", "Whether cells forward invocations to each other."),
    value(
        "networkPolicy",
        "true",
        "Whether a NetworkPolicy closes the ports between cells to others.",
    ),
    value(
        "podMonitor",
        "false",
        "Whether to make a PodMonitor, from which Prometheus' operator learns of the cells' metrics.",
    ),
    value(
        "serviceMonitor",
        "false",
        "Whether to make a ServiceMonitor, from which Prometheus' operator learns of the controller's metrics.",
    ),
];
