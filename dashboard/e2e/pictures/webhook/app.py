"""Receives events of the shop."""


def handle(event, ctx):
    return {"accepted": True}
