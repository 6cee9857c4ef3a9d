"""What a broker derives from messages: tag hashes, key hashes, index files."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.rocketmq.kernels.text import (
    S_KEYS,
    S_KEYS_SIZE,
    S_TAGS,
    S_TAGS_SIZE,
    S_UNIQUE,
    S_UNIQUE_SIZE,
)
from rawlog.formats.rocketmq.layouts import INDEX_ENTRY, NAME_VALUE, PAIR_END
from rawlog.kernels import inline, kernel
from rawlog.kernels.ints import write_i32, write_i64
from rawlog.status import FULL, OK

SPACE, HASH_SIGN, REPLACEMENT = 32, 35, 0xFFFD
ENTRY_SIZE = INDEX_ENTRY.size
ENTRY_HASH, ENTRY_PHYSICAL = INDEX_ENTRY.at("key_hash"), INDEX_ENTRY.at("physical_offset")
ENTRY_SECONDS, ENTRY_PREVIOUS = INDEX_ENTRY.at("seconds"), INDEX_ENTRY.at("previous")
MOST_SECONDS = (1 << 31) - 1
STATE = 6
"""What `append_keys` keeps of a file, by place: as the fields of its header, count from 1."""
X_BEGIN_TIME, X_END_TIME, X_BEGIN, X_END, X_USED, X_COUNT = range(STATE)
ALL = 0xFFFFFFFF


@inline
def step(value: Any, unit: Any) -> Any:
    """One UTF-16 unit into the hash."""
    return (value * 31 + unit) & ALL


@kernel
def hash_utf8(data: Any, start: Any, stop: Any, value: Any) -> Any:
    """Java's string hash, gone on with over UTF-8 text as the UTF-16 units it stands for; 32 bits without sign."""
    position = np.int64(start)
    while position < stop:
        byte = np.int64(data[position])
        position += 1
        if byte < 0x80:
            value = step(value, byte)
            continue
        more = 1 if 0xC2 <= byte < 0xE0 else 2 if 0xE0 <= byte < 0xF0 else 3 if 0xF0 <= byte < 0xF5 else 0
        if more == 0 or stop - position < more:
            value = step(value, REPLACEMENT)
            continue
        point = byte & (0x3F >> more)
        sound = True
        for index in range(more):
            following = np.int64(data[position + index])
            sound = sound and (following & 0xC0) == 0x80
            point = (point << 6) | (following & 0x3F)
        if (more == 2 and (point < 0x800 or 0xD800 <= point < 0xE000)) or (
            more == 3 and (point < 0x10000 or point > 0x10FFFF)
        ):
            sound = False
        if not sound:
            value = step(value, REPLACEMENT)
            continue
        position += more
        if point >= 0x10000:
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
def hash_tags(data: Any, special: Any, out: Any) -> None:
    """The tag hash of every message, 0 without a tag."""
    for row in range(out.size):
        size = np.int64(special[S_TAGS_SIZE, row])
        start = np.int64(special[S_TAGS, row])
        out[row] = signed(hash_utf8(data, start, start + size, np.int64(0))) if size > 0 else np.int64(0)


@kernel
def hash_keys(
    data: Any,
    topics: Any,
    topic_sizes: Any,
    special: Any,
    take: Any,
    physical: Any,
    times: Any,
    hashes: Any,
    addresses: Any,
    stored: Any,
) -> Any:
    """The keys that an index holds of messages, in its order: UNIQ_KEY, then every piece of KEYS. -> (count, row, status)"""
    count = 0
    for row in range(topics.size):
        if not take[row]:
            continue
        unique, keys = np.int64(special[S_UNIQUE_SIZE, row]), np.int64(special[S_KEYS_SIZE, row])
        if unique <= 0 and keys <= 0:
            continue
        start = np.int64(topics[row])
        front = step(hash_utf8(data, start, start + np.int64(topic_sizes[row]), np.int64(0)), HASH_SIGN)
        if hashes.size - count < 1 + max(np.int64(0), keys):
            return count, row, FULL
        if unique > 0:
            start = np.int64(special[S_UNIQUE, row])
            hashes[count] = index_hash(hash_utf8(data, start, start + unique, front))
            addresses[count] = physical[row]
            stored[count] = times[row]
            count += 1
        piece = np.int64(special[S_KEYS, row])
        end = piece + keys
        position = piece
        while position <= end and keys > 0:
            if position == end or data[position] == SPACE:
                if position > piece:
                    hashes[count] = index_hash(hash_utf8(data, piece, position, front))
                    addresses[count] = physical[row]
                    stored[count] = times[row]
                    count += 1
                piece = position + 1
            position += 1
    return count, topics.size, OK


@kernel
def append_keys(hashes: Any, addresses: Any, stored: Any, start: Any, state: Any, slots: Any, entries: Any) -> Any:
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
def find_property(data: Any, starts: Any, sizes: Any, name: Any, out: Any) -> None:
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
