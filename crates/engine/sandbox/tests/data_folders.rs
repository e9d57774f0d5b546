//! Tests the data folders of functions: what outlives an instance, the quota of all instances
//! together, and what a function cannot do with its folder.
//!
//! All tests share one zygote, which is forked before the first thread starts.
#![expect(clippy::unwrap_used, reason = "a test without the harness")]
#![allow(unsafe_code, reason = "it makes the system calls that are tested")]

mod support;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use mote_core::backend::{Backend, Data, ImageRoot, InstanceRequest};
use mote_sandbox::{ProcessBackend, SandboxConfig, Zygote, data_folder_support};
use support::{
    Folder, MIB, copy_program, finish, is_root_with_memory, line_of, output_of, own_uid, request,
    seed, shim, template,
};

/// The folder of a function in `disk`.
fn image(disk: &Folder, function: &str) -> PathBuf {
    disk.0.join(format!("{function}.ext4"))
}

/// A request for an instance that runs a shell script and has a data folder of 16 MiB.
fn asked(disk: &Folder, function: &str, script: &str) -> InstanceRequest {
    let mut asked = request(1, &disk.0, shim(&["sh", "-c", script]));
    asked.folders.data = Some(Data { image: image(disk, function), bytes: 16 * MIB });
    asked
}

async fn output(backend: &ProcessBackend, asked: InstanceRequest) -> String {
    let started = match backend.start(asked).await {
        Ok(started) => started,
        Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    };
    finish(started).await.0
}

async fn files_outlive_instances(backend: &ProcessBackend) {
    let disk = Folder::new("data-outlives");
    let first = "mkdir /data/sub && echo kept > /data/sub/file && ls -A /data && \
                 stat -c '%u %g %a' /data /data/sub/file";
    let text = output(backend, asked(&disk, "f", first)).await;
    assert_eq!(text, "sub\n1000 1000 755\n1000 1000 644\n");
    // The next instance has another user on the host if the first one has not been cleaned up yet.
    let text = output(backend, asked(&disk, "f", "cat /data/sub/file; rm -r /data/sub")).await;
    assert_eq!(text, "kept\n");
    let other = output(backend, asked(&disk, "g", "ls -A /data; ls /data/../data | wc -l")).await;
    assert_eq!(other, "0\n", "another function has another folder");
}

async fn instances_share_their_quota(backend: &ProcessBackend) {
    let disk = Folder::new("data-quota");
    let holder = "echo shared > /data/file; echo up; read line <&3; \
                  dd if=/dev/zero of=/data/b bs=64k 2>&1 | head -1; \
                  df -k /data | tail -1 | tr -s ' ' | cut -d' ' -f4";
    let first = backend.start(asked(&disk, "f", holder)).await.unwrap();
    let mut channel = std::os::unix::net::UnixStream::from(first.channel.try_clone().unwrap());
    let fill = "while [ ! -e /data/file ]; do :; done; cat /data/file; \
                dd if=/dev/zero of=/data/a bs=64k count=64 conv=fsync 2>&1 | tail -1 | cut -d, -f1";
    let text = output(backend, asked(&disk, "f", fill)).await;
    assert!(text.starts_with("shared\n4194304 bytes"), "{text}");
    channel.write_all(b"go\n").unwrap();
    let (text, _) = finish(first).await;
    assert!(text.contains("No space left on device"), "{text}");
    let left: u64 = text.lines().last().unwrap().parse().unwrap();
    assert!(left < 64, "{text}");
    let files = "rm /data/*; i=0; while echo > /data/$i; do i=$((i+1)); done 2>/dev/null; \
                 [ $i -gt 500 ] && [ $i -lt 3000 ] && echo limited; rm -r /data/*; echo x > /data/x";
    let text = output(backend, asked(&disk, "f", files)).await;
    assert!(text.starts_with("limited\n"), "{text}");
}

async fn hostile_functions(backend: &ProcessBackend) {
    let disk = Folder::new("data-hostile");
    let script = "
        try() { name=$1; shift; if \"$@\" >/dev/null 2>&1; then echo \"$name succeeded\"; fi; }
        cp /bin/sh /data/sh; chmod 6755 /data/sh
        try execute /data/sh -c true
        try device mknod /data/null c 1 3
        try block mknod /data/disk b 7 0
        try link ln /function/marker /data/marker
        try own chown 0:0 /data/sh
        try escape cat /data/../../marker-of-the-host
        try mount mount -o remount,exec,suid,dev /data
        ln -s /etc/shadow /data/shadow; try shadow cat /data/shadow
        ls /dev | grep -c loop
        ls -A /data | tr '\\n' ' '; stat -c '%u' /data/sh
        ";
    disk.write("marker", "of the code");
    let text = output(backend, asked(&disk, "f", script)).await;
    assert_eq!(text, "0\nsh shadow 1000\n");
    assert!(!disk.0.join("marker-of-the-host").exists());
}

async fn a_folder_grows_and_keeps_its_files(backend: &ProcessBackend) {
    let disk = Folder::new("data-grows");
    let size = "cat /data/file 2>/dev/null; echo x > /data/file; \
                df -k /data | tail -1 | tr -s ' ' | cut -d' ' -f2";
    let text = output(backend, asked(&disk, "f", size)).await;
    let before: u64 = text.trim().parse().unwrap();
    released(&image(&disk, "f")).await;
    let mut larger = asked(&disk, "f", size);
    larger.folders.data.as_mut().unwrap().bytes = 200 * MIB;
    let text = output(backend, larger).await;
    let (kept, after) = text.split_once('\n').unwrap();
    let after: u64 = after.trim().parse().unwrap();
    assert!(kept == "x" && before < 16 << 10 && after > 170 << 10, "{before} {text}");
    // A size below what the folder has changes nothing.
    let text = output(backend, asked(&disk, "f", size)).await;
    assert_eq!(text, format!("x\n{after}\n"));
}

/// Waits until no loop device shows the file any more.
async fn released(image: &Path) {
    let shown = || {
        let all = Path::new("/sys/block").read_dir().unwrap().flatten();
        all.filter_map(|entry| std::fs::read_to_string(entry.path().join("loop/backing_file")).ok())
            .any(|file| Path::new(file.trim()) == image)
    };
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while shown() {
        assert!(std::time::Instant::now() < end, "the device is not released");
        // Measured: the last instance's clean-up takes some milliseconds.
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

async fn nothing_is_left_after_the_last_instance(backend: &ProcessBackend) {
    let disk = Folder::new("data-released");
    output(backend, asked(&disk, "f", "echo x > /data/x")).await;
    released(&image(&disk, "f")).await;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains("mote-data") && !mounts.contains("data-released"), "{mounts}");
    assert!(backend.data_folders().remove(&image(&disk, "f")).unwrap());
    assert!(!backend.data_folders().remove(&image(&disk, "f")).unwrap());
    let text = output(backend, asked(&disk, "f", "ls -A /data")).await;
    assert_eq!(text, "", "a new folder is empty");
}

async fn images_have_the_folder(backend: &ProcessBackend) {
    let disk = Folder::new("data-image");
    let layer = Folder::new("data-layer");
    for program in ["/bin/sh", "/bin/cat", "/bin/ls"] {
        copy_program(&layer.0, Path::new(program), program);
    }
    std::fs::create_dir_all(layer.0.join("data")).unwrap();
    std::fs::write(layer.0.join("data/of-image"), "").unwrap();
    let mut asked = asked(&disk, "f", "ls -A /data; echo image > /data/file; cat /data/file");
    asked.image = Some(ImageRoot {
        layers: vec![layer.0.clone()],
        user: String::new(),
        work_dir: "/".into(),
        stop_signal: None,
    });
    assert_eq!(output(backend, asked).await, "image\n");
    let text = output(backend, self::asked(&disk, "f", "stat -c %u /data/file")).await;
    assert_eq!(text, "1000\n");
}

async fn folders_of_the_host_are_read_only(backend: &ProcessBackend) {
    let (disk, models) = (Folder::new("data-none"), Folder::new("data-models"));
    models.write("model", "weights\n");
    std::os::unix::fs::symlink("/etc/hostname", models.0.join("link")).unwrap();
    let script = "cat /mnt/models/model /mnt/models/link; echo x > /mnt/models/new; \
                  rm /mnt/models/model; ls /data; true";
    let mut asked = request(1, &disk.0, shim(&["sh", "-c", script]));
    asked.folders.host = vec![(models.0.clone(), "/mnt/models".into())];
    let text = output(backend, asked).await;
    assert!(text.starts_with("weights\nfunction\n"), "a link stays inside the sandbox: {text}");
    assert_eq!(text.matches("Read-only file system").count(), 2, "{text}");
    assert!(text.contains("/data"), "there is no data folder: {text}");
    assert_eq!(models.0.read_dir().unwrap().count(), 2);
}

async fn copies_of_a_seed_have_the_folder(_: &ProcessBackend) {
    // A seed needs a shim of its own, and so another backend.
    let program = std::env::current_exe().unwrap();
    let output = std::process::Command::new(program).arg("--seed").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    println!("{}", text.trim());
}

async fn seeded(zygote: mote_sandbox::ZygoteHandle) {
    let Some((shims, prefix, launch)) = template() else {
        return println!("SKIPPED: copies of a seed: no python3");
    };
    let mut config = SandboxConfig::default();
    config.shims_dir = Some(shims.0.clone());
    config.runtime_prefixes.push(prefix);
    let backend = ProcessBackend::new(zygote, config);
    if !is_root_with_memory(&backend) {
        return println!("SKIPPED: copies of a seed: no memory controller");
    }
    let disk = Folder::new("data-seed");
    disk.write("seed.sh", "cat /data/* 2>/dev/null; echo 1 > /data/1\n");
    let mut asked = asked(&disk, "f", "");
    asked.launch = launch;
    let (held, copies) = seed(&backend, asked).await;
    for (number, expected) in ["", "1\n"].iter().enumerate() {
        let started = copies.copy().await.unwrap();
        let mut channel =
            std::os::unix::net::UnixStream::from(started.channel.try_clone().unwrap());
        assert!(line_of(&mut channel).starts_with("up "));
        channel.write_all(b"exec /bin/sh /function/seed.sh\n").unwrap();
        let text = output_of(started.output).await;
        assert_eq!(text, *expected, "copy {number}");
    }
    drop(held);
}

fn main() {
    if own_uid() != 0 {
        return println!("SKIPPED: data folders: they need root");
    }
    let zygote = Zygote::fork().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if let Err(why) = data_folder_support() {
        return println!("SKIPPED: data folders: {why}");
    }
    if std::env::args().any(|word| word == "--seed") {
        return runtime.block_on(seeded(zygote));
    }
    runtime.block_on(async {
        let backend = ProcessBackend::new(zygote, SandboxConfig::default());
        macro_rules! run {
            ($($test:ident)*) => {$({
                let began = std::time::Instant::now();
                $test(&backend).await;
                println!("{} ok, {:?}", stringify!($test), began.elapsed());
            })*};
        }
        run!(
            files_outlive_instances instances_share_their_quota hostile_functions
            a_folder_grows_and_keeps_its_files nothing_is_left_after_the_last_instance
            images_have_the_folder folders_of_the_host_are_read_only
            copies_of_a_seed_have_the_folder
        );
    });
}
