//! Deploys to one node of several, and reverts such a deploy.

use bytes::Bytes;
use mote_api::client::{Client, ClientError, DeployOptions};
use mote_api::exit;
use mote_api::openwhisk::WhiskManifest;
use mote_api::types::{
    DeployResult, InvokeRequest, RegistryLogin, TrafficEdit, TrafficRequest, TrafficShare,
};

/// The error code that a node returns if its OpenWhisk API is off.
const OPENWHISK_OFF: &str = "M0416";

/// The functions and manifests that are deployed to each node. They are read and packed only once.
#[derive(Debug)]
pub struct Change {
    /// The names of functions, each with its archive and the login at the registry of its image.
    pub functions: Vec<(String, Bytes, Option<RegistryLogin>)>,
    /// The manifests with OpenWhisk's entities that are not functions.
    pub whisk: Vec<WhiskManifest>,
    pub options: DeployOptions,
    /// Whether each function is called once after its deploy and must answer without an error.
    pub invoke: bool,
}

/// The part of a change that a node has carried out.
#[derive(Debug, Default)]
pub struct Applied {
    /// The functions that the node has deployed.
    pub functions: Vec<DeployResult>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// The failure of a change on one node.
#[derive(Debug)]
pub struct Stopped {
    /// The part of the change that was carried out before the failure.
    pub applied: Applied,
    /// The function whose deploy or first call failed.
    pub function: Option<String>,
    pub reason: Reason,
}

/// The reason why a change failed on a node.
#[derive(Debug)]
pub enum Reason {
    /// The node refused the change or could not be asked.
    Node(ClientError),
    /// The deployed function answered its first call with an error.
    Answer {
        function: String,
        status: u16,
        /// The code of the platform's fault, if the error was such a fault.
        fault: Option<String>,
    },
}

impl Reason {
    /// Returns whether the node may have carried out the request although the command does not know it.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Node(ClientError::Timeout { .. } | ClientError::Lost { .. }))
    }
}

/// Deploys all functions of a change to one node, in order. Stops at the first function that fails.
pub async fn apply(client: &Client, change: &Change) -> Result<Applied, Stopped> {
    let mut applied = Applied::default();
    for (name, tar, login) in &change.functions {
        let function = Some(name.clone());
        let options = DeployOptions { registry_login: login.clone(), ..change.options.clone() };
        match client.deploy(name, tar.clone(), &options).await {
            Ok(result) => applied.functions.push(result),
            Err(error) => return Err(Stopped { applied, function, reason: Reason::Node(error) }),
        }
        if change.invoke
            && let Err(reason) = call(client, name, change.options.tag.as_deref()).await
        {
            return Err(Stopped { applied, function: Some(name.clone()), reason });
        }
    }
    for manifest in &change.whisk {
        match client.apply_openwhisk(manifest).await {
            Ok(made) => applied.notes.extend(made.notes),
            Err(ClientError::Problem(problem)) if problem.code == OPENWHISK_OFF => {
                let text = "the OpenWhisk API is off, so nothing but functions was created; start \
                            the node with mote up --openwhisk on";
                applied.notes.push(text.to_owned());
            }
            Err(error) => {
                return Err(Stopped { applied, function: None, reason: Reason::Node(error) });
            }
        }
    }
    Ok(applied)
}

/// Calls a function once. Fails if the function answers with an error.
async fn call(client: &Client, name: &str, tag: Option<&str>) -> Result<(), Reason> {
    let request = InvokeRequest {
        method: "GET".to_owned(),
        path: "/".to_owned(),
        headers: Vec::new(),
        body: Vec::new(),
    };
    let name = tag.map_or_else(|| name.to_owned(), |tag| format!("{name}@{tag}"));
    let answer = client.invoke(&name, request).await.map_err(Reason::Node)?;
    match answer.fault.is_some() || answer.status >= 400 {
        true => Err(Reason::Answer { function: name, status: answer.status, fault: answer.fault }),
        false => Ok(()),
    }
}

/// The traffic split of a function before a change; `None` if the function did not exist.
pub type Before = Option<Vec<TrafficShare>>;

/// Returns the current traffic split of each of these functions.
pub async fn before(client: &Client, functions: &[String]) -> Result<Vec<Before>, ClientError> {
    let mut all = Vec::new();
    for name in functions {
        all.push(traffic(client, name).await?);
    }
    Ok(all)
}

async fn traffic(client: &Client, name: &str) -> Result<Before, ClientError> {
    match client.function(name).await {
        Ok(function) if function.traffic.is_empty() => {
            let revision = function.revision;
            Ok(Some(vec![TrafficShare { revision, percent: 100, tag: None }]))
        }
        Ok(function) => Ok(Some(function.traffic)),
        Err(error) if error.exit_code() == exit::NO_FUNCTION => Ok(None),
        Err(error) => Err(error),
    }
}

/// The result of reverting a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Back {
    /// The change had not reached the function.
    Unchanged,
    /// The traffic split is the same as before the change. This revision has the largest share.
    At(u64),
    /// The function did not exist before, so it was removed.
    Removed,
}

/// Reverts a change of a function, however much of the change has happened.
pub async fn take_back(client: &Client, name: &str, before: &Before) -> Result<Back, ClientError> {
    let now = traffic(client, name).await?;
    if now == *before {
        return Ok(Back::Unchanged);
    }
    let Some(before) = before else {
        client.remove(name).await?;
        return Ok(Back::Removed);
    };
    let live = before.iter().max_by_key(|share| share.percent).map_or(0, |share| share.revision);
    if before.iter().any(|share| share.percent == 100) {
        client.rollback(name, Some(live)).await?;
    } else {
        let edit = |share: &TrafficShare| TrafficEdit {
            revision: share.revision,
            percent: Some(share.percent),
            tag: None,
        };
        let shares = before.iter().filter(|share| share.percent > 0).map(edit).collect();
        client.traffic(name, &TrafficRequest { shares }).await?;
    }
    Ok(Back::At(live))
}
