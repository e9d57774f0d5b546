//! What one instance can reach.

use std::sync::Arc;

use wasmtime::component::ResourceTable;
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use crate::engine::Share;
use crate::link::Link;

/// Resources that one instance may hold, such as open files, streams and timers.
const RESOURCES_MAX: usize = 4_096;
/// Bytes that one call of a host function may take from a guest, or collect for it.
pub(crate) const HOST_BYTES_MAX: usize = 8 << 20;
/// Bytes of random data that a guest may request at once.
pub(crate) const RANDOM_BYTES_MAX: u64 = 1 << 20;

/// The invocation that an instance serves.
pub(crate) struct Caller {
    pub(crate) link: Arc<Link>,
    pub(crate) stream: u32,
    /// The services that the node offers to the function.
    pub(crate) services: Arc<[String]>,
    /// The environment of the function.
    pub(crate) env: Arc<[(String, String)]>,
}

/// The data of a store.
pub(crate) struct Host {
    wasi: WasiCtx,
    /// Only for modules of preview 1, which have their own table.
    p1: Option<WasiP1Ctx>,
    http: WasiHttpCtx,
    pub(crate) table: ResourceTable,
    pub(crate) share: Share,
    pub(crate) caller: Caller,
}

impl Host {
    pub(crate) fn component(wasi: WasiCtx, share: Share, caller: Caller) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(RESOURCES_MAX);
        Self { wasi, p1: None, http: WasiHttpCtx::new(), table, share, caller }
    }

    pub(crate) fn module(p1: WasiP1Ctx, share: Share, caller: Caller) -> Self {
        let host = Self::component(WasiCtx::builder().build(), share, caller);
        Self { p1: Some(p1), ..host }
    }

    /// Bytes that a host function may collect for the guest.
    pub(crate) fn host_bytes_max(&self) -> usize {
        HOST_BYTES_MAX
    }

    pub(crate) fn p1(&mut self) -> &mut WasiP1Ctx {
        self.p1.as_mut().expect("a store for a module has it")
    }
}

impl WasiView for Host {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for Host {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { ctx: &mut self.http, table: &mut self.table, hooks: Default::default() }
    }
}
