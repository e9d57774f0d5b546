//! Reads `[http]`: what the HTTP fronts require of requests, and what they tell browsers.

use std::num::NonZeroU16;

use crate::hop_by_hop::is_hop_by_hop;
use crate::toml_reader::{Section, TomlReader};

use super::{FunctionManifest, GIB, HOUR_MS, KIB, TOP_KEYS, read_methods};

pub(super) const KEYS: [&str; 6] =
    ["methods", "headers", "body_max", "compress", "node_port", "cors"];
pub(super) const CORS_KEYS: [&str; 6] =
    ["origins", "methods", "headers", "expose", "credentials", "max_age"];
/// Methods that browsers use for requests to other origins without asking first.
const SIMPLE_METHODS: [&str; 3] = ["GET", "HEAD", "POST"];
/// Whether a function never receives this field: the field describes a connection, or the node
/// itself responds to the field or sets it.
fn is_hidden(name: &str) -> bool {
    is_hop_by_hop(name.as_bytes()) || matches!(name, "expect" | "mote-caller")
}

/// The keys of `[http]` whose settings have no other place in a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HttpManifest {
    /// `headers`, in lower case.
    pub headers: Vec<String>,
    /// `[http.cors]`.
    pub cors: Option<CorsManifest>,
    /// `compress`.
    pub compress: bool,
    /// `node_port`.
    pub node_port: Option<NonZeroU16>,
}

/// `[http.cors]`, complete. Its origins are not yet checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CorsManifest {
    /// `origins`.
    pub origins: Vec<String>,
    /// `methods`.
    pub methods: Vec<String>,
    /// `headers`, in lower case.
    pub headers: Vec<String>,
    /// `expose`, in lower case.
    pub expose: Vec<String>,
    /// `credentials`.
    pub credentials: bool,
    /// `max_age`, in seconds.
    pub max_age_s: Option<u32>,
}

/// Reads `[http]`. Must be called after the keys of the function and `[limits]` were read, because
/// some settings have a key in both places.
pub(super) fn read(
    reader: &mut TomlReader<'_>,
    section: &Section<'_>,
    function: &mut FunctionManifest,
    line: usize,
) {
    reader.check_keys(section, &KEYS, &[], &TOP_KEYS);
    let twice = |reader: &mut TomlReader<'_>, key: &str, is_twice: bool, other: &str| {
        if let Some((_, line)) = reader.get(section, key).filter(|_| is_twice) {
            let text = format!("{key} of [http] and {other} are the same setting");
            reader.mistake("M0303", line, &text, Some("remove one of them".to_owned()));
        }
    };
    twice(reader, "methods", function.methods.is_some(), "methods of the function");
    twice(reader, "body_max", function.limits.body_bytes.is_some(), "body of [limits]");
    function.methods = read_methods(reader, section).or(function.methods.take());
    let wanted = "1KiB\u{2013}1GiB, e.g. 64KiB";
    let body = reader.size(section, "body_max", KIB..=GIB, wanted).map(|size| size.value);
    function.limits.body_bytes = body.or(function.limits.body_bytes);
    let headers = names(reader, section, "headers", false).unwrap_or_default();
    let cors = read_cors(reader, section, function.methods.as_deref(), &headers);
    let is_said = KEYS.iter().any(|key| reader.get(section, key).is_some());
    if !is_said {
        let text = "[http] needs a key, e.g. headers = [\"x-device\"]";
        reader.mistake("M0306", line, text, None);
    }
    let compress = reader.get(section, "compress").is_some()
        && reader.boolean(section, "compress").is_some_and(|compress| compress.value);
    let port = reader.integer(section, "node_port", 1..=u16::MAX.into());
    let node_port = port.and_then(|port| u16::try_from(port.value).ok()).and_then(NonZeroU16::new);
    function.http_rules = HttpManifest { headers, cors, compress, node_port };
}

fn read_cors(
    reader: &mut TomlReader<'_>,
    at: &Section<'_>,
    methods: Option<&[String]>,
    headers: &[String],
) -> Option<CorsManifest> {
    let (value, line) = reader.get(at, "cors")?;
    let Some(table) = value.as_table() else {
        reader.wrong_type("cors", line, "a section [http.cors]", value);
        return None;
    };
    let section = reader.section(table, "[http.cors]", "[http.cors]");
    reader.check_keys(&section, &CORS_KEYS, &[], &TOP_KEYS);
    let wanted = "an array of origins, e.g. [\"https://app.example\"], or [\"*\"]";
    let origins = reader.strings(&section, "origins", wanted);
    if reader.get(&section, "origins").is_none() {
        let text = format!("[http.cors] needs origins: {wanted}");
        reader.mistake("M0306", line, &text, None);
    }
    let origins = origins.map(|origins| origins.value).unwrap_or_default();
    let cors = CorsManifest {
        methods: read_methods(reader, &section)
            .or(methods.map(<[String]>::to_vec))
            .unwrap_or_else(|| SIMPLE_METHODS.map(str::to_owned).into()),
        headers: names(reader, &section, "headers", true).unwrap_or_else(|| headers.to_vec()),
        expose: names(reader, &section, "expose", true).unwrap_or_default(),
        credentials: reader.get(&section, "credentials").is_some_and(|_| {
            reader.boolean(&section, "credentials").is_some_and(|credentials| credentials.value)
        }),
        max_age_s: reader
            .duration_ms(&section, "max_age", 0..=24 * HOUR_MS, "0s\u{2013}24h, e.g. 10m")
            .map(|age| u32::try_from(age.value / 1_000).unwrap_or(u32::MAX)),
        origins,
    };
    let lists = [("origins", &cors.origins), ("headers", &cors.headers), ("expose", &cors.expose)];
    for (key, list) in lists {
        let (Some((_, line)), true) = (reader.get(&section, key), cors.credentials) else {
            continue;
        };
        if list.iter().any(|entry| entry == "*") {
            let text = format!("{key}: \"*\" and credentials = true exclude each other");
            let hint = format!("name the {key}, or remove credentials");
            reader.mistake("M0303", line, &text, Some(hint));
        }
    }
    Some(cors)
}

/// Reads an array of field names and converts them to lower case. With `any`, `*` is also allowed.
fn names(
    reader: &mut TomlReader<'_>,
    at: &Section<'_>,
    key: &str,
    any: bool,
) -> Option<Vec<String>> {
    let wanted = "an array of names of fields, e.g. [\"x-device\"]";
    let list = reader.strings(at, key, wanted)?;
    let names: Vec<String> = list.value.iter().map(|name| name.to_ascii_lowercase()).collect();
    let is_tchar = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let is_name = |name: &str| {
        (any || name != "*")
            && (1..=255).contains(&name.len())
            && name.bytes().all(is_tchar)
            && !is_hidden(name)
    };
    if let Some(odd) = names.iter().find(|name| !is_name(name)) {
        let shown: String = odd.chars().take(64).flat_map(char::escape_debug).collect();
        let text = format!("{key}: {wanted}; found \"{shown}\"");
        let hint = is_hidden(odd.as_str());
        let hint = hint.then(|| "a request to a function never has this field".to_owned());
        reader.mistake("M0303", list.line, &text, hint);
        return Some(Vec::new());
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;

    fn read(text: &str) -> FunctionManifest {
        let source = format!("version = 1\n{text}");
        let manifest = Manifest::parse("mote.toml", &source);
        manifest.unwrap_or_else(|mistakes| panic!("{mistakes}")).functions.remove(0)
    }

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn rules_are_read_in_both_forms() {
        for section in ["http", "function.a.http"] {
            let text = format!(
                "[{section}]\nmethods = [\"GET\", \"iPATCH\"]\nheaders = [\"X-Device\"]\n\
                 body_max = \"64KiB\"\n[{section}.cors]\norigins = [\"https://app.example\"]\n\
                 expose = [\"X-Count\"]\ncredentials = true\nmax_age = \"10m\"\n"
            );
            let function = read(&text);
            assert_eq!(function.methods, Some(words(&["GET", "IPATCH"])));
            assert_eq!(function.limits.body_bytes, Some(64 << 10));
            let cors = CorsManifest {
                origins: words(&["https://app.example"]),
                methods: words(&["GET", "IPATCH"]),
                headers: words(&["x-device"]),
                expose: words(&["x-count"]),
                credentials: true,
                max_age_s: Some(600),
            };
            let headers = words(&["x-device"]);
            let rules = HttpManifest { headers, cors: Some(cors), ..HttpManifest::default() };
            assert_eq!(function.http_rules, rules);
        }
    }

    #[test]
    fn methods_of_pages_are_those_of_the_function_or_simple_ones() {
        let cors = "[http.cors]\norigins = [\"*\"]\n";
        let methods = |text: &str| read(text).http_rules.cors.expect("cors").methods;
        assert_eq!(methods(cors), words(&SIMPLE_METHODS));
        assert_eq!(methods(&format!("methods = [\"PUT\"]\n{cors}")), words(&["PUT"]));
        assert_eq!(methods(&format!("{cors}methods = [\"DELETE\"]\n")), words(&["DELETE"]));
        assert_eq!(read("").http_rules, HttpManifest::default());
    }
}
