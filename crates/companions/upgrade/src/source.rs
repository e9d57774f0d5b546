//! Opens the archive, which is a file or comes from a server.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::Path;
use std::time::Duration;

use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::failure::{ARCHIVE, Failure};

/// The largest archive. A release takes a tenth of this size.
const ARCHIVE_BYTES_MAX: u64 = 256 << 20;
/// The time limit for connecting, and for receiving the head of the answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// The time limit for the whole archive. A slow link to an edge machine has 256 kbit/s.
const ARCHIVE_PATIENCE: Duration = Duration::from_secs(1_800);

/// The hint if something other than an archive was named.
const NAME_ARCHIVE: &str =
    "name the archive of a release, whose name begins with mote- and ends in .tar.gz";

/// Opens the archive. An archive from a server is downloaded into a temporary file without a name.
pub(crate) fn open(archive: &str) -> Result<File, Failure> {
    if archive.starts_with("http://") || archive.starts_with("https://") {
        return download(archive);
    }
    if let Some((scheme, _)) = archive.split_once("://") {
        let text = format!("{archive} cannot be downloaded: {scheme} is not http or https");
        return Err(Failure::new(ARCHIVE, text, "name a file, or a URL that begins with https://"));
    }
    let file = File::open(archive).map_err(|error| Failure::file(archive, &error))?;
    let meta = file.metadata().map_err(|error| Failure::file(archive, &error))?;
    if !meta.is_file() {
        let text = format!("{archive} is not a file");
        return Err(Failure::new(ARCHIVE, text, NAME_ARCHIVE));
    }
    if meta.len() > ARCHIVE_BYTES_MAX {
        return Err(too_long(archive));
    }
    Ok(file)
}

fn too_long(archive: &str) -> Failure {
    let text =
        format!("{archive} is longer than {} MiB, which no release is", ARCHIVE_BYTES_MAX >> 20);
    Failure::new(ARCHIVE, text, NAME_ARCHIVE)
}

fn download(url: &str) -> Result<File, Failure> {
    let hint = "check the address, or download the archive elsewhere and name the file";
    let failed = |why: &dyn std::fmt::Display| {
        Failure::new(ARCHIVE, format!("{url} cannot be downloaded: {why}"), hint)
    };
    // The certificates that this machine trusts are used, so that the archive can come from a
    // server in the machine's own network.
    let certificates = rustls_native_certs::load_native_certs().certs;
    let certificates: Vec<_> =
        certificates.iter().map(|one| Certificate::from_der(one).to_owned()).collect();
    let tls = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&certificates)).build();
    let agent = ureq::Agent::config_builder()
        .tls_config(tls)
        // A redirect must not lead from an encrypted connection to an unencrypted one.
        .https_only(url.starts_with("https://"))
        .timeout_connect(Some(ANSWER_PATIENCE))
        .timeout_recv_response(Some(ANSWER_PATIENCE))
        .timeout_global(Some(ARCHIVE_PATIENCE))
        .http_status_as_error(false)
        .user_agent(concat!("mote/", env!("CARGO_PKG_VERSION")))
        .build()
        .new_agent();
    let mut answer = agent.get(url).call().map_err(|error| failed(&error))?;
    if answer.status() != 200 {
        return Err(failed(&format!("the server answers {}", answer.status())));
    }
    if answer.body().content_length().is_some_and(|length| length > ARCHIVE_BYTES_MAX) {
        return Err(too_long(url));
    }
    let mut file = unnamed().map_err(|error| Failure::file("a temporary file", &error))?;
    // Reading one byte more than the limit shows whether the archive is too long.
    let mut body = answer.body_mut().as_reader().take(ARCHIVE_BYTES_MAX + 1);
    let copied = std::io::copy(&mut body, &mut file).map_err(|error| failed(&error))?;
    if copied > ARCHIVE_BYTES_MAX {
        return Err(too_long(url));
    }
    file.rewind().map_err(|error| Failure::file("a temporary file", &error))?;
    Ok(file)
}

/// Creates a file that disappears with this process. `/var/tmp` is preferred, because `/tmp` is in
/// memory on many machines.
fn unnamed() -> std::io::Result<File> {
    match std::env::var_os("TMPDIR") {
        Some(folder) => tempfile::tempfile_in(folder),
        None if Path::new("/var/tmp").is_dir() => tempfile::tempfile_in("/var/tmp"),
        None => tempfile::tempfile(),
    }
}
