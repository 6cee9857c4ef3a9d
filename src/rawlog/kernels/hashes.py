"""Hashes and text forms of many byte strings at once: Kafka's murmur2, Iceberg's murmur3, Java's String.hashCode, base64 for URLs."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.core.status import BAD_LENGTH, OK
from rawlog.kernels import inline, kernel
from rawlog.kernels.ints import read_u8, read_u32_le
from rawlog.kernels.types import I64, U8, OutI32, OutI64, OutU8

WORD = 0xFFFFFFFF
# org.apache.kafka.common.utils.Utils.murmur2
MURMUR_SEED, MURMUR_FACTOR = 0x9747B28C, 0x5BD1E995
# The 32-bit murmur3 of Iceberg's bucket transform: MurmurHash3_x86_32 with seed 0. Large factors as signed numbers: no product overflows.
MURMUR3_FIRST, MURMUR3_SECOND, MURMUR3_MORE = 0xCC9E2D51 - (1 << 32), 0x1B873593, 0xE6546B64
MURMUR3_MIX, MURMUR3_END = 0x85EBCA6B - (1 << 32), 0xC2B2AE35 - (1 << 32)
URL_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)


@inline
def murmur2(data: Any, start: Any, stop: Any) -> Any:
    """Kafka's murmur2 of `data[start:stop]`, unsigned."""
    h = np.int64(MURMUR_SEED) ^ np.int64(stop - start)
    at = start
    while stop - at >= 4:
        k = np.int64(read_u32_le(data, at)) * MURMUR_FACTOR & WORD
        k = (k ^ k >> 24) * MURMUR_FACTOR & WORD
        h = (h * MURMUR_FACTOR & WORD) ^ k
        at += 4
    if stop - at == 3:
        h ^= np.int64(read_u8(data, at + 2)) << 16
    if stop - at >= 2:
        h ^= np.int64(read_u8(data, at + 1)) << 8
    if stop - at >= 1:
        h = (h ^ np.int64(read_u8(data, at))) * MURMUR_FACTOR & WORD
    h = (h ^ h >> 13) * MURMUR_FACTOR & WORD
    return h ^ h >> 15


@kernel
def murmur2_spans(data: U8, starts: I64, stops: I64, out: OutI64) -> Any:
    """Write the murmur2 of every span. -> (count, position, status)"""
    for index in range(starts.size):
        start, stop = starts[index], stops[index]
        if start < 0 or stop < start or data.size - start < stop - start:
            return index, start, BAD_LENGTH
        out[index] = murmur2(data, start, stop)
    return starts.size, 0, OK


@inline
def scrambled(word: Any) -> Any:
    """Four bytes as murmur3 takes them in."""
    word = word * MURMUR3_FIRST & WORD
    word = (word << 15 | word >> 17) & WORD
    return word * MURMUR3_SECOND & WORD


@inline
def murmur3_32(data: Any, start: Any, stop: Any) -> Any:
    """The 32-bit murmur3 of `data[start:stop]` with seed 0, unsigned."""
    h = np.int64(0)
    at = start
    while stop - at >= 4:
        h = h ^ scrambled(np.int64(read_u32_le(data, at)))
        h = (h << 13 | h >> 19) & WORD
        h = (h * 5 + MURMUR3_MORE) & WORD
        at += 4
    tail = np.int64(0)
    if stop - at == 3:
        tail |= np.int64(read_u8(data, at + 2)) << 16
    if stop - at >= 2:
        tail |= np.int64(read_u8(data, at + 1)) << 8
    if stop - at >= 1:
        tail |= np.int64(read_u8(data, at))
        h = h ^ scrambled(tail)
    h = h ^ np.int64(stop - start) & WORD
    h = (h ^ h >> 16) * MURMUR3_MIX & WORD
    h = (h ^ h >> 13) * MURMUR3_END & WORD
    return h ^ h >> 16


@kernel
def murmur3_spans(data: U8, starts: I64, stops: I64, out: OutI64) -> Any:
    """Write the 32-bit murmur3 of every span. -> (count, position, status)"""
    for index in range(starts.size):
        start, stop = starts[index], stops[index]
        if start < 0 or stop < start or data.size - start < stop - start:
            return index, start, BAD_LENGTH
        out[index] = murmur3_32(data, start, stop)
    return starts.size, 0, OK


@inline
def unit(value: Any, more: Any) -> Any:
    """Java's hash of what came before, and one UTF-16 code unit more."""
    return (value * 31 + more) & WORD


@inline
def follows(data: Any, at: Any, stop: Any, count: Any, low: Any, high: Any) -> Any:
    """Whether `count` bytes follow that continue a UTF-8 character, the first of them between `low` and `high`."""
    if stop - at <= count:
        return False
    first = read_u8(data, at + 1)
    if first < low or first > high:
        return False
    for index in range(2, count + 1):  # noqa: SIM110
        if read_u8(data, at + index) & 0xC0 != 0x80:
            return False
    return True


@inline
def bits(data: Any, at: Any) -> Any:
    """The six bits that a continuation byte carries."""
    return np.int64(read_u8(data, at)) & 0x3F


@inline
def java_hash(data: Any, start: Any, stop: Any) -> Any:
    """String.hashCode of UTF-8 text, unsigned; -1 if it is not UTF-8."""
    value = np.int64(0)
    at = start
    while at < stop:
        lead = np.int64(read_u8(data, at))
        if lead < 0x80:
            value = unit(value, lead)
            at += 1
        elif 0xC2 <= lead <= 0xDF and follows(data, at, stop, 1, 0x80, 0xBF):
            value = unit(value, (lead & 0x1F) << 6 | bits(data, at + 1))
            at += 2
        elif 0xE0 <= lead <= 0xEF and follows(
            data, at, stop, 2, 0xA0 if lead == 0xE0 else 0x80, 0x9F if lead == 0xED else 0xBF
        ):
            value = unit(value, (lead & 0x0F) << 12 | bits(data, at + 1) << 6 | bits(data, at + 2))
            at += 3
        elif 0xF0 <= lead <= 0xF4 and follows(
            data, at, stop, 3, 0x90 if lead == 0xF0 else 0x80, 0x8F if lead == 0xF4 else 0xBF
        ):
            point = (lead & 0x07) << 18 | bits(data, at + 1) << 12 | bits(data, at + 2) << 6 | bits(data, at + 3)
            point -= 0x10000
            value = unit(unit(value, 0xD800 + (point >> 10)), 0xDC00 + (point & 0x3FF))
            at += 4
        else:
            return np.int64(-1)
    return value


@kernel
def java_hash_spans(data: U8, starts: I64, stops: I64, out: OutI64) -> Any:
    """Write String.hashCode of every span of UTF-8, unsigned; -1 for one that is not. -> (count, position, status)"""
    for index in range(starts.size):
        start, stop = starts[index], stops[index]
        if start < 0 or stop < start or data.size - start < stop - start:
            return index, start, BAD_LENGTH
        out[index] = java_hash(data, start, stop)
    return starts.size, 0, OK


@kernel
def url_base64_spans(data: U8, starts: I64, stops: I64, out: OutU8, offsets: OutI32) -> Any:
    """Write every span as base64 for URLs, unpadded, end to end, and where each begins. -> (count, position, status)"""
    at = np.int64(0)
    for index in range(starts.size):
        offsets[index] = at
        start, stop = starts[index], stops[index]
        if start < 0 or stop < start or data.size - start < stop - start:
            return index, start, BAD_LENGTH
        if out.size - at < (stop - start + 2) // 3 * 4:
            return index, start, BAD_LENGTH
        while start < stop:
            left = min(stop - start, 3)
            word = np.int64(0)
            for step in range(3):
                word = word << 8 | (np.int64(read_u8(data, start + step)) if step < left else 0)
            for step in range(left + 1):
                out[at] = URL_ALPHABET[word >> (18 - 6 * step) & 0x3F]
                at += 1
            start += left
    offsets[starts.size] = at
    return starts.size, at, OK
