def handle(event):
    return "hello " + (event.text or "world")
