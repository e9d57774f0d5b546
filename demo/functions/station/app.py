"""Receives readings from an MQTT broker, lets the function `thermo` judge them, and keeps counts in
the node's state. The answer to an unusual reading goes to the topic of its alarm."""


def handle(event, ctx):
    verdict = ctx.call("thermo", event.body).json()
    weather = ctx.kv.shared("weather")
    if verdict["anomaly"]:
        weather.increment("anomalies", 1, durable=False)
    weather.increment("readings", 1, durable=False)
    if verdict["anomaly"]:
        return {"sensor": verdict["sensor"], "celsius": event.json()["celsius"], "z": verdict["z"]}
