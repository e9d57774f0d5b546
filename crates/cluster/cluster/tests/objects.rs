//! The command, the Helm chart and the Kustomize base must give the same objects.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser as _;
use serde::Deserialize as _;
use serde_json::Value;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy")
}

/// Objects by kind, namespace and name.
fn objects(yaml: &str) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for document in yaml_serde::Deserializer::from_str(yaml) {
        let object = Value::deserialize(document).unwrap();
        if object.is_null() {
            continue;
        }
        let of = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let name =
            format!("{} {}/{}", of("/kind"), of("/metadata/namespace"), of("/metadata/name"));
        assert!(all.insert(name.clone(), object).is_none(), "{name} is there twice");
    }
    all
}

/// The command line of `mote-cluster`, as far as it is about this crate.
#[derive(clap::Parser)]
struct Arguments {
    #[command(subcommand)]
    command: mote_cluster::install::Command,
}

/// Returns the output of `install --dry-run`.
fn printed(values: &[&str]) -> String {
    let mut arguments = vec!["mote-cluster", "install", "--dry-run"];
    for value in values {
        arguments.extend(["--set", value]);
    }
    let mut text = Vec::new();
    mote_cluster::install::run(&Arguments::parse_from(arguments).command, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn the_files_below_deploy_are_up_to_date() {
    let chart =
        mote_cluster::install::chart().into_iter().map(|(path, text)| ("helm/mote", path, text));
    let base = mote_cluster::install::kustomization()
        .into_iter()
        .map(|(path, text)| ("kustomize", path, text));
    for (folder, path, text) in chart.chain(base) {
        let file = deploy().join(folder).join(path);
        if std::env::var_os("MOTE_BLESS").is_some() {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, &text).unwrap();
        }
        let held = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(held == text, "{} is old: run this test with MOTE_BLESS=1", file.display());
    }
}

#[test]
fn kustomize_has_the_objects_of_the_command() {
    let base = mote_cluster::install::kustomization();
    let files = base.iter().filter(|(path, _)| *path != "kustomization.yaml");
    let joined: Vec<_> = files.map(|(_, text)| text.as_str()).collect();
    assert_eq!(objects(&joined.join("\n---\n")), objects(&printed(&[])));
}

/// Renders the chart. Its templates use only values and conditions, so a few lines replace Helm
/// here. `make test-cluster` renders the chart with Helm itself.
fn helm(values: &[(&str, &str)]) -> String {
    let chart: BTreeMap<_, _> = mote_cluster::install::chart().into_iter().collect();
    let held: BTreeMap<String, Value> = yaml_serde::from_str(&chart["values.yaml"]).unwrap();
    let of = |name: &str| {
        let given = values.iter().find(|(key, _)| *key == name).map(|(_, text)| (*text).to_owned());
        given.unwrap_or_else(|| match &held[name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        })
    };
    let mut all = chart["crds/crds.yaml"].clone() + "\n---\n";
    let mut out = false;
    for line in chart["templates/objects.yaml"].lines() {
        if let Some(condition) = line.strip_prefix("{{- if ") {
            let condition = condition.strip_suffix(" }}").unwrap();
            let (name, wanted) = match condition.strip_prefix("not ") {
                Some(name) => (name, false),
                None => (condition, true),
            };
            let value = of(name.strip_prefix(".Values.").unwrap());
            out = matches!(&value[..], "" | "false") == wanted;
        } else if line == "{{- end }}" {
            out = false;
        } else if !out {
            let mut rest = line;
            while let Some((before, after)) = rest.split_once("{{ .Values.") {
                let (name, after) = after.split_once(" }}").unwrap();
                all += before;
                // JSON is valid YAML, so a map needs no conversion.
                all += &of(name.strip_suffix(" | toJson").unwrap_or(name));
                rest = after;
            }
            all += rest;
            all.push('\n');
        }
    }
    all
}

#[test]
fn the_chart_has_the_objects_of_the_command() {
    assert_eq!(objects(&helm(&[])), objects(&printed(&[])));
    let other = [
        ("namespace", "edge"),
        ("functionsNamespace", "shop"),
        ("controllerVolume", "true"),
        ("networkPolicy", "false"),
        ("podMonitor", "true"),
        ("serviceMonitor", "true"),
        ("spillOver", "false"),
        ("nodeSelector", r#"{"mote.dev/cell":"yes"}"#),
        ("nats", "nats://10.0.0.5:4222,nats://10.0.0.6:4222"),
        ("natsSecret", "nats-login"),
        ("natsReplicas", "3"),
    ];
    let set: Vec<_> = other.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let set: Vec<_> = set.iter().map(String::as_str).collect();
    let made = objects(&printed(&set));
    assert_eq!(objects(&helm(&other)), made);
    assert!(made.contains_key("PersistentVolumeClaim edge/mote-controller"));
    assert!(made.contains_key("Role shop/mote-agent-functions"));
    let cells = &made["DaemonSet edge/mote-cell"]["spec"]["template"]["spec"];
    assert_eq!(cells["nodeSelector"]["mote.dev/cell"], "yes");
    assert!(!made.contains_key("NetworkPolicy edge/mote-cell"));
}

#[test]
fn values_that_cannot_be_used_are_refused_with_what_is_expected() {
    for (given, wanted) in [
        ("networkPolicy=no", "true or false"),
        ("spillOver=False", "true or false"),
        ("memoryLimit=lots", "an amount of memory"),
        ("memoryRequest=1GB", "an amount of memory"),
        ("memoryShare=150%", "a share from 1% to 100%"),
        ("cpuRequest=fast", "an amount of processors"),
        ("serviceType=Nodeport", "ClusterIP, NodePort, LoadBalancer"),
        ("pullPolicy=always", "IfNotPresent, Always, Never"),
        ("natsReplicas=0", "a number from 1 to 5"),
        ("natsReplicas=9", "a number from 1 to 5"),
        ("controllerReplicas=-1", "a number from 1 to 9"),
        ("nodeSelector=disk=ssd", "labels in braces"),
        ("tolerations=x", "a list in brackets"),
        ("affinity=x", "a map in braces"),
        ("closedNetworks=foo", "private, or networks"),
        ("closedNetworks=private,10.0.0.0/33", "private, or networks"),
        ("nats=nats", "nats://"),
        ("image=", "the name of an image"),
        ("image=a b", "the name of an image"),
        ("namespace=Foo_Bar", "lower-case letters"),
        ("functionsNamespace=", "lower-case letters"),
        ("memorylimit=1Gi", "there is no value memorylimit"),
    ] {
        let (name, text) = given.split_once('=').unwrap();
        assert!(!helm_accepts(name, text), "the chart accepts {given}");
        let error = mote_cluster::install::render(&[(name.to_owned(), text.to_owned())]);
        let error = error.expect_err(given).to_string();
        assert!(error.contains(wanted), "{given}: {error}");
        assert!(error.contains(name), "{given}: {error}");
    }
    for value in mote_cluster::install::VALUES {
        assert!(value.kind.accepts(value.default), "{}", value.name);
        assert!(helm_accepts(value.name, value.default), "{}", value.name);
    }
}

/// Whether the schema of the chart accepts a value that is read as Helm reads `--set`.
fn helm_accepts(name: &str, text: &str) -> bool {
    let chart: BTreeMap<_, _> = mote_cluster::install::chart().into_iter().collect();
    let schema = serde_json::from_str(&chart["values.schema.json"]).unwrap();
    let mut values: Value = yaml_serde::from_str(&chart["values.yaml"]).unwrap();
    values[name] = match text {
        "true" => true.into(),
        "false" => false.into(),
        map if map.starts_with(['{', '[']) => yaml_serde::from_str(map).unwrap(),
        text => text.parse::<i64>().map_or_else(|_| text.into(), Value::from),
    };
    jsonschema::is_valid(&schema, &values)
}

#[test]
fn cells_keep_their_work_in_nats_if_its_address_is_given() {
    let variables = |arguments: &[&str]| -> BTreeMap<String, Value> {
        let all = ["mote-cluster", "install", "--dry-run"];
        let arguments = Arguments::parse_from(all.iter().chain(arguments));
        let mut text = Vec::new();
        mote_cluster::install::run(&arguments.command, &mut text).unwrap();
        let made = objects(&String::from_utf8(text).unwrap());
        let pod = &made["DaemonSet mote-system/mote-cell"]["spec"]["template"]["spec"];
        let variables = pod["containers"][0]["env"].as_array().unwrap().clone();
        variables.into_iter().map(|one| (one["name"].as_str().unwrap().to_owned(), one)).collect()
    };
    let with = variables(&["--nats", "nats://nats:4222"]);
    assert_eq!(with["MOTE_NATS"]["value"], "nats://nats:4222");
    // Each cell has its own journal, and all cells share the journal of schedules.
    let name = &with["MOTE_JOURNAL_NAME"]["valueFrom"]["fieldRef"]["fieldPath"];
    assert_eq!(name, "metadata.name");
    assert_eq!(with["MOTE_SCHEDULE_JOURNAL"]["value"], "schedules");
    assert!(!with.contains_key("MOTE_NATS_CREDENTIALS"));
    assert_eq!(with, variables(&["--set", "nats=nats://nats:4222"]));
    assert!(!variables(&[]).keys().any(|name| name.contains("NATS") || name.contains("JOURNAL")));
}

#[test]
fn only_the_agent_and_the_controller_have_a_token_and_no_pod_shares_anything_with_its_machine() {
    let all = objects(&printed(&[]));
    let mut mounts_token = Vec::new();
    for object in all.values() {
        let Some(pod) = object.pointer("/spec/template/spec") else { continue };
        assert_eq!(pod["automountServiceAccountToken"], false);
        for key in ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"] {
            assert!(pod.get(key).is_none(), "{key}");
        }
        for volume in pod["volumes"].as_array().unwrap() {
            assert!(volume.get("hostPath").is_none(), "{volume}");
        }
        for container in pod["containers"].as_array().unwrap() {
            assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
            assert_eq!(container["securityContext"]["capabilities"]["drop"][0], "ALL");
            let mounts = container["volumeMounts"].as_array().unwrap();
            if mounts.iter().any(|mount| mount["name"] == "token") {
                mounts_token.push(container["name"].as_str().unwrap().to_owned());
            }
        }
    }
    mounts_token.sort();
    assert_eq!(mounts_token, ["agent", "controller"]);
}

/// The PodMonitor, the adapter's rule and the HPA of `deploy/autoscaling` must match each other and
/// the objects of the command.
#[test]
fn the_example_with_an_hpa_has_the_metric_that_it_follows() {
    let read = |path: &str| {
        let path = deploy().join("autoscaling").join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let made = objects(&printed(&["podMonitor=true"]));
    let monitor = objects(&read("metrics/pod-monitor.yaml"));
    let name = "PodMonitor mote-system/mote-cell";
    assert_eq!(monitor.get(name), made.get(name));

    let hpa = objects(&read("hpa.yaml"));
    let hpa = &hpa["HorizontalPodAutoscaler mote-system/mote-cell"]["spec"];
    let adapter: Value = yaml_serde::from_str(&read("metrics/adapter-values.yaml")).unwrap();
    let rule = &adapter["rules"]["custom"][0];
    assert_eq!(rule["name"]["as"], hpa["metrics"][0]["pods"]["metric"]["name"]);
    let series = rule["seriesQuery"].as_str().unwrap();
    assert!(series.starts_with("mote_request_duration_seconds_sum{"), "{series}");

    let cell = &made["DaemonSet mote-system/mote-cell"];
    let policy = objects(&read("metrics/network-policy.yaml"));
    let policy = &policy["NetworkPolicy mote-system/mote-prometheus"]["spec"];
    assert_eq!(policy["podSelector"], cell["spec"]["selector"]);
    let agent = &cell["spec"]["template"]["spec"]["containers"][1]["ports"][0];
    assert_eq!(policy["ingress"][0]["ports"][0]["port"], agent["containerPort"]);
}

#[test]
fn an_unknown_value_is_refused() {
    let error = mote_cluster::install::render(&[("memory".to_owned(), "1Gi".to_owned())]);
    assert!(
        error.unwrap_err().to_string().starts_with("there is no value memory; known: namespace")
    );
}

/// Runs the program that an environment variable names, and returns its output.
fn of_program(variable: &str, arguments: &[&str], folder: &str) -> Option<String> {
    let Some(program) = std::env::var_os(variable) else {
        println!("SKIPPED: {variable} names no program; make test-cluster sets it");
        return None;
    };
    let output = Command::new(program).args(arguments).arg(deploy().join(folder)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn helm_and_kustomize_themselves_give_the_objects_of_the_command() {
    let chart = ["template", "mote", "--include-crds", "--kube-version=1.36.3"];
    if let Some(made) = of_program("HELM", &chart, "helm/mote") {
        assert_eq!(objects(&made), objects(&printed(&[])));
    }
    let other = ["--set", "namespace=edge,controllerVolume=true,podMonitor=true"];
    if let Some(made) = of_program("HELM", &[&chart[..], &other].concat(), "helm/mote") {
        let printed = printed(&["namespace=edge", "controllerVolume=true", "podMonitor=true"]);
        assert_eq!(objects(&made), objects(&printed));
    }
    if let Some(made) = of_program("KUBECTL", &["kustomize"], "kustomize") {
        assert_eq!(objects(&made), objects(&printed(&[])));
    }
}
