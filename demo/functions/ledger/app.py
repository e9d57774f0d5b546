"""Counts the alarms of a sensor in the node's state. The chain `alarm` calls it."""


def handle(event, ctx):
    return {"alarms": ctx.kv.increment("alarms/" + event.json())}
