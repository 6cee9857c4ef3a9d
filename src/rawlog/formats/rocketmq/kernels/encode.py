"""What a broker writes of messages: entries of a commit log; and the tag hashes, key hashes and index files that it derives from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.rocketmq.kernels.entries import (
    BLANK_SIZE,
    BODY_LENGTH,
    BORN_TIME,
    BORN_V6,
    CRC,
    FLAG,
    HEAD_SIZE,
    HOST_SIZE,
    KEYS_WORD,
    MAGIC,
    PHYSICAL,
    PREPARED,
    PROPERTIES_SIZE,
    QUEUE_ID,
    QUEUE_OFFSET,
    RECONSUME,
    STORE_V6,
    STORED_SIZE,
    SYS_FLAG,
    TAGS_WORD,
    TAIL_SIZE,
    TOPIC_SIZE_V1,
    TOPIC_SIZE_V2,
    TOTAL,
    UNIQUE_WORD,
    WORD,
    body_crc,
    hosts_more,
    masks_of,
    name_word,
    next_pair,
)
from rawlog.formats.rocketmq.layouts import (
    CRC_MASK,
    CRC_PROPERTY,
    CRC_PROPERTY_SIZE,
    FIXED_V4,
    INDEX_ENTRY,
    MAGIC_V1,
    MAGIC_V2,
    NAME_VALUE,
    PAIR_END,
    V6_MORE,
)
from rawlog.kernels import inline, kernel
from rawlog.kernels.crc import sum_crc32
from rawlog.kernels.gather import copy
from rawlog.kernels.ints import read_u32, write_i8, write_i16, write_i32, write_i64
from rawlog.kernels.types import (
    I32,
    I64,
    U8,
    AnyI64,
    AnyI64x2,
    Bool,
    Bools,
    I64x2,
    Int,
    OutBools,
    OutI32,
    OutI64,
    OutI64x2,
    OutU8,
    U8x2,
)
from rawlog.model.status import FULL, OK

NUMBERS = 11
"""Rows of the array of numbers, by place."""
(
    N_QUEUE_ID,
    N_FLAG,
    N_QUEUE_OFFSET,
    N_PHYSICAL,
    N_SYS_FLAG,
    N_BORN_TIME,
    N_STORE_TIME,
    N_RECONSUME,
    N_PREPARED,
    N_VERSION,
    N_AT,
) = range(NUMBERS)
CRC_NAME = np.frombuffer(CRC_PROPERTY, np.uint8)
CRC_DIGITS = CRC_PROPERTY_SIZE - len(CRC_PROPERTY) - 2
CRC_SIZE = CRC_PROPERTY_SIZE


@kernel
def measure_entries(
    numbers: I64x2, body_offsets: I32, topic_offsets: I32, property_offsets: I32, crc_property: Bool, sizes: OutI64
) -> None:
    """How many bytes each entry takes."""
    for row in range(sizes.size):
        size = FIXED_V4 + hosts_more(np.int64(numbers[N_SYS_FLAG, row])) + PROPERTIES_SIZE
        size += TOPIC_SIZE_V2 if numbers[N_VERSION, row] == 2 else TOPIC_SIZE_V1
        size += np.int64(body_offsets[row + 1]) - np.int64(body_offsets[row])
        size += np.int64(topic_offsets[row + 1]) - np.int64(topic_offsets[row])
        size += np.int64(property_offsets[row + 1]) - np.int64(property_offsets[row])
        sizes[row] = size + CRC_SIZE if crc_property else size


@kernel
def place_entries(sizes: I64, start: Int, file_size: Int, addresses: OutI64) -> Any:
    """Where entries go in a log of files of one size, `start` being where it ends: none crosses a file, and room for a blank one is left.

    -> where the log ends then, or -1 - row if an entry fits no file
    """
    address = np.int64(start)
    for row in range(sizes.size):
        size = np.int64(sizes[row])
        if size + BLANK_SIZE > file_size:
            return -1 - np.int64(row)
        room = file_size - address % file_size
        if size + BLANK_SIZE > room:
            address += room
        addresses[row] = address
        address += size
    return address


@inline
def put_crc(out: Any, start: Any, at: Any) -> None:
    """Write the property with the checksum of the entry from `start` to `at`, least significant digit first."""
    value = sum_crc32(out, start, at) & CRC_MASK
    for index in range(CRC_NAME.size):
        out[at + index] = CRC_NAME[index]
    at += CRC_NAME.size
    out[at] = NAME_VALUE
    for index in range(CRC_DIGITS):
        out[at + 1 + index] = 48 + value % 10
        value //= 10
    out[at + 1 + CRC_DIGITS] = PAIR_END


@kernel
def encode_entries(
    numbers: AnyI64x2,
    born_hosts: U8x2,
    store_hosts: U8x2,
    body_offsets: I32,
    bodies: U8,
    topic_offsets: I32,
    topics: U8,
    property_offsets: I32,
    properties: U8,
    crc_property: Bool,
    sizes: I64,
    out: OutU8,
) -> None:
    """Write every entry at `numbers[N_AT]` of `out`; hosts are rows of 20 bytes, of which IPv4 uses the first 8."""
    for row in range(sizes.size):
        start, flag = np.int64(numbers[N_AT, row]), np.int64(numbers[N_SYS_FLAG, row])
        two = numbers[N_VERSION, row] == 2
        write_i32(out, start + TOTAL, np.int64(sizes[row]))
        write_i32(out, start + MAGIC, np.int64(MAGIC_V2) if two else np.int64(MAGIC_V1))
        write_i32(out, start + QUEUE_ID, np.int64(numbers[N_QUEUE_ID, row]))
        write_i32(out, start + FLAG, np.int64(numbers[N_FLAG, row]))
        write_i64(out, start + QUEUE_OFFSET, np.int64(numbers[N_QUEUE_OFFSET, row]))
        write_i64(out, start + PHYSICAL, np.int64(numbers[N_PHYSICAL, row]))
        write_i32(out, start + SYS_FLAG, flag)
        write_i64(out, start + BORN_TIME, np.int64(numbers[N_BORN_TIME, row]))
        at = start + HEAD_SIZE
        host = HOST_SIZE + V6_MORE if flag & BORN_V6 else HOST_SIZE
        for index in range(host):
            out[at + index] = born_hosts[row, index]
        at += host
        write_i64(out, at, np.int64(numbers[N_STORE_TIME, row]))
        at += STORED_SIZE
        host = HOST_SIZE + V6_MORE if flag & STORE_V6 else HOST_SIZE
        for index in range(host):
            out[at + index] = store_hosts[row, index]
        at += host
        write_i32(out, at + RECONSUME, np.int64(numbers[N_RECONSUME, row]))
        write_i64(out, at + PREPARED, np.int64(numbers[N_PREPARED, row]))
        body = np.int64(body_offsets[row])
        size = np.int64(body_offsets[row + 1]) - body
        write_i32(out, at + BODY_LENGTH, size)
        at += TAIL_SIZE
        copy(out, at, bodies, body, size)
        write_i32(out, start + CRC, body_crc(out, at, size))
        at += size
        topic = np.int64(topic_offsets[row])
        size = np.int64(topic_offsets[row + 1]) - topic
        if two:
            write_i16(out, at, size)
            at += TOPIC_SIZE_V2
        else:
            write_i8(out, at, size)
            at += TOPIC_SIZE_V1
        copy(out, at, topics, topic, size)
        at += size
        pairs = np.int64(property_offsets[row])
        size = np.int64(property_offsets[row + 1]) - pairs
        write_i16(out, at, size + CRC_SIZE if crc_property else size)
        at += PROPERTIES_SIZE
        copy(out, at, properties, pairs, size)
        at += size
        if crc_property:
            put_crc(out, start, at)


@kernel
def renew_crcs(numbers: AnyI64x2, property_offsets: I32, sizes: I64, out: OutU8) -> None:
    """Where entries end with the property of their checksum, write it again: they are at another address now."""
    for row in range(sizes.size):
        if np.int64(property_offsets[row + 1]) - np.int64(property_offsets[row]) < CRC_SIZE:
            continue
        start = np.int64(numbers[N_AT, row])
        at = start + np.int64(sizes[row]) - CRC_SIZE
        named: Any = out[at + CRC_NAME.size] == NAME_VALUE and out[at + CRC_SIZE - 1] == PAIR_END
        for index in range(CRC_NAME.size):
            named = named and out[at + index] == CRC_NAME[index]
        if named:
            put_crc(out, start, at)


# What a broker derives from messages: tag hashes, key hashes, index files --------------------------------------------------------

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
