//! Compiles WebAssembly functions during a deploy, with `mote-wasm` in the sandbox for builds. The
//! node stores the machine code in the same way as installed packages: once for each combination of
//! code, entry and engine.
//!
//! The node itself never reads a WebAssembly file, and never runs its machine code. A function's
//! worker loads only the machine code that such a build has made.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mote_api::Problem;
use mote_core::backend::InstanceLimits;
use mote_core::fault::error_chain;
use mote_engine::WASM_PROGRAM;
use mote_sandbox::{BuildOutcome, BuildRequest};
use mote_spec::{FunctionSpec, Runtime};
use mote_store::{Lookup, StagedCode};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::Node;
use super::packages::{self, Installed};
use super::store_work::{blocking, store_problem};

/// A compilation is stopped after this time. The largest files take less than a minute on a small
/// board.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Memory for a compilation. Interpreters of other languages, compiled to WebAssembly, need 1 GiB.
const MEMORY_BYTES_MAX: u64 = 2 << 30;
/// Threads of the compiler, with room for many processors.
const PIDS: u32 = 256;
/// The compiler writes nothing outside the folder of its result.
const TMP_BYTES: u64 = 1 << 20;

/// How to install `mote-wasm`.
pub(crate) fn install() -> String {
    "install the package mote-wasm, or put the program mote-wasm next to mote, and start the node \
     again"
        .to_owned()
}

/// Fails before anything is compiled if `spec` needs WebAssembly and the node has no engine for it.
/// Also puts the engine where sandboxes can show it.
pub(crate) fn check(node: &Node, spec: &FunctionSpec) -> Result<(), Problem> {
    if spec.runtime != Runtime::Wasm {
        return Ok(());
    }
    let put =
        node.opened.interpreters.wasm.as_ref().map_err(String::clone).and_then(|found| {
            mote_build::shims::unpack_wasm(node.opened.store.root(), &found.program)
        });
    put.map_err(|reason| {
        let text = format!("{} cannot run here: {reason}", spec.name);
        Problem::new(422, "M0403", text).with_hint(install())
    })
}

/// Compiles the function of `staged`, unless the store already has its machine code.
pub(crate) async fn build(
    node: &Arc<Node>,
    spec: &FunctionSpec,
    staged: &StagedCode,
) -> Result<Installed, Problem> {
    let engine = &node.opened.interpreters.wasm.as_ref().map_err(|text| failed(text))?.version;
    let file = staged.path.join(&spec.entry);
    let hash = blocking(move || hash(&file)).await.ok().flatten();
    let key = key(hash.as_deref().unwrap_or(&staged.hash), &spec.entry, engine);
    let store = node.opened.store.clone();
    let wanted = key.clone();
    let lookup = blocking(move || store.packages_dir(&wanted))
        .await
        .map_err(|_| failed("the node could not check for existing machine code"))?
        .map_err(|error| store_problem(&error))?;
    let staging = match lookup {
        Lookup::Ready(stored) => return Ok(Installed::new(key, stored, "from cache".into())),
        Lookup::Build(staging) => staging,
    };
    let turn = node.deploys.wasm_builds.wait(&spec.name, TIMEOUT).await;
    let _turn = turn.map_err(|waited| {
        let minutes = waited.as_secs() / 60;
        let name = &spec.name;
        failed(&format!("{name} waited {minutes} minutes for the compilation of other functions"))
            .with_hint("deploy it again when they have ended")
    })?;
    let (packages_bytes_max, free_bytes_min) = packages::room(node, &spec.name).await?;
    let machine = mote_process::memory::machine_bytes();
    let memory_bytes = packages::install_memory_bytes(machine, node.data_path.memory_bytes);
    let memory_bytes = memory_bytes.min(MEMORY_BYTES_MAX);
    let source = format!("{}/{}", mote_engine::CODE_DIR, spec.entry);
    let request = BuildRequest {
        label: format!("{}-compile", spec.name),
        argv: [WASM_PROGRAM, "compile", &source, mote_engine::PACKAGES_DIR]
            .map(str::to_owned)
            .to_vec(),
        env: Vec::new(),
        packages_dir: staging.path().to_owned(),
        code_dir: Some(staged.path.to_path_buf()),
        extra_read_only: Vec::new(),
        cache_dir: None,
        files: Vec::new(),
        listen: Vec::new(),
        packages_bytes_max,
        free_bytes_min,
        limits: InstanceLimits {
            memory_bytes,
            cpu_millis: None,
            pids: PIDS,
            disk_bytes: TMP_BYTES,
        },
        timeout: TIMEOUT,
    };
    let outcome = node.opened.backend.run_build(request, |_| std::future::pending()).await;
    let outcome =
        outcome.map_err(|error| failed(&format!("cannot compile: {}", error_chain(&error))))?;
    if !outcome.succeeded() {
        return Err(explain(spec, &outcome, memory_bytes));
    }
    let store = node.opened.store.clone();
    let stored = blocking(move || store.commit_packages(staging))
        .await
        .map_err(|_| failed("the node could not store the machine code"))?
        .map_err(|error| store_problem(&error))?;
    Ok(Installed::new(key, stored, format!("wasmtime {engine}")))
}

/// The hash of a plain file, so that other files of the function may change without a compilation.
/// `None` if it is not a plain file, or cannot be read.
fn hash(file: &Path) -> Option<String> {
    if !std::fs::symlink_metadata(file).ok()?.is_file() {
        return None;
    }
    let mut hash = Sha256::new();
    let mut file = std::fs::File::open(file).ok()?;
    let mut piece = vec![0; 64 << 10];
    loop {
        match std::io::Read::read(&mut file, &mut piece).ok()? {
            0 => return Some(base16ct::lower::encode_string(&hash.finalize())),
            read => hash.update(&piece[..read]),
        }
    }
}

/// The key of the machine code. It is a hash of everything that determines the machine code, except
/// the processor: a worker whose processor does not match compiles the code again.
fn key(code_hash: &str, entry: &str, engine: &str) -> String {
    let mut hash = Sha256::new();
    for part in [code_hash, entry] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let key = base16ct::lower::encode_string(&hash.finalize()[..16]);
    let plain: String =
        engine.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '.' }).collect();
    format!("{key}-wasm{plain}-{}", std::env::consts::ARCH)
}

/// What `mote-wasm compile` reports about a file that cannot be run.
#[derive(Deserialize)]
struct Said {
    problem: String,
    text: String,
}

fn explain(spec: &FunctionSpec, outcome: &BuildOutcome, memory_bytes: u64) -> Problem {
    let said = outcome.output.iter().rev().find_map(|line| serde_json::from_str::<Said>(line).ok());
    if let Some(said) = said {
        let problem = Problem::new(422, "M0123", format!("{}: {}", spec.name, said.text));
        let problem = problem.with_field("entry");
        return match said.problem.as_str() {
            "import" => problem.with_hint(
                "build it for wasi:http/proxy or wasi:cli/command of WASI 0.2; \
                 docs/guides/webassembly.md lists what a function may import",
            ),
            "export" => problem.with_hint(
                "build a component for wasi:http/proxy (in Rust: cargo build --target \
                 wasm32-wasip2), or a program for wasm32-wasip1",
            ),
            _ => problem,
        };
    }
    let how = if outcome.too_large {
        "was stopped because its machine code needs too much space".to_owned()
    } else if outcome.timed_out {
        format!("took longer than {} s", TIMEOUT.as_secs())
    } else if outcome.exit.out_of_memory {
        let most = mote_core::fault::bytes_text(memory_bytes);
        format!("ran out of memory (a compilation may use {most})")
    } else {
        let last = outcome.output.back().map_or("it said nothing", String::as_str);
        match (outcome.exit.status, outcome.exit.signal) {
            (Some(status), _) => format!("exited {status}: {last}"),
            (None, signal) => format!("was killed by signal {}: {last}", signal.unwrap_or(0)),
        }
    };
    failed(&format!("{}: the compilation {how}", spec.name))
}

fn failed(text: &str) -> Problem {
    packages::failed(text)
}
