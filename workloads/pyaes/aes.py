"""AES-128 in counter mode (FIPS 197, NIST SP 800-38A), with tables, in plain Python.

For measuring an interpreter, never for secrets: its time depends on key and data.
"""

from __future__ import annotations


def _tables() -> tuple[list[int], list[list[int]]]:
    """The substitution box, and for each byte of a column what it adds to the mixed column."""
    power, logarithm = [0] * 512, [0] * 256
    x = 1
    for exponent in range(255):
        power[exponent] = power[exponent + 255] = x
        logarithm[x] = exponent
        x ^= (x << 1) ^ (0x11B if x & 0x80 else 0)  # times 3, a generator
        x &= 0xFF
    box = []
    for byte in range(256):
        inverse = power[255 - logarithm[byte]] if byte else 0
        turned = inverse
        for shift in range(1, 5):
            turned ^= (inverse << shift | inverse >> (8 - shift)) & 0xFF
        box.append(turned ^ 0x63)

    def times2(value: int) -> int:
        return (value << 1 ^ 0x11B) & 0xFF if value & 0x80 else value << 1

    first = []
    for byte in range(256):
        s = box[byte]
        two = times2(s)
        first.append(two << 24 | s << 16 | s << 8 | (two ^ s))
    mixed = [first]
    for _ in range(3):
        mixed.append([(word >> 8) | (word & 0xFF) << 24 for word in mixed[-1]])
    return box, mixed


BOX, MIXED = _tables()
ROUNDS = 10


def expand(key: bytes) -> list[int]:
    """The 44 words of the key schedule."""
    if len(key) != 16:
        raise ValueError("AES-128 takes 16 bytes of key")
    words = [int.from_bytes(key[at : at + 4], "big") for at in range(0, 16, 4)]
    constant = 1
    for at in range(4, 4 * (ROUNDS + 1)):
        word = words[-1]
        if at % 4 == 0:
            word = (word << 8 | word >> 24) & 0xFFFFFFFF
            word = (
                BOX[word >> 24] << 24
                | BOX[word >> 16 & 255] << 16
                | BOX[word >> 8 & 255] << 8
                | BOX[word & 255]
            ) ^ constant << 24
            constant = (constant << 1 ^ 0x11B) & 0xFF if constant & 0x80 else constant << 1
        words.append(words[-4] ^ word)
    return words


def encrypt_block(words: list[int], block: bytes) -> bytes:
    """One block of 16 bytes under an expanded key."""
    t0, t1, t2, t3 = MIXED
    a, b, c, d = (
        int.from_bytes(block[at : at + 4], "big") ^ words[at // 4] for at in range(0, 16, 4)
    )
    for at in range(4, 4 * ROUNDS, 4):
        a, b, c, d = (
            t0[a >> 24] ^ t1[b >> 16 & 255] ^ t2[c >> 8 & 255] ^ t3[d & 255] ^ words[at],
            t0[b >> 24] ^ t1[c >> 16 & 255] ^ t2[d >> 8 & 255] ^ t3[a & 255] ^ words[at + 1],
            t0[c >> 24] ^ t1[d >> 16 & 255] ^ t2[a >> 8 & 255] ^ t3[b & 255] ^ words[at + 2],
            t0[d >> 24] ^ t1[a >> 16 & 255] ^ t2[b >> 8 & 255] ^ t3[c & 255] ^ words[at + 3],
        )
    out = bytearray()
    for at, (w, x, y, z) in enumerate(((a, b, c, d), (b, c, d, a), (c, d, a, b), (d, a, b, c))):
        word = BOX[w >> 24] << 24 | BOX[x >> 16 & 255] << 16 | BOX[y >> 8 & 255] << 8 | BOX[z & 255]
        out += (word ^ words[4 * ROUNDS + at]).to_bytes(4, "big")
    return bytes(out)


def counter_mode(key: bytes, counter: int, data: bytes) -> bytes:
    """Encrypts, or decrypts, beginning with this value of the 128-bit counter."""
    words = expand(key)
    out = bytearray()
    for at in range(0, len(data), 16):
        pad = encrypt_block(words, counter.to_bytes(16, "big"))
        counter = (counter + 1) % (1 << 128)
        out += bytes(x ^ y for x, y in zip(data[at : at + 16], pad, strict=False))
    return bytes(out)
