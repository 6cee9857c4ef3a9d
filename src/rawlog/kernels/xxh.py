"""XXH32, the checksum inside lz4 frames (seed 0, which is all they use)."""

from __future__ import annotations

from typing import Any

from rawlog.kernels import inline, kernel
from rawlog.kernels.ints import read_u8, read_u32_le
from rawlog.kernels.types import U8, Int

LOW = 0xFFFFFFFF
PRIME_1, PRIME_2, PRIME_3, PRIME_4, PRIME_5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1


@inline
def rotate(value: Any, by: Any) -> Any:
    """The 32 bits turned left."""
    return ((value << by) | (value >> (32 - by))) & LOW


@inline
def turn(lane: Any, word: Any) -> Any:
    """One lane with one more word."""
    return (rotate((lane + word * PRIME_2) & LOW, 13) * PRIME_1) & LOW


@kernel
def sum_xxh32(data: U8, start: Int, stop: Int) -> Any:
    """XXH32 of `data[start:stop]`, which must lie inside the data."""
    position = start
    result = PRIME_5
    if stop - position >= 16:
        a, b, c, d = (PRIME_1 + PRIME_2) & LOW, PRIME_2, 0, -PRIME_1 & LOW
        while stop - position >= 16:
            a = turn(a, read_u32_le(data, position))
            b = turn(b, read_u32_le(data, position + 4))
            c = turn(c, read_u32_le(data, position + 8))
            d = turn(d, read_u32_le(data, position + 12))
            position += 16
        result = (rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18)) & LOW
    result = (result + (stop - start)) & LOW
    while stop - position >= 4:
        result = (rotate((result + read_u32_le(data, position) * PRIME_3) & LOW, 17) * PRIME_4) & LOW
        position += 4
    while position < stop:
        result = (rotate((result + read_u8(data, position) * PRIME_5) & LOW, 11) * PRIME_1) & LOW
        position += 1
    result = ((result ^ (result >> 15)) * PRIME_2) & LOW
    result = ((result ^ (result >> 13)) * PRIME_3) & LOW
    return result ^ (result >> 16)
