"""Intervals have the arithmetic of sets of numbers."""

from __future__ import annotations

import pickle
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rawlog.model.outline import Intervals

RANGES = st.lists(st.tuples(st.integers(-20, 40), st.integers(-20, 40)), max_size=8)


def numbers(ranges: list[tuple[int, int]] | Intervals) -> set[int]:
    return {number for start, stop in ranges for number in range(start, stop)}


@given(RANGES, RANGES)
def test_their_arithmetic_is_that_of_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    mine, others = Intervals(a), Intervals(b)
    assert numbers(mine) == numbers(a)
    assert mine.total == len(numbers(a))
    assert numbers(mine.union(b)) == numbers(a) | numbers(b)
    assert numbers(mine.intersection(others)) == numbers(a) & numbers(b)
    assert numbers(mine.subtract(b)) == numbers(a) - numbers(b)
    assert Intervals.closed((start, stop - 1) for start, stop in a) == mine
    assert pickle.loads(pickle.dumps(mine)) == mine
    assert all(before[1] < after[0] for before, after in pairwise(mine))


@given(RANGES, st.integers(-20, 40), st.integers(-20, 40))
def test_around_a_range_are_those_that_have_a_number_of_it(a: list[tuple[int, int]], start: int, stop: int) -> None:
    around = [one for one in Intervals(a) if numbers([one]) & set(range(start, stop))]
    assert list(Intervals(a).around(start, stop)) == around


def test_ranges_are_subtracted() -> None:
    assert Intervals([(0, 10), (20, 30)]).subtract([(3, 5), (8, 22)]) == ((0, 3), (5, 8), (22, 30))
    assert Intervals([(0, 10)]).subtract([(0, 10)]) == ()
