//! The attack battery: every attempt inside a sandbox (none may succeed), outside it (nearly all
//! must), and with one layer after the other removed (each must let something through).
//!
//! This test binary is also the probe: it is copied into the sandbox as the function's code.

#![expect(clippy::unwrap_used, reason = "a test without the harness")]

#[path = "support/attempts.rs"]
mod attempts;
mod support;

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::Command;

use attempts::ATTEMPTS;
use mote_core::backend::Backend;
use mote_sandbox::{Layer, ProcessBackend, SandboxConfig, Zygote, ZygoteHandle};
use support::{Folder, finish, request, shim};

const LAYERS: [(Layer, &str); 12] = [
    (Layer::UserNamespace, "user namespace"),
    (Layer::Seccomp, "seccomp"),
    (Layer::Landlock, "landlock"),
    (Layer::Capabilities, "capabilities"),
    (Layer::PidNamespace, "pid namespace"),
    (Layer::NetNamespace, "net namespace"),
    (Layer::IpcNamespace, "ipc namespace"),
    (Layer::Root, "private root"),
    (Layer::Cgroup, "cgroup"),
    (Layer::NoNewPrivs, "no_new_privs"),
    (Layer::Rlimits, "rlimits"),
    (Layer::FdClosing, "fd closing"),
];

type Results = BTreeMap<String, bool>;

fn parse(text: &str) -> Results {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| ATTEMPTS.iter().any(|attempt| attempt.name == *name))
        .map(|(name, result)| (name.to_owned(), result == "succeeded"))
        .collect()
}

async fn inside(
    zygote: ZygoteHandle,
    without: Option<Layer>,
    code: &Path,
    env: &[(String, String)],
) -> Results {
    let mut config = SandboxConfig::default();
    if let Some(layer) = without {
        config = config.without(layer);
    }
    let backend = ProcessBackend::new(zygote, config);
    let mut asked = request(1, code, shim(&["./probe", "--probe"]));
    asked.env.extend_from_slice(env);
    if without == Some(Layer::Root) {
        asked.env.push(("T_CODE".to_owned(), code.to_str().unwrap().to_owned()));
    } else {
        asked.env.push(("T_CODE".to_owned(), "/function".to_owned()));
    }
    let started = match backend.start(asked).await {
        Ok(started) => started,
        Err(error) => panic!("{without:?}: {error} {:?}", std::error::Error::source(&error)),
    };
    let (text, exit) = finish(started).await;
    assert!(text.contains("end of attempts"), "{without:?} {exit:?}: {text}");
    parse(&text)
}

fn outside(code: &Path, env: &[(String, String)]) -> Results {
    let folder = std::fs::File::open("/").unwrap();
    // SAFETY: plain integers; the copy is inherited on purpose.
    let leaked = unsafe { libc::dup(folder.as_raw_fd()) };
    let output = Command::new(code.join("probe"))
        .args(["--probe", "outside"])
        .envs(env.iter().cloned())
        .env("T_CODE", code)
        .output()
        .unwrap();
    // SAFETY: the number was returned by dup above.
    unsafe { libc::close(leaked) };
    parse(&String::from_utf8(output.stdout).unwrap())
}

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    if arguments.get(1).is_some_and(|word| word == "--probe") {
        return attempts::probe(arguments.len() > 2);
    }
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        return println!("SKIPPED: the battery needs root for its controls");
    }
    // One zygote per configuration, all forked while single-threaded.
    let mut zygotes: Vec<_> = (0..=LAYERS.len()).map(|_| Zygote::fork().unwrap()).collect();

    let code = Folder::new("escape");
    std::fs::copy(std::env::current_exe().unwrap(), code.0.join("probe")).unwrap();
    let canary = Folder::new("canary");
    canary.write("canary", "secret");
    let listen = |address: &str| std::net::TcpListener::bind(address).ok();
    let listeners = [listen("127.0.0.1:0"), listen("0.0.0.0:0"), listen("[::1]:0")];
    let ports: Vec<_> = listeners
        .iter()
        .map(|one| one.as_ref().map_or(0, |one| one.local_addr().unwrap().port()).to_string())
        .collect();
    let name = format!("mote-escape-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _abstract = UnixListener::bind_addr(&address).unwrap();
    let key = 0x4d4f_0000 + (std::process::id() & 0xffff) as i32;
    // SAFETY: plain integers.
    let segment = unsafe { libc::shmget(key, 4096, libc::IPC_CREAT | 0o666) };
    let mut victim = Command::new("sleep").arg("600").spawn().unwrap();
    let namespaces: Vec<_> = ["ipc", "net", "user", "pid", "uts", "mnt"]
        .iter()
        .map(|kind| {
            std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap().display().to_string()
        })
        .collect();
    let env: Vec<_> = [
        ("T_CANARY", canary.0.join("canary").display().to_string()),
        ("T_VICTIM", victim.id().to_string()),
        ("T_PORTS", ports.join(",")),
        ("T_ABSTRACT", name),
        ("T_SHM", key.to_string()),
        ("T_NAMESPACES", namespaces.join(",")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec();

    let control = outside(&code.0, &env);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (full, removed) = runtime.block_on(async {
        let full = inside(zygotes.pop().unwrap(), None, &code.0, &env).await;
        let mut removed = Vec::new();
        for (layer, name) in LAYERS {
            let results = inside(zygotes.pop().unwrap(), Some(layer), &code.0, &env).await;
            removed.push((name, results));
        }
        (full, removed)
    });
    victim.kill().unwrap();
    victim.wait().unwrap();
    // SAFETY: the segment is ours.
    unsafe { libc::shmctl(segment, libc::IPC_RMID, std::ptr::null_mut()) };

    let succeeded: Vec<_> =
        full.iter().filter(|(_, worked)| **worked).map(|(name, _)| name).collect();
    for family in 1..=9 {
        let names =
            ATTEMPTS.iter().filter(|attempt| attempt.family == family).map(|attempt| attempt.name);
        let names: Vec<_> = names.collect();
        let blocked = names.iter().filter(|name| !full[**name]).count();
        println!("family {family}: {} tried / {blocked} blocked", names.len());
    }
    println!("all: {} tried / {} blocked", full.len(), full.len() - succeeded.len());

    let able: Vec<_> = ATTEMPTS
        .iter()
        .filter(|attempt| attempt.hopeless.is_none() || control[attempt.name])
        .collect();
    let failing: Vec<_> =
        able.iter().filter(|attempt| !control[attempt.name]).map(|attempt| attempt.name).collect();
    println!(
        "control outside: {} of {} possible succeed ({} cannot on this machine); failing: {failing:?}",
        able.len() - failing.len(),
        able.len(),
        ATTEMPTS.len() - able.len()
    );
    println!("layer removed     what gets through");
    let mut silent = Vec::new();
    for (name, results) in &removed {
        let through: Vec<_> = results
            .iter()
            .filter(|(attempt, worked)| **worked && !full[*attempt])
            .map(|(attempt, _)| attempt.as_str())
            .collect();
        println!("{name:17} {:3} {}", through.len(), through.join(" "));
        if through.is_empty() {
            silent.push(*name);
        }
    }
    assert!(succeeded.is_empty(), "attempts that got out: {succeeded:?}");
    assert_eq!(full.len(), ATTEMPTS.len());
    assert!(failing.len() * 10 <= able.len(), "too few attempts succeed outside");
    assert!(silent.is_empty(), "layers whose removal nothing notices: {silent:?}");
}
