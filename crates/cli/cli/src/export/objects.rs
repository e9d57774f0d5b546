//! The Kubernetes objects of a function. They are plain objects, which every cluster knows.

use std::collections::BTreeSet;

use mote_spec::{ANY_HOST, Egress, FunctionSpec, Missed, Overlap, Protocol};
use serde_json::{Value, json};

use crate::export::image::{PORT, USER};
use crate::export::times::cron;

/// The name of the Secret. It has a key for each secret of the functions.
pub const SECRET: &str = "function-secrets";
/// The most replicas of a function whose manifest permits one instance per core.
const REPLICAS_MAX: u32 = 10;
/// The memory of `serve.py`, which runs in the same container.
const SERVER_BYTES: u64 = 32 << 20;
/// The processor time that is reserved if the manifest sets no limit. An HPA needs a figure.
const CPU_MILLIS: u32 = 100;
/// The longest name of a CronJob, without the number at its end.
const CRON_NAME_MAX: usize = 48;
/// With `missed = "skip"`, a run that is late by more than this many seconds is left out.
const LATE_SECONDS: u64 = 30;
/// How many seconds longer than the deadline of an invocation a container may run after SIGTERM.
/// During the first of these seconds, the container goes on serving new requests.
const LEAVING_SECONDS: u64 = 10;

/// Options for making the objects.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The prefix of the names of images, such as `registry.local/shop`.
    pub registry: Option<String>,
    /// The version of the images.
    pub tag: String,
    /// The namespace of the objects. If it is absent, kubectl uses the user's own.
    pub namespace: Option<String>,
}

/// Returns the objects of a function as YAML. Adds to `lost` the parts of its schedules that cannot be
/// carried over.
pub fn yaml(
    spec: &FunctionSpec,
    options: &Options,
    lost: &mut Vec<String>,
) -> Result<String, String> {
    let all = objects(spec, options, lost);
    let name = spec.name.as_str();
    let mut text =
        format!("# The function {name} as plain Kubernetes objects, made by mote export.\n");
    let secrets = spec.secret_names();
    if !secrets.is_empty() {
        text.push_str("#\n# Its secrets, which are not exported; create them first:\n");
        text.push_str(&format!("#   kubectl create secret generic {SECRET} \\\n"));
        let files: Vec<String> =
            secrets.iter().map(|key| format!("#     --from-file={key}=FILE")).collect();
        text.push_str(&(files.join(" \\\n") + "\n"));
    }
    text.push_str("#\n# What could not be carried over:\n");
    for line in &*lost {
        text.push_str(&format!("# - {}\n", line.replace('\n', " ")));
    }
    for object in all {
        text.push_str("---\n");
        text.push_str(&yaml_serde::to_string(&object).map_err(|error| error.to_string())?);
    }
    Ok(text)
}

/// Returns the name of the objects. The name of a Service must begin with a letter.
fn label(spec: &FunctionSpec) -> String {
    let name = spec.name.as_str();
    match name.starts_with(|c: char| c.is_ascii_digit()) {
        true => format!("fn-{name}").chars().take(63).collect(),
        false => name.to_owned(),
    }
}

fn objects(spec: &FunctionSpec, options: &Options, lost: &mut Vec<String>) -> Vec<Value> {
    let name = label(spec);
    let metadata = |name: &str| {
        let mut value = json!({"name": name, "labels": {"app.kubernetes.io/name": label(spec)}});
        if let Some(namespace) = &options.namespace {
            value["namespace"] = namespace.clone().into();
        }
        value
    };
    let selector = json!({"app.kubernetes.io/name": name});
    let mut all = Vec::new();
    if !spec.env.is_empty() {
        all.push(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": metadata(&format!("{name}-env")), "data": spec.env,
        }));
    }
    let max = spec.scale.max.unwrap_or(REPLICAS_MAX).max(1);
    let min = spec.scale.min.clamp(1, max);
    let mut deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(&name),
        "spec": {
            "replicas": min,
            "selector": {"matchLabels": selector},
            // A new pod must be ready before an old one ends.
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": {"labels": selector},
                "spec": pod(spec, options, &name),
            },
        },
    });
    if max > min
        && let Some(spec) = deployment["spec"].as_object_mut()
    {
        // The HPA sets the number of replicas.
        spec.remove("replicas");
    }
    all.push(deployment);
    let mut port = json!({"name": "http", "port": 80, "targetPort": PORT});
    if spec.protocol == Protocol::H2c {
        port["appProtocol"] = "kubernetes.io/h2c".into();
    }
    all.push(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata(&name),
        "spec": {"selector": selector, "ports": [port]},
    }));
    if max > min {
        let cpu =
            json!({"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}});
        all.push(json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": metadata(&name),
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "minReplicas": min, "maxReplicas": max,
                "metrics": [{"type": "Resource", "resource": cpu}],
            },
        }));
    }
    all.push(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata(&name),
        "spec": {
            "podSelector": {"matchLabels": selector},
            "policyTypes": ["Egress"], "egress": egress(spec),
        },
    }));
    for (at, schedule) in spec.schedules.iter().enumerate() {
        let (expression, zone) = match cron(&schedule.when) {
            Ok(found) => found,
            Err(why) => {
                lost.push(why);
                continue;
            }
        };
        if schedule.jitter_ms > 0 {
            lost.push(format!("the jitter of the schedule `{expression}`"));
        }
        if schedule.overlap == Overlap::Queue {
            let text = "a run that is due while the one before runs is left out, not queued";
            lost.push(format!("the schedule `{expression}`: {text}"));
        }
        if schedule.missed == Missed::RunAll {
            lost.push(format!("the schedule `{expression}`: of missed runs, one is made up for"));
        }
        let call = &schedule.call;
        let mut args = vec![
            "call".to_owned(),
            format!("http://{name}{}", call.path),
            call.method.clone(),
            call.body.clone(),
        ];
        args.extend(call.headers.iter().map(|(name, value)| format!("{name}: {value}")));
        let short: String = name.chars().take(CRON_NAME_MAX).collect();
        let mut cron = json!({
            "schedule": expression,
            "concurrencyPolicy": if schedule.overlap == Overlap::Allow { "Allow" } else { "Forbid" },
            "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 3,
            "jobTemplate": {"spec": {
                "backoffLimit": 0,
                "template": {
                    "metadata": {"labels": {"app.kubernetes.io/component": "schedule"}},
                    "spec": {
                        "restartPolicy": "Never",
                        "automountServiceAccountToken": false,
                        "securityContext": pod_security(),
                        "containers": [{
                            "name": "call", "image": image(spec, options),
                            "command": ["python3", "/server/standalone/serve.py"],
                            "args": args.iter().map(|arg| escaped(arg)).collect::<Vec<_>>(),
                            "resources": {"requests": {"cpu": "10m", "memory": "32Mi"},
                                "limits": {"memory": "64Mi"}},
                            "securityContext": security(),
                        }],
                    },
                },
            }},
        });
        if let Some(zone) = zone {
            cron["timeZone"] = if zone == "UTC" { "Etc/UTC" } else { zone }.into();
        }
        if schedule.missed == Missed::Skip {
            cron["startingDeadlineSeconds"] = LATE_SECONDS.into();
        }
        all.push(json!({
            "apiVersion": "batch/v1", "kind": "CronJob",
            "metadata": metadata(&format!("{short}-{at}")), "spec": cron,
        }));
    }
    all
}

fn image(spec: &FunctionSpec, options: &Options) -> String {
    let registry = options.registry.as_ref().map(|text| format!("{}/", text.trim_end_matches('/')));
    format!("{}{}:{}", registry.unwrap_or_default(), spec.name.as_str(), options.tag)
}

/// Escapes a text for an argument or a variable, in which Kubernetes would replace `$(NAME)`.
fn escaped(text: &str) -> String {
    text.replace("$(", "$$(")
}

fn pod_security() -> Value {
    json!({"runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"}})
}

fn security() -> Value {
    json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]}})
}

fn pod(spec: &FunctionSpec, options: &Options, name: &str) -> Value {
    let limits = &spec.limits;
    let mib = |bytes: u64| format!("{}Mi", bytes.div_ceil(1 << 20));
    let memory = mib(limits.memory_bytes + SERVER_BYTES);
    let cpu = format!("{}m", limits.cpu_millis.unwrap_or(CPU_MILLIS));
    let mut resources = json!({
        "requests": {"memory": memory, "cpu": cpu}, "limits": {"memory": memory},
    });
    if limits.cpu_millis.is_some() {
        resources["limits"]["cpu"] = cpu.into();
    }
    let probe = |period: u64, failures: u64| json!({"tcpSocket": {"port": PORT}, "periodSeconds": period, "failureThreshold": failures});
    let mut mounts = vec![json!({"name": "tmp", "mountPath": "/tmp"})];
    let mut volumes =
        vec![json!({"name": "tmp", "emptyDir": {"sizeLimit": mib(limits.disk_bytes)}})];
    if !spec.secrets.is_empty() {
        mounts.push(json!({"name": "secrets", "mountPath": "/secrets", "readOnly": true}));
        let items: Vec<Value> =
            spec.secrets.iter().map(|key| json!({"key": key, "path": key})).collect();
        volumes.push(json!({"name": "secrets", "secret": {"secretName": SECRET, "items": items}}));
    }
    let mut container = json!({
        "name": "function", "image": image(spec, options),
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": resources,
        // The container opens its port once the function is ready.
        "startupProbe": probe(1, limits.init_timeout_ms.div_ceil(1_000) + 5),
        "readinessProbe": probe(5, 1),
        "livenessProbe": probe(10, 3),
        "securityContext": security(),
        "volumeMounts": mounts,
    });
    if !spec.env.is_empty() {
        container["envFrom"] = json!([{"configMapRef": {"name": format!("{name}-env")}}]);
    }
    if !spec.secret_env.is_empty() {
        let variable = |(variable, key): (&String, &String)| json!({"name": variable, "valueFrom": {"secretKeyRef": {"name": SECRET, "key": key}}});
        container["env"] = spec.secret_env.iter().map(variable).collect();
    }
    json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": limits.timeout_ms.div_ceil(1_000) + LEAVING_SECONDS,
        "containers": [container],
        "volumes": volumes,
    })
}

/// Returns the rules for what the function may reach. Without permissions the function reaches nothing,
/// as on a node.
fn egress(spec: &FunctionSpec) -> Value {
    if spec.egress.is_empty() {
        return json!([]);
    }
    let dns = json!({"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]});
    if spec.egress.iter().any(|to| to.host == ANY_HOST && to.port == 0) {
        return json!([{}]);
    }
    let protocol = |to: &Egress| if to.transport.is_tcp() { "TCP" } else { "UDP" };
    let ports: BTreeSet<_> = spec.egress.iter().map(|to| (to.port, protocol(to))).collect();
    let ports: Vec<Value> =
        ports.iter().map(|(port, protocol)| json!({"port": port, "protocol": protocol})).collect();
    json!([dns, {"ports": ports}])
}
