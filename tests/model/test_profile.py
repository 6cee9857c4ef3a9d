"""Profiles: those of parts, merged, are that of the whole; sketches stay within their bounds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rawlog.reading.profile import (
    BUCKETS,
    GAPS,
    Distinct,
    Frequent,
    Offsets,
    Series,
    Sizes,
)

CUTS = st.lists(st.integers(0, 60), max_size=4)
TIMES = st.lists(st.integers(0, 1 << 52), max_size=60)


def parts(values: list, cuts: list[int]) -> list[list]:
    edges = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    return [values[a:b] for a, b in pairwise(edges)]


@given(times=TIMES, cuts=CUTS)
def test_a_series_of_parts_is_that_of_the_whole(times: list[int], cuts: list[int]) -> None:
    def series(some: list[int]) -> Series:
        made = Series()
        made.add(np.array(some, np.int64), np.array([one % 1000 for one in some], np.int64))
        return made

    whole, merged = series(times), Series()
    for part in parts(times, cuts):
        merged.merge(series(part))
    assert merged.rows() == whole.rows()
    assert merged.level == whole.level
    assert sum(count for _, count, _ in whole.rows()) == len(times)


def test_a_series_has_few_buckets_and_one_old_record_does_not_widen_them() -> None:
    times = np.arange(100_000, dtype=np.int64) * 50_000 + 1_700_000_000_000_000
    made = Series()
    made.add(np.concatenate([[0], times]), np.ones(100_001, np.int64))
    assert len(made.rows()) <= BUCKETS
    assert made.width < 70, "100,000 records of 5,000 seconds"
    near, far = made.usual()
    assert far == 1
    assert near.rows()[0][0] > 1_600_000_000_000_000


@given(sizes=st.lists(st.integers(0, 1 << 40), max_size=60), cuts=CUTS)
def test_sizes_of_parts_are_those_of_the_whole(sizes: list[int], cuts: list[int]) -> None:
    whole, merged = Sizes(), Sizes()
    whole.add(np.array(sizes, np.int64))
    for part in parts(sizes, cuts):
        one = Sizes()
        one.add(np.array(part, np.int64))
        merged.merge(one)
    assert merged.rows() == whole.rows()
    assert (merged.total, merged.largest) == (whole.total, whole.largest)
    for low, high, count in whole.rows():
        assert count == sum(low <= one <= high for one in sizes)


@given(things=st.lists(st.integers(0, 30), max_size=200), cuts=CUTS, most=st.integers(1, 12))
def test_frequent_things_are_within_their_bounds(things: list[int], cuts: list[int], most: int) -> None:
    merged = Frequent(most)
    for part in parts(things, cuts):
        one = Frequent(most)
        for thing in part:
            one.add([thing], [1])
        merged.merge(one)
    assert merged.total == len(things)
    assert len(merged.counts) <= most
    assert merged.missed <= len(things) / (most + 1) * 2 + len(cuts) + 1
    for thing in range(31):
        true, said = things.count(thing), merged.counts.get(thing, 0)
        assert true - merged.missed <= said <= true


@given(rows=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), max_size=60), cuts=CUTS)
def test_gaps_of_parts_are_those_of_the_whole(rows: list[tuple[int, int]], cuts: list[int]) -> None:
    starts, stops, at = [], [], 0
    for skip, size in rows:
        starts.append(at + skip)
        at += skip + size
        stops.append(at)
    frames = list(zip(starts, stops, strict=True))

    def offsets(some: list[tuple[int, int]]) -> Offsets:
        made = Offsets()
        a, b = (np.array([one[side] for one in some], np.int64) for side in (0, 1))
        made.add(a, b, a * 1000, b * 1000)
        return made

    whole, merged = offsets(frames), Offsets()
    for part in parts(frames, cuts):
        merged.merge(offsets(part))
    assert (merged.start, merged.stop, merged.count, merged.missing) == (
        whole.start,
        whole.stop,
        whole.count,
        whole.missing,
    )
    assert merged.largest() == whole.largest()
    assert len(whole.largest()) <= GAPS
    assert whole.missing == sum(skip for skip, _ in rows[1:])


def test_distinct_is_about_right_and_merges() -> None:
    for count in (0, 10, 1000, 200_000):
        hashes = np.random.default_rng(count).integers(0, 1 << 32, count)
        whole, first, second = Distinct(), Distinct(), Distinct()
        whole.add(hashes)
        first.add(hashes[: count // 2])
        second.add(hashes[count // 3 :])
        first.merge(second)
        assert (first.registers == whole.registers).all()
        assert abs(whole.count - len(set(hashes.tolist()))) <= 0.06 * count + 1
