"""Keyed hashes of many short texts: HMAC-SHA-256 (FIPS 198-1, 180-4), stretched by SHAKE-256 (FIPS 202), and what masks make of them.

`Masker` has the same in plain Python with hashlib, which is what these are compared with.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.kernels import inline, kernel
from rawlog.kernels.gather import copy
from rawlog.kernels.hashes import (
    BLOCK,
    LENGTH,
    LOW,
    SCRATCH,
    fill_block,
)
from rawlog.kernels.ints import (
    read_i64_le,
    read_u32,
    write_i8,
    write_i32,
    write_i64,
)
from rawlog.kernels.types import (
    I64,
    U8,
    Bool,
    Int,
    OutI64,
    OutU8,
)

STATE, WORDS, LANES, DIGEST = 8, 64, 25, 32
"""Numbers that a hash, a block and the sponge need; bytes of a digest."""
ROOM = STATE + WORDS + LANES + 5
"""Numbers that `keyed_stream` needs in all."""
RATE = 136
"""Bytes that the sponge gives at a time."""
ROUNDS = 10
"""Of the network that permutes texts of one form."""
PREFIX, EXTRA = 6, 16
"""Bytes before the form in a message of the network; bytes that a message needs next to twice the text."""
_SPONGE, _ROW = STATE + WORDS, STATE + WORDS + LANES
_PAD, _LAST = 0x1F, np.int64(-(1 << 63))
_KEYS = np.array(
    [
        0x428A2F98, 0x71374491, 0xB5C0FBCF, 0xE9B5DBA5, 0x3956C25B, 0x59F111F1, 0x923F82A4, 0xAB1C5ED5,
        0xD807AA98, 0x12835B01, 0x243185BE, 0x550C7DC3, 0x72BE5D74, 0x80DEB1FE, 0x9BDC06A7, 0xC19BF174,
        0xE49B69C1, 0xEFBE4786, 0x0FC19DC6, 0x240CA1CC, 0x2DE92C6F, 0x4A7484AA, 0x5CB0A9DC, 0x76F988DA,
        0x983E5152, 0xA831C66D, 0xB00327C8, 0xBF597FC7, 0xC6E00BF3, 0xD5A79147, 0x06CA6351, 0x14292967,
        0x27B70A85, 0x2E1B2138, 0x4D2C6DFC, 0x53380D13, 0x650A7354, 0x766A0ABB, 0x81C2C92E, 0x92722C85,
        0xA2BFE8A1, 0xA81A664B, 0xC24B8B70, 0xC76C51A3, 0xD192E819, 0xD6990624, 0xF40E3585, 0x106AA070,
        0x19A4C116, 0x1E376C08, 0x2748774C, 0x34B0BCB5, 0x391C0CB3, 0x4ED8AA4A, 0x5B9CCA4F, 0x682E6FF3,
        0x748F82EE, 0x78A5636F, 0x84C87814, 0x8CC70208, 0x90BEFFFA, 0xA4506CEB, 0xBEF9A3F7, 0xC67178F2,
    ],
    np.int64,
)  # fmt: skip
FIRST = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
"""The state of SHA-256 before any block."""
_IOTA = np.array(
    [
        0x0000000000000001, 0x0000000000008082, 0x800000000000808A, 0x8000000080008000, 0x000000000000808B, 0x0000000080000001,
        0x8000000080008081, 0x8000000000008009, 0x000000000000008A, 0x0000000000000088, 0x0000000080008009, 0x000000008000000A,
        0x000000008000808B, 0x800000000000008B, 0x8000000000008089, 0x8000000000008003, 0x8000000000008002, 0x8000000000000080,
        0x000000000000800A, 0x800000008000000A, 0x8000000080008081, 0x8000000000008080, 0x0000000080000001, 0x8000000080008008,
    ],
    np.uint64,
).view(np.int64)  # fmt: skip
_RHO = np.array([1, 3, 6, 10, 15, 21, 28, 36, 45, 55, 2, 14, 27, 41, 56, 8, 25, 43, 62, 18, 39, 61, 20, 44], np.int64)
_PI = np.array([10, 7, 11, 17, 18, 3, 5, 16, 8, 21, 24, 4, 15, 23, 19, 13, 12, 2, 20, 14, 22, 9, 6, 1], np.int64)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_FORM = np.frombuffer(b"form", np.uint8)
_COLON, _ZERO, _ONE, _NINE, _MINUS = 0x3A, 0x30, 0x31, 0x39, 0x2D


@inline
def _right(value: Any, bits: Any) -> Any:
    """A word of 32 bits turned to the right."""
    return ((value >> bits) | (value << (32 - bits))) & LOW


@inline
def _left64(value: Any, bits: Any) -> Any:
    """A number of 64 bits turned to the left, by 1 to 63."""
    return (value << bits) | ((value >> (64 - bits)) & ((np.int64(1) << bits) - 1))


@kernel
def mix_sha256(block: U8, room: OutI64) -> Any:
    """Take in a block of 64 bytes; the state is the first eight numbers of `room`."""
    words = room[STATE : STATE + WORDS]
    for step in range(16):
        words[step] = read_u32(block, 4 * step)
    for step in range(16, WORDS):
        first, second = words[step - 15], words[step - 2]
        low = _right(first, 7) ^ _right(first, 18) ^ (first >> 3)
        high = _right(second, 17) ^ _right(second, 19) ^ (second >> 10)
        words[step] = (words[step - 16] + low + words[step - 7] + high) & LOW
    a, b, c, d, e, f, g, h = room[0], room[1], room[2], room[3], room[4], room[5], room[6], room[7]
    for step in range(WORDS):
        high = _right(e, 6) ^ _right(e, 11) ^ _right(e, 25)
        first = h + high + ((e & f) ^ (~e & g)) + _KEYS[step] + words[step]
        low = _right(a, 2) ^ _right(a, 13) ^ _right(a, 22)
        second = low + ((a & b) ^ (a & c) ^ (b & c))
        a, b, c, d, e, f, g, h = (first + second) & LOW, a, b, c, (d + first) & LOW, e, f, g
    room[0] = (room[0] + a) & LOW
    room[1] = (room[1] + b) & LOW
    room[2] = (room[2] + c) & LOW
    room[3] = (room[3] + d) & LOW
    room[4] = (room[4] + e) & LOW
    room[5] = (room[5] + f) & LOW
    room[6] = (room[6] + g) & LOW
    room[7] = (room[7] + h) & LOW
    return 0


@kernel
def permute_sponge(room: OutI64) -> Any:
    """Keccak-f[1600] of the sponge in `room`."""
    lanes, row = room[_SPONGE : _SPONGE + LANES], room[_ROW : _ROW + 5]
    for number in range(_IOTA.size):
        for x in range(5):
            row[x] = lanes[x] ^ lanes[x + 5] ^ lanes[x + 10] ^ lanes[x + 15] ^ lanes[x + 20]
        for x in range(5):
            mixed = row[(x + 4) % 5] ^ _left64(row[(x + 1) % 5], 1)
            for y in range(0, LANES, 5):
                lanes[y + x] ^= mixed
        moved = lanes[1]
        for step in range(_PI.size):
            place = _PI[step]
            kept = lanes[place]
            lanes[place] = _left64(moved, _RHO[step])
            moved = kept
        for y in range(0, LANES, 5):
            for x in range(5):
                row[x] = lanes[y + x]
            for x in range(5):
                lanes[y + x] = row[x] ^ (~row[(x + 1) % 5] & row[(x + 2) % 5])
        lanes[0] ^= _IOTA[number]
    return 0


@kernel
def keyed_stream(message: U8, size: Int, pads: I64, block: OutU8, room: OutI64) -> Any:
    """The first RATE bytes that a key gives for the first `size` bytes of a message, in the sponge of `room`.

    `pads` are the two states of SHA-256 after the key's inner and outer block.
    """
    for index in range(STATE):
        room[index] = pads[index]
    position, left = np.int64(0), np.int64(size)
    while True:
        fill_block(block, message, position, left)
        is_last = left < LENGTH
        if is_last:
            write_i64(block, LENGTH, (BLOCK + size) << 3)
        mix_sha256(block, room)
        if is_last:
            break
        position += BLOCK
        left = left - BLOCK if left >= BLOCK else np.int64(-1)
    for index in range(BLOCK):
        block[index] = 0
    for index in range(STATE):
        write_i32(block, 4 * index, room[index])
        room[index] = pads[STATE + index]
    block[DIGEST] = 0x80
    write_i64(block, LENGTH, (BLOCK + DIGEST) << 3)
    mix_sha256(block, room)
    for index in range(STATE):
        write_i32(block, 4 * index, room[index])
    for lane in range(LANES):
        room[_SPONGE + lane] = 0
    for lane in range(DIGEST // 8):
        room[_SPONGE + lane] = read_i64_le(block, 8 * lane)
    room[_SPONGE + DIGEST // 8] = _PAD
    room[_SPONGE + RATE // 8 - 1] ^= _LAST
    permute_sponge(room)
    return 0


@inline
def _stream_byte(room: Any, at: Any) -> Any:
    """The next byte of a stream; those before it were taken."""
    within = at % RATE
    if at > 0 and within == 0:
        permute_sponge(room)
    return (room[_SPONGE + (within >> 3)] >> ((within & 7) << 3)) & 0xFF


@kernel
def hash_texts(
    data: U8, starts: I64, sizes: I64, wanted: I64, pads: I64, message: OutU8, block: OutU8, room: OutI64, out: OutU8
) -> Any:
    """Write `wanted` hexadecimal digits for each text, end to end, which its message gives: the first bytes of `message`, four, and the
    text. `message` has room for the longest and SLACK. -> (count, bytes written)
    """
    written = np.int64(0)
    for index in range(starts.size):
        size, digits = np.int64(sizes[index]), np.int64(wanted[index])
        copy(message, 4, data, np.int64(starts[index]), size)
        keyed_stream(message, size + 4, pads, block, room)
        for at in range(0, digits, 2):
            byte = _stream_byte(room, np.int64(at) >> 1)
            out[written + at] = _HEX[byte >> 4]
            if at + 1 < digits:
                out[written + at + 1] = _HEX[byte & 0xF]
        written += digits
    return starts.size, written


@inline
def _letter(byte: Any) -> Any:
    """The first letter of the alphabet of an ASCII character and how many it has; itself and 0 for one that stays."""
    if _ZERO <= byte <= _NINE:
        return np.int64(_ZERO), np.int64(10)
    if 0x41 <= byte <= 0x5A:
        return np.int64(0x41), np.int64(26)
    if 0x61 <= byte <= 0x7A:
        return np.int64(0x61), np.int64(26)
    return np.int64(byte), np.int64(0)


@inline
def _mantissa(data: Any, start: Any, stop: Any) -> Any:
    """Where the mantissa of a number ends, and where its first digit is if that must not become 0, else -1."""
    end = np.int64(start)
    while end < stop and data[end] != 0x45 and data[end] != 0x65:
        end += 1
    first = np.int64(start)
    if end > start and data[start] == _MINUS:
        first += 1
    if (
        end - first < 2
        or data[first] < _ONE
        or data[first] > _NINE
        or data[first + 1] < _ZERO
        or data[first + 1] > _NINE
    ):
        return end, np.int64(-1)
    return end, first


@kernel
def permute_texts(
    data: U8,
    starts: I64,
    stops: I64,
    is_number: Bool,
    pads: I64,
    message: OutU8,
    block: OutU8,
    room: OutI64,
    places: OutI64,
    values: OutI64,
    bases: OutI64,
    out: OutU8,
) -> Any:
    """Put other digits and letters into the place of those of ASCII texts, at the same place in `out`: a Feistel network over all texts of
    the same form. Of numbers only digits before the exponent change. `message` has room for twice the longest text and EXTRA,
    `places`, `values` and `bases` for its characters. -> count
    """
    for index in range(_FORM.size):
        message[index] = _FORM[index]
    message[PREFIX - 1] = _COLON
    for index in range(starts.size):
        start, stop, first = np.int64(starts[index]), np.int64(stops[index]), np.int64(-1)
        if is_number:
            stop, first = _mantissa(data, start, stop)
        count = np.int64(0)
        for position in range(start, stop):
            byte = np.int64(data[position])
            letter, base = _letter(byte)
            if is_number and base == 26:
                letter, base = byte, np.int64(0)
            if position == first:
                letter, base = np.int64(_ONE), np.int64(9)
            message[PREFIX + position - start] = letter
            if base > 0:
                places[count], values[count], bases[count] = position, byte - letter, base
                count += 1
        message[PREFIX + stop - start] = _COLON
        after = PREFIX + stop - start + 1
        half = (count + 1) // 2
        for number in range(ROUNDS):
            low, high = np.int64(0), half
            if number % 2 == 1:
                low, high = half, count
            if low == high:
                continue
            message[PREFIX - 2] = _ZERO + number
            size = np.int64(after)
            for other in range(count):
                if other < low or other >= high:
                    write_i8(message, size, values[other])
                    size += 1
            keyed_stream(message, size, pads, block, room)
            at = np.int64(0)
            for digit in range(low, high):
                more = np.int64(0)
                for _ in range(4):
                    more = more << 8 | _stream_byte(room, at)
                    at += 1
                values[digit] = (values[digit] + more) % bases[digit]
        for digit in range(count):
            out[places[digit]] = message[PREFIX + places[digit] - start] + values[digit]
    return starts.size


def key_pads(secret: bytes) -> Any:
    """The two states of SHA-256 after the inner and the outer block of a key."""
    import hashlib

    key = hashlib.sha256(secret).digest() if len(secret) > BLOCK else secret
    pads = np.empty(2 * STATE, np.int64)
    for number, pad in enumerate((0x36, 0x5C)):
        block, room = np.full(SCRATCH, pad, np.uint8), np.zeros(ROOM, np.int64)
        block[: len(key)] ^= np.frombuffer(key, np.uint8)
        room[:STATE] = FIRST
        mix_sha256(block, room)
        pads[number * STATE : (number + 1) * STATE] = room[:STATE]
    return pads
