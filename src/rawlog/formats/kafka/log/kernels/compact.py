"""What compaction asks of records and batches: where their keys are, which offset is a key's latest, which transactions are aborted.

The map has the slots of Kafka's (SkimpyOffsetMap), of 24 bytes: a hash of a key, and the latest offset it was seen at. Kafka's hash is
MD5; this one takes a fifth of the time, and nobody can make keys that collide. The fate of batches in transactions is
CleanedTransactionMetadata's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.kafka.log.layouts import SMALLEST_RECORD, Attributes, ControlType
from rawlog.kernels import inline, kernel
from rawlog.kernels.hashes import LOW, siphash
from rawlog.kernels.ints import read_varint, read_varlong, wrap_i64
from rawlog.kernels.types import (
    I64,
    U8,
    Bools,
    I64x2,
    Int,
    OutBools,
    OutI64,
    OutI64x2,
)
from rawlog.model.status import (
    BAD_COUNT,
    BAD_LENGTH,
    BAD_VARINT,
    FULL,
    OK,
    TRAILING,
)

SLOT = 3
"""Numbers in a slot of the map: the two of a key's digest, and its latest offset plus one (0: free)."""
SIZE, LATEST, STATE = 0, 1, 2
"""What the map keeps besides its slots: keys in it, and the last offset that it covers."""

ABORT, COMMIT = int(ControlType.ABORT), int(ControlType.COMMIT)
OTHER, EMPTY, DATA = -1, -2, -3
"""What a batch is where it is no marker: a control batch of another type, one without records, or no control batch."""
_CONTROL, _TRANSACTIONAL = int(Attributes.CONTROL), int(Attributes.TRANSACTIONAL)


@kernel
def locate_records_v2(
    data: U8,
    starts: I64,
    stops: I64,
    counts: I64,
    base_offsets: I64,
    offsets: OutI64,
    keys: OutI64,
    sizes: OutI64,
    nulls: OutBools,
) -> Any:
    """Find offset, key (size -1: none) and whether the value is null of all records of a run of batches. -> (count, position, status)

    `data[starts[i]:stops[i]]` are those of batch i. Of a failure `count` tells the records before it. What follows a
    value's length is not looked at.
    """
    row = 0
    for batch in range(starts.size):
        position, stop = np.int64(starts[batch]), np.int64(stops[batch])
        count, base = np.int64(counts[batch]), np.int64(base_offsets[batch])
        if count == 0:
            continue
        if count < 0 or count > (stop - position) // SMALLEST_RECORD:
            return row, position, BAD_COUNT
        if offsets.size - row < count:
            return row, position, FULL
        for _ in range(count):
            start = position
            size, position = read_varint(data, position, stop)
            if position < 0:
                return row, start, BAD_VARINT
            if size < 1 or stop - position < size:
                return row, start, BAD_LENGTH
            end = position + size
            _, position = read_varlong(data, position + 1, end)  # after the attributes, which nobody uses
            if position < 0:
                return row, start, BAD_VARINT
            delta, position = read_varint(data, position, end)
            if position < 0:
                return row, start, BAD_VARINT
            size, position = read_varint(data, position, end)
            if position < 0:
                return row, start, BAD_VARINT
            if end - position < size:
                return row, start, BAD_LENGTH
            keys[row] = position
            sizes[row] = max(size, np.int64(-1))
            position += max(size, np.int64(0))
            size, position = read_varint(data, position, end)
            if position < 0:
                return row, start, BAD_VARINT
            if end - position < size:
                return row, start, BAD_LENGTH
            nulls[row] = size < 0
            offsets[row] = wrap_i64(base + delta)
            row += 1
            position = end
        if position != stop:
            return row, position, TRAILING
    return row, np.int64(data.size), OK


@kernel
def digest_keys(data: U8, keys: I64, sizes: I64, first: Int, second: Int, out: OutI64x2) -> Any:
    """Write the two numbers of every key's hash into the rows of `out`, where there is a key. `first` and `second` are the secret of the
    hash. -> (count, position, status)

    On its own, so that the look-ups which follow wait for memory side by side.
    """
    for row in range(keys.size):
        if sizes[row] >= 0:
            out[0, row], out[1, row] = siphash(data, keys[row], sizes[row], first, second, 1, 3)
    return keys.size, np.int64(data.size), OK


@inline
def _slot(table: Any, low: Any, high: Any) -> Any:
    """Where a digest is in the map, or the free slot where it would."""
    slots = table.shape[0]
    at = ((low & LOW) * slots) >> 32
    while table[at, 2] != 0 and (table[at, 0] != low or table[at, 1] != high):
        at += 1
        if at == slots:
            at = 0
    return at


@kernel
def map_keys(
    digests: I64x2,
    sizes: I64,
    offsets: I64,
    firsts: I64,
    last_offsets: I64,
    begin: Int,
    first_dirty: Int,
    most: Int,
    table: OutI64x2,
    state: OutI64,
) -> Any:
    """Put the keys of rows firsts[i] to firsts[i + 1] of every batch i, from row `begin` on, into the map. -> (batches, rows, status)

    FULL: the map holds `most` keys and a record with a key comes; it ends in front of that one.
    """
    for batch in range(last_offsets.size):
        if firsts[batch + 1] < begin:
            continue
        for row in range(max(firsts[batch], begin), firsts[batch + 1]):
            offset = np.int64(offsets[row])
            if sizes[row] < 0 or offset < first_dirty:
                continue
            if state[SIZE] >= most:
                return batch, row, FULL
            low, high = digests[0, row], digests[1, row]
            at = _slot(table, low, high)
            if table[at, 2] == 0:
                table[at, 0] = low
                table[at, 1] = high
                state[SIZE] += 1
            table[at, 2] = offset + 1
            state[LATEST] = offset
        if last_offsets[batch] >= first_dirty:
            state[LATEST] = last_offsets[batch]
    return last_offsets.size, firsts[last_offsets.size], OK


@kernel
def move_keys(table: I64x2, larger: OutI64x2) -> Any:
    """Put everything in the map into a larger one. -> (slots, keys, status)"""
    count = 0
    for slot in range(table.shape[0]):
        if table[slot, 2] != 0:
            at = _slot(larger, table[slot, 0], table[slot, 1])
            larger[at, 0] = table[slot, 0]
            larger[at, 1] = table[slot, 1]
            larger[at, 2] = table[slot, 2]
            count += 1
    return table.shape[0], count, OK


@kernel
def judge_records(
    digests: I64x2,
    sizes: I64,
    offsets: I64,
    firsts: I64,
    keeps_deletes: Bools,
    nulls: Bools,
    table: I64x2,
    latest: Int,
    keep: OutBools,
) -> Any:
    """Say of every record whether compaction keeps it. -> (batches, rows without a key that are dropped, status)"""
    without = np.int64(0)
    for batch in range(keeps_deletes.size):
        for row in range(firsts[batch], firsts[batch + 1]):
            offset = np.int64(offsets[row])
            if offset > latest:
                keep[row] = True
            elif sizes[row] < 0:
                keep[row] = False
                without += 1
            elif nulls[row] and not keeps_deletes[batch]:
                keep[row] = False
            else:
                keep[row] = offset + 1 >= table[_slot(table, digests[0, row], digests[1, row]), 2]
    return keeps_deletes.size, without, OK


@kernel
def judge_batches(
    last_offsets: I64,
    attributes: I64,
    kinds: I64,
    producers: I64,
    aborted_firsts: I64,
    aborted_producers: I64,
    state: OutI64,
    ongoing: OutI64,
    committed: OutBools,
    seen: OutBools,
    kept: OutBools,
    discard: OutBools,
) -> Any:
    """Say of every batch whether its transaction lets go of it, in log order. -> (count, position, status)

    Aborted transactions come sorted by their first offset; `state[0]` is how many of them have begun. Producers are numbered from 0
    (-1: none): `ongoing` has a producer's aborted transaction plus one, `committed` whether a batch of one that was not aborted was
    seen since the last marker. `seen` marks aborted transactions of which a batch was met, `kept` those whose marker therefore stays.
    """
    for index in range(last_offsets.size):
        last, producer, kind = np.int64(last_offsets[index]), np.int64(producers[index]), kinds[index]
        while state[0] < aborted_firsts.size and aborted_firsts[state[0]] <= last:
            owner = aborted_producers[state[0]]
            state[0] += 1
            if ongoing[owner] == 0:
                ongoing[owner] = state[0]
        discard[index] = False
        if kind == DATA:
            if attributes[index] & _TRANSACTIONAL != 0 and producer >= 0:
                if ongoing[producer] != 0:
                    seen[ongoing[producer] - 1] = True
                    discard[index] = True
                else:
                    committed[producer] = True
        elif kind == EMPTY:
            discard[index] = True
        elif kind == ABORT and producer >= 0:
            number = ongoing[producer]
            ongoing[producer] = 0
            discard[index] = number == 0 or not seen[number - 1]
            if not discard[index]:
                kept[number - 1] = True
        elif kind == COMMIT and producer >= 0:
            discard[index] = not committed[producer]
            committed[producer] = False
    return last_offsets.size, np.int64(0), OK
