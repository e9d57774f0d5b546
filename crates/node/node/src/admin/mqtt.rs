//! Routes about the users of the node's own MQTT broker. A separate process of the broker's program
//! keeps the file of users and hashes the passwords, so that hashing does not use the node's
//! memory.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use mote_api::Problem;
use mote_api::mqtt::{MqttUser, MqttUserRequest, MqttUsers};
use mote_process::companion::{OWN_PROGRAM, Role};
use tokio::io::AsyncWriteExt as _;

use super::extract::Path;
use super::mqtt_turns::REQUESTS_MAX;
use super::refused::{Refused, to_the_end};
use crate::Node;
use crate::mqtt::BROKER_FOLDER;
use crate::mqtt::Mqtt;

/// Longest body of a request about a user.
const BODY_BYTES_MAX: usize = 256 << 10;
/// The program's exit code if there is no such user.
const UNKNOWN: i32 = 3;
/// How long one run of the program may take.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn list(State(node): State<Arc<Node>>) -> Result<Json<MqttUsers>, Refused> {
    let text = run(&node.mqtt, &node.config.data, vec!["list".to_owned()], String::new()).await?;
    let users = serde_json::from_str(&text).map_err(|error| not_changed(error.to_string()))?;
    Ok(Json(users))
}

pub(super) async fn put(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    body: axum::body::Body,
) -> Result<Json<MqttUser>, Refused> {
    let invalid = |text: String| Refused::from(Problem::new(422, "M0303", text));
    let bytes = axum::body::to_bytes(body, BODY_BYTES_MAX).await;
    let bytes = bytes.map_err(|_| invalid("a user has at most 256 KiB".to_owned()))?;
    let user: MqttUserRequest =
        serde_json::from_slice(&bytes).map_err(|error| invalid(error.to_string()))?;
    let mut arguments = vec!["add".to_owned(), name.clone()];
    for (flag, filters) in [("--read", &user.read), ("--write", &user.write)] {
        arguments.extend(filters.iter().flat_map(|filter| [flag.to_owned(), filter.clone()]));
    }
    if arguments.iter().any(|text| text.contains('\0')) {
        return Err(invalid("names and filters have no byte 0".to_owned()));
    }
    to_the_end(async move { run(&node.mqtt, &node.config.data, arguments, user.password).await })
        .await?;
    Ok(Json(MqttUser { name, read: user.read, write: user.write }))
}

pub(super) async fn remove(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
) -> Result<StatusCode, Refused> {
    if name.contains('\0') {
        return Err(no_such_user(&name).into());
    }
    let arguments = vec!["remove".to_owned(), name];
    to_the_end(async move { run(&node.mqtt, &node.config.data, arguments, String::new()).await })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Runs the broker's program with this input, and returns its output.
async fn run(
    mqtt: &Mqtt,
    data: &std::path::Path,
    arguments: Vec<String>,
    input: String,
) -> Result<String, Problem> {
    if mqtt.own_broker.is_none() {
        let problem = Problem::new(409, "M1209", "this node runs no MQTT broker of its own");
        return Err(problem.with_hint("start it with a broker: mote up --mqtt on"));
    }
    let Ok(_place) = mqtt.user_turns.places.try_acquire() else {
        let text = format!("{REQUESTS_MAX} requests about users of the broker wait already");
        return Err(Problem::new(503, "M1209", text).with_hint("try again in some seconds"));
    };
    let _turn = mqtt.user_turns.turn.lock().await;
    let failed = |error: std::io::Error| not_changed(format!("the broker: {error}"));
    let command = Role::Broker.command(OWN_PROGRAM.as_ref());
    let mut child = tokio::process::Command::from(command)
        .args(["users", "--folder"])
        .arg(data.join(BROKER_FOLDER))
        .args(&arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let stdin = child.stdin.take();
    let ended = async move {
        if let Some(mut stdin) = stdin {
            // The program may end before it has read its input, so an error is ignored.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let late = |_| not_changed(format!("the broker took longer than {PATIENCE:?}"));
    let output = tokio::time::timeout(PATIENCE, ended).await.map_err(late)?.map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    if output.status.code() == Some(UNKNOWN) {
        return Err(no_such_user(arguments.get(1).map_or("", String::as_str)));
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let text = text.strip_prefix("error: ").unwrap_or(&text).to_owned();
    Err(if output.status.code() == Some(2) {
        Problem::new(422, "M0303", text)
    } else {
        not_changed(text)
    })
}

fn no_such_user(name: &str) -> Problem {
    let text = format!("the broker has no user {}", super::refused::shortened(name));
    Problem::new(404, "M1209", text).with_hint("list them: mote mqtt users list")
}

fn not_changed(text: String) -> Problem {
    Problem::new(500, "M1209", text)
}
