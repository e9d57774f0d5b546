"""Runs the tests of the package that Go functions import, which replay shims/conformance."""

import os
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


class CloudEvents(unittest.TestCase):
    def test_the_package(self):
        if not shutil.which("go"):
            print("SKIPPED: CloudEvents of the Go worker: Go is not installed", file=sys.stderr)
            raise unittest.SkipTest("Go is not installed")
        command = ["go", "test", "-vet=all", "./provided/mote"]
        subprocess.run(command, cwd=HERE, env={**os.environ, "CGO_ENABLED": "0"}, check=True)
