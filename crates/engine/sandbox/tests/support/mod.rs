//! Shared parts of the sandbox tests: a backend, requests, and a reader of outputs.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mote_core::backend::{
    Backend, Exit, Folders, InstanceLimits, InstanceRequest, Launch, Seed, Started,
};
use mote_sandbox::ProcessBackend;

pub(crate) const MIB: u64 = 1 << 20;

/// A folder that every uid can reach. It is removed on drop.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("mote-test-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> &Self {
        use std::os::unix::fs::PermissionsExt;
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        self
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Copies a program of the host into a layer of an image, together with its libraries.
pub(crate) fn copy_program(layer: &Path, program: &Path, target: &str) {
    let copy = |from: &Path, to: &str| {
        let to = layer.join(to.trim_start_matches('/'));
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        if !to.exists() {
            std::fs::copy(from, to).unwrap();
        }
    };
    copy(program, target);
    let output = std::process::Command::new("ldd").arg(program).output().unwrap();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        // `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for the loader.
        let path = line.split("=>").last().unwrap_or_default();
        let path = path.split_whitespace().next().unwrap_or_default();
        if path.starts_with('/') {
            copy(Path::new(path), path);
        }
    }
}

/// A request with limits that are large enough for any interpreter.
pub(crate) fn request(instance: u64, code_dir: &Path, launch: Launch) -> InstanceRequest {
    InstanceRequest {
        debug_port: None,
        image: None,
        instance,
        label: "test-1".to_owned(),
        code_dir: code_dir.to_owned(),
        packages_dir: None,
        launch,
        env: vec![("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())],
        limits: InstanceLimits {
            memory_bytes: 128 * MIB,
            cpu_millis: None,
            pids: 64,
            disk_bytes: 16 * MIB,
        },
        shows_memory: true,
        writable_code: false,
        egress: Vec::new(),
        folders: Folders::default(),
        files: Vec::new(),
        links: Vec::new(),
    }
}

pub(crate) fn shim(argv: &[&str]) -> Launch {
    Launch::Shim { argv: argv.iter().map(|text| (*text).to_owned()).collect(), forks: false }
}

/// A folder with a program for `/mote` that can be a template or a seed, and its launch.
pub(crate) fn template() -> Option<(Folder, PathBuf, Launch)> {
    let (python, prefix) = python()?;
    let folder = Folder::new("template");
    folder
        .write("copied.py", include_str!("copied.py"))
        .write("mote_template.py", include_str!("../../../../../shims/python/mote_template.py"))
        .write("mote_seed.py", include_str!("../../../../../shims/python/mote_seed.py"))
        .write("mote_rehearsal.py", include_str!("../../../../../shims/python/mote_rehearsal.py"));
    let argv = vec![python, "-sSuB".to_owned(), "/mote/copied.py".to_owned()];
    Some((folder, prefix, Launch::Shim { argv, forks: true }))
}

/// Waits for a prewarmed instance that is a copy of a template. There is a template from the second
/// prewarmed program on.
pub(crate) async fn next_copy(backend: &ProcessBackend, request: &InstanceRequest) -> Started {
    for _ in 0..5 {
        let mut started = next_prewarmed(backend, request).await;
        let mut channel = std::os::unix::net::UnixStream::from(started.channel);
        // An executed program would be pid 2.
        let is_copy = line_of(&mut channel) == "up 3\n";
        started.channel = channel.into();
        if is_copy {
            return started;
        }
    }
    panic!("the template is not used");
}

/// Starts a seed, and waits until it can be copied. It ends when the first value is dropped.
pub(crate) async fn seed(
    backend: &ProcessBackend,
    request: InstanceRequest,
) -> (Started, Arc<dyn Seed>) {
    let (started, copies) = backend.start_seed(request).await.unwrap();
    let mut channel = UnixStream::from(started.channel.try_clone().unwrap());
    assert_eq!(line_of(&mut channel), "loaded\n");
    channel.set_nonblocking(true).unwrap();
    copies.settle();
    (started, copies)
}

/// Reads one line from the channel of an instance.
pub(crate) fn line_of(channel: &mut std::os::unix::net::UnixStream) -> String {
    channel.set_nonblocking(false).unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::with_capacity(1, channel), &mut line)
        .unwrap();
    line
}

/// Reads all output until its end.
pub(crate) async fn output_of(output: OwnedFd) -> String {
    let text = tokio::task::spawn_blocking(move || {
        let mut file = std::fs::File::from(output);
        let mut all = Vec::new();
        let mut buffer = [0; 4096];
        // The attack battery takes more than a minute on an emulated processor.
        let end = Instant::now() + Duration::from_secs(300);
        while Instant::now() < end {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(got) => all.extend_from_slice(&buffer[..got]),
                Err(_) => std::thread::sleep(Duration::from_micros(200)),
            }
        }
        String::from_utf8_lossy(&all).into_owned()
    });
    text.await.unwrap()
}

/// The output and the exit of an instance that ends by itself.
pub(crate) async fn finish(started: Started) -> (String, Exit) {
    let Started { output, control, channel, .. } = started;
    let text = output_of(output).await;
    let exit = tokio::time::timeout(Duration::from_secs(30), control.exited()).await.unwrap();
    drop(channel);
    (text, exit)
}

/// The real Python interpreter, not a launcher script, and its prefix.
pub(crate) fn python() -> Option<(String, PathBuf)> {
    let script = "import sys; print(sys.executable); print(sys.base_prefix)";
    let output = std::process::Command::new("python3").args(["-c", script]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut lines = text.lines();
    Some((lines.next()?.to_owned(), PathBuf::from(lines.next()?)))
}

pub(crate) fn node() -> Option<String> {
    let script = "console.log(process.execPath)";
    let output = std::process::Command::new("node").args(["-e", script]).output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// Asks a server instance for one connection. Returns the socket, or the errno of the refusal.
pub(crate) fn ask_connection(channel: std::os::fd::BorrowedFd<'_>) -> Result<OwnedFd, i32> {
    use std::os::fd::{AsRawFd, FromRawFd};
    let channel = channel.as_raw_fd();
    let mut control = [0u64; 8];
    let mut data = [0u8; 4];
    // SAFETY: all buffers live through the calls and their lengths are passed; the descriptor in
    // the control message is new and ours.
    unsafe {
        assert_eq!(libc::send(channel, b"c".as_ptr().cast(), 1, 0), 1);
        let mut entry = libc::pollfd { fd: channel, events: libc::POLLIN, revents: 0 };
        assert_eq!(libc::poll(&raw mut entry, 1, 5000), 1, "no answer");
        let mut part = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: 4 };
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = 64;
        assert!(libc::recvmsg(channel, &raw mut header, libc::MSG_CMSG_CLOEXEC) > 0);
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        if first.is_null() {
            return Err(i32::from_le_bytes(data));
        }
        let fd = libc::CMSG_DATA(first).cast::<i32>().read_unaligned();
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Whether the backend reports that it fully enforces a property, for instance `memory`.
pub(crate) fn enforces(backend: &ProcessBackend, name: &str) -> bool {
    let found = backend.report().items.into_iter().find(|item| item.name == name);
    found.is_some_and(|item| matches!(item.state, mote_sandbox::State::Enforced))
}

/// Whether prewarmed programs can wait for a function, which needs root and a memory controller.
pub(crate) fn is_root_with_memory(backend: &ProcessBackend) -> bool {
    enforces(backend, "memory") && own_uid() == 0
}

/// The uid of the user who runs the tests.
pub(crate) fn own_uid() -> u32 {
    // SAFETY: takes nothing.
    unsafe { libc::geteuid() }
}

/// Processes of this machine whose command line contains `marker`.
pub(crate) fn processes_with(marker: &str) -> usize {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .filter(|line| String::from_utf8_lossy(line).contains(marker))
        .count()
}

/// Waits for a prewarmed instance, because prewarmed programs start in the background.
pub(crate) async fn next_prewarmed(backend: &ProcessBackend, request: &InstanceRequest) -> Started {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        let started = backend.start(request.clone()).await.unwrap();
        if started.prewarmed {
            return started;
        }
        // Programs are prewarmed only while no other start is under way.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("no program waits");
}
