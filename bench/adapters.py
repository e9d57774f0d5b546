"""Processor time of a worker per call of `hello` under each platform's contract, without a node.

The shims run as they do in an instance, on one end of a socket pair; this program, on the other
end, sends batches of calls and reads the process's own clock before and after each batch. Contracts
are measured in turn, round by round. The smallest value of the rounds counts, since other programs
can only add time. This script is for work on the adapters; `contracts.py` measures what a caller
sees.

Usage: adapters.py [--rounds N] [--calls N] [--batch N] [--languages python,node] [--only NAME,NAME]
                   [--headers] [--profile FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from contracts import BESIDE, CONTROL, FUNCTIONS, NATIVE, OURS

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "shims" / "python")]

from engine_double import Engine, encode  # noqa: E402

#: What wrk sends, and what a browser behind a proxy adds.
FEW = [["host", "127.0.0.1:8080"]]
MANY = [
    *FEW,
    ["user-agent", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"],
    ["accept", "text/html,application/json;q=0.9"],
    ["accept-encoding", "gzip, deflate, br"],
    ["accept-language", "en"],
    ["cookie", "a=b; c=d"],
    ["x-forwarded-for", "10.0.0.7"],
    ["x-forwarded-proto", "https"],
    ["x-request-id", "4c8a0c"],
]
ENTRIES = {
    "tinyfaas": "fn",
    "openfaas": "handle",
    "nuclio": "handler",
    "openwhisk": "main",
    "fission": "main",
    "knative": "new",
}
WARM_UP_CALLS = 4000


class Shim(Engine):
    """A worker with one function, and its processor time."""

    def __init__(self, language: str, contract: str, folder: Path, profile: str | None) -> None:
        file, text, more = FUNCTIONS[language][contract]
        folder.mkdir()
        (folder / file).write_text(text)
        given = dict(line.split(" = ") for line in more.splitlines())
        entry = json.loads(given["entry"]) if "entry" in given else None
        if language == "python":
            argv = [sys.executable, "-u", "-s", "-B", str(ROOT / "shims/python/mote_shim.py")]
            entry = entry or f"{file[:-3]}:{ENTRIES.get(contract, 'handle')}"
        else:
            argv = [
                "node",
                *(["--cpu-prof", f"--cpu-prof-name={profile}"] if profile else []),
                str(ROOT / "shims/node/mote_shim.mjs"),
            ]
            entry = entry or file
        super().__init__(str(folder), entry, load=False, argv=argv)
        load = {
            "function": "fn",
            "revision": 3,
            "code_dir": str(folder),
            "packages_dir": None,
            "entry": entry,
            "concurrency": None,
            "env": {},
        }
        if contract not in OURS:
            load["compat"] = contract
        self.send({"kind": "LOAD", "stream": 0, "json": load})
        ready = self.read()
        if ready["kind"] != "READY":
            raise SystemExit(f"{language}, {contract}: {ready}")

    def cpu_ns(self) -> int:
        # The clock of another process (clock_getcpuclockid(3)).
        return time.clock_gettime_ns(~self.process.pid << 3 | 2)

    def calls(self, count: int, batch: int, fields: list[list[str]]) -> float:
        """Microseconds per call."""
        frames = b"".join(
            encode(
                {
                    "kind": "INVOKE",
                    "stream": one,
                    "end": True,
                    "method": "GET",
                    "path": "/",
                    "headers": fields,
                    "remaining_ms": 60000,
                }
            )
            for one in range(1, batch + 1)
        )
        started = self.cpu_ns()
        for _ in range(count // batch):
            self.sock.sendall(frames)
            for _ in range(batch):
                frame = self.read()
                if frame["kind"] != "RESULT" or frame["body"] != b"hello":
                    raise SystemExit(f"wrong answer: {frame}")
        return (self.cpu_ns() - started) / count / 1000


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-adapters", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=3000, help="per round and contract")
    parser.add_argument("--batch", type=int, default=16, help="calls that are sent at once")
    parser.add_argument(
        "--languages", type=lambda text: text.split(","), default=["python", "node"]
    )
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        help="contracts; those they stand beside are added",
    )
    parser.add_argument("--headers", action="store_true", help="nine header fields instead of one")
    parser.add_argument(
        "--profile", help="Node: a CPU profile of the contract that --only names goes there"
    )
    options = parser.parse_args()
    for language in options.languages:
        with tempfile.TemporaryDirectory(prefix="mote-adapters") as folder:
            wanted = [one for one in FUNCTIONS[language] if "classic" not in one and one != CONTROL]
            if options.only:
                wanted = [one for one in wanted if one in options.only or one in OURS]
            shims = {
                one: Shim(
                    language,
                    one,
                    Path(folder) / str(at),
                    options.profile if options.only and one in options.only else None,
                )
                for at, one in enumerate(wanted)
            }
            fields = MANY if options.headers else FEW
            for shim in shims.values():
                shim.calls(WARM_UP_CALLS, options.batch, fields)
            best = dict.fromkeys(wanted, float("inf"))
            for _ in range(options.rounds):
                for one, shim in shims.items():
                    best[one] = min(best[one], shim.calls(options.calls, options.batch, fields))
            for one, us in best.items():
                ours = best[BESIDE.get((language, one), NATIVE)]
                print(
                    f"{language}: {one:12} {us:7.2f} us per call, {us - ours:+6.2f} to ours",
                    flush=True,
                )
            for shim in shims.values():
                shim.send({"kind": "DRAIN", "stream": 0})
                shim.process.wait()
                shim.__exit__()
    return 0


if __name__ == "__main__":
    sys.exit(main())
