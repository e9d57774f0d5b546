"""Writes a file of random bytes in one call and reads it block by block."""

import os
import time
import zlib

from contract import number, require
from disk import file_system

NAME, VERSION = "sequential-disk-io", 1
MEBIBYTE = 1 << 20


def run(params, ctx):
    size, block = number(params, "file_size") * MEBIBYTE, number(params, "byte_size")
    path = ctx.folder() / "file"
    start = time.perf_counter()
    data = os.urandom(size)
    made = time.perf_counter()
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    written = time.perf_counter()
    crc, wrote = zlib.crc32(data), len(data)
    del data
    found = read = 0
    middle = time.perf_counter()
    with path.open("rb") as file:
        while piece := file.read(block):
            read += len(piece)
            found = zlib.crc32(piece, found)
    end = time.perf_counter()
    require(read == wrote and found == crc, "what was read is not what was written")
    return {
        "disk_write_latency": written - start,
        "disk_write_bandwidth": wrote / (written - start),
        "disk_read_latency": end - middle,
        "disk_read_bandwidth": read / (end - middle),
        "random_latency": made - start,
        "file_size": size // MEBIBYTE,
        "byte_size": block,
        "file_system": file_system(path),
        "check": read,
    }
