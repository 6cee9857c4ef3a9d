"""MD5 of spans of bytes (RFC 1321), for formats that know a key by its digest. No protection against anybody: a name, not a seal."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.kernels import inline, kernel
from rawlog.kernels.blocks import BLOCK, LENGTH, LOW, fill_block, turn
from rawlog.kernels.ints import read_u32_le, wrap_i64, write_i32_le
from rawlog.kernels.types import U8, Int, OutU8

# floor(2**32 * abs(sin(i + 1))), as the algorithm defines them.
_SINES = np.array([int(abs(np.sin(step + 1)) * 2**32) for step in range(64)], np.int64)
_TURNS = np.array([7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21], np.int64)


@inline
def _mix(data: Any, start: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Take in the 64 bytes at `start`."""
    first, second, third, fourth = a, b, c, d
    for step in range(16):
        mixed = d ^ (b & (c ^ d))
        mixed = (mixed + a + _SINES[step] + read_u32_le(data, start + 4 * step)) & LOW
        a, d, c, b = d, c, b, (b + turn(mixed, _TURNS[step & 3])) & LOW
    for step in range(16):
        mixed = c ^ (d & (b ^ c))
        mixed = (mixed + a + _SINES[16 + step] + read_u32_le(data, start + 4 * ((5 * step + 1) & 15))) & LOW
        a, d, c, b = d, c, b, (b + turn(mixed, _TURNS[4 + (step & 3)])) & LOW
    for step in range(16):
        mixed = b ^ c ^ d
        mixed = (mixed + a + _SINES[32 + step] + read_u32_le(data, start + 4 * ((3 * step + 5) & 15))) & LOW
        a, d, c, b = d, c, b, (b + turn(mixed, _TURNS[8 + (step & 3)])) & LOW
    for step in range(16):
        mixed = c ^ (b | (d ^ LOW))
        mixed = (mixed + a + _SINES[48 + step] + read_u32_le(data, start + 4 * ((7 * step) & 15))) & LOW
        a, d, c, b = d, c, b, (b + turn(mixed, _TURNS[12 + (step & 3)])) & LOW
    return (first + a) & LOW, (second + b) & LOW, (third + c) & LOW, (fourth + d) & LOW


@kernel
def digest(data: U8, start: Int, size: Int, scratch: OutU8) -> Any:
    """The digest of a span that lies inside the data, as two numbers of 64 bits whose bytes, low first, are the digest's sixteen."""
    a, b, c, d = 0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476
    position, left = np.int64(start), np.int64(size)
    bits = left << 3
    while True:
        fill_block(scratch, data, position, left)
        if left < LENGTH:
            write_i32_le(scratch, LENGTH, bits & LOW)
            write_i32_le(scratch, LENGTH + 4, bits >> 32)
        a, b, c, d = _mix(scratch, 0, a, b, c, d)
        if left < LENGTH:
            return wrap_i64(a | (b << 32)), wrap_i64(c | (d << 32))
        position += BLOCK
        left = left - BLOCK if left >= BLOCK else np.int64(-1)
