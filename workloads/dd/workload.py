"""The dd tool: zeros to a file, every block on the disk before the next."""

import os
import re
import shutil
import subprocess
import time

from contract import Missing, number, require, text

NAME, VERSION = "dd", 1
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def in_bytes(block):
    """What dd makes of a block size such as 64K."""
    found = re.fullmatch(r"(\d+)([KMG]?)", block)
    if not found or int(found[1]) == 0:
        raise Missing(f"bs: a size such as 64K or 100M, and not {block!r}")
    return int(found[1]) * UNITS[found[2]]


def by_tool(path, block, count):
    """dd's last line."""
    command = ["dd", "if=/dev/zero", f"of={path}", f"bs={block}", f"count={count}", "oflag=dsync"]
    done = subprocess.run(
        command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=True
    )
    return done.stderr.strip().splitlines()[-1]


def by_hand(path, block, count):
    """The same where there is no dd."""
    zeros = bytes(block)
    with path.open("wb", buffering=0) as file:
        for _ in range(count):
            file.write(zeros)
            os.fdatasync(file.fileno())


def run(params, ctx):
    block, count = text(params, "bs"), number(params, "count")
    wanted = in_bytes(block) * count
    path = ctx.folder() / "zeros"
    has_tool = shutil.which("dd") is not None
    start = time.perf_counter()
    message = by_tool(path, block, count) if has_tool else by_hand(path, in_bytes(block), count)
    elapsed = time.perf_counter() - start
    seconds = elapsed
    if has_tool:
        found = re.search(r"copied, ([0-9.e-]+) s", message)
        require(found is not None, f"dd said {message!r}")
        seconds = float(found[1])
    written = path.stat().st_size
    require(written == wanted, f"{written} bytes written of {wanted}")
    return {
        "message": message,
        "bs": block,
        "count": count,
        "bytes": written,
        "seconds": seconds,
        "bandwidth": written / max(seconds, 1e-9),
        "tool": "dd" if has_tool else "write and sync",
        "latency": elapsed,
        "check": written,
    }
