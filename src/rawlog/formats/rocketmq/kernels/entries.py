"""Entries of a commit log: found, checked, taken apart into fields, and their parts of any size laid into Arrow buffers."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import numpy as np

from rawlog.formats.rocketmq.layouts import (
    BATCH_MASK,
    BLANK,
    CRC_MASK,
    DLEDGER,
    DLEDGER_BLANK,
    DLEDGER_BLANK_MAGIC,
    DLEDGER_MAGIC,
    FILLER_FLAG,
    FIXED_V4,
    HEAD,
    HOST_V4,
    HOST_V6,
    INNER,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    NAME_VALUE,
    PAIR_END,
    PROPERTIES,
    SMALLEST_V1,
    SMALLEST_V2,
    STORED,
    TAIL,
    TOPIC_V1,
    TOPIC_V2,
    TRANSACTION_MASK,
    V6_MORE,
    SysFlag,
)
from rawlog.kernels import inline, kernel, twin
from rawlog.kernels.crc import sum_crc32
from rawlog.kernels.gather import SLACK, copy, copy32, copy_exact, prefetch
from rawlog.kernels.ints import read_i8, read_i16, read_i32, read_i64, read_u16, read_u32, wrap_i64, write_i64
from rawlog.kernels.types import I64, U8, AnyI64, Bool, Bools, Int, OutBools, OutI32, OutI64, OutI64x2, OutU8
from rawlog.model.status import BAD_LENGTH, BAD_MAGIC, FULL, OK, TRUNCATED

TOTAL, MAGIC, CRC, QUEUE_ID, FLAG = (HEAD.at(name) for name in ("total_size", "magic", "body_crc", "queue_id", "flag"))
QUEUE_OFFSET, PHYSICAL, SYS_FLAG = HEAD.at("queue_offset"), HEAD.at("physical_offset"), HEAD.at("sys_flag")
BORN_TIME, AFTER_SYS_FLAG = HEAD.at("born_timestamp"), HEAD.after("sys_flag")
AFTER_BORN = HEAD.size + HOST_V4.size
AFTER_STORED = AFTER_BORN + STORED.size
RECONSUME, PREPARED, BODY_LENGTH = (
    TAIL.at("reconsume_times"),
    TAIL.at("prepared_transaction_offset"),
    TAIL.at("body_length"),
)
TAIL_SIZE, HEAD_SIZE, STORED_SIZE, HOST_SIZE = TAIL.size, HEAD.size, STORED.size, HOST_V4.size
BODY_LENGTH_BACK = TAIL.size - TAIL.at("body_length")
TOPIC_SIZE_V1, TOPIC_SIZE_V2, PROPERTIES_SIZE = TOPIC_V1.size, TOPIC_V2.size, PROPERTIES.size
BORN_V6, STORE_V6 = int(SysFlag.BORNHOST_V6), int(SysFlag.STOREHOST_V6)
BLANK_SIZE, DLEDGER_SIZE, DLEDGER_BLANK_SIZE = BLANK.size, DLEDGER.size, DLEDGER_BLANK.size
DLEDGER_SIZE_AT, DLEDGER_BODY_SIZE = DLEDGER.at("size"), DLEDGER.at("body_size")

FIELDS = 23
"""Rows of the array that `decode_entries` fills, by place."""
(
    F_START,
    F_SIZE,
    F_VERSION,
    F_CRC,
    F_QUEUE_ID,
    F_FLAG,
    F_QUEUE_OFFSET,
    F_PHYSICAL,
    F_SYS_FLAG,
    F_BORN_TIME,
    F_BORN_HOST,
    F_STORE_TIME,
    F_STORE_HOST,
    F_RECONSUME,
    F_PREPARED,
    F_BODY,
    F_BODY_SIZE,
    F_TOPIC,
    F_TOPIC_SIZE,
    F_PROPERTIES,
    F_PROPERTIES_SIZE,
    F_CRC_OK,
    F_FRAME,
) = range(FIELDS)


AHEAD = 4096
"""How far ahead of a scan cache lines are prefetched, for what reads the entries afterwards."""
MOST_AHEAD, LINE = 2048, 64
ODD = 6
"""What `decode_entries` counts, by place."""
O_BAD_CRC, O_STALE, O_COMPRESSED, O_TRANSACTION, O_PACKED, O_FILLER = range(ODD)
COMPRESSED = int(SysFlag.COMPRESSED)
ODD_FLAGS = COMPRESSED | TRANSACTION_MASK | BATCH_MASK


@inline
def hosts_more(sys_flag: Any) -> Any:
    """Bytes that the two hosts take beyond those of IPv4."""
    more = np.int64(0)
    if sys_flag & BORN_V6:
        more += V6_MORE
    if sys_flag & STORE_V6:
        more += V6_MORE
    return more


@inline
def check_message(data: Any, position: Any, size: Any, magic: Any) -> Any:
    """Whether the parts of the message of `size` bytes at `position`, all inside the data, add up to it."""
    two = magic == MAGIC_V2
    if size < (SMALLEST_V2 if two else SMALLEST_V1):
        return False
    fixed = FIXED_V4 + hosts_more(read_i32(data, position + SYS_FLAG))
    if size < fixed:
        return False
    body = read_i32(data, position + fixed - BODY_LENGTH_BACK)
    left = size - fixed
    if body < 0 or body > left:
        return False
    left -= body
    at = position + fixed + body
    if two:
        if left < TOPIC_SIZE_V2:
            return False
        topic = read_i16(data, at)
        at += TOPIC_SIZE_V2
        left -= TOPIC_SIZE_V2
    else:
        if left < TOPIC_SIZE_V1:
            return False
        topic = read_i8(data, at)
        at += TOPIC_SIZE_V1
        left -= TOPIC_SIZE_V1
    if topic < 0 or left - topic < PROPERTIES_SIZE:
        return False
    return read_i16(data, at + topic) == left - topic - PROPERTIES_SIZE


@inline
def frame_size(data: Any, position: Any) -> Any:
    """The size of the whole, sound frame at `position`. -> (size, status)"""
    left = np.int64(data.size) - position
    if left < BLANK_SIZE:
        return np.int64(0), TRUNCATED
    first, second = read_i32(data, position + TOTAL), read_i32(data, position + MAGIC)
    if second == MAGIC_V1 or second == MAGIC_V2:  # noqa: SIM109
        if first < SMALLEST_V1:
            return np.int64(0), BAD_LENGTH
        if left < first:
            return np.int64(0), TRUNCATED
        if not check_message(data, position, first, second):
            return np.int64(0), BAD_LENGTH
        return first, OK
    if second == MAGIC_BLANK:
        if first < BLANK_SIZE:
            return np.int64(0), BAD_LENGTH
        return first, (TRUNCATED if left < first else OK)
    if first == DLEDGER_MAGIC:
        if second < DLEDGER_SIZE:
            return np.int64(0), BAD_LENGTH
        if left < DLEDGER_SIZE:
            return np.int64(0), TRUNCATED
        body = read_i32(data, position + DLEDGER_BODY_SIZE)
        if body != second - DLEDGER_SIZE:
            return np.int64(0), BAD_LENGTH
        if left < second:
            return np.int64(0), TRUNCATED
        if body > 0:
            if body < SMALLEST_V1:
                return np.int64(0), BAD_LENGTH
            inner = position + DLEDGER_SIZE
            magic = read_i32(data, inner + MAGIC)
            if magic != MAGIC_V1 and magic != MAGIC_V2:
                return np.int64(0), BAD_MAGIC
            if read_i32(data, inner + TOTAL) != body or not check_message(data, inner, body, magic):
                return np.int64(0), BAD_LENGTH
        return second, OK
    if first == DLEDGER_BLANK_MAGIC and second >= DLEDGER_BLANK_SIZE:
        return second, (TRUNCATED if left < second else OK)
    return np.int64(0), BAD_MAGIC


@kernel
def scan_entries(data: U8, start: Int, starts: OutI64, stops: OutI64) -> Any:
    """Write where every whole entry from `start` on begins and ends. -> (count, position, status)"""
    count, position, end = 0, np.int64(start), np.int64(data.size)
    while position < end:
        if count == starts.size:
            return count, position, FULL
        size, status = frame_size(data, position)
        if status != OK:
            return count, position, status
        starts[count] = position
        for line in range(position + AHEAD, min(position + AHEAD + min(size, MOST_AHEAD), end), LINE):
            prefetch(data, line)
        position += size
        stops[count] = position
        count += 1
    return count, position, OK


@inline
def body_crc(data: Any, start: Any, size: Any) -> Any:
    """The checksum that a message stores for its body."""
    return sum_crc32(data, start, start + size) & CRC_MASK if size else np.int64(0)


@inline
def message_start(data: Any, start: Any, stop: Any) -> Any:
    """Where the message of a frame begins, -1 if it has no message."""
    magic = read_i32(data, start + MAGIC)
    if magic == MAGIC_V1 or magic == MAGIC_V2:  # noqa: SIM109
        return np.int64(start)
    if read_i32(data, start) == DLEDGER_MAGIC and stop - start > DLEDGER_SIZE:
        return np.int64(start + DLEDGER_SIZE)
    return np.int64(-1)


@kernel
def decode_entries(data: U8, starts: I64, stops: I64, with_crc: Bool, address: Int, out: OutI64x2, odd: OutI64) -> Any:
    """Take the messages among frames that `scan_entries` found apart into the rows of `out`. -> (count, position, status)

    `address` is that of the first byte of the data, below 0 if unknown. `odd` counts what most messages are not (`O_…`).
    """
    row = 0
    for frame in range(starts.size):
        start = message_start(data, np.int64(starts[frame]), np.int64(stops[frame]))
        if start < 0:
            continue
        if row == out.shape[1]:
            return row, np.int64(starts[frame]), FULL
        size, sys_flag = read_i32(data, start + TOTAL), read_i32(data, start + SYS_FLAG)
        physical = read_i64(data, start + PHYSICAL)
        flag = read_i32(data, start + FLAG)
        if address >= 0 and physical != address + start:
            odd[O_STALE] += 1
        if sys_flag & ODD_FLAGS:
            odd[O_COMPRESSED] += sys_flag & COMPRESSED
            odd[O_TRANSACTION] += (sys_flag & TRANSACTION_MASK) != 0
            odd[O_PACKED] += (sys_flag & BATCH_MASK) == BATCH_MASK
        odd[O_FILLER] += flag == FILLER_FLAG
        out[F_START, row] = start
        out[F_SIZE, row] = size
        out[F_CRC, row] = read_i32(data, start + CRC)
        out[F_QUEUE_ID, row] = read_i32(data, start + QUEUE_ID)
        out[F_FLAG, row] = flag
        out[F_QUEUE_OFFSET, row] = read_i64(data, start + QUEUE_OFFSET)
        out[F_PHYSICAL, row] = physical
        out[F_SYS_FLAG, row] = sys_flag
        out[F_BORN_TIME, row] = read_i64(data, start + BORN_TIME)
        at = start + HEAD_SIZE
        out[F_BORN_HOST, row] = at
        at = start + (AFTER_BORN + V6_MORE if sys_flag & BORN_V6 else AFTER_BORN)
        out[F_STORE_TIME, row] = read_i64(data, at)
        at += STORED_SIZE
        out[F_STORE_HOST, row] = at
        at += HOST_SIZE + V6_MORE if sys_flag & STORE_V6 else HOST_SIZE
        out[F_RECONSUME, row] = read_i32(data, at + RECONSUME)
        out[F_PREPARED, row] = read_i64(data, at + PREPARED)
        body = read_i32(data, at + BODY_LENGTH)
        at += TAIL_SIZE
        out[F_BODY, row] = at
        out[F_BODY_SIZE, row] = body
        if with_crc:
            good = body_crc(data, at, body) == read_i32(data, start + CRC)
            out[F_CRC_OK, row] = good
            odd[O_BAD_CRC] += not good
        at += body
        if read_i32(data, start + MAGIC) == MAGIC_V2:
            out[F_VERSION, row] = 2
            topic = read_i16(data, at)
            at += TOPIC_SIZE_V2
        else:
            out[F_VERSION, row] = 1
            topic = read_i8(data, at)
            at += TOPIC_SIZE_V1
        out[F_TOPIC, row] = at
        out[F_TOPIC_SIZE, row] = topic
        at += topic
        out[F_PROPERTIES_SIZE, row] = read_i16(data, at)
        out[F_PROPERTIES, row] = at + PROPERTIES_SIZE
        out[F_FRAME, row] = frame
        row += 1
    return row, np.int64(data.size), OK


@kernel
def find_entry(data: U8, start: Int) -> Any:
    """The first position from `start` on where a message begins whose parts and checksum are right. -1: none"""
    end = np.int64(data.size)
    position = np.int64(start)
    while end - position >= SMALLEST_V1:
        magic = read_i32(data, position + MAGIC)
        if magic == MAGIC_V1 or magic == MAGIC_V2:  # noqa: SIM109
            size = read_i32(data, position + TOTAL)
            if size >= SMALLEST_V1 and size <= end - position and check_message(data, position, size, magic):
                fixed = FIXED_V4 + hosts_more(read_i32(data, position + SYS_FLAG))
                body = read_i32(data, position + fixed - BODY_LENGTH_BACK)
                if body_crc(data, position + fixed, body) == read_i32(data, position + CRC):
                    ledger = position - DLEDGER_SIZE
                    whole = size + DLEDGER_SIZE
                    if (
                        ledger >= start
                        and read_i32(data, ledger) == DLEDGER_MAGIC
                        and read_i32(data, ledger + DLEDGER_SIZE_AT) == whole
                    ):
                        return ledger
                    return position
        position += 1
    return np.int64(-1)


# ----------------------------------------------------------------------------------------------------------------------
# Messages inside the body of an inner batch.


SIZE, INNER_FLAG, INNER_BODY_LENGTH, INNER_HEAD_SIZE = (
    INNER.at("size"),
    INNER.at("flag"),
    INNER.at("body_length"),
    INNER.size,
)
INNER_PROPERTIES_SIZE = PROPERTIES.size
SMALLEST = INNER.size + PROPERTIES.size
INNER_FIELDS = 7
"""Rows of the array that `unpack_inner` fills, by place."""
I_PARENT, I_NUMBER, I_FLAG, I_BODY, I_BODY_SIZE, I_PROPERTIES, I_PROPERTIES_SIZE = range(INNER_FIELDS)


@kernel
def unpack_inner(
    data: U8, starts: I64, sizes: I64, packed: Bools, properties: I64, properties_sizes: I64, out: OutI64x2
) -> Any:
    """A row for every message: of those that are not packed what is given, of the others each inner one. -> (count, parent, status)"""
    count = 0
    for parent in range(starts.size):
        position, end = np.int64(starts[parent]), np.int64(starts[parent]) + np.int64(sizes[parent])
        if not packed[parent]:
            if count == out.shape[1]:
                return count, parent, FULL
            out[I_PARENT, count] = parent
            out[I_NUMBER, count] = 0
            out[I_BODY, count] = position
            out[I_BODY_SIZE, count] = sizes[parent]
            out[I_PROPERTIES, count] = properties[parent]
            out[I_PROPERTIES_SIZE, count] = properties_sizes[parent]
            count += 1
            continue
        number = 0
        while position < end:
            if count == out.shape[1]:
                return count, parent, FULL
            if end - position < SMALLEST:
                return count, parent, BAD_LENGTH
            size, body = read_i32(data, position + SIZE), read_i32(data, position + INNER_BODY_LENGTH)
            if size < SMALLEST or size > end - position or body < 0 or body > size - SMALLEST:
                return count, parent, BAD_LENGTH
            after = position + INNER_HEAD_SIZE + body
            pairs = read_i16(data, after)
            if pairs != size - SMALLEST - body:
                return count, parent, BAD_LENGTH
            out[I_PARENT, count] = parent
            out[I_NUMBER, count] = number
            out[I_FLAG, count] = read_i32(data, position + INNER_FLAG)
            out[I_BODY, count] = position + INNER_HEAD_SIZE
            out[I_BODY_SIZE, count] = body
            out[I_PROPERTIES, count] = after + INNER_PROPERTIES_SIZE
            out[I_PROPERTIES_SIZE, count] = pairs
            count += 1
            number += 1
            position += size
    return count, starts.size, OK


# The parts of any size, laid into Arrow buffers: one pass over each message, while its bytes are near ----------------------------

# ----------------------------------------------------------------------------------------------------------------------
# Text of messages: where properties have their parts, hosts and message ids as people read them.


BLOCK = 64
ADDRESS_V4, ADDRESS_V6 = HOST_V4.at("port"), HOST_V6.at("port")
HOST_V4_WORDS, HOST_V6_WORDS = HOST_V4.size // 4, HOST_V6.size // 4
KEYS_WORD = int.from_bytes(b"KEYS", "big")
TAGS_WORD = int.from_bytes(b"TAGS", "big")
UNIQUE_WORD = int.from_bytes(b"UNIQ_KEY", "big")
WORD = 8
LOWER_HEX = np.frombuffer(b"0123456789abcdef", np.uint8).astype(np.int64)
HOST_TEXT_V4, HOST_TEXT_V6 = len("255.255.255.255:-2147483648"), len("[" + "ffff:" * 8 + "]:-2147483648")
"""Bytes that a host takes as text at most."""
ID_V4, ID_V6 = 2 * (HOST_V4.size + WORD), 2 * (HOST_V6.size + WORD)
"""Bytes of a message id as text."""


def _plain_masks(data: Any, position: Any) -> tuple[int, int, int]:
    start, ones, twos, high = int(position), 0, 0, 0
    assert 0 <= start <= data.size - BLOCK
    for index, byte in enumerate(data[start : start + BLOCK].tolist()):
        ones |= (byte == NAME_VALUE) << index
        twos |= (byte == PAIR_END) << index
        high |= (byte > 127) << index
    return wrap_i64(ones), wrap_i64(twos), wrap_i64(high)


def _plain_low_bit(mask: Any) -> int:
    return (int(mask) & -int(mask)).bit_length() - 1


def _up_to_low_bit(mask: Any) -> Any:
    """All bits up to the lowest one that is set, itself included."""
    return mask ^ (mask - 1)


def _plain_up_to_low_bit(mask: Any) -> int:
    return int(wrap_i64(_up_to_low_bit(int(mask))))


@cache
def _intrinsics() -> tuple[Any, Any]:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def load_masks(typing: Any, data: Any, position: Any) -> Any:
        """A bit for each of 64 bytes that is the one separator, that is the other, and that is beyond ASCII."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            vector = ir.VectorType(ir.IntType(8), BLOCK)
            pointer = builder.gep(array.data, [arguments[1]], inbounds=True)
            loaded = builder.load(builder.bitcast(pointer, vector.as_pointer()), align=1)
            bits = [
                builder.icmp_signed(kind, loaded, ir.Constant(vector, [mark] * BLOCK))
                for kind, mark in (("==", NAME_VALUE), ("==", PAIR_END), ("<", 0))
            ]
            masks = [builder.bitcast(each, ir.IntType(BLOCK)) for each in bits]
            return context.make_tuple(builder, signature.return_type, masks)

        three = types.UniTuple(types.int64, 3)  # type: ignore[no-untyped-call]
        return three(data, types.int64), codegen

    @intrinsic
    def low_bit(typing: Any, mask: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

        return types.int64(types.int64), codegen

    return load_masks, low_bit


load_masks = twin(_plain_masks, lambda: _intrinsics()[0])
low_bit = twin(_plain_low_bit, lambda: _intrinsics()[1])
up_to_low_bit = twin(_plain_up_to_low_bit, lambda: _up_to_low_bit)


@inline
def masks_of(data: Any, block: Any, end: Any) -> Any:
    """Which bytes of the next 64, as far as they are of the string, are separators or beyond ASCII: a bit each.

    The data, of 64 bytes at least, may end before: then the last 64 are looked at, and those before `block` shifted out.
    """
    if data.size - block >= BLOCK:
        ones, twos, high = load_masks(data, block)
    else:
        shift = block - data.size + BLOCK
        ones, twos, high = load_masks(data, data.size - BLOCK)
        ones >>= shift
        twos >>= shift
        high >>= shift
    left = end - block
    if left < BLOCK:
        inside = ~(np.int64(-1) << left)
        ones &= inside
        twos &= inside
        high &= inside
    return ones, twos, high


@inline
def next_pair(data: Any, end: Any, block: Any, ones: Any, twos: Any) -> Any:
    """Where the next piece of a property string has its two separators. -> (first, second, block, ones, twos, bits beyond ASCII)

    The first is that between name and value, -1 if there is none; the second that after the value, or the end of the string. What is left
    of the masks of a block (`masks_of`) goes from call to call, so that no load waits for the piece before.
    """
    middle, beyond = np.int64(-1), np.int64(0)
    while True:
        if middle < 0 and ones != 0:
            middle = block + low_bit(ones)
        if twos != 0:
            stop, after = block + low_bit(twos), ~up_to_low_bit(twos)
            return (middle if middle < stop else np.int64(-1)), stop, block, ones & after, twos & after, beyond
        block += BLOCK
        if block >= end:
            return middle, end, block, ones, twos, beyond
        ones, twos, high = masks_of(data, block, end)
        beyond |= high


@inline
def name_word(data: Any, name: Any, size: Any) -> Any:
    """The first bytes of a name, at most eight, as a big-endian number."""
    if data.size - name >= WORD:
        word = read_i64(data, name)
        return word if size >= WORD else word >> (8 * (WORD - size))
    word = np.int64(0)
    for index in range(min(size, WORD)):
        word = (word << 8) | np.int64(data[name + index])
    return word


@inline
def put_decimal(out: Any, at: Any, value: Any) -> Any:
    """Write a number that is not negative; the position after it."""
    digits, rest = 1, value
    while rest >= 10:
        rest //= 10
        digits += 1
    for index in range(digits):
        out[at + digits - 1 - index] = 48 + value % 10
        value //= 10
    return at + digits


@inline
def put_group(out: Any, at: Any, value: Any) -> Any:
    """Write a 16-bit number in hex without leading zeros; the position after it."""
    shift = 12
    while shift > 0 and (value >> shift) == 0:
        shift -= 4
    while shift >= 0:
        out[at] = LOWER_HEX[(value >> shift) & 15]
        at += 1
        shift -= 4
    return at


@kernel
def put_host(out: OutU8, at: Int, data: U8, position: Int, wide: Int) -> Any:
    """Write address and port as Java does; the position after it."""
    if wide:
        out[at] = 91
        at += 1
        for group in range(8):
            if group:
                out[at] = 58
                at += 1
            at = put_group(out, at, read_u16(data, position + 2 * group))
        out[at] = 93
        at += 1
        port = read_i32(data, position + ADDRESS_V6)
    else:
        for index in range(ADDRESS_V4):
            if index:
                out[at] = 46
                at += 1
            at = put_decimal(out, at, np.int64(data[position + index]))
        port = read_i32(data, position + ADDRESS_V4)
    out[at] = 58
    at += 1
    if port < 0:
        out[at] = 45
        at += 1
        port = -port
    return put_decimal(out, at, port)


@inline
def hex_digits(value: Any) -> Any:
    """A number of 32 bits as eight upper-case hex digits: the big-endian number of their characters."""
    value = (value | value << 16) & 0x0000FFFF0000FFFF
    value = (value | value << 8) & 0x00FF00FF00FF00FF
    value = (value | value << 4) & 0x0F0F0F0F0F0F0F0F
    letters = ((value + 0x0606060606060606) >> 4) & 0x0101010101010101
    return value + 0x3030303030303030 + letters * 7


@inline
def put_id(out: Any, at: Any, data: Any, position: Any, wide: Any, physical: Any) -> Any:
    """Write a message id, store host and physical offset in hex; the position after it."""
    for index in range(HOST_V6_WORDS if wide else HOST_V4_WORDS):
        write_i64(out, at, hex_digits(read_u32(data, position + 4 * index)))
        at += WORD
    write_i64(out, at, hex_digits((physical >> 32) & 0xFFFFFFFF))
    write_i64(out, at + WORD, hex_digits(physical & 0xFFFFFFFF))
    return at + 2 * WORD


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
def same(data: Any, first: Any, second: Any, size: Any) -> Any:
    """Whether two runs of bytes are equal."""
    for index in range(size):  # noqa: SIM110
        if data[first + index] != data[second + index]:
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
def put_cached_host(
    out: Any, end: Any, data: Any, at: Any, wide: Any, cached: Any, cached_at: Any, cached_size: Any
) -> Any:
    """A host as text, copied if it is the known one. -> (end, known, known_at, known_size)

    What is copied is the first such text, never the last: a load from bytes still on their way to memory has to wait.
    """
    word = read_i64(data, np.int64(at))
    if not wide and cached_size and word == cached:
        copy32(out, end, out, cached_at)
        return end + cached_size, cached, cached_at, cached_size
    stop = put_host(out, end, data, np.int64(at), wide)
    if wide:
        return stop, cached, cached_at, cached_size
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
    keep_all: Bool,
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

    With `keep_all` all properties are taken, an absent value as a null; else those of RocketMQ's own parser, of a repeated name the last.
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
            born_end, born_word, born_at, born_size = put_cached_host(
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
            store_end, store_word, store_at, store_size = put_cached_host(
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
            elif not keep_all or (size == 0 and value_size < 0):
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
            if again != 0 and not keep_all:
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
