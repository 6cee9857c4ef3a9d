"""Fields of JSON texts, found without reading the rest of the text into values."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.kernels import inline, kernel
from rawlog.kernels.ints import read_u8
from rawlog.kernels.types import I64, U8, OutI64

#: What is at the end of a path: nothing, text without or with escapes, anything else, null; or the text is not JSON up to there.
MISSING, TEXT, ESCAPED, OTHER, NULL, BROKEN = range(6)
QUOTE, BACKSLASH, COMMA, COLON = 0x22, 0x5C, 0x2C, 0x3A
OPEN, CLOSE, OPEN_LIST, CLOSE_LIST = 0x7B, 0x7D, 0x5B, 0x5D
SPACE, LETTER_N = 0x20, 0x6E


@inline
def after_space(data: Any, position: Any, end: Any) -> Any:
    """The position of the next byte that is no white space."""
    while position < end and read_u8(data, position) <= SPACE:
        position += 1
    return position


@inline
def after_text(data: Any, position: Any, end: Any) -> Any:
    """The position after a string whose first quote is at `position`, or -1; and whether it has escapes."""
    position += 1
    has_escapes = False
    while position < end:
        byte = read_u8(data, position)
        if byte == QUOTE:
            return position + 1, has_escapes
        if byte == BACKSLASH:
            has_escapes = True
            position += 1
        position += 1
    return np.int64(-1), has_escapes


@inline
def after_value(data: Any, position: Any, end: Any) -> Any:
    """The position after the value that begins at `position`, or -1."""
    if position >= end:
        return np.int64(-1)
    byte = read_u8(data, position)
    if byte == QUOTE:
        after, _ = after_text(data, position, end)
        return after
    if byte in (OPEN, OPEN_LIST):
        depth = 0
        while position < end:
            byte = read_u8(data, position)
            if byte == QUOTE:
                position, _ = after_text(data, position, end)
                if position < 0:
                    return np.int64(-1)
                continue
            if byte in (OPEN, OPEN_LIST):
                depth += 1
            elif byte in (CLOSE, CLOSE_LIST):
                depth -= 1
                if depth == 0:
                    return position + 1
            position += 1
        return np.int64(-1)
    start = position
    while position < end:
        byte = read_u8(data, position)
        if byte <= SPACE or byte in (COMMA, CLOSE, CLOSE_LIST, COLON, QUOTE):
            break
        position += 1
    return position if position > start else np.int64(-1)


@inline
def is_same(data: Any, start: Any, stop: Any, names: Any, first: Any, last: Any) -> Any:
    """Whether two runs of bytes are equal."""
    if stop - start != last - first:
        return False
    for index in range(stop - start):  # noqa: SIM110  (kernels have no generators)
        if read_u8(data, start + index) != names[first + index]:
            return False
    return True


@inline
def member_at(data: Any, position: Any, end: Any, names: Any, first: Any, last: Any) -> Any:
    """Where the value of a member of the object at `position` begins; -1: there is none, -2: not JSON."""
    position = after_space(data, position + 1, end)
    while position < end and read_u8(data, position) == QUOTE:
        after, has_escapes = after_text(data, position, end)
        if after < 0 or has_escapes:
            return np.int64(-2)  # a name with escapes is rare: Python compares it
        found = is_same(data, position + 1, after - 1, names, first, last)
        position = after_space(data, after, end)
        if position >= end or read_u8(data, position) != COLON:
            return np.int64(-2)
        position = after_space(data, position + 1, end)
        if found:
            return position
        position = after_value(data, position, end)
        if position < 0:
            return np.int64(-2)
        position = after_space(data, position, end)
        if position < end and read_u8(data, position) == COMMA:
            position = after_space(data, position + 1, end)
            if position >= end or read_u8(data, position) != QUOTE:
                return np.int64(-2)
    if position < end and read_u8(data, position) == CLOSE:
        return np.int64(-1)
    return np.int64(-2)


@inline
def item_at(data: Any, position: Any, end: Any, number: Any) -> Any:
    """Where an item of the array at `position` begins; -1: there is none, -2: not JSON."""
    position = after_space(data, position + 1, end)
    if position < end and read_u8(data, position) == CLOSE_LIST:
        return np.int64(-1)
    for _ in range(number):
        position = after_value(data, position, end)
        if position < 0:
            return np.int64(-2)
        position = after_space(data, position, end)
        if position >= end:
            return np.int64(-2)
        if read_u8(data, position) == CLOSE_LIST:
            return np.int64(-1)
        if read_u8(data, position) != COMMA:
            return np.int64(-2)
        position = after_space(data, position + 1, end)
    return position


@kernel
def find_fields(
    data: U8, starts: I64, stops: I64, names: U8, edges: I64, numbers: I64, begins: OutI64, ends: OutI64, kinds: OutI64
) -> Any:
    """Find a field of every text. The path has a name (its bytes in `names`) or, where `numbers` is not below 0, an item of a list.

    Of text the quotes are left out of `begins` and `ends`. -> number of texts
    """
    for row in range(starts.size):
        end = np.int64(stops[row])
        position = after_space(data, np.int64(starts[row]), end)
        kind = np.int64(OTHER)
        for step in range(numbers.size):
            byte = read_u8(data, position) if position < end else 0
            if byte == OPEN and numbers[step] < 0:
                found = member_at(data, position, end, names, np.int64(edges[step]), np.int64(edges[step + 1]))
            elif byte == OPEN_LIST and numbers[step] >= 0:
                found = item_at(data, position, end, np.int64(numbers[step]))
            else:
                found = np.int64(-1) if byte != 0 else np.int64(-2)
            if found < 0:
                kind = np.int64(MISSING) if found == -1 else np.int64(BROKEN)
                break
            position = found
        begins[row] = ends[row] = 0
        if kind == OTHER:
            after = after_value(data, position, end)
            if after < 0:
                kind = np.int64(BROKEN)
            else:
                begins[row], ends[row] = position, after
                byte = read_u8(data, position)
                if byte == QUOTE:
                    _, has_escapes = after_text(data, position, end)
                    kind = np.int64(ESCAPED) if has_escapes else np.int64(TEXT)
                    begins[row], ends[row] = position + 1, after - 1
                elif byte == LETTER_N:
                    kind = np.int64(NULL)
        kinds[row] = kind
    return starts.size
