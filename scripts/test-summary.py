#!/usr/bin/env python3
"""Adds up what the test runners printed: usage `test-summary.py LOG`.

Reads the closing lines of cargo test, node's runner, unittest and pytest. A test that could not run
here prints `SKIPPED: TEST: what: why`; it counts as skipped and not as passed, however its runner
counted it. A test that failed beside others and passed alone (`UNSTEADY: TEST`) counts as passed and
is named. The last line printed is `tests: N passed, N failed, N skipped`.
"""

import re
import sys

CARGO = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;")
NODE = re.compile(r"^# (pass|fail|skipped) (\d+)$")
UNITTEST = re.compile(r"^Ran (\d+) tests? in ")
UNITTEST_END = re.compile(r"^(?:OK|FAILED)(?: \((.*)\))?$")
PYTEST = re.compile(r"^(?:=+ )?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s")
UNSTEADY = re.compile(r"^UNSTEADY: ([\w:]+)$")
SKIPPED = re.compile(r"SKIPPED: ([\w:]+): (.*)$")


def summary(lines: list[str]) -> tuple[int, int, int, dict[str, list[str]], list[str]]:
    """The numbers of passed, failed and skipped tests by a runner's own count, the reasons by test of
    the others, and the unsteady tests."""
    passed = failed = counted = ran = 0
    named: dict[str, list[str]] = {}
    unsteady: list[str] = []
    for line in (line.rstrip("\n") for line in lines):
        if found := CARGO.match(line):
            passed, failed = passed + int(found[1]), failed + int(found[2])
            counted += int(found[3])
        elif found := NODE.match(line):
            count = int(found[2])
            passed += count if found[1] == "pass" else 0
            failed += count if found[1] == "fail" else 0
            counted += count if found[1] == "skipped" else 0
        elif found := UNITTEST.match(line):
            ran = int(found[1])
        elif ran and (found := UNITTEST_END.match(line)):
            words = dict(re.findall(r"(\w+)=(\d+)", found[1] or ""))
            bad = int(words.get("failures", 0)) + int(words.get("errors", 0))
            left_out = int(words.get("skipped", 0))
            passed, failed, counted = passed + ran - bad - left_out, failed + bad, counted + left_out
            ran = 0
        elif found := PYTEST.match(line):
            for count, word in re.findall(r"(\d+) ([a-z]+)", found[1]):
                passed += int(count) if word == "passed" else 0
                failed += int(count) if word in ("failed", "error", "errors") else 0
                counted += int(count) if word == "skipped" else 0
        elif found := UNSTEADY.match(line):
            unsteady.append(found[1])
        elif found := SKIPPED.search(line):
            reasons = named.setdefault(found[1], [])
            if found[2] not in reasons:
                reasons.append(found[2])
    passed += len(unsteady) - len(named)
    return passed, failed - len(unsteady), counted, named, unsteady


def main() -> None:
    with open(sys.argv[1], encoding="utf-8", errors="replace") as log:
        passed, failed, counted, named, unsteady = summary(log.readlines())
    for test, reasons in sorted(named.items()):
        print(f"skipped: {test}: {'; '.join(reasons)}")
    if counted:
        print(f"skipped: {counted} more, which their runners name above")
    for test in unsteady:
        print(f"unsteady, passed alone: {test}")
    print(f"tests: {passed} passed, {failed} failed, {counted + len(named)} skipped")


if __name__ == "__main__":
    main()
