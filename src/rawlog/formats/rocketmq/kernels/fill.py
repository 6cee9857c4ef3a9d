"""The parts of messages that have any size, laid into Arrow buffers: one pass over each message, while its bytes are near."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from rawlog.core.status import FULL, OK
from rawlog.formats.rocketmq.kernels.entries import BORN_V6, STORE_V6, body_crc
from rawlog.formats.rocketmq.kernels.text import (
    KEYS_WORD,
    TAGS_WORD,
    UNIQUE_WORD,
    WORD,
    masks_of,
    name_word,
    next_pair,
    put_host,
    put_id,
)
from rawlog.kernels import inline, kernel
from rawlog.kernels.gather import SLACK, copy, copy32, copy_exact
from rawlog.kernels.ints import read_i64
from rawlog.kernels.types import U8, AnyI64, Bool, Int, OutBools, OutI32, OutI64, OutU8

NUMBERS = 13
"""What `fill_rows` must know of each message, by place."""
(
    N_BODY,
    N_BODY_SIZE,
    N_STORED,
    N_STORED_SIZE,
    N_CRC,
    N_TOPIC,
    N_TOPIC_SIZE,
    N_PROPERTIES,
    N_PROPERTIES_SIZE,
    N_SYS_FLAG,
    N_BORN_HOST,
    N_STORE_HOST,
    N_PHYSICAL,
) = range(NUMBERS)

COLUMNS = 10
"""The columns that it can fill, by place; the pairs of properties are two of them and an offset more."""
C_BODY, C_TOPIC, C_NAME, C_VALUE, C_KEYS, C_TAGS, C_UNIQUE, C_BORN_HOST, C_STORE_HOST, C_ID = range(COLUMNS)
C_ROW = COLUMNS
"""Among the offsets: where the pairs of each row begin."""
W_BODY, W_TOPIC, W_PAIRS, W_KEYS, W_TAGS, W_UNIQUE, W_BORN_HOST, W_STORE_HOST, W_ID, W_CRC = (1 << n for n in range(10))
"""What is wanted, a bit each."""
W_PROPERTIES = W_PAIRS | W_KEYS | W_TAGS | W_UNIQUE

TOTALS = COLUMNS * 2 + 3
"""What it sums up: bytes of each column, nulls of each column, pairs, wrong checksums, bytes beyond ASCII (not 0 if any)."""
T_NULLS, T_PAIRS, T_BAD, T_HIGH = COLUMNS, COLUMNS * 2, COLUMNS * 2 + 1, COLUMNS * 2 + 2


@inline
def spread(word: Any, size: Any) -> Any:
    """A number below 64 that names begun alike or of one length seldom share."""
    mixed = word ^ (word >> 29)
    mixed ^= mixed >> 11
    return (mixed ^ (mixed >> 5) ^ size) & 63


@inline
def put(out: Any, to: Any, data: Any, start: Any, size: Any) -> None:
    """Copy a piece of a string, in one or two steps if it is short and 32 bytes more of the data follow."""
    if size <= 2 * SLACK and data.size - start - size >= SLACK:
        copy32(out, to, data, start)
        if size > SLACK:
            copy32(out, to + SLACK, data, start + SLACK)
    else:
        copy_exact(out, to, data, start, size)


@inline
def clear_bit(valid: Any, index: Any) -> None:
    """Make a value null."""
    valid[index >> 3] = valid[index >> 3] & (0xFF ^ (1 << (index & 7)))


@inline
def same(data: Any, one: Any, other: Any, size: Any) -> Any:
    """Whether two runs of bytes are equal."""
    for index in range(size):  # noqa: SIM110
        if data[one + index] != data[other + index]:
            return False
    return True


@kernel
def drop_repeated(
    first: Int, count: Int, name_offsets: OutI32, names: OutU8, value_offsets: OutI32, values: OutU8
) -> Any:
    """Of the pairs of one row, from `first` on, keep the last of each name. -> how many pairs there are then in all

    What is kept moves to the front, so that nothing is overwritten before it was looked at.
    """
    kept, name_end, value_end = first, np.int64(name_offsets[first]), np.int64(value_offsets[first])
    begin, value_begin = name_end, value_end
    for index in range(first, count):
        stop, value_stop = np.int64(name_offsets[index + 1]), np.int64(value_offsets[index + 1])
        size, repeated, other = stop - begin, False, stop
        for later in range(index + 1, count):
            other_stop = np.int64(name_offsets[later + 1])
            if other_stop - other == size and same(names, begin, other, size):
                repeated = True
                break
            other = other_stop
        if not repeated:
            for step in range(size):
                names[name_end + step] = names[begin + step]
            for step in range(value_stop - value_begin):
                values[value_end + step] = values[value_begin + step]
            name_end += size
            value_end += value_stop - value_begin
            kept += 1
            name_offsets[kept] = name_end
            value_offsets[kept] = value_end
        begin, value_begin = stop, value_stop
    return kept


@inline
def put_known_host(
    out: Any, end: Any, data: Any, at: Any, wide: Any, known: Any, known_at: Any, known_size: Any
) -> Any:
    """A host as text, copied if it is the known one. -> (end, known, known_at, known_size)

    What is copied is the first such text, never the last: a load from bytes still on their way to memory has to wait.
    """
    word = read_i64(data, np.int64(at))
    if not wide and known_size and word == known:
        copy32(out, end, out, known_at)
        return end + known_size, known, known_at, known_size
    stop = put_host(out, end, data, np.int64(at), wide)
    if wide:
        return stop, known, known_at, known_size
    return stop, word, end, stop - end


@inline
def put_special(out: Any, offsets: Any, valid: Any, row: Any, end: Any, data: Any, start: Any, size: Any) -> Any:
    """One of the well-known properties into its column, null if a message has none; the end of the column."""
    if size >= 0:
        put(out, end, data, start, size)
        end += size
    else:
        clear_bit(valid, row)
    offsets[row + 1] = end
    return end


@kernel
def fill_rows(
    data: U8,
    bodies: U8,
    numbers: Annotated[tuple[AnyI64, ...], NUMBERS],
    wanted: Int,
    every: Bool,
    texts: Annotated[tuple[OutU8, ...], COLUMNS],
    offsets: Annotated[tuple[OutI32, ...], COLUMNS + 1],
    valid: Annotated[tuple[OutU8, ...], COLUMNS],
    good: OutBools,
    totals: OutI64,
) -> Any:
    """Fill the wanted columns of messages; `totals` must be zeros. -> (count, row, status); FULL: no room for the next pair

    `numbers`, `texts`, `offsets` and `valid` are tuples of arrays by place (`N_…`, `C_…`); what is not wanted may be empty. Texts have
    room for what their messages hold and SLACK, the bits of `valid` are all ones. Bodies are copied from `bodies`, where decompressed
    ones are too; checksums are those of the bodies as stored.

    Of properties `every` takes all pieces, an absent value as a null; else what RocketMQ's own parser takes, of a repeated name the last.
    """
    body_end, topic_end, name_end, value_end = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    keys_end, tags_end, unique_end = np.int64(0), np.int64(0), np.int64(0)
    no_value, no_keys, no_tags, no_unique = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    born_end, store_end, id_end = np.int64(0), np.int64(0), np.int64(0)
    count, bad, beyond = np.int64(0), np.int64(0), np.int64(0)
    born_word, born_at, born_size = np.int64(0), np.int64(0), np.int64(0)
    store_word, store_at, store_size = np.int64(0), np.int64(0), np.int64(0)
    room = np.int64(offsets[C_NAME].size) - 1
    for each in offsets:
        if each.size:
            each[0] = 0
    for row in range(numbers[0].size):
        flag = np.int64(numbers[N_SYS_FLAG][row])
        if wanted & W_BORN_HOST:
            born_end, born_word, born_at, born_size = put_known_host(
                texts[C_BORN_HOST],
                born_end,
                data,
                numbers[N_BORN_HOST][row],
                flag & BORN_V6,
                born_word,
                born_at,
                born_size,
            )
            offsets[C_BORN_HOST][row + 1] = born_end
        if wanted & W_STORE_HOST:
            store_end, store_word, store_at, store_size = put_known_host(
                texts[C_STORE_HOST],
                store_end,
                data,
                numbers[N_STORE_HOST][row],
                flag & STORE_V6,
                store_word,
                store_at,
                store_size,
            )
            offsets[C_STORE_HOST][row + 1] = store_end
        if wanted & W_ID:
            at, physical = np.int64(numbers[N_STORE_HOST][row]), np.int64(numbers[N_PHYSICAL][row])
            id_end = put_id(texts[C_ID], id_end, data, at, flag & STORE_V6, physical)
            offsets[C_ID][row + 1] = id_end
        if wanted & W_CRC:
            at, size = np.int64(numbers[N_STORED][row]), np.int64(numbers[N_STORED_SIZE][row])
            fits = body_crc(data, at, size) == numbers[N_CRC][row]
            good[row] = fits
            bad += not fits
        if wanted & W_BODY:
            size = np.int64(numbers[N_BODY_SIZE][row])
            copy(texts[C_BODY], body_end, bodies, np.int64(numbers[N_BODY][row]), size)
            body_end += size
            offsets[C_BODY][row + 1] = body_end
        if wanted & W_TOPIC:
            size = np.int64(numbers[N_TOPIC_SIZE][row])
            put(texts[C_TOPIC], topic_end, data, np.int64(numbers[N_TOPIC][row]), size)
            topic_end += size
            offsets[C_TOPIC][row + 1] = topic_end
        if not wanted & W_PROPERTIES:
            continue
        piece = np.int64(numbers[N_PROPERTIES][row])
        end = piece + np.int64(numbers[N_PROPERTIES_SIZE][row])
        keys_at, keys_size, tags_at, tags_size = np.int64(0), np.int64(-1), np.int64(0), np.int64(-1)
        unique_at, unique_size = np.int64(0), np.int64(-1)
        first, seen, again = count, np.int64(0), np.int64(0)
        block = piece
        ones, twos, high = masks_of(bodies, block, end)
        beyond |= high
        while piece < end:
            middle, stop, block, ones, twos, high = next_pair(bodies, end, block, ones, twos)
            beyond |= high
            size = (middle if middle >= 0 else stop) - piece
            value_size = stop - middle - 1 if middle >= 0 else np.int64(-1)
            if size > 0 and value_size > 0:
                word = name_word(bodies, piece, size)
                if size == 4:
                    if word == KEYS_WORD:
                        keys_at, keys_size = middle + 1, value_size
                    elif word == TAGS_WORD:
                        tags_at, tags_size = middle + 1, value_size
                elif size == WORD and word == UNIQUE_WORD:
                    unique_at, unique_size = middle + 1, value_size
                bit = np.int64(1) << spread(word, size)
                again |= seen & bit
                seen |= bit
            elif not every or (size == 0 and value_size < 0):
                piece = stop + 1  # nothing between two separators, or nothing that RocketMQ shows
                continue
            if wanted & W_PAIRS:
                if count == room:
                    return count, row, FULL
                put(texts[C_NAME], name_end, bodies, piece, size)
                name_end += size
                if value_size >= 0:
                    put(texts[C_VALUE], value_end, bodies, middle + 1, value_size)
                    value_end += value_size
                else:
                    clear_bit(valid[C_VALUE], count)
                    no_value += 1
                count += 1
                offsets[C_NAME][count] = name_end
                offsets[C_VALUE][count] = value_end
            piece = stop + 1
        if wanted & W_PAIRS:
            if again != 0 and not every:
                count = drop_repeated(first, count, offsets[C_NAME], texts[C_NAME], offsets[C_VALUE], texts[C_VALUE])
                name_end, value_end = np.int64(offsets[C_NAME][count]), np.int64(offsets[C_VALUE][count])
            offsets[C_ROW][row + 1] = count
        if wanted & W_KEYS:
            keys_end = put_special(
                texts[C_KEYS], offsets[C_KEYS], valid[C_KEYS], row, keys_end, bodies, keys_at, keys_size
            )
            no_keys += keys_size < 0
        if wanted & W_TAGS:
            tags_end = put_special(
                texts[C_TAGS], offsets[C_TAGS], valid[C_TAGS], row, tags_end, bodies, tags_at, tags_size
            )
            no_tags += tags_size < 0
        if wanted & W_UNIQUE:
            unique_end = put_special(
                texts[C_UNIQUE],
                offsets[C_UNIQUE],
                valid[C_UNIQUE],
                row,
                unique_end,
                bodies,
                unique_at,
                unique_size,
            )
            no_unique += unique_size < 0
    totals[C_BODY], totals[C_TOPIC], totals[C_NAME], totals[C_VALUE] = body_end, topic_end, name_end, value_end
    totals[C_KEYS], totals[C_TAGS], totals[C_UNIQUE] = keys_end, tags_end, unique_end
    totals[C_BORN_HOST], totals[C_STORE_HOST], totals[C_ID] = born_end, store_end, id_end
    totals[T_NULLS + C_VALUE], totals[T_NULLS + C_KEYS] = no_value, no_keys
    totals[T_NULLS + C_TAGS], totals[T_NULLS + C_UNIQUE] = no_tags, no_unique
    totals[T_PAIRS], totals[T_BAD], totals[T_HIGH] = count, bad, beyond
    return count, np.int64(numbers[0].size), OK
