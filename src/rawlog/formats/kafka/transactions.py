"""Transactions: which ranges were aborted, and up to where everything is decided.

As a broker knows them: from the transaction indexes and the newest producer snapshot, and from the log behind that. Where these are
missing or contradict themselves the log alone tells, at the cost of a pass over all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rawlog.errors import CorruptError, RawlogError
from rawlog.format import File
from rawlog.formats.kafka.heads import Heads, heads
from rawlog.formats.kafka.layouts import SNAPSHOT_ENTRY, TXN_INDEX_ENTRY, Attributes, ControlType
from rawlog.formats.kafka.log import only
from rawlog.formats.kafka.producers import Aborted, Producer, Producers, read_marker
from rawlog.formats.kafka.seek import seek
from rawlog.status import Status

NO_OFFSET = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Transactions:
    """The decided and undecided transactions of a partition.

    `ends` are the ends of aborted ranges, sorted, with their producers and first offsets; `last_stable_offset` is the first
    offset of the oldest transaction without a marker. `committed_only` leaves out what a read_committed consumer never sees.
    """

    producers: NDArray[np.int64]
    firsts: NDArray[np.int64]
    ends: NDArray[np.int64]
    last_stable_offset: int = NO_OFFSET
    committed_only: bool = False

    def takes(self, head: Heads) -> NDArray[np.bool_]:
        """Which batches are to be read."""
        if not self.committed_only:
            return np.ones(len(head), np.bool_)
        return (head["base_offset"] < self.last_stable_offset) & ~self.aborted(head)

    def aborted(self, head: Heads) -> NDArray[np.bool_]:
        """Which batches belong to a transaction that was aborted."""
        result = np.zeros(len(head), np.bool_)
        candidates = np.flatnonzero(head.has(Attributes.TRANSACTIONAL) & ~head.has(Attributes.CONTROL))
        if not candidates.size or not self.ends.size:
            return result
        base, producer = head["base_offset"][candidates], head["producer_id"][candidates]
        for one, offset, number in zip(candidates.tolist(), base.tolist(), producer.tolist(), strict=True):
            # Ranges of one producer do not overlap: the first that ends behind the batch decides.
            later = int(np.searchsorted(self.ends, offset, side="right"))
            mine = np.flatnonzero(self.producers[later:] == number)
            result[one] = bool(mine.size) and bool(self.firsts[later + int(mine[0])] <= offset)
        return result


def context(file: File, group: Sequence[File], options: Mapping[str, str]) -> Transactions | None:
    """The partition's transactions, where what is asked for depends on them."""
    committed_only = options.get("isolation") == "read_committed"
    if not committed_only and "aborted" not in options.get("columns", "").split(","):
        return None
    segments = tuple(one for one in group if one.format == file.format and one.place.state == file.place.state)
    found = None if file.place.state is not None else _indexed(tuple(group))
    found = found or _walk(segments)
    return Transactions(found.producers, found.firsts, found.ends, found.last_stable_offset, committed_only)


def undecided(segments: tuple[File, ...]) -> dict[int, int]:
    """The first offsets of transactions without a marker, by producer."""
    return dict(_walked(segments)[1])


def _walk(segments: tuple[File, ...]) -> Transactions:
    return _walked(segments)[0]


@lru_cache(maxsize=4)
def _walked(segments: tuple[File, ...]) -> tuple[Transactions, tuple[tuple[int, int], ...]]:
    from rawlog.formats.kafka import LOG
    from rawlog.walk import walk

    state = Producers()
    for segment in sorted(segments, key=lambda one: one.place.start_offset or 0):
        for frames in walk(segment, LOG, errors="skip"):
            for _ in state.add(frames, heads(frames), transactional_only=True):
                pass  # what is odd about a producer is for verification to say
    return _transactions(state, state.aborted), tuple(state.open_transactions().items())


def _transactions(state: Producers, aborted: Iterable[Aborted]) -> Transactions:
    ranges = sorted(((one.producer_id, one.first_offset, one.last_offset) for one in aborted), key=lambda r: r[2])
    table = np.array(ranges, np.int64).reshape(-1, 3)
    stable = min(state.open_transactions().values(), default=NO_OFFSET)
    return Transactions(table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy(), stable)


# From the files beside the log --------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _indexed(group: tuple[File, ...]) -> Transactions | None:
    """The same without reading the log up to the newest snapshot; None where the files beside it do not tell everything.

    A segment without abort has no transaction index, so that none at all may as well mean that they were not kept; where some are there,
    a segment without one is looked through for a marker of an abort.
    """
    kept = {kind: _by_offset(group, f"kafka.{kind}") for kind in ("log", "index", "txnindex", "snapshot")}
    logs = kept["log"]
    newest = max(kept["snapshot"], default=-1)
    if not logs or not kept["txnindex"] or newest < max(logs) or not logs.keys() <= kept["index"].keys():
        return None
    try:
        state = _state_at(kept["snapshot"][newest])
        aborted = list(_entries(sorted(logs), kept["txnindex"], newest))
    except RawlogError:
        return None
    if any(first >= newest for first in state.open_transactions().values()):
        return None
    if any(_has_abort(file, newest) for base, file in logs.items() if base not in kept["txnindex"]):
        return None
    end = _replay(state, logs[max(logs)], group, newest)
    return _transactions(state, [*aborted, *state.aborted]) if end >= newest else None


def _by_offset(group: Sequence[File], format: str) -> dict[int, File]:
    chosen = (one for one in group if one.format == format and one.place.state is None and one.problem is None)
    return {one.place.start_offset: one for one in chosen if one.place.start_offset is not None}


def _state_at(snapshot: File) -> Producers:
    """The producers of a snapshot; DataError if it is damaged."""
    from rawlog.formats.kafka import SNAPSHOT
    from rawlog.walk import walk

    state = Producers()
    for frames in walk(snapshot, SNAPSHOT, errors="raise"):
        if frames.status is not Status.OK:
            raise CorruptError("a cut snapshot", path=snapshot.path, position=0)
        raw = SNAPSHOT_ENTRY.take(frames.data, frames.starts)
        for number, *fields in raw.tolist():
            state.states[number] = Producer(*fields)
    return state


def _entries(bases: list[int], indexes: Mapping[int, File], end: int) -> Iterator[Aborted]:
    """What the transaction indexes say up to an offset; DataError where an entry cannot be one of its segment."""
    from rawlog.formats.kafka import TXN_INDEX_FILE
    from rawlog.walk import walk

    for base, following in zip(bases, [*bases[1:], NO_OFFSET], strict=True):
        if base not in indexes:
            continue
        before = base - 1
        for frames in walk(indexes[base], TXN_INDEX_FILE, errors="raise"):
            raw = TXN_INDEX_ENTRY.take(frames.data, frames.starts)
            for _, *fields in raw.tolist():
                entry = Aborted(*fields)
                if not before < entry.last_offset < following or not 0 <= entry.first_offset <= entry.last_offset:
                    raise CorruptError("an entry of no transaction of the segment", path=indexes[base].path)
                before = entry.last_offset
                if entry.last_offset < end:
                    yield entry


def _has_abort(segment: File, end: int) -> bool:
    """Whether a segment holds the marker of an abort in front of an offset."""
    from rawlog.formats.kafka import LOG
    from rawlog.walk import walk

    for frames in walk(segment, LOG, errors="skip"):
        head = heads(frames)
        markers = head.sound & head.has(Attributes.CONTROL) & head.has(Attributes.TRANSACTIONAL)
        for index in np.flatnonzero(markers & (head["base_offset"] < end)).tolist():
            if read_marker(frames, index)[0] == ControlType.ABORT:
                return True
    return False


def _replay(state: Producers, active: File, group: Sequence[File], start: int) -> int:
    """Take in what the last segment holds from an offset on; the offset where the log ends."""
    from rawlog.formats.kafka import LOG
    from rawlog.walk import walk

    end = active.place.start_offset or 0
    for frames in walk(active, LOG, start=seek(active, group, start, None), errors="skip"):
        head = heads(frames)
        sound = head.sound
        if sound.any():
            end = max(end, int(head["last_offset"][sound].max()) + 1)
        later = sound & (head["base_offset"] >= start)
        for _ in state.add(only(frames, later), head.only(later), transactional_only=True):
            pass  # what is odd about a producer is for verification to say
    return end
