"""Counts primes with the sieve of Eratosthenes: 168 up to 1000."""

from contract import number

NAME, VERSION = "sieve", 1
PLAIN = True


def run(params, ctx):
    limit = number({"limit": "1000", **params}, "limit")
    is_composite = bytearray(limit + 1)
    count = 0
    for candidate in range(2, limit + 1):
        if is_composite[candidate]:
            continue
        count += 1
        for multiple in range(candidate * candidate, limit + 1, candidate):
            is_composite[multiple] = 1
    return {"text": str(count), "check": count}
