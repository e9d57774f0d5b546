"""Writes random bytes to a file and compresses it line by line at level 9."""

import gzip
import os
import time
import zlib

from contract import number, require

NAME, VERSION = "gzip-compression", 1
MEBIBYTE = 1 << 20


def run(params, ctx):
    size = number(params, "file_size")
    plain, packed = ctx.folder() / "plain", ctx.folder() / "packed.gz"
    crc = 0
    start = time.perf_counter()
    with plain.open("wb") as file:
        for _ in range(size):
            piece = os.urandom(MEBIBYTE)
            crc = zlib.crc32(piece, crc)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    written = time.perf_counter()
    with plain.open("rb") as file, gzip.open(packed, "wb", compresslevel=9) as archive:
        archive.writelines(file)
    compressed = time.perf_counter()
    found = 0
    with gzip.open(packed, "rb") as archive:
        while piece := archive.read(MEBIBYTE):
            found = zlib.crc32(piece, found)
    require(found == crc, "what was unpacked is not what was packed")
    return {
        "disk_latency": written - start,
        "compress_latency": compressed - written,
        "file_size": size,
        "check": "ok",
    }
