"""The grammar of JSON (RFC 8259): where values end that hold no others."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.kernels import inline
from rawlog.kernels.fields import BACKSLASH, ESCAPED, NULL, OTHER, QUOTE, TEXT, is_same
from rawlog.kernels.json import character_at, plain_until

_MINUS, _PLUS, _POINT, _ZERO, _NINE, _E = 0x2D, 0x2B, 0x2E, 0x30, 0x39, 0x65
_LITERALS = np.frombuffer(b"truefalsenull", np.uint8)
_DELETE = 0x7F


@inline
def after_space(data: Any, position: Any, end: Any) -> Any:
    """The position of the next byte that is no white space of JSON."""
    while position < end and (data[position] == 0x20 or 0x09 <= data[position] <= 0x0A or data[position] == 0x0D):
        position += 1
    return position


@inline
def is_hex(byte: Any) -> Any:
    """Whether a byte is a hexadecimal digit."""
    return _ZERO <= byte <= _NINE or 0x41 <= byte <= 0x46 or 0x61 <= byte <= 0x66


@inline
def after_text(data: Any, position: Any, end: Any) -> Any:
    """The position after a string whose first quote is at `position`, and whether it has escapes; -1 if it is not one."""
    position += 1
    has_escapes = False
    while position < end:
        position = plain_until(data, position, end)
        if position >= end:
            break
        byte = np.int64(data[position])
        if byte == QUOTE:
            return position + 1, has_escapes
        if byte == _DELETE:
            position += 1
        elif byte >= 0x80:
            size, _ = character_at(data, position, end)
            if size == 0:
                break
            position += size
        elif byte == BACKSLASH and end - position >= 2:
            has_escapes = True
            byte = np.int64(data[position + 1])
            if byte == 0x75:
                if end - position < 6:
                    break
                for index in range(2, 6):
                    if not is_hex(data[position + index]):
                        return np.int64(-1), has_escapes
                position += 6
            elif byte in (QUOTE, BACKSLASH, 0x2F, 0x62, 0x66, 0x6E, 0x72, 0x74):
                position += 2
            else:
                break
        else:
            break
    return np.int64(-1), has_escapes


@inline
def after_digits(data: Any, position: Any, end: Any) -> Any:
    """The position after one digit or more, or -1."""
    start = position
    while position < end and _ZERO <= data[position] <= _NINE:
        position += 1
    return position if position > start else np.int64(-1)


@inline
def after_number(data: Any, position: Any, end: Any) -> Any:
    """The position after a number, or -1."""
    if data[position] == _MINUS:
        position += 1
    if position < end and data[position] == _ZERO:
        position += 1
    else:
        position = after_digits(data, position, end)
    if 0 <= position < end and data[position] == _POINT:
        position = after_digits(data, position + 1, end)
    if 0 <= position < end and (data[position] | 0x20) == _E:
        position += 1
        if position < end and (data[position] == _PLUS or data[position] == _MINUS):
            position += 1
        position = after_digits(data, position, end)
    return position


@inline
def after_scalar(data: Any, position: Any, end: Any) -> Any:
    """The position after a value that holds no others, and its kind; -1 if it is not one."""
    byte = np.int64(data[position])
    if byte == QUOTE:
        after, has_escapes = after_text(data, position, end)
        return after, np.int64(ESCAPED) if has_escapes else np.int64(TEXT)
    if byte == 0x74 and end - position >= 4 and is_same(data, position, position + 4, _LITERALS, 0, 4):
        return position + 4, np.int64(OTHER)
    if byte == 0x66 and end - position >= 5 and is_same(data, position, position + 5, _LITERALS, 4, 9):
        return position + 5, np.int64(OTHER)
    if byte == 0x6E and end - position >= 4 and is_same(data, position, position + 4, _LITERALS, 9, 13):
        return position + 4, np.int64(NULL)
    if byte == _MINUS or _ZERO <= byte <= _NINE:
        return after_number(data, position, end), np.int64(OTHER)
    return np.int64(-1), np.int64(OTHER)
