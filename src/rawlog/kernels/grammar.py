"""The grammar of JSON (RFC 8259): where values end that hold no others."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.kernels import inline, kernel
from rawlog.kernels.gather import (
    BACKSLASH,
    CLOSE,
    CLOSE_LIST,
    COLON,
    COMMA,
    ESCAPED,
    NULL,
    OPEN,
    OPEN_LIST,
    OTHER,
    QUOTE,
    TEXT,
    is_same,
)
from rawlog.kernels.ints import read_u8
from rawlog.kernels.text import character_at, is_hidden, plain_until
from rawlog.kernels.types import I64, U8, I64x2, Int, OutBools, OutI64, OutI64x2, OutU8
from rawlog.model.status import FULL, OK

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


# ----------------------------------------------------------------------------------------------------------------------
# Whole JSON texts, checked by the grammar. What is not certain to be JSON is left to a parser.


# What may come next. In a list or an object that has just been opened, its end too.
VALUE, AT_ITEM, AT_NAME, FIRST_NAME, REST = range(5)
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
                    expected = AT_NAME if stack[depth - 1] else VALUE
                else:
                    after = np.int64(-1)
                    break
                after = position + 1
            elif expected in (AT_NAME, FIRST_NAME):
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
                depth, expected, after = depth + 1, FIRST_NAME if byte == OPEN else AT_ITEM, position + 1
            elif byte == CLOSE_LIST and expected == AT_ITEM:
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


# ----------------------------------------------------------------------------------------------------------------------
# Fields of JSON texts that some paths lead to: where their bytes are, so that others can take their place. All of a text is checked.


MEMBER, ITEM = 6, 7
"""Kinds of spans that are dropped: a member of an object with its name and a comma, an item of a list."""
NAME, EVERY = -2, -1
"""What a step has instead of the number of an item: a name, or every item."""
MOST_DEPTH, MOST_PATHS = 64, 60
ROOM = 6 * MOST_DEPTH
"""Numbers that `mark_fields` needs."""
_VALUE, _NEXT, _AFTER, _CLOSE = range(4)


@inline
def _led(
    data: Any, start: Any, stop: Any, item: Any, alive: Any, depth: Any, names: Any, steps: Any, edges: Any
) -> Any:
    """The paths, of those that are alive, that lead to a member of that name, or to that item; as bits."""
    led = np.int64(0)
    for path in range(edges.size - 1):
        if (alive >> path) & 1:
            step = edges[path] + depth
            number = steps[step, 2]
            if item < 0:
                is_led = number == NAME and is_same(data, start, stop, names, steps[step, 0], steps[step, 1])
            else:
                is_led = number in (EVERY, item)
            if is_led:
                led |= np.int64(1) << path
    return led


@inline
def _ended(alive: Any, depth: Any, edges: Any) -> Any:
    """Those of some paths that end at this depth."""
    ended = np.int64(0)
    for path in range(edges.size - 1):
        if (alive >> path) & 1 and edges[path + 1] - edges[path] == depth + 1:
            ended |= np.int64(1) << path
    return ended


@kernel
def mark_fields(
    data: U8,
    starts: I64,
    stops: I64,
    first: Int,
    names: U8,
    steps: I64x2,
    edges: I64,
    drops: Int,
    room: OutI64,
    spans: OutI64x2,
    count: Int,
    matched: OutI64,
    done: OutBools,
) -> Any:
    """Find the fields of texts from number `first` on. `steps` are the start and end of a name in `names`, and the number of an item,
    NAME or EVERY; path n has those from `edges[n]` on. `drops` are the paths, as bits, whose fields are left out.

    A span is the text's number, start, end, path and kind; nulls have none. `matched` has the paths that lead to a field, as bits.
    A text is not `done` if it is not JSON, or two paths meet, or a field holds others and is not dropped, or a name has escapes, or it
    is too deep.
    -> (texts seen, spans, status); FULL: no room for the spans of the next text
    """
    kinds, alives, items = room[:MOST_DEPTH], room[MOST_DEPTH : 2 * MOST_DEPTH], room[2 * MOST_DEPTH : 3 * MOST_DEPTH]
    ends, members, commas = (
        room[3 * MOST_DEPTH : 4 * MOST_DEPTH],
        room[4 * MOST_DEPTH : 5 * MOST_DEPTH],
        room[5 * MOST_DEPTH : 6 * MOST_DEPTH],
    )
    all_paths = (np.int64(1) << (edges.size - 1)) - 1
    filled = np.int64(count)
    for row in range(first, starts.size):
        before, end = filled, np.int64(stops[row])
        position = after_space(data, np.int64(starts[row]), end)
        depth, mode = np.int64(-1), np.int64(_VALUE)
        alive, target, member, comma = all_paths, np.int64(0), position, np.int64(-1)
        met, start, is_good = np.int64(0), position, False
        if position < end and data[position] != OPEN and data[position] != OPEN_LIST:
            position = end  # a text or a number has no fields
        while position < end or (mode == _AFTER and depth < 0):
            emitted = np.int64(-1)
            if mode == _VALUE:
                byte = np.int64(data[position])
                if byte in (OPEN, OPEN_LIST):
                    if depth + 1 >= MOST_DEPTH or target & ~drops or (target and alive != target):
                        break
                    depth += 1
                    kinds[depth], alives[depth], items[depth] = byte, alive & ~target, 0
                    ends[depth], members[depth], commas[depth] = target, member, comma
                    position = after_space(data, position + 1, end)
                    comma, mode = np.int64(-1), np.int64(_NEXT)
                    if position < end and data[position] == byte + 2:
                        mode = np.int64(_CLOSE)
                    continue
                after, kind = after_scalar(data, position, end)
                if after < 0:
                    break
                mode = np.int64(_AFTER)
                if target == 0:
                    position = after
                    continue
                met |= target
                if kind == NULL:
                    position = after
                    continue
                start, position, emitted = position, after, kind
            elif mode == _NEXT:
                member = position
                if kinds[depth] == OPEN:
                    if data[position] != QUOTE:
                        break
                    after, has_escapes = after_text(data, position, end)
                    if after < 0 or (has_escapes and alives[depth]):
                        break
                    alive = _led(data, member + 1, after - 1, np.int64(-1), alives[depth], depth, names, steps, edges)
                    position = after_space(data, after, end)
                    if position >= end or data[position] != COLON:
                        break
                    position = after_space(data, position + 1, end)
                else:
                    alive = _led(data, member, member, items[depth], alives[depth], depth, names, steps, edges)
                    items[depth] += 1
                target, mode = _ended(alive, depth, edges), np.int64(_VALUE)
                if target & (target - 1):
                    break  # two paths meet
                continue
            elif mode == _AFTER:
                position = after_space(data, position, end)
                if depth < 0:
                    is_good = position == end
                    break
                if position >= end:
                    break
                if data[position] == COMMA:
                    comma = position
                    position, mode = after_space(data, position + 1, end), np.int64(_NEXT)
                    continue
                mode = np.int64(_CLOSE)
                continue
            else:
                if data[position] != kinds[depth] + 2:
                    break
                position += 1
                target, start, member, comma = ends[depth], members[depth], members[depth], commas[depth]
                depth -= 1
                mode = np.int64(_AFTER)
                if target == 0:
                    continue
                met |= target
                emitted = np.int64(OTHER)
            if target & drops:
                if kinds[depth] == OPEN:
                    emitted, start, stop = np.int64(MEMBER), member, position
                    after = after_space(data, position, end)
                    if after < end and data[after] == COMMA:
                        stop = after_space(data, after + 1, end)
                    elif comma >= 0:
                        start = comma
                else:
                    emitted, start, stop = np.int64(ITEM), start, position
            else:
                stop = position
            if filled >= spans.shape[0]:
                return row, before, FULL
            path = np.int64(0)
            while not (target >> path) & 1:
                path += 1
            if filled > before and spans[filled - 1, 2] > start:
                break  # members that are next to each other are dropped: which comma goes is not clear
            spans[filled, 0], spans[filled, 1], spans[filled, 2] = row, start, stop
            spans[filled, 3], spans[filled, 4] = path, emitted
            filled += 1
        done[row], matched[row] = is_good, met
        if not is_good:
            filled = before
    return np.int64(starts.size), filled, OK
