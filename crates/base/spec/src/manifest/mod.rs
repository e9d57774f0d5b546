//! Reads `mote.toml` key by key and reports every mistake with its line.
//!
//! No key has a default here: a missing key stays `None`. Defaults, guesses from files, and rules
//! that need the code are applied later, when a manifest becomes a spec.
//!
//! All of this is in one file, because each key occurs in its section's list, in the type that
//! holds the key, and in the code that reads the key. A new key changes all three.

use std::collections::BTreeMap;

use toml::de::DeTable;

use crate::files::Files;
use crate::rate::{CALLS_AT_ONCE_MAX, RATE_CALLS_MAX};
use crate::scale::TARGET_MAX;
use crate::toml_reader::{Lined, Mistakes, Section, TomlReader};

mod access;
mod background;
mod files;
mod http;
mod mqtt;
mod route;
mod schedule;
mod schema;
mod static_files;

pub use access::{
    AccessName, EncodingName, HashName, SchemeName, TokensManifest, WebhookManifest, access,
    access_needs_more,
};
pub use background::{AsyncManifest, RecipientName, RetryName, TopicName};
pub use http::{CorsManifest, HttpManifest};
pub use mqtt::{
    AcknowledgeName, ConnectionManifest, MqttManifest, MqttVersionName, OrderName, SessionName,
};
pub use route::RouteManifest;
pub use schedule::{MissedName, OverlapName, ScheduleManifest};
pub use schema::schema;
pub use static_files::StaticManifest;

/// The file name.
pub const FILE_NAME: &str = "mote.toml";
/// The maximum number of functions in one file. A longer list is probably a mistake of a generator.
pub const FUNCTIONS_MAX: usize = 200;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const HOUR_MS: u64 = 3_600_000;
const INIT_MS_MAX: u64 = 600_000;

const FUNCTION_KEYS: [&str; 27] = [
    "name", "runtime", "image", "compat", "template", "port", "protocol", "entry", "command",
    "methods", "secrets", "limits", "scale", "env", "trigger", "route", "allow", "kv", "build",
    "async", "mqtt", "services", "writable", "access", "http", "static", "files",
];
const TOP_KEYS: [&str; 14] = [
    "version", "name", "runtime", "image", "compat", "template", "port", "protocol", "entry",
    "command", "methods", "secrets", "services", "writable",
];
const LIMIT_KEYS: [&str; 15] = [
    "memory",
    "timeout",
    "init_timeout",
    "concurrency",
    "cpu",
    "pids",
    "body",
    "disk",
    "stream_idle",
    "rate",
    "burst",
    "caller_rate",
    "caller_burst",
    "calls_at_once",
    "caller_calls_at_once",
];
const SCALE_KEYS: [&str; 10] =
    ["min", "max", "idle", "queue", "policy", "target", "start", "balance", "pause", "spare"];
const ALLOW_KEYS: [&str; 3] = ["net", "functions", "mqtt"];
const KV_KEYS: [&str; 2] = ["shared", "quota"];
/// Keys that are often written in the wrong section, with the sections to which they belong.
const SECTIONS: [(&str, &[&str]); 10] = [
    ("[limits]", &LIMIT_KEYS),
    ("[scale]", &SCALE_KEYS),
    ("[allow]", &ALLOW_KEYS),
    ("[kv]", &KV_KEYS),
    ("[async]", &background::KEYS),
    ("[access]", &["mode"]),
    ("[http]", &http::KEYS),
    ("[static]", &static_files::KEYS),
    ("[[route]]", &route::KEYS),
    ("[[trigger]]", &schedule::KEYS),
];

/// A manifest. It describes one function, or several functions that share the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The functions, in the order of their names. If the file describes a single function, it may
    /// have no name.
    pub functions: Vec<FunctionManifest>,
}

/// The settings of one function. A setting that the manifest does not contain is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FunctionManifest {
    /// `name`, not yet checked against the rule for names.
    pub name: Option<Lined<String>>,
    /// `python`, `node`, `go`, `wasm`, `exec`, `server` or `chain`.
    pub runtime: Option<Lined<RuntimeName>>,
    /// `image`: the name of a container image, or the path of an archive with one.
    pub image: Option<Lined<String>>,
    /// The arguments after the entry point of the image. `mote.toml` has no key for them.
    pub image_arguments: Option<Vec<String>>,
    /// `compat`: the platform for which the code was written.
    pub compat: Option<Lined<PlatformName>>,
    /// `template`: the name of the platform's contract, if the platform has several.
    pub template: Option<Lined<String>>,
    /// `port`: the port of a server.
    pub port: Option<Lined<u16>>,
    /// `protocol`: the protocol that a server speaks, `http1` or `h2c`.
    pub protocol: Option<Lined<ProtocolName>>,
    /// `[access] mode`: who may call the function.
    pub access: Option<AccessName>,
    /// The keys of `[access]` for callers with tokens. Present if and only if the mode is `jwt`.
    pub tokens: Option<TokensManifest>,
    /// `[access] callers`: accepted names in client certificates. Only with the mode `mtls`.
    pub callers: Option<Lined<Vec<String>>>,
    /// The keys of `[access]` for signed requests. Present if and only if the mode is `webhook`.
    pub webhook: Option<WebhookManifest>,
    /// `writable`: whether each instance may write to its copy of the code.
    pub writable: Option<bool>,
    /// `services`: whether a program or server reaches the services of the node.
    pub services: Option<Lined<bool>>,
    /// `entry`: `module:object`, or the path of a file.
    pub entry: Option<Lined<String>>,
    /// `command`: the program and its arguments.
    pub command: Option<Lined<Vec<String>>>,
    /// `methods`, in upper case.
    pub methods: Option<Vec<String>>,
    /// `secrets`: names of secrets that the function reads as files, not yet checked against the
    /// rule for names.
    pub secrets: Vec<String>,
    /// `[limits]`.
    pub limits: LimitsManifest,
    /// `[scale]`.
    pub scale: ScaleManifest,
    /// `[env]`.
    pub env: BTreeMap<String, String>,
    /// Variables of `[env]` whose values are secrets. Maps each variable to the name of its secret.
    pub secret_env: BTreeMap<String, String>,
    /// `[http]`.
    pub http_rules: HttpManifest,
    /// `[static]`.
    pub static_files: Option<StaticManifest>,
    /// `[[route]]`, each with its line.
    pub routes: Vec<Lined<RouteManifest>>,
    /// `http = "/path"` of a trigger.
    pub http: Option<Lined<String>>,
    /// `coap = "path"` of a trigger.
    pub coap: Option<Lined<CoapManifest>>,
    /// The triggers with `cron` or `every`, each with the line of its section.
    pub schedules: Vec<Lined<ScheduleManifest>>,
    /// The triggers with `mqtt = "filter"`.
    pub mqtt: Vec<MqttManifest>,
    /// `[allow] net`.
    pub egress: Vec<Destination>,
    /// `[async]`.
    pub background: AsyncManifest,
    /// `[mqtt]`.
    pub connection: ConnectionManifest,
    /// `[allow] mqtt`: topic filters, not yet checked, with their line.
    pub topics: Option<Lined<Vec<String>>>,
    /// `[allow] functions`.
    pub calls: Vec<String>,
    /// `[kv] shared`.
    pub shared_state: Vec<String>,
    /// `[kv] quota`.
    pub state_quota_bytes: Option<u64>,
    /// `[files]`.
    pub files: Files,
    /// `[build] command`, which a shell runs in the project folder before packing.
    pub build_command: Option<String>,
}

/// The runtimes a manifest may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeName {
    /// `python`.
    Python,
    /// `node`.
    Node,
    /// `bun`.
    Bun,
    /// `deno`.
    Deno,
    /// `go`.
    Go,
    /// `exec`.
    Exec,
    /// `server`.
    Server,
    /// `chain`.
    Chain,
    /// `wasm`.
    Wasm,
    /// `rust`.
    Rust,
}

/// The protocols of servers that a manifest may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProtocolName {
    /// `http1`.
    Http1,
    /// `h2c`.
    H2c,
}

/// The platforms whose contracts a manifest may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlatformName {
    /// `tinyfaas`.
    TinyFaas,
    /// `openfaas`.
    OpenFaas,
    /// `nuclio`.
    Nuclio,
    /// `kubeless`.
    Kubeless,
    /// `openwhisk`.
    OpenWhisk,
    /// `knative`.
    Knative,
    /// `fission`.
    Fission,
}

const PLATFORMS: [(&str, PlatformName); 7] = [
    ("tinyfaas", PlatformName::TinyFaas),
    ("openfaas", PlatformName::OpenFaas),
    ("nuclio", PlatformName::Nuclio),
    ("kubeless", PlatformName::Kubeless),
    ("openwhisk", PlatformName::OpenWhisk),
    ("knative", PlatformName::Knative),
    ("fission", PlatformName::Fission),
];

/// `[limits]`. The names of the fields contain the units.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitsManifest {
    /// `memory`.
    pub memory_bytes: Option<u64>,
    /// `timeout`.
    pub timeout_ms: Option<u64>,
    /// `init_timeout`.
    pub init_timeout_ms: Option<u64>,
    /// `concurrency`.
    pub concurrency: Option<u32>,
    /// `cpu`, cores in thousandths.
    pub cpu_millis: Option<u32>,
    /// `pids`.
    pub pids: Option<u32>,
    /// `body`.
    pub body_bytes: Option<u64>,
    /// `disk`.
    pub disk_bytes: Option<u64>,
    /// `stream_idle`.
    pub stream_idle_ms: Option<u64>,
    /// `rate` and `burst`.
    pub rate: Option<RateManifest>,
    /// `caller_rate` and `caller_burst`.
    pub caller_rate: Option<RateManifest>,
    /// `calls_at_once`.
    pub calls_at_once: Option<u32>,
    /// `caller_calls_at_once`.
    pub caller_calls_at_once: Option<u32>,
}

/// A number of calls in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateManifest {
    /// The calls in `period_ms`.
    pub calls: u32,
    /// The period in milliseconds.
    pub period_ms: u64,
    /// Calls that may arrive at once.
    pub burst: u32,
}

/// `[scale]`. The names of the fields contain the units.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScaleManifest {
    /// `min`.
    pub min: Option<u32>,
    /// `max`.
    pub max: Option<u32>,
    /// `idle`.
    pub idle_timeout_ms: Option<u64>,
    /// `queue`.
    pub queue: Option<u32>,
    /// `policy`.
    pub policy: Option<PolicyName>,
    /// `target`. It is a percentage if the policy measures CPU or memory.
    pub target: Option<u32>,
    /// `start`.
    pub start: Option<StartName>,
    /// `balance`.
    pub balance: Option<BalanceName>,
    /// `pause`.
    pub pause_ms: Option<u64>,
    /// `spare`.
    pub spare: Option<u32>,
}

/// The balancing rules a manifest may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BalanceName {
    /// `late-binding`.
    LateBinding,
    /// `round-robin`.
    RoundRobin,
    /// `random`.
    Random,
    /// `least-connections`.
    LeastConnections,
    /// `per-caller`.
    PerCaller,
    /// `per-call`.
    PerCall,
}

const BALANCES: [(&str, BalanceName); 6] = [
    ("late-binding", BalanceName::LateBinding),
    ("round-robin", BalanceName::RoundRobin),
    ("random", BalanceName::Random),
    ("least-connections", BalanceName::LeastConnections),
    ("per-caller", BalanceName::PerCaller),
    ("per-call", BalanceName::PerCall),
];

/// The scaling rules a manifest may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyName {
    /// `auto`.
    Auto,
    /// `concurrency`.
    Concurrency,
    /// `rps`.
    Rps,
    /// `cpu`.
    Cpu,
    /// `memory`.
    Memory,
    /// `knative`.
    Knative,
    /// `hpa`.
    Hpa,
    /// `openfaas`.
    OpenFaas,
}

const POLICIES: [(&str, PolicyName); 8] = [
    ("auto", PolicyName::Auto),
    ("concurrency", PolicyName::Concurrency),
    ("rps", PolicyName::Rps),
    ("cpu", PolicyName::Cpu),
    ("memory", PolicyName::Memory),
    ("knative", PolicyName::Knative),
    ("hpa", PolicyName::Hpa),
    ("openfaas", PolicyName::OpenFaas),
];

/// The start policies that a manifest may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartName {
    /// `cold`.
    Cold,
    /// `warm`.
    Warm,
    /// `always`.
    Always,
}

const STARTS: [(&str, StartName); 3] =
    [("cold", StartName::Cold), ("warm", StartName::Warm), ("always", StartName::Always)];

/// A CoAP trigger.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CoapManifest {
    /// The path, without a leading slash.
    pub path: String,
    /// `title`.
    pub title: Option<String>,
    /// `rt`.
    pub resource_type: Option<String>,
    /// `ct`.
    pub content_format: Option<u16>,
}

impl Manifest {
    /// Reads a manifest, and reports all mistakes together. `file` is only shown in errors.
    pub fn parse(file: &str, source: &str) -> Result<Self, Mistakes> {
        let mut reader = TomlReader::new(file, source).with_sections(&SECTIONS);
        let document = reader.parse()?;
        let table = document.get_ref();
        let top = reader.top(table);

        match reader.integer(&top, "version", 1..=u64::from(u32::MAX)) {
            Some(version) if version.value != 1 => reader.mistake(
                "M0303",
                version.line,
                &format!("version: this version of mote reads 1; found {}", version.value),
                Some("a newer version of mote may be required".to_owned()),
            ),
            None if !table.contains_key("version") => reader.mistake(
                "M0306",
                0,
                "`version` is missing",
                Some("write `version = 1` as its first line".to_owned()),
            ),
            _ => {}
        }

        let functions = if table.contains_key("function") {
            reader.check_keys(&top, &["version", "function"], &[], &[]);
            read_functions(&mut reader, &top)
        } else {
            let mut known = vec!["version", "function"];
            known.extend(FUNCTION_KEYS);
            reader.check_keys(&top, &known, &[], &[]);
            vec![read_function(&mut reader, &top)]
        };
        reader.finish()?;
        Ok(Self { functions })
    }
}

fn read_functions(reader: &mut TomlReader<'_>, top: &Section<'_>) -> Vec<FunctionManifest> {
    let Some((value, line)) = reader.get(top, "function") else {
        return Vec::new();
    };
    let Some(table) = value.as_table() else {
        reader.wrong_type("function", line, "sections such as [function.hello]", value);
        return Vec::new();
    };
    if table.is_empty() || table.len() > FUNCTIONS_MAX {
        let text = format!("function: 1 to {FUNCTIONS_MAX} sections such as [function.hello]");
        reader.mistake("M0303", line, &text, None);
        return Vec::new();
    }
    let mut functions = Vec::new();
    for (key, value) in table {
        let name: &str = key.get_ref();
        let line = reader.line(key.span().start);
        let label = format!("[function.{name}]");
        let Some(table) = value.get_ref().as_table() else {
            let text = format!("a section such as {label}");
            reader.wrong_type(&format!("function.{name}"), line, &text, value.get_ref());
            continue;
        };
        let section = reader.section(table, &label, &label);
        let known: Vec<&str> = FUNCTION_KEYS.into_iter().filter(|key| *key != "name").collect();
        reader.check_keys(&section, &known, &[], &[]);
        let mut function = read_function(reader, &section);
        function.name = Some(Lined { value: name.to_owned(), line });
        functions.push(function);
    }
    functions
}

fn read_function(reader: &mut TomlReader<'_>, at: &Section<'_>) -> FunctionManifest {
    let mut function = FunctionManifest {
        name: reader.string(at, "name", "a string, e.g. \"thermo\""),
        runtime: read_runtime(reader, at),
        image: read_image(reader, at),
        compat: read_compat(reader, at),
        template: reader.string(at, "template", "a string, e.g. \"python3-http\""),
        port: read_port(reader, at),
        protocol: read_protocol(reader, at),
        services: reader.get(at, "services").and_then(|_| reader.boolean(at, "services")),
        writable: reader
            .get(at, "writable")
            .and_then(|_| reader.boolean(at, "writable"))
            .map(|writable| writable.value),
        entry: reader.string(at, "entry", "a string, e.g. \"app:handle\""),
        command: reader.strings(at, "command", "an array, e.g. [\"./server\", \"--fast\"]"),
        methods: read_methods(reader, at),
        secrets: read_secrets(reader, at),
        ..FunctionManifest::default()
    };
    if let Some(command) = &function.command
        && (command.value.first().is_none_or(String::is_empty)
            || command.value.iter().any(|word| word.contains('\0')))
    {
        let text = "command: at least a program, e.g. [\"./server\", \"--fast\"]";
        reader.mistake("M0303", command.line, text, None);
    }
    if let Some(section) = sub_section(reader, at, "limits") {
        function.limits = read_limits(reader, &section);
    }
    if let Some(section) = sub_section(reader, at, "scale") {
        function.scale = read_scale(reader, &section);
    }
    if let Some(section) = sub_section(reader, at, "env") {
        read_env(reader, &section, &mut function);
    }
    if let Some(section) = sub_section(reader, at, "allow") {
        reader.check_keys(&section, &ALLOW_KEYS, &[], &TOP_KEYS);
        function.egress = read_egress(reader, &section);
        let wanted = "an array of names of functions, e.g. [\"resize\"]";
        function.calls = read_names(reader, &section, "functions", wanted, true);
        let wanted = "an array of topic filters, e.g. [\"alarms/#\"]";
        function.topics = reader.strings(&section, "mqtt", wanted);
    }
    if let Some(section) = sub_section(reader, at, "kv") {
        reader.check_keys(&section, &KV_KEYS, &[], &TOP_KEYS);
        let wanted = "an array of names of shared namespaces, e.g. [\"site\"]";
        function.shared_state = read_names(reader, &section, "shared", wanted, false);
        function.state_quota_bytes =
            reader.size(&section, "quota", 0..=GIB, "0 to 1GiB, e.g. 16MiB").map(|size| size.value);
    }
    if let Some(section) = sub_section(reader, at, "mqtt") {
        let line = reader.get(at, "mqtt").map_or(0, |(_, line)| line);
        function.connection = mqtt::read_connection(reader, &section, line);
    }
    if let Some(section) = sub_section(reader, at, "async") {
        function.background = background::read(reader, &section);
    }
    if let Some(section) = sub_section(reader, at, "access") {
        let line = reader.get(at, "access").map_or(0, |(_, line)| line);
        access::read(reader, &section, &mut function, line);
    }
    if let Some(section) = sub_section(reader, at, "http") {
        let line = reader.get(at, "http").map_or(0, |(_, line)| line);
        http::read(reader, &section, &mut function, line);
    }
    if let Some(section) = sub_section(reader, at, "static") {
        let line = reader.get(at, "static").map_or(0, |(_, line)| line);
        static_files::read(reader, &section, &mut function, line);
    }
    if let Some(section) = sub_section(reader, at, "files") {
        let line = reader.get(at, "files").map_or(0, |(_, line)| line);
        files::read(reader, &section, &mut function, line);
    }
    if let Some(section) = sub_section(reader, at, "build") {
        reader.check_keys(&section, &schema::BUILD_KEYS, &["watch"], &TOP_KEYS);
        function.build_command = reader
            .string(&section, "command", "a string, e.g. \"make\"")
            .map(|command| command.value);
    }
    read_triggers(reader, at, &mut function);
    route::read(reader, at, &mut function);
    function
}

fn sub_section<'t>(
    reader: &mut TomlReader<'_>,
    at: &Section<'t>,
    key: &'static str,
) -> Option<Section<'t>> {
    let (value, line) = reader.get(at, key)?;
    let label = match key {
        "limits" => "[limits]",
        "scale" => "[scale]",
        "env" => "[env]",
        "allow" => "[allow]",
        "async" => "[async]",
        "kv" => "[kv]",
        "mqtt" => "[mqtt]",
        "access" => "[access]",
        "http" => "[http]",
        "static" => "[static]",
        "files" => "[files]",
        _ => "[build]",
    };
    match value.as_table() {
        Some(table) => Some(reader.section(table, label, label)),
        None => {
            reader.wrong_type(key, line, &format!("a section {label}"), value);
            None
        }
    }
}

fn read_runtime(reader: &mut TomlReader<'_>, at: &Section<'_>) -> Option<Lined<RuntimeName>> {
    let wanted = "\"python\", \"node\", \"bun\", \"deno\", \"go\", \"rust\", \"wasm\", \"exec\", \"server\" or \"chain\"";
    let text = reader.string(at, "runtime", wanted)?;
    let value = match text.value.as_str() {
        "python" => RuntimeName::Python,
        "node" => RuntimeName::Node,
        "bun" => RuntimeName::Bun,
        "deno" => RuntimeName::Deno,
        "go" => RuntimeName::Go,
        "exec" => RuntimeName::Exec,
        "server" => RuntimeName::Server,
        "chain" => RuntimeName::Chain,
        "wasm" => RuntimeName::Wasm,
        "rust" => RuntimeName::Rust,
        "oci" => {
            let hint = "write image = \"NAME\" instead of runtime; the image runs as a server";
            let shown = "runtime \"oci\" does not exist";
            reader.mistake("M0305", text.line, shown, Some(hint.to_owned()));
            return None;
        }
        other => {
            let words =
                ["python", "node", "bun", "deno", "go", "rust", "wasm", "exec", "server", "chain"];
            let near = crate::nearest(other, words);
            let hint = near.map(|near| format!("did you mean \"{near}\"?"));
            reader.mistake("M0303", text.line, &format!("runtime: {wanted}"), hint);
            return None;
        }
    };
    Some(Lined { value, line: text.line })
}

fn read_compat(reader: &mut TomlReader<'_>, at: &Section<'_>) -> Option<Lined<PlatformName>> {
    let (_, line) = reader.get(at, "compat")?;
    read_word(reader, at, "compat", &PLATFORMS).map(|value| Lined { value, line })
}

fn read_image(reader: &mut TomlReader<'_>, at: &Section<'_>) -> Option<Lined<String>> {
    let wanted = "the name of an image or an archive, e.g. \"ghcr.io/owner/name:1\"";
    let image = reader.string(at, "image", wanted)?;
    if image.value.is_empty() || image.value.contains(char::is_control) {
        reader.mistake("M0303", image.line, &format!("image: {wanted}"), None);
        return None;
    }
    Some(image)
}

/// Reads the port. Servers in images may have the ports that only root may use elsewhere.
fn read_port(reader: &mut TomlReader<'_>, at: &Section<'_>) -> Option<Lined<u16>> {
    let first = if reader.get(at, "image").is_some() { 1 } else { 1024 };
    let port = reader.integer(at, "port", first..=65_535)?;
    u16::try_from(port.value).ok().map(|value| Lined { value, line: port.line })
}

fn read_protocol(reader: &mut TomlReader<'_>, at: &Section<'_>) -> Option<Lined<ProtocolName>> {
    let (_, line) = reader.get(at, "protocol")?;
    let words = [("http1", ProtocolName::Http1), ("h2c", ProtocolName::H2c)];
    read_word(reader, at, "protocol", &words).map(|value| Lined { value, line })
}

const IPATCH: &str = "iPATCH";

fn read_methods(reader: &mut TomlReader<'_>, at: &Section<'_>) -> Option<Vec<String>> {
    let wanted = "an array of methods, e.g. [\"GET\", \"POST\"]";
    let methods = reader.strings(at, "methods", wanted)?;
    let is_method = |text: &String| {
        let is_word = text.bytes().all(|b| b.is_ascii_uppercase()) || text == IPATCH;
        !text.is_empty() && text.len() <= 24 && is_word
    };
    if methods.value.is_empty() || methods.value.len() > 16 || !methods.value.iter().all(is_method)
    {
        let text = format!("methods: {wanted}, in upper case");
        reader.mistake("M0303", methods.line, &text, None);
        return None;
    }
    // The name of this CoAP method begins with a small letter (RFC 8132).
    let words = methods.value.into_iter();
    Some(words.map(|word| if word == IPATCH { word.to_uppercase() } else { word }).collect())
}

fn narrow(value: Option<Lined<u64>>) -> Option<u32> {
    value.and_then(|value| u32::try_from(value.value).ok())
}

fn read_limits(reader: &mut TomlReader<'_>, at: &Section<'_>) -> LimitsManifest {
    reader.check_keys(at, &LIMIT_KEYS, &[], &TOP_KEYS);
    let size = |reader: &mut TomlReader<'_>, key, range, wanted| {
        reader.size(at, key, range, wanted).map(|size| size.value)
    };
    let duration = |reader: &mut TomlReader<'_>, key, max_ms, wanted| {
        reader.duration_ms(at, key, 1..=max_ms, wanted).map(|duration| duration.value)
    };
    let limits = LimitsManifest {
        memory_bytes: size(reader, "memory", 4 * MIB..=512 * GIB, "4MiB\u{2013}512GiB, e.g. 64MiB"),
        timeout_ms: duration(reader, "timeout", HOUR_MS, "1ms\u{2013}1h, e.g. 10s"),
        init_timeout_ms: duration(reader, "init_timeout", INIT_MS_MAX, "1ms\u{2013}10m, e.g. 10s"),
        concurrency: narrow(reader.integer(at, "concurrency", 1..=4096)),
        cpu_millis: reader
            .thousandths(at, "cpu", 10..=1_024_000, "cores, 0.01\u{2013}1024, e.g. 0.5")
            .map(|cpu| cpu.value),
        pids: narrow(reader.integer(at, "pids", 4..=32_768)),
        body_bytes: size(reader, "body", KIB..=GIB, "1KiB\u{2013}1GiB, e.g. 6MiB"),
        disk_bytes: size(reader, "disk", 64 * KIB..=64 * GIB, "64KiB\u{2013}64GiB, e.g. 16MiB"),
        stream_idle_ms: duration(reader, "stream_idle", 24 * HOUR_MS, "1ms\u{2013}24h, e.g. 5m"),
        rate: read_rate(reader, at, ("rate", "burst")),
        caller_rate: read_rate(reader, at, ("caller_rate", "caller_burst")),
        calls_at_once: narrow(reader.integer(at, "calls_at_once", 1..=CALLS_AT_ONCE_MAX.into())),
        caller_calls_at_once: narrow(reader.integer(
            at,
            "caller_calls_at_once",
            1..=CALLS_AT_ONCE_MAX.into(),
        )),
    };
    if let (Some(all), Some(caller)) = (limits.calls_at_once, limits.caller_calls_at_once)
        && caller > all
    {
        let line = reader.get(at, "caller_calls_at_once").map_or(0, |(_, line)| line);
        let text =
            format!("caller_calls_at_once: at most calls_at_once, which is {all}; found {caller}");
        reader.mistake("M0303", line, &text, None);
    }
    limits
}

/// Reads a rate such as `100/s`, and its burst. The default burst is the number of calls in one
/// second.
fn read_rate(
    reader: &mut TomlReader<'_>,
    at: &Section<'_>,
    (key, burst_key): (&str, &str),
) -> Option<RateManifest> {
    let wanted = "NUMBER/s, NUMBER/m or NUMBER/h with 1\u{2013}1000000, e.g. \"100/s\"";
    let burst = narrow(reader.integer(at, burst_key, 1..=RATE_CALLS_MAX.into()));
    let Some(text) = reader.string(at, key, wanted) else {
        if let Some((_, line)) = reader.get(at, burst_key).filter(|_| reader.get(at, key).is_none())
        {
            let text = format!("{burst_key} needs {key}, e.g. {key} = \"100/s\"");
            reader.mistake("M0306", line, &text, None);
        }
        return None;
    };
    let Some((calls, period_ms)) = rate(&text.value) else {
        let found = format!("{key}: {wanted}; found {:?}", text.value);
        reader.mistake("M0303", text.line, &found, None);
        return None;
    };
    let a_second = u64::from(calls) * 1_000 / period_ms;
    let usual = u32::try_from(a_second).unwrap_or(RATE_CALLS_MAX).max(1);
    Some(RateManifest { calls, period_ms, burst: burst.unwrap_or(usual) })
}

fn rate(text: &str) -> Option<(u32, u64)> {
    let (calls, unit) = text.split_once('/')?;
    let period_ms = match unit {
        "s" => 1_000,
        "m" => 60_000,
        "h" => HOUR_MS,
        _ => return None,
    };
    let is_number = calls.bytes().all(|byte| byte.is_ascii_digit());
    let calls = calls.parse().ok().filter(|_| is_number)?;
    (1..=RATE_CALLS_MAX).contains(&calls).then_some((calls, period_ms))
}

fn read_scale(reader: &mut TomlReader<'_>, at: &Section<'_>) -> ScaleManifest {
    reader.check_keys(at, &SCALE_KEYS, &[], &TOP_KEYS);
    let scale = ScaleManifest {
        min: narrow(reader.integer(at, "min", 0..=1000)),
        max: narrow(reader.integer(at, "max", 1..=1000)),
        idle_timeout_ms: reader
            .duration_ms(at, "idle", 0..=24 * 7 * HOUR_MS, "0s\u{2013}168h, e.g. 5m")
            .map(|idle| idle.value),
        queue: narrow(reader.integer(at, "queue", 0..=100_000)),
        policy: read_word(reader, at, "policy", &POLICIES),
        target: read_target(reader, at),
        start: read_word(reader, at, "start", &STARTS),
        balance: read_word(reader, at, "balance", &BALANCES),
        pause_ms: reader
            .duration_ms(at, "pause", 0..=24 * 7 * HOUR_MS, "0s\u{2013}168h, e.g. 10s")
            .map(|pause| pause.value),
        spare: narrow(reader.integer(at, "spare", 0..=100)),
    };
    if let (Some(min), Some(max)) = (scale.min, scale.max)
        && min > max
    {
        let line = reader.get(at, "min").map_or(0, |(_, line)| line);
        let text = format!("min: at most max, which is {max}; found {min}");
        reader.mistake("M0303", line, &text, None);
    }
    scale
}

/// Reads the target, and checks the range for its policy. There is no default target for policies
/// that count calls.
fn read_target(reader: &mut TomlReader<'_>, at: &Section<'_>) -> Option<u32> {
    let policy_line = reader.get(at, "policy").map(|(_, line)| line);
    let policy = reader
        .get(at, "policy")
        .and_then(|(value, _)| value.as_str())
        .map_or(Some("auto"), |name| POLICIES.iter().find(|known| known.0 == name).map(|p| p.0))?;
    let written = reader.get(at, "target").map(|(_, line)| line);
    match (policy, written) {
        ("auto", Some(line)) => {
            let hint = "remove it, or name a policy, e.g. policy = \"concurrency\"".to_owned();
            let text = "target: policy \"auto\" takes no target";
            reader.mistake("M0303", line, text, Some(hint));
            None
        }
        ("concurrency" | "rps", None) => {
            let text = format!("policy \"{policy}\" needs a target");
            let hint =
                "write the calls per instance, e.g. target = 10; policy \"auto\" needs no target"
                    .to_owned();
            reader.mistake("M0303", policy_line.unwrap_or(0), &text, Some(hint));
            None
        }
        ("cpu" | "memory" | "hpa", Some(_)) => narrow(reader.integer(at, "target", 1..=100)),
        _ => narrow(reader.integer(at, "target", 1..=TARGET_MAX.into())),
    }
}

/// Reads a key whose value must be one of a few words.
fn read_word<T: Copy>(
    reader: &mut TomlReader<'_>,
    at: &Section<'_>,
    key: &str,
    words: &[(&str, T)],
) -> Option<T> {
    let quoted: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
    let (last, first) = quoted.split_last()?;
    let wanted = format!("{} or {last}", first.join(", "));
    let text = reader.string(at, key, &wanted)?;
    let found = words.iter().find(|(word, _)| *word == text.value);
    if found.is_none() {
        let near = crate::nearest(&text.value, words.iter().map(|(word, _)| *word));
        let hint = near.map(|near| format!("did you mean \"{near}\"?"));
        reader.mistake("M0303", text.line, &format!("{key}: {wanted}"), hint);
    }
    found.map(|(_, value)| *value)
}

fn read_secrets(reader: &mut TomlReader<'_>, at: &Section<'_>) -> Vec<String> {
    let wanted = "an array of names, e.g. [\"api-key\"]";
    reader.strings(at, "secrets", wanted).map_or_else(Vec::new, |names| names.value)
}

fn read_env(reader: &mut TomlReader<'_>, at: &Section<'_>, function: &mut FunctionManifest) {
    for (key, value) in at.table() {
        let name: &str = key.get_ref();
        let line = reader.line(key.span().start);
        let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
        if !is_env_name(name) {
            let text = format!(
                "`{shown}` in [env]: a name is A\u{2013}Z a\u{2013}z 0\u{2013}9 _, not beginning with a digit"
            );
            reader.mistake("M0303", line, &text, None);
            continue;
        }
        if name.starts_with("MOTE_") || name == "PORT" {
            let text = format!("`{shown}` in [env] is set by mote itself");
            let hint = match name {
                "PORT" => "write `port = ` for the port on which the server listens",
                _ => "choose another name",
            };
            let hint = hint.to_owned();
            reader.mistake("M0303", line, &text, Some(hint));
            continue;
        }
        match value.get_ref().as_str() {
            Some(text) if text.contains('\0') => {
                let text = format!("{shown}: NUL is not allowed");
                reader.mistake("M0303", line, &text, None);
            }
            Some(text) => {
                function.env.insert(name.to_owned(), text.to_owned());
            }
            None => match value.get_ref().as_table() {
                Some(table) => read_secret_variable(reader, (&shown, line), table, function),
                None => reader.wrong_type(&shown, line, ENV_WANTED, value.get_ref()),
            },
        }
    }
}

/// Reads an entry of `[env]` such as `TOKEN = { secret = "api-key" }`, and checks the secret's
/// name.
fn read_secret_variable(
    reader: &mut TomlReader<'_>,
    (name, line): (&str, usize),
    table: &DeTable<'_>,
    function: &mut FunctionManifest,
) {
    let label = format!("{name} of [env]");
    let section = reader.section(table, &label, &label);
    reader.check_keys(&section, &["secret"], &[], &[]);
    match reader.string(&section, "secret", "a name, e.g. \"api-key\"") {
        Some(secret) => {
            function.secret_env.insert(name.to_owned(), secret.value);
        }
        None if table.contains_key("secret") => {}
        None => reader.mistake("M0303", line, &format!("{name}: {ENV_WANTED}"), None),
    }
}

/// Describes the permitted values of a variable, for messages.
const ENV_WANTED: &str = "a string, in quotes, or { secret = \"NAME\" }";

fn is_env_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 128
        && !name.as_bytes()[0].is_ascii_digit()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// A host and port to which a function may connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// Whether the destination is reached with UDP datagrams instead of TCP connections.
    pub is_udp: bool,
    /// A name, an address, or `*` for any host.
    pub host: String,
    /// The port. 0 stands for the usual ports of any host.
    pub port: u16,
}

/// Writes the destination in the form that manifests use.
impl std::fmt::Display for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.is_udp { "udp://" } else { "" };
        match (self.host.as_str(), self.port) {
            ("*", 0) => f.write_str("*"),
            (host, port) if host.contains(':') => write!(f, "{scheme}[{host}]:{port}"),
            (host, port) => write!(f, "{scheme}{host}:{port}"),
        }
    }
}

/// Reads `host:port`, `[IPv6]:port`, `*:port` or `*`. The port of `*` is 0. The host may follow
/// `tcp://` or `udp://`.
pub fn destination(text: &str) -> Option<Destination> {
    let (is_udp, text) = match text.split_once("://") {
        None => (false, text),
        Some(("tcp", rest)) => (false, rest),
        Some(("udp", rest)) => (true, rest),
        Some(_) => return None,
    };
    if text == "*" && !is_udp {
        return Some(Destination { is_udp, host: text.to_owned(), port: 0 });
    }
    let (host, port) = text.rsplit_once(':')?;
    // Brackets separate the colons inside an IPv6 address from the colon before the port.
    let (host, colons) = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        Some(address) => (address, true),
        None => (host, false),
    };
    let plain = !host.is_empty()
        && host.len() <= 253
        && host
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b) || (colons && b == b':'));
    let port = port.parse::<u16>().ok().filter(|port| *port != 0)?;
    let is_any = host == "*" && !is_udp;
    (plain || is_any).then(|| Destination { is_udp, host: host.to_owned(), port })
}

fn read_egress(reader: &mut TomlReader<'_>, at: &Section<'_>) -> Vec<Destination> {
    let wanted = "an array of host:port, e.g. [\"influx.local:8086\"]";
    let Some(list) = reader.strings(at, "net", wanted) else {
        return Vec::new();
    };
    let mut egress = Vec::new();
    for text in &list.value {
        match destination(text) {
            Some(destination) => egress.push(destination),
            None => {
                let shown: String = text.chars().take(64).flat_map(char::escape_debug).collect();
                let text = format!(
                    "net: host:port, e.g. \"influx.local:8086\", udp://host:port, or *:port for any \
                     host over TCP; found \"{shown}\""
                );
                reader.mistake("M0303", list.line, &text, None);
            }
        }
    }
    egress
}

/// Reads an array of names that follow the rule for functions' names. With `any`, `*` is also
/// allowed.
fn read_names(
    reader: &mut TomlReader<'_>,
    at: &Section<'_>,
    key: &str,
    wanted: &str,
    any: bool,
) -> Vec<String> {
    let Some(list) = reader.strings(at, key, wanted) else { return Vec::new() };
    let is_name = |name: &str| {
        let inner = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-');
        (any && name == "*")
            || ((1..=63).contains(&name.len())
                && name.bytes().all(inner)
                && !name.starts_with('-')
                && !name.ends_with('-'))
    };
    if let Some(odd) = list.value.iter().find(|name| !is_name(name)) {
        let shown: String = odd.chars().take(64).flat_map(char::escape_debug).collect();
        let text = format!("{key}: {wanted}; found \"{shown}\"");
        reader.mistake("M0303", list.line, &text, None);
        return Vec::new();
    }
    list.value
}

fn read_triggers(reader: &mut TomlReader<'_>, at: &Section<'_>, function: &mut FunctionManifest) {
    let Some((value, line)) = reader.get(at, "trigger") else {
        return;
    };
    let Some(triggers) = value.as_array() else {
        if value.as_table().is_some_and(|table| schedule::refuse_other_forms(reader, table)) {
            return;
        }
        // A frequent mistake is to write `[[trigger.mqtt]]` or `[trigger]`.
        let key = value.as_table().and_then(|table| table.keys().next());
        let key: Option<&str> = key.map(|key| key.get_ref().as_ref());
        if let Some(key @ ("http" | "coap" | "mqtt")) = key {
            let text = format!("trigger: each trigger is a section [[trigger]] with a key `{key}`");
            let hint = format!("write [[trigger]], and {key} = \"…\" below it");
            reader.mistake("M0303", line, &text, Some(hint));
            return;
        }
        reader.wrong_type("trigger", line, "sections [[trigger]]", value);
        return;
    };
    for trigger in triggers {
        let line = reader.line(trigger.span().start);
        let Some(table) = trigger.get_ref().as_table() else {
            reader.wrong_type("trigger", line, "a section [[trigger]]", trigger.get_ref());
            continue;
        };
        read_trigger(reader, table, line, function);
    }
}

fn read_trigger(
    reader: &mut TomlReader<'_>,
    table: &DeTable<'_>,
    line: usize,
    function: &mut FunctionManifest,
) {
    if schedule::refuse_other_forms(reader, table) {
        return;
    }
    if schedule::is_one(table) {
        return schedule::read(reader, table, line, function);
    }
    let section = reader.section(table, "[[trigger]]", "that trigger");
    let mut known = vec!["mqtt", "cron", "every"];
    known.extend(schema::FRONT_KEYS);
    known.extend(mqtt::MQTT_KEYS);
    reader.check_keys(&section, &known, &["observe"], &TOP_KEYS);
    if let Some(filter) = reader.string(&section, "mqtt", "a topic filter, e.g. \"sensors/+/temp\"")
    {
        let others = ["http", "coap"];
        if let Some(other) = others.iter().find(|other| table.contains_key(**other)) {
            let text = format!("one [[trigger]] has either mqtt or {other}");
            let hint = "write two [[trigger]] sections".to_owned();
            reader.mistake("M0303", filter.line, &text, Some(hint));
        }
        for key in ["title", "rt", "ct"] {
            belongs_to(reader, &section, key, "a coap");
        }
        function.mqtt.push(mqtt::read_mqtt(reader, &section, filter));
        return;
    }
    if !table.contains_key("mqtt") {
        for key in mqtt::MQTT_KEYS {
            belongs_to(reader, &section, key, "an mqtt");
        }
    }
    let http = reader.string(&section, "http", "a path, e.g. \"/thermo\"");
    let coap = reader.string(&section, "coap", "a path, e.g. \"thermo\"");
    let planned = table.contains_key("mqtt");
    match (http, coap) {
        (Some(_), Some(coap)) => {
            let hint = "write two [[trigger]] sections".to_owned();
            let text = "one [[trigger]] has either http or coap";
            reader.mistake("M0303", coap.line, text, Some(hint));
        }
        (Some(http), None) => {
            if !http.value.starts_with('/') {
                let hint = format!("did you mean \"/{}\"?", http.value);
                let text = "http: a path that begins with /";
                reader.mistake("M0303", http.line, text, Some(hint));
            } else if function.http.is_some() {
                let text = "one http trigger per function";
                reader.mistake("M0305", http.line, text, None);
            }
            for key in ["title", "rt", "ct"] {
                belongs_to(reader, &section, key, "a coap");
            }
            function.http = Some(http);
        }
        (None, Some(coap)) => {
            if function.coap.is_some() {
                reader.mistake("M0305", coap.line, "one coap trigger per function", None);
            }
            let value = CoapManifest {
                path: coap.value.trim_start_matches('/').to_owned(),
                title: attribute(reader, &section, "title"),
                resource_type: attribute(reader, &section, "rt"),
                content_format: reader
                    .integer(&section, "ct", 0..=u64::from(u16::MAX))
                    .and_then(|ct| u16::try_from(ct.value).ok()),
            };
            function.coap = Some(Lined { value, line: coap.line });
        }
        (None, None) => {
            let broken = table.contains_key("http") || table.contains_key("coap");
            if !planned && !broken {
                let text = "a [[trigger]] needs http = \"/path\", coap = \"path\", mqtt = \"filter\", cron or every";
                reader.mistake("M0306", line, text, None);
            }
        }
    }
}

/// If `key` is present, records that it belongs only to triggers of another kind.
fn belongs_to(reader: &mut TomlReader<'_>, at: &Section<'_>, key: &str, kind: &str) {
    if let Some((_, line)) = reader.get(at, key) {
        reader.mistake("M0303", line, &format!("`{key}` belongs to {kind} trigger"), None);
    }
}

/// Reads a CoRE link attribute. It must not contain quotes or control characters, because it is
/// sent between quotes.
fn attribute(reader: &mut TomlReader<'_>, at: &Section<'_>, key: &str) -> Option<String> {
    let text = reader.string(at, key, "a string")?;
    if text.value.len() > 128 || text.value.chars().any(|c| c.is_control() || c == '"' || c == '\\')
    {
        let message = format!("{key}: at most 128 bytes, without quotes and control characters");
        reader.mistake("M0303", text.line, &message, None);
        return None;
    }
    Some(text.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: &str) {
        let error = Manifest::parse(FILE_NAME, source).expect_err(source);
        assert_eq!(error.to_string(), expected, "{source}");
    }

    #[test]
    fn calls_and_state() {
        let source = "version = 1\n[allow]\nfunctions = [\"a-1\", \"*\"]\n[kv]\nshared = [\"site\"]\n\
                      quota = \"1MiB\"\n";
        let mut functions = Manifest::parse(FILE_NAME, source).expect("valid").functions;
        let function = functions.pop().expect("one function");
        assert_eq!(function.calls, ["a-1", "*"]);
        assert_eq!(function.shared_state, ["site"]);
        assert_eq!(function.state_quota_bytes, Some(1 << 20));
        let mistakes =
            |source: &str| Manifest::parse(FILE_NAME, source).expect_err(source).to_string();
        let wrong = mistakes("version = 1\n[allow]\nfunctions = [\"A b\"]\n");
        assert!(wrong.contains("functions: an array of names"), "{wrong}");
        let wrong = mistakes("version = 1\n[kv]\nshared = [\"*\"]\n");
        assert!(wrong.contains("shared: an array of names"), "{wrong}");
        let wrong = mistakes("version = 1\n[kv]\nquota = \"9GiB\"\n");
        assert!(wrong.contains("quota: 0 to 1GiB"), "{wrong}");
    }

    #[test]
    fn access_modes() {
        let access = |section: &str| {
            let source = format!("version = 1\n{section}");
            Manifest::parse(FILE_NAME, &source).expect("valid").functions.remove(0).access
        };
        assert_eq!(access(""), None);
        assert_eq!(access("[access]\nmode = \"public\"\n"), Some(AccessName::Public));
        assert_eq!(access("[access]\nmode = \"key\"\n"), Some(AccessName::Key));
        assert_eq!(access("[access]\nmode = \"local\"\n"), Some(AccessName::Local));
        for (source, expected) in [
            (
                "[access]\nmode = \"keys\"\n",
                "error[M0303]: mote.toml: mode: \"public\", \"key\", \"basic\", \"jwt\", \"mtls\", \"webhook\" or \"local\" (line 3)\n  did you mean \"key\"?",
            ),
            (
                "[access]\nmode = true\n",
                "error[M0303]: mote.toml: mode: \"public\", \"key\", \"basic\", \"jwt\", \"mtls\", \"webhook\" or \"local\"; found true or false (line 3)",
            ),
            (
                "[access]\nmod = \"key\"\n",
                "error[M0306]: mote.toml: [access] needs mode, e.g. mode = \"key\" (line 2)\nerror[M0302]: mote.toml: unknown key `mod` in [access] (line 3)\n  did you mean `mode`?",
            ),
            (
                "access = \"key\"\n",
                "error[M0303]: mote.toml: access: a section [access]; found a string (line 2)",
            ),
        ] {
            check(&format!("version = 1\n{source}"), expected);
        }
    }

    #[test]
    fn a_full_manifest() {
        let source = r#"
version = 1
name = "thermo"
runtime = "python"
entry = "app:handle"
methods = ["GET", "POST"]
secrets = ["api-key", "db.password"]
[limits]
memory = "96MiB"
timeout = "2s"
init_timeout = "20s"
concurrency = 4
cpu = 0.5
pids = 32
body = "1MiB"
disk = "8MiB"
[scale]
min = 1
max = 4
idle = "5m"
queue = 64
policy = "rps"
target = 20
start = "warm"
balance = "round-robin"
[env]
UNIT = "C"
TOKEN = { secret = "api-key" }
[[trigger]]
http = "/thermo"
[[trigger]]
coap = "thermo"
title = "Thermometer"
rt = "temperature-c"
ct = 50
[[trigger]]
mqtt = "sensors/+/temp"
broker = "mqtts://broker.local"
qos = 2
version = "3.1.1"
username = "thermo"
password = { secret = "mqtt-password" }
ca = { secret = "ca" }
certificate = { secret = "certificate" }
key = { secret = "key" }
session = "clean"
inflight = 8
acknowledge = "stored"
order = "none"
reply = "sensors/{1}/alert"
[[trigger]]
mqtt = "a"
[allow]
net = ["influx.local:8086", "[::1]:80", "udp://192.0.2.7:5683"]
[build]
command = "make"
"#;
        let manifest = Manifest::parse(FILE_NAME, source).unwrap();
        let function = &manifest.functions[0];
        assert_eq!(function.name.as_ref().unwrap().value, "thermo");
        assert_eq!(function.limits.memory_bytes, Some(96 << 20));
        assert_eq!(function.limits.cpu_millis, Some(500));
        assert_eq!(function.scale.idle_timeout_ms, Some(300_000));
        assert_eq!(function.scale.policy, Some(PolicyName::Rps));
        assert_eq!(function.scale.target, Some(20));
        assert_eq!(function.scale.start, Some(StartName::Warm));
        assert_eq!(function.scale.balance, Some(BalanceName::RoundRobin));
        assert_eq!(function.secrets, ["api-key", "db.password"]);
        assert_eq!(function.env["UNIT"], "C");
        assert_eq!((function.env.len(), function.secret_env["TOKEN"].as_str()), (1, "api-key"));
        let to = |is_udp, host: &str, port| Destination { is_udp, host: host.to_owned(), port };
        let expected =
            [to(false, "influx.local", 8086), to(false, "::1", 80), to(true, "192.0.2.7", 5683)];
        assert_eq!(function.egress, expected);
        let coap = &function.coap.as_ref().unwrap().value;
        assert_eq!(coap.content_format, Some(50));
        assert_eq!(coap.title.as_deref(), Some("Thermometer"));
        assert_eq!(function.build_command.as_deref(), Some("make"));
        let [mqtt, second] = &function.mqtt[..] else { panic!("{:?}", function.mqtt) };
        let text = |lined: &Option<Lined<String>>| lined.as_ref().map(|lined| lined.value.clone());
        assert_eq!(mqtt.filter.value, "sensors/+/temp");
        assert_eq!(text(&mqtt.broker).as_deref(), Some("mqtts://broker.local"));
        assert_eq!((mqtt.qos, mqtt.inflight), (Some(2), Some(8)));
        assert_eq!(mqtt.version, Some(MqttVersionName::V311));
        assert_eq!(text(&mqtt.password).as_deref(), Some("mqtt-password"));
        assert_eq!(text(&mqtt.key).as_deref(), Some("key"));
        assert_eq!(mqtt.session, Some(SessionName::Clean));
        assert_eq!(mqtt.acknowledge, Some(AcknowledgeName::Stored));
        assert_eq!(mqtt.order, Some(OrderName::None));
        assert_eq!(text(&mqtt.reply).as_deref(), Some("sensors/{1}/alert"));
        assert_eq!(mqtt.line_of("reply"), mqtt.reply.as_ref().unwrap().line);
        let filter = Lined { value: "a".to_owned(), line: second.filter.line };
        assert_eq!(*second, MqttManifest { filter, ..MqttManifest::default() });
    }

    #[test]
    fn several_functions_share_a_file() {
        let source = "version = 1\n[function.b]\nruntime = \"node\"\n[function.a]\nruntime = \"exec\"\ncommand = [\"./a\"]\n[function.a.limits]\nmemory = \"8MiB\"\n";
        let manifest = Manifest::parse(FILE_NAME, source).unwrap();
        let names: Vec<_> = manifest
            .functions
            .iter()
            .map(|function| function.name.as_ref().unwrap().value.as_str())
            .collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(manifest.functions[0].limits.memory_bytes, Some(8 << 20));
    }

    #[test]
    fn mistakes_in_the_words_users_read() {
        check(
            "version = 1\nname = \"x\"\n\n# limits\n\n[limits]\nmemory = \"64MiB\"\n\ntimeot = \"1s\"\n",
            "error[M0302]: mote.toml: unknown key `timeot` in [limits] (line 9)\n  did you mean `timeout`?",
        );
        check(
            "version = 1\n[[trigger]]\nhttp = \"/x\"\nname = \"x\"\n",
            "error[M0304]: mote.toml: `name` (line 4) is below [[trigger]], so TOML reads it as part of that trigger\n  move it above the first [section]",
        );
        check(
            "version = 1\n[limits]\nentry = \"x\"\n",
            "error[M0304]: mote.toml: `entry` (line 3) is below [limits], so TOML reads it as part of [limits]\n  move it above the first [section]",
        );
        check(
            "version = 1\n[limits]\nmemory = \"64mb\"\ntimeout = \"0s\"\n",
            "error[M0303]: mote.toml: memory: 4MiB–512GiB, e.g. 64MiB; found \"64mb\" (line 3)\n  did you mean `64MiB`?\nerror[M0303]: mote.toml: timeout: 1ms–1h, e.g. 10s; found \"0s\" (line 4)",
        );
        check(
            "version = 1\n[[trigger]]\nmqtt = \"a\"\npassword = \"x\"\nqos = 3\nsession = \"clear\"\ntitle = \"x\"\n",
            "error[M0303]: mote.toml: password: { secret = \"NAME\" }; found a string (line 4)\nerror[M0303]: mote.toml: qos: a whole number from 0 to 2; found 3 (line 5)\nerror[M0303]: mote.toml: session: \"persistent\" or \"clean\" (line 6)\n  did you mean \"clean\"?\nerror[M0303]: mote.toml: `title` belongs to a coap trigger (line 7)",
        );
        check(
            "version = 1\n[[trigger]]\nhttp = \"/x\"\nreply = \"x\"\n",
            "error[M0303]: mote.toml: `reply` belongs to an mqtt trigger (line 4)",
        );
        check(
            "version = 1\n[[trigger.mqtt]]\ntopic = \"a\"\n",
            "error[M0303]: mote.toml: trigger: each trigger is a section [[trigger]] with a key `mqtt` (line 2)\n  write [[trigger]], and mqtt = \"…\" below it",
        );
        check(
            "version = 1\n[[trigger]]\nmqtt = \"a\"\nhttp = \"/x\"\n",
            "error[M0303]: mote.toml: one [[trigger]] has either mqtt or http (line 3)\n  write two [[trigger]] sections",
        );
        check(
            "name = \"x\"\n",
            "error[M0306]: mote.toml: `version` is missing\n  write `version = 1` as its first line",
        );
        check(
            "version = 1\nname = thermo\n",
            "error[M0301]: mote.toml: `thermo` needs quotes (line 2)\n  write name = \"thermo\"",
        );
        check(
            "version = 1\nruntime = \"pyton\"\n",
            "error[M0303]: mote.toml: runtime: \"python\", \"node\", \"bun\", \"deno\", \"go\", \"rust\", \"wasm\", \"exec\", \"server\" or \"chain\" (line 2)\n  did you mean \"python\"?",
        );
        check(
            "version = 1\n[scale]\npolicy = \"knativ\"\nstart = \"hot\"\n",
            "error[M0303]: mote.toml: policy: \"auto\", \"concurrency\", \"rps\", \"cpu\", \"memory\", \"knative\", \"hpa\" or \"openfaas\" (line 3)\n  did you mean \"knative\"?\nerror[M0303]: mote.toml: start: \"cold\", \"warm\" or \"always\" (line 4)",
        );
        check(
            "version = 1\ncompat = \"openfass\"\n",
            "error[M0303]: mote.toml: compat: \"tinyfaas\", \"openfaas\", \"nuclio\", \"kubeless\", \"openwhisk\", \"knative\" or \"fission\" (line 2)\n  did you mean \"openfaas\"?",
        );
        check(
            "version = 1\n[scale]\nbalance = \"roundrobin\"\n",
            "error[M0303]: mote.toml: balance: \"late-binding\", \"round-robin\", \"random\", \"least-connections\", \"per-caller\" or \"per-call\" (line 3)\n  did you mean \"round-robin\"?",
        );
        check(
            "version = 1\n[scale]\npolicy = \"rps\"\n",
            "error[M0303]: mote.toml: policy \"rps\" needs a target (line 3)\n  write the calls per instance, e.g. target = 10; policy \"auto\" needs no target",
        );
        check(
            "version = 1\n[scale]\ntarget = 10\n",
            "error[M0303]: mote.toml: target: policy \"auto\" takes no target (line 3)\n  remove it, or name a policy, e.g. policy = \"concurrency\"",
        );
        check(
            "version = 1\nsecrets = \"api-key\"\n[env]\nA = { secrt = \"x\" }\nB = { secret = 1 }\n",
            "error[M0303]: mote.toml: secrets: an array of names, e.g. [\"api-key\"]; found a string (line 2)\nerror[M0302]: mote.toml: unknown key `secrt` in A of [env] (line 4)\n  did you mean `secret`?\nerror[M0303]: mote.toml: A: a string, in quotes, or { secret = \"NAME\" } (line 4)\nerror[M0303]: mote.toml: secret: a name, e.g. \"api-key\"; found an integer (line 5)",
        );
        check(
            "version = 1\n[allow]\nsecrets = [\"x\"]\n",
            "error[M0304]: mote.toml: `secrets` (line 3) is below [allow], so TOML reads it as part of [allow]\n  move it above the first [section]",
        );
        check(
            "version = 1\n[env]\n\"A=B\" = \"x\"\nN = 3\nMOTE_X = \"1\"\n",
            "error[M0303]: mote.toml: `A=B` in [env]: a name is A–Z a–z 0–9 _, not beginning with a digit (line 3)\nerror[M0303]: mote.toml: N: a string, in quotes, or { secret = \"NAME\" }; found an integer (line 4)\nerror[M0303]: mote.toml: `MOTE_X` in [env] is set by mote itself (line 5)\n  choose another name",
        );
    }

    #[test]
    fn hostile_numbers_are_refused_without_a_panic() {
        for value in [
            "\"-1\"",
            "\"1e999\"",
            "-1",
            "1e999",
            "nan",
            "inf",
            "true",
            "[]",
            "{}",
            "\"\"",
            "\"99999999999999999999999MiB\"",
            "1979-05-27",
            "0xffffffffffffffffffff",
        ] {
            for key in ["memory", "timeout", "concurrency", "cpu", "pids", "body", "disk"] {
                let source = format!("version = 1\n[limits]\n{key} = {value}\n");
                assert!(Manifest::parse(FILE_NAME, &source).is_err(), "{source}");
            }
        }
    }
}
