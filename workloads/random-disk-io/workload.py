"""Writes and reads blocks at random places of a file."""

import os
import random
import time

from contract import number, require
from disk import file_system

NAME, VERSION = "random-disk-io", 1
MEBIBYTE = 1 << 20
SEED = 11


def run(params, ctx):
    size, block = number(params, "file_size") * MEBIBYTE, number(params, "byte_size")
    path, count = ctx.folder() / "file", size // block
    piece = os.urandom(block)
    places = random.Random(SEED)
    start = time.perf_counter()
    wrote = 0
    with path.open("wb") as file:
        for _ in range(count):
            file.seek(places.randrange(size))
            wrote += file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    written = time.perf_counter()
    have = path.stat().st_size
    middle = time.perf_counter()
    read = 0
    with path.open("rb") as file:
        for _ in range(count):
            file.seek(places.randrange(max(have - block, 1)))
            read += len(file.read(block))
    end = time.perf_counter()
    require(wrote == read == count * block, f"{wrote} bytes written and {read} read")
    return {
        "disk_write_latency": written - start,
        "disk_write_bandwidth": wrote / (written - start),
        "disk_read_latency": end - middle,
        "disk_read_bandwidth": read / (end - middle),
        "file_size": size // MEBIBYTE,
        "byte_size": block,
        "file_system": file_system(path),
        "check": wrote + read,
    }
