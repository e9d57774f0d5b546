def handle(event, ctx):
    sensor = event.json()["sensor"]
    return {"sensor": sensor, "alarms": ctx.kv.increment("alarms/" + sensor)}
