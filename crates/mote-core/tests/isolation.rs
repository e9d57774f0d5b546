//! Functions whose instances are pods.

#![expect(clippy::unwrap_used, reason = "a test")]

use mote_core::FunctionName;
use mote_core::spec::{Egress, FunctionSpec, Isolation, Runtime};

fn pod(runtime: Runtime, edit: impl FnOnce(&mut FunctionSpec)) -> FunctionSpec {
    let mut spec = FunctionSpec::with_defaults(FunctionName::new("f").unwrap(), runtime, "a:b");
    spec.isolation = Isolation::Pod;
    edit(&mut spec);
    spec
}

#[test]
fn a_kind_has_runtime_limits_and_the_function_that_reaches_hosts() {
    let kind = |spec: FunctionSpec| {
        spec.pod_kind().map(|kind| format!("{} {}", kind.shape, kind.function))
    };
    assert_eq!(kind(pod(Runtime::Python, |_| {})).unwrap(), "python-67108864 ");
    let busy = pod(Runtime::Node, |spec| {
        spec.limits.cpu_millis = Some(500);
        spec.egress = vec![Egress::tcp("example.com", 443)];
    });
    assert_eq!(kind(busy).unwrap(), "node-134217728-500 f");
    assert_eq!(kind(pod(Runtime::Python, |spec| spec.isolation = Isolation::Sandbox)), None);
}

#[test]
fn what_pods_cannot_do_is_refused() {
    let fields =
        |spec: FunctionSpec| spec.check().into_iter().map(|error| error.field).collect::<Vec<_>>();
    assert!(fields(pod(Runtime::Python, |_| {})).is_empty());
    assert_eq!(
        fields(pod(Runtime::Exec, |spec| {
            (spec.entry, spec.command) = (String::new(), vec!["./run".into()]);
        })),
        ["isolation"]
    );
    assert_eq!(
        fields(pod(Runtime::Node, |spec| {
            spec.egress = vec![Egress::tcp("mote.internal", 80)];
        })),
        ["allow.net"]
    );
    assert_eq!(fields(pod(Runtime::Node, |spec| spec.scale.spare = 1)), ["scale"]);
}
