"""Integers of every width and byte order, read and written at any position.

Compiled, each is one unaligned load or store and perhaps a byte swap; nothing is checked, so ask for the room
first. All reads are widened to a signed 64-bit number.
"""

from __future__ import annotations

from typing import Any

from rawlog.kernels import inline, kernel, twin, written
from rawlog.kernels.types import U8, Int

_TYPES: dict[str, tuple[int, bool, bool]] = {  # bits, signed, big-endian
    "i8": (8, True, True),
    "u8": (8, False, True),
    "i16": (16, True, True),
    "u16": (16, False, True),
    "i32": (32, True, True),
    "u32": (32, False, True),
    "i64": (64, True, True),
    "i16_le": (16, True, False),
    "u16_le": (16, False, False),
    "i32_le": (32, True, False),
    "u32_le": (32, False, False),
    "i64_le": (64, True, False),
}


def _plain_reader(bits: int, signed: bool, big: bool) -> Any:
    size, order = bits // 8, "big" if big else "little"

    def read(data: Any, position: Any) -> int:
        start = int(position)
        assert 0 <= start <= data.size - size, (start, data.size)
        return int.from_bytes(data[start : start + size].tobytes(), order, signed=signed)  # type: ignore[arg-type]

    return read


def _plain_writer(bits: int, big: bool) -> Any:
    size, order = bits // 8, "big" if big else "little"

    def write(out: Any, position: Any, value: Any) -> None:
        start = int(position)
        assert 0 <= start <= out.size - size, (start, out.size)
        # Only the low bits are stored, as by the machine.
        for index, byte in enumerate((int(value) & (1 << bits) - 1).to_bytes(size, order)):  # type: ignore[arg-type]
            out[start + index] = byte

    return write


def _intrinsic_reader(bits: int, signed: bool, big: bool) -> Any:
    import sys

    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    swap = bits > 8 and big == (sys.byteorder == "little")

    @intrinsic
    def read(typing: Any, data: Any, position: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            word, wide = ir.IntType(bits), ir.IntType(64)
            pointer = builder.gep(array.data, [arguments[1]], inbounds=True)
            value = builder.load(builder.bitcast(pointer, word.as_pointer()), align=1)
            if swap:
                value = builder.bswap(value)
            if bits == 64:
                return value
            return builder.sext(value, wide) if signed else builder.zext(value, wide)

        return types.int64(data, types.int64), codegen

    return read


def _intrinsic_writer(bits: int, big: bool) -> Any:
    import sys

    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    swap = bits > 8 and big == (sys.byteorder == "little")

    @intrinsic
    def write(typing: Any, out: Any, position: Any, value: Any) -> Any:
        written(out)

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            word = ir.IntType(bits)
            number = arguments[2] if bits == 64 else builder.trunc(arguments[2], word)
            if swap:
                number = builder.bswap(number)
            pointer = builder.gep(array.data, [arguments[1]], inbounds=True)
            builder.store(number, builder.bitcast(pointer, word.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(out, types.int64, types.int64), codegen

    return write


def _reader(name: str) -> Any:
    bits, signed, big = _TYPES[name]
    return twin(_plain_reader(bits, signed, big), lambda: _intrinsic_reader(bits, signed, big))


def _writer(name: str) -> Any:
    bits, _, big = _TYPES[name]
    return twin(_plain_writer(bits, big), lambda: _intrinsic_writer(bits, big))


read_i8, read_u8 = _reader("i8"), _reader("u8")
read_i16, read_u16 = _reader("i16"), _reader("u16")
read_i32, read_u32 = _reader("i32"), _reader("u32")
read_i64 = _reader("i64")
read_i16_le, read_u16_le = _reader("i16_le"), _reader("u16_le")
read_i32_le, read_u32_le = _reader("i32_le"), _reader("u32_le")
read_i64_le = _reader("i64_le")

write_i8, write_i16, write_i32, write_i64 = _writer("i8"), _writer("i16"), _writer("i32"), _writer("i64")
write_i16_le, write_i32_le, write_i64_le = _writer("i16_le"), _writer("i32_le"), _writer("i64_le")


def _plain_wrap(value: Any) -> int:
    return ((int(value) + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


def _same(value: Any) -> Any:
    return value


wrap_i64 = twin(_plain_wrap, lambda: _same)
"""A sum or product as the machine leaves it in 64 bits, for formats whose authority lets it overflow."""


# ----------------------------------------------------------------------------------------------------------------------
# Variable-length integers as Kafka writes them: LEB128 groups, low group first, signed ones in zigzag.
# A reader returns `(value, next_position)`; a next position below zero means that the bytes end inside the number or that it has too many
# groups. The shortest form is not demanded. Bits beyond the width are dropped, as by Kafka.


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
