//! Keeps pods waiting for the functions whose instances are pods.
//!
//! For each kind of pod that a serving or starting revision needs, a number of pods waits. A pod that
//! a cell has reported or whose port has closed was claimed, and another one takes its place; the API
//! server knows all of this, so a new controller goes on where the last one was. What the pods may
//! reach follows the manifests.
//!
//! A claim does not wait for its report, so a pod that cells know is not removed at once. It is
//! withdrawn first: cells are no longer told of it, and claims from before are reported meanwhile.
//! Every change and removal holds only for the version of the object that the decision was about.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use mote_core::destination::is_local;
use mote_core::spec::{ANY_HOST, PodKind};
use serde_json::json;
use tokio::sync::Notify;

use super::Controller;
use super::pod_objects::{self, Opening, Template};
use crate::keys;
use crate::mirror::{Mirror, follow};
use crate::pods::{
    CLAIMED, HAS_CELL, IN_VAIN, LABEL_FUNCTION, NEEDS, PodNeeds, STARTING, STATE, WAITING,
    WITHDRAWN, has, is_ready, kind, state,
};

/// The options of pods.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct PodOptions {
    /// The image of pods that wait for functions; it has mote-pod and the interpreters.
    #[arg(long, env = "MOTE_POD_IMAGE", default_value = concat!("mote.local/cell:", env!("CARGO_PKG_VERSION")))]
    pub(crate) pod_image: String,
    /// When machines pull it.
    #[arg(long, env = "MOTE_POD_PULL_POLICY", default_value = "IfNotPresent")]
    pub(crate) pod_pull_policy: String,
    /// Pods of each kind that wait.
    #[arg(long, env = "MOTE_WAITING_PODS", default_value_t = 2)]
    pub(crate) waiting_pods: usize,
    /// Labels that the machines of these pods must have, as KEY=VALUE, separated by commas.
    #[arg(long, env = "MOTE_POD_NODES", default_value = "", value_parser = pairs)]
    pub(crate) pod_nodes: Pairs,
}

/// Labels.
pub(crate) type Pairs = std::sync::Arc<[(String, String)]>;

fn pairs(text: &str) -> Result<Pairs, String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let pair =
        |part: &str| part.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    parts
        .map(pair)
        .collect::<Option<_>>()
        .ok_or_else(|| "KEY=VALUE, separated by commas".to_owned())
}

/// Longest wait for the addresses of a host: a silent server of names must not hold up the pods.
const LOOKUP: std::time::Duration = std::time::Duration::from_secs(2);

/// How often names are looked up again, and everything is compared.
const AGAIN: Duration = Duration::from_secs(20);
/// A pod that is not ready after this time is replaced: an image that cannot be pulled, for example.
const START_SECONDS: i64 = 180;
/// How long a withdrawn pod stays, in which a claim from before is reported. Agents ask their cells
/// every second.
const WITHDRAWAL: Duration = Duration::from_secs(5);
/// Pods of all kinds that exist at once, so that a mistake does not fill a cluster.
const PODS_MAX: usize = 500;

struct Pools {
    controller: Arc<Controller>,
    template: Template,
    waiting: usize,
    pods_api: Api<Pod>,
    secrets_api: Api<Secret>,
    policies_api: Api<NetworkPolicy>,
    pods: Mirror<Pod>,
    policies: Mirror<NetworkPolicy>,
    /// Since when this controller has seen that a pod is withdrawn, by uid.
    withdrawn: BTreeMap<String, Instant>,
    /// What was said of the kinds whose pods are refused.
    refused: BTreeMap<PodKind, String>,
}

/// Keeps the pools for the rest of the process. Does nothing if the installation has none.
pub(super) async fn keep(controller: Arc<Controller>, client: kube::Client) {
    let options = &controller.options;
    let Some(namespace) = options.place.pods_namespace.clone() else { return };
    let cells = match mote_pods::claim_key(controller.key.as_bytes()) {
        Ok(key) => key.public().to_string(),
        Err(error) => return tracing::error!("there are no pods for functions: {error}"),
    };
    let PodOptions { pod_image, pod_pull_policy, waiting_pods, pod_nodes } = options.pods.clone();
    let template = Template {
        image: pod_image,
        pull_policy: pod_pull_policy,
        cells,
        node_selector: pod_nodes,
    };
    let changed = Arc::new(Notify::new());
    let ours = || watcher::Config::default().labels("app.kubernetes.io/part-of=mote");
    let pods_api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let pods = follow("pods of functions", watcher(pods_api.clone(), ours()), {
        let changed = changed.clone();
        move |_: Option<&Pod>, _: Option<&Pod>| changed.notify_one()
    });
    let policies_api: Api<NetworkPolicy> = Api::namespaced(client.clone(), &namespace);
    let policies = follow("network policies", watcher(policies_api.clone(), ours()), |_, _| {});
    let mut pools = Pools {
        template,
        waiting: waiting_pods,
        pods_api,
        secrets_api: Api::namespaced(client, &namespace),
        policies_api,
        pods,
        policies,
        controller,
        withdrawn: BTreeMap::new(),
        refused: BTreeMap::new(),
    };
    pools.pods.synced().await;
    pools.policies.synced().await;
    let mut changes = pools.controller.changes.subscribe();
    loop {
        changes.mark_unchanged();
        if let Err(error) = pools.look().await {
            tracing::warn!("the pods of functions: {error}");
        }
        tokio::select! {
            () = changed.notified() => {}
            _ = changes.changed() => {}
            () = tokio::time::sleep(pools.pause()) => {}
        }
    }
}

impl Pools {
    /// Until when nothing has to be done unless something changes.
    fn pause(&self) -> Duration {
        let first = self.withdrawn.values().min();
        let rest = first.map(|since| WITHDRAWAL.saturating_sub(since.elapsed()));
        // One that cannot be removed must not make this a busy loop.
        rest.map_or(AGAIN, |rest| rest.clamp(Duration::from_secs(1), AGAIN))
    }

    async fn look(&mut self) -> Result<(), kube::Error> {
        let needs = self.needs();
        let mut refused = Refused::new();
        // The network is closed or open before the pods exist.
        self.follow_policies(&needs, &mut refused).await?;
        let mut waiting: BTreeMap<PodKind, usize> = BTreeMap::new();
        let lost = self.lost_machines();
        let pods = self.pods.all();
        let is_withdrawn = |pod: &&Arc<Pod>| {
            let is_gone = pod.metadata.deletion_timestamp.is_some();
            state(pod) == WITHDRAWN && !has(pod, HAS_CELL) && !is_gone
        };
        let uids: BTreeSet<String> =
            pods.iter().filter(is_withdrawn).filter_map(|pod| pod.uid()).collect();
        self.withdrawn.retain(|uid, _| uids.contains(uid));
        for pod in &pods {
            let next = next(pod, &lost);
            let kind = kind(pod).filter(|kind| needs.contains_key(kind));
            match (next, kind) {
                (Next::Gone, _) => {}
                (Next::Remove, _) => self.remove(pod).await?,
                (Next::Is(CLAIMED), _) => self.write_state(pod, CLAIMED).await?,
                (Next::Is(WITHDRAWN), _) => self.withdraw(pod).await?,
                // It waits for nobody, or for those of an earlier version.
                (Next::Is(_), None) => self.withdraw(pod).await?,
                (Next::Is(_), Some(_)) if !self.is_current(pod) => self.withdraw(pod).await?,
                (Next::Is(state), Some(kind)) => {
                    let count = waiting.entry(kind).or_default();
                    *count += 1;
                    if *count > self.waiting {
                        self.withdraw(pod).await?;
                    } else {
                        self.write_state(pod, state).await?;
                    }
                }
            }
        }
        let mut room = PODS_MAX.saturating_sub(pods.len());
        'kinds: for (kind, needed) in &needs {
            let there = waiting.get(kind).copied().unwrap_or(0);
            // Without its policy, a pod would not reach what its function needs.
            let missing = if refused.contains_key(kind) { 0 } else { self.waiting };
            for _ in there..missing {
                if room == 0 {
                    tracing::warn!("no further pods: there are {PODS_MAX}");
                    break 'kinds;
                }
                room -= 1;
                if let Err(error) = self.make(&needed.pod, &lost).await {
                    // The others of this kind would be refused as well, but not those of other kinds.
                    refused.insert(kind.clone(), refusal(error)?);
                    break;
                }
            }
        }
        self.tell_refused(&needs, refused);
        Ok(())
    }

    /// Logs each new refusal once, and has it written where the owners of functions look.
    fn tell_refused(&mut self, needs: &BTreeMap<PodKind, Needed>, refused: Refused) {
        for (kind, text) in &refused {
            if self.refused.get(kind) != Some(text) {
                tracing::warn!("no pods {} can be made: {text}", kind.shape);
            }
        }
        let mut by_function = BTreeMap::new();
        for (kind, text) in &refused {
            let functions = needs.get(kind).into_iter().flat_map(|needed| &needed.functions);
            by_function.extend(functions.map(|name| (name.clone(), text.clone())));
        }
        self.refused = refused;
        let before = {
            let mut told = self.controller.pods_refused.lock();
            std::mem::replace(&mut *told, by_function.clone())
        };
        let names = before.keys().chain(by_function.keys());
        names
            .filter(|name| before.get(*name) != by_function.get(*name))
            .for_each(|name| self.controller.work.add(name));
    }

    /// What the revisions need that serve or are to serve, by kind of pod.
    fn needs(&self) -> BTreeMap<PodKind, Needed> {
        let mut all: BTreeMap<PodKind, Needed> = BTreeMap::new();
        for revision in self.controller.revisions.all() {
            let Some(needs) = revision.annotations().get(NEEDS) else { continue };
            let Ok(needs) = serde_json::from_str::<PodNeeds>(needs) else { continue };
            let name = revision.labels().get(LABEL_FUNCTION).cloned().unwrap_or_default();
            let Some(function) = self.controller.functions.get(&name) else { continue };
            let number = revision.labels().get(crate::resources::LABEL_NUMBER);
            let Some(number) = number.and_then(|number| number.parse::<u64>().ok()) else {
                continue;
            };
            let status = function.status.clone().unwrap_or_default();
            let serves = status.traffic.is_some_and(|traffic| traffic.split.reaches(number));
            // A revision that was just made is above the latest that the status names.
            if !serves && status.latest.is_some_and(|latest| number < latest) {
                continue;
            }
            let held = all
                .entry(needs.kind())
                .or_insert_with(|| Needed { pod: needs.clone(), functions: BTreeSet::new() });
            held.functions.insert(name);
            // Two revisions of a function share the rules of both while both serve.
            let also = [(&mut held.pod.net, needs.net), (&mut held.pod.net_udp, needs.net_udp)];
            for (held, more) in also {
                held.extend(more);
                held.sort();
                held.dedup();
            }
        }
        all
    }

    /// The machines of cells that do not answer.
    fn lost_machines(&self) -> BTreeSet<String> {
        let lost = self.controller.lost.lock().clone();
        let cells = lost.iter().filter_map(|name| self.controller.cells.get(name));
        cells.filter_map(|cell| cell.spec.node.clone()).collect()
    }

    /// Whether a pod is what this controller would make now.
    fn is_current(&self, pod: &Pod) -> bool {
        let spec = pod.spec.iter().flat_map(|spec| &spec.containers).next();
        spec.is_some_and(|container| {
            let cells = container.env.iter().flatten().find(|it| it.name == "MOTE_POD_CELLS");
            container.image.as_deref() == Some(&self.template.image)
                && cells.and_then(|it| it.value.as_deref()) == Some(&self.template.cells)
        })
    }

    async fn make(&self, needs: &PodNeeds, lost: &BTreeSet<String>) -> Result<(), kube::Error> {
        let random = keys::random();
        let secret = keys::random();
        let key = mote_pods::pod_key(secret.as_bytes());
        let key = key.map_err(|error| kube::Error::Service(error.into()))?.public().to_string();
        let name = format!("{}-{}", needs.runtime, &random[..10]);
        let pod = pod_objects::pod(&self.template, needs, &name, &key, lost);
        let made = self.pods_api.create(&PostParams::default(), &pod).await?;
        // The kubelet waits for it. It belongs to the pod, so it cannot exist before.
        let secret = pod_objects::secret(&made, &secret);
        if let Err(error) = self.secrets_api.create(&PostParams::default(), &secret).await {
            // The scheduler may have changed it meanwhile, but no cell has been told of it.
            let params = DeleteParams::default();
            absent(self.pods_api.delete(&name, &params).await.map(drop))?;
            return Err(error);
        }
        Ok(())
    }

    /// Takes a pod out of those that cells may claim, and removes it when no claim of it was reported
    /// for a while. One that cells have never been told of is removed at once.
    async fn withdraw(&mut self, pod: &Pod) -> Result<(), kube::Error> {
        if state(pod) == STARTING {
            return self.remove(pod).await;
        }
        if state(pod) != WITHDRAWN {
            return self.write_state(pod, WITHDRAWN).await;
        }
        let Some(uid) = pod.uid() else { return Ok(()) };
        let since = *self.withdrawn.entry(uid).or_insert_with(Instant::now);
        if since.elapsed() < WITHDRAWAL {
            return Ok(());
        }
        self.remove(pod).await
    }

    /// Writes what a pod does, unless that is written already or the pod has changed meanwhile.
    async fn write_state(&self, pod: &Pod, state: &str) -> Result<(), kube::Error> {
        if crate::pods::state(pod) == state {
            return Ok(());
        }
        let name = pod.name_any();
        // Nobody needs the secret any more: the pod has read it, and its containers do not restart.
        absent(self.secrets_api.delete(&name, &DeleteParams::default()).await.map(drop))?;
        // The API server refuses a patch for another version.
        let version = &pod.metadata.resource_version;
        let metadata = json!({"resourceVersion": version, "labels": {STATE: state}});
        let patch = Patch::Merge(json!({"metadata": metadata}));
        absent(self.pods_api.patch(&name, &PatchParams::default(), &patch).await.map(drop))
    }

    async fn remove(&self, pod: &Pod) -> Result<(), kube::Error> {
        if pod.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: pod.metadata.uid.clone(),
            resource_version: pod.metadata.resource_version.clone(),
        });
        absent(self.pods_api.delete(&pod.name_any(), &params).await.map(drop))
    }

    /// Writes the policy of each function that reaches other hosts, and removes those of others.
    async fn follow_policies(
        &self,
        needs: &BTreeMap<PodKind, Needed>,
        refused: &mut Refused,
    ) -> Result<(), kube::Error> {
        let mut wanted: BTreeMap<&str, BTreeSet<Destination<'_>>> = BTreeMap::new();
        for Needed { pod, .. } in needs.values().filter(|it| !it.pod.function.is_empty()) {
            let net = wanted.entry(&pod.function).or_default();
            net.extend(pod.net.iter().map(|(host, port)| (host.as_str(), *port, "TCP")));
            net.extend(pod.net_udp.iter().map(|(host, port)| (host.as_str(), *port, "UDP")));
        }
        for (function, net) in &wanted {
            let mut resolved = Vec::new();
            for (host, port, protocol) in net.iter().copied() {
                let addresses = addresses(host).await;
                resolved.push(Opening { host: host.to_owned(), port, protocol, addresses });
            }
            let policy = pod_objects::policy(function, &resolved);
            let there = self.policies.get(&policy.name_any());
            if there.is_some_and(|there| there.spec == policy.spec) {
                continue;
            }
            let params = PatchParams::apply("mote-controller").force();
            let patch = Patch::Apply(&policy);
            if let Err(error) = self.policies_api.patch(&policy.name_any(), &params, &patch).await {
                let text = format!("its network policy: {}", refusal(error)?);
                let kinds = needs.keys().filter(|kind| kind.function == *function);
                refused.extend(kinds.map(|kind| (kind.clone(), text.clone())));
            }
        }
        for policy in self.policies.all() {
            let Some(function) = policy.labels().get(LABEL_FUNCTION) else { continue };
            // Pods of the function may still run; without the policy they reach nothing.
            if !wanted.contains_key(function.as_str()) {
                let name = policy.name_any();
                absent(self.policies_api.delete(&name, &DeleteParams::default()).await.map(drop))?;
            }
        }
        Ok(())
    }
}

/// A host, a port, and the protocol in which a function reaches them.
type Destination<'a> = (&'a str, u16, &'a str);

/// The addresses of a host now, without those that lead to the pod or its machine.
///
/// Addresses of the machine itself and of its link are left out.
async fn addresses(host: &str) -> Vec<IpAddr> {
    if host == ANY_HOST {
        return Vec::new();
    }
    if let Ok(address) = host.parse::<IpAddr>() {
        return Some(address).filter(|address| !is_local(*address)).into_iter().collect();
    }
    let lookup = tokio::time::timeout(LOOKUP, tokio::net::lookup_host((host, 0))).await;
    let mut found: Vec<IpAddr> = match lookup.unwrap_or_else(|late| Err(late.into())) {
        Ok(found) => found.map(|found| found.ip()).filter(|ip| !is_local(*ip)).collect(),
        Err(error) => {
            tracing::warn!("{host}: {error}");
            Vec::new()
        }
    };
    found.sort();
    found.dedup();
    found
}

/// What was to be removed or changed may be gone, or have changed: then it is looked at again when
/// the change arrives.
fn absent(done: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match done {
        Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => Ok(()),
        done => done,
    }
}

/// What the functions of one kind of pod need.
struct Needed {
    pod: PodNeeds,
    functions: BTreeSet<String>,
}

/// The kinds whose objects the API server refuses, each with its reason.
type Refused = BTreeMap<PodKind, String>;

/// Why the API server refuses an object. If it does not answer, or asks for patience, that is an
/// error: it would not take others either.
fn refusal(error: kube::Error) -> Result<String, kube::Error> {
    match error {
        kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429 => {
            // The name of the pod is another one each time, and is at the front of the text.
            let text = status.message.strip_prefix("pods \"");
            let text = text.and_then(|text| text.split_once("\" "));
            Ok(text.map_or(status.message.clone(), |(_, text)| format!("the pod {text}")))
        }
        error => Err(error),
    }
}

/// What becomes of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// It is being removed already.
    Gone,
    /// It is of no use.
    Remove,
    /// It has this state.
    Is(&'static str),
}

fn next(pod: &Pod, lost: &BTreeSet<String>) -> Next {
    if pod.metadata.deletion_timestamp.is_some() {
        return Next::Gone;
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return Next::Remove;
    }
    let machine = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
    let is_lost = machine.is_some_and(|machine| lost.contains(machine));
    if has(pod, HAS_CELL) {
        // The function in it may open the port again.
        return Next::Is(CLAIMED);
    }
    match (state(pod), is_ready(pod)) {
        // A claimed pod has no open port. It was not claimed after all if no cell says so: a probe of
        // the kubelet failed on a busy machine.
        (CLAIMED, true) => Next::Is(WITHDRAWN),
        (CLAIMED, false) => Next::Is(CLAIMED),
        (STARTING, _) if is_lost => Next::Remove,
        (_, _) if is_lost => Next::Is(WITHDRAWN),
        (WITHDRAWN, true) => Next::Is(WITHDRAWN),
        (WITHDRAWN, false) => Next::Is(CLAIMED),
        (WAITING, true) if has(pod, IN_VAIN) => Next::Is(WITHDRAWN),
        (WAITING, true) | (STARTING, true) => Next::Is(WAITING),
        (WAITING, false) => Next::Is(CLAIMED),
        _ if age_seconds(pod) > START_SECONDS => Next::Remove,
        _ => Next::Is(STARTING),
    }
}

fn age_seconds(pod: &Pod) -> i64 {
    let created = pod.creation_timestamp();
    created.map_or(0, |created| Timestamp::now().as_second() - created.0.as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_goes_from_starting_to_waiting_to_claimed_and_never_back() {
        let with = |state: &str, ready: bool, phase: &str, machine: &str, more: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": "p", "labels": {STATE: state}},
                "spec": {"containers": [], "nodeName": machine},
                "status": {
                    "phase": phase,
                    "conditions": [
                        {"type": "Ready", "status": if ready { "True" } else { "False" }},
                        {"type": more, "status": "True"},
                    ],
                },
            }))
            .unwrap()
        };
        let pod = |state: &str, ready, phase: &str, machine: &str| {
            with(state, ready, phase, machine, "Initialized")
        };
        let lost = BTreeSet::from(["lost".to_owned()]);
        let cases = [
            (STARTING, false, "Running", "m", Next::Is(STARTING)),
            (STARTING, true, "Running", "m", Next::Is(WAITING)),
            (WAITING, true, "Running", "m", Next::Is(WAITING)),
            (WAITING, false, "Running", "m", Next::Is(CLAIMED)),
            // No cell has reported the claim, so a probe has failed.
            (CLAIMED, true, "Running", "m", Next::Is(WITHDRAWN)),
            (WITHDRAWN, true, "Running", "m", Next::Is(WITHDRAWN)),
            (WITHDRAWN, false, "Running", "m", Next::Is(CLAIMED)),
            (CLAIMED, false, "Succeeded", "m", Next::Remove),
            (STARTING, false, "Running", "lost", Next::Remove),
            (WAITING, true, "Running", "lost", Next::Is(WITHDRAWN)),
            // Its instance may go on there.
            (CLAIMED, false, "Running", "lost", Next::Is(CLAIMED)),
        ];
        for (state, ready, phase, machine, expected) in cases {
            assert_eq!(
                next(&pod(state, ready, phase, machine), &lost),
                expected,
                "{state} {ready}"
            );
        }
        // A function that opens the port again before the kubelet has seen it closed is no waiting
        // pod, and it is not removed.
        for state in [WAITING, WITHDRAWN, CLAIMED] {
            for ready in [true, false] {
                let claimed = with(state, ready, "Running", "m", HAS_CELL);
                assert_eq!(next(&claimed, &lost), Next::Is(CLAIMED), "{state} {ready}");
            }
        }
        let claimed = with(CLAIMED, true, "Succeeded", "m", HAS_CELL);
        assert_eq!(next(&claimed, &lost), Next::Remove);
        // Cells have tried to claim it several times.
        let broken = with(WAITING, true, "Running", "m", IN_VAIN);
        assert_eq!(next(&broken, &lost), Next::Is(WITHDRAWN));
    }

    #[test]
    fn a_refusal_is_the_same_for_each_pod_and_silence_is_none() {
        let error = |code: u16, text: &str| {
            let status = json!({"status": "Failure", "message": text, "reason": "", "code": code});
            kube::Error::Api(serde_json::from_value(status).unwrap())
        };
        let text = |name: &str| {
            let text = format!("pods \"{name}\" is forbidden: exceeded quota: small");
            refusal(error(403, &text)).unwrap()
        };
        assert_eq!(text("python-0a"), "the pod is forbidden: exceeded quota: small");
        assert_eq!(text("python-0a"), text("python-0b"));
        assert!(refusal(error(503, "not now")).is_err());
        assert!(refusal(error(429, "too many requests")).is_err());
    }
}
