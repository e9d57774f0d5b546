"""Targets on a real Kubernetes: our cells, and the same functions as plain objects.

The plain objects come from `mote export kubernetes`: a Deployment, a Service and, if the number of
instances may change, a HorizontalPodAutoscaler.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import shutil
import subprocess
import tarfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from motelab.assembly import assemble
from motelab.catalog import CLUSTERS, Workload
from motelab.cluster import NODE_ADDRESS, Cluster, Controller, images, until
from motelab.platforms import Deployed, Function, Mote, NotOffered, Wish
from motelab.processes import Failed
from motelab.services import Services

#: The processor that `mote export` asks an HPA to aim at.
EXPORTED_PERCENT = 80
READY_S_MAX = 180
#: The command in the container of an exported function; see `Containerfile`.
SERVE = """#!/bin/sh
export HOME=/tmp LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
exec python3 -u /server/standalone/serve.py /server/function.json
"""
NAMES = CLUSTERS


def need_no_packages(workload: Workload, wish: Wish) -> None:
    """Refuses packages, because a lab cluster cannot reach a package registry."""
    if wish.runtime == "python" and workload.packages:
        raise NotOffered("the lab's cluster cannot reach the packages' registry")


class Cells(Mote):
    """Functions in the cells of a cluster, deployed through its controller."""

    def __init__(self, cluster: Cluster, binary: Path, services: Services, work: Path) -> None:
        self.cluster = cluster
        self.controller = Controller(cluster, binary)
        super().__init__(self.controller, services, work / "cluster")
        self.name = "mote-cluster"

    #: For a cell and for a function in it, the lab's servers are at an address of another machine.
    outside = inside = NODE_ADDRESS

    def deploy(self, workload: Workload, profile: str, wish: Wish) -> Function:
        """Deploys the workload to all cells."""
        need_no_packages(workload, wish)
        return super().deploy(workload, profile, wish)

    def deploy_folder(self, name: str, folder: Path) -> Function:
        """Deploys a folder unchanged."""
        self.node.mote("deploy", str(folder), "--name", name)
        host = self.controller.host
        return Function(name, f"http://{host}/{name}", f"coap://{host}:5683/{name}")


class Plain(Deployed):
    """Functions as a Deployment and a Service, with an HPA or a fixed number of pods."""

    def __init__(
        self, cluster: Cluster, binary: Path, services: Services, work: Path, *, has_hpa: bool
    ) -> None:
        self.cluster, self.binary, self.has_hpa = cluster, binary, has_hpa
        self.services = services
        self.name = "kubernetes-hpa" if has_hpa else "kubernetes"
        self.work = work / self.name
        self.offers = frozenset({"instances", "processes"} | ({"scales"} if has_hpa else set()))
        if has_hpa:
            cluster.need_metrics()

    contract = "mote"
    outside = inside = NODE_ADDRESS

    def deploy(self, workload: Workload, profile: str, wish: Wish) -> Function:
        """Exports the workload, builds its image, applies its objects and waits until it
        answers."""
        need_no_packages(workload, wish)
        name = workload.name if wish.runtime == "python" else f"{workload.name}-{wish.runtime}"
        manifest = self.manifest(workload, profile, wish, name)
        least = max(1, wish.instances_min)
        most = max(least, wish.instances_max) if self.has_hpa else least
        scale = {**manifest.scale, "min": least, "max": most}
        manifest = replace(manifest, scale=scale)
        source, out = self.work / "source" / name, self.work / "exported"
        assemble(workload, "mote", wish.runtime, source, manifest=manifest)
        shutil.rmtree(out, ignore_errors=True)
        where = ["--registry", "mote.local", "--tag", "lab", "--out", str(out)]
        self._run("export", "kubernetes", str(source), *where)
        self._image(out / name, name)
        self._apply(out / name, wish)
        self.cluster.kubectl("rollout", "status", f"--timeout={READY_S_MAX}s", f"deployment/{name}")
        address = self.cluster.address(name)
        until(f"{name} behind its Service", 30, lambda: _answers(address))
        return Function(name, f"http://{address}/")

    def _run(self, *args: str) -> None:
        done = subprocess.run(
            [str(self.binary), *args], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Failed(f"mote {' '.join(args)} failed:\n{done.stderr.strip()}")

    def _image(self, exported: Path, name: str) -> None:
        """The image that `Containerfile` describes, based on the first layer of a cell's image
        instead of an image from a registry, so that both sides have the same interpreters."""
        (base,) = images().glob("cell-base-*.tar")
        root = exported / "root"
        (root / "function").mkdir(parents=True)
        with tarfile.open(exported / "function.tar") as tar:
            tar.extractall(root / "function", filter="data")
        shutil.copytree(exported / "server", root / "server")
        shutil.copy(exported / "function.json", root / "server")
        (root / "serve").write_text(SERVE)
        (root / "serve").chmod(0o755)
        archive = exported / "image.tar"
        write_image(archive, f"mote.local/{name}:lab", base, root)
        self.cluster.script("load", str(archive))
        archive.unlink()

    def _apply(self, exported: Path, wish: Wish) -> None:
        args = ["apply", "--dry-run=client", "-o", "json", "-f", str(exported / "objects.yaml")]
        made = json.loads(self.cluster.kubectl(*args))
        for item in made["items"]:
            item["metadata"].pop("annotations", None)
            if item["kind"] == "Deployment":
                pod = item["spec"]["template"]
                pod["spec"]["containers"][0]["imagePullPolicy"] = "Never"
                # The image has the same name each time: a new code needs new pods.
                code = sha256((exported / "function.tar").read_bytes()).hexdigest()[:16]
                pod["metadata"]["annotations"] = {"mote.dev/code": code + str(os.urandom(4).hex())}
            if item["kind"] == "HorizontalPodAutoscaler" and wish.scale.get("policy") == "hpa":
                target = item["spec"]["metrics"][0]["resource"]["target"]
                target["averageUtilization"] = wish.scale.get("target", EXPORTED_PERCENT)
        self.cluster.kubectl("apply", "-f", "-", data=json.dumps(made))

    def remove(self, function: Function) -> None:
        """Removes the function, and waits until its pods are gone."""
        kinds = "deployment,service,hpa,networkpolicy,configmap"
        selector = f"app.kubernetes.io/name={function.name}"
        self.cluster.kubectl("delete", kinds, "-l", selector, "--ignore-not-found")
        self.cluster.kubectl(
            "delete", "pods", "-l", selector, "--ignore-not-found", "--grace-period=0", "--force"
        )

    def instances(self, function: Function) -> list[dict[str, Any]]:
        """Its pods."""
        query = f"labelSelector=app.kubernetes.io%2Fname%3D{function.name}"
        found = self.cluster.get(f"/api/v1/namespaces/default/pods?{query}")["items"]
        return [
            {"id": pod["metadata"]["name"], "state": state_of(pod), "served": 0} for pod in found
        ]


def state_of(pod: dict[str, Any]) -> str:
    """The state of a pod in the words for an instance of mote."""
    if "deletionTimestamp" in pod["metadata"]:
        return "stopping"
    conditions = pod["status"].get("conditions", [])
    is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return "ready" if is_ready else "starting"


def _answers(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=2)
    try:
        connection.request("OPTIONS", "/")
        return connection.getresponse().status > 0
    finally:
        connection.close()


def write_image(
    out: Path,
    name: str,
    base: Path | None,
    root: Path,
    entrypoint: str = "/serve",
    user: str = "",
) -> None:
    """A docker archive of a base layer, if there is one, and a folder."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for path in sorted(root.rglob("*")):
            info = tar.gettarinfo(path, str(path.relative_to(root)))
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = ""
            # The user of the container reads the code.
            info.mode |= 0o555 if path.is_dir() else 0o444
            if path.is_file():
                with path.open("rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    content = layer.getvalue()
    digests, layers = [sha256(content).hexdigest()], ["own.tar"]
    if base:
        with base.open("rb") as file:
            digests.insert(0, _digest(file))
        layers.insert(0, "base.tar")
    config = json.dumps(
        {
            "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
            "os": "linux",
            "config": {
                "Entrypoint": [entrypoint],
                "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
                "User": user,
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{one}" for one in digests]},
        }
    ).encode()
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": layers}]
    with tarfile.open(out, "w") as tar:
        if base:
            tar.add(base.resolve(), "base.tar")
        for file_name, data in [
            ("own.tar", content),
            ("config.json", config),
            ("manifest.json", json.dumps(manifest).encode()),
        ]:
            info = tarfile.TarInfo(file_name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def _digest(file: Any) -> str:
    found = sha256()
    while piece := file.read(1 << 20):
        found.update(piece)
    return found.hexdigest()


def target(
    name: str, cluster: Cluster, binary: Path, services: Services, work: Path
) -> Cells | Plain:
    """A target by its name."""
    if name == "mote-cluster":
        return Cells(cluster, binary, services, work)
    return Plain(cluster, binary, services, work, has_hpa=name == "kubernetes-hpa")
