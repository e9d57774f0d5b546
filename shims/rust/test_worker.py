"""Replays the dialogues in shims/conformance against a program built with the Rust library."""

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
        if not shutil.which("cargo"):
            print("SKIPPED: conformance of the Rust library: cargo is not installed", file=sys.stderr)
            raise unittest.SkipTest("cargo is not installed")
        cls.folder = tempfile.TemporaryDirectory()
        target = os.environ.get("MOTE_RUST_TARGET", cls.folder.name)
        command = ["cargo", "build", "--quiet", "--example", "shapes", "--target-dir", target]
        subprocess.run(command, cwd=HERE, check=True)
        cls.argv = [os.path.join(target, "debug", "examples", "shapes")]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def replay(self, dialogue):
        if dialogue["name"] in NOT_OF_A_PROGRAM:
            return
        # Threads end in any order.
        steps = []
        for step in dialogue["steps"]:
            if "expect" in step and steps and "expect" in steps[-1]:
                steps[-1] = {"expect": steps[-1]["expect"] + step["expect"], "any_order": True}
            else:
                steps.append({**step, "any_order": True} if "expect" in step else step)
        super().replay({**dialogue, "steps": steps})


def load_tests(loader, tests, pattern):
    return loader.loadTestsFromTestCase(Dialogues)
