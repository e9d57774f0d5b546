//! The attack battery makes every attempt in three situations: inside a sandbox, where none may
//! succeed; outside it, where nearly all must succeed; and inside sandboxes that lack one layer
//! each, where each must let something through. The last two situations need root. As an ordinary
//! user, the battery attacks only a complete sandbox.
//!
//! This test binary is also the probe: it is copied into the sandbox as the function's code.

#![expect(clippy::unwrap_used, reason = "a test without the harness")]
#![allow(unsafe_code, reason = "it makes the system calls that are tested")]

#[path = "support/attempts.rs"]
mod attempts;
mod support;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::Command;

use attempts::ATTEMPTS;
use mote_core::backend::{Backend, Data, ImageRoot, Prewarmed};
use mote_sandbox::{
    Layer, ProcessBackend, SandboxConfig, Zygote, ZygoteHandle, data_folder_support,
};
use support::{
    Folder, copy_program, finish, is_root_with_memory, line_of, next_copy, next_prewarmed, own_uid,
    request, seed, shim, template,
};

/// Sets of layers that stop the same attack. Removing one of them exposes only a property, because
/// the others still stop the attack. With a whole set removed, the attack must succeed.
const TOGETHER: [(&[Layer], &str, &str); 2] = [
    (
        &[Layer::UserNamespace, Layer::Capabilities],
        "user namespace and capabilities",
        "give_file_to_root",
    ),
    (
        &[Layer::UserNamespace, Layer::NoNewPrivs, Layer::Root],
        "user namespace, no_new_privs, private root",
        "run_set_id_root_program",
    ),
];

const LAYERS: [(Layer, &str); 12] = [
    (Layer::UserNamespace, "user namespace"),
    (Layer::Seccomp, "seccomp"),
    (Layer::Landlock, "landlock"),
    (Layer::Capabilities, "capabilities"),
    (Layer::PidNamespace, "pid namespace"),
    (Layer::NetNamespace, "net namespace"),
    (Layer::IpcNamespace, "ipc namespace"),
    (Layer::Root, "private root"),
    (Layer::Cgroup, "cgroups"),
    (Layer::NoNewPrivs, "no_new_privs"),
    (Layer::Rlimits, "rlimits"),
    (Layer::FdClosing, "fd closing"),
];

/// Attempts that succeed on machines that lack a capability, which `mote doctor` reports there.
/// Without a memory controller, only the private memory of each process is limited, with room for
/// its interpreter. Without Landlock, a function can write to /dev/urandom, as every user can. That
/// is harmless, because the kernel only mixes the bytes in.
const WEAKER: [(&str, &str); 2] =
    [("memory", "more_memory_than_allowed"), ("landlock", "feed_entropy_pool")];

/// Attempts that succeed in an instance with writable code, but affect only its own copy.
const ON_THE_OWN_COPY: [&str; 3] =
    ["create_in_code", "hard_link_to_program", "write_own_program_file"];

/// Attempts that succeed in an instance of an image, but affect only its own files.
const ON_THE_OWN_ROOT: [&str; 7] = [
    "create_in_code",
    "create_in_etc",
    "create_in_root",
    "hard_link_to_program",
    "write_executable_through_link",
    "write_own_program_file",
    "write_program",
];
/// Attempts that report success to the root user of an image and have no effect. As other attempts
/// show, the calls do nothing, and a set-id program has no more rights than its caller, whose
/// number is 0, too.
const WITHOUT_EFFECT: [&str; 5] = [
    "become_root",
    "become_root_group",
    "change_groups",
    "give_file_to_root",
    "run_set_id_root_program",
];

/// How the attacked instance was made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    /// The program was up before its code was there.
    Waited,
    /// The program is a copy of a template, and was up before its code was there.
    Copied,
    /// The program is a copy of a seed.
    Seeded,
    /// The instance may write to its code.
    Writable,
    /// The instance has a data folder and a folder of the host.
    Folders,
    /// The instance runs a container image as its root user. The probe is in the image.
    Image,
}

type Results = BTreeMap<String, bool>;

fn parse(text: &str) -> Results {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| ATTEMPTS.iter().any(|attempt| attempt.name == *name))
        .map(|(name, result)| (name.to_owned(), result == "succeeded"))
        .collect()
}

/// Process id of the neighbour on the host, found by its argument among all processes of the
/// machine.
fn process_with(argument: &str) -> i32 {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .find(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())
        })
        .unwrap_or(-1)
}

/// The port in `listening PORT`, read from a neighbour's output.
async fn listening_port(output: &std::os::fd::OwnedFd) -> u16 {
    let mut text = String::new();
    let mut buffer = [0u8; 256];
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !text.ends_with('\n') {
        assert!(std::time::Instant::now() < end, "the neighbour says nothing: {text}");
        // SAFETY: the buffer is valid for its length.
        let got = unsafe { libc::read(output.as_raw_fd(), buffer.as_mut_ptr().cast(), 256) };
        match usize::try_from(got) {
            Ok(got) => text.push_str(std::str::from_utf8(&buffer[..got]).unwrap()),
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
        }
    }
    text.trim().rsplit(' ').next().unwrap().parse().unwrap()
}

fn add(env: &mut Vec<(String, String)>, name: &str, value: impl ToString) {
    env.push((name.to_owned(), value.to_string()));
}

async fn inside(
    zygote: ZygoteHandle,
    without: &[Layer],
    code: &Path,
    env: &[(String, String)],
    form: Form,
) -> Results {
    let waited = matches!(form, Form::Waited | Form::Copied);
    let mut config = SandboxConfig::default();
    let is_copy = matches!(form, Form::Copied | Form::Seeded);
    let template = if is_copy { template() } else { None };
    if let Some((shims, prefix, _)) = &template {
        config.shims_dir = Some(shims.0.clone());
        config.runtime_prefixes.push(prefix.clone());
    } else if is_copy {
        println!("SKIPPED: attempts in a copy: no python3");
        return Results::new();
    }
    for layer in without {
        config = config.without(*layer);
    }
    let backend = ProcessBackend::new(zygote, config);
    if (waited || is_copy) && !is_root_with_memory(&backend) {
        println!("SKIPPED: attempts in a program that waited: there is no memory controller");
        return Results::new();
    }
    // The neighbour: a second instance of the same backend, with the same layers.
    let token = format!("neighbour-{}-{:?}", std::process::id(), without);
    let mut asked = request(2, code, shim(&["./probe", "--neighbour", &token]));
    add(&mut asked.env, "T_NEIGHBOUR_SOCKET", &token);
    let mut neighbour = backend.start(asked).await.unwrap();
    neighbour.under_way = Box::new(());
    let port = listening_port(&neighbour.output).await;

    let mut asked = request(1, code, shim(&["./probe", "--probe"]));
    asked.env.extend_from_slice(env);
    add(&mut asked.env, "T_NEIGHBOUR", process_with(&token));
    add(&mut asked.env, "T_NEIGHBOUR_SOCKET", &token);
    add(&mut asked.env, "T_NEIGHBOUR_PORT", port);
    if without.contains(&Layer::Root) {
        asked.env.push(("T_CODE".to_owned(), code.to_str().unwrap().to_owned()));
    } else {
        asked.env.push(("T_CODE".to_owned(), "/function".to_owned()));
    }
    let image = Folder::new("escape-image");
    if form == Form::Image {
        asked.image = Some(image_with_probe(&image.0, code));
        asked.launch = shim(&["/function/probe", "--probe"]);
        asked.env.push(("T_IMAGE".to_owned(), "1".to_owned()));
    }
    let disk = Folder::new("escape-disk");
    if form == Form::Folders {
        if let Err(why) = data_folder_support() {
            println!("SKIPPED: attempts with a data folder: {why}");
            return Results::new();
        }
        asked.folders.data = Some(Data { image: disk.0.join("f.ext4"), bytes: 16 << 20 });
        asked.folders.host = vec![(disk.0.clone(), "/mnt/disk".into())];
    }
    if form == Form::Writable {
        asked.writable_code = true;
        // This is twice the size of the probe and its copy, but less than the attempts that fill
        // the disk need.
        let size = std::fs::metadata(code.join("probe")).unwrap().len();
        asked.limits.disk_bytes = size.next_multiple_of(4096) * 4 + (1 << 20);
        asked.limits.memory_bytes += size * 2;
    }
    let mut seeds = None;
    let started = if let (Form::Seeded, Some((_, _, launch))) = (form, &template) {
        asked.launch = launch.clone();
        let (seed, copies) = seed(&backend, asked).await;
        let started = copies.copy().await.unwrap();
        seeds = Some((seed, copies));
        let mut channel =
            std::os::unix::net::UnixStream::from(started.channel.try_clone().unwrap());
        assert!(line_of(&mut channel).starts_with("up "));
        channel.write_all(b"exec ./probe --probe\n").unwrap();
        started
    } else if waited {
        // The program is up before its code is there, and continues after it reads a line.
        let script = "echo up >&3; read go <&3; cd /function && exec ./probe --probe";
        asked.launch = match &template {
            Some((_, _, launch)) => launch.clone(),
            None => shim(&["sh", "-c", script]),
        };
        backend.keep_prewarmed(vec![Prewarmed { like: asked.clone(), count: 1 }]);
        let mut started = match &template {
            Some(_) => next_copy(&backend, &asked).await,
            None => next_prewarmed(&backend, &asked).await,
        };
        let mut channel = std::os::unix::net::UnixStream::from(started.channel);
        if template.is_some() {
            channel.write_all(b"exec ./probe --probe\n").unwrap();
        } else {
            channel.write_all(b"go\n").unwrap();
        }
        started.channel = channel.into();
        started
    } else {
        match backend.start(asked).await {
            Ok(started) => started,
            Err(error) => panic!("{without:?}: {error} {:?}", std::error::Error::source(&error)),
        }
    };
    let (text, exit) = finish(started).await;
    drop(seeds);
    assert!(text.contains("end of attempts"), "{without:?} {exit:?}: {text}");
    let mut results = parse(&text);
    if exit.out_of_memory {
        results.entry(attempts::MAY_END_THE_INSTANCE.to_owned()).or_insert(false);
    }
    results
}

/// An image with the probe, a shell's usual files, and nothing else.
fn image_with_probe(layer: &Path, code: &Path) -> ImageRoot {
    copy_program(layer, &code.join("probe"), "/function/probe");
    std::fs::copy(code.join("set-id"), layer.join("function/set-id")).unwrap();
    let set_id = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(layer.join("function/set-id"), set_id).unwrap();
    copy_program(layer, Path::new("/usr/bin/env"), "/usr/bin/env");
    ImageRoot {
        layers: vec![layer.to_owned()],
        user: String::new(),
        work_dir: "/function".into(),
        stop_signal: None,
    }
}

fn outside(code: &Path, env: &[(String, String)]) -> Results {
    let folder = std::fs::File::open("/").unwrap();
    let mut sockets = [0; 2];
    // SAFETY: plain integers, and room for two; the copies are inherited on purpose.
    let leaked = unsafe {
        libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, sockets.as_mut_ptr());
        libc::dup(folder.as_raw_fd())
    };
    let token = format!("neighbour-{}-outside", std::process::id());
    let mut neighbour = Command::new(code.join("probe"))
        .args(["--neighbour", &token])
        .env("T_NEIGHBOUR_SOCKET", &token)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(neighbour.stdout.take().unwrap()),
        &mut line,
    )
    .unwrap();
    let output = Command::new(code.join("probe"))
        .args(["--probe", "outside"])
        .envs(env.iter().cloned())
        .env("T_CODE", code)
        .env("T_INIT", neighbour.id().to_string())
        .env("T_NEIGHBOUR", neighbour.id().to_string())
        .env("T_NEIGHBOUR_SOCKET", &token)
        .env("T_NEIGHBOUR_PORT", line.trim().rsplit(' ').next().unwrap())
        .output()
        .unwrap();
    neighbour.kill().unwrap();
    neighbour.wait().unwrap();
    // SAFETY: the numbers were returned by the calls above.
    unsafe {
        libc::close(leaked);
        libc::close(sockets[0]);
        libc::close(sockets[1]);
    }
    parse(&String::from_utf8(output.stdout).unwrap())
}

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    if arguments.get(1).is_some_and(|word| word == "--probe") {
        return attempts::probe(arguments.len() > 2);
    }
    if arguments.get(1).is_some_and(|word| word == "--neighbour") {
        return attempts::neighbour();
    }
    if arguments.get(1).is_some_and(|word| word == "--is-root") {
        std::process::exit(i32::from(own_uid() != 0));
    }
    let root = own_uid() == 0;
    let (layers, together) = if root { (&LAYERS[..], &TOGETHER[..]) } else { (&[][..], &[][..]) };
    if !root {
        println!("SKIPPED: attempts outside and without single layers: they need root");
    }
    // There is one zygote per configuration. All are forked while the process is single-threaded.
    let mut zygotes: Vec<_> =
        (0..layers.len() + together.len() + 7).map(|_| Zygote::fork().unwrap()).collect();

    let code = Folder::new("escape");
    std::fs::copy(std::env::current_exe().unwrap(), code.0.join("probe")).unwrap();
    std::fs::copy(code.0.join("probe"), code.0.join("set-id")).unwrap();
    let set_id = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(code.0.join("set-id"), set_id).unwrap();
    let canary = Folder::new("canary");
    canary.write("canary", "secret");
    let listen = |address: &str| std::net::TcpListener::bind(address).ok();
    let listeners = [listen("127.0.0.1:0"), listen("0.0.0.0:0"), listen("[::1]:0")];
    let mut ports: Vec<_> = listeners
        .iter()
        .map(|one| one.as_ref().map_or(0, |one| one.local_addr().unwrap().port()).to_string())
        .collect();
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    ports.push(datagrams.local_addr().unwrap().port().to_string());
    std::thread::spawn(move || {
        while let Ok((_, from)) = datagrams.recv_from(&mut [0; 8]) {
            let _ = datagrams.send_to(b"answer", from);
        }
    });
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

    let control = if root { outside(&code.0, &env) } else { Results::new() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (full, assigned, copied, seeded, writable, in_image, folders, removed, together) = runtime
        .block_on(async {
            let full = inside(zygotes.pop().unwrap(), &[], &code.0, &env, Form::Plain).await;
            let assigned = inside(zygotes.pop().unwrap(), &[], &code.0, &env, Form::Waited).await;
            let copied = inside(zygotes.pop().unwrap(), &[], &code.0, &env, Form::Copied).await;
            let seeded = inside(zygotes.pop().unwrap(), &[], &code.0, &env, Form::Seeded).await;
            let writable = inside(zygotes.pop().unwrap(), &[], &code.0, &env, Form::Writable).await;
            let in_image = inside(zygotes.pop().unwrap(), &[], &code.0, &env, Form::Image).await;
            let folders = inside(zygotes.pop().unwrap(), &[], &code.0, &env, Form::Folders).await;
            let mut removed = Vec::new();
            for (layer, name) in layers {
                let results =
                    inside(zygotes.pop().unwrap(), &[*layer], &code.0, &env, Form::Plain).await;
                removed.push((*name, results));
            }
            let mut several = Vec::new();
            for (layers, name, attack) in together {
                let results =
                    inside(zygotes.pop().unwrap(), layers, &code.0, &env, Form::Plain).await;
                several.push((name, attack, results[*attack]));
            }
            (full, assigned, copied, seeded, writable, in_image, folders, removed, several)
        });
    victim.kill().unwrap();
    victim.wait().unwrap();
    // SAFETY: the segment is ours.
    unsafe { libc::shmctl(segment, libc::IPC_RMID, std::ptr::null_mut()) };

    let mut succeeded: Vec<_> =
        full.iter().filter(|(_, worked)| **worked).map(|(name, _)| name.as_str()).collect();
    let mut missing = mote_sandbox::capabilities(mote_sandbox::UID_BASE_DEFAULT).items;
    missing.retain(|item| !matches!(item.state, mote_sandbox::State::Enforced));
    // Leaves out attempts that succeed because this kernel lacks the layer that would block them.
    let mut skipped = Vec::new();
    for item in &missing {
        for (_, attempt) in WEAKER.iter().filter(|(name, _)| *name == item.name) {
            println!("SKIPPED: {attempt}: {}", item.detail);
            succeeded.retain(|name| name != attempt);
            skipped.push(*attempt);
        }
    }
    let counts = |name: &&str| !skipped.contains(name);
    for family in 1..=9 {
        let names =
            ATTEMPTS.iter().filter(|attempt| attempt.family == family).map(|attempt| attempt.name);
        let names: Vec<_> = names.filter(counts).collect();
        let blocked = names.iter().filter(|name| !full[**name]).count();
        println!("family {family}: {} tried / {blocked} blocked", names.len());
    }
    let tried = full.len() - skipped.len();
    println!("all: {tried} tried / {} blocked", tried - succeeded.len());
    let waited = assigned.iter().filter(|(name, _)| counts(&name.as_str()));
    let tried = waited.clone().count();
    let blocked = waited.filter(|(_, worked)| !**worked).count();
    println!("in a program that waited: {tried} tried / {blocked} blocked");
    println!("in a copy of a template: {} tried", copied.len());
    println!("in a copy of a seed: {} tried", seeded.len());
    println!("with a data folder and a folder of the host: {} tried", folders.len());
    let worked = folders.iter().filter(|(name, worked)| **worked && counts(&name.as_str()));
    let worked: Vec<_> = worked.map(|(name, _)| name.as_str()).collect();
    assert!(worked.is_empty(), "attempts that got out with a data folder: {worked:?}");
    assert!(succeeded.is_empty(), "attempts that got out: {succeeded:?}");
    let worked = writable.iter().filter(|(name, worked)| **worked && counts(&name.as_str()));
    let worked: Vec<_> = worked.map(|(name, _)| name.as_str()).collect();
    println!("with code of its own: {} tried, these worked: {worked:?}", writable.len());
    assert_eq!(worked, ON_THE_OWN_COPY, "on its own copy");
    assert!(code.0.join("probe").exists(), "the original is as it was");
    let worked = in_image.iter().filter(|(name, worked)| **worked && counts(&name.as_str()));
    let worked: Vec<_> = worked.map(|(name, _)| name.as_str()).collect();
    // An ordinary user's node cannot make devices, so those of the host are shown, to which every user
    // may write.
    let by_every_user = |name: &&str| !root && *name == "feed_entropy_pool";
    let expected = |name: &&str| {
        ON_THE_OWN_ROOT.contains(name) || WITHOUT_EFFECT.contains(name) || by_every_user(name)
    };
    let (own, out): (Vec<_>, Vec<_>) = worked.into_iter().partition(expected);
    println!(
        "as root of an image: {} tried, {own:?} on its own files, {out:?} got out",
        in_image.len()
    );
    assert!(out.is_empty(), "attempts that got out of an image: {out:?}");
    assert_eq!(in_image.len(), ATTEMPTS.len());
    assert_eq!(full.len(), ATTEMPTS.len());
    if !root {
        return;
    }

    let able: Vec<_> = ATTEMPTS
        .iter()
        .filter(|attempt| control[attempt.name] || !attempt.impossible.is_some_and(|check| check()))
        .collect();
    let failing: Vec<_> =
        able.iter().filter(|attempt| !control[attempt.name]).map(|attempt| attempt.name).collect();
    println!(
        "control outside: {} of {} possible succeed ({} shown impossible on this machine); failing: {failing:?}",
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
        if through.is_empty() && !missing.iter().any(|item| item.name == *name) {
            silent.push(*name);
        }
    }
    for (name, attack, worked) in &together {
        println!("{name} together: {attack} {}", if *worked { "succeeds" } else { "is blocked" });
    }
    assert!(
        assigned.is_empty() || assigned == full,
        "what waited for its code is held as what did not"
    );
    assert!(
        copied.is_empty() || copied == full,
        "a copy of a template is held as an executed program"
    );
    assert!(seeded.is_empty() || seeded == full, "a copy of a seed is held as an executed program");
    // A container has its own limits, so in a container fewer attempts succeed outside the sandbox.
    let contained = arguments.iter().any(|word| word == "--in-container");
    assert!(contained || failing.len() * 10 <= able.len(), "too few attempts succeed outside");
    assert!(together.iter().all(|(_, _, worked)| *worked), "an attack that nothing lets through");
    assert!(silent.is_empty(), "layers whose removal nothing notices: {silent:?}");
}
