"""A workload as a function of mote."""

import workload
from contract import respond


def handle(event, ctx):
    status, body = respond(workload, event.args)
    return body.get("text", body) if workload.__dict__.get("PLAIN") else body, status
