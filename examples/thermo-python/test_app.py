"""A function is plain Python: `python3 -m unittest` in this folder needs nothing of mote."""

import json
import logging
import statistics
import unittest

import app


class Event:
    def __init__(self, body):
        self.body = body

    def json(self):
        return json.loads(self.body)


class Context:
    log = logging.getLogger("thermo")


class MonitorTest(unittest.TestCase):
    def test_statistics_are_those_of_the_last_readings(self):
        monitor, values = app.Monitor(), [20 + (i * 7 % 11) / 10 for i in range(100)]
        for value in values:
            self.assertFalse(monitor.observe("a", value)["anomaly"])
        answer = monitor.observe("a", 20)
        self.assertAlmostEqual(answer["mean"], statistics.mean(values[-app.WINDOW :]), 3)
        self.assertAlmostEqual(answer["sd"], statistics.stdev(values[-app.WINDOW :]), 3)

    def test_an_outlier_is_flagged_and_does_not_hide_the_next(self):
        monitor = app.Monitor()
        for i in range(20):
            monitor.observe("a", 20 + i % 2)
        self.assertTrue(monitor.observe("a", 60)["anomaly"])
        self.assertTrue(monitor.observe("a", -20)["anomaly"])
        self.assertFalse(monitor.observe("a", 21)["anomaly"])

    def test_a_lasting_change_becomes_usual(self):
        monitor = app.Monitor()
        for i in range(30):
            monitor.observe("a", 20 + i % 2)
        seen = [monitor.observe("a", 40 + i % 2)["anomaly"] for i in range(app.WINDOW)]
        self.assertTrue(seen[0])
        self.assertFalse(seen[-1])

    def test_sensors_are_apart_and_the_first_readings_pass(self):
        monitor = app.Monitor()
        for i in range(20):
            monitor.observe("cold", -10)
        self.assertFalse(monitor.observe("warm", 40)["anomaly"])

    def test_sensors_are_bounded(self):
        monitor = app.Monitor()
        for i in range(app.SENSORS_MAX + 5):
            monitor.observe(str(i), 1)
        self.assertEqual(len(monitor.sensors), app.SENSORS_MAX)


class HandleTest(unittest.TestCase):
    def test_answer(self):
        answer = app.handle(Event('{"sensor": "x", "celsius": 3}'), Context)
        self.assertEqual(answer, {"sensor": "x", "mean": 3.0, "sd": 0.0, "z": 0.0, "anomaly": False})

    def test_wrong_input_is_the_callers_fault(self):
        for body in ("", "[]", "{}", '{"sensor":"a","celsius":"warm"}', '{"sensor":"a","celsius":NaN}'):
            self.assertEqual(app.handle(Event(body), Context)[1], 400, body)


if __name__ == "__main__":
    unittest.main()
