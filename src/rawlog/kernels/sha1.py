"""SHA-1 of spans of bytes (RFC 3174), for ids that are made of names. No protection against anybody: a name, not a seal."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.kernels import inline, kernel
from rawlog.kernels.blocks import BLOCK, LENGTH, LOW, fill_block, turn
from rawlog.kernels.ints import read_u32, write_i64
from rawlog.kernels.types import U8, Int, OutI64, OutU8

STEPS = 80
"""Numbers that `digest` needs for the words of a block."""


@inline
def _mix(data: Any, words: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    """Take in the 64 bytes that `data` begins with."""
    first, second, third, fourth, fifth = a, b, c, d, e
    for step in range(16):
        words[step] = read_u32(data, 4 * step)
    for step in range(16, STEPS):
        words[step] = turn(words[step - 3] ^ words[step - 8] ^ words[step - 14] ^ words[step - 16], 1)
    for step in range(20):
        mixed = (turn(a, 5) + (d ^ (b & (c ^ d))) + e + 0x5A827999 + words[step]) & LOW
        a, b, c, d, e = mixed, a, turn(b, 30), c, d
    for step in range(20, 40):
        mixed = (turn(a, 5) + (b ^ c ^ d) + e + 0x6ED9EBA1 + words[step]) & LOW
        a, b, c, d, e = mixed, a, turn(b, 30), c, d
    for step in range(40, 60):
        mixed = (turn(a, 5) + ((b & c) | (d & (b | c))) + e + 0x8F1BBCDC + words[step]) & LOW
        a, b, c, d, e = mixed, a, turn(b, 30), c, d
    for step in range(60, STEPS):
        mixed = (turn(a, 5) + (b ^ c ^ d) + e + 0xCA62C1D6 + words[step]) & LOW
        a, b, c, d, e = mixed, a, turn(b, 30), c, d
    return (first + a) & LOW, (second + b) & LOW, (third + c) & LOW, (fourth + d) & LOW, (fifth + e) & LOW


@kernel
def digest(data: U8, start: Int, size: Int, scratch: OutU8, words: OutI64) -> Any:
    """The digest of a span that lies inside the data, as five numbers of 32 bits whose bytes, high first, are the digest's twenty."""
    a, b, c, d, e = 0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0
    position, left = np.int64(start), np.int64(size)
    bits = left << 3
    while True:
        fill_block(scratch, data, position, left)
        if left < LENGTH:
            write_i64(scratch, LENGTH, bits)
        a, b, c, d, e = _mix(scratch, words, a, b, c, d, e)
        if left < LENGTH:
            return a, b, c, d, e
        position += BLOCK
        left = left - BLOCK if left >= BLOCK else np.int64(-1)
