"""Makes a small picture of a large one."""
import hashlib
import random
import time


def handle(event, ctx):
    data = b"pixel" * 20_000
    for _ in range(random.randrange(2, 30)):
        data = hashlib.sha512(data).digest() * 1_500
    time.sleep(random.choice([0.03, 0.05, 0.08, 0.4]))
    print("a picture of 4,032 × 3,024 pixels is now 320 × 240")
    return {"width": 320}
