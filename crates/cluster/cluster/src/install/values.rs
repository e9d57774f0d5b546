//! The values that an installation can choose, and the rules for each. Pure.

use std::net::IpAddr;

#[derive(Debug, Clone, Copy)]
pub struct Value {
    /// The name of the value, also in the chart's values.yaml.
    pub name: &'static str,
    pub default: &'static str,
    /// The rule for the value.
    pub kind: Kind,
    pub text: &'static str,
}

/// The rule for a value. The command uses [`Kind::accepts`]. Helm uses [`Kind::schema`], which
/// allows a little more where JSON Schema cannot express the rule.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A name of an object (RFC 1123, DNS label).
    Label,
    /// A name of an object, or nothing.
    LabelOrNone,
    /// The name of an image.
    Image,
    /// `true` or `false`.
    Switch,
    /// A whole number between the two limits.
    Count(u32, u32),
    Word(&'static [&'static str]),
    /// A quantity of memory, for example `512Mi`.
    Memory,
    /// A quantity of processors, for example `500m`.
    Processors,
    /// A share in percent, for example `75%`.
    Share,
    /// A map of labels in braces.
    Labels,
    /// A map in braces, in the form that Kubernetes takes.
    Map,
    /// A list in brackets, in the form that Kubernetes takes.
    List,
    /// `private` and networks such as `203.0.113.0/24`, separated by commas, or nothing.
    Networks,
    /// Addresses that begin with `nats://` or `tls://`, separated by commas, or nothing.
    Servers,
}

impl Kind {
    /// Whether a text is a valid value.
    pub fn accepts(self, text: &str) -> bool {
        let each = |part: fn(&str) -> bool| text.is_empty() || text.split(',').all(part);
        match self {
            Self::Label => is_label(text),
            Self::LabelOrNone => text.is_empty() || is_label(text),
            Self::Image => !text.is_empty() && is_plain(text),
            Self::Switch => matches!(text, "true" | "false"),
            Self::Count(least, most) => {
                text.parse::<u32>().is_ok_and(|number| (least..=most).contains(&number))
            }
            Self::Word(words) => words.contains(&text),
            Self::Memory => {
                let units = ["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"];
                units.iter().any(|unit| text.strip_suffix(unit).is_some_and(is_amount))
            }
            Self::Processors => is_amount(text.strip_suffix('m').unwrap_or(text)),
            Self::Share => {
                let percent = text.strip_suffix('%').and_then(|text| text.parse::<u8>().ok());
                percent.is_some_and(|percent| (1..=100).contains(&percent))
            }
            Self::Labels => {
                text.starts_with('{') && text.ends_with('}') && !text.contains(char::is_control)
            }
            Self::Map => {
                text.starts_with('{') && text.ends_with('}') && !text.contains(char::is_control)
            }
            Self::List => {
                text.starts_with('[') && text.ends_with(']') && !text.contains(char::is_control)
            }
            Self::Networks => each(is_network),
            Self::Servers => each(|server| {
                let rest = server.strip_prefix("nats://").or(server.strip_prefix("tls://"));
                rest.is_some_and(|rest| !rest.is_empty() && is_plain(rest))
            }),
        }
    }

    /// Describes the expected value, for messages.
    pub fn wanted(self) -> String {
        match self {
            Self::Label => "a name of lower-case letters, digits and dashes".to_owned(),
            Self::LabelOrNone => "the name of a Secret, or nothing".to_owned(),
            Self::Image => "the name of an image".to_owned(),
            Self::Switch => "true or false".to_owned(),
            Self::Count(least, most) => format!("a number from {least} to {most}"),
            Self::Word(words) => words.join(", "),
            Self::Memory => "an amount of memory, such as 512Mi or 2Gi".to_owned(),
            Self::Processors => "an amount of processors, such as 500m or 2".to_owned(),
            Self::Share => "a share from 1% to 100%".to_owned(),
            Self::Labels => "labels in braces, such as {disk: ssd}".to_owned(),
            Self::Map => "a map in braces".to_owned(),
            Self::List => "a list in brackets, such as [{name: registry}]".to_owned(),
            Self::Networks => {
                "private, or networks such as 203.0.113.0/24, separated by commas".to_owned()
            }
            Self::Servers => {
                "addresses such as nats://nats.nats:4222, separated by commas".to_owned()
            }
        }
    }

    /// The rule as JSON Schema.
    pub(crate) fn schema(self) -> String {
        let pattern = |pattern: &str| format!(r#"{{"type": "string", "pattern": "{pattern}"}}"#);
        let amount = |pattern: &str| {
            format!(r#"{{"type": ["string", "integer", "number"], "pattern": "{pattern}"}}"#)
        };
        match self {
            Self::Label => pattern("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"),
            Self::LabelOrNone => pattern("^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$"),
            Self::Image => pattern("^[A-Za-z0-9][-A-Za-z0-9._:/@]*$"),
            Self::Switch => r#"{"type": "boolean"}"#.to_owned(),
            Self::Count(least, most) => {
                format!(r#"{{"type": "integer", "minimum": {least}, "maximum": {most}}}"#)
            }
            Self::Word(words) => format!(r#"{{"enum": {words:?}}}"#),
            Self::Memory => amount("^[0-9]+([.][0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$"),
            Self::Processors => amount("^[0-9]+([.][0-9]+)?m?$"),
            Self::Share => pattern("^([1-9][0-9]?|100)%$"),
            Self::Labels => {
                r#"{"type": "object", "additionalProperties": {"type": "string"}}"#.to_owned()
            }
            Self::Map => r#"{"type": "object"}"#.to_owned(),
            Self::List => r#"{"type": "array"}"#.to_owned(),
            Self::Networks => {
                let v4 = "[0-9]+([.][0-9]+){3}(/([12]?[0-9]|3[0-2]))?";
                let v6 = "[0-9a-fA-F]*:[0-9a-fA-F:.]*(/([1-9]?[0-9]|1[01][0-9]|12[0-8]))?";
                let one = format!("(private|{v4}|{v6})");
                pattern(&format!("^({one}(,{one})*)?$"))
            }
            Self::Servers => pattern(r"^((nats|tls)://[^\\s,]+(,(nats|tls)://[^\\s,]+)*)?$"),
        }
    }
}

/// Whether a text needs no quotes where it is filled in.
fn is_plain(text: &str) -> bool {
    !text
        .chars()
        .any(|one| one.is_whitespace() || one.is_control() || matches!(one, '"' | '\'' | '\\'))
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Whether a text is a number, possibly with a fraction.
fn is_amount(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.split_once('.') {
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => digits(text),
    }
}

fn is_network(text: &str) -> bool {
    let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
    let Ok(address) = address.parse::<IpAddr>() else { return text == "private" };
    let most = if address.is_ipv4() { 32 } else { 128 };
    bits.is_none_or(|bits| bits.parse::<u8>().is_ok_and(|bits| bits <= most))
}

const fn value(name: &'static str, default: &'static str, kind: Kind, text: &'static str) -> Value {
    Value { name, default, kind, text }
}

/// Every value, in the order of the chart's values.yaml.
pub const VALUES: [Value; 26] = [
    value(
        "namespace",
        "mote-system",
        Kind::Label,
        "The namespace of the cells and of the controller.",
    ),
    value("functionsNamespace", "default", Kind::Label, "The namespace of the functions."),
    value(
        "image",
        concat!("mote.local/cell:", env!("CARGO_PKG_VERSION")),
        Kind::Image,
        "The image of a cell.",
    ),
    value(
        "controllerImage",
        concat!("mote.local/controller:", env!("CARGO_PKG_VERSION")),
        Kind::Image,
        "The image of the controller. The image of a cell serves too.",
    ),
    value(
        "pullPolicy",
        "IfNotPresent",
        Kind::Word(&["IfNotPresent", "Always", "Never"]),
        "When machines pull the images.",
    ),
    value(
        "serviceType",
        "ClusterIP",
        Kind::Word(&["ClusterIP", "NodePort", "LoadBalancer"]),
        "The type of the Service mote: ClusterIP, NodePort or LoadBalancer.",
    ),
    value(
        "nodeSelector",
        "{}",
        Kind::Labels,
        "The labels of the machines that have a cell, for example {mote.dev/cell: \"yes\"}.",
    ),
    value(
        "tolerations",
        "[{key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}]",
        Kind::List,
        "Taints of machines that the cells and the controller tolerate: machines with special tasks, such as control planes of small clusters, have cells too.",
    ),
    value("affinity", "{}", Kind::Map, "The affinity of the cells."),
    value(
        "priorityClass",
        "",
        Kind::LabelOrNone,
        "The PriorityClass of the cells and the controller.",
    ),
    value(
        "imagePullSecrets",
        "[]",
        Kind::List,
        "The Secrets for the registry of the images, for example [{name: registry}].",
    ),
    value(
        "environmentSecret",
        "",
        Kind::LabelOrNone,
        "A Secret whose keys become environment variables of the cells, for example HTTPS_PROXY or PIP_INDEX_URL for package installations.",
    ),
    value(
        "controllerReplicas",
        "1",
        Kind::Count(1, 9),
        "Controllers; one works, the others wait to take over.",
    ),
    value(
        "controllerVolume",
        "false",
        Kind::Switch,
        "Whether the controller keeps archives in a volume claim.",
    ),
    value(
        "cpuRequest",
        "100m",
        Kind::Processors,
        "The processor that a cell asks for. It has no limit.",
    ),
    value("memoryRequest", "128Mi", Kind::Memory, "The memory that a cell asks for."),
    value("memoryLimit", "1Gi", Kind::Memory, "The memory that a cell and its functions may use."),
    value(
        "memoryShare",
        "75%",
        Kind::Share,
        "The share of that limit for the instances of functions.",
    ),
    value(
        "closedNetworks",
        "private",
        Kind::Networks,
        "Networks that functions reach only if their manifest names the host: add the networks of pods, Services and machines if they are not private ones.",
    ),
    value(
        "nats",
        "",
        Kind::Servers,
        "The NATS servers that keep the state of functions, accepted invocations and schedules, for example nats://nats.nats:4222; separate several with commas. Without them, each cell keeps its own.",
    ),
    value(
        "natsSecret",
        "",
        Kind::LabelOrNone,
        "A Secret whose key credentials has the credentials for NATS: a .creds file, or a line USER:PASSWORD.",
    ),
    value(
        "natsReplicas",
        "1",
        Kind::Count(1, 5),
        "Copies that a cluster of NATS servers keeps: 1 to 5.",
    ),
    value("spillOver", "true", Kind::Switch, "Whether cells forward invocations to each other."),
    value(
        "networkPolicy",
        "true",
        Kind::Switch,
        "Whether a NetworkPolicy closes the ports between cells to others.",
    ),
    value(
        "podMonitor",
        "false",
        Kind::Switch,
        "Whether to make a PodMonitor, from which Prometheus' operator learns of the cells' metrics.",
    ),
    value(
        "serviceMonitor",
        "false",
        Kind::Switch,
        "Whether to make a ServiceMonitor, from which Prometheus' operator learns of the controller's metrics.",
    ),
];
