"""Makes an invoice. Some orders have no address."""
import logging
import random
import time


def handle(event, ctx):
    time.sleep(random.uniform(0.004, 0.03))
    order = event.text or "4711"
    if order.endswith("7"):
        logging.warning("order %s has no address", order)
        raise KeyError(f"order {order}: address")
    print(f"order {order}: invoice of {int(order) % 17 + 2} positions")
    return {"order": order}
