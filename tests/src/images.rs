//! Makes container images without a container tool: folders become layers, and and an OCI layout,
//! or an archive of one, names them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// An image under construction.
pub struct Image {
    folder: tempfile::TempDir,
    layers: Vec<Value>,
    diff_ids: Vec<String>,
    config: Value,
}

impl Default for Image {
    fn default() -> Self {
        Self::new()
    }
}

impl Image {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("layout/blobs/sha256")).unwrap();
        Self { folder, layers: Vec::new(), diff_ids: Vec::new(), config: json!({}) }
    }

    /// Adds a layer with everything in a folder.
    pub fn layer(mut self, from: &Path) -> Self {
        let tar = self.folder.path().join("layer.tar");
        let args = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "-C"];
        let made = Command::new("tar").args(args).arg(from).arg("-cf").arg(&tar).arg(".").status();
        assert!(made.unwrap().success());
        let (digest, size) = self.keep(&tar);
        self.diff_ids.push(digest.clone());
        let kind = "application/vnd.oci.image.layer.v1.tar";
        self.layers.push(json!({"mediaType": kind, "digest": digest, "size": size}));
        self
    }

    /// Adds a layer with these files. A name that ends in `*` stands for a program.
    pub fn files(self, files: &[(&str, &[u8])]) -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = folder.path().join(name.trim_end_matches('*'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, content).unwrap();
            let mode = if name.ends_with('*') { 0o755 } else { 0o644 };
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        self.layer(folder.path())
    }

    /// Sets keys of the image's `config`, such as `Entrypoint`.
    pub fn config(mut self, config: Value) -> Self {
        self.config = config;
        self
    }

    /// Writes the layout, and returns its folder.
    pub fn layout(self) -> Layout {
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": self.config,
            "rootfs": {"type": "layers", "diff_ids": self.diff_ids},
        });
        let file = self.folder.path().join("blob");
        let keep = |value: &Value| {
            std::fs::write(&file, value.to_string()).unwrap();
            self.keep(&file)
        };
        let (digest, size) = keep(&config);
        let kind = "application/vnd.oci.image.config.v1+json";
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": kind, "digest": digest, "size": size},
            "layers": self.layers,
        });
        let (digest, size) = keep(&manifest);
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let index = json!({
            "schemaVersion": 2,
            "manifests": [{"mediaType": kind, "digest": digest, "size": size}],
        });
        let path = self.folder.path().join("layout");
        std::fs::write(path.join("index.json"), index.to_string()).unwrap();
        std::fs::write(path.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Layout { path, digest, _folder: self.folder }
    }

    fn keep(&self, file: &Path) -> (String, u64) {
        let sum = Command::new("sha256sum").arg(file).output().unwrap().stdout;
        let hash = String::from_utf8(sum).unwrap()[..64].to_owned();
        let size = std::fs::metadata(file).unwrap().len();
        let to = self.folder.path().join("layout/blobs/sha256").join(&hash);
        std::fs::rename(file, to).unwrap();
        (format!("sha256:{hash}"), size)
    }
}

/// An OCI layout on disk.
pub struct Layout {
    pub path: PathBuf,
    /// The digest of the image's manifest.
    pub digest: String,
    _folder: tempfile::TempDir,
}

impl Layout {
    /// Packs the layout into an archive of this name.
    pub fn archive(&self, name: &str) -> PathBuf {
        let archive = self.path.parent().unwrap().join(name);
        let made = Command::new("tar")
            .arg("-C")
            .arg(&self.path)
            .arg("-cf")
            .arg(&archive)
            .arg(".")
            .status();
        assert!(made.unwrap().success());
        archive
    }
}

/// Builds a static program from one Go file. `None` without Go.
pub fn go_program(source: &str) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("main.go"), source).unwrap();
    let out = folder.path().join("program");
    let path = format!("{}:/usr/local/go/bin", std::env::var("PATH").unwrap_or_default());
    let built = Command::new("go")
        .args(["build", "-trimpath", "-ldflags", "-s -w", "-o"])
        .arg(&out)
        .arg("main.go")
        .current_dir(folder.path())
        .envs([("CGO_ENABLED", "0"), ("GO111MODULE", "off"), ("PATH", &path)])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(std::fs::read(out).unwrap())
}

/// Copies a program of the host into a folder that becomes a layer, together with its libraries.
pub fn copy_program(layer: &Path, program: &Path, target: &str) {
    let copy = |from: &Path, to: &str| {
        let to = layer.join(to.trim_start_matches('/'));
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        if !to.exists() {
            std::fs::copy(from, to).unwrap();
        }
    };
    copy(program, target);
    let output = Command::new("ldd").arg(program).output().unwrap();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        // `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for the loader.
        let path = line.split("=>").last().unwrap_or_default();
        let path = path.split_whitespace().next().unwrap_or_default();
        if path.starts_with('/') {
            copy(Path::new(path), path);
        }
    }
}

/// A registry of container images on loopback, without TLS or passwords. Dropping it ends it.
pub struct Registry {
    child: std::process::Child,
    pub address: std::net::SocketAddr,
    _folder: tempfile::TempDir,
}

impl Registry {
    /// Starts Debian's `docker-registry`. `None` if it is not installed.
    pub fn start() -> Option<Self> {
        let address = crate::free_address();
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config.yml");
        let data = folder.path().join("data");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage:\n  filesystem: {{rootdirectory: {data:?}}}\n\
             http: {{addr: \"{address}\"}}\n"
        );
        std::fs::write(&config, text).unwrap();
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        crate::wait_for("the registry", || std::net::TcpStream::connect(address).ok());
        Some(Self { child, address, _folder: folder })
    }

    /// Uploads an image, and returns the name under which it can be pulled.
    pub fn push(&self, layout: &Layout, repository: &str, tag: &str) -> String {
        let root = format!("http://{}/v2/{repository}", self.address);
        let blobs = layout.path.join("blobs/sha256");
        for entry in std::fs::read_dir(&blobs).unwrap().flatten() {
            let digest = format!("sha256:{}", entry.file_name().to_str().unwrap());
            if digest == layout.digest {
                continue;
            }
            let place = curl(&["-X", "POST", "-D", "-", &format!("{root}/blobs/uploads/")]);
            let place = place
                .lines()
                .find(|line| line.to_ascii_lowercase().starts_with("location:"))
                .and_then(|line| line.split_once(' '))
                .map(|(_, url)| url.trim().to_owned())
                .expect("the registry names a place");
            let file = format!("@{}", entry.path().display());
            let to = format!("{place}&digest={digest}");
            curl(&["-X", "PUT", "-H", OCTETS, "--data-binary", &file, &to]);
        }
        let manifest = format!("@{}", blobs.join(&layout.digest["sha256:".len()..]).display());
        let kind = "Content-Type: application/vnd.oci.image.manifest.v1+json";
        let to = format!("{root}/manifests/{tag}");
        curl(&["-X", "PUT", "-H", kind, "--data-binary", &manifest, &to]);
        format!("{}/{repository}:{tag}", self.address)
    }
}

const OCTETS: &str = "Content-Type: application/octet-stream";

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn curl(args: &[&str]) -> String {
    let output = Command::new("curl").args(["-sS", "--fail"]).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
