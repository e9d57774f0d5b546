//! Writes the parts of a function's image: its `Containerfile`, and the description that `serve.py`
//! reads.

use mote_build::shims;
use mote_spec::{FunctionSpec, Platform, Runtime};
use serde_json::{Value, json};

/// The port on which every image answers.
pub const PORT: u16 = 8080;
/// The port of a program that is a server, if its manifest names none.
const SERVER_PORT: u16 = 8081;
/// The user id of the container. No user of the base image has this id.
pub const USER: u32 = 65_532;
/// The path at which the platforms of images ask whether the function is ready.
pub const HEALTH: &str = "/_/health";
/// The name of the archive in the build context that contains the function's files.
pub const ARCHIVE: &str = "function.tar";

const PYTHON: &str = "docker.io/library/python:3.13-slim";
const NODE: &str = "docker.io/library/node:22-slim";
const BUN: &str = "docker.io/oven/bun:1-slim";
const DENO: &str = "docker.io/denoland/deno:debian";
const OTHER: &str = "docker.io/library/debian:stable-slim";

/// The files next to the code that name packages to install.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// The code has a `requirements.txt`.
    pub requirements: bool,
    pub package_json: bool,
    /// The code has a `package-lock.json`.
    pub package_lock: bool,
}

/// Returns whether the image of this function needs a file of the shims.
pub fn has_shim(spec: &FunctionSpec, path: &str) -> bool {
    let folder = match spec.runtime {
        Runtime::Python => "python/",
        Runtime::Node | Runtime::Bun | Runtime::Deno => "node/",
        _ => return path == "standalone/serve.py",
    };
    let is_adapter = path.starts_with(&format!("{folder}compat/"));
    path == "standalone/serve.py"
        || (path.starts_with(folder) && (!is_adapter || spec.compat.is_some()))
}

/// Returns the text of the `Containerfile`. Its build context must contain [`ARCHIVE`], `function.json`
/// and the folder `server` with the shims.
pub fn containerfile(spec: &FunctionSpec, needs: Needs) -> String {
    let name = spec.name.as_str();
    let base = match spec.runtime {
        Runtime::Python => PYTHON,
        Runtime::Node => NODE,
        Runtime::Bun => BUN,
        Runtime::Deno => DENO,
        _ => OTHER,
    };
    let mut text = format!(
        "# The function {name} as an image that needs no mote. Build it with:\n\
         #   docker build -f Containerfile -t IMAGE .     or podman, buildah, kaniko\n\
         FROM {base}\n"
    );
    if spec.runtime != Runtime::Python {
        text.push_str(
            "# serve.py answers HTTP. Add the programs that the function calls to this list.\n\
             RUN apt-get update \\\n && apt-get install -y --no-install-recommends ca-certificates \
             python3 \\\n && rm -rf /var/lib/apt/lists/*\n",
        );
    }
    text.push_str(&format!("ADD {ARCHIVE} /function/\n"));
    if needs.requirements {
        text.push_str(
            "RUN pip install --no-cache-dir --target /packages -r /function/requirements.txt\n",
        );
    }
    if needs.package_json {
        let command = match (spec.runtime, needs.package_lock) {
            (Runtime::Bun, _) => "bun install --production",
            (Runtime::Deno, _) => "deno install --node-modules-dir=manual",
            (_, true) => "npm ci --omit=dev",
            (_, false) => "npm install --omit=dev",
        };
        text.push_str(&format!("RUN cd /function && {command}\n"));
    }
    text.push_str("COPY server/ /server/\nCOPY function.json /server/\n");
    if spec.compat == Some(Platform::OpenFaas) {
        text.push_str("RUN mkdir -p /var/openfaas && ln -s /secrets /var/openfaas/secrets\n");
    }
    if spec.compat == Some(Platform::Fission) {
        text.push_str("RUN ln -s /function /userfunc\n");
    }
    text.push_str(&format!(
        "USER {USER}:{USER}\nENV HOME=/tmp LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1\nEXPOSE {PORT}\n\
         ENTRYPOINT [\"python3\", \"-u\", \"/server/standalone/serve.py\", \
         \"/server/function.json\"]\n"
    ));
    text
}

/// The command that starts an interpreter with its shim.
fn worker(program: &str, options: &[&str], shim: &str) -> Value {
    json!([&[program], options, &[&format!("/server/{shim}")]].concat())
}

/// The content of `function.json`.
pub fn description(spec: &FunctionSpec, needs: Needs) -> Value {
    let limits = &spec.limits;
    let mut value = json!({
        "name": spec.name.as_str(),
        "runtime": spec.runtime.as_str(),
        "entry": spec.entry,
        "folder": "/function",
        // If the manifest sets no limit, the shim decides by the form of the function.
        "concurrency": spec.limits.concurrency,
        "queue": spec.scale.queue,
        "timeout_ms": limits.timeout_ms,
        "init_timeout_ms": limits.init_timeout_ms,
        "stream_idle_ms": limits.stream_idle_ms,
        "body_bytes": limits.body_bytes,
        "memory_bytes": limits.memory_bytes,
        "methods": spec.methods,
    });
    match spec.runtime {
        Runtime::Python => {
            let shim = "/server/python/mote_shim.py";
            value["worker"] = json!(["python3", "-u", "-s", "-B", shim]);
        }
        Runtime::Node => value["worker"] = json!(["node", "/server/node/mote_shim.mjs"]),
        Runtime::Bun => value["worker"] = worker("bun", &shims::BUN_OPTIONS, shims::BUN_SHIM),
        Runtime::Deno => value["worker"] = worker("deno", &shims::DENO_OPTIONS, shims::DENO_SHIM),
        _ => value["command"] = json!(spec.command),
    }
    if spec.runtime == Runtime::Server {
        // `serve.py` already listens on the port of the container, so the program needs another.
        let port = spec.port.filter(|port| *port != PORT).unwrap_or(SERVER_PORT);
        value["port"] = port.into();
    }
    if needs.requirements {
        value["packages"] = "/packages".into();
    }
    if let Some(compat) = spec.compat {
        value["compat"] = compat.as_str().into();
        value["template"] = spec.template.clone().into();
    }
    value
}
