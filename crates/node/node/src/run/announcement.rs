//! The text that a node prints when it is ready.

use std::io::Write as _;

use mote_api::text::wrapped;
use mote_api::types::Reach;

use crate::addresses::Addresses;
use crate::{Node, reach};

/// The announcement shows at most this many lines about what other machines reach.
const REACH_LINES_MAX: usize = 24;

/// The status of a serving node, for the service manager.
pub(super) fn serving_text(addresses: &Addresses) -> String {
    let at = |address: Option<std::net::SocketAddr>| {
        address.map_or("off".to_owned(), |address| address.to_string())
    };
    format!("serves HTTP ({}) and CoAP ({})", at(addresses.http), at(addresses.coap))
}

/// Announces that the node is ready, the node's addresses, and the limits that cannot be enforced
/// here.
pub(super) fn announce(node: &Node) {
    let mut text = format!(
        "mote {} is ready in {:.0} ms: {} functions\n",
        env!("CARGO_PKG_VERSION"),
        node.started.elapsed().as_secs_f64() * 1e3,
        node.data_path.engine.list().len(),
    );
    for (name, address) in [("http", node.addresses.http), ("coap", node.addresses.coap)] {
        match address {
            Some(address) => text.push_str(&format!("  {name}   {name}://{address}\n")),
            None => text.push_str(&format!("  {name}   off\n")),
        }
    }
    if let Some(certificates) = &node.addresses.certificates {
        let (file, fingerprint) = certificates.first();
        match node.addresses.https {
            Some(address) => text.push_str(&format!("  https  https://{address}\n         ")),
            None => text.push_str("  tls    "),
        }
        text.push_str(&format!("SHA-256 {fingerprint}\n"));
        text.push_str(&format!("         of {}\n", file.display()));
    }
    if let Some(address) = node.addresses.coap_tcp {
        text.push_str(&format!("  coap+tcp  coap+tcp://{address}\n"));
    }
    if let Some(address) = node.addresses.coap_dtls {
        text.push_str(&format!("  coaps  coaps://{address}\n"));
        if !node.addresses.shows_certificate_over_dtls() {
            text.push_str(
                "         only clients with a pre-shared key: no certificate of this node has a key \
                 on the curve P-256 or P-384\n",
            );
        }
    }
    if let Some(address) = node.addresses.coap_tls {
        text.push_str(&format!("  coaps+tcp  coaps+tcp://{address}\n"));
    }
    text.push_str(&format!("  admin  {}\n", node.config.socket.display()));
    if let Some(admin) = node.addresses.admin {
        let scheme = if node.addresses.certificates.is_some() { "https" } else { "http" };
        text.push_str(&format!("         {scheme}://{admin} (token in admin.token)\n"));
    }
    text.push_str("  page   mote dashboard opens it in a browser\n");
    for (scheme, address) in node.mqtt.own_broker.iter().flat_map(|broker| broker.listeners()) {
        text.push_str(&format!("  {scheme:<5}  {scheme}://{address}\n"));
    }
    if let Some(cells) = &node.cells {
        text.push_str(&format!("  cell   {}\n", cells.address()));
    }
    if let Some(nats) = &node.config.nats {
        text.push_str(&format!("  nats   {}\n", nats.servers.join(", ")));
    }
    for (platform, address) in &node.addresses.compat {
        text.push_str(&format!("  {platform}  {address}\n"));
    }
    let reached = reach::of(node);
    text.push_str(match (node.config.lan, reached.is_empty()) {
        (true, false) => "  reach  the local network:\n",
        (true, true) => "  reach  this machine only, because every address above is its own\n",
        (false, true) => "  reach  from this machine only; --lan opens it\n",
        (false, false) => {
            "  reach  functions from this machine only (--lan opens them), and also:\n"
        }
    });
    for Reach { what, address, who } in reached.iter().take(REACH_LINES_MAX) {
        let address = address.as_ref().map(|at| format!(" {at}")).unwrap_or_default();
        text.push_str(&format!("         {what}{address}: {who}\n"));
    }
    if reached.len() > REACH_LINES_MAX {
        let more = reached.len() - REACH_LINES_MAX;
        text.push_str(&format!("         and {more} more: mote doctor shows them\n"));
    }
    let notes = node.status().notes;
    for (name, detail) in &notes {
        text.push_str(&wrapped("  note   ", &format!("{name}: {detail}")));
    }
    if !notes.is_empty() {
        text.push_str("         mote doctor explains how to fix these\n");
    }
    for (name, found) in
        [("python", &node.opened.interpreters.python), ("node", &node.opened.interpreters.node)]
    {
        if let Err(reason) = found {
            text.push_str(&wrapped("  note   ", &format!("{name}: {reason}")));
        }
    }
    // The process that started the node may have closed the other end of stdout. This does not
    // affect the node.
    let _ = std::io::stdout().write_all(text.as_bytes());
    let _ = std::io::stdout().flush();
}
