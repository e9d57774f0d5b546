//! The configuration of a node: from flags, then `MOTE_*`, then the file, then defaults.
//!
//! Only this module reads the node's file and environment. It turns raw texts into a checked
//! [`Config`], reports all mistakes together, and keeps the origin of each value. It must not know
//! verbs, or how a mistake is shown. Start reading at [`Loaded::load`].

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use crate::UID_BASE_DEFAULT;
use crate::config::{Config, OwnBroker, Share};
use mote_spec::mqtt::{Broker, LOCAL};
use mote_spec::quantity::parse_size;
use mote_spec::toml_reader::{Mistake, Mistakes, TomlReader};

mod access_log;
mod acme;
mod cells;
mod client_ca;
mod function_ports;
mod journal;
mod logs;
mod nats;
mod platforms;
mod proxies;
mod reach;
mod secrets;
mod shared_folders;
mod table;
mod traces;

pub use table::{SETTINGS, Setting};

pub const FILE_NAME: &str = "mote-node.toml";

const HTTP_PORT_DEFAULT: u16 = 6683;
const HTTPS_PORT: u16 = 6684;
const COAP_PORT_DEFAULT: u16 = 5683;
const COAPS_PORT: u16 = 5684;
const MQTT_PORT: u16 = 1883;
const MQTTS_PORT: u16 = 8883;
const MQTT_BROKER_DEFAULT: &str = "mqtt://127.0.0.1:1883";
const THREADS_MAX: usize = 64;
/// With the largest factor, the default timeout of 10 s becomes about a quarter of an hour. An
/// emulated processor is up to 50 times slower than the processor that emulates it.
const TIMEOUT_FACTORS: RangeInclusive<u64> = 1..=100;
const NATS_REPLICAS_MAX: u8 = 5;
/// The smallest base is above the user ids that every system assigns itself, including `nobody`.
/// From the largest base, the ids of the last instances still stay below the greatest possible id.
const UID_BASES: RangeInclusive<u64> = 65_536..=4_294_000_000;
/// A quarter of the memory is left for everything that is not counted: the system, the node itself,
/// the page cache from which code is read, and package installations. Instances seldom use up their
/// limits. Even if all of them do, this margin keeps the kernel's out-of-memory killer from acting.
const MEMORY_DEFAULT: Share = Share::Percent(75);
/// Longest path of a Unix socket that the kernel accepts.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// A configuration that was read and checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    pub config: Config,
    /// The text and the origin of each setting, in the order of [`SETTINGS`].
    pub origins: Vec<(&'static str, String, Origin)>,
}

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Flag,
    /// An environment variable.
    Env(String),
    File(PathBuf, usize),
    /// The default, because no source sets the value.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag => f.write_str("flag"),
            Origin::Env(name) => f.write_str(name),
            Origin::File(path, line) => write!(f, "{}:{line}", path.display()),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// The sources of the configuration outside this program, as texts that are not checked yet.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// Values of flags, by the key of the setting.
    pub flags: Vec<(&'static str, String)>,
    pub config: Option<PathBuf>,
    /// Environment variables.
    pub env: Vec<(String, String)>,
    pub is_root: bool,
}

impl Given {
    /// Combines the flags with this process's environment and user.
    pub fn from_process(flags: Vec<(&'static str, String)>, config: Option<PathBuf>) -> Self {
        Self {
            flags,
            config,
            env: std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
            is_root: rustix::process::geteuid().is_root(),
        }
    }

    fn env(&self, name: &str) -> Option<&str> {
        self.env
            .iter()
            .find(|(key, value)| key == name && !value.is_empty())
            .map(|(_, value)| value.as_str())
    }

    fn home(&self) -> PathBuf {
        PathBuf::from(self.env("HOME").unwrap_or("/"))
    }

    fn data_default(&self) -> PathBuf {
        if self.is_root {
            return "/var/lib/mote".into();
        }
        match self.env("XDG_DATA_HOME") {
            Some(dir) => Path::new(dir).join("mote"),
            None => self.home().join(".local/share/mote"),
        }
    }

    fn socket_default(&self, data: &Path) -> PathBuf {
        if self.is_root {
            return "/run/mote/mote.sock".into();
        }
        match self.env("XDG_RUNTIME_DIR") {
            Some(dir) => Path::new(dir).join("mote.sock"),
            None => data.join("mote.sock"),
        }
    }

    /// The file to read, and whether it must exist.
    fn file(&self) -> (PathBuf, bool) {
        match &self.config {
            Some(path) => (path.clone(), true),
            None => self.file_of_user("MOTE_CONFIG", FILE_NAME),
        }
    }

    /// The file that a variable names, or otherwise the file `name` in this user's configuration
    /// folder. Also returns whether the file must exist.
    pub fn file_of_user(&self, variable: &str, name: &str) -> (PathBuf, bool) {
        match self.env(variable) {
            Some(path) => (path.into(), true),
            None => (self.folder().join(name), false),
        }
    }

    /// The folder for this user's configuration.
    fn folder(&self) -> PathBuf {
        if self.is_root {
            return "/etc/mote".into();
        }
        match self.env("XDG_CONFIG_HOME") {
            Some(dir) => Path::new(dir).join("mote"),
            None => self.home().join(".config/mote"),
        }
    }
}

/// The socket at which a client reaches this user's node by default.
pub fn default_socket(given: &Given) -> PathBuf {
    match given.env("MOTE_SOCKET") {
        Some(path) => path.into(),
        None => given.socket_default(&given.data_default()),
    }
}

impl Loaded {
    /// Reads and checks the whole configuration. Reports all mistakes together.
    pub fn load(given: &Given) -> Result<Self, Mistakes> {
        let (path, required) = given.file();
        let (file, mut mistakes) = read_file(&path, required)?;
        let mut origins = Vec::new();
        for setting in &SETTINGS {
            let (text, origin) = given.pick(setting.key, &file, &path);
            origins.push((setting.key, text, origin));
        }
        let mut check = Check { origins: &mut origins, mistakes: &mut mistakes };

        let lan = check.boolean("lan", false);
        let access = check.access();
        let memory = check.memory();
        let threads = check.threads();
        let polling = check.boolean("polling", true);
        let timeout_factor = check.timeout_factor();
        let prewarm_bytes = check.prewarm();
        let uid_base = check.uid_base();
        let host =
            if lan { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::LOCALHOST) };
        let http = check.address("http", Some(SocketAddr::new(host, HTTP_PORT_DEFAULT)), lan);
        let https = check.offered("https", SocketAddr::new(host, HTTPS_PORT), lan);
        let compat = check.compat(host, lan);
        let coap = check.coap(SocketAddr::new(host, COAP_PORT_DEFAULT), lan, &compat);
        let coap_tcp = check.offered("coap_tcp", SocketAddr::new(host, COAP_PORT_DEFAULT), lan);
        let coap_dtls = check.offered("coap_dtls", SocketAddr::new(host, COAPS_PORT), lan);
        let coap_tls = check.offered("coap_tls", SocketAddr::new(host, COAPS_PORT), lan);
        let admin_plain = check.strip("admin", "http://");
        let admin = check.address("admin", None, true);
        let mqtt = check.mqtt(host, lan);
        let mqtt_tls = mqtt.as_ref().and_then(|broker| broker.tls);
        let mqtt_broker = check.mqtt_broker(mqtt.is_some());
        let nats = check.nats();
        let journal_name = check.journal_name(nats.is_some());
        let schedule_journal = check.schedule_journal(journal_name.as_deref());
        let cell = check.cells();
        let outgoing = check.outgoing();
        let closed_networks = check.closed_networks();
        let shared_folders = check.shared_folders();
        let data = check.path("data", given.data_default());
        let secrets_key = check.secrets_key();
        let certificates = check.path("certificates", data.join("certificates"));
        let client_ca = check.client_ca(https.or(coap_tls).or(coap_dtls).or(mqtt_tls).is_some());
        let acme = check.acme(https.is_some());
        let function_ports = check.function_ports();
        let proxies = check.proxies();
        let access_log = check.access_log();
        let logs = check.logs();
        let (collector, traces) = check.collector_and_traces();
        let socket = check.path("socket", given.socket_default(&data));
        if socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            check.fault("socket", &format!("at most {SOCKET_PATH_BYTES_MAX} bytes"), None);
        }
        let cell_at = cell.as_ref().map(|cell| cell.listen);
        let own = [
            ("http", http),
            ("https", https),
            ("coap_tcp", coap_tcp),
            ("coap_tls", coap_tls),
            ("admin", admin),
            ("mqtt", mqtt.as_ref().map(|broker| broker.listen)),
            ("mqtt_tls", mqtt_tls),
            ("cell", cell_at),
        ];
        check.distinct(&own, &compat);
        if mistakes.is_empty() {
            let config = Config {
                data,
                secrets_key,
                http,
                https,
                certificates,
                client_ca,
                acme,
                function_ports,
                proxies,
                access_log,
                logs,
                collector,
                traces,
                coap,
                coap_tcp,
                coap_dtls,
                coap_tls,
                admin,
                admin_plain,
                socket,
                lan,
                access,
                memory,
                threads,
                polling,
                timeout_factor,
                prewarm_bytes,
                inspect: false,
                go_tests: false,
                go_cache: None,
                packages_cache: None,
                uid_base,
                compat,
                mqtt,
                mqtt_broker,
                nats,
                journal_name,
                schedule_journal,
                cell,
                outgoing,
                closed_networks,
                shared_folders,
            };
            Ok(Self { config, origins })
        } else {
            Err(Mistakes(mistakes))
        }
    }
}

impl Given {
    fn pick(&self, key: &'static str, file: &Values, path: &Path) -> (String, Origin) {
        if let Some((_, text)) = self.flags.iter().find(|(flag, _)| *flag == key) {
            return (text.clone(), Origin::Flag);
        }
        let name = format!("MOTE_{}", key.to_uppercase());
        if let Some(text) = self.env(&name) {
            return (text.to_owned(), Origin::Env(name));
        }
        match file.iter().find(|(name, ..)| name == key) {
            Some((_, text, line)) => (text.clone(), Origin::File(path.to_owned(), *line)),
            None => (String::new(), Origin::Default),
        }
    }
}

/// Key, text and line number of each value in a file.
type Values = Vec<(String, String, usize)>;

/// Returns the values of the file, and the mistakes in its syntax. If the file cannot be read at
/// all, this fails, because its values are not known.
fn read_file(path: &Path, required: bool) -> Result<(Values, Vec<Mistake>), Mistakes> {
    let shown = path.display().to_string();
    let fault = |text: String| {
        Mistakes(vec![Mistake {
            line: 0,
            code: "M0203",
            text: format!("{shown}: {text}"),
            hint: None,
        }])
    };
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !required => {
            return Ok((Vec::new(), Vec::new()));
        }
        Err(error) => {
            let text = error.to_string();
            let words = text.split(" (os error").next().unwrap_or("");
            return Err(fault(words.to_lowercase()));
        }
    };
    let source = String::from_utf8(bytes).map_err(|_| fault("not UTF-8".to_owned()))?;
    let mut reader = TomlReader::new(&shown, &source);
    let document = reader.parse()?;
    let top = reader.top(document.get_ref());
    let known: Vec<&str> = SETTINGS.iter().map(|setting| setting.key).collect();
    reader.check_keys(&top, &known, &["tls", "limits"], &[]);
    let mut values = Vec::new();
    for key in known {
        let value = match key {
            "lan" | "polling" => {
                reader.boolean(&top, key).map(|value| (value.value.to_string(), value.line))
            }
            "threads" => reader
                .integer(&top, key, 0..=THREADS_MAX as u64)
                .map(|value| (value.value.to_string(), value.line)),
            "timeout_factor" => reader
                .integer(&top, key, TIMEOUT_FACTORS)
                .map(|value| (value.value.to_string(), value.line)),
            "nats_replicas" => reader
                .integer(&top, key, 1..=NATS_REPLICAS_MAX.into())
                .map(|value| (value.value.to_string(), value.line)),
            "uid_base" => reader
                .integer(&top, key, UID_BASES)
                .map(|value| (value.value.to_string(), value.line)),
            _ => reader.string(&top, key, "a string").map(|value| (value.value, value.line)),
        };
        if let Some((text, line)) = value {
            values.push((key.to_owned(), text, line));
        }
    }
    Ok((values, reader.mistakes()))
}

struct Check<'a> {
    origins: &'a mut Vec<(&'static str, String, Origin)>,
    mistakes: &'a mut Vec<Mistake>,
}

impl Check<'_> {
    /// The text given for `key`; `None` when the default applies.
    fn given(&self, key: &str) -> Option<String> {
        self.origins
            .iter()
            .find(|(name, _, origin)| *name == key && *origin != Origin::Default)
            .map(|(_, text, _)| text.clone())
    }

    fn mqtt(&mut self, host: IpAddr, lan: bool) -> Option<OwnBroker> {
        let listen = self.offered("mqtt", SocketAddr::new(host, MQTT_PORT), lan);
        let tls = self.offered("mqtt_tls", SocketAddr::new(host, MQTTS_PORT), lan);
        let given = self.given("mqtt_anonymous");
        let words = ["loopback", "off", "all"];
        let given = given.as_deref().unwrap_or(words[0]);
        let anonymous = words.into_iter().find(|word| *word == given).unwrap_or_else(|| {
            self.fault("mqtt_anonymous", "loopback, off or all", None);
            words[0]
        });
        self.settle("mqtt_anonymous", anonymous.to_owned());
        if tls.is_some() && listen.is_none() {
            self.fault("mqtt_tls", "needs mqtt = \"on\" or an address", None);
        }
        Some(OwnBroker { listen: listen?, tls, anonymous })
    }

    fn mqtt_broker(&mut self, has_own: bool) -> String {
        let given = self.given("mqtt_broker");
        let address = given.as_deref().filter(|text| *text != LOCAL);
        if let Some(Err(wanted)) = address.map(Broker::parse) {
            self.fault("mqtt_broker", &wanted, None);
        }
        if given.as_deref() == Some(LOCAL) && !has_own {
            self.fault("mqtt_broker", "needs mqtt = \"on\" or an address", None);
        }
        let default = if has_own { LOCAL } else { MQTT_BROKER_DEFAULT };
        let text = given.unwrap_or_else(|| default.to_owned());
        self.settle("mqtt_broker", text.clone());
        text
    }

    /// Removes a prefix from the text given for `key`. Returns whether the text had the prefix.
    fn strip(&mut self, key: &str, prefix: &str) -> bool {
        let entry = self.origins.iter_mut().find(|(name, ..)| *name == key);
        let Some((_, text, Origin::Flag | Origin::Env(_) | Origin::File(..))) = entry else {
            return false;
        };
        let rest = text.strip_prefix(prefix).map(str::to_owned);
        rest.is_some_and(|rest| {
            *text = rest;
            true
        })
    }

    /// Records the text of the value that applies, for `mote config show`.
    fn settle(&mut self, key: &str, text: String) {
        if let Some(entry) = self.origins.iter_mut().find(|(name, ..)| *name == key) {
            entry.1 = text;
        }
    }

    fn fault(&mut self, key: &str, wanted: &str, hint: Option<String>) {
        let found = self.origins.iter().find(|(name, ..)| *name == key);
        let (text, place) = found.map_or_else(Default::default, |(_, text, origin)| {
            let shown: String = text.chars().take(64).flat_map(char::escape_debug).collect();
            let place = match origin {
                Origin::Flag => format!(" (--{})", key.replace('_', "-")),
                Origin::Env(name) => format!(" ({name})"),
                Origin::File(path, line) => format!(" ({}, line {line})", path.display()),
                Origin::Default => String::new(),
            };
            (shown, place)
        });
        self.mistakes.push(Mistake {
            line: 0,
            code: "M0203",
            text: format!("{key}: {wanted}; found \"{text}\"{place}"),
            hint,
        });
    }

    fn boolean(&mut self, key: &str, default: bool) -> bool {
        let value = match self.given(key).as_deref() {
            None => default,
            Some("false" | "0" | "no" | "off") => false,
            Some("true" | "1" | "yes" | "on") => true,
            Some(_) => {
                self.fault(key, "true or false", None);
                return default;
            }
        };
        self.settle(key, value.to_string());
        value
    }

    fn threads(&mut self) -> usize {
        let given = self.given("threads");
        let parsed = given.as_deref().map_or(Ok(0), str::parse);
        let Some(threads) = parsed.ok().filter(|threads| *threads <= THREADS_MAX) else {
            self.fault("threads", &format!("a whole number from 0 to {THREADS_MAX}"), None);
            return 0;
        };
        self.settle("threads", threads.to_string());
        threads
    }

    fn uid_base(&mut self) -> u32 {
        let given = self.given("uid_base");
        let parsed = given.as_deref().map_or(Ok(UID_BASE_DEFAULT), str::parse);
        let Some(base) = parsed.ok().filter(|base| UID_BASES.contains(&u64::from(*base))) else {
            let first = UID_BASES.start();
            let last = UID_BASES.end();
            self.fault("uid_base", &format!("a whole number from {first} to {last}"), None);
            return UID_BASE_DEFAULT;
        };
        self.settle("uid_base", base.to_string());
        base
    }

    fn timeout_factor(&mut self) -> u32 {
        let given = self.given("timeout_factor");
        let parsed = given.as_deref().map_or(Ok(1), str::parse);
        let Some(factor) = parsed.ok().filter(|it| TIMEOUT_FACTORS.contains(&u64::from(*it)))
        else {
            let least = TIMEOUT_FACTORS.start();
            let most = TIMEOUT_FACTORS.end();
            self.fault("timeout_factor", &format!("a whole number from {least} to {most}"), None);
            return 1;
        };
        self.settle("timeout_factor", factor.to_string());
        factor
    }

    fn prewarm(&mut self) -> Option<u64> {
        let given = self.given("prewarm");
        match given.as_deref() {
            None | Some("auto") => self.settle("prewarm", "auto".to_owned()),
            Some("off") => return Some(0),
            Some(size) => match parse_size(size) {
                Ok(bytes) => return Some(bytes),
                Err(_) => self.fault("prewarm", "auto, off, or a size such as 64MiB", None),
            },
        }
        None
    }

    fn memory(&mut self) -> Share {
        let given = self.given("memory");
        let parsed = given.as_deref().map_or(Some(MEMORY_DEFAULT), Share::parse);
        let Some(memory) = parsed else {
            self.fault("memory", "a size from 4MiB, e.g. 512MiB, or 1% to 100%", None);
            return MEMORY_DEFAULT;
        };
        self.settle("memory", memory.to_string());
        memory
    }

    fn path(&mut self, key: &str, default: PathBuf) -> PathBuf {
        let path = match self.given(key) {
            Some(text) if text.is_empty() || text.contains('\0') => {
                self.fault(key, "a path", None);
                default
            }
            Some(text) => PathBuf::from(text),
            None => default,
        };
        self.settle(key, path.display().to_string());
        path
    }

    /// Reads an address, `:PORT` or `off`. Only loopback is accepted if `reach` is false.
    fn address(
        &mut self,
        key: &str,
        default: Option<SocketAddr>,
        reach: bool,
    ) -> Option<SocketAddr> {
        let value = match self.given(key).as_deref() {
            None => default,
            Some("off") => None,
            Some(text) => {
                let host = default.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |addr| addr.ip());
                let parsed = match text.strip_prefix(':') {
                    Some(port) => port.parse().ok().map(|port| SocketAddr::new(host, port)),
                    None => text.replace("localhost", "127.0.0.1").parse().ok(),
                };
                let Some(address) = parsed else {
                    // The word `on` is not offered for these settings, because they are on by
                    // default or have no usual address.
                    let on = if ["http", "coap", "admin"].contains(&key) { "" } else { ", on" };
                    let example =
                        default.map_or("127.0.0.1:6683".to_owned(), |one| one.to_string());
                    let expected = format!("ADDRESS:PORT, :PORT{on} or off, e.g. {example}");
                    self.fault(key, &expected, None);
                    return None;
                };
                if !reach && !address.ip().is_loopback() {
                    let hint = "open it to the network with --lan, or with lan = true".to_owned();
                    self.fault(key, "a loopback address", Some(hint));
                    return None;
                }
                Some(address)
            }
        };
        let shown = value.map_or_else(|| "off".to_owned(), |address| address.to_string());
        self.settle(key, shown);
        value
    }
}

#[cfg(test)]
fn reference() -> String {
    let mut page = String::from(
        "# Configuration of a node\n\n\
         <!-- Generated from crates/node/node/src/settings/table.rs: MOTE_BLESS=1 cargo test -p mote-node -->\n\n\
         A flag of `mote up` overrides a `MOTE_*` variable, which overrides the file, which overrides the default.\n\
         The file is TOML. Its path comes from `--config FILE` or `MOTE_CONFIG`; the default is `/etc/mote/mote-node.toml`\n\
         for root and `~/.config/mote/mote-node.toml` for others. Unknown keys are errors. If the configuration is\n\
         not valid, the node exits with 78. `mote config show` prints each value with its origin.\n\n\
         | File | Environment | Flag | Default | Meaning |\n|---|---|---|---|---|\n",
    );
    for Setting { key, default, text } in SETTINGS {
        page.push_str(&format!(
            "| `{key}` | `MOTE_{}` | `--{}` | {default} | {text} |\n",
            key.to_uppercase(),
            key.replace('_', "-")
        ));
    }
    page.push_str(
        "\n```toml\n# mote-node.toml\ndata = \"/srv/mote\"\nhttp = \":6683\"\ncoap = \"off\"\nlan = true\nopenfaas = \"on\" # with lan = true: port 8080 of all addresses\n```\n",
    );
    page
}

#[cfg(test)]
mod tests;
