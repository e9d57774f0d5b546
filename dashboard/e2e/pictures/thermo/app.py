"""Keeps the last reading of each sensor."""
import json


def handle(event, ctx):
    reading = json.loads(event.text or "{}")
    sensor = reading.get("sensor", "hall")
    celsius = float(reading.get("celsius", 20))
    ctx.kv.put(sensor, json.dumps({"celsius": celsius, "battery": reading.get("battery", 97)}))
    if celsius > 27:
        print(f"{sensor}: {celsius:.1f} °C is above the limit of 27 °C")
    return {"sensor": sensor, "stored": True}
