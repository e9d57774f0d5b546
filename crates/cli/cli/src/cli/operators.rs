//! `mote token` and `mote audit`: who may manage a node over the network, and what was changed.

use mote_api::client::Client;
use mote_api::operators::OperatorTokenRequest;

use super::args::{AuditArgs, Global, TokenCreate, TokenRevoke, TokenVerb};
use super::failure::Failure;
use super::functions::is_agreed;
use super::key::{expiry, lifetime};
use super::nodes::namespace;
use super::output::{Output, harmless, table};

pub(super) async fn run(
    client: &Client,
    verb: &TokenVerb,
    global: &Global,
    output: &Output,
) -> Result<(), Failure> {
    match verb {
        TokenVerb::Create(args) => create(client, args, global, output).await,
        TokenVerb::List => list(client, output).await,
        TokenVerb::Revoke(args) => revoke(client, args, output).await,
    }
}

/// Prints only the token to standard output, so that a script can read it. The explanation goes to
/// standard error.
async fn create(
    client: &Client,
    args: &TokenCreate,
    global: &Global,
    output: &Output,
) -> Result<(), Failure> {
    let expires = args.expires.as_deref();
    let wish = OperatorTokenRequest {
        name: args.name.clone(),
        role: args.role.clone(),
        namespace: namespace(global).filter(|name| name != "default"),
        valid_ms: expires.map(|text| lifetime("--expires", text)).transpose()?,
    };
    let new = client.create_token(&wish).await?;
    let until = new.expires_at.map(|at| format!(" until {at}")).unwrap_or_default();
    let within = new.namespace.as_deref().map(|name| format!(" in the namespace {name}"));
    let within = within.unwrap_or_default();
    output.say(&format!(
        "{} has the role {}{within}{until}; this token is not shown again:",
        new.name, new.role
    ));
    output.result(&new, &[&new.name], || format!("{}\n", harmless(&new.token)))
}

async fn list(client: &Client, output: &Output) -> Result<(), Failure> {
    let list = client.tokens().await?;
    if list.tokens.is_empty() {
        output.say(
            "no tokens but the one in admin.token; make one: mote token create NAME --role ROLE",
        );
    }
    let names: Vec<&str> = list.tokens.iter().map(|token| token.name.as_str()).collect();
    output.results(&list, &list.tokens, &names, || {
        if list.tokens.is_empty() {
            return String::new();
        }
        let row = |token: &mote_api::operators::OperatorToken| {
            let expires = token.expires_at.map_or_else(|| "-".to_owned(), expiry);
            let namespace = token.namespace.clone().unwrap_or_else(|| "-".to_owned());
            let created = token.created_at.to_string();
            vec![token.name.clone(), token.role.clone(), namespace, created, expires]
        };
        let rows: Vec<Vec<String>> = list.tokens.iter().map(row).collect();
        table(&["NAME", "ROLE", "NAMESPACE", "CREATED", "EXPIRES"], &rows)
    })
}

async fn revoke(client: &Client, args: &TokenRevoke, output: &Output) -> Result<(), Failure> {
    if !args.yes && !is_agreed(&format!("revoke {}?", args.names.join(", ")), output).await? {
        return Ok(());
    }
    for name in &args.names {
        client.revoke_token(name).await?;
        output.say(&format!("{} is revoked", harmless(name)));
    }
    Ok(())
}

pub(super) async fn audit(
    client: &Client,
    args: &AuditArgs,
    output: &Output,
) -> Result<(), Failure> {
    let log = client.audit(args.limit).await?;
    if log.entries.is_empty() {
        output.say("nothing was changed yet");
    }
    let names: Vec<&str> = log.entries.iter().map(|entry| entry.act.as_str()).collect();
    output.results(&log, &log.entries, &names, || {
        if log.entries.is_empty() {
            return String::new();
        }
        let row = |entry: &mote_api::operators::AuditEntry| {
            vec![
                entry.at.to_string(),
                entry.who.clone(),
                entry.from.clone(),
                entry.status.to_string(),
                entry.act.clone(),
            ]
        };
        let rows: Vec<Vec<String>> = log.entries.iter().map(row).collect();
        table(&["AT", "WHO", "FROM", "STATUS", "ACT"], &rows)
    })
}
