from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # for editors, see mote.pyi
    from mote import Context, Event


def handle(event: Event, ctx: Context):
    name = event.args.get("name", "world")
    return {"message": f"Hello, {name}!"}
