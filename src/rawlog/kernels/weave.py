"""Weaving pieces of text into rows, objects and lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.core.status import OK
from rawlog.kernels import inline, kernel
from rawlog.kernels.gather import copy, copy_exact
from rawlog.kernels.types import I64, U8, I64x2, Int, OutI64, OutU8

NULL = np.frombuffer(b"null", np.uint8)
COMMA = 0x2C


@inline
def put(out: Any, at: Any, literal: Any) -> Any:
    """Write a constant; the position after it."""
    for index in range(literal.size):
        out[at + index] = literal[index]
    return at + literal.size


@kernel
def weave(
    pieces: U8,
    begins: I64x2,
    ends: I64x2,
    literals: U8,
    edges: I64,
    valid: U8,
    out: OutU8,
    at: Int,
    starts: OutI64,
    stops: OutI64,
) -> Any:
    """Write each row as literal, piece, literal, piece … literal; an invalid row is null. -> (count, position, status)

    `begins` and `ends` have a line for each column, `edges` one number more than there are literals. Room: all pieces, and a
    row's literals (at least four bytes) for every row.
    """
    columns, rows = begins.shape
    position = np.int64(at)
    for row in range(rows):
        starts[row] = position
        if not valid[row]:
            position = put(out, position, NULL)
            stops[row] = position
            continue
        for column in range(columns):
            size = edges[column + 1] - edges[column]
            copy(out, position, literals, edges[column], size)
            position += size
            size = ends[column, row] - begins[column, row]
            copy(out, position, pieces, begins[column, row], size)
            position += size
        size = edges[columns + 1] - edges[columns]
        copy(out, position, literals, edges[columns], size)
        position += size
        stops[row] = position
    return rows, position, OK


@kernel
def join(
    pieces: U8,
    begins: I64,
    ends: I64,
    offsets: I64,
    valid: U8,
    opening: Int,
    closing: Int,
    out: OutU8,
    at: Int,
    starts: OutI64,
    stops: OutI64,
) -> Any:
    """Write each row's pieces, those from offsets[row] to offsets[row + 1], between two bytes with commas; an invalid row is null.

    Room: all pieces and a byte for each, and four bytes a row. -> (count, position, status)
    """
    position = np.int64(at)
    for row in range(offsets.size - 1):
        starts[row] = position
        if not valid[row]:
            position = put(out, position, NULL)
            stops[row] = position
            continue
        out[position] = opening
        position += 1
        for item in range(offsets[row], offsets[row + 1]):
            if item > offsets[row]:
                out[position] = COMMA
                position += 1
            size = ends[item] - begins[item]
            copy_exact(out, position, pieces, begins[item], size)
            position += size
        out[position] = closing
        position += 1
        stops[row] = position
    return offsets.size - 1, position, OK
