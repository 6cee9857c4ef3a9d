"""Whole JSON texts, checked by the grammar of RFC 8259. What is not certain to be JSON is left to a parser."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.kernels import inline, kernel
from rawlog.kernels.fields import BACKSLASH, CLOSE, CLOSE_LIST, COLON, COMMA, OPEN, OPEN_LIST, QUOTE
from rawlog.kernels.ints import read_u8
from rawlog.kernels.json import character_at, is_hidden
from rawlog.kernels.types import I64, U8, OutI64, OutU8

# What may come next. In a list or an object that has just been opened, its end too.
VALUE, ITEM, NAME, FIRST_NAME, REST = range(5)
SPACE, TAB, LINE_FEED, RETURN = 0x20, 0x09, 0x0A, 0x0D
MINUS, PLUS, POINT, ZERO, NINE = 0x2D, 0x2B, 0x2E, 0x30, 0x39
DELETE = 0x7F
LITTLE_E, LARGE_E, LETTER_U = 0x65, 0x45, 0x75
#: What may follow a backslash, without u: " \ / b f n r t
ESCAPES = (0x22, 0x5C, 0x2F, 0x62, 0x66, 0x6E, 0x72, 0x74)
TRUE = (0x74, 0x72, 0x75, 0x65)
FALSE = (0x66, 0x61, 0x6C, 0x73, 0x65)
NULL = (0x6E, 0x75, 0x6C, 0x6C)


@inline
def next_byte(data: Any, position: Any, end: Any) -> Any:
    """The next byte that is no white space of JSON. -> (its position, the byte or -1)"""
    while position < end:
        byte = np.int64(read_u8(data, position))
        if byte not in (SPACE, TAB, LINE_FEED, RETURN):
            return np.int64(position), byte
        position += 1
    return np.int64(position), np.int64(-1)


@inline
def after_string(data: Any, position: Any, end: Any) -> Any:
    """The position after a string whose first quote is at `position`, or -1."""
    position += 1
    while position < end:
        byte = read_u8(data, position)
        if byte == QUOTE:
            return np.int64(position + 1)
        if byte < SPACE:
            return np.int64(-1)
        if byte == BACKSLASH:
            position += 1
            byte = read_u8(data, position) if position < end else 0
            if byte == LETTER_U:
                for _ in range(4):
                    position += 1
                    byte = read_u8(data, position) if position < end else 0
                    small = byte | 0x20
                    if not (ZERO <= byte <= NINE or 0x61 <= small <= 0x66):
                        return np.int64(-1)
            elif byte not in ESCAPES:
                return np.int64(-1)
        position += 1
    return np.int64(-1)


@inline
def after_digits(data: Any, position: Any, end: Any) -> Any:
    """The position after one or more digits, or -1."""
    start = position
    while position < end and ZERO <= read_u8(data, position) <= NINE:
        position += 1
    return np.int64(position) if position > start else np.int64(-1)


@inline
def after_number(data: Any, position: Any, end: Any) -> Any:
    """The position after a number, or -1."""
    if position < end and read_u8(data, position) == MINUS:
        position += 1
    first = read_u8(data, position) if position < end else 0
    after = np.int64(position + 1) if first == ZERO else after_digits(data, position, end)
    if after >= 0 and after < end and read_u8(data, after) == POINT:
        after = after_digits(data, after + 1, end)
    if after >= 0 and after < end and read_u8(data, after) in (DELETE = 0x7F
LITTLE_E, LARGE_E):
        after += 1
        if after < end and read_u8(data, after) in (PLUS, MINUS):
            after += 1
        after = after_digits(data, after, end)
    return np.int64(after)


@inline
def after_word(data: Any, position: Any, end: Any, word: Any) -> Any:
    """The position after a word, or -1."""
    if end - position < len(word):
        return np.int64(-1)
    for number in range(len(word)):
        if read_u8(data, position + number) != word[number]:
            return np.int64(-1)
    return np.int64(position + len(word))


@inline
def after_plain(data: Any, position: Any, end: Any, byte: Any) -> Any:
    """The position after a value that is no list and no object, or -1."""
    if byte == QUOTE:
        return after_string(data, position, end)
    if byte == MINUS or ZERO <= byte <= NINE:
        return after_number(data, position, end)
    if byte == TRUE[0]:
        return after_word(data, position, end, TRUE)
    if byte == FALSE[0]:
        return after_word(data, position, end, FALSE)
    if byte == NULL[0]:
        return after_word(data, position, end, NULL)
    return np.int64(-1)


@inline
def is_plain(data: Any, start: Any, stop: Any) -> Any:
    """Whether a run of bytes is UTF-8 without characters that must be escaped before a terminal shows them."""
    position = np.int64(start)
    while position < stop:
        if read_u8(data, position) < DELETE:
            position += 1
            continue
        size, code = character_at(data, position, stop)
        if size == 0 or is_hidden(code):
            return False
        position += size
    return True


@kernel
def check_documents(data: U8, starts: I64, stops: I64, stack: OutU8, begins: OutI64, ends: OutI64) -> Any:
    """Find the documents of runs of bytes: where each begins and ends without the white space around it.

    `ends` is -1 where the bytes are not certain to be one document in UTF-8 that can be shown as it is: `stack` limits how deeply it is nested. -> how many are
    """
    good = 0
    for row in range(starts.size):
        position, end = np.int64(starts[row]), np.int64(stops[row])
        ends[row] = -1
        begins[row], _ = next_byte(data, position, end)
        depth, expected, after = 0, VALUE, np.int64(0)
        while after >= 0:
            position, byte = next_byte(data, position, end)
            if expected == REST and depth == 0:
                after = np.int64(-1) if byte >= 0 else after
                break
            if byte < 0:
                after = np.int64(-1)
            elif expected == REST:
                closing = CLOSE if stack[depth - 1] else CLOSE_LIST
                if byte == closing:
                    depth -= 1
                elif byte == COMMA:
                    expected = NAME if stack[depth - 1] else VALUE
                else:
                    after = np.int64(-1)
                    break
                after = position + 1
            elif expected in (NAME, FIRST_NAME):
                if byte == CLOSE and expected == FIRST_NAME:
                    depth, expected, after = depth - 1, REST, position + 1
                else:
                    after = after_string(data, position, end) if byte == QUOTE else np.int64(-1)
                    if after >= 0:
                        position, byte = next_byte(data, after, end)
                        expected, after = VALUE, (position + 1 if byte == COLON else np.int64(-1))
            elif byte in (OPEN, OPEN_LIST):
                if depth >= stack.size:
                    after = np.int64(-1)
                    break
                stack[depth] = byte == OPEN
                depth, expected, after = depth + 1, FIRST_NAME if byte == OPEN else ITEM, position + 1
            elif byte == CLOSE_LIST and expected == ITEM:
                depth, expected, after = depth - 1, REST, position + 1
            else:
                expected, after = REST, after_plain(data, position, end, byte)
            position = after
            if expected == REST and depth == 0 and after >= 0:
                ends[row] = after
        if after < 0 or not is_plain(data, begins[row], ends[row]):
            ends[row] = -1
        else:
            good += 1
    return good
