"""Producers and transactions, folded over the batches of a window in the order of the log."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.kafka.log.layouts import BATCH, NONE, ControlType
from rawlog.kernels import kernel
from rawlog.kernels.ints import read_i16, read_i32, read_i64, read_varint, read_varlong
from rawlog.kernels.types import (
    I64,
    U8,
    Bools,
    Int,
    OutI64,
    OutI64x2,
)
from rawlog.model.status import OK

FIELDS = 18
"""What is kept of a producer, by place. The first seven are those of a snapshot's entry."""
(
    EPOCH,
    LAST_SEQUENCE,
    LAST_OFFSET,
    OFFSET_DELTA,
    TIMESTAMP,
    COORDINATOR_EPOCH,
    OPEN,  # first offset of the transaction without a marker
    HAS_DATA,
    FIRST_EPOCH,  # of the first batch of data: what the state before it is compared with
    FIRST_SEQUENCE,
    FIRST_OFFSET,
    FIRST_PLACE,  # number of that batch in the table of places
    HAS_MARKER,
    FIRST_MARKER,  # its offset
    LEAD,  # whether markers come before the first batch of data: NO_LEAD, or of one epoch, or of several
    LEAD_EPOCH,  # of the last of them
    LEAD_TIMESTAMP,
    LEAD_COORDINATOR,
) = range(FIELDS)

NO_LEAD, SAME, MIXED = range(3)
SEQUENCE_MASK = 0x7FFF_FFFF
NOT_ODD, EPOCH_BACK, NEW_EPOCH_SEQUENCE, SEQUENCE = range(4)
"""What a leader would not have taken."""

ABORTED = 5
"""What is kept of an abort, by place: row of its producer, first offset, offset of the marker, last stable offset, whether it is the
first marker of the producer."""

_RECORDS, _ATTRIBUTES = BATCH.size, BATCH.at("attributes")
_BASE_TIME, _MAX_TIME = BATCH.at("base_timestamp"), BATCH.at("max_timestamp")
_CODEC, _APPEND_TIME = 0x07, 0x08
_KEY, _VALUE = 4, 6
"""The bytes of a marker's key (version, type) and value (version, coordinator epoch) that are read."""


@kernel
def read_markers(data: U8, starts: I64, stops: I64, kinds: OutI64, coordinators: OutI64, times: OutI64) -> Any:
    """The type, coordinator epoch and time (ms) of the first record of control batches; a type of -1 where it cannot be read.

    -> (count, position, status)
    """
    for index in range(starts.size):
        kinds[index] = coordinators[index] = times[index] = NONE
        start, end = starts[index], stops[index]
        if end - start < _RECORDS or read_i16(data, start + _ATTRIBUTES) & _CODEC:
            continue
        size, position = read_varint(data, start + _RECORDS, end)
        if position < 0 or size < 1 or end - position < size:
            continue
        end = position + size
        delta, position = read_varlong(data, position + 1, end)
        if position < 0:
            continue
        _, position = read_varint(data, position, end)
        if position < 0:
            continue
        size, position = read_varint(data, position, end)
        if position < 0 or size < _KEY or end - position < size or read_i16(data, position) < 0:
            continue
        kinds[index] = read_i16(data, position + 2)
        append = read_i16(data, start + _ATTRIBUTES) & _APPEND_TIME
        times[index] = read_i64(data, start + _MAX_TIME) if append else read_i64(data, start + _BASE_TIME) + delta
        position += size
        size, position = read_varint(data, position, end)
        if position >= 0 and size >= _VALUE and end - position >= size:
            coordinators[index] = read_i32(data, position + 2)
    return starts.size, 0, OK


@kernel
def fold_producers(
    rows: I64,
    kinds: I64,
    coordinators: I64,
    epochs: I64,
    sequences: I64,
    bases: I64,
    lasts: I64,
    times: I64,
    transactional: Bools,
    first_place: Int,
    states: OutI64x2,
    odd: OutI64,
    expected: OutI64,
    aborts: OutI64x2,
) -> Any:
    """Take in batches; `kinds` is -2 for data, else the marker's type. -> (number of aborts, batches taken, status)

    `odd` and `expected` get a value per batch, `aborts` a row per abort.
    """
    count = 0
    for index in range(rows.size):
        row, epoch = rows[index], np.int64(epochs[index])
        if kinds[index] == -2:
            sequence = np.int64(sequences[index])
            base, last = np.int64(bases[index]), np.int64(lasts[index])
            known, before = states[row, EPOCH], states[row, LAST_SEQUENCE]
            if states[row, HAS_DATA]:
                if epoch < known:
                    odd[index], expected[index] = EPOCH_BACK, known
                elif epoch > known and sequence > 0:
                    odd[index], expected[index] = NEW_EPOCH_SEQUENCE, 0
                elif epoch == known and sequence >= 0 and before >= 0 and sequence != (before + 1) & SEQUENCE_MASK:
                    odd[index], expected[index] = SEQUENCE, (before + 1) & SEQUENCE_MASK
            else:
                states[row, HAS_DATA] = 1
                states[row, FIRST_EPOCH] = epoch
                states[row, FIRST_SEQUENCE] = sequence
                states[row, FIRST_OFFSET] = base
                states[row, FIRST_PLACE] = first_place + index
            states[row, EPOCH] = epoch
            states[row, LAST_SEQUENCE] = NONE if sequence < 0 else (sequence + last - base) & SEQUENCE_MASK
            states[row, LAST_OFFSET] = last
            states[row, OFFSET_DELTA] = last - base
            states[row, TIMESTAMP] = times[index]
            if transactional[index] and states[row, OPEN] == NONE:
                states[row, OPEN] = base
            continue
        kind, offset = kinds[index], np.int64(bases[index])
        if kind != ABORT and kind != COMMIT:
            continue
        if kind == ABORT:
            stable = offset + 1
            for other in range(states.shape[0]):
                if other != row and states[other, OPEN] != NONE and states[other, OPEN] < stable:
                    stable = states[other, OPEN]
            aborts[count, 0] = row
            aborts[count, 1] = states[row, OPEN]
            aborts[count, 2] = offset
            aborts[count, 3] = stable
            aborts[count, 4] = not states[row, HAS_MARKER]
            count += 1
        states[row, OPEN] = NONE
        if not states[row, HAS_MARKER]:
            states[row, HAS_MARKER] = 1
            states[row, FIRST_MARKER] = offset
        if not states[row, HAS_DATA]:
            several = states[row, LEAD] != NO_LEAD and states[row, LEAD_EPOCH] != epoch
            if several or states[row, LEAD] == NO_LEAD:
                states[row, LEAD] = MIXED if several else SAME
            states[row, LEAD_EPOCH] = epoch
            states[row, LEAD_TIMESTAMP] = times[index]
            states[row, LEAD_COORDINATOR] = coordinators[index]
        if epoch != states[row, EPOCH]:
            states[row, EPOCH] = epoch
            states[row, LAST_SEQUENCE] = states[row, LAST_OFFSET] = NONE
            states[row, OFFSET_DELTA] = 0
        states[row, COORDINATOR_EPOCH] = coordinators[index]
        states[row, TIMESTAMP] = times[index]
    return count, rows.size, OK


ABORT, COMMIT = int(ControlType.ABORT), int(ControlType.COMMIT)
