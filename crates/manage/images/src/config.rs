//! The settings with which an image should be run.

use oci_spec::image::ImageConfiguration;
use serde::{Deserialize, Serialize};

/// The most environment variables, and the most arguments, that an image may have.
const VALUES_MAX: usize = 1024;
/// The most bytes in all variables and arguments together. A program's arguments and environment
/// may have 2 MiB.
const VALUES_BYTES_MAX: usize = 512 << 10;

/// The settings that the image's author chose. The author is a stranger, and the values are not
/// checked against the image's files. None contains a NUL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// Further arguments, or the whole command line if `entrypoint` is empty.
    pub cmd: Vec<String>,
    /// Environment variables. No name is empty, and each occurs once.
    pub env: Vec<(String, String)>,
    /// `USER`, `UID`, `USER:GROUP` or `UID:GID`. Empty stands for root.
    pub user: String,
    /// An absolute path. `/` if the image names none.
    pub work_dir: String,
    /// TCP ports that the image exposes, sorted.
    pub ports: Vec<u16>,
    /// Such as `SIGQUIT` or `3`.
    pub stop_signal: Option<String>,
}

/// An image's configuration, as far as this crate needs it.
pub(crate) struct Read {
    pub(crate) config: ImageConfig,
    pub(crate) platform: crate::Platform,
    pub(crate) diff_ids: Vec<String>,
}

/// Reads the configuration of an image. The error says what is wrong.
pub(crate) fn read(json: &[u8]) -> Result<Read, String> {
    let document: ImageConfiguration =
        serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let config = document.config().clone().unwrap_or_default();
    let list = |values: &Option<Vec<String>>| values.clone().unwrap_or_default();
    let (entrypoint, cmd) = (list(config.entrypoint()), list(config.cmd()));
    let variables = list(config.env());
    let work_dir = config.working_dir().clone().unwrap_or_default();
    let user = config.user().clone().unwrap_or_default();
    let all = entrypoint.iter().chain(&cmd).chain(&variables);
    let (mut count, mut bytes) = (0, 0);
    for text in all.chain([&work_dir, &user]) {
        count += 1;
        bytes += text.len();
        if text.contains('\0') {
            return Err("a value contains a NUL".to_owned());
        }
    }
    if count > VALUES_MAX || bytes > VALUES_BYTES_MAX {
        return Err("its command line and environment are too large".to_owned());
    }
    let mut env: Vec<(String, String)> = Vec::new();
    for variable in &variables {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        if name.is_empty() {
            continue;
        }
        match env.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value.to_owned(),
            None => env.push((name.to_owned(), value.to_owned())),
        }
    }
    let mut ports: Vec<u16> =
        list(config.exposed_ports()).iter().filter_map(|port| tcp_port(port)).collect();
    ports.sort_unstable();
    ports.dedup();
    let config = ImageConfig {
        entrypoint,
        cmd,
        env,
        user,
        work_dir: if work_dir.starts_with('/') { work_dir } else { format!("/{work_dir}") },
        ports,
        stop_signal: config.stop_signal().clone().filter(|signal| is_signal(signal)),
    };
    let platform = crate::Platform {
        os: document.os().to_string(),
        architecture: document.architecture().to_string(),
        variant: document.variant().clone().filter(|variant| !variant.is_empty()),
    };
    Ok(Read { config, platform, diff_ids: document.rootfs().diff_ids().clone() })
}

/// The port of `8080/tcp` or `8080`. Ranges and UDP are left out.
fn tcp_port(text: &str) -> Option<u16> {
    let (port, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    port.parse().ok().filter(|port| *port != 0 && protocol.eq_ignore_ascii_case("tcp"))
}

fn is_signal(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 16
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_configuration() {
        let read = read(
            br#"{"architecture": "arm", "variant": "v7", "os": "linux", "created": null,
            "config": {
                "User": "1000:1000", "ExposedPorts": {"8080/tcp": {}, "53/udp": {}, "80": {},
                "9000-9010/tcp": {}}, "Env": ["PATH=/bin", "A=b=c", "EMPTY=", "=x", "A=2", "BARE"],
                "Entrypoint": ["/server"], "Cmd": ["-v"], "WorkingDir": "srv",
                "StopSignal": "SIGQUIT", "Labels": {"a": "b"}, "Volumes": {"/data": {}},
                "OnBuild": null, "ArgsEscaped": true,
                "Healthcheck": {"Test": ["CMD-SHELL", "wget -q localhost"],
                                "Interval": 5000000000, "Retries": 3}
            },
            "rootfs": {"type": "layers", "diff_ids": ["sha256:aa"]},
            "history": [{"created_by": "x", "empty_layer": true}]}"#,
        )
        .unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected = ImageConfig {
            entrypoint: vec!["/server".into()],
            cmd: vec!["-v".into()],
            env: vec![pair("PATH", "/bin"), pair("A", "2"), pair("EMPTY", ""), pair("BARE", "")],
            user: "1000:1000".into(),
            work_dir: "/srv".into(),
            ports: vec![80, 8080],
            stop_signal: Some("SIGQUIT".into()),
        };
        assert_eq!(read.config, expected);
        assert_eq!(read.platform.to_string(), "linux/arm/v7");
        assert_eq!(read.diff_ids, ["sha256:aa"]);
    }

    #[test]
    fn a_bare_configuration() {
        for config in ["", r#""config": null,"#, r#""config": {},"#, r#""config": {"Cmd": null},"#]
        {
            let json = format!(
                r#"{{"architecture": "amd64", "os": "linux", {config}
                "rootfs": {{"type": "layers", "diff_ids": []}}}}"#
            );
            let read = read(json.as_bytes()).unwrap();
            assert_eq!(read.config, ImageConfig { work_dir: "/".into(), ..Default::default() });
        }
    }

    #[test]
    fn configurations_that_are_refused() {
        let with = |config: &str| {
            let json = format!(
                r#"{{"architecture": "amd64", "os": "linux", "config": {config},
                "rootfs": {{"type": "layers", "diff_ids": []}}}}"#
            );
            read(json.as_bytes()).map(|read| read.config)
        };
        assert!(with(r#"{"Cmd": ["a\u0000b"]}"#).unwrap_err().contains("NUL"));
        assert!(with(r#"{"Cmd": "a string"}"#).is_err());
        let many = vec!["\"a\""; VALUES_MAX + 1].join(",");
        assert!(with(&format!(r#"{{"Cmd": [{many}]}}"#)).unwrap_err().contains("too large"));
        let long = "x".repeat(VALUES_BYTES_MAX);
        assert!(with(&format!(r#"{{"Env": ["A={long}"]}}"#)).unwrap_err().contains("too large"));
        let signal = with(r#"{"StopSignal": "a b"}"#).unwrap().stop_signal;
        assert_eq!(signal, None);
        assert!(read(b"{}").is_err());
        assert!(read(b"null").is_err());
        assert!(read("[".repeat(100_000).as_bytes()).is_err(), "nested");
    }
}
