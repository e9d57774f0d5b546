//! The objects of a waiting pod: the pod itself, the Secret with its key, and the NetworkPolicy of a
//! function that reaches other hosts. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use mote_core::spec::ANY_HOST;
use serde_json::{Value, json};

use crate::pods::{KEY, LABEL_FUNCTION, PORT, PodNeeds, SHAPE, STARTING, STATE};

/// Memory that a pod has in addition to that of its instance: the main process, and what it keeps of
/// the function's files.
const EXTRA_BYTES: u64 = 32 << 20;
/// The user and group of everything in a pod.
const USER: u32 = 65_532;
/// Networks that `*` does not open: private, shared, link-local ones and those of benchmarks. A
/// function reaches a host in them if its manifest names the host.
const CLOSED: [&str; 6] = [
    "10.0.0.0/8",
    "100.64.0.0/10",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "198.18.0.0/15",
];
/// The same in version 6.
const CLOSED_V6: [&str; 2] = ["fc00::/7", "fe80::/10"];

/// What all pods of an installation have in common.
#[derive(Debug, Clone)]
pub(super) struct Template {
    /// The image, which has `mote-pod` and the interpreters.
    pub(super) image: String,
    /// When machines pull it.
    pub(super) pull_policy: String,
    /// The public key of the cells.
    pub(super) cells: String,
    /// Labels that the machines of pods must have.
    pub(super) node_selector: std::sync::Arc<[(String, String)]>,
}

/// A pod that is to wait. `lost` are machines that do not answer.
pub(super) fn pod(
    template: &Template,
    needs: &PodNeeds,
    name: &str,
    key: &str,
    lost: &BTreeSet<String>,
) -> Pod {
    let memory = needs.memory_bytes + EXTRA_BYTES;
    let mut limits = json!({"memory": memory.to_string()});
    if let Some(cpu_millis) = needs.cpu_millis {
        limits["cpu"] = format!("{cpu_millis}m").into();
    }
    let mut labels = json!({
        "app.kubernetes.io/part-of": "mote",
        "app.kubernetes.io/name": "mote-function",
        SHAPE: needs.shape,
        STATE: STARTING,
    });
    if !needs.function.is_empty() {
        labels[LABEL_FUNCTION] = needs.function.clone().into();
    }
    let variable = |name: &str, value: &str| json!({"name": name, "value": value});
    let folders = ["/function", "/packages", "/secrets", "/mote", "/tmp"];
    let volume = |path: &&str| {
        let kept = if *path == "/secrets" {
            json!({"medium": "Memory", "sizeLimit": "1Mi"})
        } else {
            json!({})
        };
        json!({"name": &path[1..], "emptyDir": kept})
    };
    let mount = |path: &&str| json!({"name": &path[1..], "mountPath": path});
    let mut spec = json!({
        "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{
            "name": "function",
            "image": template.image,
            "imagePullPolicy": template.pull_policy,
            "command": ["mote-pod"],
            "env": [
                variable("MOTE_POD_RUNTIME", &needs.runtime),
                variable("MOTE_POD_LISTEN", &format!("0.0.0.0:{PORT}")),
                variable("MOTE_POD_CELLS", &template.cells),
                {"name": "MOTE_POD_SECRET", "valueFrom": {"secretKeyRef": {"name": name, "key": "secret"}}},
            ],
            "ports": [{"name": "claim", "containerPort": PORT}],
            // The port is open from the interpreter's first word until a cell has claimed the pod.
            "readinessProbe": {
                "tcpSocket": {"port": PORT}, "periodSeconds": 1, "failureThreshold": 1,
            },
            "resources": {
                "requests": {"cpu": "10m", "memory": memory.to_string()},
                "limits": limits,
            },
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": folders.iter().map(mount).collect::<Vec<_>>(),
        }],
        "volumes": folders.iter().map(volume).collect::<Vec<_>>(),
        // If one machine is lost, pods wait on others.
        "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {SHAPE: needs.shape}},
        }],
    });
    if !template.node_selector.is_empty() {
        let pairs = template.node_selector.iter().cloned();
        spec["nodeSelector"] =
            Value::Object(pairs.map(|(key, value)| (key, value.into())).collect());
    }
    if !lost.is_empty() {
        // Kubernetes notices a lost machine after 40 seconds.
        spec["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": lost},
            ]}],
        }}});
    }
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels, "annotations": {KEY: key}},
        "spec": spec,
    }))
    .expect("it is a pod")
}

/// The secret of a pod, which is removed with it.
pub(super) fn secret(pod: &Pod, secret: &str) -> Secret {
    let (name, uid) = (&pod.metadata.name, &pod.metadata.uid);
    serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/part-of": "mote"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}],
        },
        "stringData": {"secret": secret},
    }))
    .expect("it is a Secret")
}

/// A destination that the pods of a function may reach.
pub(super) struct Opening<'a> {
    /// A name, an address, or [`ANY_HOST`].
    pub(super) host: String,
    /// The port; 0 for every port.
    pub(super) port: u16,
    /// `TCP` or `UDP`.
    pub(super) protocol: &'a str,
    /// The addresses that the host has now.
    pub(super) addresses: Vec<IpAddr>,
}

/// What the pods of a function may reach: the hosts of its manifest, each with the addresses that
/// its name has now. Everything else is closed by the policy of the namespace.
pub(super) fn policy(function: &str, net: &[Opening<'_>]) -> NetworkPolicy {
    let mut rules: Vec<Value> = Vec::new();
    for Opening { host, port, protocol, addresses } in net {
        let ports = match port {
            0 => json!([{"protocol": protocol}]),
            port => json!([{"protocol": protocol, "port": port}]),
        };
        let to: Vec<Value> = if host == ANY_HOST {
            vec![
                json!({"ipBlock": {"cidr": "0.0.0.0/0", "except": CLOSED}}),
                json!({"ipBlock": {"cidr": "::/0", "except": CLOSED_V6}}),
            ]
        } else {
            addresses.iter().map(block).collect()
        };
        // A rule without destinations would open all of them.
        if !to.is_empty() {
            rules.push(json!({"to": to, "ports": ports}));
        }
    }
    // Names have to be looked up, but by nobody who reaches only addresses.
    if net.iter().any(|Opening { host, .. }| host.parse::<IpAddr>().is_err()) {
        rules.push(json!({
            "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}],
            "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}],
        }));
    }
    serde_json::from_value(json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": policy_name(function),
            "labels": {"app.kubernetes.io/part-of": "mote", LABEL_FUNCTION: function},
        },
        "spec": {
            "podSelector": {"matchLabels": {LABEL_FUNCTION: function}},
            "policyTypes": ["Egress"],
            "egress": rules,
        },
    }))
    .expect("it is a NetworkPolicy")
}

/// The name of the policy of a function.
pub(super) fn policy_name(function: &str) -> String {
    format!("allow-{function}")
}

fn block(address: &IpAddr) -> Value {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    json!({"ipBlock": {"cidr": format!("{address}/{bits}")}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs() -> PodNeeds {
        PodNeeds {
            shape: "python-67108864".into(),
            function: "f".into(),
            runtime: "python".into(),
            memory_bytes: 64 << 20,
            cpu_millis: Some(500),
            net: Vec::new(),
            net_udp: Vec::new(),
        }
    }

    #[test]
    fn a_pod_has_no_rights_no_token_and_its_limits() {
        let template = Template {
            image: "image".into(),
            pull_policy: "Never".into(),
            cells: "ab".into(),
            node_selector: [("pool".into(), "untrusted".into())].into(),
        };
        let lost = BTreeSet::from(["m1".to_owned()]);
        let made = serde_json::to_value(pod(&template, &needs(), "p", "cd", &lost)).unwrap();
        let spec = &made["spec"];
        assert_eq!(spec["automountServiceAccountToken"], false);
        assert_eq!(spec["restartPolicy"], "Never");
        assert_eq!(spec["nodeSelector"]["pool"], "untrusted");
        let container = &spec["containers"][0];
        assert_eq!(container["resources"]["limits"], json!({"memory": "100663296", "cpu": "500m"}));
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
        // The secret is in the environment of the first process only, and never in the pod's spec.
        assert!(container["env"].to_string().contains("secretKeyRef"));
        assert!(spec["affinity"].to_string().contains("m1"));
        assert_eq!(made["metadata"]["labels"][LABEL_FUNCTION], "f");
    }

    #[test]
    fn a_policy_opens_what_the_manifest_names() {
        let rules = |net: &[(&str, u16, &'static str, &[&str])]| {
            let net: Vec<_> = net
                .iter()
                .map(|(host, port, protocol, addresses)| {
                    let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
                    Opening { host: (*host).to_owned(), port: *port, protocol, addresses }
                })
                .collect();
            serde_json::to_value(policy("f", &net)).unwrap()["spec"]["egress"].clone()
        };
        let address = rules(&[("192.0.2.1", 443, "TCP", &["192.0.2.1"])]);
        let expected = json!([{
            "to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}],
            "ports": [{"protocol": "TCP", "port": 443}],
        }]);
        assert_eq!(address, expected);
        let lamp = rules(&[("192.0.2.7", 5683, "UDP", &["192.0.2.7"])]);
        assert_eq!(lamp[0]["ports"], json!([{"protocol": "UDP", "port": 5683}]));
        // A name that leads nowhere opens nothing but the look-up.
        let none = rules(&[("db.example", 5432, "TCP", &[])]);
        assert_eq!(none.as_array().unwrap().len(), 1);
        assert_eq!(none[0]["ports"][0]["port"], 53);
        let any = rules(&[("*", 0, "TCP", &[])]);
        assert_eq!(any[0]["ports"], json!([{"protocol": "TCP"}]));
        assert!(any[0]["to"][0]["ipBlock"]["except"].to_string().contains("10.0.0.0/8"));
    }
}
