"""A cell in a pod of a real cluster: the test behind `make test-cluster`, and what bench/cell.py
shares with it.

Usage: cell.py --bin FOLDER --escape FILE
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NAMESPACE = "mote-system"
#: The function that says which destinations it reaches, on lines of HOST:PORT.
REACHES = """
import socket


def handle(event, ctx):
    return "\\n".join(f"{target} {attempt(target)}" for target in event.text.split())


def attempt(target):
    host, port = target.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), 3) as sock:
            sock.settimeout(2)
            sock.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
            return "reached" if sock.recv(1) else "closed"
    except OSError as error:
        return "refused: " + str(error)
"""


class Cluster:
    """A cluster of scripts/cluster.sh with one node. Use as a context manager."""

    def __init__(self, name: str) -> None:
        self.environment = {**os.environ, "CLUSTER_DIR": f"/tmp/{name}-{os.getpid()}"}
        self.script = str(ROOT / "scripts" / "cluster.sh")

    def __enter__(self) -> Cluster:
        self.call("up")
        return self

    def __exit__(self, *_: object) -> None:
        self.call("down")

    def command(self, *args: str) -> list[str]:
        return [self.script, *args]

    def call(self, *args: str, data: bytes = b"", seconds: int = 180) -> str:
        done = subprocess.run(
            self.command(*args),
            env=self.environment,
            input=data,
            stdout=subprocess.PIPE,
            timeout=seconds,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"cluster.sh {' '.join(args)} failed with {done.returncode}")
        return done.stdout.decode()

    def kubectl(self, *args: str, data: bytes = b"", seconds: int = 180) -> str:
        return self.call("kubectl", *args, data=data, seconds=seconds)

    def get(self, *args: str) -> dict:
        return json.loads(self.kubectl("get", *args, "-o", "json"))

    def wait(self, what: str, is_so, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > end:
                raise SystemExit(f"{what}: not after {seconds} s")
            time.sleep(0.1)

    def http(self, url: str, data: str = "") -> str:
        """Calls a URL from the node of the cluster."""
        post = ["--data-binary", data] if data else []
        return self.call("run", "curl", "-sS", "--fail-with-body", "-m", "60", *post, url)


def installer(binaries: Path, cluster: Cluster, *args: str) -> subprocess.CompletedProcess:
    """The command that installs, with kubectl of the cluster."""
    with tempfile.TemporaryDirectory() as folder:
        kubectl = Path(folder, "kubectl")
        kubectl.write_text(f'#!/bin/sh\nexec {cluster.script} kubectl "$@"\n')
        kubectl.chmod(0o755)
        verb, *rest = args
        command = [binaries / "mote-cluster", verb, "--kubectl", kubectl, *rest]
        return subprocess.run(
            command,
            env=cluster.environment,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )


def bare_cell(binaries: Path, cluster: Cluster) -> str:
    """Installs cells without agents, so that the test itself decides what they run. Returns the
    name of the pod."""
    printed = installer(binaries, cluster, "install", "--dry-run", "--set", "spillOver=false")
    made = cluster.kubectl(
        "apply", "--dry-run=client", "-o", "json", "-f", "-", data=printed.stdout.encode()
    )
    wanted = [
        item
        for item in json.loads(made)["items"]
        if item["kind"] in ("Namespace", "DaemonSet", "ServiceAccount")
        or (item["kind"], item["metadata"]["name"]) == ("Service", "mote")
    ]
    for item in wanted:
        if item["kind"] == "DaemonSet":
            pod = item["spec"]["template"]["spec"]
            pod["containers"] = [one for one in pod["containers"] if one["name"] == "node"]
    # The namespace is there before what is in it.
    wanted.sort(key=lambda item: item["kind"] != "Namespace")
    objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": wanted})
    cluster.kubectl("apply", "-f", "-", data=objects.encode())
    cluster.kubectl("rollout", "status", "--timeout=120s", "-n", NAMESPACE, "daemonset/mote-cell")
    pods = cluster.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=mote-cell")
    name = pods["items"][0]["metadata"]["name"]
    cluster.wait("the cell", lambda: "functions" in inside(cluster, name, "mote list 2>&1 || true"))
    return name


def inside(cluster: Cluster, pod: str, command: str, data: bytes = b"", seconds: int = 180) -> str:
    """Runs a shell command in the container of the node."""
    return cluster.kubectl(
        "exec",
        "-i",
        "-n",
        NAMESPACE,
        pod,
        "-c",
        "node",
        "--",
        "sh",
        "-c",
        command,
        data=data,
        seconds=seconds,
    )


def deploy(cluster: Cluster, pod: str, name: str, files: dict[str, str]) -> None:
    inside(cluster, pod, f"rm -rf /tmp/{name}; mkdir /tmp/{name}")
    for file, text in files.items():
        inside(cluster, pod, f"cat > /tmp/{name}/{file}", text.encode())
    inside(cluster, pod, f"mote deploy /tmp/{name} 2>&1")


def manifest(name: str, more: str = "") -> str:
    return f'version = 1\nname = "{name}"\nruntime = "python"\nentry = "app:handle"\n{more}'


def check_doctor(cluster: Cluster, pod: str) -> None:
    report = json.loads(inside(cluster, pod, "mote doctor -o json || true"))
    bad = {
        check["name"]: check["detail"]
        for check in report["checks"]
        if check["state"] != "ok" and check["name"] != "go"
    }
    assert not bad, bad
    (memory,) = (check for check in report["checks"] if check["name"] == "memory budget")
    # Three quarters of the limit of the container.
    assert memory["detail"].startswith("768 MiB"), memory
    print(f"doctor: {len(report['checks'])} checks, {memory['detail']}")


def check_escape(cluster: Cluster, pod: str, probe: Path) -> None:
    inside(cluster, pod, "cat > /tmp/escape && chmod 755 /tmp/escape", probe.read_bytes())
    said = inside(cluster, pod, "cd /tmp && timeout 120 ./escape --in-container 2>&1; echo rc=$?")
    for line in said.splitlines():
        if line.startswith(("all:", "in a program", "rc=")):
            print(f"escape: {line}")
    assert "rc=0" in said and "SKIPPED" not in said, said


def check_reach(cluster: Cluster, pod: str, service: str) -> None:
    found = cluster.get("pod", "-n", NAMESPACE, pod)["status"]
    api = cluster.get("service", "kubernetes")["spec"]["clusterIP"]
    kubelet = f"{found['hostIP']}:10250"
    targets = [
        f"{api}:443",
        f"{found['hostIP']}:6443",
        kubelet,
        f"{found['podIP']}:8080",
        f"{service}:80",
        "127.0.0.1:8080",
        "169.254.169.254:80",
        f"{found['hostIP']}:2379",
    ]
    ports = ", ".join(f'"*:{port}"' for port in (2379, 6443, 10250))
    limits = '[limits]\ntimeout = "60s"\n'
    deploy(cluster, pod, "closed", {"app.py": REACHES, "mote.toml": manifest("closed", limits)})
    deploy(
        cluster,
        pod,
        "any",
        {
            "app.py": REACHES,
            "mote.toml": manifest("any", f'{limits}[allow]\nnet = ["*", {ports}]\n'),
        },
    )
    deploy(
        cluster,
        pod,
        "named",
        {
            "app.py": REACHES,
            "mote.toml": manifest("named", f'{limits}[allow]\nnet = ["{kubelet}"]\n'),
        },
    )
    for name in ("closed", "any"):
        said = cluster.http(f"http://{service}/{name}", " ".join(targets))
        reached = [line for line in said.splitlines() if " refused" not in line]
        assert len(said.splitlines()) == len(targets) and not reached, said
        print(f"reach: {name}: {len(targets)} tried, none reached")
    # The attempts above mean something only if the addresses answer.
    from_cell = inside(cluster, pod, f"nc -w 2 {kubelet.replace(':', ' ')} </dev/null && echo yes")
    assert "yes" in from_cell, "the kubelet answers nobody"
    said = cluster.http(f"http://{service}/named", "127.77.0.2:10250")
    assert "refused" not in said, said


def check_cold_start(cluster: Cluster, pod: str, service: str) -> None:
    """A function that has scaled to zero starts in an interpreter that waited for it, in the image and
    with the memory that users get."""
    for name, file, code in [
        ("cold-python", "app.py", "def handle(event, ctx):\n    return 'mote'\n"),
        ("cold-node", "index.mjs", "export function handle() { return 'mote'; }\n"),
    ]:
        text = manifest(name, '[scale]\nidle = "1ms"\n')
        deploy(cluster, pod, name, {file: code, "mote.toml": text})

        def is_prewarmed() -> bool:
            assert cluster.http(f"http://{service}/{name}") == "mote"
            return "in a prewarmed sandbox" in inside(cluster, pod, f"mote logs {name}")

        cluster.wait(f"a start of {name} in a prewarmed sandbox", is_prewarmed)
        said = [line for line in inside(cluster, pod, f"mote logs {name}").splitlines() if "prewarmed" in line]
        print(f"{name}: {said[-1]}")


def check_packages(cluster: Cluster, pod: str, service: str) -> None:
    """The packages of a function are installed in the cell, here from a wheel that it brings."""
    folder = "/tmp/packed"
    inside(cluster, pod, f"rm -rf {folder}; mkdir -p {folder}/wheels")
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("greeting.py", "TEXT = 'from a package'\n")
        about = "greeting-1.0.dist-info"
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    files = {
        "wheels/greeting-1.0-py3-none-any.whl": wheel.getvalue(),
        "requirements.txt": b"--no-index\n--find-links /function/wheels\ngreeting==1.0\n",
        "app.py": b"import greeting\ndef handle(event, ctx):\n    return greeting.TEXT\n",
        "mote.toml": manifest("packed").encode(),
    }
    for file, content in files.items():
        inside(cluster, pod, f"cat > {folder}/{file}", content)
    inside(cluster, pod, f"mote deploy {folder} 2>&1")
    assert cluster.http(f"http://{service}/packed") == "from a package"
    assert inside(cluster, pod, "ls /var/lib/mote/staging").strip() == "", "staging is not empty"
    print("packages: installed in the cell")


def check_restart(cluster: Cluster, pod: str, service: str) -> None:
    """A function that does not end is killed, and the cell goes on."""
    code = "def handle(event, ctx):\n    while event.text:\n        pass\n    return 'done'\n"
    deploy(
        cluster,
        pod,
        "hang",
        {"app.py": code, "mote.toml": manifest("hang", '[limits]\ntimeout = "1s"\n')},
    )
    done = subprocess.run(
        cluster.command(
            "run",
            "curl",
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-d",
            "x",
            f"http://{service}/hang",
        ),
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "504", done.stdout
    cluster.wait(
        "the instance that hangs is gone",
        lambda: "killed" in inside(cluster, pod, "mote logs hang"),
    )
    assert cluster.http(f"http://{service}/hang") == "done"


#: Kinds of which an installation makes objects.
KINDS = (
    "all,roles,rolebindings,secrets,serviceaccounts,networkpolicies,persistentvolumeclaims,"
    "leases,configmaps"
)


def left_over(cluster: Cluster) -> list[str]:
    names = cluster.kubectl("get", KINDS, "-A", "-o", "name").split()
    names += cluster.kubectl(
        "get", "crd,namespaces,clusterroles,priorityclasses", "-o", "name"
    ).split()
    return [name for name in names if "mote" in name]


def check_install(binaries: Path, cluster: Cluster) -> None:
    since = time.monotonic()
    done = installer(binaries, cluster, "install")
    assert done.returncode == 0, done.stderr
    print(f"install: {time.monotonic() - since:.1f} s until all pods are ready")
    again = installer(binaries, cluster, "install")
    assert again.returncode == 0, again.stderr
    function = {
        "apiVersion": "mote.dev/v1alpha1",
        "kind": "Function",
        "metadata": {"name": "kept"},
        "spec": {"files": {"app.py": "def handle(e, c): pass"}},
    }
    cluster.kubectl("apply", "-f", "-", data=json.dumps(function).encode())
    refused = installer(binaries, cluster, "uninstall")
    assert refused.returncode != 0 and "--functions" in refused.stderr, refused.stderr
    since = time.monotonic()
    done = installer(binaries, cluster, "uninstall", "--functions")
    assert done.returncode == 0, done.stderr
    assert not left_over(cluster), left_over(cluster)
    print(f"uninstall: {time.monotonic() - since:.1f} s, nothing is left")


def main() -> None:
    parser = argparse.ArgumentParser(description="Tests a cell in a pod")
    parser.add_argument("--bin", type=Path, required=True, help="folder with mote")
    parser.add_argument("--escape", type=Path, required=True, help="the attack battery")
    options = parser.parse_args()
    images = Path(os.environ.get("IMAGES", ROOT / "target" / "images"))
    since = time.monotonic()
    with Cluster("mote-test-cell") as cluster:
        cluster.call("load", str(images / "cell.tar"), str(images / "controller.tar"))
        before = left_over(cluster)
        assert (
            before == ["clusterrole.rbac.authorization.k8s.io/mote-node-proxier"] or not before
        ), before
        pod = bare_cell(options.bin, cluster)
        print(f"a cell is ready after {time.monotonic() - since:.1f} s")
        service = cluster.get("service", "-n", NAMESPACE, "mote")["spec"]["clusterIP"]
        check_doctor(cluster, pod)
        hello = ROOT / "examples" / "hello-python"
        deploy(
            cluster,
            pod,
            "hello-python",
            {path.name: path.read_text() for path in hello.iterdir() if path.is_file()},
        )
        assert cluster.http(f"http://{service}/hello-python") == "mote"
        check_cold_start(cluster, pod, service)
        check_packages(cluster, pod, service)
        check_restart(cluster, pod, service)
        check_reach(cluster, pod, service)
        check_escape(cluster, pod, options.escape)
        cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=120s")
        check_install(options.bin, cluster)
    print(f"all checks passed in {time.monotonic() - since:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
