"""Flags unusual temperatures: a rolling mean and standard deviation for each sensor.

    {"sensor": "attic", "celsius": 21.5, "at": "2010-01-01T00:00"}
 -> {"sensor": "attic", "mean": 21.3, "sd": 0.4, "z": 0.5, "anomaly": false}

The window is short enough to follow the day and long enough for a steady deviation. A flagged
reading enters the statistics only as far as the limit it passed: in full, the first fault would
hide the second; left out, a change of weather would be flagged for ever.
"""

import collections
import math

WINDOW = 24  # readings; a day of hourly ones
WARM_UP = 8  # readings before anything is flagged
Z_MAX = 3.0
SD_MIN = 0.5  # a sensor's own resolution: steadier readings than this are luck
SENSORS_MAX = 10_000  # memory is bounded: the sensor unheard for longest is forgotten


class Rolling:
    """Mean and standard deviation of the last WINDOW values, in constant time."""

    __slots__ = ("values", "total", "squares")

    def __init__(self):
        self.values = collections.deque()
        self.total = self.squares = 0.0

    def add(self, value):
        self.values.append(value)
        self.total += value
        self.squares += value * value
        if len(self.values) > WINDOW:
            old = self.values.popleft()
            self.total -= old
            self.squares -= old * old

    def mean(self):
        return self.total / len(self.values) if self.values else 0.0

    def sd(self):
        count = len(self.values)
        if count < 2:
            return 0.0
        # Rounding may leave a tiny negative; temperatures are small, so nothing else is lost.
        return math.sqrt(max(0.0, (self.squares - self.total * self.total / count) / (count - 1)))


class Monitor:
    """The statistics of every sensor."""

    def __init__(self):
        self.sensors = collections.OrderedDict()

    def observe(self, sensor, celsius):
        rolling = self.sensors.setdefault(sensor, Rolling())
        self.sensors.move_to_end(sensor)
        if len(self.sensors) > SENSORS_MAX:
            self.sensors.popitem(last=False)
        known = len(rolling.values)
        mean = rolling.mean() if known else celsius
        sd = rolling.sd()
        unit = max(sd, SD_MIN)
        z = (celsius - mean) / unit
        anomaly = known >= WARM_UP and abs(z) > Z_MAX
        rolling.add(mean + math.copysign(Z_MAX * unit, z) if anomaly else celsius)
        return {"sensor": sensor, "mean": round(mean, 3), "sd": round(sd, 3), "z": round(z, 3), "anomaly": anomaly}


monitor = Monitor()


def handle(event, ctx):
    try:
        reading = event.json()
        sensor, celsius = str(reading["sensor"]), float(reading["celsius"])
        if not math.isfinite(celsius):
            raise ValueError("celsius is not a number")
    except (ValueError, KeyError, TypeError) as error:
        return {"error": "expected {\"sensor\": …, \"celsius\": …}: %s" % error}, 400
    answer = monitor.observe(sensor, celsius)
    if answer["anomaly"]:
        ctx.log.warning("%s reads %.1f °C, %.1f deviations off", sensor, celsius, answer["z"])
    return answer
