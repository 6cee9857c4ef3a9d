"""Fields of JSON texts that some paths lead to: where their bytes are, so that others can take their place. All of a text is checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.core.status import FULL, OK
from rawlog.kernels import inline, kernel
from rawlog.kernels.fields import COLON, COMMA, NULL, OPEN, OPEN_LIST, OTHER, QUOTE, is_same
from rawlog.kernels.grammar import after_scalar, after_space, after_text
from rawlog.kernels.types import I64, U8, I64x2, Int, OutBools, OutI64, OutI64x2

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
    made = np.int64(0)
    for path in range(edges.size - 1):
        if (alive >> path) & 1:
            step = edges[path] + depth
            number = steps[step, 2]
            if item < 0:
                is_led = number == NAME and is_same(data, start, stop, names, steps[step, 0], steps[step, 1])
            else:
                is_led = number in (EVERY, item)
            if is_led:
                made |= np.int64(1) << path
    return made


@inline
def _ended(alive: Any, depth: Any, edges: Any) -> Any:
    """Those of some paths that end at this depth."""
    made = np.int64(0)
    for path in range(edges.size - 1):
        if (alive >> path) & 1 and edges[path + 1] - edges[path] == depth + 1:
            made |= np.int64(1) << path
    return made


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
    found: OutI64,
    done: OutBools,
) -> Any:
    """Find the fields of texts from number `first` on. `steps` are the start and end of a name in `names`, and the number of an item,
    NAME or EVERY; path n has those from `edges[n]` on. `drops` are the paths, as bits, whose fields are left out.

    A span is the text's number, start, end, path and kind; nulls have none. `found` has the paths that lead to a field, as bits. A text is
    not `done` if it is not JSON, or two paths meet, or a field holds others and is not dropped, or a name has escapes, or it is too deep.
    -> (texts seen, spans, status); FULL: no room for the spans of the next text
    """
    kinds, alives, items = room[:MOST_DEPTH], room[MOST_DEPTH : 2 * MOST_DEPTH], room[2 * MOST_DEPTH : 3 * MOST_DEPTH]
    ends, members, commas = (
        room[3 * MOST_DEPTH : 4 * MOST_DEPTH],
        room[4 * MOST_DEPTH : 5 * MOST_DEPTH],
        room[5 * MOST_DEPTH : 6 * MOST_DEPTH],
    )
    every = (np.int64(1) << (edges.size - 1)) - 1
    filled = np.int64(count)
    for row in range(first, starts.size):
        before, end = filled, np.int64(stops[row])
        position = after_space(data, np.int64(starts[row]), end)
        depth, mode = np.int64(-1), np.int64(_VALUE)
        alive, target, member, comma = every, np.int64(0), position, np.int64(-1)
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
        done[row], found[row] = is_good, met
        if not is_good:
            filled = before
    return np.int64(starts.size), filled, OK
