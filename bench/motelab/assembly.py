"""Puts a workload and a platform's adapter together in one folder that the platform accepts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from motelab.catalog import FOLDER, ROOT, Workload
from motelab.processes import Failed

#: What adapters are called where they are put: what each platform looks for.
TWINS = ROOT / ".cache" / "lab-tools" / "bin" / "workload-rs"
WASM_TWINS = TWINS.with_suffix(".wasm")
ADAPTERS = {
    ("mote", "python"): ("mote.py", "app.py"),
    ("mote", "node"): ("mote.mjs", "index.mjs"),
    ("openfaas", "python"): ("openfaas.py", "handler.py"),
    ("openfaas", "node"): ("openfaas.js", "handler.js"),
    ("native", "python"): ("http_server.py", "server.py"),
    ("native", "node"): ("http_server.mjs", "server.mjs"),
    ("native", "go"): ("http_server.go", "main.go"),
    ("fetch", "node"): ("fetch.mjs", "server.mjs"),
    ("asgi", "python"): ("asgi.py", "server.py"),
    ("openwhisk", "node"): ("openwhisk.js", "handler.js"),
    ("fission", "node"): ("fission.mjs", "handler.mjs"),
    ("nuclio", "node"): ("nuclio.js", "handler.js"),
    ("tinyfaas", "node"): ("tinyfaas.js", "index.js"),
    ("program", "node"): ("program.mjs", "program.mjs"),
}
#: Workloads in Go exist only for the server without a platform, so no workload lists them.
GO = "workload.go"


class NotBuilt(Failed):
    """A program that a runtime needs is missing."""


@dataclass(frozen=True)
class Manifest:
    """The settings that a mote function receives in addition to its code."""

    name: str
    memory_mib: int = 64
    disk_mib: int = 16
    #: Size of the folder /data; 0 for none.
    data_mib: int = 0
    timeout_s: float = 60
    concurrency: int | None = None
    scale: Mapping[str, object] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    net: tuple[str, ...] = ()
    cpu: float | None = None
    compat: str | None = None
    runtime: str = "python"
    command: tuple[str, ...] = ()
    node_port: int | None = None

    def text(self) -> str:
        """The manifest as mote.toml; TOML writes texts, numbers and lists as JSON does."""
        lines = ["version = 1", f"name = {json.dumps(self.name)}", f'runtime = "{self.runtime}"']
        if self.command:
            lines.append(f"command = {json.dumps(list(self.command))}")
        if self.compat:
            lines.append(f'compat = "{self.compat}"')
        lines += [
            "[limits]",
            f'memory = "{self.memory_mib}MiB"',
            f'disk = "{self.disk_mib}MiB"',
            f'timeout = "{int(self.timeout_s * 1000)}ms"',
            'init_timeout = "60s"',
        ]
        if self.concurrency:
            lines.append(f"concurrency = {self.concurrency}")
        if self.cpu:
            lines.append(f"cpu = {self.cpu}")
        for section, values in (("scale", self.scale), ("env", self.env)):
            if values:
                lines.append(f"[{section}]")
                lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        if self.data_mib:
            lines += ["[files]", f'data = "{self.data_mib}MiB"']
        if self.node_port:
            lines += ["[http]", f"node_port = {self.node_port}"]
        if self.net:
            lines += ["[allow]", f"net = {json.dumps(list(self.net))}"]
        return "\n".join(lines) + "\n"


def assemble(
    workload: Workload,
    platform: str,
    runtime: str,
    into: Path,
    *,
    manifest: Manifest | None = None,
    with_packages: bool = True,
) -> Path:
    """Writes the folder from scratch and returns it."""
    has_it = (workload.folder / GO).exists() if runtime == "go" else runtime in workload.runtimes
    if not has_it:
        raise LookupError(f"{workload.name} has no version in {runtime}")
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    if manifest:
        (into / "mote.toml").write_text(manifest.text())
    if runtime == "rust":
        # All twins are one program, which is an HTTP server already and needs no adapter.
        if not TWINS.exists():
            raise NotBuilt("Rust workloads are not built: scripts/lab-setup.sh twins builds them")
        shutil.copy(TWINS, into)
        return into
    if runtime == "wasm":
        # The same program, which serves one call here.
        if not WASM_TWINS.exists():
            raise NotBuilt("no WebAssembly workloads: scripts/lab-setup.sh twins builds them")
        shutil.copy(WASM_TWINS, into)
        return into
    source, target = ADAPTERS[platform, runtime]
    shutil.copy(FOLDER / "adapters" / source, into / target)
    if runtime == "node":
        shutil.copy(workload.folder / "workload.mjs", into)
    elif runtime == "go":
        shutil.copy(workload.folder / GO, into)
    else:
        names = ["contract.py", *workload.modules]
        for path in [*workload.folder.glob("*.py"), *(FOLDER / name for name in names)]:
            if not path.name.startswith("test_"):
                shutil.copy(path, into)
        if workload.packages and with_packages:
            (into / "requirements.txt").write_text("\n".join(workload.packages) + "\n")
    return into
