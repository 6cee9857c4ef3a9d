"""Protobuf's wire format into columns: one loop over the fields of many messages of a type."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.kernels import inline, kernel
from rawlog.kernels.ints import MAX_64, read_i64_le, read_u32_le, read_uvarlong
from rawlog.kernels.types import (
    I64,
    U8,
    Bool,
    Int,
    OutI64,
    OutI64x2,
)

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
# How a message was read. UNUSUAL: a loop like this one cannot tell what it means, or it is damaged; the library decides. MORE: it has
# fields that are not known.
OK, UNUSUAL, MORE = 0, 1, 2
LAST_TAG = 0xFFFFFFFF
#: Bytes of a tag or a size: longer ones are valid numbers that no writer writes.
SHORT = 5


@inline
def signed(value: Any) -> Any:
    """64 bits as a signed number, also where the compiler is off."""
    return (value & MAX_64) | (-((value >> 63) & 1) << 63)


@inline
def read_value(data: Any, position: Any, end: Any, wire: Any) -> Any:
    """A value of a wire type. -> (its bits, or where its bytes begin; its size; the position after it, or -1)"""
    if wire == VARINT:
        value, after = read_uvarlong(data, position, end)
        if after - position == 10 and data[after - 1] > 1:  # more than 64 bits
            after = -1
        return np.int64(signed(value)), np.int64(0), np.int64(after)
    if wire == FIXED64:
        if end - position < 8:
            return np.int64(0), np.int64(0), np.int64(-1)
        return np.int64(read_i64_le(data, position)), np.int64(0), np.int64(position + 8)
    if wire == FIXED32:
        if end - position < 4:
            return np.int64(0), np.int64(0), np.int64(-1)
        return np.int64(read_u32_le(data, position)), np.int64(0), np.int64(position + 4)
    if wire == BYTES:
        size, after = read_uvarlong(data, position, end)
        size = signed(size)
        if after < 0 or after - position > SHORT or size < 0 or size > end - after:
            return np.int64(0), np.int64(0), np.int64(-1)
        return np.int64(after), np.int64(size), np.int64(after + size)
    return np.int64(0), np.int64(0), np.int64(-1)  # groups, and what is no wire type


@inline
def find_field(numbers: Any, number: Any, guess: Any) -> Any:
    """The place of a field's number among sorted ones, -1 if it is not there. Fields mostly come in order: `guess` is tried first."""
    if guess < numbers.size and numbers[guess] == number:
        return np.int64(guess)
    low, high = np.int64(0), np.int64(numbers.size)
    while low < high:
        middle = (low + high) // 2
        if numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    if low < numbers.size and numbers[low] == number:
        return np.int64(low)
    return np.int64(-1)


@kernel
def scan_messages(
    data: U8,
    starts: I64,
    stops: I64,
    numbers: I64,
    wires: I64,
    is_repeated: I64,
    choice: I64,
    chosen: OutI64,
    base: I64,
    is_filling: Bool,
    values: OutI64x2,
    sizes: OutI64x2,
    seen: OutI64x2,
    ends: OutI64x2,
    items: OutI64,
    item_sizes: OutI64,
    count: OutI64,
    before: OutI64,
    status: OutI64,
) -> Int:
    """Read messages, each from a start to a stop. Fields are known by sorted `numbers`; `choice` is the oneof of each, or -1.

    A field that is not repeated has one value and size for each message, and whether it was `seen`. Items of a repeated one follow one
    another from its `base` on, and `ends` says after which item each message ends; unless `is_filling`, they are only counted.
    -> messages that are unusual
    """
    unusual = np.int64(0)
    for row in range(starts.size):
        position, end = np.int64(starts[row]), np.int64(stops[row])
        for field in range(numbers.size):
            before[field] = count[field]
        for one in range(chosen.size):
            chosen[one] = -1
        # Items of a message that is known to be unusual were not counted: there is no room for them.
        guess, is_good, has_more = np.int64(0), status[row] != UNUSUAL, False
        while is_good and position < end:
            tag, after = read_uvarlong(data, position, end)
            tag = signed(tag)
            if after < 0 or after - position > SHORT or tag < 8 or tag > LAST_TAG:
                is_good = False
                break
            wire = tag & 7
            field = find_field(numbers, tag >> 3, guess)
            value, size, following = read_value(data, after, end, wire)
            if following < 0:
                is_good = False
                break
            position = following
            if field < 0:
                has_more = True
                continue
            guess = field if is_repeated[field] else field + 1
            if wire == wires[field]:
                if is_repeated[field]:
                    if is_filling:
                        items[base[field] + count[field]] = value
                        item_sizes[base[field] + count[field]] = size
                    count[field] += 1
                    continue
                # A message that comes twice is put together, a text must be UTF-8 each time, of a oneof the last counts: all of it is rare.
                if seen[field, row] and wire == BYTES:
                    is_good = False
                    break
                if choice[field] >= 0:
                    if chosen[choice[field]] >= 0 and chosen[choice[field]] != field:
                        is_good = False
                        break
                    chosen[choice[field]] = field
                values[field, row], sizes[field, row], seen[field, row] = value, size, 1
            elif wire == BYTES and is_repeated[field] and wires[field] != BYTES:
                place, stop = value, value + size
                while place < stop:
                    item, _, place = read_value(data, place, stop, wires[field])
                    if place < 0:
                        is_good = False
                        break
                    if is_filling:
                        items[base[field] + count[field]] = item
                        item_sizes[base[field] + count[field]] = 0
                    count[field] += 1
            else:
                has_more = True
        if not is_good:
            unusual += 1
            for field in range(numbers.size):
                count[field] = before[field]
                seen[field, row] = 0
        status[row] = UNUSUAL if not is_good else MORE if has_more else OK
        for field in range(numbers.size):
            ends[field, row] = count[field]
    return unusual
