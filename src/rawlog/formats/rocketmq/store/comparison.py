"""The queues and the key index of a store compared with its commit log, from which both are derived."""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.rocketmq.index import Index
from rawlog.formats.rocketmq.layouts import BATCH_UNIT, PRE_BLANK_SIZE, UNIT
from rawlog.formats.rocketmq.store.dispatch import (
    U_BATCH,
    U_OFFSET,
    U_PHYSICAL,
    U_SIZE,
    U_TAG,
    Queue,
)
from rawlog.formats.rocketmq.store.rewrite import place_units, units_of
from rawlog.formats.rocketmq.store.settings import ext_tags
from rawlog.formats.rocketmq.store.store import View, views
from rawlog.io.storage import Source
from rawlog.model.errors import RawlogError
from rawlog.model.finding import Few, Mark, Severity
from rawlog.model.format import File
from rawlog.model.layout import Layout
from rawlog.model.outline import (
    Ranges,
    between,
    clipped,
    total,
)
from rawlog.model.store import Store
from rawlog.model.text import counted, missing_text

Numbers = NDArray[np.int64]
QUEUE_OFFSET_LIMIT = 1 << 60
"""Queue offsets from here on are damage. Below, an offset and the size of a batch have a sum of 64 bits."""
LARGEST_BATCH = 1 << 31


@dataclass(frozen=True, slots=True)
class Entries:
    """The units of a consume queue: offset, how many messages, address in the commit log, and whether it is of a message at all."""

    numbers: Numbers
    counts: Numbers
    addresses: Numbers
    is_real: NDArray[np.bool_]

    @classmethod
    def none(cls) -> Entries:
        empty = np.empty(0, np.int64)
        return cls(empty, empty, empty, np.empty(0, np.bool_))


@dataclass(slots=True)
class Coverage:
    """The offsets of a queue by class; `missing` has a place for each run that nothing explains."""

    queue: Queue
    start: int
    stop: int
    present: int
    placeholders: int
    expired: int
    compacted: int | None
    unexplained: int
    missing: Few = field(default_factory=Few)


def cover(store: View, queue: Queue, units: Numbers, entries: Entries | None = None) -> Coverage:
    """Class the offsets of a queue. `units` come from the log (`U_…`), `entries` from its consume queue."""
    entries = Entries.none() if entries is None else entries
    valid = (units[U_OFFSET] >= 0) & (units[U_OFFSET] < QUEUE_OFFSET_LIMIT)
    units = units if valid.all() else units[:, valid]
    rows: Ranges = np.empty((units.shape[1], 2), np.int64)
    rows[:, 0] = units[U_OFFSET]
    rows[:, 1] = units[U_OFFSET] + np.clip(units[U_BATCH], 1, LARGEST_BATCH) - 1
    placeholders = total(rows[np.isin(units[U_PHYSICAL], store.fillers)]) if store.fillers else 0
    if (rows[1:, 0] < rows[:-1, 0]).any():
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
    start, stop = _bounds(store, rows, entries)
    missing = between(clipped(rows, start, stop), start, stop)
    unexplained = total(missing)
    coverage = Coverage(
        queue, start, stop, stop - start - unexplained - placeholders, placeholders, start, None, unexplained
    )
    listed = coverage.missing.most
    for first, final in missing[:listed].tolist():
        coverage.missing.append(_mark(store, coverage, units, entries, first, final))
    if len(rest := missing[listed:]):
        message = f"{queue[0]} queue {queue[1]}: {total(rest):,} more offsets are missing, in {len(rest):,} runs"
        coverage.missing.append(Mark(message, offset=int(rest[0, 0]), path=store.root))
    _add_compacted(store, coverage)
    return coverage


def _bounds(store: View, rows: Ranges, entries: Entries) -> tuple[int, int]:
    """The first offset that should be there, and the end. A broker deletes the commit log from its start: messages before it have expired.

    In a log from byte 0 on nothing has, so that a queue begins with 0, unless its consume queue begins with units of no message.
    """
    good = entries.counts > 0
    ends = (entries.numbers + entries.counts)[good]
    stop = max([0, *([int(rows[:, 1].max()) + 1] if len(rows) else []), *([int(ends.max())] if ends.size else [])])
    if store.begin == 0 and bool(entries.is_real[:1].all()):
        return 0, stop
    numbers = entries.numbers[good & entries.is_real & (entries.addresses >= store.begin)]
    starts = [*rows[:1, 0].tolist(), *numbers[:1].tolist()]
    return min([*starts, stop]), stop


def _words(queue: Queue, first: int, last: int) -> str:
    return f"{queue[0]} queue {queue[1]}: {missing_text(first, last, counts=True)}"


def _mark(store: View, coverage: Coverage, units: Numbers, entries: Entries, first: int, last: int) -> Mark:
    """Where a run of missing offsets should be: at the address in the consume queue, else before the next message."""
    words = _words(coverage.queue, first, last)
    at = np.flatnonzero((entries.numbers == first) & entries.is_real)
    if at.size:
        address = int(entries.addresses[at[0]])
        place = store.log_at(address)
        if place is None:
            is_after = address >= store.end
            why = "after the end of the commit log" if is_after else "in a commit-log file that is missing"
            return Mark(f"{words}: byte {address:,} of the log is {why}", offset=first, path=store.root, found=address)
        return Mark(f"{words}: no sound message is there", place[1], offset=first, path=place[0])
    after = units[:, units[U_OFFSET] > last]
    place = store.log_at(int(after[U_PHYSICAL, np.argmin(after[U_OFFSET])])) if after.size else None
    why = "no message of the commit log has them"
    if place is None:
        return Mark(f"{words}: {why}", offset=first, path=store.root)
    return Mark(f"{words}: {why}, and they belong before this one", place[1], offset=first, path=place[0])


def _add_compacted(store: View, coverage: Coverage) -> None:
    """Of a compaction topic, the offsets before the commit log begins are in a log of their own, or compaction took them out."""
    files = [
        file
        for file in store.of("rocketmq.compactioncq")
        if _queue(file.place.topic, file.place.partition) == coverage.queue
    ]
    kept: set[int] = set()
    for file in files:
        try:
            kept.update(units_of(file)[0]["base_offset"].tolist())
        except RawlogError:
            continue  # a finding of its own
    if files:
        count = sum(0 <= offset < coverage.start for offset in kept)
        coverage.compacted, coverage.present, coverage.expired, coverage.start = (
            coverage.start - count,
            coverage.present + count,
            0,
            0,
        )


def _queue(topic: str | None, number: int | None) -> Queue:
    return str(topic), int(number or 0)


def queue_units(files: list[File], layout: Layout) -> NDArray[np.void]:
    """The valid units of a queue's files, end to end."""
    pieces = []
    for file in files:
        with Source(file.path) as source:
            rows = layout.view(np.frombuffer(source.read(0, source.size), np.uint8))
        valid = (rows["physical_offset"] >= 0) & (rows["size"] > 0)
        count = int(np.argmin(valid)) if not valid.all() else len(rows)
        pieces.append(rows[:count])
        if count < len(rows):
            break
    return np.concatenate(pieces) if pieces else np.empty(0, layout.dtype)


def message_addresses(units: NDArray[np.void]) -> Numbers:
    """The addresses of the messages in units of a queue. Units that fill the place before its first message have none."""
    addresses: Numbers = units["physical_offset"][units["size"] != PRE_BLANK_SIZE].astype(np.int64)
    return addresses


class Comparison:
    """A queue as its files have it, next to what the commit log says."""

    def __init__(self, store: View, queue: Queue, files: list[File]) -> None:
        self.store, self.queue, self.files = store, queue, files
        self.is_batch = files[0].format == "rocketmq.batchconsumequeue"
        layout = BATCH_UNIT if self.is_batch else UNIT
        self.unit_size = layout.size
        self.rows = queue_units(files, layout)
        self.log_units = self.expected_units = store.units(queue)
        if self.expected_units.shape[1] and not self.is_batch:
            _, self.expected_units, _ = place_units(self.log_units)
        self.addresses = self.rows["physical_offset"].astype(np.int64)
        self.is_real = self.rows["size"] != PRE_BLANK_SIZE

    @property
    def entries(self) -> Entries:
        """The units with the queue offsets that their places give."""
        if self.is_batch:
            numbers, counts = self.rows["base_offset"].astype(np.int64), self.rows["batch_size"].astype(np.int64)
        else:
            left, pieces = len(self.rows), [np.empty(0, np.int64)]
            for file in self.files:
                count = min(left, file.size // self.unit_size)
                pieces.append((file.place.start_offset or 0) // self.unit_size + np.arange(count))
                left -= count
            numbers = np.concatenate(pieces)
            counts = np.ones(numbers.size, np.int64)
        return Entries(numbers, counts, self.addresses, self.is_real)

    def place(self, row: int) -> tuple[str, int]:
        """The file and position of a unit."""
        position = row * self.unit_size
        for file in self.files:
            if position < file.size:
                return file.path, position
            position -= file.size
        return self.files[-1].path, position

    @property
    def end(self) -> int:
        """The address after the last message that the queue knows; -1 if it knows none."""
        real = self.rows[self.is_real]
        return int(real["physical_offset"][-1]) + int(real["size"][-1]) if len(real) else -1

    def differing(self) -> Iterator[Mark]:
        """Units that contradict the log about their messages."""
        if not self.expected_units.shape[1] or not len(self.rows):
            return
        ext = self.store.queues("rocketmq.consumequeueext").get(self.queue, [])
        tags = ext_tags(self.rows["tag_hash"].astype(np.int64), ext)
        order = np.searchsorted(self.expected_units[U_PHYSICAL], self.addresses)
        order = np.minimum(order, self.expected_units.shape[1] - 1)
        same = (self.expected_units[U_PHYSICAL][order] == self.addresses) & self.is_real
        wrong = same & (
            (self.rows["size"] != self.expected_units[U_SIZE][order]) | (tags != self.expected_units[U_TAG][order])
        )
        if self.is_batch:
            wrong |= same & (self.rows["base_offset"] != self.expected_units[U_OFFSET][order])
            wrong |= same & (self.rows["batch_size"] != self.expected_units[U_BATCH][order])
        for row in np.flatnonzero(wrong).tolist():
            path, position = self.place(row)
            yield Mark(
                "a unit that differs from its message",
                position,
                self.unit_size,
                expected=f"size {int(self.expected_units[U_SIZE][order[row]])}, tag hash {int(self.expected_units[U_TAG][order[row]])}",
                found=f"size {int(self.rows['size'][row])}, tag hash {int(tags[row])}",
                path=path,
            )

    def dangling(self) -> Iterator[Mark]:
        """Units that point to no message, although the log has the address or ends before it."""
        order = np.searchsorted(self.expected_units[U_PHYSICAL], self.addresses)
        has_message = np.zeros(len(self.rows), np.bool_)
        inside = order < self.expected_units.shape[1]
        has_message[inside] = self.expected_units[U_PHYSICAL][order[inside]] == self.addresses[inside]
        lost = ~has_message & self.is_real & (self.addresses >= self.store.begin)
        for log, following in itertools.pairwise(self.store.logs):  # not in commit-log files that are missing
            lost &= (self.addresses < log.stop) | (self.addresses >= following.start)
        for row in np.flatnonzero(lost).tolist():
            path, position = self.place(row)
            is_after = self.addresses[row] >= self.store.end
            yield Mark(
                "a unit that points past the end of the log; a broker would cut it off"
                if is_after
                else "a unit that points to no message",
                position,
                self.unit_size,
                found=int(self.addresses[row]),
                path=path,
            )

    def missing(self) -> Iterator[Mark]:
        """Messages of the log that the queue does not have."""
        is_present = np.isin(self.expected_units[U_PHYSICAL], self.addresses)
        absent = np.flatnonzero(~is_present)
        if absent.size:
            yield _missing_mark(
                self.store, self.queue, self.expected_units, absent, bool(is_present[absent[0] :].any())
            )


@dataclass(slots=True)
class ComparisonResult:
    """What a comparison of the commit log with every queue gave: the findings of each rule, and the last address that any queue knows."""

    differing: list[Mark] = field(default_factory=list)
    dangling: list[Mark] = field(default_factory=list)
    missing: list[Mark] = field(default_factory=list)
    gaps: list[Mark] = field(default_factory=list)
    #: Which offsets of each queue are there.
    covered: list[Coverage] = field(default_factory=list)
    end: int = -1


def comparison_of(files: Sequence[File]) -> ComparisonResult:
    """The comparison of a store's queues with its log, computed once for all rules."""
    return Store.of(files).share(_compare)


def _compare(files: Store) -> ComparisonResult:
    result = ComparisonResult()
    for store in views(files):
        formats = ("rocketmq.consumequeue", "rocketmq.batchconsumequeue")
        queues = [pair for format in formats for pair in sorted(store.queues(format).items())]
        for queue, queue_files in queues:
            comparison = Comparison(store, queue, queue_files)
            result.end = max(result.end, comparison.end)
            if store.logs:
                result.differing += comparison.differing()
                result.dangling += comparison.dangling()
                result.missing += comparison.missing()
                result.covered.append(cover(store, queue, comparison.log_units, comparison.entries))
            result.gaps += _gaps(store, queue, comparison.log_units)
        files_of = dict(queues)
        for queue in store.derived_queues():
            if queue not in files_of:
                units = store.units(queue)
                result.gaps += _gaps(store, queue, units)
                result.covered.append(cover(store, queue, units))
                if queues:
                    result.missing.append(_missing_mark(store, queue, units, np.arange(units.shape[1]), False))
    return result


def _missing_mark(store: View, queue: Queue, units: NDArray[np.int64], absent: NDArray[np.int64], inside: bool) -> Mark:
    first = units[:, int(absent[0])]
    state = "in the middle of the queue" if inside else "at its end"
    return Mark(
        f"{queue[0]} queue {queue[1]}: {absent.size:,} messages of the commit log are missing {state}",
        offset=int(first[U_OFFSET]),
        found=f"physical offset {int(first[U_PHYSICAL])}",
        path=store.root,
        severity=Severity.INFO if store.is_unclean and not inside else Severity.ERROR,
    )


def _gaps(store: View, queue: Queue, units: NDArray[np.int64]) -> Iterator[Mark]:
    following = units[U_OFFSET] + units[U_BATCH]
    for row in np.flatnonzero(units[U_OFFSET][1:] != following[:-1]).tolist():
        start, stop = int(units[U_PHYSICAL][row]), int(units[U_PHYSICAL][row + 1])
        is_covered = units[U_OFFSET][row + 1] > following[row] and _has_filler(store, start, stop)
        path, position = store.log_at(stop) or (store.root, None)
        yield Mark(
            f"{queue[0]} queue {queue[1]}: queue offset {int(units[U_OFFSET][row + 1])}, {int(following[row])} expected",
            position=position,
            size=int(units[U_SIZE][row + 1]),
            offset=int(units[U_OFFSET][row + 1]),
            expected=int(following[row]),
            found=int(units[U_OFFSET][row + 1]),
            path=path,
            severity=Severity.INFO if is_covered else Severity.WARNING,
        )


def _has_filler(store: View, start: int, stop: int) -> bool:
    """Whether an entry that covers a hole is between two addresses."""
    number = bisect.bisect_left(store.fillers, start)
    return number < len(store.fillers) and store.fillers[number] < stop


def compare_index(store: View) -> Iterator[Mark]:
    """What is wrong in the key index, compared with the log, the keys of some messages at a time.

    Tags may be there or not: brokers from 5.4.0 on index them, and leave what older ones wrote as it is.
    """
    index_files = []
    for file in sorted(store.of("rocketmq.index"), key=lambda file: file.path):
        with contextlib.suppress(RawlogError):
            if (rows := _index_rows(file)).size:
                index_files.append((file, int(rows[1, 0]), int(rows[1, -1]), int(rows[1].min()), int(rows[1].max())))
    if not index_files:
        return
    begin, end = index_files[0][1], index_files[-1][2]
    load = functools.lru_cache(maxsize=2)(_index_rows)
    missing, first_missing = 0, -1
    wrong: dict[str, list[int]] = {}
    start, before = store.begin, np.empty((3, 0), np.int64)
    for keys in (*store.key_runs(), None):
        # The keys of one run, and what the index has from its first message to that of the next.
        stop = store.end if keys is None else int(keys[1, 0])
        present = []
        for file, _, _, low, high in index_files:
            if low < stop and high >= start:
                rows = load(file)
                hits = np.flatnonzero((rows[1] >= start) & (rows[1] < stop))
                present.append(rows[:, hits])
                bad = hits[~_among(present[-1], before[:2])].tolist()
                wrong.setdefault(file.path, []).extend(bad)
        absent = ~_among(before[:2], np.concatenate([*present, np.empty((2, 0), np.int64)], axis=1))
        # Of the message at either end some keys may lie in a file that is gone or not begun.
        absent &= (before[1] > begin) & (before[1] < end) & (before[2] == 0)
        if absent.any():
            missing += int(absent.sum())
            first_missing = int(before[1, np.argmax(absent)]) if first_missing < 0 else first_missing
        if keys is not None:
            start, before = max(stop, store.begin), keys
    if missing:
        yield Mark(
            f"{missing:,} keys of messages are not in the key index",
            path=index_files[0][0].path,
            found=f"the first at physical offset {first_missing}",
        )
    for file, _, _, _, high in index_files:
        if bad := wrong.get(file.path):
            entries = counted(len(bad), "entry of the key index belongs", "entries of the key index belong")
            message = f"{entries} to no key of a message"
            yield Mark(message, path=file.path, found=f"entry {min(bad) + 1}")
        if high >= store.end:
            past = np.flatnonzero(load(file)[1] >= store.end)
            yield Mark(
                f"{past.size:,} entries of the key index point past the end of the log",
                path=file.path,
                found=f"entry {int(past[0]) + 1}",
                severity=Severity.INFO if store.is_unclean else Severity.WARNING,
            )


def _index_rows(file: File) -> NDArray[np.int64]:
    """The hashes and addresses that an index file has."""
    with Index(file.path) as index:
        rows = index.table()[1:]
    return np.stack((rows["key_hash"].astype(np.int64), rows["physical_offset"].astype(np.int64)))


def _among(keys: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which pairs of hash and address are among some others."""
    count = others.shape[1]
    hashes, addresses = np.concatenate((others, keys), axis=1)
    order = np.lexsort((hashes, addresses))  # stable: the others come first among equals
    hashes, addresses = hashes[order], addresses[order]
    is_new = np.ones(order.size, np.bool_)
    is_new[1:] = (hashes[1:] != hashes[:-1]) | (addresses[1:] != addresses[:-1])
    first = order[np.flatnonzero(is_new)]
    is_present = np.empty(order.size, np.bool_)
    is_present[order] = first[np.cumsum(is_new) - 1] < count
    return is_present[count:]
