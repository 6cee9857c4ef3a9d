"""When records are due, and how many may be sent at a time. The clock is the test's own."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rawlog.live.sending import Histogram, Schedule
from rawlog.model.errors import OptionError
from rawlog.model.text import parse_duration


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def played(schedule: Schedule, clock: Clock, due: np.ndarray, stalls: random.Random | None = None) -> list[float]:
    """The times at which rows were sent, on a clock that now and then stops for the sender."""
    sent: list[float] = []
    for start, stop in schedule.ticks(due):
        while (wait := schedule.wait(due[start:stop])) > 0:
            clock.now += max(wait, 1e-6)
        schedule.sent(due[start:stop])
        sent += [clock.now] * (stop - start)
        clock.now += 0.0005
        if stalls is not None and stalls.random() < 0.01:
            clock.now += stalls.uniform(0, 0.2)
    assert len(sent) == due.size
    return sent


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_rate_is_even_and_never_exceeded_by_much(seed: int | None) -> None:
    clock = Clock()
    schedule = Schedule(rate=1000, clock=clock)
    due = schedule.due(np.zeros(10_000, np.int64), np.ones(10_000, np.bool_))
    sent = np.array(played(schedule, clock, due, None if seed is None else random.Random(seed)))
    assert 10 / 1.01 <= sent[-1] - sent[0] <= (10 * 1.01 if seed is None else 12)
    in_window = np.searchsorted(sent, sent + 0.1, side="left") - np.arange(sent.size)
    assert in_window.max() <= 120


@pytest.mark.parametrize("rate", [30.0, 1000.0, 50_000.0])
def test_a_rate_is_reached_also_where_acknowledgements_take_long(rate: float) -> None:
    """With ticks of 30 ms only three fitted into each 100 ms: 900 records per second where 1,000 were asked for."""
    clock = Clock()
    schedule = Schedule(rate=rate, clock=clock)
    for _ in range(1000):
        schedule.acknowledged(1.0, 5)
    count = int(10 * rate)
    sent = played(schedule, clock, schedule.due(np.zeros(count, np.int64), np.ones(count, np.bool_)))
    assert 9.5 <= sent[-1] - sent[0] <= 10.1
    assert schedule.most_in_window <= max(1.2 * rate / 10, 1)


def test_the_recorded_pace_is_kept_and_can_be_faster() -> None:
    clock = Clock()
    schedule = Schedule(speed=10, clock=clock)
    times = np.cumsum(np.random.default_rng(1).integers(0, 400, 5000))
    due = schedule.due(times + 1_700_000_000_000_000, np.ones(5000, np.bool_))
    np.testing.assert_allclose(due, (times - times[0]) / 1e7)
    played(schedule, clock, due)
    assert schedule.errors.percentile(0.99) < 5


def test_times_that_go_back_or_are_missing_are_due_with_the_row_before() -> None:
    schedule = Schedule()
    due = schedule.due(np.array([1_000_000, 3_000_000, 2_000_000, 0]), np.array([True, True, True, False]))
    assert due.tolist() == [0, 2, 2, 2]
    assert schedule.due(np.array([4_000_000]), np.array([True])).tolist() == [3]


def test_percentiles() -> None:
    found = Histogram()
    found.add(np.arange(1000) / 10)
    assert found.percentile(0.5) == pytest.approx(50, abs=0.2)
    assert found.percentile(0.99) == pytest.approx(99, abs=0.2)
    assert found.summary()["max"] == 99.9
    assert not Histogram()


def test_durations() -> None:
    assert [parse_duration(text) for text in ("30", "30s", "5m", "1h30m", "500ms")] == [30, 30, 300, 5400, 0.5]
    with pytest.raises(OptionError):
        parse_duration("soon")
