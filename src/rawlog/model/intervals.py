"""Ranges of offsets: rows of a first and a last one, in order. What is between them is what is missing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ranges = NDArray[np.int64]


def clipped(rows: Ranges, start: int, stop: int) -> Ranges:
    """Ranges, cut at two offsets."""
    made = np.stack([np.maximum(rows[:, 0], start), np.minimum(rows[:, 1], stop - 1)], axis=1)
    return made[made[:, 0] <= made[:, 1]]


def between(rows: Ranges, start: int, stop: int) -> Ranges:
    """What is between ranges that are in order of their first offsets, from `start` to `stop`."""
    reached = np.maximum.accumulate(np.concatenate(([start - 1], rows[:, 1])))
    begins = np.concatenate((rows[:, 0], [stop]))
    made = np.stack([reached + 1, begins - 1], axis=1)
    return made[made[:, 0] <= made[:, 1]]


def total(rows: Ranges) -> int:
    """How many offsets are in ranges that do not overlap."""
    return int((rows[:, 1] - rows[:, 0] + 1).sum())
