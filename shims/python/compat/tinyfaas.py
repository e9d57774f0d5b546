"""tinyFaaS: `fn(input, headers)` in fn.py.

The caller receives 200 and the text whatever the function did, as on that platform; with
TINYFAAS_PASS_STATUS=1 in the environment, an exception is status 500.
"""

import os
import traceback

import mote_shim
from mote_compat import Known, title


@Known
def first_fields(block):
    """The first value of each name, as on that platform."""
    parts = block.decode("latin-1").split("\n")
    return dict(zip(map(title, parts[-3::-2]), parts[-2::-2]))


def adapt(worker):
    module, function, _ = mote_shim.find_entry(worker.spec["entry"])
    failed = 500 if os.environ.get("TINYFAAS_PASS_STATUS") == "1" else 200

    def handle(event):
        path, block, body = mote_shim.request_of(event)
        if len(path) > 1:
            return "", 404  # a function there has one address and nothing below it
        try:
            value = function(body.decode("utf-8") if body else None, first_fields[block].copy())
        except Exception as error:
            traceback.print_exc()
            return str(error), failed
        if value is None:
            return "", 200
        return value if isinstance(value, (str, bytes)) else str(value)

    return module, handle, "handle"
