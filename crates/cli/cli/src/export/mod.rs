//! Exports functions for users who stop using `mote`: plain Kubernetes objects, and images in which the
//! unchanged function answers over HTTP without `mote`.
//!
//! Everything here is pure: it turns a spec into texts. This module does not know how a project is
//! read, and writes no files. [`objects`] makes the Kubernetes objects, and [`image`] makes the parts
//! of an image. Both add to the list of settings that cannot be carried over, which is as important as
//! the exported files.

pub mod image;
pub mod objects;
mod times;

use mote_spec::policy::Balance;
use mote_spec::{Access, FunctionSpec, Protocol, Runtime};

/// Returns the reason why a function cannot be exported at all, if there is one.
pub fn refusal(spec: &FunctionSpec) -> Option<String> {
    if spec.name.namespace().is_some() {
        let text = "its name has a namespace, which only mote knows; give another with --name";
        return Some(text.to_owned());
    }
    if let Some(image) = &spec.image {
        return Some(format!("it is a container image already: {}", image.name));
    }
    match spec.runtime {
        Runtime::Chain => Some(
            "a chain needs the engine of mote; call the functions one after another in a program \
             of your own"
                .to_owned(),
        ),
        Runtime::Go => Some(
            "a Go function has no program of its own; add a func main that serves it with \
             net/http on $PORT, and set runtime = \"server\""
                .to_owned(),
        ),
        Runtime::Rust => Some(
            "a Rust function answers through the library mote-function; use an HTTP server on $PORT \
             and runtime = \"server\""
                .to_owned(),
        ),
        Runtime::Wasm => Some(
            "a WebAssembly function needs a host such as Spin, wasmCloud or wasmtime serve, which \
             run the same file"
                .to_owned(),
        ),
        Runtime::Exec if spec.compat.is_some() => Some(
            "a program in the contract of another platform needs that platform or mote".to_owned(),
        ),
        _ => None,
    }
}

/// Describes the settings of a function that the image alone does not have. Docker, Knative and
/// OpenFaaS have flags or fields for many of them.
pub fn lost_in_image(spec: &FunctionSpec) -> Vec<String> {
    let mut all = Vec::new();
    let mut add = |is_lost: bool, text: String| {
        if is_lost {
            all.push(text);
        }
    };
    add(true, "the path: the function answers at /, without its name in front".to_owned());
    let secrets = spec.secrets.join(", ");
    add(!secrets.is_empty(), format!("secrets: give each as a file /secrets/NAME: {secrets}"));
    let variables = spec.secret_env.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    add(!variables.is_empty(), format!("secrets in variables: set them yourself: {variables}"));
    add(
        true,
        "[limits] memory, cpu and disk, [allow] and the sandbox: what runs the image sets them"
            .to_owned(),
    );
    add(
        !spec.schedules.is_empty() || !spec.mqtt.is_empty() || !spec.routes().is_empty(),
        "triggers and routes: call the function over HTTP".to_owned(),
    );
    all.extend(lost_everywhere(spec));
    all
}

/// Describes the settings of a function that have no counterpart in the objects and the image.
pub fn lost(spec: &FunctionSpec) -> Vec<String> {
    let mut all = Vec::new();
    let mut add = |is_lost: bool, text: &str| {
        if is_lost {
            all.push(text.to_owned());
        }
    };
    add(
        true,
        "the path: callers use http://NAME/ in the cluster, without the function's name as the \
         first segment; an Ingress or HTTPRoute of yours makes it public",
    );
    add(
        !spec.routes().is_empty(),
        "[[route]]: an Ingress or HTTPRoute has to lead its paths and hosts to the service",
    );
    add(
        spec.http.as_ref().is_some_and(|http| http.node_port.is_some()),
        "node_port: give the Service the type NodePort and this port as its nodePort",
    );
    add(
        spec.scale.floor() == 0,
        "scale to zero: Deployments keep at least one replica, and an HPA scales by CPU; KEDA or \
         Knative scale to zero",
    );
    add(
        !spec.mqtt.is_empty(),
        "MQTT triggers: a program of yours has to call the function for each message",
    );
    add(
        matches!(spec.scale.balance, Balance::PerCaller | Balance::PerCall),
        "balance per-caller and per-call: a Deployment has no replicas for single callers or calls",
    );
    add(
        spec.protocol == Protocol::H2c,
        "balance of gRPC calls: a Service balances connections, not calls",
    );
    add(
        spec.egress.iter().any(|to| to.port != 0 || to.host != "*"),
        "names of permitted hosts: a NetworkPolicy knows addresses only, so any host is reachable \
         on the permitted ports",
    );
    all.extend(lost_everywhere(spec));
    all
}

/// Describes the settings that need a node.
fn lost_everywhere(spec: &FunctionSpec) -> Vec<String> {
    let mut all = Vec::new();
    let mut add = |is_lost: bool, text: &str| {
        if is_lost {
            all.push(text.to_owned());
        }
    };
    add(
        !matches!(spec.access, Access::Public | Access::Unset),
        "access: everyone who reaches it can call the function without a key; put something \
         in front of it that asks for one",
    );
    add(
        spec.http.is_some() || !spec.rates.is_none(),
        "[http] headers and cors, rates and calls at once: nothing in front of the function checks \
         them",
    );
    let coap = &spec.coap;
    add(
        coap.title.is_some() || coap.resource_type.is_some() || coap.content_format.is_some(),
        "CoAP: the function answers over HTTP only",
    );
    add(
        spec.runtime == Runtime::Python || spec.runtime.is_javascript() || spec.services,
        "what the function asks of a node, if it does: state (ctx.kv), calls (ctx.call), messages \
         (ctx.publish, ctx.notify); use a database, HTTP, and a client library",
    );
    let background = &spec.background;
    add(
        background.on_success.is_some()
            || background.on_failure.is_some()
            || background.attempts.is_some()
            || background.concurrency.is_some(),
        "asynchronous invocations (Prefer: respond-async, attempts, recipients of results)",
    );
    add(
        spec.runtime == Runtime::Python || spec.runtime.is_javascript(),
        "WebSockets of ASGI applications and of fetch functions, if it uses them",
    );
    all
}
