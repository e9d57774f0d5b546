import unittest
from types import SimpleNamespace

import count
import judge


def event(**data):
    return SimpleNamespace(json=lambda: data)


class ChainTest(unittest.TestCase):
    def test_judge(self):
        self.assertTrue(judge.handle(event(value=91), None)["anomaly"])
        self.assertFalse(judge.handle(event(value=20), None)["anomaly"])

    def test_count(self):
        ctx = SimpleNamespace(kv=SimpleNamespace(increment=lambda key: {"alarms/attic": 3}[key]))
        self.assertEqual(count.handle(event(sensor="attic"), ctx)["alarms"], 3)
