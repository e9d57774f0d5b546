//! Describes who can reach and call what, for `mote doctor` and for the announcement of a node that
//! is open to the network.

use std::net::SocketAddr;
use std::sync::Arc;

use mote_api::types::Reach;
use mote_engine::{Engine, Revision, Serving};
use mote_spec::name::kept;
use mote_spec::{Access, FunctionSpec};

use super::Node;

const CALLERS: &str = "callers of functions; not encrypted";
const OPERATORS: &str = "operators with the token; over TLS, or not encrypted";

/// The listeners that other machines reach, followed by the functions. Empty if only this machine
/// reaches the node.
pub(crate) fn of(node: &Node) -> Vec<Reach> {
    let mut all = listeners(node);
    if !all.is_empty() {
        all.extend(functions(node));
    }
    all
}

fn listeners(node: &Node) -> Vec<Reach> {
    let mut all = Vec::new();
    let mut add = |what: &str, address: Option<SocketAddr>, who: &str| {
        if let Some(address) = address.filter(|at| !at.ip().is_loopback()) {
            let what = what.to_owned();
            let who = who.to_owned();
            all.push(Reach { what, address: Some(address.to_string()), who });
        }
    };
    add("http", node.addresses.http, CALLERS);
    add("https", node.addresses.https, "callers of functions");
    for (name, address) in node.deployed.ports.all_open() {
        let who = if node.addresses.https.is_some() { "callers of functions" } else { CALLERS };
        add(&format!("port of {name}"), Some(address), who);
    }
    add("coap", node.addresses.coap, CALLERS);
    add("coap+tcp", node.addresses.coap_tcp, CALLERS);
    add("coaps+tcp", node.addresses.coap_tls, "callers of functions");
    let shows = node.addresses.shows_certificate_over_dtls();
    add(
        "coaps",
        node.addresses.coap_dtls,
        if shows { "callers of functions" } else { "callers with a key" },
    );
    let plain = node.config.admin_plain;
    add("admin", node.addresses.admin, if plain { OPERATORS } else { "operators with the token" });
    for (platform, url) in &node.addresses.compat {
        let host = url.split_once("://").map_or(url.as_str(), |(_, host)| host);
        let who = match *platform {
            "tinyfaas" => OPERATORS,
            "openwhisk" => {
                "callers of web actions, and operators with the token; over TLS, or not encrypted"
            }
            "openfaas" | "nuclio" => {
                "callers of functions, and operators with the token; over TLS, or not encrypted"
            }
            _ => CALLERS,
        };
        add(platform, host.parse().ok(), who);
    }
    let anonymous = node.config.mqtt.as_ref().map(|broker| broker.anonymous);
    let who = if anonymous == Some("all") { "everyone" } else { "users of the broker" };
    for (scheme, address) in node.mqtt.own_broker.iter().flat_map(|broker| broker.listeners()) {
        let note = if scheme == "mqtt" { "; not encrypted" } else { "" };
        add(scheme, Some(address), &format!("{who}{note}"));
    }
    let cells = node.cells.as_ref().map(|cells| cells.address());
    add("cell", cells, "cells with the same key");
    all
}

/// The functions, each with those who may call it.
pub(crate) fn functions(node: &Node) -> Vec<Reach> {
    let row = |live: Arc<Revision>| {
        let name = &live.spec.name;
        let serving = node.data_path.engine.serving(name.as_str());
        let all = serving.as_ref().map_or(std::slice::from_ref(&live), Serving::revisions);
        let mut modes: Vec<(String, Vec<u64>)> = Vec::new();
        for revision in all {
            let who = who(node, &revision.spec);
            match modes.iter_mut().find(|(known, _)| *known == who) {
                Some((_, numbers)) => numbers.push(revision.number),
                None => modes.push((who, vec![revision.number])),
            }
        }
        let texts: Vec<String> = match modes.as_slice() {
            [(who, _)] => vec![who.clone()],
            _ => modes
                .iter()
                .map(|(who, numbers)| {
                    let numbers: Vec<String> = numbers.iter().map(|n| format!("@{n}")).collect();
                    format!("{who} ({})", numbers.join(", "))
                })
                .collect(),
        };
        Reach { what: format!("function {name}"), address: None, who: texts.join("; ") }
    };
    node.data_path.engine.list().into_iter().map(row).collect()
}

/// Describes the client certificates that a function accepts.
fn certified(node: &Node, spec: &FunctionSpec) -> String {
    let callers = spec.certificates.as_ref().map(|rules| rules.callers.join(", "));
    match callers {
        _ if !node.checks_certificates() => {
            "nobody, because the node checks no certificates of clients".to_owned()
        }
        Some(callers) if !callers.is_empty() => format!("clients with a certificate for {callers}"),
        _ => "clients with a certificate".to_owned(),
    }
}

/// Describes the senders whose signed requests a function accepts.
fn signers(engine: &Engine, spec: &FunctionSpec) -> String {
    let Some(rules) = &spec.webhook else { return "nobody".to_owned() };
    let secret = &rules.secret;
    match engine.secrets().value_bytes(&kept(secret, spec.name.namespace())) {
        Some(_) => format!("{}, which signs with the secret {secret}", rules.scheme.sender()),
        None => format!("nobody yet, because the secret {secret} is not set"),
    }
}

/// Describes who may call a function.
fn who(node: &Node, spec: &FunctionSpec) -> String {
    let is_open = || node.callers.guard.opens(spec.name.as_str());
    let who = match (node.config.access_of(spec.access), &spec.tokens) {
        (Access::Public | Access::KeyIfSent, _) => "everyone",
        (Access::Key, _) if is_open() => "callers with a key",
        (Access::Basic, _) if is_open() => "callers with a key, also as a password",
        (Access::Key | Access::Basic, _) => "nobody yet, because no key opens it",
        (Access::Jwt, Some(rules)) => return node.callers.guard.issuers().who(rules),
        (Access::Mtls, _) => return certified(node, spec),
        (Access::Webhook, _) => return signers(&node.data_path.engine, spec),
        (Access::Jwt, None) => "nobody",
        (Access::Local | Access::Unset, _) if spec.access == Access::Unset => {
            "this machine only, because its mote.toml has no [access]"
        }
        (Access::Local | Access::Unset, _) => "this machine only",
    };
    who.to_owned()
}
