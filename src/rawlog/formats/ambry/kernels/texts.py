"""Text made of the fields of messages: blob ids, uuids, and the headers that `records` shows."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.ambry.kernels.messages import (
    FIELDS,
    KIND,
    KIND_PUT,
    KIND_TTL_UPDATE,
    SERDE,
)
from rawlog.formats.ambry.layouts import (
    KEY_V1,
    KEY_V2,
    KEY_V6,
    KEYS,
)
from rawlog.kernels import inline, kernel
from rawlog.kernels.gather import copy
from rawlog.kernels.ints import read_i16
from rawlog.kernels.text import put_integer
from rawlog.kernels.types import (
    I64,
    U8,
    AnyI64x2,
    OutI32,
    OutI64,
    OutU8,
)
from rawlog.model.status import OK

ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)
HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
UUID_AT, TEXT_1, TEXT_2 = KEY_V6.at("uuid"), KEY_V1.size, KEY_V2.size
RAW_UUID, UUID_TEXT = 16, 36
FIRST_RAW = min(version for version, layout in KEYS.items() if layout is KEY_V6)

LONGEST_NUMBER = 20
NUMBER, BOOLEAN, TEXT, TEXT_OR_NONE, TYPE_NAME, KIND_NAME = range(6)
ALWAYS, IN_PUT, IN_ENCRYPTABLE_PUT, IN_UPDATE, IN_TTL_UPDATE = range(5)
#: Header, the field it shows, how that is written, when it is there; in upstream's order of the properties.
HEADERS = (
    ("kind", "kind", KIND_NAME, ALWAYS),
    ("life_version", "life_version", NUMBER, ALWAYS),
    ("time_to_live", "time_to_live", NUMBER, IN_PUT),
    ("is_private", "is_private", BOOLEAN, IN_PUT),
    ("creation_time", "creation_time", NUMBER, IN_PUT),
    ("blob_size", "properties_blob_size", NUMBER, IN_PUT),
    ("content_type", "content_type_start", TEXT, IN_PUT),
    ("owner_id", "owner_id_start", TEXT, IN_PUT),
    ("service_id", "service_id_start", TEXT, IN_PUT),
    ("account_id", "account_id", NUMBER, ALWAYS),
    ("container_id", "container_id", NUMBER, ALWAYS),
    ("is_encrypted", "is_encrypted", BOOLEAN, IN_ENCRYPTABLE_PUT),
    ("content_encoding", "content_encoding_start", TEXT_OR_NONE, IN_PUT),
    ("filename", "filename_start", TEXT_OR_NONE, IN_PUT),
    ("reserved_metadata_blob_id", "reserved_metadata_blob_id_start", TEXT_OR_NONE, IN_PUT),
    ("blob_type", "blob_type", TYPE_NAME, IN_PUT),
    ("is_compressed", "is_compressed", BOOLEAN, IN_PUT),
    ("update_time", "update_time", NUMBER, IN_UPDATE),
    ("new_expiry", "new_expiry", NUMBER, IN_TTL_UPDATE),
)
WORDS = ("false", "true", "DataBlob", "MetadataBlob", "TTL_UPDATE", "PUT", "DELETE", "UNDELETE")
FIRST_TYPE, FIRST_KIND = WORDS.index("DataBlob"), WORDS.index("TTL_UPDATE")
COUNT = len(HEADERS)
HEADER_FIELD = np.array([FIELDS.index(field) for _, field, _, _ in HEADERS])
HEADER_HOW = np.array([how for _, _, how, _ in HEADERS])
HEADER_WHEN = np.array([when for _, _, _, when in HEADERS])


def _joined(texts: Any) -> tuple[Any, Any]:
    """Texts end to end (with slack for wide copies), and where each begins."""
    encoded = [text.encode() for text in texts]
    return np.frombuffer(b"".join(encoded) + bytes(32), np.uint8), np.cumsum([0, *map(len, encoded)])


NAMES, NAME_ENDS = _joined(name for name, _, _, _ in HEADERS)
WORD_BYTES, WORD_ENDS = _joined(WORDS)
NAME_BYTES = int(NAME_ENDS[-1])
OPTIONAL = np.flatnonzero(HEADER_HOW == TEXT_OR_NONE)
PAIRS = np.frombuffer(b"".join(b"%02d" % number for number in range(100)), np.uint8)
LONGEST_DIGITS = 19


@kernel
def write_base64(data: U8, starts: I64, sizes: I64, out: OutU8, ends: OutI32) -> Any:
    """Spans as base64 for URLs without padding, end to end. -> (count, position, status)"""
    to = np.int64(0)
    ends[0] = 0
    for index in range(starts.size):
        position = np.int64(starts[index])
        left = np.int64(sizes[index])
        while left >= 3:
            word = np.int64(data[position]) << 16 | np.int64(data[position + 1]) << 8 | np.int64(data[position + 2])
            out[to] = ALPHABET[word >> 18]
            out[to + 1] = ALPHABET[word >> 12 & 63]
            out[to + 2] = ALPHABET[word >> 6 & 63]
            out[to + 3] = ALPHABET[word & 63]
            to += 4
            position += 3
            left -= 3
        if left > 0:
            word = np.int64(data[position]) << 16
            if left == 2:
                word |= np.int64(data[position + 1]) << 8
            out[to] = ALPHABET[word >> 18]
            out[to + 1] = ALPHABET[word >> 12 & 63]
            to += 2
            if left == 2:
                out[to] = ALPHABET[word >> 6 & 63]
                to += 1
        ends[index + 1] = to
    return starts.size, to, OK


@kernel
def write_uuids(data: U8, starts: I64, sizes: I64, out: OutU8, ends: OutI32) -> Any:
    """The uuids of keys as text, end to end: those of V1 to V5 are text already. -> (count, position, status)"""
    to = np.int64(0)
    ends[0] = 0
    for index in range(starts.size):
        start, size = np.int64(starts[index]), np.int64(sizes[index])
        version = read_i16(data, start)
        if version >= FIRST_RAW:
            for number in range(RAW_UUID):
                if number == 4 or number == 6 or number == 8 or number == 10:
                    out[to] = 45
                    to += 1
                byte = np.int64(data[start + UUID_AT + number])
                out[to] = HEX[byte >> 4]
                out[to + 1] = HEX[byte & 15]
                to += 2
        else:
            fixed = np.int64(TEXT_1 if version == 1 else TEXT_2)
            copy(out, to, data, start + fixed, size - fixed)
            to += size - fixed
        ends[index + 1] = to
    return starts.size, to, OK


@inline
def put_number(out: Any, to: Any, value: Any) -> Any:
    """A number in decimal, two digits at a time. -> position after it"""
    if value < 0:
        return put_integer(out, to, value)
    size, limit = np.int64(1), np.int64(10)
    while value >= limit:
        size += 1
        if size == LONGEST_DIGITS:
            break
        limit *= 10
    place, rest = to + size, value
    while rest >= 100:
        quotient = rest // 100
        pair = (rest - quotient * 100) * 2
        place -= 2
        out[place], out[place + 1] = PAIRS[pair], PAIRS[pair + 1]
        rest = quotient
    if rest >= 10:
        out[to], out[to + 1] = PAIRS[rest * 2], PAIRS[rest * 2 + 1]
    else:
        out[to] = 48 + rest
    return to + size


@inline
def is_there(when: Any, kind: Any, serde: Any) -> Any:
    """Whether a message has a header that is there `when`."""
    if when == ALWAYS:
        return True
    if when == IN_PUT:
        return kind == KIND_PUT
    if when == IN_ENCRYPTABLE_PUT:
        return kind == KIND_PUT and serde >= 3
    if when == IN_UPDATE:
        return kind != KIND_PUT
    return kind == KIND_TTL_UPDATE


@inline
def is_written(header: Any, fields: Any, index: Any) -> Any:
    """Whether a message has a header."""
    if not is_there(HEADER_WHEN[header], fields[KIND, index], fields[SERDE, index]):
        return False
    return HEADER_HOW[header] != TEXT_OR_NONE or fields[HEADER_FIELD[header] + 1, index] > 0


@kernel
def write_headers(
    data: U8,
    fields: AnyI64x2,
    list_ends: OutI32,
    key_ends: OutI32,
    keys: OutU8,
    value_ends: OutI32,
    values: OutU8,
    present: OutI64,
) -> Any:
    """The headers of messages that were parsed. -> (headers, bytes of values, status)

    There must be room for all of HEADERS for each message, and SLACK bytes after all keys and values. `present` is room for COUNT numbers.
    Messages that follow one another mostly have the same headers: then their names are copied at once.
    """
    count, key_to, value_to = 0, np.int64(0), np.int64(0)
    shape, names, names_at, names_size = np.int64(-1), 0, np.int64(0), np.int64(0)
    list_ends[0] = 0
    key_ends[0] = 0
    value_ends[0] = 0
    for index in range(fields.shape[1]):
        here = np.int64(fields[KIND, index]) | (8 if fields[SERDE, index] >= 3 else 0)
        for number in range(OPTIONAL.size):
            if fields[HEADER_FIELD[OPTIONAL[number]] + 1, index] > 0:
                here |= np.int64(16) << number
        if here == shape:
            copy(keys, key_to, keys, names_at, names_size)
            key_to += names_size
        else:
            shape, names, names_at = here, 0, key_to
            for header in range(COUNT):
                if is_written(header, fields, index):
                    present[names] = header
                    names += 1
                    size = NAME_ENDS[header + 1] - NAME_ENDS[header]
                    copy(keys, key_to, NAMES, NAME_ENDS[header], size)
                    key_to += size
            names_size = key_to - names_at
        ends = key_to - names_size
        for number in range(names):
            header = present[number]
            how, row = HEADER_HOW[header], HEADER_FIELD[header]
            value = fields[row, index]
            if how == NUMBER:
                value_to = put_number(values, value_to, value)
            elif how in (TEXT, TEXT_OR_NONE):
                size = fields[row + 1, index]
                copy(values, value_to, data, value, size)
                value_to += size
            else:
                word = value
                if how == TYPE_NAME:
                    word += FIRST_TYPE
                elif how == KIND_NAME:
                    word += FIRST_KIND
                size = WORD_ENDS[word + 1] - WORD_ENDS[word]
                copy(values, value_to, WORD_BYTES, WORD_ENDS[word], size)
                value_to += size
            ends += NAME_ENDS[header + 1] - NAME_ENDS[header]
            count += 1
            key_ends[count] = ends
            value_ends[count] = value_to
        list_ends[index + 1] = count
    return count, value_to, OK
