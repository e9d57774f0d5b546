def handle(event, ctx):
    return {"anomaly": event.json()["value"] > 80}
