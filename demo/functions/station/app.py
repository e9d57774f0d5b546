"""Receives readings from an MQTT broker, lets the function `thermo` judge them, and keeps counts in
the node's state. An unusual reading begins a run of the chain `alarm`, which the node journals."""

import json


def handle(event, ctx):
    verdict = ctx.call("thermo", event.body).json()
    weather = ctx.kv.shared("weather")
    if verdict["anomaly"]:
        weather.increment("anomalies", 1, durable=False)
        unusual = {"sensor": verdict["sensor"], "celsius": event.json()["celsius"]}
        ctx.call_async("alarm", json.dumps(unusual))
    weather.increment("readings", 1, durable=False)
