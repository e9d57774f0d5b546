//! What WebAssembly files may import.

use wasmtime::Engine;
use wasmtime::component::Linker;

use crate::bindings;
use crate::host::Host;

/// Why a program cannot be loaded: the kind of the error and its text.
pub(crate) type Unusable = (&'static str, String);

pub(crate) fn text_of(error: &wasmtime::Error) -> String {
    format!("{error:#}")
}

/// What components may import.
pub(crate) fn component_linker(engine: &Engine) -> wasmtime::Result<Linker<Host>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    bindings::add_to_linker(&mut linker)?;
    Ok(linker)
}

/// What core modules may import.
pub(crate) fn module_linker(engine: &Engine) -> wasmtime::Result<wasmtime::Linker<Host>> {
    let mut linker = wasmtime::Linker::new(engine);
    wasmtime_wasi::p1::add_to_linker_async(&mut linker, Host::p1)?;
    Ok(linker)
}
