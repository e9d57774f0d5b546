"""One aiocoap request, for coap_interop.rs: method, URI, and options as JSON on the command line.

Prints the answer as JSON: code, content format, observe, payload length and its SHA-256, and the
payload itself where it is short.
"""

import asyncio
import hashlib
import json
import sys

import aiocoap
from aiocoap import Code, Message
from aiocoap.numbers.types import Type


async def main():
    wanted = json.loads(sys.argv[1])
    context = await aiocoap.Context.create_client_context()
    payload = bytes(at % 251 for at in range(wanted.get("bytes", 0)))
    request = Message(code=getattr(Code, wanted["method"]), uri=wanted["uri"], payload=payload)
    if wanted.get("non"):
        request.mtype = Type.NON
    if "format" in wanted:
        request.opt.content_format = wanted["format"]
    if "accept" in wanted:
        request.opt.accept = wanted["accept"]
    if wanted.get("observe"):
        request.opt.observe = 0
    requester = context.request(request, handle_blockwise=True)
    response = await requester.response
    answer = {
        "code": response.code.dotted,
        "format": response.opt.content_format,
        "observe": response.opt.observe,
        "length": len(response.payload),
        "sha256": hashlib.sha256(response.payload).hexdigest(),
    }
    if len(response.payload) < 4096:
        answer["text"] = response.payload.decode("utf-8", "replace")
    print(json.dumps(answer, default=int))
    await context.shutdown()


asyncio.run(main())
