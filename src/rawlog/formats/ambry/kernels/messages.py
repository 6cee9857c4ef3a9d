"""Loops over messages: found by a sound header (MessageFormatRecord.verifyHeader), a key and a payload that is there; and what they hold.

Their records are read one after the other, as Ambry's recovery does. Where they really are is compared with the offsets in the header,
which its GETs go by.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.ambry.layouts import (
    BLOB_V1,
    BLOB_V2,
    BLOB_V3,
    CRC_SIZE,
    HEADER_V1,
    HEADER_V2,
    HEADER_V3,
    KEY_V1,
    KEY_V2,
    KEY_V6,
    LARGEST_CONTENT,
    NEW_EXPIRY_SIZE,
    NONE,
    PARTITION_VERSION,
    PROPERTIES,
    TEXT_SIZE,
    UPDATE_V1,
    UPDATE_V2,
    UPDATE_V3,
    USER_METADATA,
    Flag,
    Kind,
)
from rawlog.kernels import inline, kernel
from rawlog.kernels.crc import sum_crc32
from rawlog.kernels.gather import copy, copy_exact
from rawlog.kernels.ints import read_i8, read_i16, read_i32, read_i64, read_u8
from rawlog.kernels.types import (
    I8,
    I16,
    I32,
    I64,
    U8,
    Bool,
    Bools,
    Int,
    OutI8,
    OutI16,
    OutI32,
    OutI64,
    OutI64x2,
    OutU8,
    U8x2,
)
from rawlog.model.status import BAD_CRC, BAD_LENGTH, BAD_MAGIC, BAD_VALUE, FULL, OK, TRUNCATED

H1, H2, H3 = HEADER_V1.size, HEADER_V2.size, HEADER_V3.size
PAYLOAD_2, PAYLOAD_3 = HEADER_V2.at("payload_size"), HEADER_V3.at("payload_size")  # V1 has it where V2 has
PROPS_1, PROPS_2, PROPS_3 = (header.at("blob_properties_offset") for header in (HEADER_V1, HEADER_V2, HEADER_V3))
LIFE_3, EK_2, EK_3 = (
    HEADER_V3.at("life_version"),
    HEADER_V2.at("encryption_key_offset"),
    HEADER_V3.at("encryption_key_offset"),
)
UPDATE_AFTER_PROPS = HEADER_V3.at("update_offset") - PROPS_3
META_AFTER_PROPS = HEADER_V3.at("user_metadata_offset") - PROPS_3
BLOB_AFTER_PROPS = HEADER_V3.at("blob_offset") - PROPS_3

K1, K2, K6 = KEY_V1.size, KEY_V2.size, KEY_V6.size
PARTITION_AT_1, PARTITION_AT_2 = KEY_V1.at("partition_version"), KEY_V2.at("partition_version")
NUMBER_1, NUMBER_2 = KEY_V1.at("partition"), KEY_V2.at("partition")
UUID_SIZE_1, UUID_SIZE_2 = KEY_V1.at("uuid_size"), KEY_V2.at("uuid_size")
KEY_FLAGS, KEY_ACCOUNT, KEY_CONTAINER = KEY_V2.at("flags"), KEY_V2.at("account_id"), KEY_V2.at("container_id")
ID_TYPE_MASK, DATA_TYPE_MASK = 0x03, 0x18

BLOB_SIZE_1, BLOB_SIZE_2, BLOB_SIZE_3 = BLOB_V1.at("size"), BLOB_V2.at("size"), BLOB_V3.at("size")
B1, B2, B3 = BLOB_V1.size, BLOB_V2.size, BLOB_V3.size
U1, U2, U3 = UPDATE_V1.size, UPDATE_V2.size, UPDATE_V3.size
U_TYPE = UPDATE_V3.at("type")
UPDATE_DELETE, UPDATE_TTL_UPDATE, UPDATE_UNDELETE = 0, 1, 2

CUT, WRONG = -1, -2


@inline
def key_size(data: Any, position: Any, end: Any) -> Any:
    """The size of the key at `position`: CUT if the data end in it, WRONG for anything else."""
    left = end - position
    if left < 2:
        return np.int64(CUT)
    version = read_i16(data, position)
    if version < 1 or version > 7:
        return np.int64(WRONG)
    fixed = np.int64(K6 if version >= 6 else (K2 if version >= 2 else K1))
    if left < fixed:
        return np.int64(CUT)
    if read_i16(data, position + (PARTITION_AT_1 if version == 1 else PARTITION_AT_2)) != PARTITION_VERSION:
        return np.int64(WRONG)
    if version >= 3:
        flags = read_u8(data, position + KEY_FLAGS)
        if flags & ID_TYPE_MASK > 1 or (version >= 5 and flags & DATA_TYPE_MASK == DATA_TYPE_MASK):
            return np.int64(WRONG)
    if version >= 6:
        return fixed
    size = read_i32(data, position + (UUID_SIZE_1 if version == 1 else UUID_SIZE_2))
    if size < 0:
        return np.int64(WRONG)
    return np.int64(CUT) if left - fixed < size else fixed + size


@inline
def header_size(version: Any) -> Any:
    """The size of a message header of a known version."""
    return np.int64(H3 if version == 3 else (H2 if version == 2 else H1))


@kernel
def check_header(data: U8, position: Int) -> Any:
    """Whether a sound message header is at `position`, by the rules of verifyHeader. -> status"""
    left = np.int64(data.size) - position
    if left < 2:
        return TRUNCATED
    version = read_i16(data, position)
    if version < 1 or version > 3:
        return BAD_MAGIC
    size = header_size(version)
    if left < size:
        return TRUNCATED
    after = position + size - CRC_SIZE
    if read_i64(data, after) != sum_crc32(data, position, after):
        return BAD_CRC
    if read_i64(data, position + (PAYLOAD_3 if version == 3 else PAYLOAD_2)) <= 0:
        return BAD_LENGTH
    if version == 3 and read_i16(data, position + LIFE_3) < 0:
        return BAD_VALUE
    at = position + (PROPS_3 if version == 3 else (PROPS_2 if version == 2 else PROPS_1))
    props, update = read_i32(data, at), read_i32(data, at + UPDATE_AFTER_PROPS)
    meta, blob = read_i32(data, at + META_AFTER_PROPS), read_i32(data, at + BLOB_AFTER_PROPS)
    if props > 0:
        return OK if update == NONE and meta > 0 and blob > 0 else BAD_VALUE
    key = NONE
    if version >= 2:
        key = read_i32(data, position + (EK_3 if version == 3 else EK_2))
    if update > 0 and props == NONE and meta == NONE and blob == NONE and key == NONE:
        return OK
    return BAD_VALUE


@inline
def last_record_end(data: Any, position: Any, size: Any, first: Any) -> Any:
    """Where the last record of a whole message ends by its own size, from the start of the message; -1: it does not say."""
    version = read_i16(data, position)
    at = position + (PROPS_3 if version == 3 else (PROPS_2 if version == 2 else PROPS_1))
    if read_i32(data, at) > 0:
        blob = read_i32(data, at + BLOB_AFTER_PROPS)
        if blob < first or size - blob < B3:
            return np.int64(-1)
        record = read_i16(data, position + blob)
        if record < 1 or record > 3:
            return np.int64(-1)
        content = read_i64(
            data, position + blob + (BLOB_SIZE_3 if record == 3 else (BLOB_SIZE_2 if record == 2 else BLOB_SIZE_1))
        )
        if content < 0 or content > LARGEST_CONTENT:
            return np.int64(-1)
        return blob + (B3 if record == 3 else (B2 if record == 2 else B1)) + content + CRC_SIZE
    record = read_i16(data, position + first)
    if record == 1:
        return first + U1
    if record == 2:
        return first + U2
    if record != 3 or size - first < U3:
        return np.int64(-1)
    return (
        first
        + U3
        + CRC_SIZE
        + (NEW_EXPIRY_SIZE if read_i16(data, position + first + U_TYPE) == UPDATE_TTL_UPDATE else 0)
    )


@inline
def last_record_is_right(data: Any, position: Any, size: Any, first: Any) -> Any:
    """Whether the last record of a whole message has the checksum that follows it."""
    version = read_i16(data, position)
    at = position + (PROPS_3 if version == 3 else (PROPS_2 if version == 2 else PROPS_1))
    start = np.int64(first)
    if read_i32(data, at) > 0:
        start = np.int64(read_i32(data, at + BLOB_AFTER_PROPS))
    after = size - CRC_SIZE
    if start < first or after <= start:
        return False
    return read_i64(data, position + after) == sum_crc32(data, position + start, position + after)


@kernel
def find_message(data: U8, start: Int, stop: Int) -> Any:
    """The first position from `start` to before `stop` with a sound header and a key, or -1."""
    end = np.int64(data.size)
    position = np.int64(start)
    while position < stop and end - position >= H1:
        if (
            data[position] == 0
            and 1 <= data[position + 1] <= 3
            and check_header(data, position) == OK
            and key_size(data, position + header_size(read_i16(data, position)), end) != WRONG
        ):
            return position
        position += 1
    return np.int64(-1)


@kernel
def scan_messages(data: U8, start: Int, starts: OutI64, stops: OutI64) -> Any:
    """Write where every whole message from `start` on begins and ends. -> (count, position, status)

    A sound header whose message ends where no other begins is a wrong payload size, BAD_LENGTH, if the last record says so too, or if
    that record's checksum is wrong and another message begins inside: bytes are missing, and the message would hide the next one.
    """
    count, position, end = 0, np.int64(start), np.int64(data.size)
    status = check_header(data, position)
    while position < end:
        if count == starts.size:
            return count, position, FULL
        if status != OK:
            return count, position, status
        version = read_i16(data, position)
        first = header_size(version)
        key = key_size(data, position + first, end)
        if key == CUT:
            return count, position, TRUNCATED
        if key == WRONG:
            return count, position, BAD_VALUE
        first += key
        payload = read_i64(data, position + (PAYLOAD_3 if version == 3 else PAYLOAD_2))
        if end - position - first < payload:
            return count, position, TRUNCATED
        size = first + payload
        if payload < U1:
            return count, position, BAD_LENGTH
        status = check_header(data, position + size)
        if status != OK:
            if end - position > size and last_record_end(data, position, size, first) != size:
                return count, position, BAD_LENGTH
            if (
                not last_record_is_right(data, position, size, first)
                and find_message(data, position + first, position + size) >= 0
            ):
                return count, position, BAD_LENGTH
        starts[count] = position
        position += size
        stops[count] = position
        count += 1
    return count, position, OK


@kernel
def key_sizes(data: U8, starts: I64, room: Int, sizes: OutI64) -> Any:
    """The size of the key at each of `starts`, at most `room`. -> (count, position, status); BAD_VALUE where there is none"""
    for index in range(starts.size):
        start = np.int64(starts[index])
        size = key_size(data, start, min(np.int64(data.size), start + room))
        if size < 0:
            return index, start, BAD_VALUE
        sizes[index] = size
    return starts.size, np.int64(data.size), OK


# ----------------------------------------------------------------------------------------------------------------------
# Loops over all messages of a store at once: which blob each is of, and the index entry that a live store would have added for it.
# Authority: PersistentIndex (findKey, markAsDeleted, markAsPermanent, markAsUndeleted), specification §10.3, §14 and §15.


UUID_2, UUID_6 = KEY_V2.size, KEY_V6.at("uuid")
ODD, TEXT, RAW = 0, 3, 4
"""Groups of keys (§4.4) whose order and identity are two numbers: a uuid as text, or as 16 bytes. All other keys are odd."""
UUID_SIZE, HALF_BITS, DIGIT_BITS = 36, 64, 4
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
        elif version >= 3 and size - UUID_2 == UUID_SIZE:
            first, second, good, number = np.int64(0), np.int64(0), True, 0
            for at in range(UUID_SIZE):
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
    order: I64, new: Bools, kind: I8, segment: I32, offset: I64, life: I16, is_remembered: Bools, use: Int, drop: Bool,
    flags: OutU8, expires: OutI32, original: OutI64, account: OutI16, container: OutI16, wrong: OutI8, blob: OutI64,
    first: OutI64, answer: OutI64, put: OutI64, answer_flags: OutU8, answer_expires: OutI32,
) -> Any:  # fmt: skip
    """Go through the messages blob by blob, each in log order, and make the entry of each from those before it. -> blobs

    `order` lists messages blob by blob, `new` says where a blob begins. `flags` to `container` hold what the message says, or what the old
    index says where `is_remembered`, and are completed. `wrong` is what the message does to its blob's history; with `drop` such a
    message counts for nothing. Of each blob: its `first` message, the `answer` of findKey (the entry that is its state, with flags and
    expiry as findKey gives them) and the newest PUT; -1 without one.
    """
    blobs = np.int64(-1)
    latest = state = np.int64(-1)
    for at in range(order.size):
        row = np.int64(order[at])
        if new[at]:
            blobs += 1
            first[blobs], answer[blobs], put[blobs] = row, -1, -1
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
        if is_remembered[row] and (use == ALWAYS or (use == ORPHANS and put[blobs] < 0 and this != PUT)):
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
        entry_kind = kind_of(np.int64(flags[row]))
        if entry_kind == PUT:
            put[blobs] = row
        if entry_kind != TTL_UPDATE:
            state = row
        if state >= 0:
            answer[blobs], answer_flags[blobs], answer_expires[blobs] = state, flags[state], expires[state]
            if flags[latest] & IS_TTL and not flags[state] & IS_TTL:
                answer_flags[blobs], answer_expires[blobs] = flags[state] | IS_TTL, expires[latest]
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


# What messages hold, record after record -----------------------------------------------------------------------------------------

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
