//! Decides whether a function is likely to call other machines, and which machines it may call.
//!
//! A sandbox reaches only the destinations that the manifest names, while functions on other platforms
//! may reach everything. A deploy therefore warns if code seems to need the network and the manifest
//! permits no destination.

use mote_spec::addresses::is_link_local;
use mote_spec::manifest::Destination;
use mote_spec::{
    Egress, FunctionSpec, OPENFAAS_GATEWAY_PORT, OPENFAAS_GATEWAYS, OWN_FRONT, Platform, Runtime,
    Transport,
};

use super::Planned;
use super::probe::Folder;

/// Python modules that code imports to call other machines.
const PYTHON: [&str; 26] = [
    "requests",
    "urllib.request",
    "urllib3",
    "http.client",
    "httpx",
    "aiohttp",
    "socket",
    "smtplib",
    "ftplib",
    "boto3",
    "botocore",
    "paho",
    "redis",
    "psycopg2",
    "psycopg",
    "pymongo",
    "pymysql",
    "mysql",
    "sqlalchemy",
    "influxdb",
    "influxdb_client",
    "kafka",
    "pika",
    "minio",
    "openai",
    "elasticsearch",
];
/// Node packages and modules that code imports to call other machines.
const NODE: [&str; 22] = [
    "axios",
    "node-fetch",
    "got",
    "request",
    "request-promise",
    "superagent",
    "undici",
    "http",
    "https",
    "net",
    "tls",
    "dns",
    "ws",
    "mqtt",
    "redis",
    "ioredis",
    "pg",
    "mysql",
    "mysql2",
    "mongodb",
    "nodemailer",
    "aws-sdk",
];
/// Calls to other machines in Go.
const GO: [&str; 6] =
    ["http.Get(", "http.Post(", "http.NewRequest", "http.Client{", "net.Dial", "sql.Open("];

/// The endings of files in which such calls are looked for.
const JAVASCRIPT: [&str; 8] = [".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".tsx", ".jsx"];

/// Searches a source for evidence that it calls other machines.
type Sign = fn(&str) -> Option<String>;

/// Returns the evidence in the code that the function calls other machines: a file and a module.
pub(super) fn likely_use(folder: &Folder, spec: &FunctionSpec) -> Option<String> {
    let (endings, sign): (&[&str], Sign) = match spec.runtime {
        Runtime::Python => (&[".py"], python),
        Runtime::Node | Runtime::Bun | Runtime::Deno => (&JAVASCRIPT, node),
        Runtime::Go => (&[".go"], go),
        Runtime::Rust | Runtime::Exec | Runtime::Server | Runtime::Chain | Runtime::Wasm => {
            return None;
        }
    };
    let mut files = folder.with_ending(endings).into_iter();
    files.find_map(|file| Some(format!("{file}: {}", sign(&folder.source(file))?)))
}

/// Returns the warning for an action that calls the API of its own platform. The call would fail,
/// because here the action receives neither the API's host nor a key.
pub(super) fn misses_own_api(folder: &Folder, spec: &FunctionSpec) -> Option<String> {
    if spec.compat != Some(Platform::OpenWhisk) {
        return None;
    }
    const SIGNS: [&str; 7] = [
        "__OW_API_HOST",
        "__OW_API_KEY",
        "require('openwhisk')",
        "require(\"openwhisk\")",
        "from 'openwhisk'",
        "from \"openwhisk\"",
        "import openwhisk",
    ];
    let files = folder.with_ending(&[".js", ".mjs", ".cjs", ".py", ".go"]);
    let file = files.into_iter().find(|file| {
        let source = folder.source(file);
        SIGNS.iter().any(|sign| source.contains(sign))
    })?;
    Some(format!(
        "{}: {file} calls OpenWhisk's API, but actions receive neither its host nor a key here: put the \
         actions into a sequence, or pass apihost and api_key to the client",
        spec.name
    ))
}

fn python(source: &str) -> Option<String> {
    source.lines().find_map(|line| {
        let line = line.trim();
        let named = line.strip_prefix("import ").or_else(|| line.strip_prefix("from "))?;
        let is_module = |module: &str| {
            let rest = module.split_whitespace().next().unwrap_or_default();
            PYTHON.iter().any(|known| {
                rest.strip_prefix(known)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            })
        };
        // `from urllib import request` splits the module's name into two parts.
        let in_parts = line.starts_with("from urllib import") && line.contains("request");
        let from = named.split(" import ").next().unwrap_or_default();
        (in_parts || from.split(',').any(is_module)).then(|| line.chars().take(60).collect())
    })
}

fn node(source: &str) -> Option<String> {
    let calls =
        ["await fetch(", "= fetch(", "return fetch(", "fetch('http", "fetch(\"http", "fetch(`http"];
    if let Some(call) = calls.iter().find(|call| source.contains(**call)) {
        return Some((*call).trim_start_matches(['=', ' ']).to_owned() + "…)");
    }
    NODE.iter().find_map(|module| {
        ['\'', '"'].into_iter().find_map(|quote| {
            let forms = [
                format!("require({quote}{module}{quote})"),
                format!("require({quote}node:{module}{quote})"),
                format!("from {quote}{module}{quote}"),
                format!("from {quote}node:{module}{quote}"),
            ];
            forms.into_iter().find(|form| source.contains(form.as_str()))
        })
    })
}

fn go(source: &str) -> Option<String> {
    GO.iter().find(|call| source.contains(**call)).map(|call| format!("{call}…"))
}

/// Lets an OpenFaaS function reach the gateway, if the function's code or environment contains one of
/// the gateway's names. Returns the names that were added.
pub(super) fn allow_gateway(folder: &Folder, spec: &mut FunctionSpec) -> Option<String> {
    if spec.compat != Some(Platform::OpenFaas) {
        return None;
    }
    let sources: Vec<String> = folder
        .with_ending(&[".py", ".js", ".mjs", ".cjs", ".ts", ".go"])
        .into_iter()
        .map(|file| folder.source(file))
        .collect();
    let named = |host: &&str| {
        let in_env = spec.env.values().any(|value| names_gateway(value, host, true));
        in_env || sources.iter().any(|source| names_gateway(source, host, false))
    };
    let hosts: Vec<&str> = OPENFAAS_GATEWAYS.into_iter().filter(named).collect();
    let added = add_gateways(spec, &hosts);
    (!added.is_empty()).then(|| format!("net {}, the node's OpenFaaS API", added.join(" and ")))
}

/// Permits a function to reach the gateway under these names. Returns the names that were not permitted
/// before.
fn add_gateways(spec: &mut FunctionSpec, hosts: &[&str]) -> Vec<String> {
    let mut added = Vec::new();
    for host in hosts {
        let to = Egress::tcp(*host, OPENFAAS_GATEWAY_PORT);
        if !spec.egress.contains(&to) {
            added.push(format!("{host}:{OPENFAAS_GATEWAY_PORT}"));
            spec.egress.push(to);
        }
    }
    added
}

/// Returns whether `text` contains `host`, a name of the gateway, as the name of a host: either as a
/// whole quoted text, or as the host of an address. The port may be defined elsewhere.
fn names_gateway(text: &str, host: &str, is_value: bool) -> bool {
    let before = |c: char| matches!(c, '"' | '\'' | '`' | '/' | '@');
    let after = |c: char| matches!(c, '"' | '\'' | '`' | '/' | ':');
    text.match_indices(host).any(|(at, _)| {
        let left = &text[..at];
        let right = &text[at + host.len()..];
        left.chars().next_back().map_or(is_value, before)
            && right.chars().next().map_or(is_value, after)
    })
}

/// Converts a destination of a manifest.
pub fn egress(to: &Destination) -> Egress {
    let transport = if to.is_udp { Transport::Udp } else { Transport::Tcp };
    Egress { transport, host: to.host.clone(), port: to.port }
}

/// Adds destinations that a function may reach. Warns if the function seems to need the network but may
/// reach nothing, and if the function may reach any host.
pub fn allow(planned: &mut Planned, destinations: &[Egress]) {
    for to in destinations {
        if !planned.spec.egress.contains(to) {
            planned.spec.egress.push(to.clone());
        }
    }
    let unreachable = planned.spec.egress.iter().filter(|to| is_never_reached(to));
    planned.warnings.extend(unreachable.map(|to| {
        format!(
            "allow.net: {to} is a link-local address, which no function can reach: connections to it \
             will fail"
        )
    }).collect::<Vec<_>>());
    if planned.spec.reaches_any_host() {
        if planned.spec.compat == Some(Platform::OpenFaas) {
            // A function that may reach any host may also reach the platform's gateway. The gateway's
            // names must be added, because a name look-up here would not find them.
            add_gateways(&mut planned.spec, &OPENFAAS_GATEWAYS);
        }
        planned.warnings.push(
            "allow.net: the function may reach any machine that the node reaches, including its own \
             network; name destinations if you can (\"*\" opens only the usual ports, *:PORT \
             adds another)"
                .to_owned(),
        );
    } else if let (Some(found), true) = (&planned.uses_network, planned.spec.egress.is_empty()) {
        planned.warnings.push(format!(
            "{found}: the code appears to call other machines, but the function cannot reach any; \
             name them with [allow] net = [\"HOST:PORT\"] in mote.toml or --allow-net HOST:PORT, \
             or allow any with \"*\""
        ));
    }
}

/// Returns whether the node refuses every connection to a destination, even if the manifest names it.
fn is_never_reached(to: &Egress) -> bool {
    to.host.parse().is_ok_and(is_link_local)
}

/// Lets a Nuclio function reach the node's HTTP front, if the function's code calls other functions by
/// name. Returns the permitted destinations.
pub(super) fn allow_own_front(folder: &Folder, spec: &mut FunctionSpec) -> Option<String> {
    if (spec.compat, spec.runtime) != (Some(Platform::Nuclio), Runtime::Python) {
        return None;
    }
    let files = folder.with_ending(&[".py"]);
    if !files.into_iter().any(|file| folder.source(file).contains("platform.call_function(")) {
        return None;
    }
    let (host, port) = OWN_FRONT;
    let to = Egress::tcp(host, port);
    if spec.egress.contains(&to) {
        return None;
    }
    spec.egress.push(to);
    Some(format!("net {host}:{port}, the functions of this node"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_gateway_are_found() {
        for (text, host, is_value, expected) in [
            ("url = 'http://gateway:8080/function/a'", "gateway", false, true),
            ("os.getenv(\"gateway_hostname\", \"gateway\")", "gateway", false, true),
            ("`http://gateway.openfaas:${port}/function/a`", "gateway.openfaas", false, true),
            ("gateway.openfaas", "gateway.openfaas", true, true),
            ("http://gateway.openfaas:8080/", "gateway", true, false),
            ("user:key@gateway:8080", "gateway", true, true),
            ("# the gateway of the house, or a gateway", "gateway", false, false),
            ("payment_gateway: gateway-2", "gateway", true, false),
            ("'payment-gateway'", "gateway", false, false),
        ] {
            assert_eq!(names_gateway(text, host, is_value), expected, "{text}");
        }
    }

    #[test]
    fn likely_use_of_the_network_is_found() {
        for (source, expected) in [
            ("import os\nimport requests\n", Some("import requests")),
            ("import json, requests.auth", Some("import json, requests.auth")),
            ("from urllib import parse, request\n", Some("from urllib import parse, request")),
            ("    from boto3.session import Session", Some("from boto3.session import Session")),
            ("from urllib.parse import quote\nimport socketserver_like\n", None),
            ("# import requests\nrequests = 1\n", None),
        ] {
            assert_eq!(python(source).as_deref(), expected, "{source}");
        }
        for (source, expected) in [
            ("const axios = require('axios');", Some("require('axios')")),
            ("import http from \"node:http\";", Some("from \"node:http\"")),
            ("const r = await fetch(url);", Some("await fetch(…)")),
            ("export default { async fetch(request) { return new Response('x'); } }", None),
            ("const fs = require('fs');", None),
        ] {
            assert_eq!(node(source).as_deref(), expected, "{source}");
        }
        assert_eq!(go("resp, err := http.Get(url)").as_deref(), Some("http.Get(…"));
    }
}
