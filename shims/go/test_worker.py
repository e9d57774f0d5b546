"""Replays the dialogues in shims/conformance against a program built with the Go worker."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "python"))

import test_conformance as python  # noqa: E402

# A program that is a single function can neither choose another entry nor tell to which call a
# printed line belongs.
NOT_OF_A_PROGRAM = ("load error", "lines carry their invocation")


class Dialogues(python.Dialogues):
    @classmethod
    def setUpClass(cls):
        if not shutil.which("go"):
            print("SKIPPED: conformance of the Go worker: Go is not installed", file=sys.stderr)
            raise unittest.SkipTest("Go is not installed")
        cls.folder = tempfile.TemporaryDirectory()
        cls.argv = [os.path.join(cls.folder.name, "shapes")]
        env = {**os.environ, "CGO_ENABLED": "0"}
        subprocess.run(["go", "build", "-buildvcs=false", "-o", cls.argv[0], "./shapes"], cwd=HERE, env=env, check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def replay(self, dialogue):
        if dialogue["name"] in NOT_OF_A_PROGRAM:
            return
        steps = []
        for step in dialogue["steps"]:
            # Goroutines end in any order.
            if "expect" in step and steps and "expect" in steps[-1]:
                steps[-1] = {"expect": steps[-1]["expect"] + step["expect"], "any_order": True}
            else:
                steps.append({**step, "any_order": True} if "expect" in step else step)
        super().replay({**dialogue, "steps": steps})

    def step(self, engine, step):
        # The last Write does not know that it is the last one, so the end follows separately.
        ends = "expect_bytes" in step and step.get("end", False)
        super().step(engine, {**step, "end": False} if ends else step)
        if ends:
            frame = engine.read()
            self.compare(frame, {"kind": "BODY", "stream": step["stream"], "end": True, "payload": ""})


def load_tests(loader, tests, pattern):
    return loader.loadTestsFromTestCase(Dialogues)
