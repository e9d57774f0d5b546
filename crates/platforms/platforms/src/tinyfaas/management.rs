//! Uploads, and the other operations that tinyFaaS' scripts use. A wrong method, or a body that is not
//! JSON, is answered 400. Every other failure is answered 500, with a text that gives the reason.
//!
//! The API manages only functions that were uploaded through it. Other functions can be called by name,
//! but the API neither lists nor wipes them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use crate::compat::node::{Code, Deploy, Function, Manifest};
use crate::compat::outgoing;
use axum::body::Bytes;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use mote_api::Problem;
use mote_spec::manifest::{FunctionManifest, PlatformName, RuntimeName};
use mote_spec::toml_reader::Lined;
use mote_spec::{FunctionName, TIMEOUT_MS_MAX};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use super::context::{Context, Ports};

/// The largest upload, which is JSON with the archive in base64.
const UPLOAD_BYTES_MAX: usize = 64 << 20;
/// The most uploads that are received and processed at once. Further uploads wait. An upload may need a
/// few times its size in memory.
const UPLOADS_MAX: usize = 1;
/// The time limit for receiving one upload. There is a limit because other uploads wait.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(120);
/// The memory of one instance. tinyFaaS has no such limit, and the libraries of its functions need more
/// than `mote`'s default.
const MEMORY_BYTES: u64 = 128 << 20;
/// The largest body of any other request.
pub(super) const BODY_BYTES_MAX: usize = 64 << 10;
/// The key of the annotation that holds the name under which a function was uploaded.
const KEY: &str = "tinyfaas";

/// The state that the handlers share.
#[derive(Clone)]
pub(super) struct Manager {
    context: Context,
    ports: Ports,
    uploads: Arc<Semaphore>,
}

impl Manager {
    pub(super) fn new(context: Context, ports: Ports) -> Self {
        Self { context, ports, uploads: Arc::new(Semaphore::new(UPLOADS_MAX)) }
    }

    /// Returns every function that was uploaded through this API, by the name in its upload.
    fn functions(&self) -> Vec<(String, Function)> {
        let named =
            |function: Function| Some((function.spec.annotations.get(KEY)?.clone(), function));
        self.context.node.functions().into_iter().filter_map(named).collect()
    }

    fn function(&self, name: &str) -> Result<Function, Failed> {
        let found = self.functions().into_iter().find(|(known, _)| known == name);
        found
            .map(|(_, function)| function)
            .ok_or_else(|| failed(format!("no function {}", crate::compat::shown(name))))
    }
}

type Failed = (StatusCode, String);
type Answer = Result<String, Failed>;

fn failed(text: impl Into<String>) -> Failed {
    (StatusCode::INTERNAL_SERVER_ERROR, text.into() + "\n")
}

fn refused(problem: Problem) -> Failed {
    failed(crate::compat::words(&problem))
}

fn check(method: &Method, wanted: Method) -> Result<(), Failed> {
    if *method == wanted {
        return Ok(());
    }
    Err((StatusCode::BAD_REQUEST, format!("use {wanted}\n")))
}

fn parse<T: DeserializeOwned>(method: &Method, body: &[u8]) -> Result<T, Failed> {
    check(method, Method::POST)?;
    let bad = |error| (StatusCode::BAD_REQUEST, format!("body: {error}\n"));
    serde_json::from_slice(body).map_err(bad)
}

#[derive(Deserialize)]
struct Upload {
    #[serde(default)]
    name: String,
    #[serde(default)]
    env: String,
    #[serde(default)]
    threads: u32,
    #[serde(default)]
    zip: String,
    #[serde(default)]
    envs: Option<Vec<String>>,
    #[serde(default)]
    url: String,
    #[serde(default)]
    subfolder_path: String,
}

/// Receives the body of an upload, once it is this upload's turn.
async fn received(request: Request) -> Result<Upload, Failed> {
    let method = request.method().clone();
    check(&method, Method::POST)?;
    let bytes = axum::body::to_bytes(request.into_body(), UPLOAD_BYTES_MAX);
    match tokio::time::timeout(UPLOAD_TIMEOUT, bytes).await {
        Ok(Ok(bytes)) => parse(&method, &bytes),
        Ok(Err(_)) => {
            let text = format!("body: cut off, or longer than {} MiB\n", UPLOAD_BYTES_MAX >> 20);
            Err((StatusCode::PAYLOAD_TOO_LARGE, text))
        }
        Err(_) => Err((StatusCode::REQUEST_TIMEOUT, "body: took too long\n".to_owned())),
    }
}

pub(super) async fn upload(State(manager): State<Manager>, request: Request) -> Answer {
    let _turn = manager.uploads.acquire().await.map_err(|_| failed("the node is stopping"))?;
    let mut wish = received(request).await?;
    let zip = std::mem::take(&mut wish.zip);
    let bytes = crate::compat::decoded(zip).await.ok_or_else(|| failed("zip: not base64"))?;
    deploy(&manager, &wish, bytes.into(), "").await
}

pub(super) async fn upload_url(State(manager): State<Manager>, request: Request) -> Answer {
    let _turn = manager.uploads.acquire().await.map_err(|_| failed("the node is stopping"))?;
    let wish = received(request).await?;
    let uri = outgoing::check(&wish.url).map_err(|error| failed(format!("url: {error}")))?;
    let get = Method::GET;
    let none = Bytes::new();
    let allowed = &manager.context.queue.outgoing;
    let sent = outgoing::send(get, &uri, HeaderMap::new(), none, allowed, UPLOAD_BYTES_MAX);
    let (status, _, bytes) = sent.await.map_err(|error| failed(format!("url: {error}")))?;
    if status != 200 {
        return Err(failed(format!("url: answered {status}")));
    }
    deploy(&manager, &wish, bytes, &wish.subfolder_path).await
}

async fn deploy(manager: &Manager, wish: &Upload, bytes: Bytes, below: &str) -> Answer {
    let Upload { name, env, threads, envs, .. } = wish;
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(failed(format!(
            "name {}: letters and digits only",
            crate::compat::shown(name)
        )));
    }
    // A function's name must be a DNS label, while calls may use upper and lower case.
    let function = FunctionName::new(&name.to_ascii_lowercase())
        .map_err(|error| failed(format!("name {}: {error}", crate::compat::shown(name))))?;
    if let Some(other) = manager.context.node.function(function.as_str()) {
        let known = other.spec.annotations.get(KEY);
        if known != Some(name) {
            let text = format!(
                "{function} already exists and was not uploaded as {name} through this API"
            );
            return Err(failed(text));
        }
    }
    let deploy = Deploy {
        name: function,
        code: Code::Zip { bytes, below: below.to_owned() },
        manifest: Manifest::Keys(Box::new(manifest(env, *threads, envs.as_deref())?)),
        annotations: BTreeMap::from([(KEY.to_owned(), name.clone())]),
        secrets: Vec::new(),
        may_name_secrets: false,
        replace: true,
        registry_login: None,
    };
    manager.context.node.deploy(deploy).await.map_err(refused)?;
    let Ports { http, coap, grpc } = manager.ports;
    let lines = [("coap", coap), ("grpc", grpc), ("http", http)];
    let line =
        |(protocol, port): (&str, Option<u16>)| Some(format!("{protocol}://:{}/{name}\n", port?));
    Ok(lines.into_iter().filter_map(line).collect())
}

/// Returns the settings that `env`, `threads` and `envs` imply on this platform.
fn manifest(env: &str, threads: u32, envs: Option<&[String]>) -> Result<FunctionManifest, Failed> {
    fn said<T>(value: T) -> Option<Lined<T>> {
        Some(Lined { value, line: 0 })
    }
    let mut manifest =
        FunctionManifest { compat: said(PlatformName::TinyFaas), ..Default::default() };
    match env {
        "python3" => {
            manifest.runtime = said(RuntimeName::Python);
            manifest.entry = said("fn:fn".to_owned());
        }
        "nodejs" => manifest.runtime = said(RuntimeName::Node),
        "binary" => manifest.runtime = said(RuntimeName::Exec),
        "go" => manifest.runtime = said(RuntimeName::Go),
        other => {
            return Err(failed(format!(
                "env {}: python3, nodejs, go or binary",
                crate::compat::shown(other)
            )));
        }
    }
    // tinyFaaS sets no deadline, so the function gets the longest time limit.
    manifest.limits.timeout_ms = Some(TIMEOUT_MS_MAX);
    manifest.limits.memory_bytes = Some(MEMORY_BYTES);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if threads as usize > cores {
        manifest.scale.max = Some(threads);
    }
    for pair in envs.unwrap_or_default() {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(failed(format!("envs: {} is not K=V", crate::compat::shown(pair))));
        };
        manifest.env.insert(key.to_owned(), value.to_owned());
    }
    Ok(manifest)
}

#[derive(Deserialize)]
pub(super) struct Named {
    #[serde(default)]
    name: String,
}

pub(super) async fn delete(State(manager): State<Manager>, method: Method, body: Bytes) -> Answer {
    let wish: Named = parse(&method, &body)?;
    let function = manager.function(&wish.name)?;
    manager.context.node.remove(function.spec.name.as_str()).await.map_err(refused)?;
    Ok(String::new())
}

pub(super) async fn list(State(manager): State<Manager>, method: Method) -> Answer {
    check(&method, Method::GET)?;
    Ok(manager.functions().into_iter().map(|(name, _)| name + "\n").collect())
}

pub(super) async fn wipe(State(manager): State<Manager>, method: Method) -> Answer {
    check(&method, Method::POST)?;
    for (_, function) in manager.functions() {
        match manager.context.node.remove(function.spec.name.as_str()).await {
            Ok(()) => {}
            Err(problem) if problem.status == 404 => {}
            Err(problem) => return Err(refused(problem)),
        }
    }
    Ok(String::new())
}

pub(super) async fn logs(
    State(manager): State<Manager>,
    method: Method,
    Query(asked): Query<Named>,
) -> Answer {
    check(&method, Method::GET)?;
    let mut functions = manager.functions();
    if !asked.name.is_empty() {
        manager.function(&asked.name)?;
        functions.retain(|(name, _)| *name == asked.name);
    }
    let mut text = String::new();
    for (name, function) in functions {
        let Some(log) = manager.context.node.logs(function.spec.name.as_str(), false) else {
            continue;
        };
        for line in log.held {
            let instance = line.instance.as_deref().unwrap_or("0");
            let time = line.time;
            let message = line.message;
            let _ = writeln!(text, "function={name} handler={instance} {time} {message}");
        }
    }
    Ok(text)
}
