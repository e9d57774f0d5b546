"""Once a second: a summary of what `station` counted, kept in the node's state. Callers read it."""

import json


def handle(event, ctx):
    weather = ctx.kv.shared("weather")
    if event.trigger != "schedule":
        return json.loads(weather.get("summary") or b"{}")
    count = {name: int(weather.get(name) or 0) for name in ("readings", "anomalies")}
    weather.put("summary", {**count, "at": event.headers["mote-schedule-due"]})
