//! Tests instances that run container images: what they see, what they may change, and that the layers
//! and the host stay as they are.
//!
//! All tests share one zygote, which is forked before the first thread starts.
#![expect(clippy::unwrap_used, reason = "a test without the harness")]
#![allow(unsafe_code, reason = "it makes the system calls that are tested")]

mod support;

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use mote_core::backend::{Backend, ImageRoot, InstanceRequest, StartError};
use mote_sandbox::{ProcessBackend, SandboxConfig, Zygote};
use support::{Folder, copy_program, finish, own_uid, request, shim};

/// A layer with a shell and the programs that the tests call.
fn base(name: &str) -> Folder {
    let layer = Folder::new(name);
    for program in
        ["sh", "cat", "ls", "id", "mkdir", "rm", "chown", "mv", "head", "stat", "dd", "chmod"]
    {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        let path = String::from_utf8(found.unwrap().stdout).unwrap();
        copy_program(&layer.0, Path::new(path.trim()), &format!("/bin/{program}"));
    }
    for folder in ["etc", "data", "opaque", "root", "var/www"] {
        std::fs::create_dir_all(layer.0.join(folder)).unwrap();
    }
    let put = |path: &str, text: &str, mode: u32| {
        std::fs::write(layer.0.join(path), text).unwrap();
        std::fs::set_permissions(layer.0.join(path), std::fs::Permissions::from_mode(mode))
            .unwrap();
    };
    put("etc/passwd", "root:x:0:0::/root:/bin/sh\nweb:x:33:34::/var/www:/bin/sh\n", 0o644);
    put("etc/group", "root:x:0:\nweb:x:34:\n", 0o644);
    put("etc/shadow", "secret of the image\n", 0o600);
    put("data/old", "old\n", 0o644);
    put("data/kept", "kept\n", 0o644);
    put("opaque/below", "below\n", 0o644);
    layer
}

/// A layer that deletes a file and replaces a folder of the base.
fn upper(name: &str) -> Folder {
    let layer = Folder::new(name);
    std::fs::create_dir_all(layer.0.join("data")).unwrap();
    std::fs::create_dir_all(layer.0.join("opaque")).unwrap();
    std::fs::write(layer.0.join("opaque/above"), "above\n").unwrap();
    let whiteout = layer.0.join("data/old");
    assert!(Command::new("mknod").arg(whiteout).args(["c", "0", "0"]).status().unwrap().success());
    for attribute in ["user.overlay.opaque", "trusted.overlay.opaque"] {
        if attribute.starts_with("user") || own_uid() == 0 {
            set_attribute(&layer.0.join("opaque"), attribute);
        }
    }
    layer
}

fn set_attribute(path: &Path, name: &str) {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let name = std::ffi::CString::new(name).unwrap();
    // SAFETY: both texts are NUL-terminated, and the value has the length passed.
    let set = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), c"y".as_ptr().cast(), 1, 0) };
    assert_eq!(set, 0, "{name:?}: {}", std::io::Error::last_os_error());
}

fn asked(layers: &[&Folder], user: &str, script: &str) -> InstanceRequest {
    let image = ImageRoot {
        layers: layers.iter().map(|layer| layer.0.clone()).collect(),
        user: user.to_owned(),
        work_dir: PathBuf::from("/place/here"),
        stop_signal: None,
    };
    let mut asked = request(1, Path::new("/nonexistent"), shim(&["/bin/sh", "-c", script]));
    asked.image = Some(image);
    asked
}

async fn output(backend: &ProcessBackend, asked: InstanceRequest) -> String {
    match backend.start(asked).await {
        Ok(started) => finish(started).await.0,
        Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    }
}

/// The names, modes, owners and contents of everything below a folder.
fn content(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let meta = entry.metadata().unwrap();
        let text = if meta.is_file() { std::fs::read(entry.path()).unwrap() } else { Vec::new() };
        let (path, mode, uid) = (entry.path(), meta.mode(), meta.uid());
        all.push(format!("{} {mode:o} {uid} {} {:?}", path.display(), meta.len(), text.first()));
        if meta.is_dir() {
            all.extend(content(&entry.path()));
        }
    }
    all.sort();
    all
}

async fn files_and_ids(backend: &ProcessBackend) {
    let (base, upper) = (base("image-base"), upper("image-upper"));
    let before = (content(&base.0), content(&upper.0));
    let script = "echo ids $(id -u):$(id -g) home $HOME at $(pwd) pid $$
cat /etc/shadow; echo more >> /etc/shadow && cat /etc/shadow
echo data: $(ls /data); echo opaque: $(ls /opaque)
echo new > /data/new && mkdir /srv && echo x > /srv/x && cat /srv/x && rm /data/kept && echo left: $(ls /data)
mv /var/www /moved && echo moved
chown 33:34 /data/new && echo chowned $(stat -c %u:%g /data/new)
cat /etc/hosts | head -1; cat /etc/hostname
ls -l /dev/urandom | head -1; head -c 4 /dev/urandom > /dev/null && echo random
(echo x > /dev/urandom) 2>&1; (echo x > /proc/self/oom_score_adj) 2>&1; (echo x > /dev/x) 2>&1
echo shared > /dev/shm/s && cat /tmp/s
cat /proc/self/status > /tmp/status; cat /proc/self/mounts > /tmp/mounts
while read a b; do case $a in Cap*|NoNewPrivs:|Seccomp:) echo $a $b;; esac; done < /tmp/status
while read a b c d; do case $c in overlay) echo $b $d;; esac; done < /tmp/mounts";
    let text = output(backend, asked(&[&base, &upper], "", script)).await;
    println!("{text}");
    for wanted in [
        "ids 0:0 home /root at /place/here",
        "secret of the image\nsecret of the image\nmore\n",
        "data: kept\n",
        "opaque: above\n",
        "left: new\n",
        "moved\n",
        "chowned 0:0",
        "127.0.0.1 localhost function",
        "random\n",
        "shared\n",
        "CapEff: 0000000000000000",
        "CapBnd: 0000000000000000",
        "NoNewPrivs: 1",
        "Seccomp: 2",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    // Where the node may not make devices, a function can write to the host's device, as every user
    // of the host can.
    let refused = if own_uid() == 0 { 3 } else { 2 };
    assert_eq!(text.matches("cannot create").count(), refused, "{text}");
    assert!(text.contains("nosuid") && text.contains("nodev"), "{text}");
    assert!(!text.contains("mote-test"), "paths of the host are visible: {text}");
    assert_eq!(before, (content(&base.0), content(&upper.0)), "the layers changed");
}

async fn users(backend: &ProcessBackend) {
    let base = base("image-users");
    let script = "echo $(id -u):$(id -g) $HOME; cat /etc/shadow; echo x > /var/www/x && echo wrote";
    for (user, wanted) in [
        ("web", "33:34 /var/www\nsecret of the image\nwrote\n"),
        ("33:0", "33:0 /var/www\n"),
        ("12345:6", "12345:6 /\n"),
        ("1000", "1000:0 /\n"),
    ] {
        let text = output(backend, asked(&[&base], user, script)).await;
        assert!(text.starts_with(wanted), "{user}: {text}");
    }
    let Err(error) = backend.start(asked(&[&base], "nobody-here", script)).await else {
        panic!("an unknown user was accepted")
    };
    let StartError::Sandbox { step, .. } = &error else { panic!("{error}") };
    assert!(step.contains("nobody-here"), "{step}");
}

async fn quota(backend: &ProcessBackend) {
    let base = base("image-quota");
    let script = "dd if=/dev/zero of=/data/big bs=1M count=40 2>/dev/null || echo full
                  rm /data/big; dd if=/dev/zero of=/data/small bs=1M count=4 2>/dev/null && echo fits";
    let text = output(backend, asked(&[&base], "", script)).await;
    assert_eq!(text, "full\nfits\n");
}

async fn many_layers(backend: &ProcessBackend) {
    let base = base("image-many");
    let layers: Vec<_> = (0..127)
        .map(|number| {
            let layer = Folder::new(&format!("image-layer-{number}"));
            layer.write("top", &format!("{number}\n"));
            std::fs::create_dir(layer.0.join("data")).unwrap();
            layer.write(&format!("data/{number}"), "");
            layer
        })
        .collect();
    let all: Vec<&Folder> = std::iter::once(&base).chain(&layers).collect();
    let text = output(backend, asked(&all, "", "cat /top; set -- /data/*; echo $#")).await;
    assert_eq!(text, "126\n129\n");
}

/// Links in an image never lead to files of the host, wherever they point.
async fn hostile_links(backend: &ProcessBackend) {
    let outside = Folder::new("image-outside");
    outside.write("victim", "untouched");
    let host = outside.0.to_str().unwrap().to_owned();
    for (path, target) in [
        ("etc", host.as_str()),
        ("dev", host.as_str()),
        ("proc", host.as_str()),
        ("tmp", host.as_str()),
        ("work", host.as_str()),
        ("etc/hosts", "/victim"),
        ("etc/hostname", "../../../../../../victim"),
        ("dev/null", "/etc/shadow"),
        ("secrets", "../../../../../.."),
    ] {
        let layer = base("image-links");
        let at = layer.0.join(path);
        let _ = std::fs::remove_dir_all(&at);
        let _ = std::fs::remove_file(&at);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        symlink(target, &at).unwrap();
        let mut asked = asked(&[&layer], "", "echo started; echo x > /etc/hosts; ls -l /secrets");
        asked.files = vec![("/secrets/one".into(), "value".to_owned())];
        let before = content(&layer.0);
        let result = match backend.start(asked).await {
            Ok(started) => finish(started).await.0,
            Err(StartError::Sandbox { step, source, .. }) => format!("refused: {step}: {source}"),
            Err(error) => panic!("{path}: {error}"),
        };
        println!("{path} -> {target}: {}", result.trim());
        assert_eq!(content(&outside.0).len(), 1, "{path}");
        assert_eq!(std::fs::read_to_string(outside.0.join("victim")).unwrap(), "untouched");
        assert_eq!(before, content(&layer.0), "{path}: the layer changed");
        assert!(!result.contains(&host) || result.starts_with("refused"), "{path}: {result}");
    }
}

async fn secrets_and_links(backend: &ProcessBackend) {
    let base = base("image-secrets");
    let mut asked = asked(&[&base], "web", "cat /secrets/one /var/openfaas/secrets/one");
    asked.files = vec![("/secrets/one".into(), "value\n".to_owned())];
    asked.links = vec![("/var/openfaas/secrets".into(), "/secrets".into())];
    assert_eq!(output(backend, asked).await, "value\nvalue\n");
}

fn main() {
    let zygote = Zygote::fork().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let backend = ProcessBackend::new(zygote, SandboxConfig::default());
        macro_rules! run {
            ($($test:ident)*) => {$({
                let began = std::time::Instant::now();
                $test(&backend).await;
                println!("{} ok, {:?}", stringify!($test), began.elapsed());
            })*};
        }
        run!(files_and_ids users quota many_layers hostile_links secrets_and_links);
    });
}
