def handle(event, ctx):
    name = event.args.get("name", "world")
    return {"message": f"Hello, {name}!"}
