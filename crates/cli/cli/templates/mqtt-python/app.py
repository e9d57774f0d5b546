CELSIUS_MAX = 60


def handle(event, ctx):
    celsius = event.json()["celsius"]
    if celsius <= CELSIUS_MAX:
        return ""  # an empty answer is not published
    return {"alarm": f"{event.headers['mqtt-topic']} reports {celsius} degrees"}
