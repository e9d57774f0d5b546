def handle(event, ctx):
    if event.method in ("PUT", "POST"):
        ctx.kv.put("celsius", event.text)
        ctx.notify("/", event.text)  # to the clients that observe this resource
        return None
    celsius = ctx.kv.get("celsius")
    return celsius.decode() if celsius else "unknown"
