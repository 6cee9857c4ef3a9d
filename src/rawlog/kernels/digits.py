"""Writing numbers, truth values and times as text."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.core.status import OK
from rawlog.kernels import inline, kernel
from rawlog.kernels.types import I64, U8, Bool, Int, OutI64, OutU8
from rawlog.kernels.weave import put

INTEGER_SIZE, BOOLEAN_SIZE, TIME_SIZE = 20, 5, 34
MINUTE, HOUR, DAY = 60, 3600, 86400
MILLION = 1_000_000
QUOTE = 0x22
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
                out[position] = QUOTE
                position += 1
            position = put_time(out, position, np.int64(values[row]))
            if quoted:
                out[position] = QUOTE
                position += 1
        stops[row] = position
    return values.size, position, OK
