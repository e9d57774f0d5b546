"""Answers with what it was sent; /inspect describes the request instead."""


def handle(event, ctx):
    if event.path == "/inspect":
        return {
            "method": event.method,
            "path": event.path,
            "query": event.query,
            "headers": dict(event.headers),
            "trigger": event.trigger,
            "id": event.id,
        }
    return event.body, 200, {"content-type": event.headers.get("content-type", "application/octet-stream")}
