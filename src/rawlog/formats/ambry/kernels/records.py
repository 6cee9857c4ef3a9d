"""Loops that read what messages hold, record after record as Ambry's recovery does.

Where the records really are is compared with the offsets in the header, which its GETs go by.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.ambry.kernels.messages import (
    B1,
    B2,
    B3,
    BLOB_AFTER_PROPS,
    BLOB_SIZE_1,
    BLOB_SIZE_2,
    BLOB_SIZE_3,
    EK_2,
    EK_3,
    KEY_ACCOUNT,
    KEY_CONTAINER,
    LIFE_3,
    META_AFTER_PROPS,
    NUMBER_1,
    NUMBER_2,
    PAYLOAD_2,
    PAYLOAD_3,
    PROPS_1,
    PROPS_2,
    PROPS_3,
    U1,
    U2,
    U3,
    U_TYPE,
    UPDATE_AFTER_PROPS,
    UPDATE_DELETE,
    UPDATE_TTL_UPDATE,
    UPDATE_UNDELETE,
    header_size,
    key_size,
)
from rawlog.formats.ambry.layouts import (
    BLOB_V3,
    CRC_SIZE,
    LARGEST_CONTENT,
    NEW_EXPIRY_SIZE,
    NONE,
    PROPERTIES,
    TEXT_SIZE,
    UPDATE_V3,
    USER_METADATA,
)
from rawlog.kernels import inline, kernel
from rawlog.kernels.crc import sum_crc32
from rawlog.kernels.gather import copy
from rawlog.kernels.ints import (
    read_i8,
    read_i16,
    read_i32,
    read_i64,
)
from rawlog.kernels.types import (
    I64,
    U8,
    Bool,
    Int,
    OutI32,
    OutI64x2,
    OutU8,
)
from rawlog.model.status import OK

BLOB_TYPE, BLOB_COMPRESSED = BLOB_V3.at("blob_type"), BLOB_V3.at("is_compressed")
UM_SIZE_AT, UM_HEAD = USER_METADATA.at("size"), USER_METADATA.size
P_SERDE, P_TTL, P_PRIVATE = PROPERTIES.at("serde_version"), PROPERTIES.at("time_to_live"), PROPERTIES.at("is_private")
P_CREATION, P_SIZE, P_HEAD = PROPERTIES.at("creation_time"), PROPERTIES.at("blob_size"), PROPERTIES.size
IDS_SIZE, FLAG_SIZE, ID_SIZE = 4, 1, 2
U_ACCOUNT, U_CONTAINER, U_TIME = UPDATE_V3.at("account_id"), UPDATE_V3.at("container_id"), UPDATE_V3.at("update_time")
KIND_TTL_UPDATE, KIND_PUT, KIND_DELETE, KIND_UNDELETE = 0, 1, 2, 3
U_SUB = UPDATE_V3.at("sub_version")

FIELDS = (
    "version", "life_version", "payload", "key_start", "key_size", "key_version", "partition", "key_account",
    "key_container", "kind", "encryption_key_at", "encryption_key_start", "encryption_key_size", "properties_at",
    "serde", "time_to_live", "is_private", "creation_time", "properties_blob_size", "content_type_start",
    "content_type_size", "owner_id_start", "owner_id_size", "service_id_start", "service_id_size", "account_id",
    "container_id", "is_encrypted", "content_encoding_start", "content_encoding_size", "filename_start",
    "filename_size", "reserved_metadata_blob_id_start", "reserved_metadata_blob_id_size", "user_metadata_at",
    "user_metadata_start", "user_metadata_size", "blob_at", "blob_version", "blob_type", "is_compressed",
    "content_start", "content_size", "update_at", "update_version", "update_time", "new_expiry", "fault", "fault_at",
    "mismatch", "crc_bad", "crc_high", "zeros",
)  # fmt: skip
"""What `parse_messages` tells of each message, a row of its output each; spans are positions in the data."""
(
    VERSION, LIFE, PAYLOAD, KEY_START, KEY_SIZE, KEY_VERSION, PARTITION, KEY_ACCOUNT_ID, KEY_CONTAINER_ID, KIND,
    EK_AT, EK_START, EK_SIZE,
    PROPS_AT, SERDE, TTL, PRIVATE, CREATION, PROPS_SIZE,
    TEXTS, _, _, _, _, _,
    ACCOUNT, CONTAINER, ENCRYPTED,
    LATE_TEXTS, _, _, _,
    RESERVED, _,
    UM_AT, UM_START, UM_SIZE,
    BLOB_AT, BLOB_VERSION, TYPE, COMPRESSED, CONTENT_START, CONTENT_SIZE,
    UPDATE_AT, UPDATE_VERSION, UPDATE_TIME, NEW_EXPIRY,
    FAULT, FAULT_AT, MISMATCH, CRC_BAD, CRC_HIGH, ZEROS,
) = range(len(FIELDS))  # fmt: skip

NO_FAULT, BAD_RECORD_VERSION, BAD_RECORD_SIZE, BAD_TYPE = 0, 1, 2, 3
"""Why a record could not be read; what follows it in its message was not looked at."""
IN_ENCRYPTION_KEY, IN_PROPERTIES, IN_USER_METADATA, IN_BLOB, IN_UPDATE, IN_PAYLOAD = 1, 2, 4, 8, 16, 32
"""Bits of `mismatch`, `crc_bad` and `crc_high`: which record."""


@inline
def check_crc(data: Any, start: Any, stop: Any, record: Any, out: Any, index: Any) -> None:
    """Compare the checksum field at `stop` with the bytes before it, and note what is wrong with it."""
    stored = read_i64(data, stop)
    if stored >> 32 != 0:
        out[CRC_HIGH, index] |= record
        out[CRC_BAD, index] |= record
    elif stored != sum_crc32(data, start, stop):
        out[CRC_BAD, index] |= record


@inline
def fail(out: Any, index: Any, why: Any, position: Any) -> Any:
    """Note a record that cannot be read. -> -1"""
    out[FAULT, index] = why
    out[FAULT_AT, index] = position
    return np.int64(-1)


@kernel
def read_sized(
    data: U8, position: Int, stop: Int, record: Int, row: Int, check: Bool, out: OutI64x2, index: Int
) -> Any:
    """An encryption key or user metadata record. -> position after it, -1 if it is invalid"""
    if stop - position < UM_HEAD + CRC_SIZE:
        return fail(out, index, BAD_RECORD_SIZE, position)
    if read_i16(data, position) != 1:
        return fail(out, index, BAD_RECORD_VERSION, position)
    size = read_i32(data, position + UM_SIZE_AT)
    if size < 0 or stop - position - UM_HEAD - CRC_SIZE < size:
        return fail(out, index, BAD_RECORD_SIZE, position)
    out[row, index] = position
    out[row + 1, index] = position + UM_HEAD
    out[row + 2, index] = size
    after = position + UM_HEAD + size
    if check:
        check_crc(data, position, after, record, out, index)
    return after + CRC_SIZE


@inline
def read_texts(data: Any, position: Any, stop: Any, row: Any, count: Any, out: Any, index: Any) -> Any:
    """Strings with their sizes in front. -> position after them, -1 if one leads too far"""
    for number in range(count):
        if stop - position < TEXT_SIZE:
            return np.int64(-1)
        size = read_i32(data, position)
        position += TEXT_SIZE
        if size < 0 or stop - position < size:
            return np.int64(-1)
        out[row + 2 * number, index] = position
        out[row + 2 * number + 1, index] = size
        position += size
    return position


@kernel
def read_properties(data: U8, start: Int, stop: Int, check: Bool, out: OutI64x2, index: Int) -> Any:
    """The blob properties record. -> position after it, -1 if it is invalid"""
    if stop - start < P_HEAD + CRC_SIZE:
        return fail(out, index, BAD_RECORD_SIZE, start)
    serde = read_i16(data, start + P_SERDE)
    if read_i16(data, start) != 1 or serde < 1 or serde > 5:
        return fail(out, index, BAD_RECORD_VERSION, start)
    out[PROPS_AT, index] = start
    out[SERDE, index] = serde
    out[TTL, index] = read_i64(data, start + P_TTL)
    out[PRIVATE, index] = 1 if read_i8(data, start + P_PRIVATE) == 1 else 0
    out[CREATION, index] = read_i64(data, start + P_CREATION)
    out[PROPS_SIZE, index] = read_i64(data, start + P_SIZE)
    position = read_texts(data, start + P_HEAD, stop, TEXTS, 3, out, index)
    if position >= 0 and serde >= 2:
        if stop - position < IDS_SIZE + FLAG_SIZE:
            position = np.int64(-1)
        else:
            out[ACCOUNT, index] = read_i16(data, position)
            out[CONTAINER, index] = read_i16(data, position + ID_SIZE)
            position += IDS_SIZE
            if serde >= 3:
                out[ENCRYPTED, index] = 1 if read_i8(data, position) == 1 else 0
                position += FLAG_SIZE
    if position >= 0 and serde >= 4:
        position = read_texts(data, position, stop, LATE_TEXTS, 2, out, index)
        if position >= 0 and serde >= 5:
            position = read_texts(data, position, stop, RESERVED, 1, out, index)
    if position < 0 or stop - position < CRC_SIZE:
        return fail(out, index, BAD_RECORD_SIZE, start)
    if check:
        check_crc(data, start, position, IN_PROPERTIES, out, index)
    return position + CRC_SIZE


@kernel
def read_blob(data: U8, start: Int, stop: Int, check: Bool, out: OutI64x2, index: Int) -> Any:
    """The blob record. -> position after it, -1 if it is invalid"""
    if stop - start < B1 + CRC_SIZE:
        return fail(out, index, BAD_RECORD_SIZE, start)
    version = read_i16(data, start)
    if version < 1 or version > 3:
        return fail(out, index, BAD_RECORD_VERSION, start)
    head = np.int64(B3 if version == 3 else (B2 if version == 2 else B1))
    if stop - start < head + CRC_SIZE:
        return fail(out, index, BAD_RECORD_SIZE, start)
    size = read_i64(data, start + (BLOB_SIZE_3 if version == 3 else (BLOB_SIZE_2 if version == 2 else BLOB_SIZE_1)))
    if size < 0 or size > LARGEST_CONTENT or stop - start - head - CRC_SIZE < size:
        return fail(out, index, BAD_RECORD_SIZE, start)
    kind = read_i16(data, start + BLOB_TYPE) if version >= 2 else np.int64(0)
    if kind < 0 or kind > 1:
        return fail(out, index, BAD_TYPE, start)
    out[BLOB_AT, index] = start
    out[BLOB_VERSION, index] = version
    out[TYPE, index] = kind
    out[COMPRESSED, index] = 1 if version == 3 and data[start + BLOB_COMPRESSED] == 1 else 0
    out[CONTENT_START, index] = start + head
    out[CONTENT_SIZE, index] = size
    after = start + head + size
    if check:
        check_crc(data, start, after, IN_BLOB, out, index)
    return after + CRC_SIZE


@kernel
def read_update(data: U8, start: Int, stop: Int, check: Bool, out: OutI64x2, index: Int) -> Any:
    """The update record. -> position after it, -1 if it is invalid"""
    left = stop - start
    if left < U1:
        return fail(out, index, BAD_RECORD_SIZE, start)
    version = read_i16(data, start)
    if version < 1 or version > 3:
        return fail(out, index, BAD_RECORD_VERSION, start)
    out[KIND, index] = KIND_DELETE
    size = np.int64(U1 if version == 1 else U2)
    if version == 3:
        if left < U3 + CRC_SIZE:
            return fail(out, index, BAD_RECORD_SIZE, start)
        kind = read_i16(data, start + U_TYPE)
        if kind < UPDATE_DELETE or kind > UPDATE_UNDELETE:
            return fail(out, index, BAD_TYPE, start)
        if read_i16(data, start + U_SUB) != 1:
            return fail(out, index, BAD_RECORD_VERSION, start)
        size = np.int64(U3 + CRC_SIZE)
        if kind == UPDATE_TTL_UPDATE:
            size += NEW_EXPIRY_SIZE
        out[KIND, index] = (
            KIND_DELETE if kind == UPDATE_DELETE else (KIND_TTL_UPDATE if kind == UPDATE_TTL_UPDATE else KIND_UNDELETE)
        )
    if left < size:
        return fail(out, index, BAD_RECORD_SIZE, start)
    out[UPDATE_AT, index] = start
    out[UPDATE_VERSION, index] = version
    if version >= 2:
        out[ACCOUNT, index] = read_i16(data, start + U_ACCOUNT)
        out[CONTAINER, index] = read_i16(data, start + U_CONTAINER)
        out[UPDATE_TIME, index] = read_i64(data, start + U_TIME)
    if version == 3 and out[KIND, index] == KIND_TTL_UPDATE:
        out[NEW_EXPIRY, index] = read_i64(data, start + U3)
    if check:
        check_crc(data, start, start + size - CRC_SIZE, IN_UPDATE, out, index)
    return start + size


@inline
def all_zero(data: Any, start: Any, size: Any) -> Any:
    """Whether a span is nothing but zeros."""
    for position in range(start, start + size):  # noqa: SIM110 - a loop is what the compiler takes
        if data[position] != 0:
            return False
    return True


@inline
def compare(offset: Any, start: Any, position: Any, record: Any, out: Any, index: Any) -> None:
    """Note a record that is not where the header says."""
    if offset != position - start:
        out[MISMATCH, index] |= record


@kernel
def parse_messages(data: U8, starts: I64, stops: I64, check: Bool, out: OutI64x2, contents: OutU8, ends: OutI32) -> Any:
    """Read all records of messages that were scanned. `out` has a row for each of FIELDS. -> (count, position, status)

    What a record lacks is -1. `fault` tells the first record that could not be read; nothing raises here. If there is a place for
    `contents`, they are written into it one after the other, while the checksum over them has them at hand, and Arrow offsets into `ends`.
    """
    written, room = np.int64(0), np.int64(contents.size)
    ends[0] = 0
    for index in range(starts.size):
        start, stop = np.int64(starts[index]), np.int64(stops[index])
        for row in range(FAULT):
            out[row, index] = NONE
        for row in range(FAULT, ZEROS + 1):
            out[row, index] = 0
        version = read_i16(data, start)
        head = header_size(version)
        out[VERSION, index] = version
        out[LIFE, index] = read_i16(data, start + LIFE_3) if version == 3 else 0
        out[PAYLOAD, index] = read_i64(data, start + (PAYLOAD_3 if version == 3 else PAYLOAD_2))
        key_at = start + head
        key = key_size(data, key_at, stop)
        key_version = read_i16(data, key_at)
        out[KEY_START, index] = key_at
        out[KEY_SIZE, index] = key
        out[KEY_VERSION, index] = key_version
        out[PARTITION, index] = read_i64(data, key_at + (NUMBER_1 if key_version == 1 else NUMBER_2))
        if key_version >= 2:
            out[KEY_ACCOUNT_ID, index] = read_i16(data, key_at + KEY_ACCOUNT)
            out[KEY_CONTAINER_ID, index] = read_i16(data, key_at + KEY_CONTAINER)
        at = start + (PROPS_3 if version == 3 else (PROPS_2 if version == 2 else PROPS_1))
        props, update = read_i32(data, at), read_i32(data, at + UPDATE_AFTER_PROPS)
        position = key_at + key
        if props > 0:
            out[KIND, index] = KIND_PUT
            encryption = np.int64(NONE)
            if version >= 2:
                encryption = read_i32(data, start + (EK_3 if version == 3 else EK_2))
            if encryption != NONE:
                compare(encryption, start, position, IN_ENCRYPTION_KEY, out, index)
                position = read_sized(data, position, stop, IN_ENCRYPTION_KEY, EK_AT, check, out, index)
            if position >= 0:
                compare(props, start, position, IN_PROPERTIES, out, index)
                position = read_properties(data, position, stop, check, out, index)
            if position >= 0:
                compare(read_i32(data, at + META_AFTER_PROPS), start, position, IN_USER_METADATA, out, index)
                position = read_sized(data, position, stop, IN_USER_METADATA, UM_AT, check, out, index)
            if position >= 0:
                compare(read_i32(data, at + BLOB_AFTER_PROPS), start, position, IN_BLOB, out, index)
                position = read_blob(data, position, stop, check, out, index)
                size = out[CONTENT_SIZE, index]
                if room - written >= size > 0:
                    copy(contents, written, data, out[CONTENT_START, index], size)
                    written += size
            if (
                position >= 0
                and out[UM_SIZE, index] + out[CONTENT_SIZE, index] > 0
                and all_zero(data, out[UM_START, index], out[UM_SIZE, index])
                and all_zero(data, out[CONTENT_START, index], out[CONTENT_SIZE, index])
            ):
                out[ZEROS, index] = 1
        else:
            compare(update, start, position, IN_UPDATE, out, index)
            position = read_update(data, position, stop, check, out, index)
        if position >= 0 and position != stop:
            out[MISMATCH, index] |= IN_PAYLOAD
        if room:
            ends[index + 1] = written
    return starts.size, np.int64(data.size), OK
