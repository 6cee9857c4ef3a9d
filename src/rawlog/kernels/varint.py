"""Variable-length integers as Kafka writes them: LEB128 groups, low group first, signed ones in zigzag.

A reader returns `(value, next_position)`; a next position below zero means that the bytes end inside the number
or that it has too many groups. The shortest form is not demanded. Bits beyond the width are dropped, as by Kafka.
"""

from __future__ import annotations

from typing import Any

from rawlog.kernels import inline, kernel
from rawlog.kernels.ints import read_u8, write_i8
from rawlog.kernels.types import U8, Int

FAILED = -1
MORE, GROUP = 0x80, 0x7F
LOW_32, MAX_64 = 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF


@inline
def unzigzag(value: Any) -> Any:
    """0, 1, 2, 3 -> 0, -1, 1, -2; the sign bit of `value` counts as one more bit of the number."""
    return ((value >> 1) & MAX_64) ^ -(value & 1)


@kernel
def read_long_groups(data: U8, position: Int, end: Int, last: Int) -> Any:
    """The general case, kept out of line: at most `last` groups of 7 bits (5 or 10)."""
    value, shift = 0, 0
    for _ in range(last):
        if position >= end:
            return 0, FAILED
        byte = read_u8(data, position)
        position += 1
        # Of the tenth group only one bit has room; the mask keeps plain Python equal to the machine.
        value |= ((byte & GROUP) if shift < 63 else (byte & 1)) << shift
        if byte < MORE:
            return value, position
        shift += 7
    return 0, FAILED


@inline
def read_uvarint(data: Any, position: Any, end: Any) -> Any:
    """An unsigned number of 32 bits, at most 5 bytes."""
    if position < end:
        first = read_u8(data, position)
        if first < MORE:
            return first, position + 1
        if end - position > 1:
            second = read_u8(data, position + 1)
            if second < MORE:
                return (first & GROUP) | (second << 7), position + 2
    value, after = read_long_groups(data, position, end, 5)
    return value & LOW_32, after


@inline
def read_varint(data: Any, position: Any, end: Any) -> Any:
    """A signed number of 32 bits in zigzag, at most 5 bytes."""
    value, after = read_uvarint(data, position, end)
    return unzigzag(value), after


@inline
def read_uvarlong(data: Any, position: Any, end: Any) -> Any:
    """A number of 64 bits as it lies in the groups, at most 10 bytes; the highest bit is the sign once compiled."""
    if position < end:
        first = read_u8(data, position)
        if first < MORE:
            return first, position + 1
        if end - position > 1:
            second = read_u8(data, position + 1)
            if second < MORE:
                return (first & GROUP) | (second << 7), position + 2
    return read_long_groups(data, position, end, 10)


@inline
def read_varlong(data: Any, position: Any, end: Any) -> Any:
    """A signed number of 64 bits in zigzag, at most 10 bytes."""
    value, after = read_uvarlong(data, position, end)
    return unzigzag(value), after


@inline
def size_uvarint(value: Any) -> Any:
    """The bytes that `write_uvarint` takes for a number of 0 to 2**32 - 1."""
    size = 1
    while value >= MORE:
        value >>= 7
        size += 1
    return size


@inline
def size_varint(value: Any) -> Any:
    """The bytes that `write_varint` takes for a signed number of 32 bits."""
    return size_uvarint((value << 1) ^ (value >> 31))


@inline
def size_varlong(value: Any) -> Any:
    """The bytes that `write_varlong` takes for any signed number of 64 bits."""
    # A negative number and its complement share all groups but the lowest bit.
    rest = (value if value >= 0 else ~value) >> 6
    size = 1
    while rest > 0:
        rest >>= 7
        size += 1
    return size


@inline
def write_uvarint(out: Any, position: Any, value: Any) -> Any:
    """Write a number of 0 to 2**32 - 1 in the shortest form. -> next position"""
    while value >= MORE:
        write_i8(out, position, (value & GROUP) | MORE)
        value >>= 7
        position += 1
    write_i8(out, position, value)
    return position + 1


@inline
def write_varint(out: Any, position: Any, value: Any) -> Any:
    """Write a signed number of 32 bits in zigzag. -> next position"""
    return write_uvarint(out, position, (value << 1) ^ (value >> 31))


@inline
def write_varlong(out: Any, position: Any, value: Any) -> Any:
    """Write any signed number of 64 bits in zigzag. -> next position"""
    sign = 1 if value < 0 else 0
    magnitude = value if value >= 0 else ~value
    rest = magnitude >> 6
    group = ((magnitude & 0x3F) << 1) | sign
    while rest > 0:
        write_i8(out, position, group | MORE)
        position += 1
        group = rest & GROUP
        rest >>= 7
    write_i8(out, position, group)
    return position + 1
