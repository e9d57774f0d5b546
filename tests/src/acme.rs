//! An ACME authority: Pebble, the test server of Let's Encrypt, with a separate DNS server that
//! resolves every name to this machine.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::{free_port, repository, skip, wait_for};

/// The folder that `scripts/acme-server.sh` creates.
const PROGRAMS: &str = ".cache/pebble-v2.10.3";
/// Makes an authority, and the certificate of Pebble's server, which this authority signs.
const OWN: &str = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
    -subj /CN=web -keyout ca.key -out ca.crt && \
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost \
    -keyout own.key -out own.csr && \
    printf 'subjectAltName=DNS:localhost\\n' >own.ext && \
    openssl x509 -req -in own.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile own.ext \
    -out own.crt";

/// A running authority. It ends on drop.
pub struct Authority {
    programs: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
    management: u16,
    dns: u16,
    children: Vec<Child>,
}

impl Authority {
    /// Starts an authority that checks HTTP at the port `http` and handshakes at the port `tls`.
    /// Its certificates are valid for 90 days in the profile `default`, and for `short_s` seconds
    /// in the profile `short`. If the programs are not installed, reports `test` as skipped.
    pub fn start(test: &str, http: u16, tls: u16, short_s: u64) -> Option<Self> {
        let programs = repository().join(PROGRAMS);
        if !programs.join("pebble-challtestsrv").is_file() {
            skip(test, "Pebble is not installed; scripts/acme-server.sh installs it");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let made = Command::new("sh").args(["-c", OWN]).current_dir(folder.path()).output();
        if !made.is_ok_and(|made| made.status.success()) {
            skip(test, "openssl makes no certificates here");
            return None;
        }
        let port = free_port();
        let management = free_port();
        let dns = free_port();
        let config = json!({ "pebble": {
            "listenAddress": format!("127.0.0.1:{port}"),
            "managementListenAddress": format!("127.0.0.1:{management}"),
            "certificate": folder.path().join("own.crt"),
            "privateKey": folder.path().join("own.key"),
            "httpPort": http,
            "tlsPort": tls,
            "profiles": {
                "default": { "description": "usual", "validityPeriod": 90 * 86_400 },
                "short": { "description": "short", "validityPeriod": short_s },
            },
        } });
        std::fs::write(folder.path().join("pebble.json"), config.to_string()).expect("written");
        let mut authority = Self { programs, folder, port, management, dns, children: Vec::new() };
        authority.again();
        Some(authority)
    }

    /// Restarts the authority, which then has forgotten everything.
    pub fn again(&mut self) {
        self.end();
        let dns = format!("127.0.0.1:{}", self.dns);
        let names = Command::new(self.programs.join("pebble-challtestsrv"))
            .args(["-defaultIPv4", "127.0.0.1", "-defaultIPv6", "", "-dnsserver", &dns])
            .args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", ""])
            .args(["-management", &format!("127.0.0.1:{}", free_port())])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let log = std::fs::File::create(self.folder.path().join("log")).expect("a log");
        let pebble = Command::new(self.programs.join("pebble"))
            .arg("-config")
            .arg(self.folder.path().join("pebble.json"))
            .args(["-dnsserver", &dns])
            // Without this setting, the authority would wait up to 15 s before it checks. By
            // default, one in ten of its nonces is bad.
            .env("PEBBLE_VA_NOSLEEP", "1")
            .stdout(log)
            .stderr(Stdio::null())
            .spawn();
        self.children = vec![names.expect("the DNS server"), pebble.expect("Pebble")];
        wait_for("Pebble to answer", || self.roots());
    }

    fn end(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.children.clear();
    }

    /// Returns the flags of a node that orders a certificate of this profile for these names from
    /// the authority. Without a profile, Pebble would choose one itself.
    pub fn flags(&self, names: &str, profile: &str) -> Vec<String> {
        let directory = format!("https://localhost:{}/dir", self.port);
        let ca = self.folder.path().join("ca.crt").display().to_string();
        let words = ["--acme", names, "--acme-directory", &directory, "--acme-ca", &ca];
        [&words[..], &["--acme-profile", profile]].concat().into_iter().map(str::to_owned).collect()
    }

    /// The authority's own certificate (PEM), which clients need to trust the certificates that it
    /// issues.
    fn roots(&self) -> Option<Vec<u8>> {
        let url = format!("https://localhost:{}/roots/0", self.management);
        let ca = self.folder.path().join("ca.crt");
        let output =
            Command::new("curl").arg("-sf").arg("--cacert").arg(ca).arg(url).output().ok()?;
        (output.status.success() && !output.stdout.is_empty()).then_some(output.stdout)
    }

    /// Writes [`Self::roots`] into a file, and returns its path.
    pub fn trusted(&self) -> PathBuf {
        let path = self.folder.path().join("trusted.pem");
        std::fs::write(&path, self.roots().expect("Pebble answers")).expect("written");
        path
    }

    /// How many certificates the authority has issued since its start.
    pub fn issued(&self) -> usize {
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        log.matches("Issued certificate serial").count()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        self.end();
    }
}
