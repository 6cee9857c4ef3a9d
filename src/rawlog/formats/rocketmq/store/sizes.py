"""How large the files of a store are: what its broker is configured with, as far as its files, its settings and options show it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rawlog.core.errors import DataError, OptionError
from rawlog.core.format import File
from rawlog.formats.rocketmq import index
from rawlog.formats.rocketmq.layouts import (
    BATCH_UNIT,
    BLANK,
    DEFAULT_ENTRIES,
    DEFAULT_SLOTS,
    INDEX_ENTRY,
    INDEX_HEADER,
    LARGEST_FILE,
    MAGIC_BLANK,
    SLOT,
    UNIT,
)
from rawlog.formats.rocketmq.store.brokerconf import conf_near
from rawlog.io.storage import Source

PAGE = 4096
OPTIONS = {
    "commit_log": "commitlog_size",
    "queue": "queue_size",
    "batch_queue": "batch_queue_size",
    "ext": "ext_size",
    "slots": "index_slots",
    "entries": "index_entries",
}
"""The option for each size."""
CONF = {
    "commit_log": ("mappedFileSizeCommitLog", "mapedFileSizeCommitLog"),
    "queue": ("mappedFileSizeConsumeQueue", "mapedFileSizeConsumeQueue"),
    "batch_queue": ("mapperFileSizeBatchConsumeQueue",),
    "ext": ("mappedFileSizeConsumeQueueExt",),
    "slots": ("maxHashSlotNum",),
    "entries": ("maxIndexNum",),
}
"""The broker's own names for each size, in order; old brokers had `maped`."""
FORMATS = {
    "rocketmq.commitlog": "commit_log",
    "rocketmq.consumequeue": "queue",
    "rocketmq.batchconsumequeue": "batch_queue",
    "rocketmq.consumequeueext": "ext",
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large a broker makes its files, in bytes; the index in slots and entries. `known` are those that something shows."""

    commit_log: int = 1 << 30
    queue: int = 300_000 * UNIT.size
    batch_queue: int = 300_000 * BATCH_UNIT.size
    ext: int = 48 << 20
    slots: int = DEFAULT_SLOTS
    entries: int = DEFAULT_ENTRIES
    known: frozenset[str] = frozenset()

    def told(self, options: Mapping[str, str]) -> Sizes:
        """The same with what options say: `commitlog_size`, `queue_size`, `batch_queue_size`, `ext_size`, `index_slots` …"""
        changed = {}
        for field, option in OPTIONS.items():
            if option in options:
                try:
                    changed[field] = int(options[option])
                except ValueError:
                    raise OptionError(f"{option} {options[option]!r}: a whole number expected") from None
                if changed[field] <= 0:
                    raise OptionError(f"{option} {changed[field]}: a number above zero expected")
        return self.having(changed)

    def having(self, found: Mapping[str, int]) -> Sizes:
        """The same with these sizes, which are known."""
        sized = replace(self, **found, known=self.known | set(found))
        # A broker rounds these up to whole units.
        return replace(sized, queue=_up(sized.queue, UNIT.size), batch_queue=_up(sized.batch_queue, BATCH_UNIT.size))

    @property
    def is_index_known(self) -> bool:
        return {"slots", "entries"} <= self.known


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def usual_size(files: Sequence[File]) -> int:
    """The size that a broker gives the files of a log or of queues; 0 if none of them shows it.

    The one that most files have and most names are multiples of, for the name of a file is the address of its first byte. Where all files
    were cut or lengthened, the names alone tell.
    """
    named = [file for file in files if file.place.start_offset is not None]
    sizes = Counter(file.size for file in named if file.size)
    starts = [file.place.start_offset or 0 for file in named]
    apart = math.gcd(*starts)
    wanted = set(sizes)
    if min(sizes, default=1) <= 2 * apart and apart <= LARGEST_FILE:
        wanted.add(apart)

    def credit(size: int) -> tuple[int, int, int]:
        fitting = sum(start % size == 0 for start in starts)
        return fitting + sizes[size], fitting, size

    return max(wanted, key=credit, default=0)


def shown_size(files: Sequence[File], field: str) -> int:
    """The same if it is certain: a lone file may have been cut. 0 if it is not."""
    size = usual_size(files)
    same = [file for file in files if file.size == size]
    starts = {file.place.start_offset or 0 for file in files if file.place.start_offset is not None}
    if not size:
        return 0
    if len(same) > 1 or (same and any(start and start % size == 0 for start in starts)):
        return size
    if not same:  # the distance between two names
        return size if any(start + size in starts for start in starts) else 0
    return size if _is_uncut(same[0], field) else 0


def _is_uncut(file: File, field: str) -> bool:
    """Whether a lone file has the size that its broker gave it, as far as its end shows."""
    if file.size == getattr(Sizes(), field):
        return True
    if field in ("queue", "batch_queue"):
        return file.size % (UNIT if field == "queue" else BATCH_UNIT).size == 0
    if field == "ext":
        return file.size % PAGE == 0
    with Source(file.path) as source:
        tail = source.read(max(0, file.size - PAGE), PAGE)
        if file.size % PAGE == 0 and not any(tail[-BLANK.size :]):
            return True
    # A blank entry says how much of the file is left.
    room = np.frombuffer(tail[len(tail) % 4 :], ">i4")
    blanks = np.flatnonzero(room[1:] == MAGIC_BLANK)
    return any(int(room[at]) == (room.size - at) * 4 for at in blanks.tolist())


def sizes_of(files: Iterable[File]) -> Sizes:
    """The sizes that a store's own files have, else those of a `broker.conf` near it, else the defaults, which are not `known`."""
    files = [file for file in files if file.problem is None and file.place.state is None]
    found: dict[str, int] = {}
    for format, name in FORMATS.items():
        size = shown_size([file for file in files if file.format == format], name)
        if size:
            found[name] = size
    found |= _index_sizes([file for file in files if file.format == "rocketmq.index"])
    conf = conf_near(files)
    if conf is not None:
        for name, names in CONF.items():
            found.setdefault(name, conf.number(*names) or getattr(Sizes(), name))
    return Sizes().having(found)


def _index_sizes(files: Sequence[File]) -> dict[str, int]:
    """Slots and entries of index files, by one that has the size of most of them; none if they are not certain."""
    sizes = Counter(file.size for file in files)
    for file in sorted(files, key=lambda file: -sizes[file.size]):
        try:
            with index.Index(file.path) as opened:
                slots, entries, count = opened.header.slots, opened.header.entries, opened.header.count
        except DataError:
            continue
        rest = file.size - INDEX_HEADER.size - slots * SLOT.size
        is_whole = rest == entries * INDEX_ENTRY.size and count <= entries
        if count > 1 and is_whole and (sizes[file.size] > 1 or entries % 10 == 0):
            return {"slots": slots, "entries": entries}
    return {}
