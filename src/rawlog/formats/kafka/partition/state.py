"""The state of producers and transactions, as a fold over the log that can be cut anywhere.

A stretch of log is folded by itself, without knowing what comes before it; the folds of two neighbouring stretches merge into that of both.
So a partition of any size is folded in parallel, and the result is the same for any cut. What a stretch cannot know alone is kept until the
merge: whether its first batch of a producer continues the sequence, where a transaction began whose marker it holds, and which
transactions were open before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.log.heads import Heads
from rawlog.formats.kafka.log.kernels import producers as kernels
from rawlog.formats.kafka.log.layouts import MAGIC_V2, NONE, Attributes, ControlType
from rawlog.kernels import byte_view
from rawlog.model.frames import Frames

DATA = -2
"""In the kernels: a batch of data, not a marker."""


@dataclass(slots=True)
class ProducerState:
    """One producer: the names are those of a snapshot's entry."""

    epoch: int = NONE
    last_sequence: int = NONE
    last_offset: int = NONE
    offset_delta: int = 0
    timestamp: int = NONE
    coordinator_epoch: int = NONE
    current_txn_first_offset: int = NONE


@dataclass(frozen=True, slots=True)
class AbortedTxn:
    """A transaction that was aborted, as an entry of the transaction index has it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class Oddity:
    """Something a leader would not have accepted from a producer: `code` is `epoch` or `sequence`; the place is that of the batch."""

    code: str
    message: str
    path: str
    position: int
    size: int
    offset: int
    expected: object = None
    found: object = None


def _empty_states(count: int) -> NDArray[np.int64]:
    states = np.full((count, kernels.FIELDS), NONE, np.int64)
    states[:, [kernels.OFFSET_DELTA, kernels.HAS_DATA, kernels.HAS_MARKER, kernels.LEAD]] = 0
    return states


@dataclass(slots=True)
class Producers:
    """The producers and transactions of a stretch of log. Batches are added in the order of the log, then folds are merged in that order.

    `finish` says that nothing comes before the stretch; only then are the answers those of the log.
    """

    transactional_only: bool = False
    rows: dict[int, int] = field(default_factory=dict)
    table: NDArray[np.int64] = field(default_factory=lambda: _empty_states(0))
    #: Aborts as rows of the kernel, the producer's row replaced by its id.
    aborts: list[NDArray[np.int64]] = field(default_factory=list)
    oddities: list[Oddity] = field(default_factory=list)
    #: The places of the producers' first batches of data: path, position, size.
    places: dict[int, tuple[str, int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, states: Mapping[int, ProducerState], *, transactional_only: bool = False) -> Producers:
        """The producers of a snapshot, to which the log after it is added."""
        producers = cls(transactional_only)
        producers._rows(np.array(list(states), np.int64))
        for number, state in states.items():
            producers.table[producers.rows[number], : kernels.HAS_DATA] = astuple(state)
        return producers

    # Adding ---------------------------------------------------------------------------------------------------------

    def add(self, frames: Frames, head: Heads, path: str = "") -> None:
        """Take in a window's sound batches."""
        wanted = head.has(Attributes.TRANSACTIONAL) if self.transactional_only else head["producer_id"] >= 0
        control = head.has(Attributes.CONTROL)
        chosen = np.flatnonzero(wanted & head.sound & ~(control & (head["record_count"] == 0)))
        if not chosen.size:
            return
        rows = self._rows(head["producer_id"][chosen])
        kinds = np.full(chosen.size, DATA, np.int64)
        coordinators = np.full(chosen.size, NONE, np.int64)
        times = head["max_timestamp"][chosen]
        markers = np.flatnonzero(control[chosen])
        if markers.size:
            kinds[markers], coordinators[markers], times[markers] = marker_fields(frames, chosen[markers])
        odd, expected = np.zeros(chosen.size, np.int64), np.zeros(chosen.size, np.int64)
        aborts = np.empty((markers.size, kernels.ABORTED), np.int64)
        transactional = head.has(Attributes.TRANSACTIONAL)[chosen]
        epochs, sequences = head["producer_epoch"][chosen], head["base_sequence"][chosen]
        bases, lasts = head["base_offset"][chosen], head["last_offset"][chosen]
        count, _, _ = kernels.fold_producers(
            rows,
            kinds,
            coordinators,
            epochs,
            sequences,
            bases,
            lasts,
            times,
            transactional,
            0,
            self.table,
            odd,
            expected,
            aborts,
        )
        self._keep(frames, path, chosen, rows)
        if count:
            self.aborts.append(self._with_producer_ids(aborts[:count]))
        for at in np.flatnonzero(odd).tolist():
            index = int(chosen[at])
            place = (path, int(frames.positions[index]), int(frames.sizes[index]))
            values = int(epochs[at]), int(sequences[at]), int(bases[at])
            self.oddities.append(_oddity(int(odd[at]), int(expected[at]), *values, place))

    def _rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each producer in the table, which grows as needed."""
        distinct, inverse = np.unique(ids, return_inverse=True)
        count = len(self.rows)
        rows = np.array([self.rows.setdefault(number, len(self.rows)) for number in distinct.tolist()], np.int64)
        if len(self.rows) > len(self.table):
            grown = _empty_states(max(len(self.rows), 2 * len(self.table)))
            grown[:count] = self.table[:count]
            self.table = grown
        return rows[inverse]

    def _keep(self, frames: Frames, path: str, chosen: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Remember where the first batch of data of each producer is, for a message about it."""
        for row in np.unique(rows).tolist():
            first = int(self.table[row, kernels.FIRST_PLACE])
            if first >= 0:
                index = int(chosen[first])
                self.places[row] = (path, int(frames.positions[index]), int(frames.sizes[index]))
                self.table[row, kernels.FIRST_PLACE] = NONE

    def _with_producer_ids(self, aborts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The same aborts with the ids of their producers instead of rows."""
        ids = np.fromiter(self.rows, np.int64, len(self.rows))
        return np.concatenate([ids[aborts[:, :1]], aborts[:, 1:]], axis=1)

    # Merging --------------------------------------------------------------------------------------------------------

    def merge(self, following: Producers) -> None:
        """Take in the fold of the next stretch, which is used up."""
        opened = self.open_transactions()
        met = {number for number, row in self.rows.items() if self.table[row, kernels.HAS_MARKER]}
        for rows in following.aborts:
            _continue_aborts(rows, opened, met, following)
        self.aborts += following.aborts
        self.oddities += following.oddities
        for number, row in following.rows.items():
            right = following.table[row]
            own_row = self.rows.get(number)
            if own_row is None:
                own_row = int(self._rows(np.array([number]))[0])
                self.table[own_row] = right
                if row in following.places:
                    self.places[own_row] = following.places[row]
                continue
            self._join(own_row, right, following.places.get(row))

    def _join(self, row: int, right: NDArray[np.int64], place: tuple[str, int, int] | None) -> None:
        """Join the states of one producer at the end of this stretch and in the next one."""
        left = self.table[row]
        if right[kernels.LEAD]:
            _mark(left, right)
        if right[kernels.HAS_DATA]:
            if left[kernels.HAS_DATA]:
                self._compare(left, right, place)
            else:
                for name in (kernels.HAS_DATA, kernels.FIRST_EPOCH, kernels.FIRST_SEQUENCE, kernels.FIRST_OFFSET):
                    left[name] = right[name]
                if place is not None:
                    self.places[row] = place
            left[: kernels.COORDINATOR_EPOCH] = right[: kernels.COORDINATOR_EPOCH]
        if right[kernels.HAS_MARKER]:
            left[kernels.COORDINATOR_EPOCH], left[kernels.OPEN] = right[kernels.COORDINATOR_EPOCH], right[kernels.OPEN]
            if not left[kernels.HAS_MARKER]:
                left[kernels.HAS_MARKER], left[kernels.FIRST_MARKER] = 1, right[kernels.FIRST_MARKER]
        elif left[kernels.OPEN] == NONE:
            left[kernels.OPEN] = right[kernels.OPEN]

    def _compare(self, left: NDArray[np.int64], right: NDArray[np.int64], place: tuple[str, int, int] | None) -> None:
        """The first batch of data of a stretch against the state before it, as within one stretch."""
        epoch, sequence = int(right[kernels.FIRST_EPOCH]), int(right[kernels.FIRST_SEQUENCE])
        last_epoch, before = int(left[kernels.EPOCH]), int(left[kernels.LAST_SEQUENCE])
        odd, expected = kernels.NOT_ODD, 0
        if last_epoch == NONE:
            return
        if epoch < last_epoch:
            odd, expected = kernels.EPOCH_BACK, last_epoch
        elif epoch > last_epoch and sequence > 0:
            odd = kernels.NEW_EPOCH_SEQUENCE
        elif epoch == last_epoch and sequence >= 0 and before >= 0:
            expected = (before + 1) & kernels.SEQUENCE_MASK
            odd = kernels.SEQUENCE if sequence != expected else odd
        if odd:
            offset = int(right[kernels.FIRST_OFFSET])
            self.oddities.append(_oddity(odd, expected, epoch, sequence, offset, place or ("", NONE, NONE)))

    # Answers --------------------------------------------------------------------------------------------------------

    def finish(self) -> Producers:
        """Say that nothing comes before this stretch: markers in front of a producer's first data are then its first state."""
        for row in self.rows.values():
            state = self.table[row]
            if state[kernels.HAS_DATA] and state[kernels.LEAD]:
                before = _empty_states(1)[0]
                _mark(before, state)
                self._compare(before, state, self.places.get(row))
        return self

    @property
    def states(self) -> dict[int, ProducerState]:
        """What is known of each producer at the end, by id."""
        return {
            number: ProducerState(*self.table[row, : kernels.HAS_DATA].tolist()) for number, row in self.rows.items()
        }

    @property
    def aborted(self) -> list[AbortedTxn]:
        """The transactions that were aborted, in the order of their markers."""
        return [AbortedTxn(*row[:4]) for rows in self.aborts for row in rows.tolist() if row[1] != NONE]

    def open_transactions(self) -> dict[int, int]:
        """The first offsets of transactions without a marker, by producer."""
        column = self.table[: len(self.rows), kernels.OPEN].tolist()
        return {number: column[row] for number, row in self.rows.items() if column[row] != NONE}


def _mark(left: NDArray[np.int64], right: NDArray[np.int64]) -> None:
    """The state after the markers in front of the first data of a stretch."""
    if right[kernels.LEAD] == kernels.MIXED or right[kernels.LEAD_EPOCH] != left[kernels.EPOCH]:
        left[[kernels.LAST_SEQUENCE, kernels.LAST_OFFSET]] = NONE
        left[kernels.OFFSET_DELTA] = 0
    if not left[kernels.HAS_DATA]:
        differs = left[kernels.LEAD] and left[kernels.LEAD_EPOCH] != right[kernels.LEAD_EPOCH]
        left[kernels.LEAD] = kernels.MIXED if differs else max(left[kernels.LEAD], right[kernels.LEAD])
        for name in (kernels.LEAD_EPOCH, kernels.LEAD_TIMESTAMP, kernels.LEAD_COORDINATOR):
            left[name] = right[name]
    left[kernels.EPOCH], left[kernels.TIMESTAMP] = right[kernels.LEAD_EPOCH], right[kernels.LEAD_TIMESTAMP]
    left[kernels.COORDINATOR_EPOCH] = right[kernels.LEAD_COORDINATOR]


def _continue_aborts(rows: NDArray[np.int64], opened: dict[int, int], met: set[int], following: Producers) -> None:
    """Complete aborts with the state before them: the starts of their transactions, and other open transactions."""
    table = following.table
    rows_of = ((number, table[following.rows[number]]) for number in opened if number in following.rows)
    markers = {number: int(state[kernels.FIRST_MARKER]) for number, state in rows_of if state[kernels.HAS_MARKER]}
    for row in rows:
        number, offset = int(row[0]), int(row[2])
        if row[4]:
            row[1] = opened.get(number, row[1])
            row[4] = number not in met
        for other, first in opened.items():
            if first < row[3] and markers.get(other, offset + 1) > offset:
                row[3] = first


def marker_fields(
    frames: Frames, chosen: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The types, coordinator epochs and times of control batches."""
    kinds, coordinators, times = np.empty((3, chosen.size), np.int64)
    data = byte_view(frames.data)
    kernels.read_markers(data, frames.starts[chosen], frames.stops[chosen], kinds, coordinators, times)
    return kinds, coordinators, times


def _oddity(odd: int, expected: int, epoch: int, sequence: int, offset: int, place: tuple[str, int, int]) -> Oddity:
    if odd == kernels.EPOCH_BACK:
        message = f"producer epoch {epoch} after {expected}"
        return Oddity("epoch", message, *place, offset, f"at least {expected}", epoch)
    if odd == kernels.NEW_EPOCH_SEQUENCE:
        return Oddity("sequence", f"sequence {sequence} begins epoch {epoch}", *place, offset, 0, sequence)
    before = (expected - 1) & kernels.SEQUENCE_MASK
    return Oddity("sequence", f"sequence {sequence} after {before}", *place, offset, expected, sequence)


# ----------------------------------------------------------------------------------------------------------------------
# How many offsets of a stretch of log are records of which kind: a fold that can be cut anywhere, as that of the producers.
# A stretch cannot know how a transaction ends whose marker comes later, nor how many records one had whose marker it begins with. So it
# counts, for every producer, the records before its first marker and after its last one; neighbours put them together.


ABORT, COMMIT = int(ControlType.ABORT), int(ControlType.COMMIT)
MOST_SPANS = 20


@dataclass(slots=True)
class TransactionCounts:
    """The numbers of transactional records of one producer: before its first marker (`lead`; `first` is the type of that marker), in
    aborted transactions between markers, and after the last marker (`tail`).
    """

    lead: int = 0
    first: int = NONE
    aborted: int = 0
    tail: int = 0

    def join(self, following: TransactionCounts) -> None:
        """Take in the stretch that follows."""
        if self.first == NONE:
            self.lead += following.lead
            self.first, self.aborted, self.tail = following.first, following.aborted, following.tail
            return
        self.tail += following.lead
        if following.first != NONE:
            self.aborted += following.aborted + (self.tail if following.first == ABORT else 0)
            self.tail = following.tail


@dataclass(slots=True)
class Tally:
    """The counts of a stretch. Batches that end before `floor` do not count, nor do records before it."""

    floor: int = 0
    control: int = 0
    #: Offsets inside of batches that have no record any more: compaction took them out.
    removed: int = 0
    #: Offsets that only an empty batch keeps, which repair wrote at the end of a log; and the first of them.
    kept_places: int = 0
    places: list[tuple[int, int]] = field(default_factory=list)
    #: The last offset of a batch that only compaction writes so.
    cleaned: int = NONE
    producers: dict[int, TransactionCounts] = field(default_factory=dict)

    def add(self, frames: Frames, head: Heads) -> None:
        """Take in a window's sound batches."""
        last = head["last_offset"]
        counted = head.sound & (head["magic"] == MAGIC_V2) & (last >= self.floor)
        if not counted.any():
            return
        span = last - np.maximum(head["base_offset"], self.floor) + 1
        count = np.clip(head["record_count"], 0, np.maximum(span, 0))
        empty = counted & (head["record_count"] == 0) & (head["producer_id"] == NONE) & (head["max_timestamp"] == NONE)
        if empty.any():
            self.kept_places += int(span[empty].sum())
            rows = zip(head["base_offset"][empty].tolist(), last[empty].tolist(), strict=True)
            self.places = [*self.places, *rows][:MOST_SPANS]
        thin = counted & ~empty & (count < span)
        marked = thin | (counted & head.has(Attributes.DELETE_HORIZON))
        if marked.any():
            self.removed += int((span - count)[thin].sum())
            self.cleaned = max(self.cleaned, int(last[marked].max()))
        control = counted & head.has(Attributes.CONTROL)
        self.control += int(count[control].sum())
        if head.any(Attributes.TRANSACTIONAL):
            self._transactions(frames, head, counted, control, count)

    def _transactions(
        self,
        frames: Frames,
        head: Heads,
        counted: NDArray[np.bool_],
        control: NDArray[np.bool_],
        count: NDArray[np.int64],
    ) -> None:
        """Count the records of every transaction in the window by how it ends."""
        chosen = np.flatnonzero(counted & head.has(Attributes.TRANSACTIONAL) & ~(control & (head["record_count"] == 0)))
        if not chosen.size:
            return
        chosen = chosen[np.argsort(head["producer_id"][chosen], kind="stable")]
        kinds = np.full(chosen.size, NONE, np.int64)
        is_marker = control[chosen]
        if is_marker.any():
            kinds[is_marker] = marker_fields(frames, chosen[is_marker])[0]
            ends_one = np.isin(kinds, (ABORT, COMMIT))
            chosen, kinds = chosen[~is_marker | ends_one], kinds[~is_marker | ends_one]
            if not chosen.size:
                return
        number, is_marker = head["producer_id"][chosen], kinds != NONE
        records = np.where(is_marker, 0, count[chosen])
        others = np.concatenate(([True], number[1:] != number[:-1]))
        # A run is the records of one producer up to a marker, that included.
        starts = np.flatnonzero(others | np.concatenate(([False], is_marker[:-1])))
        sums = np.add.reduceat(records, starts)
        ends = kinds[np.concatenate((starts[1:], [chosen.size])) - 1]
        firsts = np.flatnonzero(others[starts])
        for first, stop in zip(firsts.tolist(), [*firsts[1:].tolist(), starts.size], strict=True):
            counts = TransactionCounts(int(sums[first]), int(ends[first]))
            if counts.first != NONE and stop - first > 1:
                is_open = ends[stop - 1] == NONE
                counts.tail = int(sums[stop - 1]) if is_open else 0
                counts.aborted = int(sums[first + 1 : stop][ends[first + 1 : stop] == ABORT].sum())
            self._join(int(number[starts[first]]), counts)

    def _join(self, number: int, following: TransactionCounts) -> None:
        counts = self.producers.get(number)
        if counts is None:
            self.producers[number] = following
        else:
            counts.join(following)

    def merge(self, following: Tally) -> None:
        """Take in the next stretch, which is used up."""
        self.control += following.control
        self.removed += following.removed
        self.kept_places += following.kept_places
        self.places = [*self.places, *following.places][:MOST_SPANS]
        self.cleaned = max(self.cleaned, following.cleaned)
        for number, counts in following.producers.items():
            self._join(number, counts)

    @property
    def aborted(self) -> int:
        """The records of aborted transactions, if nothing comes before this stretch."""
        return sum(counts.aborted + (counts.lead if counts.first == ABORT else 0) for counts in self.producers.values())
