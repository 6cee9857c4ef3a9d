"""Whole JSON texts, checked by the grammar. What is not certain to be JSON is left to a parser."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.kernels import inline, kernel
from rawlog.kernels.fields import CLOSE, CLOSE_LIST, COLON, COMMA, OPEN, OPEN_LIST, QUOTE
from rawlog.kernels.grammar import after_scalar, after_space, after_text
from rawlog.kernels.ints import read_u8
from rawlog.kernels.json import character_at, is_hidden
from rawlog.kernels.types import I64, U8, OutI64, OutU8

# What may come next. In a list or an object that has just been opened, its end too.
VALUE, ITEM, NAME, FIRST_NAME, REST = range(5)
DELETE = 0x7F


@inline
def next_byte(data: Any, position: Any, end: Any) -> Any:
    """The next byte that is no white space. -> (its position, the byte or -1)"""
    position = np.int64(after_space(data, position, end))
    return position, np.int64(read_u8(data, position)) if position < end else np.int64(-1)


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

    `ends` is -1 where the bytes are not certain to be one document in UTF-8 that can be shown as it is; `stack` limits how deeply it is
    nested. -> how many are
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
                    after = np.int64(-1)
                    if byte == QUOTE:
                        after, _ = after_text(data, position, end)
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
                expected = REST
                after, _ = after_scalar(data, position, end)
            position = after
            if expected == REST and depth == 0 and after >= 0:
                ends[row] = after
        if after < 0 or not is_plain(data, begins[row], ends[row]):
            ends[row] = -1
        else:
            good += 1
    return good
