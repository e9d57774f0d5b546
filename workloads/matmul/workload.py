"""Product of two random matrices, proved by Freivalds' test."""

import time

import blas
import numpy
from contract import number, require

NAME, VERSION = "matmul", 1
ERROR_MAX = 1e-8


def run(params, ctx):
    n = number(params, "number")
    random = numpy.random.default_rng()
    a, b = random.random((n, n)), random.random((n, n))
    start = time.perf_counter()
    c = numpy.matmul(a, b)
    latency = time.perf_counter() - start
    # A wrong product passes with the probability that the vector is in a subspace: never, nearly.
    v = random.random(n)
    expected = a @ (b @ v)
    error = float(numpy.max(numpy.abs(c @ v - expected) / numpy.abs(expected)))
    require(error < ERROR_MAX, f"the product is off by {error}")
    return {"latency": latency, "number": n, "blas_threads": blas.THREADS, "check": "ok"}
