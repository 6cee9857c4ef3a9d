"""Avro values into columns: one loop that runs a program made from a schema over many bodies."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.kernels import inline, kernel
from rawlog.kernels.ints import read_i64_le, read_u8, read_u32_le, read_varlong
from rawlog.kernels.types import (
    I64,
    U8,
    I64x2,
    Int,
    OutBools,
    OutI64,
)

# The operations of a program, one per row: (operation, node, a, b). MARK and CLOSE note where the bytes of a part begin and end.
END, BOOL, LONG, INT, FLOAT, DOUBLE, BYTES, FIXED, ENUM, UNION, MARK, JUMP, LOOP, NEXT, CLOSE = range(15)
# How a body ended.
OK, TRUNCATED, CORRUPT, LIMIT, FULL = range(5)
#: Items of an array that takes no bytes at all (of nulls) are counted, not read: so many are enough.
FREE_ITEMS = 1 << 12
INT_MAX = (1 << 31) - 1


@inline
def put(arena: Any, base: Any, count: Any, stride: Any, capacity: Any, node: Any, first: Any, second: Any) -> Any:
    """Add an entry of one or two words to a node; one that has no room is counted only."""
    if count[node] < capacity[node]:
        at = base[node] + count[node] * stride[node]
        arena[at] = first
        if stride[node] == 2:
            arena[at + 1] = second
    count[node] += 1


@inline
def fill(
    arena: Any, base: Any, count: Any, stride: Any, capacity: Any, child: Any, nodes: Any, start: Any, stop: Any
) -> Any:
    """Add an empty entry to every node of a list: 0, or for a loop that it ends where it began."""
    for index in range(start, stop):
        node = nodes[index]
        value = np.int64(0)
        if child[node] >= 0:
            value = count[child[node]]
        put(arena, base, count, stride, capacity, node, value, np.int64(0))


@kernel
def decode_avro(
    data: U8,
    starts: I64,
    stops: I64,
    first: Int,
    program: I64x2,
    targets: I64x2,
    fills: I64,
    rows: I64,
    base: I64,
    stride: I64,
    capacity: I64,
    child: I64,
    arena: OutI64,
    count: OutI64,
    before: OutI64,
    stack: OutI64,
    status: OutI64,
    ends: OutI64,
    sized: OutBools,
) -> Any:
    """Decode the bodies from number `first` on into the nodes' entries in `arena`.

    `targets` has for each branch of a union: where it begins in the program, and the range of `fills` with the nodes of the other
    branches. `rows` are the nodes that have an entry for each body; of one that is damaged they get an empty one. `sized` says which
    bodies have blocks of items with their size in bytes. -> (number of bodies, status); FULL if the next body has more entries than there
    is room for: `before` then has how many entries all nodes would have after it.
    """
    for number in range(first, starts.size):
        for node in range(count.size):
            before[node] = count[node]
        position, end = np.int64(starts[number]), np.int64(stops[number])
        at, depth = np.int64(0), np.int64(0)
        result = np.int64(OK)
        while result == OK:
            operation, node = program[at, 0], program[at, 1]
            if operation == END:
                break
            if operation == JUMP:
                at = program[at, 2]
                continue
            if operation == BOOL:
                if end - position < 1:
                    result = np.int64(TRUNCATED)
                    break
                put(arena, base, count, stride, capacity, node, np.int64(read_u8(data, position) != 0), np.int64(0))
                position += 1
            elif operation in (LONG, INT, ENUM):
                value, after = read_varlong(data, position, end)
                if after < 0:
                    result = np.int64(TRUNCATED) if end - position < 10 else np.int64(CORRUPT)
                    break
                if operation == INT and (value > INT_MAX or value < -INT_MAX - 1):
                    result = np.int64(CORRUPT)
                    break
                if operation == ENUM and (value < 0 or value >= program[at, 2]):
                    result = np.int64(CORRUPT)
                    break
                put(arena, base, count, stride, capacity, node, np.int64(value), np.int64(0))
                position = after
            elif operation == FLOAT:
                if end - position < 4:
                    result = np.int64(TRUNCATED)
                    break
                put(arena, base, count, stride, capacity, node, np.int64(read_u32_le(data, position)), np.int64(0))
                position += 4
            elif operation == DOUBLE:
                if end - position < 8:
                    result = np.int64(TRUNCATED)
                    break
                put(arena, base, count, stride, capacity, node, np.int64(read_i64_le(data, position)), np.int64(0))
                position += 8
            elif operation == BYTES:
                size, after = read_varlong(data, position, end)
                if after < 0 or size < 0:
                    result = np.int64(CORRUPT) if after >= 0 or end - position >= 10 else np.int64(TRUNCATED)
                    break
                if end - after < size:
                    result = np.int64(TRUNCATED)
                    break
                put(arena, base, count, stride, capacity, node, np.int64(after), np.int64(size))
                position = after + size
            elif operation == FIXED:
                size = program[at, 2]
                if end - position < size:
                    result = np.int64(TRUNCATED)
                    break
                put(arena, base, count, stride, capacity, node, position, size)
                position += size
            elif operation == UNION:
                branch, after = read_varlong(data, position, end)
                if after < 0 or branch < 0 or branch >= program[at, 2]:
                    result = np.int64(CORRUPT) if after >= 0 or end - position >= 10 else np.int64(TRUNCATED)
                    break
                put(arena, base, count, stride, capacity, node, np.int64(branch), np.int64(0))
                position = after
                target = program[at, 3] + branch
                fill(arena, base, count, stride, capacity, child, fills, targets[target, 1], targets[target, 2])
                at = targets[target, 0]
                continue
            elif operation == MARK:
                put(arena, base, count, stride, capacity, node, position, position)
            elif operation == CLOSE:
                if count[node] <= capacity[node]:
                    arena[base[node] + (count[node] - 1) * stride[node] + 1] = position
            else:  # LOOP begins an array or a map, NEXT ends one of its items
                if operation == LOOP:
                    stack[depth] = 0
                    depth += 1
                left = stack[depth - 1]
                if operation == NEXT:
                    left -= 1
                if left == 0:
                    left, after = read_varlong(data, position, end)
                    if after >= 0 and left < 0:
                        left = -left
                        sized[number] = True
                        size, after = read_varlong(data, after, end)
                    if after < 0:
                        result = np.int64(TRUNCATED) if end - position < 20 else np.int64(CORRUPT)
                        break
                    position = after
                    if left < 0 or (left > end - position and left > FREE_ITEMS):
                        result = np.int64(LIMIT)
                        break
                if left == 0:
                    depth -= 1
                    put(arena, base, count, stride, capacity, node, count[child[node]], np.int64(0))
                    at = program[at, 2]
                    continue
                count[child[node]] += 1
                if count[child[node]] - before[child[node]] > end - starts[number] + FREE_ITEMS:
                    result = np.int64(LIMIT)
                    break
                stack[depth - 1] = left
                at = program[at, 3]
                continue
            at += 1
        if result != OK:
            for node in range(count.size):
                count[node] = before[node]
            fill(arena, base, count, stride, capacity, child, rows, np.int64(0), np.int64(rows.size))
        is_full = False
        for node in range(count.size):
            if count[node] > capacity[node]:
                is_full = True
        if is_full:
            for node in range(count.size):
                needed = count[node]
                count[node] = before[node]
                before[node] = needed
            return np.int64(number), np.int64(FULL)
        status[number], ends[number] = result, position
    return np.int64(starts.size), np.int64(OK)
