//! Tests instances of every kind through the real zygote: how they start, their limits, how they
//! end, and that they leave nothing behind.
//!
//! All tests are in one file because they share one process and one zygote, which is forked before
//! the first thread starts. Each test is a function in the table at the end.
#![expect(clippy::unwrap_used, reason = "a test without the harness")]
#![allow(unsafe_code, reason = "it makes the system calls that are tested")]

mod support;

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use mote_core::backend::{Backend, InstanceRequest, Launch, Prewarmed, StartError, Started};
use mote_core::invocation::Head;
use mote_core::wire::{self, FrameHeader, FrameKind, Load, Ready, ResultHead, WorkerError};
use mote_sandbox::{BuildRequest, ProcessBackend, SandboxConfig, Zygote, ZygoteHandle};
use mote_spec::{Egress, Transport};
use support::{
    Folder, MIB, enforces, finish, is_root_with_memory, next_prewarmed, node, own_uid,
    processes_with, python, request, shim,
};

/// If a step fails while a child prepares, the error names the step. Here a step fails because the
/// daemon's groups are gone.
fn broken_daemon(zygote: ZygoteHandle) {
    // Outside a runtime no child is prepared in advance.
    let backend = ProcessBackend::new(zygote, SandboxConfig::default());
    let bases = group_bases();
    for base in &bases {
        std::fs::remove_dir(base).unwrap();
    }
    if bases.is_empty() {
        return println!("SKIPPED: failures while preparation: no cgroups");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let code = Folder::new("broken");
    let result = runtime.block_on(backend.start(request(5, &code.0, shim(&["true"]))));
    let Err(StartError::Sandbox { step, .. }) = result else { panic!("it started") };
    assert!(step.starts_with("create cgroup "), "{step}");
    println!("told: {step}");
}

async fn failed_preparation(_: &ProcessBackend) {
    let program = std::env::current_exe().unwrap();
    let output = std::process::Command::new(program).arg("--broken").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    println!("{}", text.trim());
}

async fn shell(backend: &ProcessBackend) {
    let code = Folder::new("shell");
    code.write("run.sh", "#!/bin/sh\necho id=$(id -u) pid=$$; ls /proc/self/fd | tr '\\n' ' '; ls /; cat /proc/self/status | grep -E 'Cap|NoNew|Seccomp:'; mount | wc -l; echo > /dev/stderr; exit 3\n");
    let started = backend.start(request(1, &code.0, shim(&["./run.sh"]))).await.unwrap();
    let (text, exit) = finish(started).await;
    println!("{text}");
    assert!(text.contains("id=1000 pid=2"), "{text}");
    assert_eq!((exit.status, exit.signal, exit.out_of_memory), (Some(3), None, false));
}

/// /proc shows an instance its own limits, even if the instance waited with other limits.
async fn facts_of_the_machine(backend: &ProcessBackend) {
    let code = Folder::new("facts");
    let script = "#!/bin/sh\nhead -1 /proc/meminfo\ngrep -c ^cpu[0-9] /proc/stat\n\
                  grep btime /proc/stat\ngrep -c ^processor /proc/cpuinfo\nls /proc | tr '\\n' ' '\n\
                  cat /proc/version /proc/1/status /proc/loadavg\n";
    code.write("facts.sh", script);
    let started = backend.start(request(1, &code.0, shim(&["./facts.sh"]))).await.unwrap();
    let (text, _) = finish(started).await;
    println!("{text}");
    let processors =
        std::fs::read_to_string("/proc/cpuinfo").unwrap().matches("processor\t").count();
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let booted: i64 =
        stat.lines().find_map(|line| line.strip_prefix("btime ")).unwrap().parse().unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0].split_whitespace().nth(1), Some("131072"), "{text}");
    assert_eq!(
        (lines[1], lines[3]),
        (&*processors.to_string(), &*processors.to_string()),
        "{text}"
    );
    let told: i64 = lines[2].strip_prefix("btime ").unwrap().parse().unwrap();
    assert!((told - booted).abs() <= 2, "{told} and {booted}");
    assert!(!lines[4].contains("meminfo") && !lines[4].contains("sys"), "{text}");
    assert_eq!(text.matches("No such file").count(), 3, "{text}");

    if !is_root_with_memory(backend) {
        return println!("SKIPPED: an instance that waited: it needs root and a memory controller");
    }
    // The instance waits with 128 MiB and is assigned with 96.
    let script = "echo up >&3; read go <&3; cat /proc/meminfo";
    let mut asked = request(2, &code.0, shim(&["sh", "-c", script]));
    backend.keep_prewarmed(vec![Prewarmed { like: asked.clone(), count: 1 }]);
    asked.limits.memory_bytes = 96 * MIB;
    let mut started = next_prewarmed(backend, &asked).await;
    let mut channel = UnixStream::from(started.channel);
    channel.write_all(b"go\n").unwrap();
    started.channel = channel.into();
    let (text, _) = finish(started).await;
    backend.keep_prewarmed(Vec::new());
    assert!(text.starts_with("MemTotal:          98304 kB\n"), "{text}");
    // If an instance must not take its limit for the size of its memory, it does not see the limit.
    let mut asked = request(3, &code.0, shim(&["cat", "/proc/meminfo"]));
    asked.shows_memory = false;
    let (text, _) = finish(backend.start(asked).await.unwrap()).await;
    assert!(text.contains("No such file"), "{text}");
}

async fn runtimes(backend: &ProcessBackend) {
    let code = Folder::new("runtimes");
    if let Some((python, _)) = python() {
        let script = "import multiprocessing as m, asyncio, threading, ssl, socket, os
def f(x): return x * x
if __name__ == '__main__':
    with m.Pool(2) as p: print('pool', p.map(f, [1, 2, 3]))
    async def a():
        r = await asyncio.create_subprocess_exec('/bin/echo', 'sub', stdout=-1)
        print((await r.communicate())[0])
    asyncio.run(a())
    t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()
    print('name', socket.gethostbyname('localhost'), os.cpu_count())
";
        code.write("all.py", script);
        let started = backend.start(request(2, &code.0, shim(&[&python, "all.py"]))).await.unwrap();
        let (text, exit) = finish(started).await;
        println!("{text}");
        assert_eq!(exit.status, Some(0), "{text}");
        assert!(text.contains("pool [1, 4, 9]") && text.contains("thread"), "{text}");
    } else {
        println!("SKIPPED: no python3");
    }
    if let Some(node) = node() {
        code.write("all.js", "const fs=require('fs');const http=require('http');fs.writeFileSync('/tmp/a','x');
const {Worker}=require('worker_threads');new Worker('require(\"worker_threads\").parentPort.postMessage(1)',{eval:true}).on('message',()=>console.log('worker'));
const s=http.createServer((q,r)=>r.end('hi')).listen(8080,()=>http.get('http://127.0.0.1:8080',r=>r.on('data',d=>{console.log('got '+d);s.close();console.log(require('child_process').execSync('echo child').toString(), require('os').cpus().length)})));");
        let started = backend.start(request(3, &code.0, shim(&[&node, "all.js"]))).await.unwrap();
        let (text, exit) = finish(started).await;
        println!("{text}");
        assert_eq!(exit.status, Some(0), "{text}");
        assert!(text.contains("got hi") && text.contains("worker"), "{text}");
    } else {
        println!("SKIPPED: no node");
    }
}

async fn failed_execution(backend: &ProcessBackend) {
    let code = Folder::new("exec");
    let result = backend.start(request(4, &code.0, shim(&["./nothing"]))).await;
    let Err(StartError::Exec { source, .. }) = result else { panic!("no exec error") };
    assert_eq!(source.raw_os_error(), Some(libc::ENOENT));
}

async fn limits(backend: &ProcessBackend) {
    let code = Folder::new("limits");
    code.write("forks.sh", "#!/bin/sh\nn=0; while [ $n -lt 200 ]; do sleep 5 & n=$((n+1)); done 2>/dev/null; echo all\n");
    code.write("disk.sh", "#!/bin/sh\nhead -c 9000000 /dev/zero > /tmp/x; echo disk $?; i=0; while true > /tmp/f$i; do i=$((i+1)); [ $i -gt 9000 ] && break; done 2>/dev/null; echo files $i\n");
    code.write("memory.sh", "#!/bin/sh\nexec tail /dev/zero\n");

    let mut forks = request(10, &code.0, shim(&["./forks.sh"]));
    forks.limits.pids = 20;
    let (text, exit) = finish(backend.start(forks).await.unwrap()).await;
    assert!(!text.contains("all") && exit.status != Some(0), "fork bomb: {text} {exit:?}");

    let mut disk = request(11, &code.0, shim(&["./disk.sh"]));
    disk.limits.disk_bytes = 8 * MIB;
    let (text, _) = finish(backend.start(disk).await.unwrap()).await;
    assert!(text.contains("disk 1"), "{text}");
    let files: u32 = text.split("files ").nth(1).unwrap().trim().parse().unwrap();
    assert!(files < 2100, "{files} files");

    let mut memory = request(12, &code.0, shim(&["./memory.sh"]));
    memory.limits.memory_bytes = 32 * MIB;
    let (text, exit) = finish(backend.start(memory).await.unwrap()).await;
    if enforces(backend, "memory") {
        assert_eq!((exit.signal, exit.out_of_memory), (Some(9), true), "{text}");
    } else {
        // The kernel refuses the program more memory, and the program itself reports this.
        assert!(exit.status != Some(0), "{exit:?} {text}");
    }
    if !enforces(backend, "cpu") {
        return println!("SKIPPED: share of the processor: no cpu controller");
    }

    // Half a core, measured by the processor time that the instance uses.
    let mut cpu = request(13, &code.0, shim(&["sh", "-c", "while :; do :; done"]));
    cpu.limits.cpu_millis = Some(200);
    let began = std::time::Instant::now();
    let started = backend.start(cpu).await.unwrap();
    // Measured: the processor time of this pause, which takes longer on a busy machine.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let usage = started.control.usage().unwrap();
    let passed = began.elapsed();
    assert!(u128::from(2 * usage.cpu_ns) < passed.as_nanos(), "{usage:?} in {passed:?}");
    assert!(usage.memory_bytes > 0 && usage.pids >= 2, "{usage:?}");
    keeps_its_share(&*started.control, "204");
    started.control.kill();
    started.control.kill();
    let exit = started.control.exited().await;
    assert_eq!(exit.signal, Some(9));
}

/// Bytes that wait in sockets count as memory. A program cannot hold more of them than its memory
/// limit.
async fn socket_buffers(backend: &ProcessBackend) {
    let Some((python, _)) = python() else {
        return println!("SKIPPED: no python3");
    };
    if !enforces(backend, "memory") {
        return println!("SKIPPED: buffers of sockets: no memory controller");
    }
    let code = Folder::new("sockets");
    // Uses at most 900 sockets and 400 MiB in total. Each socket is filled until the kernel accepts
    // no more.
    let script = "import socket, sys
held, total, block = [], 0, bytes(65000)
def fill(sock, send):
    global total
    before = total
    try:
        while total < 400 << 20:
            total += send(block)
    except OSError: pass
    return total - before
if sys.argv[1] == 'tcp':
    door = socket.create_server(('127.0.0.1', 0))
    for _ in range(450):
        one = socket.create_connection(door.getsockname()); other, _ = door.accept()
        one.setblocking(False); held += [one, other]
        if fill(one, one.send) == 0: break
else:
    for _ in range(900):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); one.bind(('127.0.0.1', 0))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20); one.setblocking(False)
        held.append(one)
        for _ in range(200): one.sendto(block, one.getsockname())
    for one in held:
        try:
            while True: total += len(one.recv(65000))
        except OSError: pass
print('buffered', total >> 20, flush=True)
";
    code.write("fill.py", script);
    for kind in ["tcp", "udp"] {
        let mut asked = request(14, &code.0, shim(&[&python, "fill.py", kind]));
        asked.limits.memory_bytes = 64 * MIB;
        let (text, exit) = finish(backend.start(asked).await.unwrap()).await;
        let mib: Option<u64> = text.trim().strip_prefix("buffered ").and_then(|n| n.parse().ok());
        println!("{kind}: {} {exit:?}", text.trim());
        // The test also passes if the kernel ended the program because of memory. A kernel counts
        // the memory of sockets in batches. On 32-bit ARM, measurements showed 64 MiB and a part of
        // the next MiB.
        assert!(mib.is_none_or(|mib| mib <= 64), "{kind}: {text}");
        assert!(mib.is_some() || exit.out_of_memory, "{kind}: {text} {exit:?}");
    }
}

/// Checks that an instance that leaves the background has its share of the processor again. The
/// kernel itself forgets the share.
fn keeps_its_share(control: &dyn mote_core::backend::InstanceControl, shares: &str) {
    let read = |folder: &std::path::Path, file: &str| {
        std::fs::read_to_string(folder.join(file)).unwrap_or_default().trim().to_owned()
    };
    let siblings = group_bases().into_iter().flat_map(|base| siblings_of(&base));
    let group = siblings.into_iter().find(|group| read(group, "cpu.shares") == shares);
    let Some(group) = group.filter(|group| group.join("cpu.idle").exists()) else {
        return println!("SKIPPED: share after the background: no cpu.shares with cpu.idle here");
    };
    control.set_background(true);
    assert_eq!(read(&group, "cpu.idle"), "1");
    control.set_background(false);
    assert_eq!((read(&group, "cpu.idle"), read(&group, "cpu.shares")), ("0".into(), shares.into()));
}

/// The engine's end of a worker channel.
struct Engine {
    socket: UnixStream,
    inbox: BytesMut,
}

impl Engine {
    fn new(channel: OwnedFd) -> Self {
        let socket = UnixStream::from(channel);
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Self { socket, inbox: BytesMut::new() }
    }

    fn next(&mut self) -> (FrameHeader, Bytes) {
        loop {
            if let Some(frame) = wire::split_frame(&mut self.inbox).unwrap() {
                return frame;
            }
            let mut buffer = [0; 65536];
            let got = self.socket.read(&mut buffer).unwrap();
            assert!(got > 0, "worker closed the channel");
            self.inbox.extend_from_slice(&buffer[..got]);
        }
    }

    fn send(&mut self, kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) {
        let mut out = Vec::new();
        wire::put_frame(&mut out, kind, flags, stream, payload);
        self.socket.write_all(&out).unwrap();
    }

    fn load(&mut self, concurrency: u32) {
        let (hello, payload) = self.next();
        assert_eq!(hello.kind, FrameKind::Hello);
        assert_eq!(payload[..2], wire::VERSION.to_le_bytes());
        let load = Load {
            function: "echo".to_owned(),
            revision: 1,
            code_dir: "/function".to_owned(),
            packages_dir: None,
            entry: String::new(),
            concurrency: Some(concurrency),
            env: [("LOADED".to_owned(), "yes".to_owned())].into(),
            memory_bytes: None,
            command: Vec::new(),
            compat: None,
            template: None,
            services: Vec::new(),
            seed: false,
        };
        self.send(FrameKind::Load, 0, 0, &serde_json::to_vec(&load).unwrap());
        let (ready, payload) = self.next();
        assert_eq!(ready.kind, FrameKind::Ready);
        assert_eq!(serde_json::from_slice::<Ready>(&payload).unwrap().concurrency, concurrency);
    }

    fn invoke(&mut self, stream: u32, path: &str, body: &[u8], end: bool) {
        let mut head = Head::builder(b"POST", path.as_bytes(), b"q=1");
        head.header(b"x-one", b"1").header(b"x-one", b"2");
        let mut out = Vec::new();
        wire::put_invoke(&mut out, stream, 1, 7, 5000, 1, &head.finish(), body, end);
        self.socket.write_all(&out).unwrap();
    }

    /// Collects one answer: either status, headers and body, or the error. Gives credit as it
    /// reads.
    fn answer(&mut self, stream: u32) -> Result<(u16, String, Vec<u8>), WorkerError> {
        let mut status = 0;
        let mut fields = String::new();
        let mut body = Vec::new();
        loop {
            let (header, payload) = self.next();
            assert!(header.stream == stream || header.kind == FrameKind::Log, "{header:?}");
            match header.kind {
                FrameKind::Result => {
                    let head = ResultHead::parse(payload).unwrap();
                    assert!(head.returned_ns >= head.entered_ns && head.entered_ns > 0);
                    status = head.status;
                    fields = String::from_utf8(head.headers.to_vec()).unwrap();
                    body.extend_from_slice(&head.body);
                }
                FrameKind::Body => {
                    body.extend_from_slice(&payload);
                    let bytes = (payload.len() as u32).to_le_bytes();
                    self.send(FrameKind::Credit, 0, stream, &bytes);
                }
                FrameKind::Error => return Err(serde_json::from_slice(&payload).unwrap()),
                FrameKind::Log | FrameKind::Credit => continue,
                other => panic!("{other:?}"),
            }
            if header.is_end() {
                return Ok((status, fields, body));
            }
        }
    }
}

async fn per_invocation(backend: &ProcessBackend) {
    let code = Folder::new("invocation");
    let script = r#"#!/bin/sh
case $MOTE_PATH in
/env) env | sort ;;
/echo) cat ;;
/status) echo "status 201" >&3; echo "X-Answer: a b" >&3; printf '{}' ;;
/fail) echo warning >&2; echo "no such thing" >&2; exit 3 ;;
/big) head -c 3000000 /dev/zero ;;
/ignore) echo done ;;
/slow) echo begun >&2; exec sleep 30 ;;
/linger) sleep 30 & echo left ;;
/wait) sleep 0.3; echo waited ;;
esac
"#;
    code.write("run.sh", script);
    let launch = Launch::PerInvocation { argv: vec!["./run.sh".to_owned()] };
    let started = backend.start(request(20, &code.0, launch)).await.unwrap();
    let mut engine = Engine::new(started.channel);
    engine.load(2);

    engine.invoke(1, "/env", b"", true);
    let (status, fields, body) = engine.answer(1).unwrap();
    let text = String::from_utf8(body).unwrap();
    assert_eq!((status, fields.as_str()), (200, "content-type\ntext/plain; charset=utf-8\n"));
    for fact in [
        "MOTE_METHOD=POST",
        "MOTE_QUERY=q=1",
        "MOTE_FUNCTION=echo",
        "MOTE_TRIGGER=http",
        "LOADED=yes",
        "MOTE_HEADER_X_ONE=1, 2",
        "MOTE_DEADLINE_MS=5000",
        "MOTE_INVOCATION=00000000000000000000000007",
    ] {
        assert!(text.contains(fact), "{fact} is missing in {text}");
    }

    engine.invoke(2, "/status", b"", true);
    let (status, fields, body) = engine.answer(2).unwrap();
    assert_eq!((status, body.as_slice()), (201, &b"{}"[..]));
    assert!(fields.contains("x-answer\na b\n"), "{fields}");

    engine.invoke(3, "/fail", b"", true);
    let error = engine.answer(3).unwrap_err();
    assert_eq!(
        (error.kind.as_str(), error.message.as_str()),
        ("ExitStatus", "exited 3: no such thing")
    );

    engine.invoke(4, "/big", b"", true);
    assert_eq!(engine.answer(4).unwrap().2.len(), 3_000_000);

    // A streamed body that is larger than all buffers on the way. It is sent as credit allows.
    engine.invoke(5, "/echo", b"start", false);
    let mut window = wire::WINDOW_BYTES;
    let mut sent = 0;
    let mut got = 0;
    let total = 2_000_000u32;
    let chunk = vec![7; 32 << 10];
    loop {
        while sent < total && window as usize >= chunk.len() {
            engine.send(FrameKind::Body, 0, 5, &chunk);
            (sent, window) = (sent + chunk.len() as u32, window - chunk.len() as u32);
            if sent >= total {
                engine.send(FrameKind::Body, wire::FLAG_END, 5, &[]);
            }
        }
        let (header, mut payload) = engine.next();
        match header.kind {
            FrameKind::Credit => window += bytes::Buf::get_u32_le(&mut payload),
            FrameKind::Result => got += ResultHead::parse(payload).unwrap().body.len(),
            FrameKind::Body => {
                got += payload.len();
                let bytes = (payload.len() as u32).to_le_bytes();
                engine.send(FrameKind::Credit, 0, 5, &bytes);
            }
            other => panic!("{other:?}"),
        }
        if header.is_end() {
            break;
        }
    }
    assert_eq!(got as u32, sent + 5);

    // A program that ends without reading its body. The rest of the body is consumed and dropped.
    engine.invoke(6, "/ignore", b"", false);
    assert_eq!(engine.answer(6).unwrap().2, b"done\n");
    engine.send(FrameKind::Body, 0, 6, &chunk);
    assert_eq!(engine.next().0.kind, FrameKind::Credit);
    engine.send(FrameKind::Body, wire::FLAG_END, 6, &[]);

    let begun = Instant::now();
    engine.invoke(7, "/slow", b"", true);
    while engine.next().0.kind != FrameKind::Log {}
    engine.send(FrameKind::Cancel, 0, 7, &[]);
    assert_eq!(engine.answer(7).unwrap_err().kind, "Cancelled");
    engine.invoke(8, "/linger", b"", true);
    assert_eq!(engine.answer(8).unwrap().2, b"left\n");
    assert!(begun.elapsed() < Duration::from_secs(5));

    // Two invocations run at once. The third waits for its turn.
    let begun = Instant::now();
    for stream in [9, 10, 11] {
        engine.invoke(stream, "/wait", b"", true);
    }
    let mut ended = Vec::new();
    while ended.len() < 3 {
        let (header, _) = engine.next();
        if header.is_end() {
            ended.push(header.stream);
        }
    }
    let took = begun.elapsed();
    assert_eq!(ended[2], 11);
    assert!(took > Duration::from_millis(580) && took < Duration::from_secs(3), "{took:?}");

    engine.invoke(12, "/wait", b"", true);
    engine.send(FrameKind::Drain, 0, 0, &[]);
    assert_eq!(engine.answer(12).unwrap().2, b"waited\n");
    assert_eq!(started.control.exited().await.status, Some(0));
}

async fn server_and_egress(backend: &ProcessBackend) {
    let Some((python, _)) = python() else {
        return println!("SKIPPED: no python3");
    };
    let code = Folder::new("server");
    let script = "import os, socket
e = socket.create_connection(('broker.example', 1883)); e.sendall(b'hello'); print('egress', e.recv(9), flush=True)
s = socket.create_server(('127.0.0.1', int(os.environ['PORT'])))
while True:
    c, _ = s.accept(); c.sendall(b'served:' + c.recv(10)); c.close()
";
    code.write("server.py", script);
    let argv = vec![python, "server.py".to_owned()];
    let mut asked = request(30, &code.0, Launch::Server { argv, port: 8080 });
    let egress = |host: &str, port| Egress::tcp(host, port);
    asked.egress = vec![
        egress("broker.example", 1883),
        egress("broker.example", 443),
        egress("b.example", 443),
    ];
    let started = backend.start(asked).await.unwrap();
    assert_eq!(started.egress.len(), 3);

    let channel = started.channel.as_raw_fd();
    // SAFETY: the channel is open while `started` lives.
    let channel = unsafe { std::os::fd::BorrowedFd::borrow_raw(channel) };
    let ask = || support::ask_connection(channel);
    assert_eq!(ask().unwrap_err(), libc::ECONNREFUSED);

    let listener = std::net::TcpListener::from(started.egress.into_iter().next().unwrap());
    listener.set_nonblocking(false).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let mut buffer = [0; 5];
    peer.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"hello");
    peer.write_all(b"welcome").unwrap();

    let end = Instant::now() + Duration::from_secs(10);
    let socket = loop {
        match ask() {
            Ok(socket) => break socket,
            Err(_) if Instant::now() < end => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(errno) => panic!("errno {errno}"),
        }
    };
    let mut socket = std::net::TcpStream::from(socket);
    socket.set_nonblocking(false).unwrap();
    socket.write_all(b"ping").unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    assert_eq!(text, "served:ping");
}

/// A debugger reaches the port that the request names, and no other one. Without such a request, there
/// is no channel at all.
async fn debug_port(backend: &ProcessBackend) {
    let Some((python, _)) = python() else {
        return println!("SKIPPED: no python3");
    };
    let code = Folder::new("debugged");
    let script = "import socket
other = socket.create_server(('127.0.0.1', 9001))
s = socket.create_server(('127.0.0.1', 9000)); print('listens', flush=True)
while True:
    c, _ = s.accept(); c.sendall(b'debug:' + c.recv(10)); c.close()
";
    code.write("debugged.py", script);
    let argv = vec![python, "debugged.py".to_owned()];
    let plain = request(34, &code.0, Launch::Shim { argv: argv.clone(), forks: false });
    assert!(backend.start(plain.clone()).await.unwrap().debugger.is_none());
    let asked = InstanceRequest { debug_port: Some(9000), ..plain };
    let started = backend.start(asked).await.unwrap();
    let debugger = started.debugger.as_ref().unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    let socket = loop {
        match support::ask_connection(debugger.as_fd()) {
            Ok(socket) => break socket,
            Err(_) if Instant::now() < end => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(errno) => panic!("errno {errno}"),
        }
    };
    let mut socket = std::net::TcpStream::from(socket);
    socket.set_nonblocking(false).unwrap();
    socket.write_all(b"ping").unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    assert_eq!(text, "debug:ping");
    // No part of it can be reached from outside of the sandbox.
    assert!(std::net::TcpStream::connect(("127.0.0.1", 9000)).is_err());
}

/// Destinations given as addresses are reached at those addresses, over both protocols. No other
/// addresses can be reached.
async fn literal_egress(backend: &ProcessBackend) {
    let Some((python, _)) = python() else {
        return println!("SKIPPED: no python3");
    };
    let code = Folder::new("literal");
    let script = "import errno, socket
def ask(kind, host, port):
    family = socket.AF_INET6 if ':' in host else socket.AF_INET
    with socket.socket(family, kind) as s:
        s.settimeout(20)
        try:
            s.connect((host, port)); s.send(b'to ' + host.encode()); return s.recv(100).decode()
        except OSError as error:
            return errno.errorcode[error.errno]
for host in ['203.0.113.80', '2001:db8::80', '127.0.0.1', '203.0.113.81', '2001:db8::81']:
    print(host, ask(socket.SOCK_STREAM, host, 80), ask(socket.SOCK_DGRAM, host, 80), flush=True)
";
    code.write("ask.py", script);
    let argv = vec![python, "ask.py".to_owned()];
    let mut asked = request(33, &code.0, Launch::Shim { argv, forks: false });
    let hosts = ["203.0.113.80", "2001:db8::80", "localhost"];
    for host in hosts {
        for transport in [Transport::Tcp, Transport::Udp] {
            asked.egress.push(Egress { transport, ..Egress::tcp(host, 80) });
        }
    }
    // The same destination again in another form, and a destination that is not a host. The latter
    // stays closed and does not cause a failure.
    asked.egress.push(Egress::tcp("::ffff:203.0.113.80", 80));
    asked.egress.push(Egress::tcp("224.0.1.187", 80));
    let started = backend.start(asked).await.unwrap();
    assert_eq!(started.egress.len(), 8);
    let mut sockets = started.egress.into_iter();
    for _ in hosts {
        let listener = std::net::TcpListener::from(sockets.next().unwrap());
        let datagrams = std::net::UdpSocket::from(sockets.next().unwrap());
        listener.set_nonblocking(false).unwrap();
        datagrams.set_nonblocking(false).unwrap();
        std::thread::spawn(move || {
            let mut piece = [0; 100];
            let (mut stream, _) = listener.accept().unwrap();
            let length = stream.read(&mut piece).unwrap();
            stream.write_all(&piece[..length]).unwrap();
            let (length, from) = datagrams.recv_from(&mut piece).unwrap();
            datagrams.send_to(&piece[..length], from).unwrap();
        });
    }
    let text = support::output_of(started.output).await;
    let expected = "203.0.113.80 to 203.0.113.80 to 203.0.113.80\n\
        2001:db8::80 to 2001:db8::80 to 2001:db8::80\n\
        127.0.0.1 to 127.0.0.1 to 127.0.0.1\n\
        203.0.113.81 ENETUNREACH ENETUNREACH\n\
        2001:db8::81 ENETUNREACH ENETUNREACH\n";
    assert_eq!(text.replace("EADDRNOTAVAIL", "ENETUNREACH"), expected);
}

/// An instance that may write to its code writes to a copy, which counts against the quota of /tmp.
async fn writable_code(backend: &ProcessBackend) {
    use std::os::unix::fs::PermissionsExt;
    let code = Folder::new("writable");
    std::fs::create_dir_all(code.0.join("sub/deep")).unwrap();
    let script = "#!/bin/sh
cat sub/data >&2; ls -A . sub
echo new > sub/data && echo next > next && rm sub/deep/gone && mkdir made && cat sub/data next
stat -c '%n %A' set-id; readlink link
mknod device c 1 3 2>/dev/null && echo a device
head -c 20000000 /dev/zero > large 2>/dev/null; stat -c %s large
head -c 20000000 /dev/zero > /tmp/large 2>/dev/null; stat -c %s /tmp/large
echo x > /packages-x 2>/dev/null || echo the rest is read-only
";
    code.write("run.sh", script).write("set-id", "#!/bin/sh\nid -u\n").write("sub/data", "old\n");
    code.write("sub/deep/gone", "");
    let set_id = std::fs::Permissions::from_mode(0o6755);
    std::fs::set_permissions(code.0.join("set-id"), set_id).unwrap();
    std::os::unix::fs::symlink("/etc/shadow", code.0.join("link")).unwrap();
    let mut asked = request(40, &code.0, shim(&["./run.sh"]));
    asked.writable_code = true;
    for _ in 0..2 {
        let (text, _) = finish(backend.start(asked.clone()).await.unwrap()).await;
        // Each instance begins with the code as it was deployed.
        assert!(text.contains("old\n") && text.contains("new\nnext\n"), "{text}");
        assert!(text.contains("set-id -rwxr-xr-x\n/etc/shadow\n"), "{text}");
        assert!(!text.contains("a device"), "{text}");
        assert!(text.contains("the rest is read-only"), "{text}");
        // The rest of the quota holds neither file completely, and no room at all is left for the
        // second one.
        let sizes: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
        assert!(sizes.len() == 2 && sizes.iter().sum::<u64>() < asked.limits.disk_bytes, "{text}");
    }
    assert_eq!(std::fs::read_to_string(code.0.join("sub/data")).unwrap(), "old\n");
    assert!(code.0.join("sub/deep/gone").exists() && !code.0.join("next").exists());

    // A prewarmed program gets a copy of the code too.
    if is_root_with_memory(backend) {
        let script = "echo up >&3; read go <&3; cd /function && exec ./run.sh";
        asked.launch = shim(&["sh", "-c", script]);
        backend.keep_prewarmed(vec![Prewarmed { like: asked.clone(), count: 1 }]);
        let started = next_prewarmed(backend, &asked).await;
        backend.keep_prewarmed(Vec::new());
        let mut channel = UnixStream::from(started.channel.try_clone().unwrap());
        channel.write_all(b"go\n").unwrap();
        let (text, _) = finish(started).await;
        assert!(text.contains("old\n") && text.contains("new\nnext\n"), "{text}");
        assert!(text.contains("set-id -rwxr-xr-x\n"), "{text}");
    }

    // Code that is too large is not copied and stays read-only, and the log says so.
    std::fs::write(code.0.join("big"), vec![0; asked.limits.disk_bytes as usize]).unwrap();
    asked.launch = shim(&["sh", "-c", "echo x > next || cat sub/data"]);
    let (text, _) = finish(backend.start(asked).await.unwrap()).await;
    assert!(text.contains("raise disk\n") && text.contains("old\n"), "{text}");
}

/// A program that was prewarmed becomes an instance of one function. It sees that function's files
/// and gets that function's limits, and nothing else changes.
async fn waiting(backend: &ProcessBackend) {
    if !is_root_with_memory(backend) {
        return println!("SKIPPED: prewarmed programs need root and a memory controller");
    }
    let script = "echo up >&3; read go <&3; cat /function/name; ls /packages; \
                  touch /function/x 2>/dev/null && echo writable; id -u; $go";
    let one = Folder::new("one");
    let two = Folder::new("two");
    let packages = Folder::new("put");
    one.write("name", "first\n");
    two.write("name", "second\n");
    packages.write("a-package", "");
    let ask = |code: &Folder| request(40, &code.0, shim(&["sh", "-c", script]));
    backend.keep_prewarmed(vec![Prewarmed { like: ask(&one), count: 2 }]);
    for (code, name, go) in [(&one, "first", "true"), (&two, "second", "tail /dev/zero")] {
        let mut wanted = ask(code);
        wanted.packages_dir = Some(packages.0.clone());
        wanted.limits.memory_bytes = 24 * MIB;
        let started = next_prewarmed(backend, &wanted).await;
        let mut channel = UnixStream::from(started.channel.try_clone().unwrap());
        channel.set_nonblocking(false).unwrap();
        channel.write_all(format!("{go}\n").as_bytes()).unwrap();
        let (text, exit) = finish(started).await;
        let expected = format!("{name}\na-package\n1000\n");
        assert!(text.starts_with(&expected), "{text}");
        // Under the larger limit under which the instance waited, the second program would have
        // continued.
        assert_eq!(exit.out_of_memory, go != "true", "{exit:?}");
    }
    // An instance with different rules is started from scratch.
    let mut other = ask(&one);
    other.limits.pids = 32;
    let started = backend.start(other).await.unwrap();
    assert!(!started.prewarmed);
    drop(started);
    backend.keep_prewarmed(Vec::new());
}

/// A copy of a template inherits the same as an executed program. Without the template, programs are
/// executed again.
async fn copies(zygote: ZygoteHandle) {
    let Some((shims, prefix, launch)) = support::template() else {
        return println!("SKIPPED: no python3");
    };
    let mut config = SandboxConfig::default();
    config.uid_base = own_uid_base();
    config.shims_dir = Some(shims.0.clone());
    config.runtime_prefixes.push(prefix);
    let backend = &ProcessBackend::new(zygote, config);
    if !is_root_with_memory(backend) {
        return println!("SKIPPED: templates need root and a memory controller");
    }
    let code = Folder::new("copied");
    let mut asked = request(41, &code.0, launch);
    for entry in std::fs::read_dir("/proc/self/ns").unwrap().flatten() {
        let name = format!("HOST_{}", entry.file_name().to_str().unwrap().to_uppercase());
        let value = std::fs::read_link(entry.path()).unwrap().display().to_string();
        asked.env.push((name, value));
    }
    let marker = format!("copied-{}", std::process::id());
    if let Launch::Shim { argv, .. } = &mut asked.launch {
        argv.push(marker.clone());
    }
    let facts = async |started: Started, pid: Option<&str>| {
        let mut channel = UnixStream::from(started.channel.try_clone().unwrap());
        if let Some(pid) = pid {
            assert_eq!(support::line_of(&mut channel), format!("up {pid}\n"));
        }
        channel.write_all(b"facts\n").unwrap();
        let (text, exit) = finish(started).await;
        assert_eq!(exit.status, Some(0), "{text}");
        text
    };
    let executed = facts(backend.start(asked.clone()).await.unwrap(), Some("2")).await;
    assert!(executed.contains("CapEff:\t0000000000000000") && executed.contains("pid False"));
    // The template also serves starts that find no program waiting.
    backend.keep_prewarmed(vec![Prewarmed { like: asked.clone(), count: 1 }]);
    let prewarmed = support::next_copy(backend, &asked).await;
    let direct = facts(backend.start(asked.clone()).await.unwrap(), Some("3")).await;
    assert_eq!(direct, executed);
    let prewarmed = facts(prewarmed, None).await;
    // Its code is mounted over a folder that was there before, and it starts outside of it.
    let common = |text: &str| -> Vec<String> {
        let own = |line: &&str| !line.starts_with("mounts") && !line.starts_with("folder");
        text.lines().filter(own).map(str::to_owned).collect()
    };
    assert_eq!(common(&prewarmed), common(&executed));
    // A template that was killed is replaced, and nobody notices.
    let template = || {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.find(|pid| {
            let read = |name: &str| {
                std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default()
            };
            read("cmdline").contains(&marker) && read("status").contains("Uid:\t0\t")
        })
    };
    let first = template().unwrap();
    // SAFETY: plain integers.
    unsafe { libc::kill(first, libc::SIGKILL) };
    wait_until(|| template() != Some(first)).await;
    drop(next_prewarmed(backend, &asked).await);
    wait_until(|| template().is_some()).await;
    backend.keep_prewarmed(Vec::new());
    wait_until(|| processes_with(&marker) == 0).await;
}

/// A copy of a seed has everything that an executed program has, except what this test names. Each
/// copy has its own files, limits and end.
async fn seeds(zygote: ZygoteHandle) {
    let Some((shims, prefix, launch)) = support::template() else {
        return println!("SKIPPED: no python3");
    };
    let mut config = SandboxConfig::default();
    config.uid_base = own_uid_base();
    config.shims_dir = Some(shims.0.clone());
    config.runtime_prefixes.push(prefix);
    let backend = &ProcessBackend::new(zygote, config);
    if !is_root_with_memory(backend) {
        return println!("SKIPPED: seeds need root and a memory controller");
    }
    let code = Folder::new("seeded");
    let mut asked = request(42, &code.0, launch);
    for entry in std::fs::read_dir("/proc/self/ns").unwrap().flatten() {
        let name = format!("HOST_{}", entry.file_name().to_str().unwrap().to_uppercase());
        let value = std::fs::read_link(entry.path()).unwrap().display().to_string();
        asked.env.push((name, value));
    }
    // Tells the instance what to do, in one line.
    let order = |started: &Started, line: &str| {
        let mut channel = UnixStream::from(started.channel.try_clone().unwrap());
        assert!(support::line_of(&mut channel).starts_with("up "));
        channel.write_all(format!("{line}\n").as_bytes()).unwrap();
    };
    let executed = backend.start(asked.clone()).await.unwrap();
    order(&executed, "facts");
    let (executed, exit) = finish(executed).await;
    assert_eq!(exit.status, Some(0), "{executed}");

    // The prepared children have groups too.
    let (mut groups, mut equal) = (0, 0);
    wait_until(|| {
        let now = instance_groups();
        equal = if now == groups { equal + 1 } else { 0 };
        groups = now;
        equal == 25
    })
    .await;

    let (seed, copies) = support::seed(backend, asked.clone()).await;
    let copy = copies.copy().await.unwrap();
    order(&copy, "facts");
    let (copied, exit) = finish(copy).await;
    assert_eq!(exit.status, Some(0), "{copied}");
    let differing: Vec<_> = executed
        .lines()
        .zip(copied.lines())
        .filter(|(one, other)| one != other)
        .map(|(one, other)| (one.split(' ').next().unwrap(), other))
        .collect();
    println!("{differing:#?}");
    assert_eq!(executed.lines().count(), copied.lines().count());
    let names: Vec<_> = differing.iter().map(|(name, _)| *name).collect();
    // The processes of all copies count as those of one user. The copy is in other groups than its
    // pid 1, its /tmp covers that of the seed, and the folder of the roots is visible, but empty.
    assert_eq!(names, ["RLIMIT_NPROC", "cgroup", "mounts", "folder"], "{differing:#?}");

    // Each copy has its own /tmp, and an end of its own.
    code.write("write.sh", "#!/bin/sh\nls /tmp; ls /.copies/*; echo x > /tmp/own; touch /usr/x; read wait <&3; ls /tmp; exit 3\n");
    let first = copies.copy().await.unwrap();
    order(&first, "exec ./write.sh");
    let second = copies.copy().await.unwrap();
    order(&second, "exec ./write.sh");
    let third = copies.copy().await.unwrap();
    order(&third, "exec ./write.sh");
    wait_until(|| third.control.usage().unwrap().pids > 0).await;
    third.control.kill();
    assert_eq!(finish(third).await.1.signal, Some(9));
    for one in [first, second] {
        let mut channel = UnixStream::from(one.channel.try_clone().unwrap());
        channel.write_all(b"go\n").unwrap();
        let (text, exit) = finish(one).await;
        assert_eq!((exit.status, exit.signal), (Some(3), None), "{text}");
        assert_eq!(text.matches("own").count(), 1, "{text}");
        assert!(text.contains("Read-only") || text.contains("Permission denied"), "{text}");
    }

    // Each copy has its own limits. Exceeding one ends no other copy.
    code.write("eat.sh", "#!/bin/sh\ntail /dev/zero\n");
    code.write("wait.sh", "#!/bin/sh\nsleep 1000 & sleep 1000 & read wait <&3; exit 4\n");
    let waiting = copies.copy().await.unwrap();
    order(&waiting, "exec ./wait.sh");
    let eater = copies.copy().await.unwrap();
    order(&eater, "exec ./eat.sh");
    let (_, exit) = finish(eater).await;
    assert!(exit.out_of_memory, "{exit:?}");
    wait_until(|| waiting.control.usage().unwrap().pids == 3).await;
    assert!(waiting.control.set_paused(true));
    let state = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().find_map(|line| line.strip_prefix("State:\t").map(str::to_owned))
    };
    let pid = waiting.control.pid().unwrap();
    wait_until(|| state(pid).is_some_and(|state| state.starts_with('T'))).await;
    assert!(waiting.control.set_paused(false));
    // What a copy leaves behind ends with it.
    let mut channel = UnixStream::from(waiting.channel.try_clone().unwrap());
    channel.write_all(b"go\n").unwrap();
    let (_, exit) = finish(waiting).await;
    assert_eq!(exit.status, Some(4));
    // The seed still makes copies. All of them end with it.
    let last = copies.copy().await.unwrap();
    order(&last, "exec ./wait.sh");
    wait_until(|| last.control.usage().unwrap().pids == 3).await;
    drop(seed);
    assert_eq!(finish(last).await.1.signal, Some(9));
    assert!(copies.copy().await.is_err());
    // A seed makes a limited number of copies.
    let (seed, copies) = support::seed(backend, asked).await;
    let mut made = 0;
    while copies.copy().await.is_ok() {
        made += 1;
    }
    assert_eq!(made, 32);
    drop(seed);
    wait_until(|| instance_groups() <= groups).await;
}

/// Paused instances do nothing, continue where they stopped, and can be ended.
async fn paused(backend: &ProcessBackend) {
    if !enforces(backend, "cgroups") {
        return println!("SKIPPED: pausing needs cgroups");
    }
    let code = Folder::new("paused");
    code.write("busy.sh", "#!/bin/sh\n(while :; do :; done) & while :; do :; done\n");
    let started = backend.start(request(45, &code.0, shim(&["./busy.sh"]))).await.unwrap();
    let control = &started.control;
    let burnt = || control.usage().unwrap().cpu_ns;
    wait_until(|| burnt() > 20_000_000).await;
    assert!(control.set_paused(true));
    let before = burnt();
    // A kernel that counts processor time in ticks may add a tick of 10 ms that began earlier.
    // Measured: the processor time that the instance uses during this pause.
    tokio::time::sleep(Duration::from_millis(400)).await;
    let during = burnt() - before;
    assert!(during < 20_000_000, "{during} ns while paused");
    assert!(control.set_paused(false));
    wait_until(|| burnt() > before + 20_000_000).await;
    assert!(control.set_paused(true));
    control.kill();
    assert_eq!(control.exited().await.signal, Some(9));
}

async fn wait_until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "waited in vain");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn nothing_is_left(backend: &ProcessBackend) {
    let code = Folder::new("left");
    // The duration identifies the processes of this run.
    let sleep = format!("60.{}", std::process::id());
    let script = format!("#!/bin/sh\nsleep {sleep} & sleep {sleep} & ls /proc/$$/fd\n");
    code.write("fds.sh", &script);
    let count = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
    let counts = || (count("/proc/self/fd"), mounts(), instance_groups());
    // The remains of earlier tests disappear within moments.
    let mut before = counts();
    let mut equal = 0;
    while equal < 25 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = counts();
        equal = if now == before { equal + 1 } else { 0 };
        before = now;
    }
    let mut odd = Vec::new();
    for instance in 0..100 {
        let started =
            backend.start(request(1000 + instance, &code.0, shim(&["./fds.sh"]))).await.unwrap();
        let (text, _) = finish(started).await;
        // 10 is the script itself, which the shell opens when it begins.
        if !text.split_whitespace().all(|fd| ["0", "1", "2", "3", "10"].contains(&fd)) {
            odd.push(text);
        }
    }
    assert!(odd.is_empty(), "{odd:?}");
    let mut after = before;
    for _ in 0..200 {
        after = (count("/proc/self/fd"), mounts(), instance_groups());
        if after == before {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(before, after, "descriptors, mounts, cgroups");
    assert_eq!(processes_with(&sleep), 0, "processes left");
}

/// Cgroups of this process's instances. They are inside the process's own group, or next to it in
/// the hierarchy that shares out processor time.
fn instance_groups() -> usize {
    let bases = group_bases();
    bases.iter().map(|base| folders(base).count() + siblings_of(base).len()).sum()
}

/// Cgroups of instances that are siblings of this process's group.
fn siblings_of(base: &std::path::Path) -> Vec<std::path::PathBuf> {
    let named = format!("mote-{}-instance-", std::process::id());
    let beside = base.parent().into_iter().flat_map(folders);
    beside
        .filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&named))
        })
        .collect()
}

fn folders(path: &std::path::Path) -> impl Iterator<Item = std::path::PathBuf> + use<> {
    let entries = path.read_dir().into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir())
}

/// The groups of this process, one per hierarchy.
fn group_bases() -> Vec<std::path::PathBuf> {
    fn walk(path: &std::path::Path, depth: u32, own: &str) -> Vec<std::path::PathBuf> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy() == own {
                    found.push(entry.path());
                } else if depth > 0 {
                    found.extend(walk(&entry.path(), depth - 1, own));
                }
            }
        }
        found
    }
    let own = format!("mote-{}", std::process::id());
    walk(std::path::Path::new("/sys/fs/cgroup"), 6, &own)
}

async fn installation(backend: &ProcessBackend) {
    let packages = Folder::new("packages");
    let script = "id -u; mkdir a; echo x > a/b; chmod 6777 a/b; ln -s /etc/passwd a/link; \
                  cat /etc/pip.conf; seq 1 500; exit 0";
    let build = BuildRequest {
        cache_dir: None,
        label: "test-1".to_owned(),
        argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
        env: Vec::new(),
        packages_dir: packages.0.clone(),
        code_dir: None,
        extra_read_only: Vec::new(),
        files: vec![("/etc/pip.conf".into(), "[global]\n".to_owned())],
        listen: vec!["127.77.0.2:3128".parse().unwrap()],
        packages_bytes_max: 8 * MIB,
        free_bytes_min: 0,
        limits: request(0, &packages.0, shim(&[])).limits,
        timeout: Duration::from_secs(20),
    };
    let ignore = |_: Vec<OwnedFd>| std::future::pending::<()>();
    let outcome = backend.run_build(build.clone(), ignore).await.unwrap();
    assert!(outcome.succeeded(), "{outcome:?}");
    assert_eq!((outcome.output.len(), outcome.output.back().unwrap().as_str()), (200, "500"));
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::metadata(packages.0.join("a/b")).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (own_uid(), 0o755));
    let command = |script: &str| ["sh", "-c", script].map(str::to_owned).to_vec();
    let mut endless = build.clone();
    endless.argv = command("sleep 60");
    endless.timeout = Duration::from_millis(200);
    assert!(backend.run_build(endless, ignore).await.unwrap().timed_out);

    // One large file, and many small files that are too large together.
    let mut large = build.clone();
    large.argv = command("head -c 20000000 /dev/zero > big; sleep 60");
    assert!(backend.run_build(large, ignore).await.unwrap().too_large);
    let mut many = build.clone();
    many.argv = command("for i in $(seq 200); do head -c 100000 /dev/zero > f$i; done; sleep 60");
    assert!(backend.run_build(many, ignore).await.unwrap().too_large);
    let mut deep = build.clone();
    deep.argv = command("rm -rf ./*; for i in $(seq 300); do mkdir d; cd d; done");
    let refused = backend.run_build(deep, ignore).await.unwrap_err();
    let StartError::Sandbox { source, .. } = &refused else { panic!("{refused}") };
    assert!(source.to_string().contains("nested"), "{source}");
}

/// An installation reaches the listeners that its caller serves, and nothing on the host.
async fn installation_network(backend: &ProcessBackend) {
    let Some((python, _)) = python() else {
        return println!("SKIPPED: no python3");
    };
    let packages = Folder::new("network");
    let host = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = host.local_addr().unwrap().port();
    let script = format!(
        "import socket\nfor at in [('127.0.0.1', {port}), ('169.254.169.254', 80), ('127.77.0.2', 3128)]:\n \
         try: print(at[0], 'says', socket.create_connection(at, 5).recv(9).decode())\n \
         except OSError as error: print(at[0], 'refused')\n"
    );
    let build = BuildRequest {
        cache_dir: None,
        label: "test-1".to_owned(),
        argv: [&python, "-c", &script].map(str::to_owned).to_vec(),
        env: Vec::new(),
        packages_dir: packages.0.clone(),
        code_dir: None,
        extra_read_only: Vec::new(),
        files: Vec::new(),
        listen: vec!["127.77.0.2:3128".parse().unwrap()],
        packages_bytes_max: 8 * MIB,
        free_bytes_min: 0,
        limits: request(0, &packages.0, shim(&[])).limits,
        timeout: Duration::from_secs(20),
    };
    let serve = async |listeners: Vec<OwnedFd>| {
        let listener = listeners.into_iter().next().unwrap();
        let listener = tokio::net::TcpListener::from_std(listener.into()).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        stream.into_std().unwrap().write_all(b"the host").unwrap();
    };
    // The installation continues after the future of `serve` has ended.
    let serve = async |listeners| {
        serve(listeners).await;
        std::future::pending::<()>().await;
    };
    let outcome = backend.run_build(build, serve).await.unwrap();
    let lines: Vec<_> = outcome.output.iter().map(String::as_str).collect();
    let expected = ["127.0.0.1 refused", "169.254.169.254 refused", "127.77.0.2 says the host"];
    assert_eq!(lines, expected);
}

/// First uid of this run's instances. It differs from those of a node that runs at the same time.
fn own_uid_base() -> u32 {
    10_000_000 + std::process::id() % 100_000 * 1000
}

/// A range of uids that is far from those of the other tests.
const DAEMON_UID_BASE: u32 = 3_000_000;

/// The daemon that is about to be killed.
async fn doomed_daemon(zygote: ZygoteHandle) {
    let mut config = SandboxConfig::default();
    config.uid_base = DAEMON_UID_BASE;
    let backend = ProcessBackend::new(zygote, config);
    let code = Folder::new("doomed");
    // The last argument is in the command line of the daemon, and therefore of all its copies.
    let marker = std::env::args().next_back().unwrap();
    let sleeping = shim(&["sh", "-c", "sleep 600 & sleep 600 # $0", &marker]);
    let _first = backend.start(request(1, &code.0, sleeping)).await.unwrap();
    let launch = Launch::PerInvocation { argv: vec!["/bin/true".to_owned()] };
    let _second = backend.start(request(2, &code.0, launch)).await.unwrap();
    println!("ready");
    std::future::pending::<()>().await;
}

async fn daemon_death(_: &ProcessBackend) {
    let marker = format!("doomed-{}", std::process::id());
    let mut daemon = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--daemon", &marker])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    daemon.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    // The shell has been executed, but may not have started its command yet. At least five
    // processes exist in any case: the daemon, the helper, the shell, and the first processes of
    // two instances.
    wait_until(|| processes_with(&marker) >= 5).await;
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let end = Instant::now() + Duration::from_secs(5);
    while processes_with(&marker) > 0 {
        assert!(Instant::now() < end, "instances outlive their daemon");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let _ = std::fs::remove_dir_all(
        std::env::temp_dir().join(format!("mote-test-doomed-{}", daemon.id())),
    );
}

/// The number of children that a backend keeps prepared.
const PREPARED: usize = 2;

/// Compiles a program that needs no dynamic loader, and returns its path inside.
fn static_program(code: &Folder) -> Option<String> {
    code.write(
        "hello.c",
        "#include <unistd.h>\nint main(void) {\n    return write(1, \"1\\n\", 2) != 2;\n}\n",
    );
    let compiled = std::process::Command::new("cc")
        .args(["-O2", "-static", "-o"])
        .arg(code.0.join("hello"))
        .arg(code.0.join("hello.c"))
        .status();
    compiled.is_ok_and(|status| status.success()).then(|| "./hello".to_owned())
}

/// Prints the start times. It asserts nothing, because ratios are reliable only on quiet machines.
async fn start_times(backend: &ProcessBackend) {
    let code = Folder::new("times");
    code.write("t.py", "print(1)").write("t.js", "console.log(1)");
    let mut cases = vec![
        ("true", vec!["/bin/true".to_owned()]),
        ("sh", ["/bin/sh", "-c", "echo 1"].map(str::to_owned).to_vec()),
    ];
    if let Some((python, _)) = python() {
        cases.push(("python", vec![python, "t.py".to_owned()]));
    }
    if let Some(node) = node() {
        cases.push(("node", vec![node, "t.js".to_owned()]));
    }
    match static_program(&code) {
        Some(program) => cases.push(("static", vec![program])),
        None => println!("SKIPPED: static program: no C compiler"),
    }
    // All children are prepared, as they are for a start after a quiet time.
    let full = group_bases().len() * PREPARED;
    let settled = || async {
        let end = Instant::now() + Duration::from_secs(10);
        while instance_groups() != full && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    for (name, argv) in cases {
        let mut executed = Vec::new();
        let mut ended = Vec::new();
        for instance in 0..30 {
            settled().await;
            let begun = Instant::now();
            let asked = request(
                2000 + instance,
                &code.0,
                Launch::Shim { argv: argv.clone(), forks: false },
            );
            let started = backend.start(asked).await.unwrap();
            executed.push(begun.elapsed());
            let (_, exit) = finish(started).await;
            assert_eq!(exit.status, Some(0));
            ended.push(begun.elapsed());
        }
        executed.sort();
        ended.sort();
        println!(
            "{name:8} executed p10 {:?} median {:?}, output ended median {:?}",
            executed[3], executed[15], ended[15]
        );
    }
    let launch = Launch::PerInvocation { argv: vec!["/bin/true".to_owned()] };
    let started = backend.start(request(2100, &code.0, launch)).await.unwrap();
    let mut engine = Engine::new(started.channel);
    engine.load(8);
    let begun = Instant::now();
    let mut sent = 0;
    let mut done = 0;
    while done < 2000 {
        while sent < 2000 && sent - done < 8 {
            engine.invoke(sent + 1, "/", b"", true);
            sent += 1;
        }
        done += u32::from(engine.next().0.is_end());
    }
    println!("per invocation: {:.0} programs per second", 2000.0 / begun.elapsed().as_secs_f64());
}

fn main() {
    let zygote = Zygote::fork().unwrap();
    let other_zygote = Zygote::fork().unwrap();
    let third_zygote = Zygote::fork().unwrap();
    let only: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let mut config = SandboxConfig::default();
    config.uid_base = own_uid_base();
    if let Some((_, prefix)) = python() {
        config.runtime_prefixes.push(prefix);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if std::env::args().any(|word| word == "--daemon") {
        return runtime.block_on(doomed_daemon(zygote));
    }
    if std::env::args().any(|word| word == "--broken") {
        return broken_daemon(zygote);
    }
    runtime.block_on(async {
        let backend = ProcessBackend::new(zygote, config);
        for item in backend.report().items {
            println!("{:18} {:?}: {}", item.name, item.state, item.detail);
        }
        macro_rules! run { ($($name:ident)*) => { $(
            if only.is_empty() || only.iter().any(|word| stringify!($name).contains(word.as_str())) {
                println!("== {}", stringify!($name));
                $name(&backend).await;
            }
        )* } }
        if only.is_empty() || only.iter().any(|word| "copies".contains(word.as_str())) {
            println!("== copies");
            copies(other_zygote).await;
        }
        if only.is_empty() || only.iter().any(|word| "seeds".contains(word.as_str())) {
            println!("== seeds");
            seeds(third_zygote).await;
        }
        run!(failed_execution failed_preparation shell facts_of_the_machine runtimes limits socket_buffers per_invocation server_and_egress debug_port literal_egress writable_code
            installation installation_network waiting paused nothing_is_left daemon_death start_times);
    });
}
