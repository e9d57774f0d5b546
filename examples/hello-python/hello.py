def handle(event, ctx):
    return "mote"
