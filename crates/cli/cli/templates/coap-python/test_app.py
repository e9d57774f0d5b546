import unittest
from types import SimpleNamespace

from app import handle


class Context:
    def __init__(self):
        values, self.notified = {}, []
        self.kv = SimpleNamespace(
            get=values.get, put=lambda key, text: values.update({key: text.encode()})
        )

    def notify(self, path, body):
        self.notified.append((path, body))


class ThermometerTest(unittest.TestCase):
    def test_keeps_the_last_reading_and_notifies(self):
        ctx = Context()
        self.assertEqual(handle(SimpleNamespace(method="GET"), ctx), "unknown")
        handle(SimpleNamespace(method="PUT", text="21.5"), ctx)
        self.assertEqual(handle(SimpleNamespace(method="GET"), ctx), "21.5")
        self.assertEqual(ctx.notified, [("/", "21.5")])
