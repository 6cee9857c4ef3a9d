"""Kernels around inlined helpers and intrinsics, so that tests can call them, compiled or not."""

from __future__ import annotations

from typing import Any

from rawlog.kernels import (
    gather,
    ints,
    kernel,
)
from rawlog.kernels import (
    ints as varint,
)

_read_i8, _read_u8, _read_i16, _read_u16 = ints.read_i8, ints.read_u8, ints.read_i16, ints.read_u16
_read_i32, _read_u32, _read_i64 = ints.read_i32, ints.read_u32, ints.read_i64
_read_i16_le, _read_u16_le, _read_i32_le = ints.read_i16_le, ints.read_u16_le, ints.read_i32_le
_read_u32_le, _read_i64_le = ints.read_u32_le, ints.read_i64_le
_write_i8, _write_i16, _write_i32, _write_i64 = ints.write_i8, ints.write_i16, ints.write_i32, ints.write_i64
_write_i16_le, _write_i32_le, _write_i64_le = ints.write_i16_le, ints.write_i32_le, ints.write_i64_le
_read_varint, _read_varlong, _read_uvarint = varint.read_varint, varint.read_varlong, varint.read_uvarint
_write_varint, _write_varlong, _write_uvarint = varint.write_varint, varint.write_varlong, varint.write_uvarint
_size_varint, _size_varlong, _size_uvarint = varint.size_varint, varint.size_varlong, varint.size_uvarint
_copy, _copy_exact = gather.copy, gather.copy_exact


@kernel
def read_all(data: Any, position: Any, out: Any) -> None:
    """Every reader at once, in the order of READERS."""
    out[0] = _read_i8(data, position)
    out[1] = _read_u8(data, position)
    out[2] = _read_i16(data, position)
    out[3] = _read_u16(data, position)
    out[4] = _read_i32(data, position)
    out[5] = _read_u32(data, position)
    out[6] = _read_i64(data, position)
    out[7] = _read_i16_le(data, position)
    out[8] = _read_u16_le(data, position)
    out[9] = _read_i32_le(data, position)
    out[10] = _read_u32_le(data, position)
    out[11] = _read_i64_le(data, position)


READERS = (">i1", ">u1", ">i2", ">u2", ">i4", ">u4", ">i8", "<i2", "<u2", "<i4", "<u4", "<i8")


@kernel
def write_all(out: Any, position: Any, value: Any) -> None:
    """Every writer, each into its own eight bytes from `position` on, in the order of WRITERS."""
    _write_i8(out, position, value)
    _write_i16(out, position + 8, value)
    _write_i32(out, position + 16, value)
    _write_i64(out, position + 24, value)
    _write_i16_le(out, position + 32, value)
    _write_i32_le(out, position + 40, value)
    _write_i64_le(out, position + 48, value)


WRITERS = (">i1", ">i2", ">i4", ">i8", "<i2", "<i4", "<i8")


@kernel
def read_varint(data: Any, position: Any, end: Any) -> Any:
    return _read_varint(data, position, end)


@kernel
def read_varlong(data: Any, position: Any, end: Any) -> Any:
    return _read_varlong(data, position, end)


@kernel
def read_uvarint(data: Any, position: Any, end: Any) -> Any:
    return _read_uvarint(data, position, end)


@kernel
def write_varint(out: Any, value: Any) -> Any:
    return _write_varint(out, 0, value), _size_varint(value)


@kernel
def write_varlong(out: Any, value: Any) -> Any:
    return _write_varlong(out, 0, value), _size_varlong(value)


@kernel
def write_uvarint(out: Any, value: Any) -> Any:
    return _write_uvarint(out, 0, value), _size_uvarint(value)


@kernel
def copy(out: Any, to: Any, data: Any, start: Any, size: Any) -> None:
    _copy(out, to, data, start, size)


@kernel
def copy_exact(out: Any, to: Any, data: Any, start: Any, size: Any) -> None:
    _copy_exact(out, to, data, start, size)
