import logging
import unittest
from types import SimpleNamespace

from app import handle


class RunTest(unittest.TestCase):
    def test_logs_when_it_was_due(self):
        event = SimpleNamespace(headers={"mote-schedule-due": "2026-01-31T12:00:00Z"})
        log = logging.getLogger("schedule")
        with self.assertLogs(log) as logged:
            handle(event, SimpleNamespace(log=log))
        self.assertIn("2026-01-31T12:00:00Z", logged.output[0])
