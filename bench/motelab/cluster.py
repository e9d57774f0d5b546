"""A real Kubernetes for the lab, from scripts/cluster.sh.

Its addresses exist only in the network namespaces of its nodes. The lab enters the namespace of the
first node before it starts anything else, so that load, baselines and services run there as well,
and all targets are reached over the same network.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from motelab.catalog import ROOT
from motelab.network import enter
from motelab.node import GONE_S_MAX
from motelab.processes import Failed, wait_for

SCRIPT = ROOT / "scripts" / "cluster.sh"
SYSTEM = "mote-system"
#: The address of the first node, at which its own servers are reached from pods.
NODE_ADDRESS = "198.18.0.1"
INSTALL_S_MAX = 300


def images() -> Path:
    """The folder of scripts/image.sh."""
    return Path(os.environ.get("IMAGES", ROOT / "target" / "images"))


def machines() -> int:
    """How many nodes a lab cluster has; MOTE_LAB_MACHINES sets another number."""
    return int(os.environ.get("MOTE_LAB_MACHINES", "1"))


class Cluster:
    """A cluster: either one that runs in CLUSTER_DIR, or one that begins and ends with the lab."""

    def __init__(self, binaries: Path) -> None:
        self.binaries = binaries
        folder = os.environ.get("CLUSTER_DIR")
        self.folder = Path(folder or f"/tmp/mote-lab-{os.getpid()}")
        self.is_ours = not self.folder.exists()
        self._has_metrics = self._has_mote = False
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            if self.is_ours:
                self.script("up")
                for _ in range(1, machines()):
                    self.script("join")
            holder = (self.folder / "node1" / "pid").read_text().strip()
            network = os.open(f"/proc/{holder}/ns/net", os.O_RDONLY)
            enter(network)
            os.close(network)
        except Failed:
            self.close()
            raise
        # Servers of the lab listen on loopback; pods reach them at the address of the node.
        self._open_loopback()

    def _open_loopback(self) -> None:
        rules = ["PREROUTING", "-t", "nat", "-d", NODE_ADDRESS, "-p", "tcp"]
        rules += ["--dport", "32768:60999", "-j", "DNAT", "--to-destination", "127.0.0.1"]
        steps = f"""
            echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet
            iptables -C {" ".join(rules)} 2>/dev/null || iptables -A {" ".join(rules)}"""
        self.script("run", "sh", "-c", steps)

    def script(self, *args: str, data: str = "", seconds: int = 400) -> str:
        """Runs a verb of scripts/cluster.sh."""
        done = subprocess.run(
            [str(SCRIPT), *args],
            env={**os.environ, "CLUSTER_DIR": str(self.folder)},
            input=data,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode:
            raise Failed(f"cluster.sh {' '.join(args)} failed:\n{done.stderr.strip()[-2000:]}")
        return done.stdout

    def kubectl(self, *args: str, data: str = "") -> str:
        """kubectl as the administrator."""
        return self.script("kubectl", *args, data=data)

    def get(self, path: str) -> Any:
        """An answer of the API server, without the cost of kubectl."""
        text = (self.folder / "admin.kubeconfig").read_text()
        token = re.search(r"token: (\w+)", text)
        if not token:
            raise Failed("admin.kubeconfig has no token")
        context = ssl.create_default_context(cafile=str(self.folder / "pki" / "apiserver.crt"))
        connection = http.client.HTTPSConnection(NODE_ADDRESS, 6443, timeout=30, context=context)
        try:
            connection.request("GET", path, headers={"authorization": f"Bearer {token[1]}"})
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise Failed(f"GET {path}: {answer.status} {body[:200]!r}")
            return json.loads(body)
        finally:
            connection.close()

    def address(self, service: str, namespace: str = "default") -> str:
        """The address of a Service."""
        found = self.get(f"/api/v1/namespaces/{namespace}/services/{service}")
        return str(found["spec"]["clusterIP"])

    def need_metrics(self) -> None:
        """Starts metrics-server, without which an HPA on processor time does nothing."""
        if not self._has_metrics and not (self.folder / "metrics-server").exists():
            self.script("metrics")
        self._has_metrics = True

    def need_dns(self) -> None:
        """Starts CoreDNS, by which pods find Services by their names."""
        if not (self.folder / "Corefile").exists():
            self.script("dns")

    def need_mote(self) -> None:
        """Installs mote from its images."""
        if self._has_mote:
            return
        files = [images() / name for name in ("cell.tar", "controller.tar")]
        missing = [str(file) for file in files if not file.exists()]
        if missing:
            raise Failed(f"{', '.join(missing)}: scripts/image.sh makes the images")
        self.script("load", *map(str, files))
        kubectl = self.folder / "kubectl"
        kubectl.write_text(f'#!/bin/sh\nexec {SCRIPT} kubectl "$@"\n')
        kubectl.chmod(0o755)
        command = [str(self.binaries / "mote-cluster"), "install", "--kubectl", str(kubectl)]
        command += ["--set", "memoryLimit=3Gi"]
        done = subprocess.run(
            command,
            env={**os.environ, "CLUSTER_DIR": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=INSTALL_S_MAX,
            check=False,
        )
        if done.returncode:
            raise Failed(f"mote-cluster install failed:\n{done.stderr.strip()}")
        self._has_mote = True

    def close(self) -> None:
        """Returns to the machine's network, and ends the cluster if the lab started it."""
        enter(self._home)
        os.close(self._home)
        if self.is_ours and self.folder.exists():
            self.script("down")


class Controller:
    """The management API of a cluster, with the requests that experiments make to one of our
    nodes."""

    #: Where the Service has the fronts.
    http, coap = 80, 5683

    def __init__(self, cluster: Cluster, binary: Path) -> None:
        cluster.need_mote()
        self.binary = binary
        self.host = cluster.address("mote", SYSTEM)
        self.api = cluster.address("mote-controller", SYSTEM)
        template = "go-template={{.data.token|base64decode}}"
        self.token = cluster.kubectl("get", "secret", "-n", SYSTEM, "mote-api", "-o", template)

    def mote(self, *args: str) -> str:
        """A command of the command line."""
        env = {**os.environ, "MOTE_NODE": f"http://{self.api}:8081", "MOTE_TOKEN": self.token}
        done = subprocess.run(
            [str(self.binary), *args], env=env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Failed(f"mote {' '.join(args)} failed:\n{done.stderr.strip()}")
        return done.stdout

    def ask(
        self, method: str, path: str, body: bytes | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """One request to the management API: status, fields and body."""
        connection = http.client.HTTPConnection(self.api, 8081, timeout=120)
        try:
            head = {"authorization": f"Bearer {self.token}"}
            connection.request(method, path, body, headers=head)
            answer = connection.getresponse()
            fields = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, fields, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """JSON of the management API."""
        status, _, body = self.ask("GET", path)
        if status != 200:
            raise Failed(f"GET {path}: {status} {body[:200]!r}")
        return json.loads(body)

    def functions(self) -> list[str]:
        """Names of the deployed functions."""
        return [row["name"] for row in self.get("/v1/functions")["functions"]]

    def instances(self, name: str) -> list[dict[str, Any]]:
        """Instances of a function in all cells."""
        found: list[dict[str, Any]] = self.get(f"/v1/functions/{name}")["instances"]
        return [one for one in found if one["state"] not in ("stopped", "failed")]

    def to_zero(self, name: str) -> None:
        """Stops a function's instances and waits until they are gone."""
        self.mote("scale", name, "0")
        wait_for(f"{name} at zero", GONE_S_MAX, lambda: not self.instances(name))

    def stop(self) -> None:
        """Does nothing, because the cluster ends the controller."""


def until(what: str, seconds: float, is_so: Callable[[], bool]) -> None:
    """Checks ten times a second; a check that fails is repeated."""
    end = time.monotonic() + seconds
    while True:
        try:
            if is_so():
                return
        except (OSError, http.client.HTTPException):
            pass
        if time.monotonic() > end:
            raise Failed(f"{what}: did not happen within {seconds:.0f} s")
        time.sleep(0.1)
