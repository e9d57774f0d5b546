//! Credential helpers, as programs in the user's PATH.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use mote_images::{Credentials, credentials_from_docker_config};

const HELPER: &str = r#"#!/bin/sh
read -r server
case $1:$server in
  get:one.io) echo '{"ServerURL": "one.io", "Username": "anna", "Secret": "a b"}' ;;
  get:two.io) echo '{"Username": "<token>", "Secret": "t"}' ;;
  get:three.io) echo 'credentials not found in native keychain'; exit 1 ;;
  get:four.io) echo 'the keychain is locked'; exit 1 ;;
  get:five.io) echo '<html>' ;;
esac
"#;

/// Runs the test again with a PATH that contains the helper.
fn with_helper(test: &str) -> Option<std::path::PathBuf> {
    if let Some(folder) = std::env::var_os("MOTE_TEST_HELPERS") {
        return Some(folder.into());
    }
    let folder = tempfile::tempdir().unwrap();
    let helper = folder.path().join("docker-credential-chest");
    std::fs::write(&helper, HELPER).unwrap();
    std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("MOTE_TEST_HELPERS", folder.path())
        .env("PATH", format!("{}:{path}", folder.path().display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}{said}", String::from_utf8_lossy(&output.stdout));
    None
}

#[test]
fn helpers() {
    let Some(folder) = with_helper("helpers") else { return };
    let config = r#"{"credHelpers": {"one.io": "chest", "two.io": "chest", "three.io": "chest",
        "four.io": "chest", "five.io": "chest"}}"#;
    let found = |config: &str, image: &str| {
        let path = folder.join("config.json");
        std::fs::write(&path, config).unwrap();
        credentials_from_docker_config(Path::new(&path), &image.parse().unwrap())
    };
    let anna = Credentials::Password { user: "anna".into(), password: "a b".into() };
    assert_eq!(found(config, "one.io/app").unwrap(), Some(anna.clone()));
    let token = Credentials::IdentityToken("t".into());
    assert_eq!(found(config, "two.io/app").unwrap(), Some(token));
    assert_eq!(found(config, "three.io/app").unwrap(), None);
    let error = found(config, "four.io/app").unwrap_err().to_string();
    assert_eq!(
        error,
        "the credential helper `docker-credential-chest` failed: the keychain is locked"
    );
    let error = found(config, "five.io/app").unwrap_err().to_string();
    assert!(error.ends_with("its answer is not JSON"), "{error}");
    // A store for all registries, where `docker login` leaves an empty row.
    let config = r#"{"auths": {"one.io": {}}, "credsStore": "chest"}"#;
    assert_eq!(found(config, "one.io/app").unwrap(), Some(anna));
    assert_eq!(found(config, "six.io/app").unwrap(), None);
}
