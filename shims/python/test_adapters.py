"""Adapters use only those parts of the shim that are offered to them."""

import ast
import glob
import os
import unittest

import mote_worker.adapters
from engine_double import HERE

OF_THE_WORKER = {"spec", "text", "root", "logger", "at_end", "part"}


def uses(source):
    """What an adapter uses of the shim and of the worker, and the private attributes it touches."""
    shim, worker, private = set(), set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in ("mote_shim", "__main__"):
            shim.update(alias.name for alias in node.names)
        if not isinstance(node, ast.Attribute):
            continue
        owner = ast.unparse(node.value)
        if owner == "mote_shim":
            shim.add(node.attr)
        elif owner.rpartition(".")[2] in ("worker", "_worker"):
            worker.add(node.attr)
        if node.attr.startswith("_") and not node.attr.startswith("__") and owner != "self":
            private.add("%s.%s" % (owner, node.attr))
    return shim, worker, private


class Adapters(unittest.TestCase):
    def test_what_adapters_use_is_offered(self):
        used = set()
        for path in sorted(glob.glob(os.path.join(HERE, "compat", "*.py"))):
            with self.subTest(os.path.basename(path)), open(path, encoding="utf-8") as file:
                shim, worker, private = uses(file.read())
                self.assertEqual(private, set())
                self.assertLessEqual(shim, set(mote_worker.adapters.__all__))
                self.assertLessEqual(worker, OF_THE_WORKER)
                used |= shim
        self.assertEqual(used, set(mote_worker.adapters.__all__), "what no adapter uses need not be offered")

    def test_a_use_of_something_private_is_found(self):
        source = "import mote_shim\nmote_shim.Worker\nworker.out\nself._worker.flush()\nevent._payload\nself._own"
        found = ({"Worker"}, {"out", "flush"}, {"event._payload"})
        self.assertEqual(uses(source), found)

    def test_the_shim_has_what_is_offered(self):
        import mote_shim

        for name in mote_worker.adapters.__all__:
            self.assertTrue(callable(getattr(mote_shim, name)), name)


if __name__ == "__main__":
    unittest.main()
