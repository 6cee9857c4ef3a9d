"""Loops over all messages of a store at once: which blob each is of, and the index entry that a live store would have added for it.

Authority: PersistentIndex (findKey, markAsDeleted, markAsPermanent, markAsUndeleted), specification §10.3, §14 and §15.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.core.status import OK
from rawlog.formats.ambry.layouts import KEY_V2, KEY_V6, NONE, Flag, Kind
from rawlog.kernels import inline, kernel
from rawlog.kernels.gather import copy_exact
from rawlog.kernels.ints import read_i16, read_i64, read_u8
from rawlog.kernels.types import I8, I16, I32, I64, U8, Bool, Bools, Int, OutI8, OutI16, OutI32, OutI64, OutU8, U8x2

UUID_2, UUID_6 = KEY_V2.size, KEY_V6.at("uuid")
ODD, TEXT, RAW = 0, 3, 4
"""Groups of keys (§4.4) whose order and identity are two numbers: a uuid as text, or as 16 bytes. All other keys are odd."""
TEXT_SIZE, HALF_BITS, DIGIT_BITS = 36, 64, 4
DASH, ZERO, NINE, SMALL_A, SMALL_F = 0x2D, 0x30, 0x39, 0x61, 0x66
SIGN = -(1 << 63)

PUT, DELETE, TTL_UPDATE, UNDELETE = int(Kind.PUT), int(Kind.DELETE), int(Kind.TTL_UPDATE), int(Kind.UNDELETE)
IS_DELETE, IS_TTL, IS_UNDELETE = int(Flag.DELETE), int(Flag.TTL_UPDATE), int(Flag.UNDELETE)
SOUND, PUT_AGAIN, LOWER_LIFE, DELETED_TWICE, TTL_OF_DELETED, SECOND_TTL = 0, 1, 2, 3, 4, 5
"""What may be wrong with a message, seen from those before it."""
NEVER, ORPHANS, ALWAYS = 0, 1, 2
"""Which entries of the old index count: none; those of updates whose blob has no PUT before them in the log; all."""


@inline
def digit(byte: Any) -> Any:
    """The value of a small hexadecimal digit, -1 for any other byte."""
    if ZERO <= byte <= NINE:
        return np.int64(byte) - ZERO
    return np.int64(byte) - SMALL_A + 10 if SMALL_A <= byte <= SMALL_F else np.int64(-1)


@kernel
def identify(data: U8, starts: I64, sizes: I64, groups: OutI8, high: OutI64, low: OutI64) -> Any:
    """Write for each key its group and the two numbers that its uuid is, so that they sort as Ambry sorts keys. -> odd keys

    A key whose uuid is no small 36-character text is ODD, as are those of V1 and V2, whose other fields count too.
    """
    odd = np.int64(0)
    for index in range(starts.size):
        start, size = np.int64(starts[index]), np.int64(sizes[index])
        version = read_i16(data, start)
        groups[index], high[index], low[index] = ODD, 0, 0
        if version >= 6:
            groups[index] = RAW
            high[index] = read_i64(data, start + UUID_6)
            low[index] = read_i64(data, start + UUID_6 + 8)
        elif version >= 3 and size - UUID_2 == TEXT_SIZE:
            first, second, good, number = np.int64(0), np.int64(0), True, 0
            for at in range(TEXT_SIZE):
                byte = read_u8(data, start + UUID_2 + at)
                if at == 8 or at == 13 or at == 18 or at == 23:
                    good = good and byte == DASH
                    continue
                value = digit(byte)
                if value < 0:
                    good = False
                    break
                if number < 16:
                    first = (first << DIGIT_BITS) | value
                else:
                    second = (second << DIGIT_BITS) | value
                number += 1
            if good:
                groups[index] = TEXT
                high[index], low[index] = first ^ SIGN, second ^ SIGN  # text sorts as unsigned numbers do
        if groups[index] == ODD:
            odd += 1
    return odd


@inline
def kind_of(flags: Any) -> Any:
    """The kind of an index entry by its flags."""
    if flags & IS_DELETE:
        return DELETE
    if flags & IS_UNDELETE:
        return UNDELETE
    return TTL_UPDATE if flags & IS_TTL else PUT


@inline
def judge(kind: Any, life: Any, state_kind: Any, state_life: Any, state_flags: Any) -> Any:
    """What is wrong with a message after a state (§14, step 5)."""
    if kind == PUT:
        return PUT_AGAIN
    if life < state_life:
        return LOWER_LIFE
    if kind == DELETE and state_kind == DELETE and state_life >= life:
        return DELETED_TWICE
    if kind == TTL_UPDATE:
        if state_kind == DELETE:
            return TTL_OF_DELETED
        if state_flags & IS_TTL:
            return SECOND_TTL
    return SOUND


@kernel
def fold_entries(
    order: I64, new: Bools, kind: I8, segment: I32, offset: I64, life: I16, known: Bools, use: Int, drop: Bool,
    flags: OutU8, expires: OutI32, original: OutI64, account: OutI16, container: OutI16, wrong: OutI8, blob: OutI64,
    first: OutI64, found: OutI64, put: OutI64, found_flags: OutU8, found_expires: OutI32,
) -> Any:  # fmt: skip
    """Go through the messages blob by blob, each in log order, and make the entry of each from those before it. -> blobs

    `order` lists messages blob by blob, `new` says where a blob begins. `flags` to `container` hold what the message says, or what the old
    index says where `known`, and are completed. `wrong` is what the message does to its blob's history; with `drop` such a message counts
    for nothing. Of each blob: its `first` message, the entry that is its state (`found`, with flags and expiry as findKey gives them) and
    the newest PUT; -1 without one.
    """
    blobs = np.int64(-1)
    latest = state = np.int64(-1)
    for at in range(order.size):
        row = np.int64(order[at])
        if new[at]:
            blobs += 1
            first[blobs], found[blobs], put[blobs] = row, -1, -1
            latest = state = np.int64(-1)
        blob[row] = blobs
        this = np.int64(kind[row])
        state_flags, state_expires, state_kind = np.int64(0), np.int64(NONE), np.int64(NONE)
        if state >= 0:
            state_flags, state_expires = np.int64(flags[state]), np.int64(expires[state])
            state_kind = np.int64(kind_of(state_flags))
            if flags[latest] & IS_TTL and not state_flags & IS_TTL:
                state_flags, state_expires = state_flags | IS_TTL, np.int64(expires[latest])
            wrong[row] = judge(this, np.int64(life[row]), state_kind, np.int64(life[state]), state_flags)
            if drop and wrong[row] != SOUND and not (wrong[row] == LOWER_LIFE and this == UNDELETE):
                continue
        if known[row] and (use == ALWAYS or (use == ORPHANS and put[blobs] < 0 and this != PUT)):
            pass
        elif this == PUT:
            flags[row], original[row] = 0, offset[row]
        else:
            expires[row], original[row] = NONE, NONE
            before, before_flags, before_expires = state, state_flags, state_expires
            if this == UNDELETE and latest >= 0:
                before, before_flags, before_expires = latest, np.int64(flags[latest]), np.int64(expires[latest])
            if before >= 0:
                account[row], container[row], expires[row] = account[before], container[before], before_expires
            same = before >= 0 and segment[before] == segment[row]
            if this == DELETE:
                flags[row] = (before_flags | IS_DELETE) & ~IS_UNDELETE
                if same and before_flags == 0:
                    original[row] = offset[before]
            elif this == TTL_UPDATE:
                flags[row] = (before_flags | IS_TTL) & ~IS_UNDELETE
                expires[row] = NONE
                if same:
                    original[row] = offset[before]
            else:
                flags[row] = (before_flags | IS_UNDELETE) & ~IS_DELETE
        latest = row
        made = kind_of(np.int64(flags[row]))
        if made == PUT:
            put[blobs] = row
        if made != TTL_UPDATE:
            state = row
        if state >= 0:
            found[blobs], found_flags[blobs], found_expires[blobs] = state, flags[state], expires[state]
            if flags[latest] & IS_TTL and not flags[state] & IS_TTL:
                found_flags[blobs], found_expires[blobs] = flags[state] | IS_TTL, expires[latest]
    return blobs + 1


@kernel
def write_entries(data: U8, starts: I64, sizes: I64, values: U8x2, stride: Int, out: OutU8) -> Any:
    """Lay entries of `stride` bytes into `out`, zeroed before: key, then a row of `values`. -> (count, position, status)"""
    width = np.int64(values.shape[1])
    for index in range(starts.size):
        at, size = np.int64(index) * stride, np.int64(sizes[index])
        copy_exact(out, at, data, np.int64(starts[index]), size)
        for byte in range(width):
            out[at + size + byte] = values[index, byte]
    return starts.size, np.int64(starts.size) * stride, OK
