//! What the node has accepted survives a power cut and a full disk (reliability: T-PWR, T-ENOSPC).
//!
//! The node's data are on a separate file system, on a loop device over a file. Bytes that the
//! kernel has not sent to the device exist only in memory, so a copy of that file is what a disk
//! holds after a power cut at that moment. The whole copy must show a single moment. Therefore the
//! node is stopped with SIGSTOP during the copy, and the copy is repeated if the device was written
//! meanwhile. A byte that is written without a sync shows that the copy can really lose something.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use mote_tests::{Connection, Node, is_long, is_root, signal, skip, wait_for};

const IMAGE_BYTES: u64 = 192 << 20;
const CLIENTS: usize = 8;

fn run(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A mounted file system in a file. It is unmounted on drop.
struct Mount(PathBuf);

impl Mount {
    fn of(image: &Path, at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).expect("a folder");
        run("mount", &["-o", "loop", text(image), text(at)]).then(|| Self(at.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // The last file of the node may be closed a moment later.
        let unmounted = || run("umount", &[text(&self.0)]).then_some(());
        wait_for("the file system to be free", unmounted);
    }
}

/// Copies the image of a mounted file system in its state at one moment.
fn copy_at_once(mount: &Mount, image: &Path, copy: &Path) {
    let mounts = std::fs::read_to_string("/proc/mounts").expect("proc");
    let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(text(&mount.0)));
    let device = line.and_then(|line| line.split(' ').next()).expect("it is mounted");
    let name = device.strip_prefix("/dev/").expect("a device");
    let read = |file: &str| {
        std::fs::read_to_string(format!("/sys/block/{name}/{file}")).expect("a block device")
    };
    // Returns the number of completed writes (the fifth number), and whether no write is in
    // progress.
    let writes = || {
        let ended = read("stat").split_whitespace().nth(4).expect("writes").to_owned();
        (ended, read("inflight").split_whitespace().nth(1).expect("writes") == "0")
    };
    wait_for("a moment without writes", || {
        let before = writes();
        std::fs::copy(image, copy).expect("a copy");
        (before.1 && writes() == before).then_some(())
    });
}

#[test]
fn nothing_that_was_accepted_is_lost_at_a_power_cut() {
    let cuts = if is_long() { 100 } else { 4 };
    if !is_root() {
        return skip("power cuts", "mounting needs root");
    }
    let outer = tempfile::tempdir().expect("a folder");
    let image = outer.path().join("disk");
    let made = std::fs::File::create(&image).and_then(|file| file.set_len(IMAGE_BYTES));
    made.expect("an image");
    if !run("mkfs.ext4", &["-q", "-F", text(&image)]) {
        return skip("power cuts", "mkfs.ext4 does not work here");
    }
    let Some(mount) = Mount::of(&image, &outer.path().join("live")) else {
        return skip("power cuts", "no loop device can be mounted here");
    };
    let node = Node::start_in(tempfile::tempdir_in(&mount.0).expect("a folder"), &[]);
    node.deploy_ok("echo", &[("app.mjs", "export default async (event) => event.body;\n")]);
    // Everything written so far is on the disk. From here on, only the node syncs.
    assert!(run("sync", &[]));

    let accepted: Arc<Mutex<HashMap<usize, String>>> = Arc::default();
    let next = Arc::new(AtomicUsize::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    // Before each cut, the clients may send a few more invocations, and then wait for the next cut.
    let limit = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let accepted = accepted.clone();
            let next = next.clone();
            let stop = stop.clone();
            let limit = limit.clone();
            let address = node.http;
            std::thread::spawn(move || {
                let mut connection = Connection::open(address);
                while !stop.load(Ordering::SeqCst) {
                    if next.load(Ordering::SeqCst) >= limit.load(Ordering::SeqCst) {
                        std::thread::park_timeout(std::time::Duration::from_millis(1));
                        continue;
                    }
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    let body = number.to_string();
                    let headers = [("prefer", "respond-async"), ("idempotency-key", &body[..])];
                    let answer = connection.call("POST", "/echo", &headers, body.as_bytes());
                    match answer.status {
                        202 => {}
                        429 | 507 => continue,
                        other => panic!("{other}: {}", answer.text()),
                    }
                    let id = answer.json()["id"].as_str().expect("an id").to_owned();
                    accepted.lock().expect("not poisoned").insert(number, id);
                }
            })
        })
        .collect();

    let name = node.dir.path().file_name().expect("a name").to_owned();
    let count = || accepted.lock().expect("not poisoned").len();
    let mut checked = 0;
    let mut lost_controls = 0;
    for cut in 0..cuts {
        let goal = count() + 50 + 37 * (cut % 7);
        limit.store(goal + 100, Ordering::SeqCst);
        wait_for("more accepted invocations", || (count() >= goal).then_some(()));
        std::fs::write(mount.0.join(format!("control-{cut}")), b"x").expect("written");
        // After the cut, only the invocations that were answered before it must be there.
        let known = accepted.lock().expect("not poisoned").clone();
        signal(node.pid(), "STOP");
        // Each copy is a separate file. The kernel may still hold the previous loop device, and
        // with it blocks of the previous copy.
        let copy = outer.path().join(format!("copy-{cut}"));
        copy_at_once(&mount, &image, &copy);
        signal(node.pid(), "CONT");

        let after = Mount::of(&copy, &outer.path().join("after"));
        let after = after.expect("the copy can be mounted after its journal was replayed");
        let control = std::fs::read(after.0.join(format!("control-{cut}"))).unwrap_or_default();
        lost_controls += usize::from(control.is_empty());
        let folder = tempfile::tempdir_in(&after.0).expect("a folder");
        std::fs::rename(after.0.join(&name).join("data"), folder.path().join("data"))
            .expect("the data");
        let second = Node::start_in(folder, &[]);
        let mut connection = Connection::open(second.http);
        for (number, id) in &known {
            let shown = wait_for("an accepted invocation to end", || {
                let answer = connection.call("GET", &format!("/_invocations/{id}"), &[], b"");
                assert_eq!(answer.status, 200, "cut {cut}: {number} is lost: {}", answer.text());
                let shown = answer.json();
                (shown["state"] == "succeeded").then_some(shown)
            });
            assert_eq!(shown["body"], number.to_string().as_str());
        }
        checked += known.len();
        assert!(second.stop().success());
        drop(after);
        std::fs::remove_file(&copy).expect("removed");
    }
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.join().expect("a client");
    }
    assert!(lost_controls > 0, "a write without a sync was never lost, so this proves nothing");
    println!(
        "{cuts} power cuts, {checked} accepted invocations checked, 0 lost; {lost_controls} of the \
         writes without a sync were lost"
    );
    drop(node);
    drop(mount);
}

#[test]
fn a_full_disk_refuses_what_it_cannot_keep_and_loses_nothing() {
    if !is_root() {
        return skip("full disk", "mounting needs root");
    }
    let outer = tempfile::tempdir().expect("a folder");
    let image = outer.path().join("disk");
    let made = std::fs::File::create(&image).and_then(|file| file.set_len(64 << 20));
    made.expect("an image");
    if !run("mkfs.ext4", &["-q", "-F", "-m", "0", text(&image)]) {
        return skip("full disk", "mkfs.ext4 does not work here");
    }
    let Some(mount) = Mount::of(&image, &outer.path().join("small")) else {
        return skip("full disk", "no loop device can be mounted here");
    };
    let node = Node::start_in(tempfile::tempdir_in(&mount.0).expect("a folder"), &[]);
    node.deploy_ok("echo", &[("app.mjs", "export default async (event) => event.body;\n")]);
    let accept = |body: &[u8]| node.call("POST", "/echo", &[("prefer", "respond-async")], body);
    let mut ids = Vec::new();
    for number in 0..50 {
        let answer = accept(number.to_string().as_bytes());
        assert_eq!(answer.status, 202, "{}", answer.text());
        ids.push((number.to_string(), answer.json()["id"].as_str().expect("an id").to_owned()));
    }
    let filler = mount.0.join("filler");
    let mut file = std::fs::File::create(&filler).expect("a file");
    let block = vec![1; 1 << 20];
    while std::io::Write::write_all(&mut file, &block).is_ok() {}
    let body = vec![b'x'; 200 << 10];
    // The database's file may still have free pages.
    let refused = wait_for("the disk to be full for the journal", || {
        let answer = accept(&body);
        (answer.status != 202).then_some(answer)
    });
    assert_eq!((refused.status, refused.json()["code"].clone()), (507, "M0703".into()));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(node.post("/echo", b"sync").text(), "sync", "callers that wait are served");
    drop(file);
    std::fs::remove_file(&filler).expect("removed");
    let again = wait_for("the journal to work again", || {
        let answer = accept(b"again");
        (answer.status == 202).then(|| answer.json()["id"].as_str().expect("an id").to_owned())
    });
    ids.push(("again".to_owned(), again));
    for (body, id) in ids {
        let shown = wait_for("an accepted invocation to end", || {
            let shown = node.get(&format!("/_invocations/{id}")).json();
            (shown["state"] == "succeeded").then_some(shown)
        });
        assert_eq!(shown["body"], body.as_str());
    }
    assert!(node.stop().success());
    drop(mount);
}
