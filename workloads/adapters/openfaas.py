"""A workload as a handler of OpenFaaS's template python3-http."""

import json
import os
import sys

# The template imports this as `function.handler`; workloads name what lies beside them plainly.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import workload
from contract import respond


def handle(event, context):
    status, body = respond(workload, event.query)
    if getattr(workload, "PLAIN", False) and status == 200:
        return {"statusCode": 200, "body": body["text"], "headers": {"Content-Type": "text/plain"}}
    headers = {"Content-Type": "application/json"}
    return {"statusCode": status, "body": json.dumps(body), "headers": headers}
