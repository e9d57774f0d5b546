//! `install` and `uninstall`. They do what a user could do by hand with kubectl.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command as Process, Stdio};

use crate::install::{CRDS, render};

/// What is asked for.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Installs mote in a cluster, or changes an installation.
    Install(Install),
    /// Removes mote from a cluster.
    Uninstall(Uninstall),
}

/// How the cluster is reached.
#[derive(Debug, Clone, clap::Args)]
pub struct Cluster {
    /// The program that applies the objects.
    #[arg(long, env = "KUBECTL", default_value = "kubectl", value_name = "FILE")]
    kubectl: PathBuf,
    /// The kubeconfig; kubectl's own rules choose one if it is not given.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// A value, for example memoryLimit=512Mi; deploy/helm/mote/values.yaml lists all.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = pair)]
    values: Vec<(String, String)>,
}

/// Arguments of `install`.
#[derive(Debug, Clone, clap::Args)]
pub struct Install {
    #[command(flatten)]
    cluster: Cluster,
    /// NATS servers that keep what must outlive a machine, as --set nats=URLS
    #[arg(long, value_name = "URLS")]
    nats: Option<String>,
    /// Prints the objects and changes nothing.
    #[arg(long)]
    dry_run: bool,
    /// Does not wait until every cell and the controller are ready.
    #[arg(long)]
    no_wait: bool,
}

/// Arguments of `uninstall`.
#[derive(Debug, Clone, clap::Args)]
pub struct Uninstall {
    #[command(flatten)]
    cluster: Cluster,
    /// Removes the functions of the cluster too, with all their revisions and their secrets.
    #[arg(long)]
    functions: bool,
}

/// Why a command failed.
pub type Failure = Box<dyn std::error::Error>;

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is expected")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Runs a command. `out` receives what a dry run prints.
pub fn run(command: &Command, out: &mut dyn std::io::Write) -> Result<(), Failure> {
    match command {
        Command::Install(install) if install.dry_run => {
            let objects = render(&install.values())?;
            Ok(write!(out, "{}---\n{objects}", CRDS.trim_end_matches("---\n"))?)
        }
        Command::Install(install) => install.apply(),
        Command::Uninstall(uninstall) => uninstall.remove(),
    }
}

impl Install {
    fn values(&self) -> Vec<(String, String)> {
        let nats = self.nats.iter().map(|urls| ("nats".to_owned(), urls.clone()));
        self.cluster.values.iter().cloned().chain(nats).collect()
    }

    fn apply(&self) -> Result<(), Failure> {
        let objects = render(&self.values())?;
        let apply =
            ["apply", "--server-side", "--force-conflicts", "--field-manager=mote", "-f", "-"];
        self.cluster.kubectl(&apply, CRDS)?;
        let wait = ["wait", "--for=condition=Established", "--timeout=60s", "crd"];
        self.cluster.kubectl(&[&wait[..], &DEFINITIONS].concat(), "")?;
        self.cluster.kubectl(&apply, &objects)?;
        if self.no_wait {
            return Ok(());
        }
        let namespace = self.cluster.value("namespace");
        for what in ["deployment/mote-controller", "daemonset/mote-cell"] {
            let status = ["rollout", "status", "--timeout=300s", "-n", &namespace, what];
            let why = format!(
                "{what} did not become ready: kubectl describe pods -n {namespace} says why (a wrong \
                 image, too little memory on the machines); then install again with other values"
            );
            self.cluster.kubectl(&status, "").map_err(|_| why)?;
        }
        Ok(())
    }
}

/// The custom resources, in the order in which they are removed.
const DEFINITIONS: [&str; 3] =
    ["functions.mote.dev", "functionrevisions.mote.dev", "cells.mote.dev"];

impl Uninstall {
    fn remove(&self) -> Result<(), Failure> {
        let functions_namespace = self.cluster.value("functionsNamespace");
        let mut held = self.cluster.names("functions.mote.dev")?;
        let secret = ["get", "secret", "mote-secrets", "--ignore-not-found", "-o", "name", "-n"];
        held.extend(self.cluster.ask(&[&secret[..], &[&functions_namespace]].concat())?);
        if let (Some(first), false) = (held.first(), self.functions) {
            return Err(format!(
                "the cluster has functions or their secrets ({first}, {} in all): with --functions \
                 they are removed too",
                held.len()
            )
            .into());
        }
        let objects = render(&self.cluster.values)?;
        let delete = ["delete", "--ignore-not-found", "--timeout=120s"];
        // The resources are removed while the controller still runs.
        if self.cluster.has_definitions()? {
            for kind in DEFINITIONS {
                let all = ["--all", "--all-namespaces", kind];
                self.cluster.kubectl(&[&delete[..], &all].concat(), "")?;
            }
        }
        // The definitions are removed without waiting for the pods. A pod on a machine that does
        // not answer would delay everything.
        self.cluster.kubectl(&[&delete[..], &["--wait=false", "-f", "-"]].concat(), &objects)?;
        let secret = ["-n", &functions_namespace, "secret", "mote-secrets"];
        self.cluster.kubectl(&[&delete[..], &secret].concat(), "")?;
        self.cluster.kubectl(&[&delete[..], &["crd"], &DEFINITIONS[..]].concat(), "")?;
        self.wait_for_pods()
    }

    /// Waits until the namespace is gone. If it does not go, names what holds it.
    fn wait_for_pods(&self) -> Result<(), Failure> {
        let namespace = self.cluster.value("namespace");
        let gone = format!("namespace/{namespace}");
        let wait = ["wait", "--for=delete", "--timeout=90s", &gone];
        if self.cluster.kubectl(&wait, "").is_ok() {
            return Ok(());
        }
        let columns = "custom-columns=POD:.metadata.name,MACHINE:.spec.nodeName";
        let get =
            ["get", "pods", "-n", &namespace, "--no-headers", "--ignore-not-found", "-o", columns];
        let pods = self.cluster.ask(&get)?;
        Err(format!(
            "everything else is removed, but the namespace {namespace} still has pods, whose machines \
             probably do not answer: {}. They go when the machine is back, or with: kubectl delete \
             pods -n {namespace} --all --force",
            pods.iter().map(|pod| pod.split_whitespace().collect::<Vec<_>>().join(" on ")).collect::<Vec<_>>().join(", ")
        )
        .into())
    }
}

impl Cluster {
    fn value(&self, name: &str) -> String {
        let given = self.values.iter().rev().find(|(key, _)| key == name);
        given.map_or_else(
            || crate::install::default(name).unwrap_or_default().to_owned(),
            |(_, v)| v.clone(),
        )
    }

    fn has_definitions(&self) -> Result<bool, Failure> {
        let found =
            self.ask(&["get", "crd", "--ignore-not-found", "-o", "name", DEFINITIONS[0]])?;
        Ok(!found.is_empty())
    }

    /// Names of all objects of a kind.
    fn names(&self, kind: &str) -> Result<Vec<String>, Failure> {
        if !self.has_definitions()? {
            return Ok(Vec::new());
        }
        self.ask(&["get", kind, "--all-namespaces", "-o", "name"])
    }

    fn ask(&self, arguments: &[&str]) -> Result<Vec<String>, Failure> {
        let output = self.process(arguments).stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| self.cannot_run(&error))?;
        if !output.status.success() {
            return Err(failed(arguments));
        }
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    }

    fn kubectl(&self, arguments: &[&str], input: &str) -> Result<(), Failure> {
        let mut child = self
            .process(arguments)
            .stdin(Stdio::piped())
            .spawn()
            .map_err(|error| self.cannot_run(&error))?;
        if let Some(mut stdin) = child.stdin.take() {
            // If kubectl does not read its input, it reports the reason itself.
            let _ = stdin.write_all(input.as_bytes());
        }
        if child.wait()?.success() { Ok(()) } else { Err(failed(arguments)) }
    }

    fn process(&self, arguments: &[&str]) -> Process {
        let mut process = Process::new(&self.kubectl);
        if let Some(kubeconfig) = &self.kubeconfig {
            process.arg("--kubeconfig").arg(kubeconfig);
        }
        process.args(arguments);
        process
    }

    fn cannot_run(&self, error: &std::io::Error) -> Failure {
        format!(
            "cannot run {}: {error}; install it, or name it with --kubectl",
            self.kubectl.display()
        )
        .into()
    }
}

fn failed(arguments: &[&str]) -> Failure {
    format!("kubectl {} failed", arguments.join(" ")).into()
}
