"""Weaving pieces of text into rows, objects and lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.kernels import inline, kernel
from rawlog.kernels.gather import copy, copy_exact
from rawlog.kernels.ints import read_u32_le
from rawlog.kernels.types import I64, U8, Bool, I64x2, Int, OutI64, OutU8
from rawlog.model.status import OK

NULL = np.frombuffer(b"null", np.uint8)
COMMA_MARK = 0x2C


@inline
def put(out: Any, at: Any, literal: Any) -> Any:
    """Write a constant; the position after it."""
    for index in range(literal.size):
        out[at + index] = literal[index]
    return at + literal.size


@kernel
def weave(
    pieces: U8,
    begins: I64x2,
    ends: I64x2,
    literals: U8,
    edges: I64,
    valid: U8,
    out: OutU8,
    at: Int,
    starts: OutI64,
    stops: OutI64,
) -> Any:
    """Write each row as literal, piece, literal, piece … literal; an invalid row is null. -> (count, position, status)

    `begins` and `ends` have a line for each column, `edges` one number more than there are literals. Room: all pieces, and a
    row's literals (at least four bytes) for every row.
    """
    columns, rows = begins.shape
    position = np.int64(at)
    for row in range(rows):
        starts[row] = position
        if not valid[row]:
            position = put(out, position, NULL)
            stops[row] = position
            continue
        for column in range(columns):
            size = edges[column + 1] - edges[column]
            copy(out, position, literals, edges[column], size)
            position += size
            size = ends[column, row] - begins[column, row]
            copy(out, position, pieces, begins[column, row], size)
            position += size
        size = edges[columns + 1] - edges[columns]
        copy(out, position, literals, edges[columns], size)
        position += size
        stops[row] = position
    return rows, position, OK


@kernel
def join(
    pieces: U8,
    begins: I64,
    ends: I64,
    offsets: I64,
    valid: U8,
    opening: Int,
    closing: Int,
    out: OutU8,
    at: Int,
    starts: OutI64,
    stops: OutI64,
) -> Any:
    """Write each row's pieces, those from offsets[row] to offsets[row + 1], between two bytes with commas; an invalid row is null.

    Room: all pieces and a byte for each, and four bytes a row. -> (count, position, status)
    """
    position = np.int64(at)
    for row in range(offsets.size - 1):
        starts[row] = position
        if not valid[row]:
            position = put(out, position, NULL)
            stops[row] = position
            continue
        out[position] = opening
        position += 1
        for item in range(offsets[row], offsets[row + 1]):
            if item > offsets[row]:
                out[position] = COMMA_MARK
                position += 1
            size = ends[item] - begins[item]
            copy_exact(out, position, pieces, begins[item], size)
            position += size
        out[position] = closing
        position += 1
        stops[row] = position
    return offsets.size - 1, position, OK


# ----------------------------------------------------------------------------------------------------------------------
# Writing numbers, truth values and times as text.


INTEGER_SIZE, BOOLEAN_SIZE, TIME_SIZE = 20, 5, 34
MINUTE, HOUR, DAY = 60, 3600, 86400
MILLION = 1_000_000
QUOTE_MARK = 0x22
TRUE = np.frombuffer(b"true", np.uint8)
FALSE = np.frombuffer(b"false", np.uint8)


@inline
def put_digits(out: Any, at: Any, value: Any, width: Any) -> Any:
    """Write a number that is not negative with at least `width` digits."""
    digits = np.int64(1)
    rest = value // 10
    while rest > 0:
        digits += 1
        rest //= 10
    if digits < width:
        digits = np.int64(width)
    place = at + digits
    rest = value
    while place > at:
        place -= 1
        out[place] = 0x30 + rest % 10
        rest //= 10
    return at + digits


@inline
def put_integer(out: Any, at: Any, value: Any) -> Any:
    """Write a number of 64 bits."""
    if value >= 0:
        return put_digits(out, at, value, 1)
    out[at] = 0x2D
    # The smallest number has no positive twin: its last digit is taken off first.
    last = (10 - value % 10) % 10
    rest = -((value + last) // 10)
    at += 1
    if rest > 0:
        at = put_digits(out, at, rest, 1)
    out[at] = 0x30 + last
    return at + 1


@kernel
def write_integers(values: I64, valid: U8, null: U8, out: OutU8, at: Int, starts: OutI64, stops: OutI64) -> Any:
    """Write int64 numbers. Room: INTEGER_SIZE and the size of `null` a row. -> (count, position, status)"""
    position = np.int64(at)
    for row in range(values.size):
        starts[row] = position
        position = put_integer(out, position, np.int64(values[row])) if valid[row] else put(out, position, null)
        stops[row] = position
    return values.size, position, OK


@kernel
def write_booleans(values: U8, valid: U8, null: U8, out: OutU8, at: Int, starts: OutI64, stops: OutI64) -> Any:
    """Write true and false. Room: BOOLEAN_SIZE and the size of `null` a row. -> (count, position, status)"""
    position = np.int64(at)
    for row in range(values.size):
        starts[row] = position
        if not valid[row]:
            position = put(out, position, null)
        elif values[row]:
            position = put(out, position, TRUE)
        else:
            position = put(out, position, FALSE)
        stops[row] = position
    return values.size, position, OK


@inline
def put_time(out: Any, at: Any, microseconds: Any) -> Any:
    """ISO 8601 in UTC with three or six fraction digits; a year outside 0001 to 9999 with its sign and six digits."""
    seconds = microseconds // MILLION
    fraction = microseconds % MILLION
    days = seconds // DAY
    second = seconds - days * DAY
    # Days to a date of the Gregorian calendar, by eras of 400 years that begin on the first of March.
    shifted = days + 719468
    era = shifted // 146097
    day_of_era = shifted - era * 146097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    year = year_of_era + era * 400
    if month <= 2:
        year += 1
    if 1 <= year <= 9999:
        at = put_digits(out, at, year, 4)
    else:
        out[at] = 0x2B if year >= 0 else 0x2D
        at = put_digits(out, at + 1, year if year >= 0 else -year, 6)
    out[at] = 0x2D
    at = put_digits(out, at + 1, month, 2)
    out[at] = 0x2D
    at = put_digits(out, at + 1, day, 2)
    out[at] = 0x54
    at = put_digits(out, at + 1, second // HOUR, 2)
    out[at] = 0x3A
    at = put_digits(out, at + 1, second // MINUTE % 60, 2)
    out[at] = 0x3A
    at = put_digits(out, at + 1, second % MINUTE, 2)
    out[at] = 0x2E
    whole = fraction % 1000 == 0
    at = put_digits(out, at + 1, fraction // 1000 if whole else fraction, 3 if whole else 6)
    out[at] = 0x5A
    return at + 1


@kernel
def write_times(
    values: I64, valid: U8, quoted: Bool, null: U8, out: OutU8, at: Int, starts: OutI64, stops: OutI64
) -> Any:
    """Write microseconds since 1970 as ISO 8601, in quotes or not. -> (count, position, status)

    Room: TIME_SIZE and the size of `null` a row.
    """
    position = np.int64(at)
    for row in range(values.size):
        starts[row] = position
        if not valid[row]:
            position = put(out, position, null)
        else:
            if quoted:
                out[position] = QUOTE_MARK
                position += 1
            position = put_time(out, position, np.int64(values[row]))
            if quoted:
                out[position] = QUOTE_MARK
                position += 1
        stops[row] = position
    return values.size, position, OK


# ----------------------------------------------------------------------------------------------------------------------
# Writing bytes as text: JSON strings, base64, hex, escapes and fields of CSV.
# Like the kernels of `digits`, `write_text` writes one column into `out` from `at` on and says for each row where its text begins and
# ends; those of `weave` copy such pieces into rows. `rawlog.reading.render` makes the room (each docstring gives the bound) and decides
# what is written how; `rawlog.reading.render.plain_json` is the slow twin that gives the same text.


# What `write_text` makes of bytes.
JSON = 0  # a JSON string; what is not UTF-8 as {"base64":"…"}
PLAIN = 1  # the bytes as they are; what is not UTF-8 as {"base64":"…"}
RAW = 2  # the bytes as they are, always
BASE64 = 3
BASE64_RAW = 4  # without padding
HEX = 5
ESCAPE = 6  # printable ASCII as it is, a backslash doubled, all else \xNN
CSV = 7  # the bytes, in quotes if they need them
JSON_BASE64 = 8  # these three the same inside a JSON string
JSON_HEX = 9
JSON_ESCAPE = 10

#: For a value of n bytes `write_text` writes at most TEXT_RATE * n + TEXT_EXTRA bytes.
TEXT_RATE, TEXT_EXTRA = 6, 24

HEX_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
BASE64_DIGITS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
BASE64_OPEN = np.frombuffer(b'{"base64":"', np.uint8)
QUOTE, BACKSLASH, COMMA, EQUALS, SPACE = 0x22, 0x5C, 0x2C, 0x3D, 0x20


@inline
def plain_until(data: Any, start: Any, stop: Any) -> Any:
    """The first position from `start` on whose byte is not printable ASCII, or is a quote or a backslash; else `stop`."""
    position = np.int64(start)
    while stop - position >= 4:
        word = read_u32_le(data, position)
        if word & 0x80808080:
            break
        # In each byte's top bit: at least 0x20; not a quote; not a backslash; not 0x7f. Nothing carries over.
        good = (word + 0x60606060) & ((word ^ 0x22222222) + 0x7F7F7F7F) & ((word ^ 0x5C5C5C5C) + 0x7F7F7F7F)
        if (good & ~(word + 0x01010101)) & 0x80808080 != 0x80808080:
            break
        position += 4
    while position < stop:
        byte = np.int64(data[position])
        if byte < 0x20 or byte > 0x7E or byte in (QUOTE, BACKSLASH):
            break
        position += 1
    return position


@inline
def character_at(data: Any, position: Any, stop: Any) -> Any:
    """The character that begins with a byte above 0x7f. -> (size, code point); size 0 if it is not UTF-8."""
    lead = np.int64(data[position])
    left = stop - position
    if lead < 0xC2 or lead > 0xF4 or left < 2:
        return 0, 0
    second = np.int64(data[position + 1])
    if second & 0xC0 != 0x80:
        return 0, 0
    if lead < 0xE0:
        return 2, (lead & 0x1F) << 6 | second & 0x3F
    if left < 3:
        return 0, 0
    third = np.int64(data[position + 2])
    if third & 0xC0 != 0x80:
        return 0, 0
    if lead < 0xF0:
        code = (lead & 0x0F) << 12 | (second & 0x3F) << 6 | third & 0x3F
        if code < 0x800 or 0xD800 <= code <= 0xDFFF:
            return 0, 0
        return 3, code
    if left < 4:
        return 0, 0
    fourth = np.int64(data[position + 3])
    code = (lead & 0x07) << 18 | (second & 0x3F) << 12 | (third & 0x3F) << 6 | fourth & 0x3F
    if fourth & 0xC0 != 0x80 or code < 0x10000 or code > 0x10FFFF:
        return 0, 0
    return 4, code


@inline
def is_hidden(code: Any) -> Any:
    """Whether a character steers a terminal or the direction of text: C1, line separators, bidirectional controls."""
    return (
        code < 0xA0
        or code == 0x061C
        or code == 0x200E
        or code == 0x200F
        or 0x2028 <= code <= 0x202E
        or 0x2066 <= code <= 0x2069
    )


@inline
def put_unicode(out: Any, at: Any, code: Any) -> Any:
    """Write a character below 0x10000 as \\uNNNN."""
    out[at] = BACKSLASH
    out[at + 1] = 0x75
    for index in range(4):
        out[at + 2 + index] = HEX_DIGITS[code >> (12 - 4 * index) & 0xF]
    return at + 6


@inline
def put_escape(out: Any, at: Any, byte: Any) -> Any:
    """Write an ASCII character that a JSON string cannot hold as it is."""
    short = np.int64(0)
    if byte in (QUOTE, BACKSLASH):
        short = byte
    elif byte == 0x0A:
        short = np.int64(0x6E)
    elif byte == 0x0D:
        short = np.int64(0x72)
    elif byte == 0x09:
        short = np.int64(0x74)
    elif byte == 0x08:
        short = np.int64(0x62)
    elif byte == 0x0C:
        short = np.int64(0x66)
    if short == 0:
        return put_unicode(out, at, byte)
    out[at] = BACKSLASH
    out[at + 1] = short
    return at + 2


@inline
def put_json(out: Any, at: Any, data: Any, start: Any, stop: Any) -> Any:
    """Write a JSON string. -> the position after it, or -1 if the bytes are not UTF-8"""
    out[at] = QUOTE
    at += 1
    position = np.int64(start)
    while position < stop:
        run = plain_until(data, position, stop)
        if run > position:
            copy(out, at, data, position, run - position)
            at += run - position
            position = run
            if position == stop:
                break
        byte = np.int64(data[position])
        if byte < 0x80:
            at = put_escape(out, at, byte)
            position += 1
            continue
        size, code = character_at(data, position, stop)
        if size == 0:
            return np.int64(-1)
        if is_hidden(code):
            at = put_unicode(out, at, code)
        else:
            for index in range(size):
                out[at + index] = data[position + index]
            at += size
        position += size
    out[at] = QUOTE
    return at + 1


@inline
def is_utf8(data: Any, start: Any, stop: Any) -> Any:
    """Whether a run of bytes is UTF-8."""
    position = np.int64(start)
    while position < stop:
        if data[position] < 0x80:
            position += 1
            continue
        size, _ = character_at(data, position, stop)
        if size == 0:
            return False
        position += size
    return True


@inline
def put_base64(out: Any, at: Any, data: Any, start: Any, stop: Any, padded: Any) -> Any:
    """Write base64, padded or not."""
    position = np.int64(start)
    while stop - position >= 3:
        bits = np.int64(data[position]) << 16 | np.int64(data[position + 1]) << 8 | np.int64(data[position + 2])
        out[at] = BASE64_DIGITS[bits >> 18]
        out[at + 1] = BASE64_DIGITS[bits >> 12 & 0x3F]
        out[at + 2] = BASE64_DIGITS[bits >> 6 & 0x3F]
        out[at + 3] = BASE64_DIGITS[bits & 0x3F]
        at += 4
        position += 3
    left = stop - position
    if left > 0:
        bits = np.int64(data[position]) << 16
        if left == 2:
            bits |= np.int64(data[position + 1]) << 8
        out[at] = BASE64_DIGITS[bits >> 18]
        out[at + 1] = BASE64_DIGITS[bits >> 12 & 0x3F]
        at += 2
        if left == 2:
            out[at] = BASE64_DIGITS[bits >> 6 & 0x3F]
            at += 1
        if padded:
            for _ in range(3 - left):
                out[at] = EQUALS
                at += 1
    return at


@inline
def put_base64_object(out: Any, at: Any, data: Any, start: Any, stop: Any) -> Any:
    """Write `{"base64":"…"}`."""
    at = put_base64(out, put(out, at, BASE64_OPEN), data, start, stop, True)
    out[at] = QUOTE
    out[at + 1] = 0x7D
    return at + 2


@inline
def put_hex(out: Any, at: Any, data: Any, start: Any, stop: Any) -> Any:
    """Write two digits a byte."""
    for position in range(start, stop):
        byte = np.int64(data[position])
        out[at] = HEX_DIGITS[byte >> 4]
        out[at + 1] = HEX_DIGITS[byte & 0xF]
        at += 2
    return at


@inline
def put_escaped(out: Any, at: Any, data: Any, start: Any, stop: Any, in_json: Any) -> Any:
    """Printable ASCII as it is, a backslash doubled, all else \\xNN; inside JSON every backslash once more doubled."""
    for position in range(start, stop):
        byte = np.int64(data[position])
        if 0x20 <= byte <= 0x7E and byte != BACKSLASH:
            if in_json and byte == QUOTE:
                out[at] = BACKSLASH
                at += 1
            out[at] = byte
            at += 1
            continue
        for _ in range(2 if in_json else 1):
            out[at] = BACKSLASH
            at += 1
        if byte == BACKSLASH:
            for _ in range(2 if in_json else 1):
                out[at] = BACKSLASH
                at += 1
            continue
        out[at] = 0x78
        out[at + 1] = HEX_DIGITS[byte >> 4]
        out[at + 2] = HEX_DIGITS[byte & 0xF]
        at += 3
    return at


@inline
def put_csv(out: Any, at: Any, data: Any, start: Any, stop: Any) -> Any:
    """A field of CSV: in quotes if it is empty, begins or ends with a space, or holds a quote, a comma or a line's end."""
    needs = stop == start or data[start] == SPACE or data[stop - 1] == SPACE
    for position in range(start, stop):
        byte = data[position]
        if byte in (QUOTE, COMMA, 0x0A, 0x0D):
            needs = True
            break
    if not needs:
        copy(out, at, data, start, stop - start)
        return at + stop - start
    out[at] = QUOTE
    at += 1
    for position in range(start, stop):
        byte = data[position]
        if byte == QUOTE:
            out[at] = QUOTE
            at += 1
        out[at] = byte
        at += 1
    out[at] = QUOTE
    return at + 1


@inline
def put_styled(out: Any, at: Any, data: Any, start: Any, stop: Any, style: Any) -> Any:
    """Write a run of bytes in a style."""
    if style == JSON:
        after = put_json(out, at, data, start, stop)
        return after if after >= 0 else put_base64_object(out, at, data, start, stop)
    if style == CSV:
        return put_csv(out, at, data, start, stop)
    if style == PLAIN and not is_utf8(data, start, stop):
        return put_base64_object(out, at, data, start, stop)
    if style in (PLAIN, RAW):
        copy(out, at, data, start, stop - start)
        return at + stop - start
    quoted = style >= JSON_BASE64
    if quoted:
        out[at] = QUOTE
        at += 1
    if style in (HEX, JSON_HEX):
        at = put_hex(out, at, data, start, stop)
    elif style in (ESCAPE, JSON_ESCAPE):
        at = put_escaped(out, at, data, start, stop, quoted)
    else:
        at = put_base64(out, at, data, start, stop, style != BASE64_RAW)
    if quoted:
        out[at] = QUOTE
        at += 1
    return at


@kernel
def write_text(
    data: U8,
    begins: I64,
    ends: I64,
    valid: U8,
    style: Int,
    null: U8,
    out: OutU8,
    at: Int,
    starts: OutI64,
    stops: OutI64,
) -> Any:
    """Write runs of `data` in a style; an invalid one is `null`. Every run must lie in `data`. -> (count, position, status)

    Room: TEXT_RATE times the bytes of the runs, and TEXT_EXTRA and the size of `null` a row.
    """
    position = np.int64(at)
    for row in range(begins.size):
        starts[row] = position
        if valid[row]:
            position = put_styled(out, position, data, np.int64(begins[row]), np.int64(ends[row]), style)
        else:
            position = put(out, position, null)
        stops[row] = position
    return begins.size, position, OK
