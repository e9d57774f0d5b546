//! Tests which functions have a listener for the services of the node.

#![expect(clippy::unwrap_used, reason = "a test")]

use mote_spec::{Egress, FunctionName, FunctionSpec, Runtime, SERVICES_PORT};

fn spec(runtime: Runtime, edit: impl FnOnce(&mut FunctionSpec)) -> FunctionSpec {
    let name = FunctionName::new("f").unwrap();
    let mut spec = FunctionSpec::with_defaults(name, runtime, "");
    spec.command = vec!["./run".into()];
    edit(&mut spec);
    spec
}

#[test]
fn only_programs_that_need_the_services_have_a_listener_for_them() {
    let check = |runtime, edit: fn(&mut FunctionSpec), expected| {
        let spec = spec(runtime, edit);
        let door = Egress::tcp("mote.internal", 6685);
        assert_eq!(spec.doors().contains(&door), expected, "{spec:?}");
    };
    for runtime in [Runtime::Exec, Runtime::Server] {
        check(runtime, |_| {}, false);
        check(runtime, |spec| spec.services = true, true);
        check(runtime, |spec| spec.calls = vec!["g".into()], true);
        check(runtime, |spec| spec.publishing.topics = vec!["a/#".into()], true);
        check(runtime, |spec| spec.state.shared = vec!["site".into()], true);
        check(runtime, |spec| spec.state.quota_bytes = 1 << 20, true);
    }
    check(Runtime::Python, |spec| spec.calls = vec!["g".into()], false);
}

#[test]
fn the_port_of_the_services_is_not_the_servers_own() {
    let problems =
        |spec: FunctionSpec| spec.check().iter().map(|one| one.field).collect::<Vec<_>>();
    let server = |services| {
        problems(spec(Runtime::Server, |spec| {
            (spec.port, spec.services) = (Some(SERVICES_PORT), services);
        }))
    };
    assert_eq!(server(true), ["port"]);
    assert!(server(false).is_empty());
    assert_eq!(
        problems(spec(Runtime::Go, |spec| {
            (spec.entry, spec.services) = ("Handle".into(), true);
        })),
        ["services"]
    );
}

#[test]
fn a_host_that_looks_like_an_address_must_be_one() {
    for (host, is_valid) in [
        ("192.0.2.7", true),
        ("2001:db8::7", true),
        ("db.example", true),
        ("db1", true),
        ("10.example", true),
        ("999.1.1.1", false),
        ("1.2.3", false),
        ("1.2.3.4.5", false),
        ("7", false),
        ("0x7f000001", false),
        ("1.2.3.", false),
    ] {
        let spec = spec(Runtime::Python, |spec| {
            spec.entry = "app".into();
            spec.egress = vec![Egress::tcp(host, 80)];
        });
        let fields: Vec<_> = spec.check().iter().map(|one| one.field).collect();
        assert_eq!(fields.is_empty(), is_valid, "{host}: {fields:?}");
    }
}
