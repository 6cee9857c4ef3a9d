"""Messages of today's versions, written from rows: what their headers say, then header V3, key and records."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.ambry.kernels.messages import (
    B3,
    BLOB_AFTER_PROPS,
    BLOB_COMPRESSED,
    BLOB_SIZE_3,
    BLOB_TYPE,
    EK_3,
    FLAG_SIZE,
    H3,
    ID_SIZE,
    IDS_SIZE,
    K6,
    KEY_ACCOUNT,
    KEY_CONTAINER,
    KEY_FLAGS,
    KIND_PUT,
    KIND_TTL_UPDATE,
    LIFE_3,
    META_AFTER_PROPS,
    NUMBER_2,
    P_CREATION,
    P_HEAD,
    P_PRIVATE,
    P_SERDE,
    P_SIZE,
    P_TTL,
    PARTITION_AT_2,
    PAYLOAD_3,
    PROPS_3,
    U3,
    U_ACCOUNT,
    U_CONTAINER,
    U_SUB,
    U_TIME,
    U_TYPE,
    UM_HEAD,
    UM_SIZE_AT,
    UPDATE_AFTER_PROPS,
    key_size,
)
from rawlog.formats.ambry.kernels.texts import (
    BOOLEAN,
    COUNT,
    FIRST_KIND,
    FIRST_TYPE,
    HEADER_HOW,
    HEADERS,
    HEX,
    KIND_NAME,
    NAME_ENDS,
    NAMES,
    NUMBER,
    TEXT,
    TEXT_OR_NONE,
    TYPE_NAME,
    UUID_AT,
    WORD_BYTES,
    WORD_ENDS,
    WORDS,
    put_number,
)
from rawlog.formats.ambry.layouts import (
    BLOB_TYPES,
    CRC_SIZE,
    KEY_V6,
    KIND_OF_UPDATE,
    NEW_EXPIRY_SIZE,
    NONE,
    PARTITION_VERSION,
    TEXT_SIZE,
    Kind,
)
from rawlog.kernels import inline, kernel
from rawlog.kernels.crc import sum_crc32
from rawlog.kernels.gather import copy
from rawlog.kernels.hashes import sha1
from rawlog.kernels.ints import (
    wrap_i64,
    write_i8,
    write_i16,
    write_i32,
    write_i64,
)
from rawlog.kernels.types import (
    I32,
    I64,
    U8,
    Bools,
    I64x2,
    Int,
    OutI64,
    OutI64x2,
    OutU8,
)
from rawlog.model.status import FULL, OK


def _fields() -> tuple[str, ...]:
    names = []
    for name, _, how, _ in HEADERS:
        names += [name, f"{name}_size"] if how in (TEXT, TEXT_OR_NONE) else [name]
    return (*names, "key", "key_size", "keeps_key", "content", "content_size", "topic", "topic_size", "partition",
        "named_partition", "named_offset", "uuid_high", "uuid_low", "size", "is_odd")  # fmt: skip


FIELDS = _fields()
"""What there is to know of each row: a number or the start and size of a span. Texts are spans of header values, size -1 if not given."""
HEADER_FIELD = np.array([FIELDS.index(name) for name, _, _, _ in HEADERS])
(
    KIND, LIFE, TTL, PRIVATE, CREATION, SIZE_TOLD, CONTENT_TYPE, OWNER, SERVICE, ACCOUNT, CONTAINER, ENCRYPTED,
    ENCODING, FILENAME, RESERVED, TYPE, COMPRESSED, UPDATE_TIME, NEW_EXPIRY,
) = HEADER_FIELD.tolist()  # fmt: skip
(
    KEY, KEY_SIZE, KEEPS_KEY, CONTENT, CONTENT_SIZE, TOPIC, TOPIC_SIZE, PARTITION, NAMED_PARTITION, NAMED_OFFSET,
    UUID_HIGH, UUID_LOW, SIZE, IS_ODD,
) = range(len(FIELDS) - 14, len(FIELDS))  # fmt: skip

NO_PARTITION = -(1 << 62)
MOST_DIGITS = 18
LEAST_16, MOST_16 = -(1 << 15), (1 << 15) - 1
TRUE, TYPES, KINDS = WORDS.index("true"), len(BLOB_TYPES), len(Kind)
MINUS, ZERO, NINE, SLASH = 0x2D, 0x30, 0x39, 0x2F
HEADER_VERSION, KEY_VERSION, SERDE, BLOB_VERSION, UPDATE_VERSION = 3, 6, 5, 3, 3
DATACENTER, KEY_PARTITION_VERSION = KEY_V6.at("datacenter_id"), PARTITION_VERSION
UPDATE_TYPE = np.array([KIND_OF_UPDATE.index(kind) if kind in KIND_OF_UPDATE else NONE for kind in sorted(Kind)])
DEFAULT_TYPE = np.frombuffer(b"application/octet-stream", np.uint8)
NOTHING = np.zeros(0, np.uint8)
WITHOUT = np.frombuffer(b"None", np.uint8)
HALF_UUID = 8
NO_VERSION, VERSION_5, NO_VARIANT, RFC_4122 = 0xFFFF0FFF, 0x5000, 0x3FFFFFFF, 0x80000000
NAME_ROOM = 64
"""Bytes of a name that is hashed with its namespace, topic and key: two numbers, three slashes."""


@inline
def is_same(data: Any, start: Any, other: Any, at: Any, size: Any) -> Any:
    """Whether two spans of one size hold the same bytes."""
    for index in range(size):  # noqa: SIM110 - a loop is what the compiler takes
        if data[start + index] != other[at + index]:
            return False
    return True


@inline
def header_named(names: Any, start: Any, size: Any, guess: Any) -> Any:
    """Which of HEADERS a name is, -1 if none; `guess` is tried first, since headers mostly are in their order."""
    for step in range(COUNT):
        header = guess + step
        if header >= COUNT:
            header -= COUNT
        at = NAME_ENDS[header]
        if NAME_ENDS[header + 1] - at == size and is_same(names, start, NAMES, at, size):
            return np.int64(header)
    return np.int64(-1)


@inline
def word_at(data: Any, start: Any, size: Any, first: Any, count: Any) -> Any:
    """Which of `count` words from `first` on a span is, -1 if none."""
    for word in range(count):
        at = WORD_ENDS[first + word]
        if WORD_ENDS[first + word + 1] - at == size and is_same(data, start, WORD_BYTES, at, size):
            return np.int64(word)
    return np.int64(-1)


@inline
def number_at(data: Any, start: Any, size: Any) -> Any:
    """A number as it is mostly written. -> (number, whether it is one)"""
    minus = size > 0 and data[start] == MINUS
    digits = size - 1 if minus else size
    if digits < 1 or digits > MOST_DIGITS:
        return np.int64(0), False
    value = np.int64(0)
    for index in range(size - digits, size):
        digit = np.int64(data[start + index])
        if digit < ZERO or digit > NINE:
            return np.int64(0), False
        value = value * 10 + digit - ZERO
    return (-value if minus else value), True


@inline
def take_header(header: Any, values: Any, start: Any, size: Any, rows: Any, row: Any) -> None:
    """Note what a header says; one that is not said as usual makes its row an odd one."""
    how, field = HEADER_HOW[header], HEADER_FIELD[header]
    if how == NUMBER:
        value, good = number_at(values, start, size)
        if field in (ACCOUNT, CONTAINER):
            good = good and LEAST_16 <= value <= MOST_16
        elif field == LIFE:
            good = good and 0 <= value <= MOST_16
        rows[row, field] = value
        if not good:
            rows[row, IS_ODD] = 1
    elif how == BOOLEAN:
        rows[row, field] = 1 if word_at(values, start, size, TRUE, 1) == 0 else 0
    elif how in (TYPE_NAME, KIND_NAME):
        if how == KIND_NAME:
            word = word_at(values, start, size, FIRST_KIND, KINDS)
        else:
            word = word_at(values, start, size, FIRST_TYPE, TYPES) if size > 0 else np.int64(0)
        rows[row, field] = word
        if word < 0:
            rows[row, IS_ODD] = 1
    else:
        rows[row, field] = start
        rows[row, field + 1] = size


@inline
def text_room(size: Any, default: Any) -> Any:
    """Bytes that a text takes, or its default does."""
    return TEXT_SIZE + (size if size >= 0 else np.int64(default))


@inline
def message_size(rows: Any, row: Any, service_size: Any) -> Any:
    """How many bytes the message of a row takes."""
    size = H3 + (rows[row, KEY_SIZE] if rows[row, KEEPS_KEY] else np.int64(K6))
    if rows[row, KIND] != KIND_PUT:
        return size + U3 + CRC_SIZE + (NEW_EXPIRY_SIZE if rows[row, KIND] == KIND_TTL_UPDATE else 0)
    size += P_HEAD + IDS_SIZE + FLAG_SIZE + CRC_SIZE + UM_HEAD + CRC_SIZE + B3 + CRC_SIZE
    size += text_room(rows[row, CONTENT_TYPE + 1], DEFAULT_TYPE.size) + text_room(rows[row, OWNER + 1], 0)
    size += text_room(rows[row, SERVICE + 1], service_size) + text_room(rows[row, ENCODING + 1], 0)
    size += text_room(rows[row, FILENAME + 1], 0) + text_room(rows[row, RESERVED + 1], 0)
    return size + rows[row, CONTENT_SIZE]


@kernel
def read_rows(
    ends: I64,
    name_ends: I32,
    names: U8,
    value_ends: I32,
    values: U8,
    valid: Bools,
    keys: U8,
    service_size: Int,
    rows: OutI64x2,
) -> Any:
    """Put what headers say over the defaults in `rows`, and how large each message will be. -> rows that are odd

    The headers of row `i` are those numbered `ends[i]` to `ends[i + 1]`; `valid` is false where one has no value. Of several of one
    name the last counts. A row is odd if a number or word in it is not as usual: then its size does not count.
    """
    odd = 0
    for row in range(rows.shape[0]):
        guess = np.int64(0)
        for index in range(np.int64(ends[row]), np.int64(ends[row + 1])):
            at = np.int64(name_ends[index])
            header = header_named(names, at, np.int64(name_ends[index + 1]) - at, guess)
            if header >= 0:
                guess = header + 1 if header + 1 < COUNT else np.int64(0)
                if valid[index]:
                    start = np.int64(value_ends[index])
                    take_header(header, values, start, np.int64(value_ends[index + 1]) - start, rows, row)
        size = rows[row, KEY_SIZE]
        rows[row, KEEPS_KEY] = 1 if size > 0 and key_size(keys, rows[row, KEY], rows[row, KEY] + size) == size else 0
        rows[row, SIZE] = message_size(rows, row, service_size)
        odd += rows[row, IS_ODD]
    return odd


@inline
def put_crc(out: Any, start: Any, at: Any) -> Any:
    """Close a record that goes from `start` to `at` with its checksum. -> position after it"""
    write_i64(out, at, sum_crc32(out, start, at))
    return at + CRC_SIZE


@kernel
def put_text(out: OutU8, at: Int, texts: U8, start: Int, size: Int, default: U8) -> Any:
    """A text, or the default if none was given. -> position after it"""
    if size >= 0:
        write_i32(out, at, size)
        copy(out, at + TEXT_SIZE, texts, start, size)
        return at + TEXT_SIZE + size
    write_i32(out, at, default.size)
    copy(out, at + TEXT_SIZE, default, 0, default.size)
    return at + TEXT_SIZE + default.size


@inline
def put_name(name: Any, at: Any, rows: Any, row: Any, topics: Any, keys: Any) -> Any:
    """What the id of a record is made of: topic, partition, offset, and its key in hexadecimal. -> position after it"""
    copy(name, at, topics, rows[row, TOPIC], rows[row, TOPIC_SIZE])
    at += rows[row, TOPIC_SIZE]
    name[at] = SLASH
    if rows[row, NAMED_PARTITION] == NO_PARTITION:
        copy(name, at + 1, WITHOUT, 0, WITHOUT.size)
        at += 1 + WITHOUT.size
    else:
        at = put_number(name, at + 1, rows[row, NAMED_PARTITION])
    name[at] = SLASH
    at = put_number(name, at + 1, rows[row, NAMED_OFFSET])
    name[at] = SLASH
    at += 1
    for index in range(rows[row, KEY_SIZE]):
        byte = np.int64(keys[rows[row, KEY] + index])
        name[at] = HEX[byte >> 4]
        name[at + 1] = HEX[byte & 15]
        at += 2
    return at


@kernel
def name_rows(rows: OutI64x2, topics: U8, keys: U8, namespace: U8, name: OutU8, scratch: OutU8, words: OutI64) -> None:
    """Give every row whose key is no blob id a uuid of version 5, by its place and key.

    `name` is room for the longest name, `scratch` and `words` are what SHA-1 needs.
    """
    copy(name, 0, namespace, 0, namespace.size)
    for row in range(rows.shape[0]):
        if rows[row, KEEPS_KEY]:
            continue
        size = put_name(name, np.int64(namespace.size), rows, row, topics, keys)
        a, b, c, d, _ = sha1(name, 0, size, scratch, words)
        rows[row, UUID_HIGH] = wrap_i64(a << 32 | b & NO_VERSION | VERSION_5)
        rows[row, UUID_LOW] = wrap_i64((c & NO_VARIANT | RFC_4122) << 32 | d)


@kernel
def put_key(out: OutU8, at: Int, rows: I64x2, row: Int, keys: U8) -> Any:
    """The blob id of a row: its key if that is one, else of version 6 with its uuid. -> position after it"""
    if rows[row, KEEPS_KEY]:
        copy(out, at, keys, rows[row, KEY], rows[row, KEY_SIZE])
        return at + rows[row, KEY_SIZE]
    write_i16(out, at, KEY_VERSION)
    write_i8(out, at + KEY_FLAGS, 0)
    write_i8(out, at + DATACENTER, NONE)
    write_i16(out, at + KEY_ACCOUNT, rows[row, ACCOUNT])
    write_i16(out, at + KEY_CONTAINER, rows[row, CONTAINER])
    write_i16(out, at + PARTITION_AT_2, KEY_PARTITION_VERSION)
    write_i64(out, at + NUMBER_2, rows[row, PARTITION])
    write_i64(out, at + UUID_AT, rows[row, UUID_HIGH])
    write_i64(out, at + UUID_AT + HALF_UUID, rows[row, UUID_LOW])
    return at + K6


@inline
def put_properties(out: Any, start: Any, rows: Any, row: Any, texts: Any, service: Any) -> Any:
    """The record of what a blob's owner says of it. -> position after it"""
    write_i16(out, start, 1)
    write_i16(out, start + P_SERDE, SERDE)
    write_i64(out, start + P_TTL, rows[row, TTL])
    write_i8(out, start + P_PRIVATE, rows[row, PRIVATE])
    write_i64(out, start + P_CREATION, rows[row, CREATION])
    write_i64(out, start + P_SIZE, rows[row, SIZE_TOLD])
    at = put_text(out, start + P_HEAD, texts, rows[row, CONTENT_TYPE], rows[row, CONTENT_TYPE + 1], DEFAULT_TYPE)
    at = put_text(out, at, texts, rows[row, OWNER], rows[row, OWNER + 1], NOTHING)
    at = put_text(out, at, texts, rows[row, SERVICE], rows[row, SERVICE + 1], service)
    write_i16(out, at, rows[row, ACCOUNT])
    write_i16(out, at + ID_SIZE, rows[row, CONTAINER])
    write_i8(out, at + IDS_SIZE, rows[row, ENCRYPTED])
    at += IDS_SIZE + FLAG_SIZE
    at = put_text(out, at, texts, rows[row, ENCODING], rows[row, ENCODING + 1], NOTHING)
    at = put_text(out, at, texts, rows[row, FILENAME], rows[row, FILENAME + 1], NOTHING)
    at = put_text(out, at, texts, rows[row, RESERVED], rows[row, RESERVED + 1], NOTHING)
    return put_crc(out, start, at)


@kernel
def put_blob(out: OutU8, start: Int, rows: I64x2, row: Int, contents: U8) -> Any:
    """The record of a blob's content. -> position after it"""
    size = rows[row, CONTENT_SIZE]
    write_i16(out, start, BLOB_VERSION)
    write_i16(out, start + BLOB_TYPE, rows[row, TYPE])
    write_i8(out, start + BLOB_COMPRESSED, rows[row, COMPRESSED])
    write_i64(out, start + BLOB_SIZE_3, size)
    copy(out, start + B3, contents, rows[row, CONTENT], size)
    return put_crc(out, start, start + B3 + size)


@kernel
def put_update(out: OutU8, start: Int, rows: I64x2, row: Int) -> Any:
    """The record of a DELETE, TTL_UPDATE or UNDELETE. -> position after it"""
    write_i16(out, start, UPDATE_VERSION)
    write_i16(out, start + U_ACCOUNT, rows[row, ACCOUNT])
    write_i16(out, start + U_CONTAINER, rows[row, CONTAINER])
    write_i64(out, start + U_TIME, rows[row, UPDATE_TIME])
    write_i16(out, start + U_TYPE, UPDATE_TYPE[rows[row, KIND]])
    write_i16(out, start + U_SUB, 1)
    at = start + U3
    if rows[row, KIND] == KIND_TTL_UPDATE:
        write_i64(out, at, rows[row, NEW_EXPIRY])
        at += NEW_EXPIRY_SIZE
    return put_crc(out, start, at)


@kernel
def write_messages(rows: I64x2, starts: I64, keys: U8, contents: U8, texts: U8, service: U8, out: OutU8) -> Any:
    """Write the message of every row that is not odd at its place in `out`. -> (count, position, status); FULL: no room for the next"""
    for row in range(rows.shape[0]):
        start = np.int64(starts[row])
        if rows[row, IS_ODD]:
            continue
        if out.size - start < rows[row, SIZE]:
            return row, start, FULL
        records = put_key(out, start + H3, rows, row, keys)
        properties, update, metadata, blob = np.int64(NONE), np.int64(NONE), np.int64(NONE), np.int64(NONE)
        if rows[row, KIND] == KIND_PUT:
            properties = records - start
            at = put_properties(out, records, rows, row, texts, service)
            metadata = at - start
            write_i16(out, at, 1)
            write_i32(out, at + UM_SIZE_AT, 0)
            at = put_crc(out, at, at + UM_HEAD)
            blob = at - start
            at = put_blob(out, at, rows, row, contents)
        else:
            update = records - start
            at = put_update(out, records, rows, row)
        write_i16(out, start, HEADER_VERSION)
        write_i16(out, start + LIFE_3, rows[row, LIFE])
        write_i64(out, start + PAYLOAD_3, at - records)
        write_i32(out, start + EK_3, NONE)
        write_i32(out, start + PROPS_3, properties)
        write_i32(out, start + PROPS_3 + UPDATE_AFTER_PROPS, update)
        write_i32(out, start + PROPS_3 + META_AFTER_PROPS, metadata)
        write_i32(out, start + PROPS_3 + BLOB_AFTER_PROPS, blob)
        put_crc(out, start, start + H3 - CRC_SIZE)
    return rows.shape[0], np.int64(out.size), OK


@kernel
def place_messages(
    sizes: I64, start: Int, end: Int, capacity: Int, first: Int, segments: OutI64, positions: OutI64
) -> Any:
    """Where messages go in a log whose open segment begins at `start` of the whole and has `end` bytes: none crosses a segment.

    `segments` says how many segments were begun before each, `first` bytes precede every one. -> (start, end) then
    """
    begun = 0
    for index in range(sizes.size):
        size = np.int64(sizes[index])
        if capacity - end < size:
            begun += 1
            start += end
            end = np.int64(first)
        segments[index] = begun
        positions[index] = start + end
        end += size
    return start, end
