//! Refuses settings with which a function of a namespace could reach things that belong to others.
//! A deploy checks the addresses to which host names lead, and the node checks them again for each
//! connection.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use mote_api::Problem;
use mote_engine::egress_doors::is_of_this_machine;
use mote_outgoing::Reach;
use mote_spec::{
    ANY_HOST, Access, Egress, FunctionSpec, OPENFAAS_GATEWAY_PORT, OPENFAAS_GATEWAYS, OWN_FRONT,
    Recipient,
};

/// How long a deploy waits until a host name is resolved.
const LOOK_UP_PATIENCE: Duration = Duration::from_secs(3);

/// Checks the spec of a function in a namespace. In the default namespace, every spec passes.
/// `reach` says which destinations the node's own requests may reach.
pub fn check(reach: Reach, spec: &FunctionSpec) -> Result<(), Problem> {
    let Some(namespace) = spec.name.namespace() else { return Ok(()) };
    let refuse = |text: String, field: &str| {
        Err(Problem::new(422, "M0429", format!("{}: {text}", spec.name)).with_field(field))
    };
    for to in &spec.egress {
        // A name may end with a dot, which stands for the root.
        let host = to.host.trim_end_matches('.').to_ascii_lowercase();
        let leads_here = match host.parse::<IpAddr>() {
            Ok(ip) => is_here((ip, to.port).into()),
            Err(_) => {
                let is_gateway =
                    to.port == OPENFAAS_GATEWAY_PORT && OPENFAAS_GATEWAYS.contains(&host.as_str());
                host == "localhost"
                    || host.ends_with(".localhost")
                    || host == OWN_FRONT.0
                    || is_gateway
            }
        };
        if leads_here {
            return Err(leads_to_the_node(spec, to));
        }
    }
    if spec.http.as_ref().is_some_and(|http| http.node_port.is_some()) {
        let text = "ports belong to the whole node, so that functions of a namespace have none";
        return refuse(text.to_owned(), "http.node_port");
    }
    for rule in spec.routes() {
        // A route with a host takes all requests for this host, even those for functions of others.
        // A path that begins with another name takes requests for a function that somebody has
        // removed or not yet deployed, or for a path at which the node itself may answer one day.
        let first = rule.path.trim_start_matches('/').split('/').next().unwrap_or_default();
        if rule.host.is_some() {
            return refuse("routes of a namespace have no host".to_owned(), "route");
        }
        if first != namespace {
            let path = &rule.path;
            let text =
                format!("routes of the namespace begin with /{namespace}, and {path} does not");
            return refuse(text, "route");
        }
    }
    let begin = format!("{namespace}/");
    let is_own = |topic: &str| {
        let filter = match topic.strip_prefix("$share/") {
            Some(shared) => shared.split_once('/').map_or("", |(_, filter)| filter),
            None => topic,
        };
        filter.starts_with(&begin)
    };
    let recipients = [&spec.background.on_success, &spec.background.on_failure];
    let results = recipients.into_iter().flatten().filter_map(|recipient| match recipient {
        Recipient::Topic(topic) => Some(topic.topic.as_str()),
        _ => None,
    });
    let subscribed = spec.mqtt.iter().map(|trigger| trigger.filter.as_str());
    let replies = spec.mqtt.iter().filter_map(|trigger| trigger.reply.as_deref());
    let published = spec.publishing.topics.iter().map(String::as_str);
    let mut topics = subscribed.chain(replies).chain(published).chain(results);
    if let Some(topic) = topics.find(|topic| !is_own(topic)) {
        return refuse(
            format!("topics of the namespace begin with {begin}, and {topic:?} does not"),
            "mqtt",
        );
    }
    let mut connections: Vec<_> = spec.mqtt.iter().map(|trigger| trigger.connection()).collect();
    connections.push(spec.publishing.connection.clone());
    let is_plain = |one: &mote_spec::mqtt::Connection| {
        one.broker.is_none() && one.username.is_none() && one.secret_names().next().is_none()
    };
    if !connections.iter().all(is_plain) {
        return refuse(
            "functions of a namespace use the broker of the node, so that broker, username, \
             password, ca, certificate and key are not possible"
                .to_owned(),
            "mqtt",
        );
    }
    if spec.access == Access::Jwt && reach != Reach::Public {
        return refuse(
            "the access mode jwt is not possible in a namespace, because the setting outgoing of \
             the node lets the keys of an issuer be fetched from its own network"
                .to_owned(),
            "access.mode",
        );
    }
    Ok(())
}

/// Refuses a function in a namespace if a host name in its spec now leads to this node. A name that
/// cannot be resolved yet passes, because each connection is checked again.
pub async fn check_names(spec: &FunctionSpec) -> Result<(), Problem> {
    if spec.name.namespace().is_none() {
        return Ok(());
    }
    for to in spec.egress.iter().filter(|to| to.host != ANY_HOST) {
        let host = to.host.clone();
        let port = to.port;
        let look_up = tokio::task::spawn_blocking(move || {
            let found = (host.as_str(), port).to_socket_addrs();
            found.is_ok_and(|mut all| all.any(is_here))
        });
        if let Ok(Ok(true)) = tokio::time::timeout(LOOK_UP_PATIENCE, look_up).await {
            return Err(leads_to_the_node(spec, to));
        }
    }
    Ok(())
}

/// Whether the address is one of this machine. If this cannot be found out, the address passes,
/// because each connection is checked again.
fn is_here(address: SocketAddr) -> bool {
    is_of_this_machine(address).unwrap_or(false)
}

fn leads_to_the_node(spec: &FunctionSpec, to: &Egress) -> Problem {
    let text = format!(
        "{}: {to} is the machine of the node, which functions of a namespace cannot reach",
        spec.name
    );
    Problem::new(422, "M0425", text)
        .with_field("allow.net")
        .with_hint("call functions of the namespace with [allow] functions")
}
