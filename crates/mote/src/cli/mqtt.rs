//! `mote mqtt`: the users of the node's own broker.

use clap::{Args as ClapArgs, Subcommand};
use mote_api::client::Client;
use mote_api::mqtt::MqttUserRequest;

use super::failure::Failure;
use super::output::{Output, harmless, table};
use super::secret;

#[derive(Debug, ClapArgs)]
pub(super) struct Mqtt {
    #[command(subcommand)]
    pub(super) verb: MqttVerb,
}

#[derive(Debug, Subcommand)]
pub(super) enum MqttVerb {
    /// Add, list and remove users; the broker takes up changes within a second
    Users(MqttUsers),
}

#[derive(Debug, ClapArgs)]
pub(super) struct MqttUsers {
    #[command(subcommand)]
    pub(super) verb: MqttUsersVerb,
}

#[derive(Debug, Subcommand)]
pub(super) enum MqttUsersVerb {
    /// Add or replace a user; the password is read from standard input
    Add {
        /// Its name
        name: String,
        /// Topic filter of what it may receive; can be given several times
        #[arg(long, value_name = "FILTER")]
        read: Vec<String>,
        /// Topic filter of what it may publish; can be given several times
        #[arg(long, value_name = "FILTER")]
        write: Vec<String>,
    },
    /// List users and their topic filters
    #[command(visible_alias = "ls")]
    List,
    /// Remove a user
    #[command(visible_alias = "rm")]
    Remove {
        /// Its name
        name: String,
    },
}

pub(super) async fn run(client: &Client, verb: &MqttVerb, output: &Output) -> Result<(), Failure> {
    let MqttVerb::Users(users) = verb;
    match &users.verb {
        MqttUsersVerb::List => list(client, output).await,
        MqttUsersVerb::Remove { name } => {
            client.remove_mqtt_user(name).await?;
            output.say(&format!("{} is removed", harmless(name)));
            Ok(())
        }
        MqttUsersVerb::Add { name, read, write } => {
            // The line end that an editor or `echo` adds is not part of a password.
            let password = secret::read(None, || no_password(name)).await?;
            let password = password.trim_end_matches(['\r', '\n']).to_owned();
            if password.is_empty() {
                return Err(no_password(name));
            }
            let request = MqttUserRequest { password, read: read.clone(), write: write.clone() };
            let user = client.put_mqtt_user(name, &request).await?;
            output.result(&user, &[&user.name], || {
                let name = harmless(&user.name);
                if user.read.is_empty() && user.write.is_empty() {
                    format!("{name} is set, but may do nothing; add --read or --write\n")
                } else {
                    format!("{name} is set\n")
                }
            })
        }
    }
}

async fn list(client: &Client, output: &Output) -> Result<(), Failure> {
    let list = client.mqtt_users().await?;
    if list.users.is_empty() {
        output.say("no users yet; add one: mote mqtt users add NAME --read FILTER < PASSWORD_FILE");
    }
    let names: Vec<&str> = list.users.iter().map(|user| user.name.as_str()).collect();
    output.results(&list, &list.users, &names, || {
        if list.users.is_empty() {
            return String::new();
        }
        let filters = |all: &[String]| match all {
            [] => "-".to_owned(),
            all => harmless(&all.join(" ")),
        };
        let row = |user: &mote_api::mqtt::MqttUser| {
            vec![harmless(&user.name), filters(&user.read), filters(&user.write)]
        };
        let rows: Vec<Vec<String>> = list.users.iter().map(row).collect();
        table(&["NAME", "READ", "WRITE"], &rows)
    })
}

fn no_password(name: &str) -> Failure {
    let name = harmless(name);
    Failure::new("M0101", format!("no password for {name}"))
        .with_hint(format!("use a pipe or a file: mote mqtt users add {name} < FILE"))
}
