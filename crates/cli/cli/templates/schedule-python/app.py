def handle(event, ctx):
    due = event.headers["mote-schedule-due"]
    ctx.log.info("the run of %s", due)
    return {"ran": due}
