//! A loaded function: its machine code, linked to the interfaces that it may import.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mote_core::wire::Load;
use tokio::sync::Semaphore;
use wasmtime::component::{self, Component};
use wasmtime::{Engine, InstancePre, Module, Store, UpdateDeadline};
use wasmtime_wasi::p2::bindings::CommandPre;
use wasmtime_wasi::{FsPerms, WasiCtxBuilder};
use wasmtime_wasi_http::p2::bindings::ProxyPre;

use crate::compile::{self, MACHINE_CODE};
use crate::engine::{self, Facts, Memory, Room, Shape, Share};
use crate::host::{Caller, HOST_BYTES_MAX, Host, RANDOM_BYTES_MAX};
use crate::imports::{Unusable, component_linker, module_linker, text_of};
use crate::link::Link;

/// How many invocations run at once in one instance of the function, unless LOAD gives another
/// number.
const CONCURRENCY: u32 = 64;

/// The note about a function whose machine code cannot be used.
const STALE: &str = "compiled again, because its machine code does not fit this version of \
                     mote-wasm or this processor; deploy the function again to start faster";

/// Makes instances of a program.
pub(crate) enum Pre {
    Http(ProxyPre<Host>),
    Command(CommandPre<Host>),
    Module(InstancePre<Host>),
}

/// See the module's documentation.
pub(crate) struct Program {
    pub(crate) engine: Engine,
    pub(crate) pre: Pre,
    pub(crate) function: String,
    pub(crate) concurrency: u32,
    pub(crate) places: Semaphore,
    memory: Arc<Memory>,
    env: Arc<[(String, String)]>,
    services: Arc<[String]>,
    /// Folders of the sandbox, with their paths for the guest.
    folders: Vec<(PathBuf, &'static str)>,
    /// A note for the log, if something needs attention.
    pub(crate) note: Option<&'static str>,
}

impl Program {
    pub(crate) fn load(load: Load) -> Result<Self, Unusable> {
        let concurrency = load.concurrency.unwrap_or(CONCURRENCY).max(1);
        let memory = Memory::new(load.memory_bytes);
        let failed = |error: wasmtime::Error| ("Load", text_of(&error));
        let folder = Path::new(load.packages_dir.as_deref().unwrap_or_default());
        let mut note = None;
        let kept = Kept::open(folder, concurrency, memory.bytes).map_err(failed)?;
        let Kept { engine, concurrency, facts, loaded } = match kept {
            Some(kept) => kept,
            None => {
                // The node or the processor has changed since the deploy.
                note = Some(STALE);
                let source = Path::new(&load.code_dir).join(&load.entry);
                let (code, facts) = compile::compile(&source)?;
                let (engine, concurrency) =
                    pooled(&facts, concurrency, memory.bytes).map_err(failed)?;
                let loaded = of_bytes(&engine, &facts, &code).map_err(failed)?;
                Kept { engine, concurrency, facts, loaded }
            }
        };
        let pre = link(&engine, facts.shape, loaded).map_err(failed)?;
        let mut folders = vec![(PathBuf::from(&load.code_dir), "/")];
        for folder in ["/tmp", "/secrets", "/data", "/mnt"] {
            if Path::new(folder).is_dir() {
                folders.push((PathBuf::from(folder), folder));
            }
        }
        Ok(Self {
            engine,
            pre,
            function: load.function,
            concurrency,
            places: Semaphore::new(concurrency as usize),
            memory,
            env: load.env.into_iter().collect(),
            services: load.services.into(),
            folders,
            note,
        })
    }

    pub(crate) fn shape(&self) -> &'static str {
        match self.pre {
            Pre::Http(_) => "wasi:http",
            Pre::Command(_) => "wasi:cli",
            Pre::Module(_) => "wasi preview 1",
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory.bytes
    }

    /// The caller that an instance for this stream has.
    pub(crate) fn caller(&self, link: &Arc<Link>, stream: u32) -> Caller {
        let (services, env) = (self.services.clone(), self.env.clone());
        Caller { link: link.clone(), stream, services, env }
    }

    /// The beginning of an instance's surroundings. The caller adds inputs and outputs.
    pub(crate) fn surroundings(&self) -> wasmtime::Result<WasiCtxBuilder> {
        let mut wasi = WasiCtxBuilder::new();
        wasi.envs(&self.env)
            .arg(&self.function)
            .max_random_size(RANDOM_BYTES_MAX)
            .allow_blocking_current_thread(true)
            .inherit_network()
            .allow_ip_name_lookup(true);
        for (folder, path) in &self.folders {
            // The sandbox decides which folders are writable.
            wasi.preopened_dir(folder, path, FsPerms::ReadWrite)?;
        }
        Ok(wasi)
    }

    /// A store for one instance.
    pub(crate) fn store(&self, mut wasi: WasiCtxBuilder, caller: Caller) -> Store<Host> {
        let share = Share::new(&self.memory);
        let host = match self.pre {
            Pre::Module(_) => Host::module(wasi.build_p1(), share, caller),
            Pre::Http(_) | Pre::Command(_) => Host::component(wasi.build(), share, caller),
        };
        let mut store = Store::new(&self.engine, host);
        store.limiter(|host| &mut host.share);
        store.set_hostcall_fuel(HOST_BYTES_MAX.min(self.memory.bytes / 2));
        store.set_epoch_deadline(1);
        // The guest gives way to the worker's other tasks. If its caller has left, the guest does
        // not continue.
        store.epoch_deadline_callback(|_| {
            Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
        });
        store
    }
}

/// What a process that has no function yet prepares for the function that it will get.
struct Prepared {
    room: Room,
    engine: Engine,
    linker: component::Linker<Host>,
}

thread_local! {
    static PREPARED: RefCell<Option<Prepared>> = const { RefCell::new(None) };
}

/// Prepares the engine that most functions need, in a process that has no function yet, so that
/// loading a function takes less time.
pub(crate) fn prepare() {
    let facts = Facts {
        engine: engine::VERSION.to_owned(),
        shape: Shape::Http,
        memories: Some(1),
        tables: Some(1),
        table_elements: 0,
    };
    let room = Room::new(&facts, CONCURRENCY, Memory::new(None).bytes);
    // If anything fails here, it fails again for the function, with a message.
    let Ok(engine) = engine::for_calls(&room) else { return };
    if let Ok(linker) = component_linker(&engine) {
        PREPARED.set(Some(Prepared { room, engine, linker }));
    }
}

/// An engine with room for as many calls at once as the address space permits.
fn pooled(facts: &Facts, concurrency: u32, memory_bytes: usize) -> wasmtime::Result<(Engine, u32)> {
    let mut room = Room::new(facts, concurrency, memory_bytes);
    let prepared = PREPARED.with_borrow(|prepared| {
        prepared.as_ref().filter(|prepared| prepared.room == room).map(|it| it.engine.clone())
    });
    if let Some(engine) = prepared {
        return Ok((engine, concurrency));
    }
    loop {
        match engine::for_calls(&room) {
            Err(_) if room.calls > 1 => room.calls /= 2,
            made => return Ok((made?, room.calls)),
        }
    }
}

/// Machine code that fits this process.
struct Kept {
    engine: Engine,
    /// The number of simultaneous instances for which there is room.
    concurrency: u32,
    facts: Facts,
    loaded: Loaded,
}

impl Kept {
    /// Opens the result of a build in `folder`. `None` if the result does not fit this engine or
    /// this processor. An error if it fits them, but needs more than the function's limits.
    fn open(
        folder: &Path,
        concurrency: u32,
        memory_bytes: usize,
    ) -> wasmtime::Result<Option<Self>> {
        let kept = compile::facts(folder).filter(|facts| facts.engine == engine::VERSION);
        let Some(facts) = kept else { return Ok(None) };
        let path = folder.join(MACHINE_CODE);
        let (engine, concurrency) = pooled(&facts, concurrency, memory_bytes)?;
        match read(&engine, &facts, &path) {
            Ok(loaded) => Ok(Some(Self { engine, concurrency, facts, loaded })),
            Err(error) => match read(&engine::for_builds()?, &facts, &path) {
                Ok(_) => Err(error),
                Err(_) => Ok(None),
            },
        }
    }
}

enum Loaded {
    Component(Component),
    Module(Module),
}

/// Loads the machine code that a build of the node made.
#[expect(unsafe_code, reason = "machine code is trusted")]
fn read(engine: &Engine, facts: &Facts, path: &Path) -> wasmtime::Result<Loaded> {
    // SAFETY: the file was made by `compile` during the deploy, from the function's code and never
    // from a file with machine code. The sandbox shows it read-only. Whatever the machine code
    // does, it can do no more than any other program of the function, because this process is in
    // the function's sandbox.
    unsafe {
        Ok(match facts.shape {
            Shape::Module => Loaded::Module(Module::deserialize_file(engine, path)?),
            Shape::Http | Shape::Command => {
                Loaded::Component(Component::deserialize_file(engine, path)?)
            }
        })
    }
}

/// Loads machine code that this process has made.
#[expect(unsafe_code, reason = "machine code is trusted")]
fn of_bytes(engine: &Engine, facts: &Facts, code: &[u8]) -> wasmtime::Result<Loaded> {
    // SAFETY: the bytes come from `compile::compile` in this process.
    unsafe {
        Ok(match facts.shape {
            Shape::Module => Loaded::Module(Module::deserialize(engine, code)?),
            Shape::Http | Shape::Command => {
                Loaded::Component(Component::deserialize(engine, code)?)
            }
        })
    }
}

fn link(engine: &Engine, shape: Shape, loaded: Loaded) -> wasmtime::Result<Pre> {
    // What was prepared for another room is given back.
    let prepared = PREPARED.take().filter(|it| Engine::same(&it.engine, engine));
    Ok(match loaded {
        Loaded::Module(module) => Pre::Module(module_linker(engine)?.instantiate_pre(&module)?),
        Loaded::Component(component) => {
            let linker = match prepared {
                Some(prepared) => prepared.linker,
                None => component_linker(engine)?,
            };
            let pre = linker.instantiate_pre(&component)?;
            match shape {
                Shape::Command => Pre::Command(CommandPre::new(pre)?),
                Shape::Http | Shape::Module => Pre::Http(ProxyPre::new(pre)?),
            }
        }
    })
}
