//! The README's demo: all examples, temperatures for a whole year, and a few months of these
//! through an MQTT broker.

use std::process::Command;

use mote_tests::{has_pip, is_root, mote_binary, repository, skip};

#[test]
fn the_demo_runs_to_its_end() {
    if !is_root() {
        return skip("the demo", "it installs what it needs, as root");
    }
    if !has_pip() {
        return;
    }
    let programs = mote_binary().parent().expect("a folder").to_owned();
    let output = Command::new(repository().join("scripts/demo.sh"))
        .env("MOTE_PROGRAMS", programs)
        .output()
        .expect("bash starts");
    let (text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}\n{errors}");
    for part in ["6000 readings of 60 sensors", "readings over MQTT", "what the node runs now"] {
        assert!(text.contains(part), "{part} is missing in {text}\n{errors}");
    }
}
