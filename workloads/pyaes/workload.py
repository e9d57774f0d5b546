"""Encrypts and decrypts a message again and again with AES in plain Python."""

import random
import string
import time
import zlib

from aes import counter_mode
from contract import number, require

NAME, VERSION = "pyaes", 1
KEY = bytes(range(16))
SEED = 20


def message(length):
    """Lower-case letters, the same for each length."""
    return "".join(random.Random(SEED).choices(string.ascii_lowercase, k=length)).encode()


def run(params, ctx):
    length, rounds = number(params, "length_of_message"), number(params, "num_of_iterations")
    plain = message(length)
    start = time.perf_counter()
    for _ in range(rounds):
        cipher = counter_mode(KEY, 1, plain)
        back = counter_mode(KEY, 1, cipher)
        require(back == plain, "what was decrypted is not what was encrypted")
    return {
        "latency": time.perf_counter() - start,
        "length_of_message": length,
        "num_of_iterations": rounds,
        "check": zlib.crc32(cipher),
    }
