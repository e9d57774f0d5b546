//! `mote secret`. A value is read from standard input or a file and is never printed. It is never an
//! argument, because every user of a machine can see the arguments of processes.

use mote_api::client::Client;
use mote_spec::name::of_kept;

use super::args::{Remove, SecretSet, SecretVerb};
use super::failure::Failure;
use super::functions::is_agreed;
use super::input;
use super::output::{Output, harmless, table};

pub(super) async fn run(
    client: &Client,
    verb: &SecretVerb,
    output: &Output,
) -> Result<(), Failure> {
    match verb {
        SecretVerb::Set(args) => set(client, args, output).await,
        SecretVerb::List => list(client, output).await,
        SecretVerb::Remove(args) => remove(client, args, output).await,
    }
}

pub(super) async fn value(args: &SecretSet) -> Result<String, Failure> {
    let mut value = input::read(args.file.as_deref(), || no_value(&args.name)).await?;
    if !args.exact {
        // An editor or `echo` adds a line end, which is rarely part of the value.
        let end = value.strip_suffix('\n').map(|text| text.strip_suffix('\r').unwrap_or(text));
        value.truncate(end.map_or(value.len(), str::len));
    }
    if value.is_empty() {
        return Err(no_value(&args.name));
    }
    Ok(value)
}

async fn set(client: &Client, args: &SecretSet, output: &Output) -> Result<(), Failure> {
    let value = value(args).await?;
    let secret = client.put_secret(&args.name, value).await?;
    output.result(&secret, &[&secret.name], || {
        let name = harmless(of_kept(&secret.name).1);
        match secret.functions.as_slice() {
            [] => format!(
                "{name} is set; functions that list it as a secret can read /secrets/{name}\n"
            ),
            all => {
                let all = harmless(&all.join(", "));
                format!("{name} is set; instances of {all} that start from now on use it\n")
            }
        }
    })
}

fn no_value(name: &str) -> Failure {
    let name = harmless(name);
    Failure::new("M0101", format!("no value for {name}"))
        .with_hint(format!("name a file, or use a pipe: mote secret set {name} < FILE"))
}

async fn list(client: &Client, output: &Output) -> Result<(), Failure> {
    let list = client.secrets().await?;
    if list.secrets.is_empty() {
        output.say("no secrets yet; create one: mote secret set NAME < FILE");
    }
    let names: Vec<&str> = list.secrets.iter().map(|secret| secret.name.as_str()).collect();
    output.results(&list, &list.secrets, &names, || {
        if list.secrets.is_empty() {
            return String::new();
        }
        let functions = |all: &[String]| match all {
            [] => "-".to_owned(),
            all => all.join(", "),
        };
        let rows: Vec<Vec<String>> = list
            .secrets
            .iter()
            .map(|secret| vec![secret.name.clone(), functions(&secret.functions)])
            .collect();
        table(&["NAME", "READ BY"], &rows)
    })
}

async fn remove(client: &Client, args: &Remove, output: &Output) -> Result<(), Failure> {
    let known = client.secrets().await?.secrets;
    let read_by = |name: &String| {
        let secret = known.iter().find(|secret| secret.name == *name);
        secret.map(|secret| harmless(&secret.functions.join(", "))).filter(|all| !all.is_empty())
    };
    for name in &args.names {
        if let Some(all) = read_by(name) {
            let name = harmless(name);
            output.warn(&format!(
                "{name} is read by {all}: no instance of these functions starts without it"
            ));
        }
    }
    if !args.yes && !is_agreed(&format!("remove {}?", args.names.join(", ")), output).await? {
        return Ok(());
    }
    for name in &args.names {
        client.remove_secret(name).await?;
        output.say(&format!("{} is removed", harmless(name)));
    }
    Ok(())
}
