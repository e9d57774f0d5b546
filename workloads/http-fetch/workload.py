"""Fetches a page of an HTTP server and answers with its text."""

from urllib.parse import urljoin
from urllib.request import urlopen

from contract import require

NAME, VERSION = "http-fetch", 1
PLAIN = True
TIMEOUT_S = 10


def run(params, ctx):
    url = urljoin(ctx.setting("PAGES_URL"), params.get("page", "4"))
    with urlopen(url, timeout=TIMEOUT_S) as answer:
        text = answer.read().decode("ascii")
        expected = answer.headers.get("content-length")
    require(len(text) == int(expected or -1), f"{len(text)} bytes of {expected}")
    return {"text": text, "check": "ok"}
