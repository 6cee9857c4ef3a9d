"""The parts of messages that have any size, laid into Arrow buffers: one pass over each message, while its bytes are near."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import numpy as np

from rawlog.formats.rocketmq.kernels.entries import BORN_V6, STORE_V6, body_crc
from rawlog.formats.rocketmq.layouts import HOST_V4, HOST_V6, NAME_VALUE, PAIR_END
from rawlog.kernels import inline, kernel, twin
from rawlog.kernels.gather import SLACK, copy, copy32, copy_exact
from rawlog.kernels.ints import read_i32, read_i64, read_u16, read_u32, wrap_i64, write_i64
from rawlog.kernels.types import U8, AnyI64, Bool, Int, OutBools, OutI32, OutI64, OutU8
from rawlog.model.status import FULL, OK

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
