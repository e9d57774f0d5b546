"""Checks the prose rules: each rule finds its examples in docs/.vale/examples.txt, and none finds
the others.

Usage: check-prose-rules.py VALE
"""

import json
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path("docs/.vale/examples.txt")
RULES = Path("docs/.vale/Mote")
CLEAN = "None of them"


def examples(text: str) -> dict[int, str]:
    """The examples by line, with the rule that has to find each."""
    found: dict[int, str] = {}
    rule = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("## "):
            rule = line.removeprefix("## ")
        elif line and rule:
            found[number] = rule
    return found


def main(vale: str) -> int:
    """Prints what is wrong; returns the exit status."""
    expected = examples(EXAMPLES.read_text(encoding="utf-8"))
    command = [vale, "--no-exit", "--output=JSON", str(EXAMPLES)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    alerts = {
        (alert["Line"], alert["Check"].removeprefix("Mote."))
        for file in json.loads(ended.stdout).values()
        for alert in file
        if alert["Line"] in expected
    }
    rules = {path.stem for path in RULES.glob("*.yml")}
    wrong = [f"{rule}: no example" for rule in sorted(rules - set(expected.values()))]
    for number, rule in expected.items():
        if rule != CLEAN and (number, rule) not in alerts:
            wrong.append(f"{EXAMPLES}:{number}: {rule} does not find its example")
    for number, rule in sorted(alerts):
        if expected.get(number) != rule:
            wrong.append(f"{EXAMPLES}:{number}: {rule} finds an example that is not its own")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
