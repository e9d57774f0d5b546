"""Fission: `main()`, with the request in Flask's globals."""

import sys

import mote_shim
from mote_compat import HTML_BLOCK, flask_app, flask_value, nothing_to_call


def adapt(worker):
    try:
        module, function, _ = mote_shim.find_entry(worker.spec["entry"])
    except ModuleNotFoundError as error:
        if error.name == "flask":
            error.msg += " (Fission's environment brings Flask along: name it in requirements.txt)"
        raise
    if "flask" in sys.modules:
        return nothing_to_call(), flask_app(lambda event: function()), "app"

    worker.text = HTML_BLOCK

    def handle(event):
        return flask_value(function())

    return nothing_to_call(), handle, "handle"
