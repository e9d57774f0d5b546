"""Solves a random system of linear equations whose solution is all ones."""

import time

import blas
import numpy
from contract import number, require

NAME, VERSION = "linpack", 1
ERROR_MAX = 1e-6


def run(params, ctx):
    n = number(params, "number")
    random = numpy.random.default_rng()
    a = random.random((n, n)) - 0.5
    b = a.sum(axis=1)
    start = time.perf_counter()
    x = numpy.linalg.solve(a, b)
    latency = time.perf_counter() - start
    error = float(numpy.max(numpy.abs(x - 1)))
    require(error < ERROR_MAX, f"the solution is off by {error}")
    operations = 2 * n**3 / 3 + 2 * n**2
    return {
        "latency": latency,
        "mflops": operations * 1e-6 / latency,
        "number": n,
        "blas_threads": blas.THREADS,
        "check": "ok",
    }
