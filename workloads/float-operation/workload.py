"""Sine, cosine and square root of each number below n: the interpreter and nothing else."""

import math
import time

from contract import number

NAME, VERSION = "float-operation", 1


def run(params, ctx):
    n = number(params, "number")
    start = time.perf_counter()
    for i in range(n):
        sine = math.sin(i)
        cosine = math.cos(i)
        root = math.sqrt(i)
    return {
        "latency": time.perf_counter() - start,
        "number": n,
        "check": sine + cosine + root,
    }
