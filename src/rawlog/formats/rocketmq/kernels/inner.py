"""Messages inside the body of an inner batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.core.status import BAD_LENGTH, FULL, OK
from rawlog.formats.rocketmq.layouts import INNER, PROPERTIES
from rawlog.kernels import kernel
from rawlog.kernels.ints import read_i16, read_i32
from rawlog.kernels.types import I64, U8, Bools, OutI64x2

SIZE, FLAG, BODY_LENGTH, HEAD_SIZE = INNER.at("size"), INNER.at("flag"), INNER.at("body_length"), INNER.size
PROPERTIES_SIZE = PROPERTIES.size
SMALLEST = INNER.size + PROPERTIES.size
INNER_FIELDS = 7
"""Rows of the array that `unpack_inner` fills, by place."""
I_PARENT, I_NUMBER, I_FLAG, I_BODY, I_BODY_SIZE, I_PROPERTIES, I_PROPERTIES_SIZE = range(INNER_FIELDS)


@kernel
def unpack_inner(
    data: U8, starts: I64, sizes: I64, packed: Bools, properties: I64, properties_sizes: I64, out: OutI64x2
) -> Any:
    """A row for every message: of those that are not packed what is given, of the others each inner one. -> (count, parent, status)"""
    count = 0
    for parent in range(starts.size):
        position, end = np.int64(starts[parent]), np.int64(starts[parent]) + np.int64(sizes[parent])
        if not packed[parent]:
            if count == out.shape[1]:
                return count, parent, FULL
            out[I_PARENT, count] = parent
            out[I_NUMBER, count] = 0
            out[I_BODY, count] = position
            out[I_BODY_SIZE, count] = sizes[parent]
            out[I_PROPERTIES, count] = properties[parent]
            out[I_PROPERTIES_SIZE, count] = properties_sizes[parent]
            count += 1
            continue
        number = 0
        while position < end:
            if count == out.shape[1]:
                return count, parent, FULL
            if end - position < SMALLEST:
                return count, parent, BAD_LENGTH
            size, body = read_i32(data, position + SIZE), read_i32(data, position + BODY_LENGTH)
            if size < SMALLEST or size > end - position or body < 0 or body > size - SMALLEST:
                return count, parent, BAD_LENGTH
            after = position + HEAD_SIZE + body
            pairs = read_i16(data, after)
            if pairs != size - SMALLEST - body:
                return count, parent, BAD_LENGTH
            out[I_PARENT, count] = parent
            out[I_NUMBER, count] = number
            out[I_FLAG, count] = read_i32(data, position + FLAG)
            out[I_BODY, count] = position + HEAD_SIZE
            out[I_BODY_SIZE, count] = body
            out[I_PROPERTIES, count] = after + PROPERTIES_SIZE
            out[I_PROPERTIES_SIZE, count] = pairs
            count += 1
            number += 1
            position += size
    return count, starts.size, OK
