"""What a template and its copies import before there is a function; see `mote_template.rehearse`."""

import os


def handle(event, ctx):
    return {"body": f"{os.sep}{event}", "headers": [(name, str(len(name))) for name in ("a", "b")]}
