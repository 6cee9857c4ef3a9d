"""Logs that have the records of several topics in any order, compared by the place of each record and a checksum for each column.

The checksum of bytes is a pair of 32-bit ones with different polynomials, so that different bytes look equal once in 2^64.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rawlog.core.difference import (
    CHANGES,
    DIFFERS,
    ONLY_A,
    ONLY_B,
    SAME,
    Change,
    Difference,
    Tally,
    runs_of,
    shown_values,
)
from rawlog.io.checksums import crc32_spans, crc32c_spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rawlog.core.difference import Stream

Names = dict[tuple[str | None, int | None], int]
#: Offsets that stay together when a log is compared in several passes.
BLOCK = 1 << 16
NULL, NOT_NULL = 1, 2


@dataclass(frozen=True, slots=True)
class _Side:
    """The records of one side, sorted by group, offset and order in the stream."""

    group: NDArray[np.int64]
    offset: NDArray[np.int64]
    again: NDArray[np.int64]
    prints: NDArray[np.int64]


def compare_mixed(
    a: Stream, b: Stream, columns: tuple[str, ...], tally: Tally, what: str, split: tuple[int, int] = (0, 1)
) -> None:
    """Add to `tally` the differences between two streams of records (topic, partition, offset, `columns`), whatever their order.

    `split` is (number, count): only that part of the records is compared, so that several passes need less memory than one.
    """
    names: Names = {}
    one, other = (_side(stream, columns, names, split) for stream in (a, b))
    group, offset, again = (
        np.concatenate((getattr(one, name), getattr(other, name))) for name in ("group", "offset", "again")
    )
    side = np.repeat([0, 1], [one.group.size, other.group.size])
    if not side.size:
        return
    if again.any():
        again = _matched(group, offset, again, side, np.concatenate((one.prints, other.prints), axis=1))
    order = np.lexsort((side, again, offset, group))
    group, offset, again, side = group[order], offset[order], again[order], side[order]
    paired = np.zeros(order.size, np.bool_)  # the first of a pair; its twin is the next
    paired[:-1] = (np.diff(group) == 0) & (np.diff(offset) == 0) & (np.diff(again) == 0)
    twin = np.concatenate(([False], paired[:-1]))
    codes = np.where(paired, SAME, np.where(side == 0, ONLY_A, ONLY_B))
    masks = np.zeros(order.size, np.int64)
    first = order[paired]
    second = order[np.flatnonzero(paired) + 1] - one.group.size
    for bit in range(len(columns)):
        masks[paired] |= (one.prints[bit][first] != other.prints[bit][second]).astype(np.int64) << bit
    codes[masks != 0] = DIFFERS
    _add_runs(tally, what, columns, names, *(part[~twin] for part in (group, offset, codes, masks)))


def _add_runs(
    tally: Tally,
    what: str,
    columns: tuple[str, ...],
    names: Names,
    group: NDArray[np.int64],
    offset: NDArray[np.int64],
    codes: NDArray[np.int64],
    masks: NDArray[np.int64],
) -> None:
    called = [f"{topic}-{partition}" for topic, partition in names]
    for start, stop in runs_of(group, codes, masks):
        code = int(codes[start])
        if code == SAME:
            tally.alike += stop - start
            continue
        if tally.is_full:
            tally.add_runs(codes[start:], masks[start:])
            return
        unlike = tuple(name for bit, name in enumerate(columns) if masks[start] >> bit & 1)
        span = int(offset[start]), int(offset[stop - 1]) + 1
        tally.add(Difference(CHANGES[code], what, called[int(group[start])], *span, stop - start, unlike))


def show_values(a: Stream, b: Stream, tally: Tally) -> None:
    """Put the values of both sides into the listed differences: only checksums were compared, so the streams are read once more."""
    wanted = {
        (one.name, one.start): (at, one.columns)
        for at, one in enumerate(tally.items)
        if one.change is Change.DIFFERS and one.a is None
    }
    if not wanted:
        return
    here, there = (_values(stream, wanted) for stream in (a, b))
    for at, _ in wanted.values():
        # Several records may have one place: the difference is that of the first pair in which all its columns are unlike, without those
        # that have an equal on the other side.
        a_values, b_values = here.get(at, []), there.get(at, [])
        for mine, other in zip(_without(a_values, b_values), _without(b_values, a_values), strict=False):
            if all(mine[name] != other[name] for name in mine):
                tally.items[at] = replace(tally.items[at], a=mine, b=other)
                break


def _without(values: list[dict[str, Any]], others: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The values of records that have no equal among others."""
    equal = Counter(map(repr, others))
    for one in values:
        if equal[repr(one)]:
            equal[repr(one)] -= 1
        else:
            yield one


def _values(
    stream: Stream, wanted: dict[tuple[str, int | None], tuple[int, tuple[str, ...]]]
) -> dict[int, list[dict[str, Any]]]:
    """The values of the records at some places, by the number of the difference, in the order of the stream."""
    found: dict[int, list[dict[str, Any]]] = {}
    offsets = pa.array(sorted({offset for _, offset in wanted if offset is not None}), pa.int64())
    for batch in stream:
        rows = batch.filter(pc.is_in(batch.column("offset"), offsets))
        topic, partition, offset = (rows.column(name).to_pylist() for name in ("topic", "partition", "offset"))
        for row, place in enumerate(zip(topic, partition, offset, strict=True)):
            at, columns = wanted.get((f"{place[0]}-{place[1]}", place[2]), (None, ()))
            if at is not None:
                found.setdefault(at, []).append(shown_values(rows, row, columns))
    return found


def _side(stream: Stream, columns: tuple[str, ...], names: Names, split: tuple[int, int]) -> _Side:
    groups, offsets, prints = [], [], []
    for batch in stream:
        group, salt = _group(batch, names)
        offset = batch.column("offset").to_numpy()
        if split[1] > 1:
            mine = (salt + offset // BLOCK) % split[1] == split[0]
            batch, group, offset = batch.filter(pa.array(mine)), group[mine], offset[mine]
        groups.append(group)
        offsets.append(offset)
        prints.append(_stacked([fingerprint(batch.column(name)) for name in columns], offset.size))
    none = np.empty(0, np.int64)
    group, offset = np.concatenate([none, *groups]), np.concatenate([none, *offsets])
    made = np.concatenate([_stacked([none] * len(columns), 0), *prints], axis=1)
    order = np.lexsort((offset, group))  # stable: the order of coming stays
    group, offset = group[order], offset[order]
    return _Side(group, offset, _repeats(group, offset), made[:, order])


def _stacked(columns: list[NDArray[np.int64]], rows: int) -> NDArray[np.int64]:
    return np.stack(columns) if columns else np.empty((0, rows), np.int64)


def _matched(
    group: NDArray[np.int64],
    offset: NDArray[np.int64],
    again: NDArray[np.int64],
    side: NDArray[np.int64],
    prints: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Instead of how often a place came before: a number that a record shares with the one of the other side that it is compared with.
    Of several records at one place, each is compared with one that is equal; those that are left, in the order in which they come.
    """
    order = np.lexsort((offset, group))
    place = np.empty(order.size, np.int64)
    place[order] = np.cumsum(_repeats(group[order], offset[order]) == 0)
    repeated = np.zeros(order.size + 1, np.bool_)
    repeated[place[again > 0]] = True
    some = np.flatnonzero(repeated[place])
    content, of, here = _mixed(np.ones(some.size, np.bool_), *prints[:, some]), side[some], place[some]
    sort = np.lexsort((of, content, here))
    nth = np.empty(some.size, np.int64)
    nth[sort] = _repeats(here[sort], content[sort], of[sort])
    sort = np.lexsort((of, nth, content, here))
    equal = np.flatnonzero(_repeats(here[sort], content[sort], nth[sort]))
    first, second = some[sort[equal - 1]], some[sort[equal]]
    again = again.copy()
    again[some] = -1
    again[first] = again[second] = first
    left = some[again[some] < 0]
    left = left[np.lexsort((side[left], place[left]))]
    again[left] = order.size + _repeats(place[left], side[left])
    return again


def _repeats(*keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often the same came before, for what is sorted."""
    at = np.arange(keys[0].size)
    new = np.concatenate(([True], np.any([np.diff(key) != 0 for key in keys], axis=0)))[: at.size]
    return at - np.maximum.accumulate(np.where(new, at, 0)) if at.size else at


def _group(batch: pa.RecordBatch, names: Names) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A number for each record's topic and partition, and one that depends on nothing but these two."""
    topic = batch.column("topic").dictionary_encode(null_encoding="encode")
    words = topic.dictionary.to_pylist()
    partition = pc.fill_null(batch.column("partition"), -1).to_numpy().astype(np.int64)
    both = topic.indices.to_numpy().astype(np.int64) << 32 | (partition & 0xFFFF_FFFF)
    known, inverse = np.unique(both, return_inverse=True)
    numbers, salts = [], []
    for one in known.tolist():
        number = (one & 0xFFFF_FFFF) - (1 << 32 if one & 0x8000_0000 else 0)
        name = words[one >> 32], None if number < 0 else number
        numbers.append(names.setdefault(name, len(names)))
        salts.append(zlib.crc32(f"{name}".encode("utf-8", "surrogatepass")))
    return np.array(numbers, np.int64)[inverse], np.array(salts, np.int64)[inverse]


def fingerprint(column: pa.Array) -> NDArray[np.int64]:
    """A number for every value of a column: the same for the same values, another for others."""
    valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
    if pa.types.is_list(column.type):
        return _mixed(valid, *_list_prints(column))
    if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        starts, stops, data = _spans(column)
        return _mixed(valid, _sums(data, starts, stops), stops - starts)
    if pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    return _mixed(valid, pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64))


def _mixed(valid: NDArray[np.bool_], *parts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers made into one; those of what is null count for nothing."""
    with np.errstate(over="ignore"):
        result = np.where(valid, NOT_NULL, NULL).astype(np.uint64)
        for part in parts:
            result = (result ^ np.where(valid, part, 0).astype(np.uint64)) * np.uint64(0x9E37_79B9_7F4A_7C15)
            result ^= result >> np.uint64(29)
        return result.view(np.int64)


def _spans(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Where the bytes of each value begin and end."""
    _, offsets, data = column.buffers()
    at = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
    raw = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return at[:-1], at[1:], raw


def _sums(data: Any, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    return crc32_spans(data, starts, stops) << 32 | crc32c_spans(data, starts, stops)


def _list_prints(column: pa.Array) -> list[NDArray[np.int64]]:
    """The numbers that stand for lists of structures: those of their elements' fields, summed over the list as bytes."""
    values = column.flatten()
    sizes = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    stops = np.cumsum(sizes)
    starts = stops - sizes
    found = [sizes]
    for field in values.flatten() if pa.types.is_struct(values.type) else [values]:
        raw = np.ascontiguousarray(fingerprint(field)).view(np.uint8)
        found.append(_sums(raw, starts * 8, stops * 8))
    return found


__all__ = ["compare_mixed", "fingerprint", "show_values"]
