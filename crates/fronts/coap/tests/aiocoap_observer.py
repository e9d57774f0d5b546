"""An aiocoap observer, for coap_observe.rs: URI on the command line.

Prints a line when it is registered, one for each notification (the payload, or its length where it
is long), and one for the end of the observation.
"""

import asyncio
import sys

import aiocoap
from aiocoap import Code, Message


def show(text):
    print(text, flush=True)


async def main():
    context = await aiocoap.Context.create_client_context()
    request = context.request(Message(code=Code.GET, uri=sys.argv[1], observe=0))
    first = await request.response
    show("registered %s" % first.payload.decode())
    try:
        async for response in request.observation:
            if not response.code.is_successful():
                show("error %s" % response.code.dotted)
                break
            payload = response.payload
            show(payload.decode() if len(payload) < 1000 else "%d bytes %s" % (len(payload), payload[-5:].decode()))
    except Exception as error:
        show("error %s" % type(error).__name__)
    await context.shutdown()


asyncio.run(main())
