"""Text of messages: properties into the buffers of maps and headers, hosts and message ids as people read them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.rocketmq.layouts import HOST_V4, HOST_V6, NAME_VALUE, PAIR_END
from rawlog.kernels import JIT, inline, kernel
from rawlog.kernels.gather import copy
from rawlog.kernels.ints import read_i32, read_i64, read_u16, write_i16, write_i64
from rawlog.status import FULL, OK

BLOCK = 32
ADDRESS_V4, ADDRESS_V6 = HOST_V4.at("port"), HOST_V6.at("port")
HOST_V4_SIZE, HOST_V6_SIZE = HOST_V4.size, HOST_V6.size
KEYS_WORD = int.from_bytes(b"KEYS", "big")
TAGS_WORD = int.from_bytes(b"TAGS", "big")
UNIQUE_WORD = int.from_bytes(b"UNIQ_KEY", "big")
MARKS_MORE = 8
SPECIAL = 6
"""Rows of the array for the well-known properties: start and size of KEYS, TAGS, UNIQ_KEY."""
S_KEYS, S_KEYS_SIZE, S_TAGS, S_TAGS_SIZE, S_UNIQUE, S_UNIQUE_SIZE = range(SPECIAL)
HEX = np.array([int.from_bytes(b"%02X" % byte, "big") for byte in range(256)], np.int64)
"""Two hex digits a byte, as the big-endian number of their characters."""
LOWER_HEX = np.frombuffer(b"0123456789abcdef", np.uint8).astype(np.int64)
LARGEST_HOST = 56
"""Bytes that a host takes as text at most."""


def _plain_mask(data: Any, position: Any) -> int:
    mask = 0
    for index, byte in enumerate(data[int(position) : int(position) + BLOCK].tolist()):
        mask |= (byte in (NAME_VALUE, PAIR_END)) << index
    return mask


def _plain_low_bit(mask: Any) -> int:
    return (int(mask) & -int(mask)).bit_length() - 1


def _plain_count_bits(mask: Any) -> int:
    return int(mask).bit_count()


def _intrinsics() -> tuple[Any, Any, Any]:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def mask_separators(typing: Any, data: Any, position: Any) -> Any:
        """A bit for each of 32 bytes that is one of the two separators, 1 and 2."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            vector = ir.VectorType(ir.IntType(8), BLOCK)
            pointer = builder.gep(array.data, [arguments[1]], inbounds=True)
            loaded = builder.load(builder.bitcast(pointer, vector.as_pointer()), align=1)
            first, second = (ir.Constant(vector, [mark] * BLOCK) for mark in (NAME_VALUE, PAIR_END))
            bits = builder.or_(builder.icmp_unsigned("==", loaded, first), builder.icmp_unsigned("==", loaded, second))
            return builder.zext(builder.bitcast(bits, ir.IntType(BLOCK)), ir.IntType(64))

        return types.int64(data, types.int64), codegen

    @intrinsic
    def low_bit(typing: Any, mask: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

        return types.int64(types.int64), codegen

    @intrinsic
    def count_bits(typing: Any, mask: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.ctpop(arguments[0])

        return types.int64(types.int64), codegen

    return mask_separators, low_bit, count_bits


mask_separators, low_bit, count_bits = _intrinsics() if JIT else (_plain_mask, _plain_low_bit, _plain_count_bits)


@inline
def mask_of(data: Any, position: Any, left: Any) -> Any:
    """Which of the next 32 bytes, of which `left` count, are separators: a bit each."""
    if data.size - position >= BLOCK:
        mask = mask_separators(data, position)
        return mask if left >= BLOCK else mask & ((np.int64(1) << left) - 1)
    mask = np.int64(0)
    for index in range(min(left, BLOCK)):
        if data[position + index] == NAME_VALUE or data[position + index] == PAIR_END:
            mask |= np.int64(1) << index
    return mask


@inline
def note_special(data: Any, name: Any, name_size: Any, value: Any, value_size: Any, special: Any, row: Any) -> None:
    """Remember where the value of a well-known property stands; the last of a name counts."""
    if name_size == 4:
        word = read_i32(data, name)
        if word == KEYS_WORD:
            special[S_KEYS, row] = value
            special[S_KEYS_SIZE, row] = value_size
        elif word == TAGS_WORD:
            special[S_TAGS, row] = value
            special[S_TAGS_SIZE, row] = value_size
    elif name_size == 8 and read_i64(data, name) == UNIQUE_WORD:
        special[S_UNIQUE, row] = value
        special[S_UNIQUE_SIZE, row] = value_size


@inline
def same(data: Any, one: Any, other: Any, size: Any) -> Any:
    """Whether two runs of bytes are equal."""
    for index in range(size):  # noqa: SIM110
        if data[one + index] != data[other + index]:
            return False
    return True


@inline
def find_marks(data: Any, start: Any, end: Any, marks: Any) -> Any:
    """Where the separators of one property string stand; their number. Four at a time are noted, needed or not: it saves branches."""
    count, block = np.int64(0), np.int64(start)
    while block < end:
        mask = mask_of(data, block, end - block)
        found = count_bits(mask)
        at = count
        while True:
            for _ in range(4):
                marks[at] = block + low_bit(mask)
                mask &= mask - 1
                at += 1
            if at - count >= found:
                break
        count += found
        block += BLOCK
    return count


@inline
def plain_pairs(
    data: Any, start: Any, end: Any, marks: Any, found: Any, special: Any, row: Any, pairs: Any, first: Any
) -> Any:
    """The pairs of a string whose separators alternate, with names and values between all of them; -1 if they do not, or may repeat."""
    count = (found + 1) >> 1
    if found & 1:
        marks[found] = end  # the last pair lacks its end
    elif found > 0 and marks[found - 1] != end - 1:
        return np.int64(-1)
    if found == 0 or pairs.shape[1] - first < count:
        return np.int64(-1)
    piece, seen = np.int64(start), np.int64(0)
    sound: Any = True
    for index in range(count):
        middle, stop = np.int64(marks[2 * index]), np.int64(marks[2 * index + 1])
        name_size, value_size = middle - piece, stop - middle - 1
        sound = sound and data[middle] == NAME_VALUE and name_size > 0 and value_size > 0
        sound = sound and (stop == end or data[stop] == PAIR_END)
        if not sound:
            return np.int64(-1)
        pairs[0, first + index] = piece
        pairs[1, first + index] = name_size
        pairs[2, first + index] = middle + 1
        pairs[3, first + index] = value_size
        note_special(data, piece, name_size, middle + 1, value_size, special, row)
        mark = np.int64(1) << ((name_size * 7 + np.int64(data[piece])) & 63)
        if seen & mark:
            return np.int64(-1)
        seen |= mark
        piece = stop + 1
    return count


@kernel
def find_pairs(
    data: Any, starts: Any, sizes: Any, every: Any, marks_at: Any, special: Any, row_offsets: Any, pairs: Any
) -> Any:
    """Where the properties of each row stand: rows of `pairs` are name start, name size, value start, value size.

    `every` takes all pieces, an absent value as size -1; else what RocketMQ's own parser takes, of a repeated name the last.
    `marks_at` has room for as many numbers as the longest string has bytes, and MARKS_MORE. Most strings are plain pairs, which go a
    shorter way to the same result.
    -> (count, position, status)
    """
    count = np.int64(0)
    row_offsets[0] = 0
    for row in range(starts.size):
        start, end = np.int64(starts[row]), np.int64(starts[row]) + np.int64(sizes[row])
        special[S_KEYS_SIZE, row] = -1
        special[S_TAGS_SIZE, row] = -1
        special[S_UNIQUE_SIZE, row] = -1
        plain = plain_pairs(
            data, start, end, marks_at, find_marks(data, start, end, marks_at), special, row, pairs, count
        )
        if plain >= 0:
            count += plain
            row_offsets[row + 1] = count
            continue
        special[S_KEYS_SIZE, row] = -1
        special[S_TAGS_SIZE, row] = -1
        special[S_UNIQUE_SIZE, row] = -1
        first, piece, middle, block = count, start, np.int64(-1), start
        seen, again = np.int64(0), False
        while piece < end:
            # The next separators; the end of the string counts as one.
            left = end - block
            marks = mask_of(data, block, left)
            last = left <= BLOCK
            while marks != 0 or (last and piece < end):
                stop = end
                if marks != 0:
                    bit = low_bit(marks)
                    marks &= marks - 1
                    stop = block + bit
                    if data[stop] == NAME_VALUE:
                        if middle < 0:
                            middle = stop
                        continue
                name_size = (middle if middle >= 0 else stop) - piece
                value = middle + 1 if middle >= 0 else stop
                value_size = stop - value if middle >= 0 else np.int64(-1)
                if name_size > 0 and value_size > 0:
                    note_special(data, piece, name_size, value, value_size, special, row)
                if every or (name_size > 0 and value_size > 0):
                    if every and name_size == 0 and value_size < 0:
                        pass  # nothing between two separators
                    else:
                        if count == pairs.shape[1]:
                            return row, start, FULL
                        pairs[0, count] = piece
                        pairs[1, count] = name_size
                        pairs[2, count] = value
                        pairs[3, count] = value_size
                        count += 1
                        mark = (
                            np.int64(1) << ((name_size * 7 + np.int64(data[piece])) & 63)
                            if name_size > 0
                            else np.int64(0)
                        )
                        again = again or (seen & mark) != 0
                        seen |= mark
                piece, middle = stop + 1, np.int64(-1)
            block += BLOCK
        if again and not every:
            kept = first
            for index in range(first, count):
                repeated = False
                for later in range(index + 1, count):
                    size = pairs[1, index]
                    if size == pairs[1, later] and same(
                        data, np.int64(pairs[0, index]), np.int64(pairs[0, later]), size
                    ):
                        repeated = True
                        break
                if not repeated:
                    for field in range(4):
                        pairs[field, kept] = pairs[field, index]
                    kept += 1
            count = kept
        row_offsets[row + 1] = count
    return count, np.int64(data.size), OK


@kernel
def gather_pairs(
    data: Any, pairs: Any, count: Any, name_offsets: Any, names: Any, value_offsets: Any, values: Any, valid: Any
) -> Any:
    """Lay names and values end to end; a value of size -1 is a null in `valid`, which is all ones. -> nulls"""
    name_end, value_end, nulls = np.int64(0), np.int64(0), np.int64(0)
    name_offsets[0] = 0
    value_offsets[0] = 0
    for index in range(count):
        size = np.int64(pairs[1, index])
        copy(names, name_end, data, np.int64(pairs[0, index]), size)
        name_end += size
        name_offsets[index + 1] = name_end
        size = np.int64(pairs[3, index])
        if size >= 0:
            copy(values, value_end, data, np.int64(pairs[2, index]), size)
            value_end += size
        else:
            valid[index >> 3] = valid[index >> 3] & (0xFF ^ (1 << (index & 7)))
            nulls += 1
        value_offsets[index + 1] = value_end
    return nulls


@inline
def put_decimal(out: Any, at: Any, value: Any) -> Any:
    """Write a number that is not negative; the position behind it."""
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
    """Write a 16-bit number in hex without leading zeros; the position behind it."""
    shift = 12
    while shift > 0 and (value >> shift) == 0:
        shift -= 4
    while shift >= 0:
        out[at] = LOWER_HEX[(value >> shift) & 15]
        at += 1
        shift -= 4
    return at


@inline
def put_host(out: Any, at: Any, data: Any, position: Any, wide: Any) -> Any:
    """Write address and port as Java does; the position behind it."""
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


@kernel
def format_hosts(data: Any, positions: Any, flags: Any, mask: Any, offsets: Any, out: Any) -> Any:
    """Hosts as text; one like the row before is copied. `out` has LARGEST_HOST bytes a row and slack. -> bytes written"""
    at, before, before_size = np.int64(0), np.int64(-1), np.int64(0)
    word, wide_before = np.int64(0), False
    offsets[0] = 0
    for row in range(positions.size):
        position, wide = np.int64(positions[row]), (np.int64(flags[row]) & mask) != 0
        now = read_i64(data, position)
        if not wide and not wide_before and before >= 0 and now == word:
            copy(out, at, out, before, before_size)
            before = at
            at += before_size
        else:
            before = at
            at = put_host(out, at, data, position, wide)
            before_size = at - before
        word, wide_before = now, wide
        offsets[row + 1] = at
    return at


@kernel
def format_ids(
    data: Any, positions: Any, flags: Any, mask: Any, physical: Any, scratch: Any, offsets: Any, out: Any
) -> Any:
    """Message ids: store host and physical offset in hex. `scratch` has 8 bytes. -> bytes written"""
    at, before, word = np.int64(0), np.int64(-1), np.int64(0)
    offsets[0] = 0
    for row in range(positions.size):
        wide = (np.int64(flags[row]) & mask) != 0
        position = np.int64(positions[row])
        now = read_i64(data, position)
        if not wide and before >= 0 and now == word:
            copy(out, at, out, before, 2 * HOST_V4_SIZE)
            before = at
            at += 2 * HOST_V4_SIZE
        else:
            before, word = (np.int64(-1) if wide else at), now
            for index in range(HOST_V6_SIZE if wide else HOST_V4_SIZE):
                write_i16(out, at, HEX[data[position + index]])
                at += 2
        write_i64(scratch, 0, np.int64(physical[row]))
        for index in range(8):
            write_i16(out, at, HEX[scratch[index]])
            at += 2
        offsets[row + 1] = at
    return at
