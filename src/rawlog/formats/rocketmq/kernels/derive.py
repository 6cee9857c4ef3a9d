"""What a broker derives from messages: tag hashes, key hashes, index files."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.rocketmq.kernels.fill import (
    KEYS_WORD,
    TAGS_WORD,
    UNIQUE_WORD,
    WORD,
    masks_of,
    name_word,
    next_pair,
)
from rawlog.formats.rocketmq.layouts import INDEX_ENTRY, NAME_VALUE, PAIR_END
from rawlog.kernels import inline, kernel
from rawlog.kernels.ints import read_u32, write_i32, write_i64
from rawlog.kernels.types import (
    I64,
    U8,
    AnyI64,
    Bools,
    Int,
    OutBools,
    OutI32,
    OutI64,
    OutI64x2,
    OutU8,
)
from rawlog.model.status import FULL, OK

SPACE, HASH_SIGN, TAG_SIGN, REPLACEMENT = 32, 35, 84, 0xFFFD
ENTRY_SIZE = INDEX_ENTRY.size
ENTRY_HASH, ENTRY_PHYSICAL = INDEX_ENTRY.at("key_hash"), INDEX_ENTRY.at("physical_offset")
ENTRY_SECONDS, ENTRY_PREVIOUS = INDEX_ENTRY.at("seconds"), INDEX_ENTRY.at("previous")
MOST_SECONDS = (1 << 31) - 1
STATE = 6
"""What `append_keys` keeps of a file, by place: as the fields of its header, count from 1."""
X_BEGIN_TIME, X_END_TIME, X_BEGIN, X_END, X_USED, X_COUNT = range(STATE)
ALL = 0xFFFFFFFF
ASCII_WORD, FOUR = 0x80808080, 4
POWER_2, POWER_3, POWER_4 = 31**2, 31**3, 31**4
MULTI_WORD, MULTI_SIZE = int.from_bytes(b"INNER_MU", "big"), len("INNER_MULTI_QUEUE_OFFSET")


@inline
def step(value: Any, unit: Any) -> Any:
    """One UTF-16 unit into the hash."""
    return (value * 31 + unit) & ALL


@kernel
def hash_utf8(data: U8, start: Int, stop: Int, value: Int) -> Any:
    """Java's string hash, gone on with over UTF-8 text as the UTF-16 units that it encodes; 32 bits without sign."""
    position = np.int64(start)
    while stop - position >= FOUR:
        # Four characters of ASCII at once: their products do not wait for one another.
        word = read_u32(data, position)
        if word & ASCII_WORD:
            break
        value = value * POWER_4 + (word >> 24) * POWER_3 + ((word >> 16) & 0xFF) * POWER_2
        value = (value + ((word >> 8) & 0xFF) * 31 + (word & 0xFF)) & ALL
        position += FOUR
    while position < stop:
        byte = np.int64(data[position])
        position += 1
        if byte < 0x80:
            value = step(value, byte)
            continue
        more = 1 if 0xC2 <= byte < 0xE0 else 2 if 0xE0 <= byte < 0xF0 else 3 if 0xF0 <= byte < 0xF5 else 0
        point = byte & (0x3F >> more)
        low, high = 0xA0 if byte == 0xE0 else 0x90 if byte == 0xF0 else 0x80, 0x8F if byte == 0xF4 else 0xBF
        # As many bytes as can belong to one character make one U+FFFD; so does an encoded surrogate. `core.text.java_text` does the same.
        while more > 0 and position < stop and low <= data[position] <= high:
            point = (point << 6) | (np.int64(data[position]) & 0x3F)
            low, high = 0x80, 0xBF
            position += 1
            more -= 1
        if more > 0 or 0xD800 <= point < 0xE000 or byte < 0xC2 or byte >= 0xF5:
            value = step(value, REPLACEMENT)
        elif point >= 0x10000:
            point -= 0x10000
            value = step(value, 0xD800 | (point >> 10))
            value = step(value, 0xDC00 | (point & 0x3FF))
        else:
            value = step(value, point)
    return value


@inline
def signed(value: Any) -> Any:
    """A number of 32 bits with its sign."""
    return value - (np.int64(1) << 32) if value >= (np.int64(1) << 31) else value


@inline
def index_hash(value: Any) -> Any:
    """The sign dropped; the one number without a positive becomes 0."""
    number = signed(value)
    if number == -(np.int64(1) << 31):
        return np.int64(0)
    return -number if number < 0 else number


@kernel
def derive_rows(
    data: U8,
    properties: AnyI64,
    properties_sizes: AnyI64,
    topics: AnyI64,
    topic_sizes: AnyI64,
    take: Bools,
    physical: AnyI64,
    times: AnyI64,
    tags: OutI64,
    hashes: OutI64,
    addresses: OutI64,
    stored: OutI64,
    of_tags: OutBools,
    multiple: OutBools,
) -> Any:
    """The tag hash of every message, 0 without a tag, and the keys that an index holds of those to `take`. -> (count, row, status)

    Keys are in the order of the index: UNIQ_KEY, every piece of KEYS, then the tag as `topic#T#tag`, which only brokers from 5.4.0 on
    write (`of_tags`); FULL: no room for those of the next message. `multiple` tells which messages may have a number in several queues.
    """
    count = np.int64(0)
    for row in range(topics.size):
        piece = np.int64(properties[row])
        end = piece + np.int64(properties_sizes[row])
        keys_at, keys, unique_at, unique = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        tag_at, tag = np.int64(0), np.int64(0)
        tags[row], multiple[row], block = 0, False, piece
        ones, twos, _ = masks_of(data, block, end)
        while piece < end:
            middle, stop, block, ones, twos, _ = next_pair(data, end, block, ones, twos)
            size = middle - piece
            if size > 0 and stop - middle > 1:
                word = name_word(data, piece, size)
                if size == FOUR:
                    if word == KEYS_WORD:
                        keys_at, keys = middle + 1, stop - middle - 1
                    elif word == TAGS_WORD:
                        tag_at, tag = middle + 1, stop - middle - 1
                        tags[row] = signed(hash_utf8(data, tag_at, stop, np.int64(0)))
                elif size == WORD:
                    if word == UNIQUE_WORD:
                        unique_at, unique = middle + 1, stop - middle - 1
                elif size == MULTI_SIZE and word == MULTI_WORD:
                    multiple[row] = True
            piece = stop + 1
        if not take[row] or unique + keys + tag == 0:
            continue
        if hashes.size - count < 3 + keys // 2:
            return count, row, FULL
        start = np.int64(topics[row])
        front = step(hash_utf8(data, start, start + np.int64(topic_sizes[row]), np.int64(0)), HASH_SIGN)
        first = count
        if unique > 0:
            hashes[count] = index_hash(hash_utf8(data, unique_at, unique_at + unique, front))
            count += 1
        piece, end = keys_at, keys_at + keys
        while piece < end:
            stop = piece
            while stop < end and data[stop] != SPACE:
                stop += 1
            if stop > piece:
                hashes[count] = index_hash(hash_utf8(data, piece, stop, front))
                count += 1
            piece = stop + 1
        if tag > 0:
            front = step(step(front, TAG_SIGN), HASH_SIGN)
            hashes[count] = index_hash(hash_utf8(data, tag_at, tag_at + tag, front))
            count += 1
        for index in range(first, count):
            addresses[index] = physical[row]
            stored[index] = times[row]
            of_tags[index] = tag > 0 and index == count - 1
    return count, np.int64(topics.size), OK


@kernel
def append_keys(
    hashes: I64, addresses: I64, stored: I64, start: Int, state: OutI64, slots: OutI32, entries: OutU8
) -> Any:
    """Put keys from `start` on into one index file: `slots` are its numbers, `entries` its bytes. -> the first that found no room"""
    room = entries.size // ENTRY_SIZE
    for index in range(start, hashes.size):
        count = np.int64(state[X_COUNT])
        if count >= room:
            return index
        value, time = np.int64(hashes[index]), np.int64(stored[index])
        slot = value % slots.size
        previous = np.int64(slots[slot])
        if previous <= 0 or previous > count:
            previous = np.int64(0)
        seconds = np.int64(0)
        if state[X_BEGIN_TIME] > 0:
            seconds = (time - state[X_BEGIN_TIME]) // 1000 if time > state[X_BEGIN_TIME] else np.int64(0)
            seconds = seconds if seconds < MOST_SECONDS else np.int64(MOST_SECONDS)
        at = count * ENTRY_SIZE
        write_i32(entries, at + ENTRY_HASH, value)
        write_i64(entries, at + ENTRY_PHYSICAL, np.int64(addresses[index]))
        write_i32(entries, at + ENTRY_SECONDS, seconds)
        write_i32(entries, at + ENTRY_PREVIOUS, previous)
        slots[slot] = count
        if count <= 1:
            state[X_BEGIN] = addresses[index]
            state[X_BEGIN_TIME] = time
        if previous == 0:
            state[X_USED] += 1
        state[X_COUNT] = count + 1
        state[X_END] = addresses[index]
        state[X_END_TIME] = time
    return hashes.size


@kernel
def find_property(data: U8, starts: AnyI64, sizes: AnyI64, name: U8, out: OutI64x2) -> None:
    """Start and size of the value of one property, the last of that name; size -1 where a message has none."""
    length = np.int64(name.size)
    for row in range(starts.size):
        out[0, row] = 0
        out[1, row] = -1
        piece, end = np.int64(starts[row]), np.int64(starts[row]) + np.int64(sizes[row])
        while piece < end:
            stop = piece
            while stop < end and data[stop] != PAIR_END:
                stop += 1
            if stop - piece > length + 1 and data[piece + length] == NAME_VALUE:
                equal = True
                for index in range(length):
                    if data[piece + index] != name[index]:
                        equal = False
                        break
                if equal:
                    out[0, row] = piece + length + 1
                    out[1, row] = stop - piece - length - 1
            piece = stop + 1
