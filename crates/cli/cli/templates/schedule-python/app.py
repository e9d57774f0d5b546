from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # for editors, see mote.pyi
    from mote import Context, Event


def handle(event: Event, ctx: Context):
    due = event.headers["mote-schedule-due"]
    ctx.log.info("the run of %s", due)
    return {"ran": due}
