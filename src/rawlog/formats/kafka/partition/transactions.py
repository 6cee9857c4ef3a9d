"""Transactions: which ranges were aborted, and up to where everything is decided.

Whether a batch was aborted is known from the next marker of its producer: a reader of a part of the log looks ahead for it, from header
to header, and only where it meets a transaction. Up to where everything is decided is known as a broker knows it: from the transaction
indexes, the newest producer snapshot, and the log after that; where these are missing or contradict themselves, from all headers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.internal.messages import read_marker
from rawlog.formats.kafka.log.heads import Heads, heads, take
from rawlog.formats.kafka.log.layouts import SNAPSHOT_ENTRY, TXN_INDEX_ENTRY, Attributes, ControlType
from rawlog.formats.kafka.log.seek import (
    BatchHeaders,
    is_sound,
    seek,
    skim,
)
from rawlog.formats.kafka.log.segment import only
from rawlog.formats.kafka.partition import state as folds
from rawlog.formats.kafka.partition.state import AbortedTxn
from rawlog.formats.kafka.paths import segment_file
from rawlog.io.storage import listing
from rawlog.model.errors import CorruptError, RawlogError
from rawlog.model.format import File
from rawlog.model.frames import Frames
from rawlog.model.status import Status
from rawlog.model.store import Store

NO_OFFSET = (1 << 63) - 1
NEAR = 4
"""So many following segments a part of the log takes along; most transactions end in the next one."""


@dataclass(frozen=True, slots=True)
class PartitionTransactions:
    """The decided and undecided transactions of a partition.

    `ends` are the ends of aborted ranges, sorted, with their producers and first offsets; `last_stable_offset` is the first
    offset of the oldest transaction without a marker. `committed_only` leaves out what a read_committed consumer never sees. `opened`
    are the first offsets of transactions without a marker, by producer.
    """

    producers: NDArray[np.int64]
    firsts: NDArray[np.int64]
    ends: NDArray[np.int64]
    last_stable_offset: int = NO_OFFSET
    committed_only: bool = False
    opened: Mapping[int, int] = field(default_factory=dict)

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
        for number in np.unique(producer).tolist():
            rows, ranges = producer == number, self.producers == number
            ends, firsts = self.ends[ranges], self.firsts[ranges]
            # Ranges of one producer do not overlap: the first that ends after the batch decides.
            later = np.searchsorted(ends, base[rows], side="right")
            inside = later < ends.size
            inside[inside] = firsts[later[inside]] <= base[rows][inside]
            result[candidates[rows]] = inside
        return result

    def undecided(self, head: Heads) -> NDArray[np.bool_]:
        """Which batches belong to a transaction without a marker."""
        result = np.zeros(len(head), np.bool_)
        if self.opened:
            inside = head.has(Attributes.TRANSACTIONAL) & ~head.has(Attributes.CONTROL)
            for number, first in self.opened.items():
                result |= inside & (head["producer_id"] == number) & (head["base_offset"] >= first)
        return result


@dataclass(slots=True)
class LookAhead:
    """The aborted and open transactions of a part of a segment, looked up when the first transactional batch is met.

    `following` are the next segments; there may be `more`, which are listed if a transaction is still open after those.
    """

    file: File
    following: tuple[File, ...]
    more: bool = False
    start: int = 0
    stop: int | None = None
    _cached: PartitionTransactions | None = None

    def for_part(self, start: int | None, stop: int | None) -> LookAhead:
        """The same for the part of the file from byte `start` to `stop`."""
        return LookAhead(self.file, self.following, self.more, start or 0, stop)

    def takes(self, head: Heads) -> NDArray[np.bool_]:
        """Which batches are to be read: all."""
        return np.ones(len(head), np.bool_)

    def aborted(self, head: Heads) -> NDArray[np.bool_]:
        """Which batches belong to a transaction that was aborted."""
        transactions = self._transactions(head)
        return np.zeros(len(head), np.bool_) if transactions is None else transactions.aborted(head)

    def undone(self, frames: Frames) -> NDArray[np.int64]:
        """The first and the last offset of each batch of a transaction that was aborted or has no marker; 1 if it has none, else 0."""
        head = heads(frames)
        transactions = self._transactions(head)
        if transactions is None:
            return np.zeros((0, 3), np.int64)
        undecided = transactions.undecided(head)
        is_undone = transactions.aborted(head) | undecided
        return np.stack([head["base_offset"][is_undone], head["last_offset"][is_undone], undecided[is_undone]], axis=1)

    def _transactions(self, head: Heads) -> PartitionTransactions | None:
        """The transactions of the part; None as long as no batch is of one."""
        if self._cached is None and head.any(Attributes.TRANSACTIONAL):
            self._cached = self._look_ahead()
        return self._cached

    def _look_ahead(self) -> PartitionTransactions:
        state = folds.Producers(transactional_only=True)
        for window in skim(self.file, self.start, self.stop):
            _take_window(state, self.file, window)
        waiting = state.open_transactions()
        for file, start in self._parts_ahead():
            for window in skim(file, start) if waiting else ():
                _take_window(state, file, window)
                now = state.open_transactions()
                waiting = {number: first for number, first in waiting.items() if now.get(number) == first}
                if not waiting:
                    break
        return _transactions(state.open_transactions(), state.aborted)

    def _parts_ahead(self) -> Iterator[tuple[File, int]]:
        """What comes after the part, as long as anybody asks."""
        if self.stop is not None:
            yield self.file, self.stop
        yield from ((file, 0) for file in self.following)
        if self.more:
            yield from ((file, 0) for file in _later_segments(self.following[-1]))


def _later_segments(file: File) -> list[File]:
    """The segments of a partition that come after one, as the directory has them now."""
    match, segments = segment_file("log"), []
    for entry in listing(str(file.place.group)):
        place = match(entry.path)
        if place is not None and place.state == file.place.state and entry.problem is None:
            segments.append(File(entry.path, entry.size, entry.modified, file.format, place))
    later = (segment for segment in segments if (segment.place.start_offset or 0) > (file.place.start_offset or 0))
    return sorted(later, key=lambda segment: segment.place.start_offset or 0)


def context(file: File, group: Sequence[File], options: Mapping[str, str]) -> PartitionTransactions | LookAhead:
    """The partition's transactions, as far as the options depend on them."""
    if options.get("isolation") == "read_committed":
        transactions = _of_group(Store.of(group), file)
        return replace(transactions, committed_only=True)
    return undone(file, group)


def undone(file: File, group: Sequence[File]) -> LookAhead:
    """The aborted and open transactions in a segment."""
    store = Store.of(group)
    segments = store.share(_sorted_logs).get(file.place.state, [])
    at = bisect_right(segments, file.place.start_offset or 0, key=lambda segment: segment.place.start_offset or 0)
    # Those after the near ones are listed when somebody asks, unless some are elsewhere, in remote storage.
    near = at + NEAR
    if store.share(_has_remote) and any(segment.place.remote is not None for segment in segments[near:]):
        near = len(segments)
    return LookAhead(file, tuple(segments[at:near]), more=len(segments) > near)


def _has_remote(store: Store) -> bool:
    return any(file.place.remote is not None for file in store)


def _sorted_logs(store: Store) -> dict[str | None, list[File]]:
    """The segments of a partition in order, by what a broker would do with them."""
    logs: dict[str | None, list[File]] = {}
    for file in sorted(store, key=lambda file: file.place.start_offset or 0):
        if file.format == "kafka.log" and file.problem is None:
            logs.setdefault(file.place.state, []).append(file)
    return logs


def _of_group(store: Store, file: File) -> PartitionTransactions:
    """The transactions of all segments that are in the state of one."""
    transactions = store.share(_of_files) if file.place.state is None else None
    return transactions or _walk(tuple(store.share(_sorted_logs).get(file.place.state, ())))


def _of_files(store: Store) -> PartitionTransactions | None:
    return _read_indexes(store.files)


def of_partition(segments: Sequence[File]) -> tuple[PartitionTransactions, dict[int, int]]:
    """The transactions of a whole partition, by its log alone; and the first offsets of those without a marker, by producer."""
    transactions, pending = _fold_log(tuple(file for file in segments if file.format == "kafka.log"))
    return transactions, dict(pending)


def of_store(store: Store) -> tuple[dict[int, folds.ProducerState], list[AbortedTxn]]:
    """The producers of a partition with a transaction that no marker ends, and the aborted transactions, by its log alone."""
    state = _state_of(store.share(_sorted_logs).get(None, ()))
    opened = state.open_transactions()
    return {number: producer for number, producer in state.states.items() if number in opened}, state.aborted


def _walk(segments: tuple[File, ...]) -> PartitionTransactions:
    return _fold_log(segments)[0]


@lru_cache(maxsize=4)
def _fold_log(segments: tuple[File, ...]) -> tuple[PartitionTransactions, tuple[tuple[int, int], ...]]:
    state = _state_of(segments)
    opened = state.open_transactions()
    return _transactions(opened, state.aborted), tuple(opened.items())


def _state_of(segments: Sequence[File]) -> folds.Producers:
    """The producers by headers alone; by checked batches if the first batch of an open transaction is damaged."""
    ordered = sorted(segments, key=lambda segment: segment.place.start_offset or 0)
    state = folds.Producers(transactional_only=True)
    places: dict[int, tuple[File, int, int]] = {}
    for segment in ordered:
        for window in skim(segment):
            _take_window(state, segment, window, places)
    if not all(is_sound(*places[first]) for first in state.open_transactions().values()):
        state = _fold_sound(ordered)
    return state


def _fold_sound(segments: Sequence[File]) -> folds.Producers:
    """The fold of sound batches."""
    from rawlog.formats.kafka import LOG
    from rawlog.io.walk import walk

    state = folds.Producers(transactional_only=True)
    for segment in segments:
        for frames in walk(segment, LOG, errors="skip"):
            state.add(frames, heads(frames))
    return state


def _take_window(
    state: folds.Producers, file: File, window: BatchHeaders, places: dict[int, tuple[File, int, int]] | None = None
) -> None:
    """Take in the transactional batches of a window of headers, and of its markers those whose checksums are right."""
    head = window.head
    if not head.any(Attributes.TRANSACTIONAL):
        return
    wanted = head.sound & head.has(Attributes.TRANSACTIONAL)
    markers = np.flatnonzero(wanted & head.has(Attributes.CONTROL))
    if markers.size:
        frames = window.frames
        is_whole = frames.sizes[markers] == window.sizes[markers]
        checked = take(frames.data, frames.starts[markers], frames.stops[markers])
        right = checked.sound & is_whole
        for at in np.flatnonzero(~is_whole).tolist():
            right[at] = is_sound(file, int(window.positions[markers[at]]), int(window.sizes[markers[at]]))
        wanted[markers] = right
    state.add(only(window.frames, wanted), head.only(wanted))
    if places is not None:
        for number, first in state.open_transactions().items():
            batches = np.flatnonzero(wanted & (head["base_offset"] == first) & (head["producer_id"] == number))
            if first not in places and batches.size:
                places[first] = (file, int(window.positions[batches[0]]), int(window.sizes[batches[0]]))


def _transactions(opened: Mapping[int, int], aborted: Iterable[AbortedTxn]) -> PartitionTransactions:
    ranges = sorted(
        ((entry.producer_id, entry.first_offset, entry.last_offset) for entry in aborted), key=lambda r: r[2]
    )
    table = np.array(ranges, np.int64).reshape(-1, 3)
    stable = min(opened.values(), default=NO_OFFSET)
    return PartitionTransactions(table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy(), stable, opened=opened)


# From the files next to the log --------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _read_indexes(group: tuple[File, ...]) -> PartitionTransactions | None:
    """The same without reading the log up to the newest snapshot; None if the files next to it are not enough.

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
    return _transactions(state.open_transactions(), [*aborted, *state.aborted]) if end >= newest else None


def _by_offset(group: Sequence[File], format: str) -> dict[int, File]:
    chosen = (file for file in group if file.format == format and file.place.state is None and file.problem is None)
    return {file.place.start_offset: file for file in chosen if file.place.start_offset is not None}


def _state_at(snapshot: File) -> folds.Producers:
    """The producers of a snapshot; DataError if it is damaged."""
    from rawlog.formats.kafka import SNAPSHOT
    from rawlog.io.walk import walk

    states: dict[int, folds.ProducerState] = {}
    for frames in walk(snapshot, SNAPSHOT, errors="raise"):
        if frames.status is not Status.OK:
            raise CorruptError("a cut snapshot", path=snapshot.path, position=0)
        raw = SNAPSHOT_ENTRY.take(frames.data, frames.starts)
        states |= {number: folds.ProducerState(*fields) for number, *fields in raw.tolist()}
    return folds.Producers.of(states, transactional_only=True)


def _entries(bases: list[int], indexes: Mapping[int, File], end: int) -> Iterator[AbortedTxn]:
    """The entries of the transaction indexes up to an offset; DataError for an entry that cannot be of its segment."""
    from rawlog.formats.kafka import TXN_INDEX_FILE
    from rawlog.io.walk import walk

    for base, following in zip(bases, [*bases[1:], NO_OFFSET], strict=True):
        if base not in indexes:
            continue
        before = base - 1
        for frames in walk(indexes[base], TXN_INDEX_FILE, errors="raise"):
            raw = TXN_INDEX_ENTRY.take(frames.data, frames.starts)
            for _, *fields in raw.tolist():
                entry = AbortedTxn(*fields)
                if not before < entry.last_offset < following or not 0 <= entry.first_offset <= entry.last_offset:
                    raise CorruptError("an entry of no transaction of the segment", path=indexes[base].path)
                before = entry.last_offset
                if entry.last_offset < end:
                    yield entry


def _has_abort(segment: File, end: int) -> bool:
    """Whether a segment holds the marker of an abort before an offset."""
    for window in skim(segment):
        head = window.head
        markers = head.sound & head.has(Attributes.CONTROL) & head.has(Attributes.TRANSACTIONAL)
        for index in np.flatnonzero(markers & (head["base_offset"] < end)).tolist():
            if read_marker(window.frames, index)[0] == ControlType.ABORT:
                return True
    return False


def _replay(state: folds.Producers, active: File, group: Sequence[File], start: int) -> int:
    """Take in the batches of the last segment from an offset on; returns the end of the log."""
    from rawlog.formats.kafka import LOG
    from rawlog.io.walk import walk

    end = active.place.start_offset or 0
    for frames in walk(active, LOG, start=seek(active, group, start, None), errors="skip"):
        head = heads(frames)
        sound = head.sound
        if sound.any():
            end = max(end, int(head["last_offset"][sound].max()) + 1)
        later = sound & (head["base_offset"] >= start)
        state.add(only(frames, later), head.only(later))
    return end
