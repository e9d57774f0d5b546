"""A newcomer at a terminal: `newcomer.py MOTE FOLDER SOCKET`.

Begins a function, runs it in `mote dev --inspect`, stops it at a breakpoint, changes it, sees that the
last call is answered in another way, ends the session, and deploys the function to the node at SOCKET.
Prints what the terminal showed if something else happens. Needs pexpect, and Node.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pexpect

PATIENCE_S = 60


def main(mote, folder, socket):
    terminal = {"cwd": folder, "encoding": "utf-8", "timeout": PATIENCE_S, "dimensions": (40, 160)}
    new = pexpect.spawn(mote, ["new", "attic", "-t", "mqtt-node"], **terminal)
    new.expect("next:  mote dev attic")
    new.expect(pexpect.EOF)
    # A function with a handler, to stop in it.
    code = Path(folder, "attic", "index.mjs")
    Path(folder, "attic", "mote.toml").write_text("version = 1\n")
    types = "/** @param {import('./mote.d.ts').Event} event */\n"
    handler = "export function handle(event) {\n  const word = event.path.slice(1);\n  return word.%s();\n}\n"
    code.write_text(types + handler % "toUpperCase")

    flags = ["--inspect", "--replay", "--http", "127.0.0.1:0", "--color", "never"]
    dev = pexpect.spawn(mote, ["dev", "attic", *flags], **terminal)
    try:
        dev.expect(r"live attic@1.*(http://127\.0\.0\.1:\d+/attic)")
        url = dev.match.group(1)
        dev.expect(r"debugger at (127\.0\.0\.1:\d+);")
        debugger = [sys.executable, Path(__file__).with_name("debugger.py"), "node", dev.match.group(1)]
        stopped = subprocess.run(
            [*debugger, "index.mjs", "4", "word", url + "/ada"], capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert stopped.stdout == "ada\nADA\n", stopped
        dev.expect("200  GET /ada ")
        code.write_text(types + handler % "trim")
        dev.expect("live attic@2")
        dev.expect("again 200  GET /ada  the answer has changed")
        dev.expect(r"\+ ada")
        dev.send("q")
        dev.expect(pexpect.EOF)
        dev.close()
        assert dev.exitstatus == 0, dev
    except (pexpect.EOF, pexpect.TIMEOUT, AssertionError) as error:
        sys.exit(f"{error}\n{dev.before}")

    deploy = pexpect.spawn(mote, ["deploy", "attic"], env={**os.environ, "MOTE_SOCKET": socket}, **terminal)
    shown = deploy.read()
    deploy.close()
    if deploy.exitstatus != 0 or not re.search(r"attic", shown):
        sys.exit(shown)


if __name__ == "__main__":
    main(*sys.argv[1:])
