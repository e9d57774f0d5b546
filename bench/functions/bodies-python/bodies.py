"""Large bodies, never held whole in memory: /consume reports what it received, /produce?bytes=N
makes a body, and /echo sends back what arrives."""

import hashlib

CHUNK = b"mote" * (16 << 10)
stream_request = True


async def consume(chunks):
    digest, size = hashlib.sha256(), 0
    async for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
    return {"bytes": size, "sha256": digest.hexdigest()}


async def produce(size):
    while size > 0:
        yield CHUNK[:size]
        size -= len(CHUNK)


async def handle(event, ctx):
    if event.path == "/consume":
        return await consume(event.astream())
    if event.path == "/produce":
        return produce(int(event.args["bytes"]))
    return event.astream()
