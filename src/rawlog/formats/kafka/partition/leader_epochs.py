"""Leader epochs of batches: no checksum covers them. The epoch checkpoint and the batches around outvote one that is out of line.

Epochs never fall along a log. Of the runs of batches with the same epoch, those stay that make the heaviest sequence that never falls; a
batch that agrees with the checkpoint weighs more. A single batch that contradicts the checkpoint while the batches next to it agree
with the checkpoint is wrong too. In a metadata log an epoch begins with a control batch, the change of its leader: what follows that
batch without a gap, up to the next control batch, is of one epoch, and most batches outvote one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.log.heads import Heads
from rawlog.formats.kafka.log.layouts import MAGIC_V2, NONE, Attributes
from rawlog.io.walk import walk
from rawlog.model.errors import RawlogError
from rawlog.model.format import File

MOST_RUNS = 1 << 14
"""Of more runs than this only the last ones are weighed against one another: the work grows with the square."""


@dataclass(slots=True)
class EpochRun:
    """Batches of one epoch that follow one another, by the base offsets of the first and the last. `end` is the offset after them;
    `is_control`: they begin with a control batch.
    """

    epoch: int
    first: int
    last: int
    count: int
    end: int
    is_control: bool = False


@dataclass(frozen=True, slots=True)
class Correction:
    """The right epoch of the batches whose base offsets are `first` to `last`."""

    first: int
    last: int
    wrong: int
    right: int

    @property
    def reason(self) -> str:
        """For people."""
        return f"leader epoch {self.wrong} set to {self.right}, by the batches around it or the epoch checkpoint"

    def is_wrong(self, head: Heads) -> NDArray[np.bool_]:
        """Which batches have the wrong epoch."""
        bases, is_new = head["base_offset"], head["magic"] == MAGIC_V2
        inside = (bases >= self.first) & (bases <= self.last) & is_new
        return np.asarray(inside & (head["leader_epoch"] == self.wrong))


class EpochRuns:
    """The leader epochs of a log as they were read; `is_metadata` for a metadata log."""

    def __init__(self, *, is_metadata: bool = False) -> None:
        self.runs: list[EpochRun] = []
        self.is_metadata = is_metadata

    def add(self, head: Heads) -> None:
        """Take in batches in the order of their offsets. Those without an epoch do not count."""
        has_epoch = (head["magic"] == MAGIC_V2) & (head["leader_epoch"] != NONE)
        epochs, bases, lasts = (head[name][has_epoch] for name in ("leader_epoch", "base_offset", "last_offset"))
        if not epochs.size:
            return
        is_control = head.has(Attributes.CONTROL)[has_epoch] & self.is_metadata
        is_edge = (epochs[1:] != epochs[:-1]) | is_control[1:] | (self.is_metadata & (bases[1:] != lasts[:-1] + 1))
        edges = np.concatenate(([0], np.flatnonzero(is_edge) + 1, [epochs.size])).tolist()
        for start, stop in pairwise(edges):
            place = int(epochs[start]), int(bases[start]), int(bases[stop - 1])
            self._append(EpochRun(*place, stop - start, int(lasts[stop - 1]) + 1, bool(is_control[start])))

    def join(self, following: EpochRuns) -> None:
        """Take in the batches that follow these."""
        for run in following.runs:
            self._append(replace(run))

    def _append(self, run: EpochRun) -> None:
        before = self.runs[-1] if self.runs else None
        if before is not None and before.epoch == run.epoch and (not self.is_metadata or _goes_on(before, run)):
            before.last, before.end, before.count = run.last, run.end, before.count + run.count
        else:
            self.runs.append(run)

    def corrections(self, files: Sequence[File]) -> list[Correction]:
        """The wrong epochs, with the right ones."""
        return self.corrections_with(epochs_in(tuple(files)))

    def corrections_with(self, checkpoint: NDArray[np.int64] | Sequence[tuple[int, int]] | None) -> list[Correction]:
        """The same with the rows of the epoch checkpoint, epochs and their first offsets."""
        table = None if checkpoint is None or not len(checkpoint) else np.array(checkpoint, np.int64).reshape(-1, 2)
        if table is not None and ((np.diff(table, axis=0) <= 0).any() or (table < 0).any()):
            table = None
        terms = self._terms()
        runs = [_elect(term, table) for term in terms]
        stated = [_stated_epoch(table, run) for run in runs]
        if all(run.epoch >= 0 for run in runs) and all(before.epoch <= run.epoch for before, run in pairwise(runs)):
            chain = list(range(len(runs)))
        else:
            chain = _heaviest_chain(runs, stated)
        right = {index: runs[index].epoch for index in chain}
        agrees = {index: stated[index] == runs[index].epoch for index in chain}
        for at, index in enumerate(chain):
            stated_epoch = stated[index]
            around = [chain[place] for place in (at - 1, at + 1) if 0 <= place < len(chain)]
            low = right[chain[at - 1]] if at else 0
            high = runs[chain[at + 1]].epoch if at + 1 < len(chain) else stated_epoch
            if (
                stated_epoch is None
                or high is None
                or runs[index].count > 1
                or agrees[index]
                or not low <= stated_epoch <= high
            ):
                continue
            # Alone in the log it is wrong too: a broker writes an epoch into the checkpoint before its first batch.
            if all(agrees[neighbour] for neighbour in around):
                right[index] = stated_epoch
        kept = sorted(chain)
        for index in range(len(runs)):
            if index not in right:
                right[index] = _neighbour_epoch(index, kept, right, stated[index])
        return [
            Correction(run.first, run.last, run.epoch, right[index])
            for index, term in enumerate(terms)
            for run in term
            if right[index] != run.epoch
        ]

    def _terms(self) -> list[list[EpochRun]]:
        """The runs, those together that are of one epoch whatever they say."""
        terms: list[list[EpochRun]] = []
        for run in self.runs:
            if terms and self.is_metadata and _goes_on(terms[-1][-1], run):
                terms[-1].append(run)
            else:
                terms.append([run])
        return terms


def _goes_on(before: EpochRun, run: EpochRun) -> bool:
    """Whether a run of a metadata log cannot begin an epoch: it follows another one without a gap or a control batch between."""
    return before.end == run.first and not run.is_control


def _elect(term: Sequence[EpochRun], table: NDArray[np.int64] | None) -> EpochRun:
    """Runs of one term as one run, with the epoch of most of their batches; the lowest of several."""
    if len(term) == 1:
        return term[0]
    votes: Counter[int] = Counter()
    for run in term:
        votes[run.epoch] += run.count * (3 if _stated_epoch(table, run) == run.epoch else 2)
    epoch = max(sorted(votes, key=abs), key=votes.__getitem__)
    count = sum(run.count for run in term if run.epoch == epoch)
    return EpochRun(epoch, term[0].first, term[-1].last, count, term[-1].end, term[0].is_control)


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


def _stated_epoch(table: NDArray[np.int64] | None, run: EpochRun) -> int | None:
    """The epoch in the checkpoint for a run's offsets; None if there is none, or several."""
    if table is None:
        return None
    first, last = (int(np.searchsorted(table[:, 1], offset, side="right")) - 1 for offset in (run.first, run.last))
    return int(table[first, 0]) if first >= 0 and (first == last or int(table[first, 0]) == run.epoch) else None


def _heaviest_chain(runs: Sequence[EpochRun], stated: Sequence[int | None]) -> list[int]:
    """The heaviest sequence of runs, by number, in which epochs never fall; of equal ones, the one with lower epochs."""
    offset = max(0, len(runs) - MOST_RUNS)
    recent = runs[offset:]
    epochs = np.array([run.epoch for run in recent], np.int64)
    weights = np.array(
        [
            2 * run.count + (stated_epoch == run.epoch) * run.count
            for run, stated_epoch in zip(recent, stated[offset:], strict=True)
        ]
    )
    best = np.zeros(len(recent), np.int64)
    before = np.full(len(recent), NONE, np.int64)
    for index in range(len(recent)):
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


def _neighbour_epoch(index: int, kept: Sequence[int], right: dict[int, int], stated: int | None) -> int:
    """The right epoch of a run out of line: that of the checkpoint if it fits, else that of the run before or after it."""
    at = int(np.searchsorted(np.array(kept, np.int64), index))
    low = right[kept[at - 1]] if at else None
    high = right[kept[at]] if at < len(kept) else None
    if stated is not None and (low is None or low <= stated) and (high is None or stated <= high):
        return stated
    return low if low is not None else high if high is not None else NONE
