"""Integers of every width and byte order, read and written at any position.

Compiled, each is one unaligned load or store and perhaps a byte swap; nothing is checked, so ask for the room
first. All reads are widened to a signed 64-bit number.
"""

from __future__ import annotations

from typing import Any

from rawlog.kernels import twin, written

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
