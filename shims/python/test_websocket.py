"""How messages of WebSockets are put together from records."""

import asyncio
import tracemalloc
import unittest

from mote_websocket import BINARY, CLOSE, MORE, RECORD, TEXT, Records


class Incoming:
    def __init__(self, chunks):
        self.chunks = iter(chunks)

    async def next(self):
        return next(self.chunks, None)


def record(kind, flags, content):
    return RECORD.pack(kind, flags, 0, len(content)) + content


async def read(chunks):
    records = Records(Incoming(chunks))
    return [message async for message in everything(records)]


async def everything(records):
    while (message := await records.message()) is not None:
        yield message


class Messages(unittest.TestCase):
    def test_parts_are_joined(self):
        data = b"".join(
            (
                record(TEXT, MORE, b"a"),
                record(TEXT, MORE, b""),
                record(TEXT, 0, b"bc"),
                record(BINARY, 0, b"\xff"),
                record(TEXT, 0, b""),
                record(BINARY, MORE, b"lost"),
                record(CLOSE, 0, b"\x03\xe8"),
            )
        )
        expected = [(TEXT, b"abc"), (BINARY, b"\xff"), (TEXT, b""), (CLOSE, b"\x03\xe8")]
        for size in (1, 7, len(data)):
            chunks = [data[at : at + size] for at in range(0, len(data), size)]
            self.assertEqual(asyncio.run(read(chunks)), expected)
        self.assertTrue(all(type(content) is bytes for _, content in asyncio.run(read([data]))))

    def test_a_message_of_small_parts_takes_about_its_length(self):
        count = 200_000
        chunk = record(BINARY, MORE, b"xyz") * 500
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        messages = asyncio.run(read([*[chunk] * (count // 500), record(BINARY, 0, b"!")]))
        _, peak = tracemalloc.get_traced_memory()
        self.assertEqual(messages, [(BINARY, b"xyz" * count + b"!")])
        self.assertLess(peak, 5 * 3 * count)
