//! Calls actions of OpenWhisk that are container images.
//!
//! Such an image is a server with two addresses: the platform sends `/init` once to each instance, and
//! `/run` with the arguments for each activation. The answer of `/run` is the result of the action. The
//! rules for arguments and results are those of every action (`openwhisk_action` of `mote-core`).

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use mote_core::body::Body;
use mote_core::invocation::Head;
use mote_core::openwhisk_action as whisk;
use mote_core::wire::Invoke;
use mote_core::{Fault, Invocation};
use mote_spec::{FunctionSpec, Platform};
use serde_json::{Value, json};

use crate::link::server::{self, Place};
use crate::link::server_link::ServerLink;
use mote_process::clock::{now_ns, unix_ms};

/// The variable with the default parameters of an action.
const PARAMETERS: &str = "OPENWHISK_PARAMETERS";
/// The longest result of an action, and the longest answer to `/init`.
const RESULT_BYTES_MAX: u64 = 2 << 20;
/// The content type of what is sent to `/init` and `/run`.
const JSON: &[u8] = b"application/json";

/// Whether calls of a function go to `/run` of an image.
pub(crate) fn is_meant(spec: &FunctionSpec) -> bool {
    spec.compat == Some(Platform::OpenWhisk) && spec.image.is_some()
}

/// Tells a new instance which action it is. An image without this address is ready as it is.
pub(crate) async fn init(link: &Arc<ServerLink>, spec: &FunctionSpec) -> io::Result<()> {
    let name = spec.name.label();
    let value = json!({"value": {"name": name, "main": "main", "binary": false, "code": ""}});
    let (status, answer) = post(link, "/init", &value)
        .await
        .map_err(|fault| io::Error::other(fault.public_text("image")))?;
    if status == 200 || status == 404 {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&answer[..answer.len().min(1024)]).into_owned();
    Err(io::Error::other(format!("the image answered {status} to /init: {text}")))
}

/// Serves one invocation.
pub(crate) async fn exchange(place: Place, link: Arc<ServerLink>, invocation: Invocation) {
    match run(&place, &link, invocation).await {
        Ok(answer) => place.deliver(answer.status, answer.fields.into(), Body::whole(answer.body)),
        Err(fault @ Fault::BadReply { .. }) => server::broken(place, fault).await,
        Err(fault) => place.reply(Err(fault)),
    }
}

async fn run(
    place: &Place,
    link: &Arc<ServerLink>,
    invocation: Invocation,
) -> Result<whisk::Answer, Fault> {
    let spec = &place.revision().spec;
    let head = invocation.head;
    let body = invocation
        .body
        .collect(spec.limits.body_bytes)
        .await
        .map_err(|error| Fault::of_body(&error))?;
    let left_ns = invocation.deadline_ns.saturating_sub(now_ns());
    let request = Invoke {
        sent_ns: 0,
        id: invocation.id.0,
        remaining_ms: u32::try_from(left_ns / 1_000_000).unwrap_or(u32::MAX),
        trigger: invocation.trigger as u8,
        method: head.method(),
        path: head.path(),
        query: head.query(),
        headers: head.headers(),
        body: &[],
    };
    let defaults = spec.env.get(PARAMETERS).map_or("{}", String::as_str);
    let arguments = match whisk::called_with(&request, &body, defaults) {
        Ok(arguments) => arguments,
        Err(answer) => return Ok(answer),
    };
    let activation = whisk::activation(&request);
    let id = String::from_utf8_lossy(&invocation.id.text()).into_owned();
    let value = json!({
        "value": arguments,
        "namespace": "_",
        "action_name": format!("/_/{}", spec.name.label()),
        "activation_id": activation.clone().unwrap_or(id),
        "deadline": (unix_ms() + left_ns / 1_000_000).to_string(),
    });
    let (_, result) = post(link, "/run", &value).await?;
    Ok(whisk::answer(&result, activation.is_some()))
}

/// Sends JSON to the server, and reads the whole answer.
async fn post(link: &Arc<ServerLink>, path: &str, value: &Value) -> Result<(u16, Bytes), Fault> {
    let mut head = Head::builder(b"POST", path.as_bytes(), b"");
    head.header(b"content-type", JSON);
    let body = Body::whole(Bytes::from(value.to_string()));
    server::whole(link, &head.finish(), body, RESULT_BYTES_MAX).await
}
