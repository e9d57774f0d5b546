"""Waits as a function does that asks another service, and uses almost no processor time."""

from time import sleep

from contract import require

NAME, VERSION = "wait", 1
PLAIN = True


def run(params, ctx):
    milliseconds = int(params.get("milliseconds", "90"))
    require(0 <= milliseconds <= 60_000, "milliseconds must be between 0 and 60000")
    sleep(milliseconds / 1000)
    return {"text": str(milliseconds), "check": "ok"}
