"""Fetches a JSON file, parses it and prints it with an indent."""

import json
import time
from urllib.parse import urlsplit
from urllib.request import urlopen

from contract import Missing

NAME, VERSION = "json-dumps-loads", 1
TIMEOUT_S = 60


def run(params, ctx):
    link = params.get("link") or ctx.setting("JSON_LINK")
    if urlsplit(link).scheme not in ("http", "https"):
        raise Missing("link: a URL with http or https")
    start = time.perf_counter()
    with urlopen(link, timeout=TIMEOUT_S) as answer:
        text = answer.read()
    fetched = time.perf_counter()
    records = json.loads(text)
    dumped = json.dumps(records, indent=4)
    end = time.perf_counter()
    return {
        "latency": end - fetched,
        "network": fetched - start,
        "check": {"records": len(records), "length": len(dumped)},
    }
