"""Text of messages: where properties have their parts, hosts and message ids as people read them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from rawlog.formats.rocketmq.layouts import HOST_V4, HOST_V6, NAME_VALUE, PAIR_END
from rawlog.kernels import inline, kernel, twin
from rawlog.kernels.ints import read_i32, read_i64, read_u16, read_u32, wrap_i64, write_i64
from rawlog.kernels.types import U8, Int, OutU8

BLOCK = 64
ADDRESS_V4, ADDRESS_V6 = HOST_V4.at("port"), HOST_V6.at("port")
HOST_V4_WORDS, HOST_V6_WORDS = HOST_V4.size // 4, HOST_V6.size // 4
KEYS_WORD = int.from_bytes(b"KEYS", "big")
TAGS_WORD = int.from_bytes(b"TAGS", "big")
UNIQUE_WORD = int.from_bytes(b"UNIQ_KEY", "big")
WORD = 8
LOWER_HEX = np.frombuffer(b"0123456789abcdef", np.uint8).astype(np.int64)
HOST_TEXT_V4, HOST_TEXT_V6 = len("255.255.255.255:-2147483648"), len("[" + "ffff:" * 8 + "]:-2147483648")
"""Bytes that a host takes as text at most."""
ID_V4, ID_V6 = 2 * (HOST_V4.size + WORD), 2 * (HOST_V6.size + WORD)
"""Bytes of a message id as text."""


def _plain_masks(data: Any, position: Any) -> tuple[int, int, int]:
    start, ones, twos, high = int(position), 0, 0, 0
    assert 0 <= start <= data.size - BLOCK
    for index, byte in enumerate(data[start : start + BLOCK].tolist()):
        ones |= (byte == NAME_VALUE) << index
        twos |= (byte == PAIR_END) << index
        high |= (byte > 127) << index
    return wrap_i64(ones), wrap_i64(twos), wrap_i64(high)


def _plain_low_bit(mask: Any) -> int:
    return (int(mask) & -int(mask)).bit_length() - 1


def _up_to_low_bit(mask: Any) -> Any:
    """All bits up to the lowest one that is set, itself included."""
    return mask ^ (mask - 1)


def _plain_up_to_low_bit(mask: Any) -> int:
    return int(wrap_i64(_up_to_low_bit(int(mask))))


@cache
def _intrinsics() -> tuple[Any, Any]:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def load_masks(typing: Any, data: Any, position: Any) -> Any:
        """A bit for each of 64 bytes that is the one separator, that is the other, and that is beyond ASCII."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            vector = ir.VectorType(ir.IntType(8), BLOCK)
            pointer = builder.gep(array.data, [arguments[1]], inbounds=True)
            loaded = builder.load(builder.bitcast(pointer, vector.as_pointer()), align=1)
            bits = [
                builder.icmp_signed(kind, loaded, ir.Constant(vector, [mark] * BLOCK))
                for kind, mark in (("==", NAME_VALUE), ("==", PAIR_END), ("<", 0))
            ]
            masks = [builder.bitcast(each, ir.IntType(BLOCK)) for each in bits]
            return context.make_tuple(builder, signature.return_type, masks)

        three = types.UniTuple(types.int64, 3)  # type: ignore[no-untyped-call]
        return three(data, types.int64), codegen

    @intrinsic
    def low_bit(typing: Any, mask: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

        return types.int64(types.int64), codegen

    return load_masks, low_bit


load_masks = twin(_plain_masks, lambda: _intrinsics()[0])
low_bit = twin(_plain_low_bit, lambda: _intrinsics()[1])
up_to_low_bit = twin(_plain_up_to_low_bit, lambda: _up_to_low_bit)


@inline
def masks_of(data: Any, block: Any, end: Any) -> Any:
    """Which bytes of the next 64, as far as they are of the string, are separators or beyond ASCII: a bit each.

    The data, of 64 bytes at least, may end before: then the last 64 are looked at, and those before `block` shifted out.
    """
    if data.size - block >= BLOCK:
        ones, twos, high = load_masks(data, block)
    else:
        shift = block - data.size + BLOCK
        ones, twos, high = load_masks(data, data.size - BLOCK)
        ones >>= shift
        twos >>= shift
        high >>= shift
    left = end - block
    if left < BLOCK:
        inside = ~(np.int64(-1) << left)
        ones &= inside
        twos &= inside
        high &= inside
    return ones, twos, high


@inline
def next_pair(data: Any, end: Any, block: Any, ones: Any, twos: Any) -> Any:
    """Where the next piece of a property string has its two separators. -> (first, second, block, ones, twos, bits beyond ASCII)

    The first is that between name and value, -1 if there is none; the second that after the value, or the end of the string. What is left
    of the masks of a block (`masks_of`) goes from call to call, so that no load waits for the piece before.
    """
    middle, beyond = np.int64(-1), np.int64(0)
    while True:
        if middle < 0 and ones != 0:
            middle = block + low_bit(ones)
        if twos != 0:
            stop, after = block + low_bit(twos), ~up_to_low_bit(twos)
            return (middle if middle < stop else np.int64(-1)), stop, block, ones & after, twos & after, beyond
        block += BLOCK
        if block >= end:
            return middle, end, block, ones, twos, beyond
        ones, twos, high = masks_of(data, block, end)
        beyond |= high


@inline
def name_word(data: Any, name: Any, size: Any) -> Any:
    """The first bytes of a name, at most eight, as a big-endian number."""
    if data.size - name >= WORD:
        word = read_i64(data, name)
        return word if size >= WORD else word >> (8 * (WORD - size))
    word = np.int64(0)
    for index in range(min(size, WORD)):
        word = (word << 8) | np.int64(data[name + index])
    return word


@inline
def put_decimal(out: Any, at: Any, value: Any) -> Any:
    """Write a number that is not negative; the position after it."""
    digits, rest = 1, value
    while rest >= 10:
        rest //= 10
        digits += 1
    for index in range(digits):
        out[at + digits - 1 - index] = 48 + value % 10
        value //= 10
    return at + digits


@inline
def put_group(out: Any, at: Any, value: Any) -> Any:
    """Write a 16-bit number in hex without leading zeros; the position after it."""
    shift = 12
    while shift > 0 and (value >> shift) == 0:
        shift -= 4
    while shift >= 0:
        out[at] = LOWER_HEX[(value >> shift) & 15]
        at += 1
        shift -= 4
    return at


@kernel
def put_host(out: OutU8, at: Int, data: U8, position: Int, wide: Int) -> Any:
    """Write address and port as Java does; the position after it."""
    if wide:
        out[at] = 91
        at += 1
        for group in range(8):
            if group:
                out[at] = 58
                at += 1
            at = put_group(out, at, read_u16(data, position + 2 * group))
        out[at] = 93
        at += 1
        port = read_i32(data, position + ADDRESS_V6)
    else:
        for index in range(ADDRESS_V4):
            if index:
                out[at] = 46
                at += 1
            at = put_decimal(out, at, np.int64(data[position + index]))
        port = read_i32(data, position + ADDRESS_V4)
    out[at] = 58
    at += 1
    if port < 0:
        out[at] = 45
        at += 1
        port = -port
    return put_decimal(out, at, port)


@inline
def hex_digits(value: Any) -> Any:
    """A number of 32 bits as eight upper-case hex digits: the big-endian number of their characters."""
    value = (value | value << 16) & 0x0000FFFF0000FFFF
    value = (value | value << 8) & 0x00FF00FF00FF00FF
    value = (value | value << 4) & 0x0F0F0F0F0F0F0F0F
    letters = ((value + 0x0606060606060606) >> 4) & 0x0101010101010101
    return value + 0x3030303030303030 + letters * 7


@inline
def put_id(out: Any, at: Any, data: Any, position: Any, wide: Any, physical: Any) -> Any:
    """Write a message id, store host and physical offset in hex; the position after it."""
    for index in range(HOST_V6_WORDS if wide else HOST_V4_WORDS):
        write_i64(out, at, hex_digits(read_u32(data, position + 4 * index)))
        at += WORD
    write_i64(out, at, hex_digits((physical >> 32) & 0xFFFFFFFF))
    write_i64(out, at + WORD, hex_digits(physical & 0xFFFFFFFF))
    return at + 2 * WORD
