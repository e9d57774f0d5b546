"""The function that the dialogues call; `shapes.mjs` is its twin."""

import asyncio

released = asyncio.Event()


async def handle(event, ctx):
    global released
    if event.path == "/hello":
        return "mote"
    if event.path == "/kv":
        return await ctx.kv.get("k")
    if event.path == "/kv-put":
        return str(await ctx.kv.shared("site").put("key", "value", ttl=60, version=5, durable=False))
    if event.path == "/kv-increment":
        return str(await ctx.kv.increment("n", -2))
    if event.path == "/notify":
        return str(await ctx.notify("/t", "21.5", max_age=60))
    if event.path == "/notify-ask":
        try:
            return str(await ctx.notify("/t?unit=k"))
        except ctx.kv.Error as error:
            return "%s %s" % (error.code, error)
    if event.path == "/call":
        reply = await ctx.call("other", "body", path="/x", query="a=b", headers={"x-a": "1"}, timeout=0.25)
        return "%d %s %s" % (reply.status, reply.headers["x-b"], reply.text)
    if event.path == "/publish":
        try:
            await ctx.publish("a/b", "body", qos=2, retain=True, response_topic="r", correlation="c", user={"k": "v"})
        except Exception as error:
            return "%s %s" % (error.code, error)
        return "published"
    if event.path == "/none":
        return None
    if event.path == "/wait":
        await released.wait()
        return "waited"
    if event.path == "/release":
        released.set()
        released = asyncio.Event()
        return "released"
    if event.path == "/big":
        return b"x" * ((64 + 320) * 1024)
    if event.path == "/echo":
        return event.body, 201, {"content-type": event.headers.get("content-type", "none"), "X-Seen": event.headers.get("x-twice")}
    if event.path == "/size":
        return str(len(event.body))
    if event.path == "/fail":
        raise ValueError("boom")
    if event.path == "/bad-header":
        return "x", 200, {"x-bad": "a\nb"}
    if event.path == "/bad-status":
        return "x", 199
    if event.path == "/log":
        print("one")
        await asyncio.sleep(0)
        print("two", end="")
        return "logged"
    if event.path == "/hang":
        await asyncio.Event().wait()
    if event.path == "/stream":
        return stream()
    return "no such path", 404


async def stream():
    yield "a"
    yield b"b"
