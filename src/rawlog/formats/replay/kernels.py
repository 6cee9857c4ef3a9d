"""Loops over the entries of recordings."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.replay.layouts import (
    ENTRY_V0,
    ENTRY_V1,
    ENTRY_V2,
    LARGEST,
    NO_TIME_SECONDS,
    TIME_V0_SIZE,
)
from rawlog.kernels import inline, kernel
from rawlog.kernels.gather import copy
from rawlog.kernels.ints import read_i64, write_i64
from rawlog.kernels.types import (
    I32,
    I64,
    U8,
    Int,
    OutBools,
    OutI64,
    OutU8,
)
from rawlog.model.status import (
    BAD_LENGTH,
    BAD_VALUE,
    FULL,
    OK,
    TRUNCATED,
)

KEY_SIZE_V2, VALUE_SIZE_V2, SIZE_V2 = ENTRY_V2.at("key_size"), ENTRY_V2.at("value_size"), ENTRY_V2.size
AFTER_KEY_SIZE_V2 = ENTRY_V2.after("key_size")
TIME_V2, TIME_V1 = ENTRY_V2.at("timestamp"), ENTRY_V1.at("timestamp")
VALUE_SIZE_V1, SIZE_V1 = ENTRY_V1.at("value_size"), ENTRY_V1.size
VALUE_SIZE_V0, SIZE_V0 = ENTRY_V0.at("value_size"), ENTRY_V0.size
# For a search among bytes that may be anything: the years 2000 to 2100. Lengths and zeros would pass for times of 1970.
EARLIEST_PLAUSIBLE, LATEST_PLAUSIBLE = 946_684_800, 4_102_444_800
CHAIN = 3


@inline
def entry_size(data: Any, position: Any, kind: Any) -> Any:
    """The size of the entry at `position`: -1 if it is cut, -2 if a length is invalid."""
    left = data.size - position
    if kind == 2:
        if left >= AFTER_KEY_SIZE_V2:
            key = read_i64(data, position + KEY_SIZE_V2)
            if key < 0 or key > LARGEST:
                return np.int64(-2)
        if left < SIZE_V2:
            return np.int64(-1)
        key = read_i64(data, position + KEY_SIZE_V2)
        value = read_i64(data, position + VALUE_SIZE_V2)
        if value < 0 or value > LARGEST:
            return np.int64(-2)
        size = SIZE_V2 + key + value
    else:
        fixed = SIZE_V1 if kind == 1 else SIZE_V0
        if left < fixed:
            return np.int64(-1)
        value = read_i64(data, position + (VALUE_SIZE_V1 if kind == 1 else VALUE_SIZE_V0))
        if value < 0 or value > LARGEST:
            return np.int64(-2)
        size = fixed + value
    return np.int64(-1) if left < size else np.int64(size)


@kernel
def scan_entries(data: U8, start: Int, kind: Int, starts: OutI64, stops: OutI64) -> Any:
    """Write where every whole entry from `start` on begins and ends. -> (count, position, status)"""
    count, position, end = 0, np.int64(start), np.int64(data.size)
    while position < end:
        if count == starts.size:
            return count, position, FULL
        size = entry_size(data, position, kind)
        if size == -1:
            return count, position, TRUNCATED
        if size == -2:
            return count, position, BAD_LENGTH
        starts[count] = position
        position += size
        stops[count] = position
        count += 1
    return count, position, OK


@inline
def digits(data: Any, position: Any, count: Any) -> Any:
    """The number that `count` decimal digits spell, -1 if one is not a digit."""
    value = np.int64(0)
    for index in range(count):
        digit = np.int64(data[position + index]) - 48
        if digit < 0 or digit > 9:
            return np.int64(-1)
        value = value * 10 + digit
    return value


@inline
def days_of(year: Any, month: Any, day: Any) -> Any:
    """Days from 1970-01-01 in the proleptic Gregorian calendar."""
    shifted = year - 1 if month <= 2 else year
    era = shifted // 400
    year_of_era = shifted - era * 400
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146097 + day_of_era - 719468


@inline
def days_in_month(year: Any, month: Any) -> Any:
    """28 to 31."""
    if month == 2:
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        return 29 if leap else 28
    return 30 if month in (4, 6, 9, 11) else 31


@inline
def time_v0(data: Any, position: Any) -> Any:
    """Microseconds of the text time at `position`, and whether it is one."""
    year = digits(data, position, 4)
    month, day = digits(data, position + 5, 2), digits(data, position + 8, 2)
    hour, minute = digits(data, position + 11, 2), digits(data, position + 14, 2)
    second, micro = digits(data, position + 17, 2), digits(data, position + 20, 6)
    marks = (
        data[position + 4] == 45
        and data[position + 7] == 45
        and data[position + 10] == 84
        and data[position + 13] == 58
        and data[position + 16] == 58
        and data[position + 19] == 46
        and data[position + 26] == 90
    )
    if not marks or year < 0 or month < 1 or month > 12 or day < 1 or day > days_in_month(year, month):
        return np.int64(0), False
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59 or micro < 0:
        return np.int64(0), False
    seconds = days_of(year, month, day) * 86400 + hour * 3600 + minute * 60 + second
    return seconds * 1000000 + micro, True


@kernel
def read_times_v0(data: U8, starts: I64, out: OutI64, valid: OutBools) -> None:
    """The text times of entries, in microseconds, and which of them are times."""
    for index in range(starts.size):
        out[index], valid[index] = time_v0(data, starts[index])


@inline
def credible(data: Any, position: Any, kind: Any) -> Any:
    """The size of the entry at `position` if it is whole and its time is a likely one; else as entry_size."""
    size = entry_size(data, position, kind)
    if kind == 0:
        if data.size - position >= TIME_V0_SIZE and not time_v0(data, position)[1]:
            return np.int64(-2)
        return size
    if data.size - position >= 8:
        seconds = read_i64(data, position)
        if (seconds < EARLIEST_PLAUSIBLE or seconds > LATEST_PLAUSIBLE) and seconds != NO_TIME_SECONDS:
            return np.int64(-2)
    return size


@kernel
def find_entry(data: U8, start: Int, kind: Int) -> Any:
    """The first position from `start` on where entries credibly begin: several in a row, or up to the end. -1: none"""
    empty = SIZE_V2 if kind == 2 else (SIZE_V1 if kind == 1 else 0)
    for candidate in range(np.int64(start), np.int64(data.size)):
        position, links, proven = np.int64(candidate), 0, False
        while links <= CHAIN and position < data.size:
            size = credible(data, position, kind)
            if size < 0:
                break
            position += size
            links += 1
            # A length and the zeros after it pass for an entry with neither key nor value: alone it proves nothing.
            proven = proven or size > empty
        if links > CHAIN or (proven and position == data.size):
            return np.int64(candidate)
        if proven and credible(data, position, kind) == -1:
            return np.int64(candidate)
    return np.int64(-1)


@kernel
def measure_entries(kind: Int, key_offsets: I32, value_offsets: I32) -> Any:
    """The size of entries when written. -> (index of one past the limit or -1, size)"""
    total = np.int64(0)
    fixed = SIZE_V2 if kind == 2 else (SIZE_V1 if kind == 1 else SIZE_V0)
    for index in range(value_offsets.size - 1):
        value = np.int64(value_offsets[index + 1]) - value_offsets[index]
        key = np.int64(key_offsets[index + 1]) - key_offsets[index] if kind == 2 else np.int64(0)
        if value > LARGEST or key > LARGEST:
            return index, total
        total += fixed + key + value
    return -1, total


@inline
def put_digits(out: Any, position: Any, count: Any, value: Any) -> None:
    """Write a number with leading zeros."""
    for index in range(count):
        out[position + count - 1 - index] = 48 + value % 10
        value //= 10


@inline
def put_time_v0(out: Any, position: Any, microseconds: Any) -> Any:
    """Write a time as text; whether its year has four digits."""
    seconds = microseconds // 1000000
    days = seconds // 86400
    rest = seconds - days * 86400
    shifted = days + 719468
    era = shifted // 146097
    day_of_era = shifted - era * 146097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    month = month_from_march + (3 if month_from_march < 10 else -9)
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    if year < 0 or year > 9999:
        return False
    put_digits(out, position, 4, year)
    put_digits(out, position + 5, 2, month)
    put_digits(out, position + 8, 2, day_of_year - (153 * month_from_march + 2) // 5 + 1)
    put_digits(out, position + 11, 2, rest // 3600)
    put_digits(out, position + 14, 2, rest // 60 % 60)
    put_digits(out, position + 17, 2, rest % 60)
    put_digits(out, position + 20, 6, microseconds - seconds * 1000000)
    out[position + 4] = 45
    out[position + 7] = 45
    out[position + 10] = 84
    out[position + 13] = 58
    out[position + 16] = 58
    out[position + 19] = 46
    out[position + 26] = 90
    return True


@kernel
def encode_entries(
    kind: Int, times: I64, key_offsets: I32, keys: U8, value_offsets: I32, values: U8, out: OutU8
) -> Any:
    """Write entries end to end; `times` are seconds, microseconds for version 0. -> (count, position, status)"""
    position = np.int64(0)
    for index in range(value_offsets.size - 1):
        value_start = np.int64(value_offsets[index])
        value = np.int64(value_offsets[index + 1]) - value_start
        if kind == 2:
            key_start = np.int64(key_offsets[index])
            key = np.int64(key_offsets[index + 1]) - key_start
            write_i64(out, position + TIME_V2, times[index])
            write_i64(out, position + KEY_SIZE_V2, key)
            write_i64(out, position + VALUE_SIZE_V2, value)
            copy(out, position + SIZE_V2, keys, key_start, key)
            position += SIZE_V2 + key
        elif kind == 1:
            write_i64(out, position + TIME_V1, times[index])
            write_i64(out, position + VALUE_SIZE_V1, value)
            position += SIZE_V1
        else:
            if not put_time_v0(out, position, times[index]):
                return index, position, BAD_VALUE
            write_i64(out, position + VALUE_SIZE_V0, value)
            position += SIZE_V0
        copy(out, position, values, value_start, value)
        position += value
    return value_offsets.size - 1, position, OK
