"""Leader epochs of batches: no checksum covers them. The epoch checkpoint and the batches around outvote one that is out of line.

Epochs never fall along a log. Of the runs of batches with the same epoch, those stay that make the heaviest sequence that never falls; a
batch that agrees with the checkpoint weighs more. A single batch that contradicts the checkpoint while the batches next to it agree
with the checkpoint is wrong too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.log.heads import Heads
from rawlog.formats.kafka.log.layouts import MAGIC_V2, NONE
from rawlog.io.walk import walk
from rawlog.model.errors import RawlogError
from rawlog.model.format import File

MOST_RUNS = 1 << 14
"""Of more runs than this only the last ones are weighed against one another: the work grows with the square."""


@dataclass(slots=True)
class Run:
    """Batches of one epoch that follow one another, by the base offsets of the first and the last."""

    epoch: int
    first: int
    last: int
    count: int


@dataclass(frozen=True, slots=True)
class Correction:
    """The right epoch of the batches whose base offsets are `first` to `last`."""

    first: int
    last: int
    wrong: int
    right: int

    def is_wrong(self, head: Heads) -> NDArray[np.bool_]:
        """Which batches have the wrong epoch."""
        bases, is_new = head["base_offset"], head["magic"] == MAGIC_V2
        inside = (bases >= self.first) & (bases <= self.last) & is_new
        return np.asarray(inside & (head["leader_epoch"] == self.wrong))


class EpochRuns:
    """The leader epochs of a log as they were read."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def add(self, head: Heads) -> None:
        """Take in batches in the order of their offsets. Those without an epoch do not count."""
        known = (head["magic"] == MAGIC_V2) & (head["leader_epoch"] != NONE)
        epochs, bases = head["leader_epoch"][known], head["base_offset"][known]
        if not epochs.size:
            return
        edges = np.concatenate(([0], np.flatnonzero(epochs[1:] != epochs[:-1]) + 1, [epochs.size])).tolist()
        for start, stop in pairwise(edges):
            epoch, first, last = int(epochs[start]), int(bases[start]), int(bases[stop - 1])
            if self.runs and self.runs[-1].epoch == epoch:
                self.runs[-1].last = last
                self.runs[-1].count += stop - start
            else:
                self.runs.append(Run(epoch, first, last, stop - start))

    def join(self, following: EpochRuns) -> None:
        """Take in the batches that follow these."""
        for run in following.runs:
            if self.runs and self.runs[-1].epoch == run.epoch:
                self.runs[-1].last = run.last
                self.runs[-1].count += run.count
            else:
                self.runs.append(replace(run))

    def corrections(self, files: Sequence[File]) -> list[Correction]:
        """Which epochs are wrong, and what they are to be."""
        return self.corrected(epochs_in(tuple(files)))

    def corrected(self, checkpoint: NDArray[np.int64] | Sequence[tuple[int, int]] | None) -> list[Correction]:
        """The same with the rows of the epoch checkpoint, epochs and their first offsets."""
        table = None if checkpoint is None or not len(checkpoint) else np.array(checkpoint, np.int64).reshape(-1, 2)
        if table is not None and ((np.diff(table, axis=0) <= 0).any() or (table < 0).any()):
            table = None
        runs = self.runs
        stated = [_stated(table, one) for one in runs]
        if all(one.epoch >= 0 for one in runs) and all(before.epoch < one.epoch for before, one in pairwise(runs)):
            chain = list(range(len(runs)))
        else:
            chain = _heaviest(runs, stated)
        right = {index: runs[index].epoch for index in chain}
        agrees = {index: stated[index] == runs[index].epoch for index in chain}
        for at, index in enumerate(chain):
            said = stated[index]
            around = [chain[one] for one in (at - 1, at + 1) if 0 <= one < len(chain)]
            low = right[chain[at - 1]] if at else 0
            high = runs[chain[at + 1]].epoch if at + 1 < len(chain) else said
            if said is None or high is None or runs[index].count > 1 or agrees[index] or not low <= said <= high:
                continue
            # Alone in the log it is wrong too: a broker writes an epoch into the checkpoint before its first batch.
            if all(agrees[one] for one in around):
                right[index] = said
        kept = sorted(chain)
        for index in range(len(runs)):
            if index not in right:
                right[index] = _between(index, kept, right, stated[index])
        return [
            Correction(one.first, one.last, one.epoch, right[index])
            for index, one in enumerate(runs)
            if right[index] != one.epoch
        ]


def epochs_in(files: Sequence[File]) -> NDArray[np.int64] | None:
    """The rows of the leader epoch checkpoint; None where there is none, or it says nothing."""
    from rawlog.formats.kafka import EPOCH_FILE
    from rawlog.formats.kafka.texts import line

    for file in files:
        if file.format == "kafka.epochs" and file.place.state is None and file.problem is None:
            try:
                frames = next(iter(walk(file, EPOCH_FILE, errors="stop")))
            except RawlogError:
                return None
            rows = [[int(part) for part in line(frames, index).split()] for index in range(len(frames))]
            table = np.array(rows, np.int64).reshape(-1, 2)
            return table if len(table) else None
    return None


def _stated(table: NDArray[np.int64] | None, run: Run) -> int | None:
    """The epoch that the checkpoint has for a run's offsets; None where it says nothing, or several."""
    if table is None:
        return None
    first, last = (int(np.searchsorted(table[:, 1], offset, side="right")) - 1 for offset in (run.first, run.last))
    return int(table[first, 0]) if first >= 0 and (first == last or int(table[first, 0]) == run.epoch) else None


def _heaviest(runs: Sequence[Run], stated: Sequence[int | None]) -> list[int]:
    """The runs, by number, that make the heaviest sequence of epochs that never fall; the lower epochs of equal ones."""
    offset = max(0, len(runs) - MOST_RUNS)
    own = runs[offset:]
    epochs = np.array([one.epoch for one in own], np.int64)
    weights = np.array(
        [2 * one.count + (said == one.epoch) * one.count for one, said in zip(own, stated[offset:], strict=True)]
    )
    best = np.zeros(len(own), np.int64)
    before = np.full(len(own), NONE, np.int64)
    for index in range(len(own)):
        if epochs[index] < 0:
            continue
        fits = np.flatnonzero((epochs[:index] <= epochs[index]) & (best[:index] > 0))
        top = int(fits[np.argmax(best[fits])]) if fits.size else NONE
        best[index] = weights[index] + (best[top] if top >= 0 else 0)
        before[index] = top
    if not best.any():
        return []
    ends = np.flatnonzero(best == best.max())
    index = int(ends[np.argmin(epochs[ends])])
    chain = []
    while index >= 0:
        chain.append(offset + index)
        index = int(before[index])
    return chain[::-1]


def _between(index: int, kept: Sequence[int], right: dict[int, int], said: int | None) -> int:
    """The epoch of a run that is out of line: as the checkpoint says if that fits, else that of the run before it, or after it."""
    at = int(np.searchsorted(np.array(kept, np.int64), index))
    low = right[kept[at - 1]] if at else None
    high = right[kept[at]] if at < len(kept) else None
    if said is not None and (low is None or low <= said) and (high is None or said <= high):
        return said
    return low if low is not None else high if high is not None else NONE
