"""Measures what schedules at rest cost. Usage: schedules.py BINARY RESULT.json.

Two nodes have the same functions, one without and one with schedules, none of which is due during
the measurement. Both were restarted after the deploys, so that these do not count. The bars are
those of SPECIFICATION.md.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

from footprint import SETTLE_SECONDS, Node, commit, machine, process_usage, wait_until_idle

FUNCTIONS = 100
SCHEDULES = 100  # of each function: the most that it may have
CPU_SECONDS = 30
ADDED_MIB_BAR = 10.0
CPU_PERCENT_BAR = 1.0
FUNCTION = "def handle(event, ctx):\n    return 'ok'\n"
MANIFEST = 'version = 1\nruntime = "python"\nentry = "app:handle"\n[scale]\nidle = "100ms"\n'


def triggers(function):
    """Expressions that all differ, and that are due in 2 to 21 hours."""
    hour = time.gmtime().tm_hour
    text = []
    for number in range(SCHEDULES):
        at = function * SCHEDULES + number
        cron = f"{at % 60} {at // 60 % 60} {(hour + 2 + at % 19) % 24} * * *"
        text.append(f'[[trigger]]\ncron = "{cron}"\nmissed = "run-once"\n')
    return "".join(text)


def cpu_seconds(pid):
    # The name of the program is in parentheses and may contain spaces.
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_node(binary, folder, has_schedules):
    source = folder / "function"
    source.mkdir(parents=True)
    folder.chmod(0o755)
    (source / "app.py").write_text(FUNCTION)
    node = Node(binary, folder)
    began = time.perf_counter()
    for number in range(FUNCTIONS):
        extra = triggers(number) if has_schedules else ""
        (source / "mote.toml").write_text(MANIFEST + extra)
        node.mote("deploy", source, "--name", f"f{number}")
    deploys_s = time.perf_counter() - began
    wait_until_idle(node)
    node.stop()
    node = Node(binary, folder)
    time.sleep(SETTLE_SECONDS)
    before = cpu_seconds(node.child.pid)
    time.sleep(CPU_SECONDS)
    used = cpu_seconds(node.child.pid) - before
    usage = process_usage(node.child.pid)
    # The list takes memory, so it comes last.
    found = json.loads(node.mote("schedules", "-o", "json"))["schedules"]
    expected = FUNCTIONS * SCHEDULES if has_schedules else 0
    if len(found) != expected or any(one.get("last") for one in found):
        sys.exit(f"{len(found)} schedules, {expected} expected, or one was due")
    ready_ms = node.ready_ms
    node.stop()
    return {
        **usage,
        "cpu_percent_of_a_core": round(100 * used / CPU_SECONDS, 3),
        "deploys_s": round(deploys_s, 1),
        "ready_ms": round(ready_ms, 1),
    }


def measure(binary, folder):
    without = measure_node(binary, folder / "without", has_schedules=False)
    with_them = measure_node(binary, folder / "with", has_schedules=True)
    return {
        "binary": pathlib.Path(binary).parent.name,
        "functions": FUNCTIONS,
        "schedules": FUNCTIONS * SCHEDULES,
        "without": without,
        "with": with_them,
        "added_mib": round(with_them["rss_mib"] - without["rss_mib"], 2),
        "added_anon_mib": round(with_them["rss_anon_mib"] - without["rss_anon_mib"], 2),
    }


def show(result):
    """Prints the result. Returns the names of rows whose bar was missed."""
    missed = []

    def row(name, value, unit, bar=None):
        verdict = "" if bar is None else f"bar {bar:g}: {'OK' if value < bar else 'MISSED'}"
        if bar is not None and value >= bar:
            missed.append(name)
        print(f"{name:<46}{value:>9.2f} {unit:<8}{verdict}")

    with_them, without = result["with"], result["without"]
    count = f"{result['schedules']} schedules at rest"
    row(f"{count}: added memory", result["added_mib"], "MiB", ADDED_MIB_BAR)
    row(f"{count}: CPU of a core", with_them["cpu_percent_of_a_core"], "%", CPU_PERCENT_BAR)
    row("without them: CPU of a core", without["cpu_percent_of_a_core"], "%")
    row(f"{count}: start to ready", with_them["ready_ms"], "ms")
    row("without them: start to ready", without["ready_ms"], "ms")
    return missed


def main():
    binary, target = sys.argv[1:]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mote-bench"))
    folder.chmod(0o755)
    try:
        result = measure(binary, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    result = {"commit": commit(), "date": date, "machine": machine(), **result}
    pathlib.Path(target).write_text(json.dumps(result, indent=1) + "\n")
    on = result["machine"]
    print(f"{on['cpu']}, {on['cores']} cores, Linux {on['kernel']}, load {on['load_1min']:.1f}")
    missed = show(result)
    print("written to " + target)
    if missed:
        sys.exit("missed: " + ", ".join(missed))


if __name__ == "__main__":
    main()
