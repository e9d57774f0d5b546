from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # for editors, see mote.pyi
    from mote import Context, Event

CELSIUS_MAX = 60


def handle(event: Event, ctx: Context):
    celsius = event.json()["celsius"]
    if celsius <= CELSIUS_MAX:
        return ""  # an empty answer is not published
    return {"alarm": f"{event.headers['mqtt-topic']} reports {celsius} degrees"}
