"""Hashes and text forms of many byte strings at once: Kafka's murmur2, Iceberg's murmur3, SipHash, String.hashCode, base64 for URLs."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.kernels import inline, kernel
from rawlog.kernels.gather import SLACK, copy
from rawlog.kernels.ints import read_i64_le, read_u8, read_u32, read_u32_le, wrap_i64, write_i8, write_i64
from rawlog.kernels.types import I64, U8, Int, OutI32, OutI64, OutU8
from rawlog.model.status import BAD_LENGTH, OK

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


# ----------------------------------------------------------------------------------------------------------------------
# Messages taken in by blocks of 64 bytes, the last of them filled up, and words of 32 bits turned round.


BLOCK = 64
SCRATCH = BLOCK + SLACK
"""Bytes that a digest needs for a block of the message."""
LENGTH = BLOCK - 8
"""Where the last block has the length of the message."""
LOW = 0xFFFFFFFF
_END = 0x80


@inline
def turn(value: Any, bits: Any) -> Any:
    """A word turned to the left."""
    return ((value << bits) | (value >> (32 - bits))) & LOW


@inline
def fill_block(scratch: Any, data: Any, position: Any, left: Any) -> None:
    """Put the next block into `scratch`: of a message with so many bytes left, below zero if its end is marked already."""
    taken = max(min(left, np.int64(BLOCK)), np.int64(0))
    copy(scratch, 0, data, position, taken)
    for index in range(taken, BLOCK):
        write_i8(scratch, index, 0)
    if 0 <= left < BLOCK:
        write_i8(scratch, left, _END)


# ----------------------------------------------------------------------------------------------------------------------
# SipHash of spans of bytes (Aumasson and Bernstein) with 128 bits: whoever does not know the key cannot make two spans that have one hash.


@inline
def _left(value: Any, bits: Any) -> Any:
    """A number of 64 bits turned to the left, by 1 to 63."""
    return wrap_i64((value << bits) | ((value >> (64 - bits)) & ((1 << bits) - 1)))


@inline
def _mix_sip(a: Any, b: Any, c: Any, d: Any) -> Any:
    """One round."""
    a, c = wrap_i64(a + b), wrap_i64(c + d)
    b, d = _left(b, 13) ^ a, _left(d, 16) ^ c
    a = wrap_i64(_left(a, 32) + d)
    c = wrap_i64(c + b)
    b, d = _left(b, 17) ^ c, _left(d, 21) ^ a
    return a, b, _left(c, 32), d


@kernel
def siphash(data: U8, start: Int, size: Int, first: Int, second: Int, rounds: Int, closing: Int) -> Any:
    """The hash of a span that lies inside the data, as two numbers of 64 bits. The key is two numbers; `rounds` are those for eight bytes,
    `closing` those at the end.
    """
    a, b = first ^ 0x736F6D6570736575, second ^ 0x646F72616E646F6D ^ 0xEE
    c, d = first ^ 0x6C7967656E657261, second ^ 0x7465646279746573
    position, stop = start, start + size
    is_last = False
    while not is_last:
        if stop - position >= 8:
            word = read_i64_le(data, position)
            position += 8
        else:
            is_last, word = True, wrap_i64((int(size) & 0xFF) << 56)
            for index in range(stop - position):
                word |= int(read_u8(data, position + index)) << (8 * index)
        d ^= word
        for _ in range(rounds):
            a, b, c, d = _mix_sip(a, b, c, d)
        a ^= word
    c ^= 0xEE
    for _ in range(closing):
        a, b, c, d = _mix_sip(a, b, c, d)
    low = a ^ b ^ c ^ d
    b ^= 0xDD
    for _ in range(closing):
        a, b, c, d = _mix_sip(a, b, c, d)
    return low, a ^ b ^ c ^ d


# ----------------------------------------------------------------------------------------------------------------------
# SHA-1 of spans of bytes (RFC 3174), for ids that are made of names. No protection against anybody: a name, not a seal.


STEPS = 80
"""Numbers that `digest` needs for the words of a block."""


@inline
def _mix_sha1(data: Any, words: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
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
def sha1(data: U8, start: Int, size: Int, scratch: OutU8, words: OutI64) -> Any:
    """The digest of a span that lies inside the data, as five numbers of 32 bits whose bytes, high first, are the digest's twenty."""
    a, b, c, d, e = 0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0
    position, left = np.int64(start), np.int64(size)
    bits = left << 3
    while True:
        fill_block(scratch, data, position, left)
        if left < LENGTH:
            write_i64(scratch, LENGTH, bits)
        a, b, c, d, e = _mix_sha1(scratch, words, a, b, c, d, e)
        if left < LENGTH:
            return a, b, c, d, e
        position += BLOCK
        left = left - BLOCK if left >= BLOCK else np.int64(-1)


# ----------------------------------------------------------------------------------------------------------------------
# XXH32, the checksum inside lz4 frames (seed 0, which is all they use).


PRIME_1, PRIME_2, PRIME_3, PRIME_4, PRIME_5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1


@inline
def rotate(value: Any, by: Any) -> Any:
    """The 32 bits turned left."""
    return ((value << by) | (value >> (32 - by))) & LOW


@inline
def turn_lane(lane: Any, word: Any) -> Any:
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
            a = turn_lane(a, read_u32_le(data, position))
            b = turn_lane(b, read_u32_le(data, position + 4))
            c = turn_lane(c, read_u32_le(data, position + 8))
            d = turn_lane(d, read_u32_le(data, position + 12))
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
