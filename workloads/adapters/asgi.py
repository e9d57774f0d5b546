"""A workload as an ASGI application, for any server of such.

With one thread, the application answers in the server's loop, which is the fastest way for work that
does not wait. With more, $THREADS workers share the calls, as behind the `def` of a framework.
"""

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qsl

import workload
from contract import respond

THREADS = int(os.environ.get("THREADS", "1"))
POOL = ThreadPoolExecutor(THREADS) if THREADS > 1 else None


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    query = dict(parse_qsl(scope["query_string"].decode()))
    if POOL:
        loop = asyncio.get_running_loop()
        status, body = await loop.run_in_executor(POOL, respond, workload, query)
    else:
        status, body = respond(workload, query)
    is_plain = getattr(workload, "PLAIN", False) and status == 200
    data = (body["text"] if is_plain else json.dumps(body)).encode()
    kind = b"text/plain" if is_plain else b"application/json"
    headers = [(b"content-type", kind), (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})
