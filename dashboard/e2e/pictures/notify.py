"""Tells somebody that a sensor is too warm."""


def handle(event):
    if "cellar" in (event.text or ""):
        raise ConnectionError("the mail server mail.example.org does not answer")
    print(f"mail sent: {event.text}")
    return "sent"
