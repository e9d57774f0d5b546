import unittest
from types import SimpleNamespace

from app import handle


def reading(celsius):
    headers = {"mqtt-topic": "sensors/attic/temp"}
    return SimpleNamespace(headers=headers, json=lambda: {"celsius": celsius})


class AlarmTest(unittest.TestCase):
    def test_only_a_high_temperature_is_an_alarm(self):
        self.assertEqual(handle(reading(20), None), "")
        alarm = handle(reading(71), None)["alarm"]
        self.assertEqual(alarm, "sensors/attic/temp reports 71 degrees")
