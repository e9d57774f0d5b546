//! Instances of every kind through the real zygote: start, limits, ends, nothing left behind.
//!
//! One process, one zygote; each test is a function in the table at the end.
#![expect(clippy::unwrap_used, reason = "a test without the harness")]

mod support;

use mote_core::backend::{Backend, StartError};
use mote_sandbox::{ProcessBackend, SandboxConfig, Zygote};
use support::{Folder, finish, node, python, request, shim};

async fn shell(backend: &ProcessBackend) {
    let code = Folder::new("shell");
    code.write("run.sh", "#!/bin/sh\necho id=$(id -u) pid=$$; ls /proc/self/fd | tr '\\n' ' '; ls /; cat /proc/self/status | grep -E 'Cap|NoNew|Seccomp:'; mount | wc -l; echo > /dev/stderr; exit 3\n");
    let started = backend.start(request(1, &code.0, shim(&["./run.sh"]))).await.unwrap();
    let (text, exit) = finish(started).await;
    println!("{text}");
    assert!(text.contains("id=1000 pid=2"), "{text}");
    assert_eq!((exit.status, exit.signal, exit.out_of_memory), (Some(3), None, false));
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

fn main() {
    let zygote = Zygote::fork().unwrap();
    let mut config = SandboxConfig::default();
    if let Some((_, prefix)) = python() {
        config.runtime_prefixes.push(prefix);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let backend = ProcessBackend::new(zygote, config);
        for item in backend.report().items {
            println!("{:18} {:?}: {}", item.name, item.state, item.detail);
        }
        macro_rules! run { ($($name:ident)*) => { $(
            println!("== {}", stringify!($name)); $name(&backend).await;
        )* } }
        run!(failed_execution shell runtimes);
    });
}
