"""MurmurHash3 as Ambry's bloom filters have it (from Cassandra: the bytes after the last whole block are sign-extended), in a loop.

Numbers are int64 that wrap; with the compiler off, sums and products are made by Python's own and wrapped by hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.kernels import inline, kernel, twin
from rawlog.kernels.ints import read_i8, read_i64_le
from rawlog.kernels.types import (
    I64,
    U8,
    Int,
    OutBools,
    OutI64,
)
from rawlog.model.status import OK

C1, C2 = 0x87C37B91114253D5 - (1 << 64), 0x4CF5AD432745937F
MIX_1, MIX_2 = 0xFF51AFD7ED558CCD - (1 << 64), 0xC4CEB9FE1A85EC53 - (1 << 64)
ADD_1, ADD_2 = 0x52DCE729, 0x38495AB5
LOWER_31 = (1 << 31) - 1
BLOCK, HALF = 16, 8


def _wrapped(value: int) -> Any:
    value &= (1 << 64) - 1
    return np.int64(value - (1 << 64) if value >> 63 else value)


def _plain_plus(left: Any, right: Any) -> Any:
    return _wrapped(int(left) + int(right))


def _plain_times(left: Any, right: Any) -> Any:
    return _wrapped(int(left) * int(right))


def _plus(left: Any, right: Any) -> Any:
    return np.int64(left) + np.int64(right)


def _times(left: Any, right: Any) -> Any:
    return np.int64(left) * np.int64(right)


plus = twin(_plain_plus, lambda: _plus)
"""The sum, wrapped to 64 bits."""
times = twin(_plain_times, lambda: _times)
"""The product, wrapped to 64 bits."""


@inline
def rotate(value: Any, by: Any) -> Any:
    """The 64 bits turned left, by 27 or more."""
    return (value << by) | ((value >> (64 - by)) & ((np.int64(1) << by) - 1))


@inline
def mix(value: Any) -> Any:
    """The last step of each half."""
    value = times(value ^ ((value >> 33) & LOWER_31), MIX_1)
    value = times(value ^ ((value >> 33) & LOWER_31), MIX_2)
    return value ^ ((value >> 33) & LOWER_31)


@kernel
def murmur3(data: U8, start: Int, stop: Int) -> Any:
    """MurmurHash3 x64 128, seed 0, of `data[start:stop]`, which must lie inside the data. -> two halves"""
    h1 = h2 = np.int64(0)
    position = np.int64(start)
    while stop - position >= BLOCK:
        k1, k2 = np.int64(read_i64_le(data, position)), np.int64(read_i64_le(data, position + HALF))
        h1 = h1 ^ times(rotate(times(k1, C1), 31), C2)
        h1 = plus(times(plus(rotate(h1, 27), h2), 5), ADD_1)
        h2 = h2 ^ times(rotate(times(k2, C2), 33), C1)
        h2 = plus(times(plus(rotate(h2, 31), h1), 5), ADD_2)
        position += BLOCK
    k1 = k2 = np.int64(0)
    for number in range(stop - position):
        wide = np.int64(read_i8(data, position + number))
        if number < HALF:
            k1 = k1 ^ (wide << (8 * number))
        else:
            k2 = k2 ^ (wide << (8 * (number - HALF)))
    h2 = h2 ^ times(rotate(times(k2, C2), 33), C1)
    h1 = h1 ^ times(rotate(times(k1, C1), 31), C2)
    h1, h2 = h1 ^ np.int64(stop - start), h2 ^ np.int64(stop - start)
    h1 = plus(h1, h2)
    h2 = plus(h2, h1)
    h1, h2 = mix(h1), mix(h2)
    h1 = plus(h1, h2)
    return h1, plus(h2, h1)


@inline
def bucket(value: Any, capacity: Any) -> Any:
    """The bit of a number: what is left of it, without its sign, as Java divides."""
    if value >= 0:
        return value % capacity
    return ((-(value + 1)) % capacity + 1) % capacity


@kernel
def add_spans(data: U8, starts: I64, sizes: I64, hashes: Int, words: OutI64) -> Any:
    """Set the bits of every span in `words` (int64). -> (count, position, status)"""
    capacity = np.int64(words.size) * 64
    for index in range(starts.size):
        first, second = murmur3(data, np.int64(starts[index]), np.int64(starts[index]) + np.int64(sizes[index]))
        value = first
        for _ in range(hashes):
            bit = bucket(value, capacity)
            words[bit >> 6] |= np.int64(1) << (bit & 63)
            value = plus(value, second)
    return starts.size, np.int64(data.size), OK


@kernel
def have_spans(data: U8, starts: I64, sizes: I64, hashes: Int, words: I64, out: OutBools) -> Any:
    """Whether all bits of each span are set in `words`. -> (count, position, status)"""
    capacity = np.int64(words.size) * 64
    for index in range(starts.size):
        first, second = murmur3(data, np.int64(starts[index]), np.int64(starts[index]) + np.int64(sizes[index]))
        value, there = first, True
        for _ in range(hashes):
            bit = bucket(value, capacity)
            there = there and (words[bit >> 6] >> (bit & 63)) & 1 == 1
            value = plus(value, second)
        out[index] = there
    return starts.size, np.int64(data.size), OK
