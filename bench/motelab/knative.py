"""Knative Serving as a target: a whole platform on the lab's Kubernetes.

`scripts/knative.sh build` makes its programs and collects the manifests of the same releases. The
lab puts each program into an image, installs everything as the manifests describe it, and deploys a
workload as a Service of Knative behind the ingress Kourier, which is Envoy with a controller.

The lab's cluster has no registry and no load balancer. `adapted` changes the manifests for it: tags
of images are not resolved to digests, and the ingress has a fixed address. CoreDNS answers for full
names of Services, so the one short name that Knative looks up is in its pod's file of hosts. Each
of Knative's programs runs once, with the limits of its manifest, because the cluster has no metrics
by which it could be scaled.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from motelab.assembly import assemble
from motelab.catalog import ROOT, Workload
from motelab.cluster import NODE_ADDRESS, Cluster, images, until
from motelab.kubernetes import READY_S_MAX, need_no_packages, state_of, write_image
from motelab.platforms import Deployed, Function, NotOffered, Wish
from motelab.processes import Failed
from motelab.services import Services

#: The folder of scripts/knative.sh.
FOLDERS = "knative-*"
PROGRAMS = ("activator", "autoscaler", "controller", "queue", "webhook", "kourier", "envoy")
#: Where the lab calls functions. Kubernetes never gives away the first addresses by itself.
INGRESS = "198.19.0.80"
#: Fixed addresses of Services, by namespace and name.
ADDRESSES = {
    ("knative-serving", "net-kourier-controller"): "198.19.0.81",
    ("kourier-system", "kourier"): INGRESS,
}
#: Short names that programs look up, by Deployment.
HOSTS = {"3scale-kourier-gateway": ("198.19.0.81", "net-kourier-controller.knative-serving")}
#: Kinds of objects that the lab's cluster cannot serve.
LEFT_OUT = ("HorizontalPodAutoscaler", "PodDisruptionBudget")
#: The shortest window of Knative's autoscaler. Only functions that may have no instance have it, so
#: that an experiment need not wait a minute for each cold start.
ZERO_WINDOW = "6s"
#: The user of Knative's programs, which must not be root.
USER = "65532"
ROUTED_S_MAX, GONE_S_MAX = 30, 120
LABEL = "serving.knative.dev/service"
#: The command of a function's container. The queue proxy in the same pod reaches the server at
#: the loopback address, on the port that Knative chooses.
SERVE = """#!/bin/sh
cd /function
export HOME=/tmp TMPDIR=/tmp LANG=C.UTF-8
exec {command}
"""
COMMANDS = {"python": "python3 -B server.py", "node": "node server.mjs"}
#: Metrics of Knative's own autoscaler that the lab's rules correspond to.
METRICS = {"rps": "rps", "concurrency": "concurrency"}


def settings(release: str) -> dict[str, dict[str, str]]:
    """What differs from Knative's defaults, by the name of the ConfigMap."""
    return {
        "config-deployment": {
            "queue-sidecar-image": image_name("queue", release),
            "registries-skipping-tag-resolving": "mote.local",
        },
        "config-network": {
            "ingress-class": "kourier.ingress.networking.knative.dev",
            # The lab calls the address of the ingress, so this is the host of the one function.
            "domain-template": "{{.Domain}}",
        },
        "config-domain": {INGRESS: ""},
        "config-autoscaler": {"scale-to-zero-grace-period": ZERO_WINDOW},
    }


def image_name(program: str, release: str) -> str:
    """The image of one of Knative's programs."""
    return f"mote.local/knative-{program}:{release}"


def documents(text: str) -> list[dict[str, Any]]:
    """The objects that kubectl prints one after the other."""
    decoder, found = json.JSONDecoder(), []
    while text := text.lstrip():
        one, end = decoder.raw_decode(text)
        found.append(one)
        text = text[end:]
    return found


def adapted(objects: Sequence[dict[str, Any]], release: str) -> list[dict[str, Any]]:
    """Knative's objects for the lab's cluster."""
    found = []
    for item in objects:
        kind, meta = item["kind"], item["metadata"]
        if kind in LEFT_OUT:
            continue
        if kind == "ConfigMap":
            item = {**item, "data": {**item["data"], **settings(release).get(meta["name"], {})}}
        elif kind == "Service":
            address = ADDRESSES.get((meta["namespace"], meta["name"]))
            if address:
                item = {**item, "spec": {**item["spec"], "type": "ClusterIP", "clusterIP": address}}
        elif kind == "Deployment":
            item = _deployment(item, release)
        found.append(item)
    return found


def _deployment(item: dict[str, Any], release: str) -> dict[str, Any]:
    pod = item["spec"]["template"]["spec"]
    containers = [
        {**one, "image": image_name(_program(one["image"]), release)} for one in pod["containers"]
    ]
    pod = {**pod, "containers": containers}
    if item["metadata"]["name"] in HOSTS:
        address, name = HOSTS[item["metadata"]["name"]]
        pod["hostAliases"] = [{"ip": address, "hostnames": [name]}]
    template = {**item["spec"]["template"], "spec": pod}
    return {**item, "spec": {**item["spec"], "template": template}}


def _program(image: str) -> str:
    """The program that an image of a manifest has: the path of its package, or the image's name."""
    program = image.rsplit("/", 1)[-1].split(":")[0]
    if program not in PROGRAMS:
        raise Failed(f"image {image} of Knative: scripts/knative.sh builds no program for it")
    return program


def scaling(wish: Wish) -> dict[str, str]:
    """How the wish scales, in the words of Knative's autoscaler."""
    head = "autoscaling.knative.dev"
    found = {
        f"{head}/min-scale": str(wish.instances_min),
        f"{head}/max-scale": str(wish.instances_max),
    }
    if wish.instances_min == 0:
        found[f"{head}/window"] = ZERO_WINDOW
    policy = str(wish.scale.get("policy", "knative"))
    if policy in METRICS:
        found[f"{head}/metric"] = METRICS[policy]
        found[f"{head}/target"] = str(wish.scale["target"])
    elif policy != "knative":
        raise NotOffered(f"knative has no rule `{policy}`")
    return found


def service(
    name: str, image: str, wish: Wish, memory_mib: int, env: Mapping[str, str]
) -> dict[str, Any]:
    """The Service of Knative for a workload."""
    limits = {"memory": f"{memory_mib}Mi"}
    if wish.cpu:
        limits["cpu"] = str(wish.cpu)
    container = {
        "image": image,
        "env": [{"name": key, "value": value} for key, value in sorted(env.items())],
        "resources": {"limits": limits},
    }
    spec = {
        "containerConcurrency": wish.concurrency,
        "timeoutSeconds": int(wish.timeout_s),
        "enableServiceLinks": False,
        "containers": [container],
    }
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": {"metadata": {"annotations": scaling(wish)}, "spec": spec}},
    }


class Knative(Deployed):
    """Functions as Services of Knative, one at a time."""

    name = "knative"
    offers = frozenset({"zero", "instances", "processes", "policies"})
    contract = "native"
    outside = inside = NODE_ADDRESS

    def __init__(self, cluster: Cluster, services: Services, work: Path) -> None:
        self.cluster, self.services, self.work = cluster, services, work / "knative"
        #: The name of the function that answers at the ingress.
        self.deployed: str | None = None
        self.is_installed = False

    def version(self) -> str:
        """The versions of its programs."""
        return (built() / "version.txt").read_text().strip() if self.is_installed else ""

    def note(self) -> str:
        """What a reader must know."""
        return (
            "Knative Serving with its default settings, activator and queue proxy in the path of a"
            " call, behind Kourier with Envoy; the function is the server that `native` runs"
        )

    # Installing Knative

    def _install(self) -> None:
        """Installs Knative from its manifests, once in a session."""
        if self.is_installed:
            return
        folder = built()
        self.cluster.need_dns()
        release = folder.name.partition("-")[2]
        for program in PROGRAMS:
            self._load_program(folder / program, image_name(program, release))
        for part in sorted((folder / "objects").iterdir()):
            args = ["create", "--dry-run=client", "-o", "json", "-f", str(part)]
            items = adapted(documents(self.cluster.kubectl(*args)), release)
            made = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
            apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"]
            self.cluster.kubectl(*apply, data=made)
        for namespace in ("kourier-system", "knative-serving"):
            wait = ["wait", "--for=condition=Available", f"--timeout={READY_S_MAX}s"]
            self.cluster.kubectl(*wait, "deployment", "--all", "-n", namespace)
        self.is_installed = True

    def _load_program(self, program: Path, name: str) -> None:
        """Loads one of Knative's programs as an image into the nodes."""
        root, archive = self.work / "root", self.work / "program.tar"
        shutil.rmtree(root, ignore_errors=True)
        (root / "usr/local/bin").mkdir(parents=True)
        shutil.copy(program, root / "usr/local/bin")
        # The others are static programs; Envoy needs a C library.
        base = base_layer("controller") if program.name == "envoy" else None
        write_image(archive, name, base, root, f"/usr/local/bin/{program.name}", USER)
        self.cluster.script("load", str(archive))
        archive.unlink()
        shutil.rmtree(root)

    # Deploying functions

    def deploy(self, workload: Workload, profile: str, wish: Wish) -> Function:
        """Builds the workload's image, applies its Service and waits until it answers."""
        need_no_packages(workload, wish)
        if wish.runtime not in COMMANDS:
            raise NotOffered(f"the lab has no image for {wish.runtime} on knative")
        if self.deployed:
            raise NotOffered(f"the address of the ingress belongs to {self.deployed}")
        self._install()
        name = workload.name if wish.runtime == "python" else f"{workload.name}-{wish.runtime}"
        manifest = self.manifest(workload, profile, wish, name)
        env = {**manifest.env, "THREADS": str(wish.concurrency), "WORKLOAD": workload.name}
        # Each image has another tag, so that new code never runs from an old image.
        image = f"mote.local/{name}:{os.urandom(4).hex()}"
        made = service(name, image, wish, manifest.memory_mib, env)
        self._function_image(workload, wish.runtime, image)
        function = Function(name, f"http://{INGRESS}/")
        # The webhook that checks the object may not be ready yet.
        until(f"{name} applied", READY_S_MAX, lambda: self._is_applied(made))
        self.deployed = name
        try:
            wait = ["wait", "--for=condition=Ready", f"--timeout={READY_S_MAX}s", f"ksvc/{name}"]
            self.cluster.kubectl(*wait)
            until(f"{name} behind the ingress", ROUTED_S_MAX, _answers)
        except Failed as why:
            told = self.cluster.kubectl("get", "ksvc,revision,pods", "-o", "wide")
            self.remove(function)
            raise Failed(f"{why}\n{told}") from None
        return function

    def _is_applied(self, made: dict[str, Any]) -> bool:
        try:
            self.cluster.kubectl("apply", "-f", "-", data=json.dumps(made))
        except Failed as why:
            if "failed calling webhook" in str(why):
                return False
            raise
        return True

    def _function_image(self, workload: Workload, runtime: str, name: str) -> None:
        """The server of `native` on the packages of a cell's image, so that both sides have the
        same interpreters."""
        root = self.work / "function"
        shutil.rmtree(root, ignore_errors=True)
        assemble(workload, "native", runtime, root / "function")
        (root / "serve").write_text(SERVE.format(command=COMMANDS[runtime]))
        (root / "serve").chmod(0o755)
        archive = self.work / "image.tar"
        write_image(archive, name, base_layer("cell"), root, user=USER)
        self.cluster.script("load", str(archive))
        archive.unlink()

    def remove(self, function: Function) -> None:
        """Removes the function, and waits until its pods and its route are gone."""
        delete = ["delete", "ksvc", function.name, "--ignore-not-found", "--wait=false"]
        self.cluster.kubectl(*delete)
        kinds = [
            "/apis/apps/v1/namespaces/default/deployments",
            "/apis/networking.internal.knative.dev/v1alpha1/namespaces/default/ingresses",
        ]

        def is_gone() -> bool:
            return not any(self._list(kind, function.name) for kind in kinds)

        until(f"{function.name} removed", GONE_S_MAX, is_gone)
        self._end_pods(function.name)
        self.deployed = None

    def to_zero(self, function: Function) -> None:
        """Waits until Knative has scaled the function to zero."""

        def is_at_zero() -> bool:
            return all(one["state"] == "stopping" for one in self.instances(function))

        until(f"{function.name} at zero", GONE_S_MAX, is_at_zero)
        # What is stopping has no calls, but up to its time limit to end.
        self._end_pods(function.name)

    def _end_pods(self, name: str) -> None:
        force = ["--ignore-not-found", "--grace-period=0", "--force"]
        self.cluster.kubectl("delete", "pods", "-l", f"{LABEL}={name}", *force)

    def instances(self, function: Function) -> list[dict[str, Any]]:
        """Its pods."""
        found = self._list("/api/v1/namespaces/default/pods", function.name)
        return [
            {"id": pod["metadata"]["name"], "state": state_of(pod), "served": 0} for pod in found
        ]

    def _list(self, kind: str, name: str) -> list[dict[str, Any]]:
        query = f"labelSelector={LABEL.replace('/', '%2F')}%3D{name}"
        found: list[dict[str, Any]] = self.cluster.get(f"{kind}?{query}")["items"]
        return found


def built() -> Path:
    """The folder of Knative's programs and manifests."""
    found = sorted(
        folder for folder in (ROOT / ".cache").glob(FOLDERS) if (folder / "version.txt").exists()
    )
    if not found:
        raise NotOffered("knative is not built: scripts/knative.sh build")
    return found[-1]


def base_layer(image: str) -> Path:
    """The first layer of one of our images."""
    found = sorted(images().glob(f"{image}-base-*.tar"))
    if not found:
        raise Failed(f"{images()} has no layer of {image}: scripts/image.sh makes it")
    return found[0]


def _answers() -> bool:
    """Whether the ingress has a route to a function that runs."""
    connection = http.client.HTTPConnection(INGRESS, timeout=5)
    try:
        connection.request("OPTIONS", "/")
        return connection.getresponse().status not in (404, 503)
    finally:
        connection.close()
