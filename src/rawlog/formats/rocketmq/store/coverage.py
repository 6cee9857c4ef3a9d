"""Which offsets of a queue are there: those that messages of the commit log have, and those that the consume queue says it should have.

The log is the truth: a message has its queue offset. The consume queue shows what was there and is not any more, since the place of a unit
is its offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.rocketmq.store.compaction import units_of
from rawlog.formats.rocketmq.store.dispatch import (
    U_BATCH,
    U_OFFSET,
    U_PHYSICAL,
    Queue,
)
from rawlog.formats.rocketmq.store.store import View
from rawlog.model.errors import RawlogError
from rawlog.model.finding import Few, Mark
from rawlog.model.intervals import (
    Ranges,
    between,
    clipped,
    total,
)

Numbers = NDArray[np.int64]
LARGEST_OFFSET = 1 << 60
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
class Covered:
    """The offsets of a queue by class. `missing` says of each run that nothing explains where it should be."""

    queue: Queue
    start: int
    stop: int
    present: int
    placeholders: int
    expired: int
    compacted: int | None
    unexplained: int
    missing: Few = field(default_factory=Few)


def cover(store: View, queue: Queue, units: Numbers, entries: Entries | None = None) -> Covered:
    """The classes of a queue's offsets. `units` are those that the log gives (`U_…`), `entries` those of its consume queue."""
    entries = Entries.none() if entries is None else entries
    valid = (units[U_OFFSET] >= 0) & (units[U_OFFSET] < LARGEST_OFFSET)
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
    made = Covered(
        queue, start, stop, stop - start - unexplained - placeholders, placeholders, start, None, unexplained
    )
    listed = made.missing.most
    for first, final in missing[:listed].tolist():
        made.missing.append(_mark(store, made, units, entries, first, final))
    if len(rest := missing[listed:]):
        what = f"{queue[0]} queue {queue[1]}: {total(rest):,} more offsets are missing, in {len(rest):,} runs"
        made.missing.append(Mark(what, offset=int(rest[0, 0]), path=store.root))
    _compacted(store, made)
    return made


def _bounds(store: View, rows: Ranges, entries: Entries) -> tuple[int, int]:
    """The first offset that should be there, and the end. A broker deletes the commit log from its start: messages before it have expired.

    In a log from byte 0 on nothing has, so that a queue begins with 0, unless its consume queue begins with units of no message.
    """
    good = entries.counts > 0
    ends = (entries.numbers + entries.counts)[good]
    stop = max([0, *([int(rows[:, 1].max()) + 1] if len(rows) else []), *([int(ends.max())] if ends.size else [])])
    if store.begin == 0 and bool(entries.is_real[:1].all()):
        return 0, stop
    there = entries.numbers[good & entries.is_real & (entries.addresses >= store.begin)]
    starts = [*rows[:1, 0].tolist(), *there[:1].tolist()]
    return min([*starts, stop]), stop


def _words(queue: Queue, first: int, last: int) -> str:
    return f"{queue[0]} queue {queue[1]}: offsets {first} to {last} are missing, {last - first + 1:,} in all"


def _mark(store: View, made: Covered, units: Numbers, entries: Entries, first: int, last: int) -> Mark:
    """Where a run of missing offsets should be: where the consume queue says that the first of them is, or before the next message."""
    words = _words(made.queue, first, last)
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


def _compacted(store: View, made: Covered) -> None:
    """Of a compaction topic, the offsets before the commit log begins are in a log of their own, or compaction took them out."""
    files = [
        one for one in store.of("rocketmq.compactioncq") if _queue(one.place.topic, one.place.partition) == made.queue
    ]
    kept: set[int] = set()
    for file in files:
        try:
            kept.update(units_of(file)[0]["base_offset"].tolist())
        except RawlogError:
            continue  # a finding of its own
    if files:
        there = sum(0 <= one < made.start for one in kept)
        made.compacted, made.present, made.expired, made.start = made.start - there, made.present + there, 0, 0


def _queue(topic: str | None, number: int | None) -> Queue:
    return str(topic), int(number or 0)
