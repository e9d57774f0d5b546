//! `mote mqtt`: manages the users of the node's own broker.

use mote_api::client::Client;
use mote_api::mqtt::MqttUserRequest;

use super::args::{MqttUsersVerb, MqttVerb};
use super::failure::Failure;
use super::input;
use super::output::{Output, harmless, table};

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
            // An editor or `echo` adds a line end, which is not part of the password.
            let password = input::read(None, || no_password(name)).await?;
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
