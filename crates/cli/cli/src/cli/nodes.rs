//! Finds the nodes that `--node` and `MOTE_NODE` name, and implements `mote nodes`.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::fleet::names::{FILE_NAME, Named, Names};
use crate::fleet::{Node, ask_all};
use mote_api::client::{Client, ClientError, Endpoint, Secure, Securing, Stream};
use mote_api::types::NodeStatus;
use mote_node::settings::Given;
use mote_spec::quantity::size_text;
use mote_tls::{Connector, Trust};
use serde_json::json;
use tokio::net::TcpStream;

use super::args::Global;
use super::failure::Failure;
use super::output::{Output, harmless, table};

/// The most bytes that are read of a token's file or of the file with names of nodes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Returns the nodes that `--node`, `MOTE_NODE` or `MOTE_SOCKET` names, or otherwise this user's own
/// node.
pub(super) fn chosen(global: &Global) -> Result<Vec<Node>, Failure> {
    let given = Given::from_process(Vec::new(), None);
    let named = global.node.clone().or_else(|| std::env::var("MOTE_NODE").ok());
    let Some(list) = named.filter(|node| !node.is_empty()) else {
        let endpoint = Endpoint::Unix(mote_node::settings::default_socket(&given));
        return Ok(vec![Node { name: endpoint.to_string(), client: client(endpoint, global) }]);
    };
    let names = read(&given)?;
    let is_socket =
        |path: &str| std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    let all = names.resolve(&list, is_socket).map_err(|error| {
        let failure = Failure::new("M0101", error.text);
        let file = nodes_file(&given).0;
        failure.with_hint(error.hint.unwrap_or_else(|| {
            format!(
                "write https://HOST:PORT or the path of a socket, or name it in {}",
                file.display()
            )
        }))
    })?;
    connect(&all, global)
}

/// Returns the node that flags and environment name. Fails if they name several.
pub(super) fn only(global: &Global) -> Result<Node, Failure> {
    let all = chosen(global)?;
    match <[Node; 1]>::try_from(all) {
        Ok([node]) => Ok(node),
        Err(all) => {
            let text = format!("this command takes one node, and --node names {}", all.len());
            let hint = "several nodes are possible with deploy, list, describe, rollback, remove, \
                        secret and nodes";
            Err(Failure::new("M0101", text).with_hint(hint))
        }
    }
}

/// Returns the path of the file with the names of nodes, and whether the file must exist.
pub(super) fn nodes_file(given: &Given) -> (PathBuf, bool) {
    given.file_of_user("MOTE_NODES", FILE_NAME)
}

/// Reads the file with the names of nodes. If the file does not exist and need not exist, there are no
/// names.
fn read(given: &Given) -> Result<Names, Failure> {
    let (path, required) = nodes_file(given);
    let shown = path.display().to_string();
    match read_text(&path) {
        Ok(text) => Ok(Names::parse(&path, &text)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !required => {
            Ok(Names::default())
        }
        Err(error) => Err(Failure::of_file("M0102", &shown, &error)),
    }
}

/// Reads the text of a file with names or a token.
pub(super) fn read_text(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Returns clients of these nodes, each with its own token. If there are several nodes, the token of
/// each must be known.
fn connect(all: &[Named], global: &Global) -> Result<Vec<Node>, Failure> {
    let is_only = all.len() == 1;
    for name in ["MOTE_TOKEN", "MOTE_FINGERPRINT"] {
        if !is_only && variable(name).is_some() {
            let text =
                format!("{name} is ignored: it is for one node, and this command names several");
            Output::new(global).warn(&text);
        }
    }
    let node = |node| {
        let made = connect_one(node, global, is_only)?;
        if is_only || !matches!(made.client.endpoint(), Endpoint::Tcp { token: None, .. }) {
            return Ok(made);
        }
        let text = format!("{}: no token is known", harmless(&node.name));
        let file = nodes_file(&Given::from_process(Vec::new(), None)).0;
        let hint = format!(
            "with several nodes, each needs a token_file in {}; MOTE_TOKEN is for one node",
            file.display()
        );
        Err(Failure::new("M0206", text).with_hint(hint))
    };
    all.iter().map(node).collect()
}

/// Returns the client of a node.
fn connect_one(node: &Named, global: &Global, is_only: bool) -> Result<Node, Failure> {
    // As in other programs, a variable that the user has set takes precedence over a file. The variable
    // counts only if the command names one node, because a token must not be sent to other nodes.
    let token = match (variable("MOTE_TOKEN").filter(|_| is_only), &node.token_file) {
        (Some(token), _) => Some(token),
        (None, Some(path)) => Some(token(&node.name, path, global)?),
        (None, None) => None,
    };
    let client = client_of(node, token, is_only, global)?;
    Ok(Node { name: node.name.clone(), client })
}

/// Returns a client of a node that sends this token and trusts only the certificate that the node
/// should have.
pub(super) fn client_of(
    node: &Named,
    token: Option<String>,
    is_only: bool,
    global: &Global,
) -> Result<Client, Failure> {
    let endpoint = Endpoint::parse(&node.address, token).map_err(ClientError::from)?;
    let is_tls = matches!(endpoint, Endpoint::Tcp { tls: true, .. });
    let mut client = client(endpoint, global);
    if is_tls {
        let secure = secure(node, is_only).map_err(|error| error.on_node(&node.name))?;
        client = client.with_secure(Arc::new(secure));
    } else if client.endpoint().is_readable() && is_told_what_to_trust(node) {
        let text = format!("{}: a fingerprint or an authority needs https://", node.name);
        let hint = "without https:// everyone on the way can read the token";
        return Err(Failure::new("M0101", text).with_hint(hint));
    }
    Ok(client)
}

/// Returns whether the user has said which certificate of a node to trust.
fn is_told_what_to_trust(node: &Named) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let told = node.fingerprint.is_some() || node.ca.is_some();
    told || is_set("MOTE_FINGERPRINT") || is_set("MOTE_CA")
}

/// Returns the value of a variable, if it is set and not empty.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Prepares TLS with the certificates that are trusted for a node. The first of the following that
/// is set applies: `MOTE_FINGERPRINT` (only if the command names one node), the entry in
/// `nodes.toml`, `MOTE_CA`, and the authorities of the machine.
fn secure(node: &Named, is_only: bool) -> Result<Tls, Failure> {
    let given = variable("MOTE_FINGERPRINT").filter(|_| is_only);
    let trust = match (given.or_else(|| node.fingerprint.clone()), &node.ca) {
        (None, Some(path)) => Trust::Authorities(path.clone()),
        (None, None) => match variable("MOTE_CA") {
            Some(path) => Trust::Authorities(path.into()),
            None => Trust::System,
        },
        (Some(text), _) => Trust::fingerprint(&text).ok_or_else(|| {
            let text = format!("{}: not a fingerprint", harmless(&text));
            let hint = "write the SHA-256 of the certificate, as the node prints it when it starts";
            Failure::new("M0101", text).with_hint(hint)
        })?,
    };
    let failed = |error: String| {
        let failure = Failure::new("M0102", harmless(&error).to_string());
        failure.with_hint("MOTE_CA, or ca in nodes.toml, names a file of certificates (PEM)")
    };
    Ok(Tls(Connector::new(&trust).map_err(failed)?))
}

/// TLS for the client of the management API.
#[derive(Debug)]
struct Tls(Connector);

impl Secure for Tls {
    fn secure(&self, host: &str, stream: TcpStream) -> Securing {
        let connector = self.0.clone();
        let host = host.to_owned();
        Box::pin(async move {
            let stream: Box<dyn Stream> = Box::new(connector.connect(&host, stream).await?);
            Ok(stream)
        })
    }
}

fn token(name: &str, path: &Path, global: &Global) -> Result<String, Failure> {
    let shown = path.display().to_string();
    let failed = |error: &std::io::Error| Failure::of_file("M0102", &shown, error).on_node(name);
    let metadata = std::fs::metadata(path).map_err(|error| failed(&error))?;
    if metadata.permissions().mode() & 0o077 != 0 {
        let text = format!("{name}: other users can read the token: chmod 600 {shown}");
        Output::new(global).warn(&text);
    }
    Ok(read_text(path).map_err(|error| failed(&error))?.trim().to_owned())
}

fn client(endpoint: Endpoint, global: &Global) -> Client {
    let mut client = Client::new(endpoint);
    if let Some(namespace) = namespace(global) {
        client = client.with_namespace(&namespace);
    }
    match global.timeout {
        Some(seconds) => client.with_timeout(Duration::from_secs(seconds)),
        None => client,
    }
}

/// Returns the namespace of names that are written without one.
pub(super) fn namespace(global: &Global) -> Option<String> {
    global.namespace.clone().or_else(|| variable("MOTE_NAMESPACE")).filter(|name| !name.is_empty())
}

/// `mote nodes`: shows the state of the nodes that `--node` names, or of all nodes in the file.
pub(super) async fn list(global: &Global, output: &Output) -> Result<(), Failure> {
    let given = Given::from_process(Vec::new(), None);
    let is_named = global.node.is_some() || std::env::var_os("MOTE_NODE").is_some();
    // A mistake in the entry of one node must not hide the other nodes.
    let mut unusable: Vec<(Named, Failure)> = Vec::new();
    let mut nodes = Vec::new();
    if is_named {
        nodes = chosen(global)?;
    } else {
        let names = read(&given)?;
        let is_only = names.nodes().count() == 1;
        for named in names.nodes() {
            match connect_one(named, global, is_only) {
                Ok(node) => nodes.push(node),
                Err(failure) => unusable.push((named.clone(), failure)),
            }
        }
        if nodes.is_empty() && unusable.is_empty() {
            let file = nodes_file(&given).0;
            output.say(&format!("no nodes are named yet; write [nodes] into {}", file.display()));
        }
    }
    let answers = ask_all(&nodes, |client| async move { client.status().await }).await;
    let mut worst = None;
    let mut rows = Vec::new();
    let mut values = Vec::new();
    let mut names = Vec::new();
    let mut add = |name: String, address: String, answer: Result<NodeStatus, Failure>| {
        let mut value = json!({"node": name, "address": address});
        let mut row = vec![name.clone(), address];
        match answer {
            Ok(status) => {
                value["state"] = "up".into();
                value["status"] = serde_json::to_value(&status).unwrap_or_default();
                row.extend(up(&status));
            }
            Err(failure) => {
                value["state"] = "failed".into();
                value["error"] = failure.value();
                row.extend(["failed", "-", "-", "-", "-"].map(str::to_owned));
                output.failure(&failure);
                worst.get_or_insert(failure.exit);
            }
        }
        names.push(name);
        rows.push(row);
        values.push(value);
    };
    for (node, answer) in nodes.iter().zip(answers) {
        let lost = || Err(ClientError::Request("the question failed".to_owned()));
        let answer = answer.unwrap_or_else(lost);
        let answer = answer.map_err(|error| Failure::from(error).on_node(&node.name));
        add(node.name.clone(), node.client.endpoint().to_string(), answer);
    }
    for (node, failure) in unusable {
        add(node.name, node.address, Err(failure));
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    output.results(&json!({"nodes": values}), &values, &names, || match rows.is_empty() {
        true => String::new(),
        false => table(
            &["NODE", "ADDRESS", "STATE", "VERSION", "FUNCTIONS", "INSTANCES", "MEMORY"],
            &rows,
        ),
    })?;
    worst.map_or(Ok(()), |exit| Err(Failure::quiet(exit)))
}

fn up(status: &NodeStatus) -> Vec<String> {
    vec![
        "up".to_owned(),
        status.version.clone(),
        status.functions.to_string(),
        status.instances.to_string(),
        size_text(status.memory_bytes),
    ]
}

/// Asks all nodes for their state before anything is changed. Reports every node that does not answer,
/// and warns if the nodes have different versions.
pub(super) async fn all_answer(nodes: &[Node], output: &Output) -> Result<(), Failure> {
    let answers = ask_all(nodes, |client| async move { client.status().await }).await;
    let mut versions: Vec<(String, Vec<&str>)> = Vec::new();
    let mut silent = Vec::new();
    let mut exit = None;
    for (node, answer) in nodes.iter().zip(answers) {
        match answer.unwrap_or_else(|| Err(ClientError::Request("the question failed".to_owned())))
        {
            Ok(status) => match versions.iter_mut().find(|(known, _)| *known == status.version) {
                Some((_, names)) => names.push(&node.name),
                None => versions.push((status.version, vec![&node.name])),
            },
            Err(error) => {
                let failure = Failure::from(error).on_node(&node.name);
                output.failure(&failure);
                exit.get_or_insert(failure.exit);
                silent.push(node.name.as_str());
            }
        }
    }
    if let Some(exit) = exit {
        let text = format!(
            "{} of {} nodes cannot take part, so nothing was changed: {}",
            silent.len(),
            nodes.len(),
            silent.join(", ")
        );
        let failure = Failure::new("M0206", text);
        output.failure(&failure.with_hint("correct them, or leave them out of --node"));
        return Err(Failure::quiet(exit));
    }
    if versions.len() > 1 {
        let each =
            versions.iter().map(|(version, names)| format!("{version} ({})", names.join(", ")));
        let each: Vec<String> = each.collect();
        output.warn(&format!("the nodes run different versions: {}", each.join(", ")));
    }
    Ok(())
}
