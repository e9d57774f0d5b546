//! WebAssembly functions: components for `wasi:http/proxy` or `wasi:cli/command`, and core modules
//! of WASI preview 1.
//!
//! A node starts this program in two ways. `mote-wasm compile` runs in the sandbox for builds
//! during a deploy, and turns a user's file into machine code ([`compile`]). Without arguments, the
//! program is a worker in the sandbox of a function ([`worker`]): it loads that machine code and
//! speaks the worker protocol. This crate must not know the engine, the store or the management API
//! of a node. Start reading at `worker.rs`.
//!
//! - `engine.rs`: settings of wasmtime, memory limits, the clock that interrupts guests
//! - `imports.rs`: what files may import
//! - `program.rs`: a loaded function, ready to make instances
//! - `link.rs`: the connection to the node, streams, requests
//! - `call.rs`, `answer.rs`: one invocation
//! - `host.rs`, `output.rs`, `body.rs`: what an instance can reach
//! - `bindings.rs`: the node's services: state, calls, configuration, log

mod answer;
mod bindings;
mod body;
mod call;
mod compile;
mod engine;
mod host;
mod imports;
mod link;
mod output;
mod program;
mod worker;

use std::process::ExitCode;

use serde_json::json;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => ExitCode::from(worker::serve() as u8),
        ["compile", source, folder] => compile::main(source.as_ref(), folder.as_ref()),
        ["--version"] => {
            println!(
                "{}",
                json!({"version": env!("CARGO_PKG_VERSION"), "engine": engine::VERSION})
            );
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("mote starts this program for WebAssembly functions; see: mote doctor");
            ExitCode::from(2)
        }
    }
}
