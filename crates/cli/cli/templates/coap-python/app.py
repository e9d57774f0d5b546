from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # for editors, see mote.pyi
    from mote import Context, Event


def handle(event: Event, ctx: Context):
    if event.method in ("PUT", "POST"):
        ctx.kv.put("celsius", event.text)
        ctx.notify("/", event.text)  # to the clients that observe this resource
        return None
    celsius = ctx.kv.get("celsius")
    return celsius.decode() if celsius else "unknown"
