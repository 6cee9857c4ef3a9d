"""How large the files of a store are: what a broker was told, as far as its own files show it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rawlog.errors import DataError, OptionError
from rawlog.format import File
from rawlog.formats.rocketmq import index
from rawlog.formats.rocketmq.layouts import BATCH_UNIT, DEFAULT_ENTRIES, DEFAULT_SLOTS, LARGEST_FILE, UNIT


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large a broker makes its files, in bytes; the index in slots and entries."""

    commit_log: int = 1 << 30
    queue: int = 300_000 * UNIT.size
    batch_queue: int = 300_000 * BATCH_UNIT.size
    ext: int = 48 << 20
    slots: int = DEFAULT_SLOTS
    entries: int = DEFAULT_ENTRIES

    def told(self, options: Mapping[str, str]) -> Sizes:
        """The same with what options say: `commitlog_size`, `queue_size`, `batch_queue_size`, `ext_size`, `index_slots` …"""
        names = {
            "commit_log": "commitlog_size",
            "queue": "queue_size",
            "batch_queue": "batch_queue_size",
            "ext": "ext_size",
            "slots": "index_slots",
            "entries": "index_entries",
        }
        changed = {}
        for field, option in names.items():
            if option in options:
                try:
                    changed[field] = int(options[option])
                except ValueError:
                    raise OptionError(f"{option} {options[option]!r}: a whole number expected") from None
                if changed[field] <= 0:
                    raise OptionError(f"{option} {changed[field]}: a number above zero expected")
        sized = replace(self, **changed)
        # A broker rounds these up to whole units.
        return replace(sized, queue=_up(sized.queue, UNIT.size), batch_queue=_up(sized.batch_queue, BATCH_UNIT.size))


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


def sizes_of(files: Iterable[File]) -> Sizes:
    """The sizes that a store's own files have; the defaults where it has none."""
    names = {
        "rocketmq.commitlog": "commit_log",
        "rocketmq.consumequeue": "queue",
        "rocketmq.batchconsumequeue": "batch_queue",
        "rocketmq.consumequeueext": "ext",
    }
    files = list(files)
    found: dict[str, int] = {}
    for format, name in names.items():
        size = usual_size([file for file in files if file.format == format and file.place.state is None])
        if size:
            found[name] = size
    for file in files:
        if file.format == "rocketmq.index" and file.problem is None and "slots" not in found:
            try:
                with index.Index(file.path) as opened:
                    if opened.header.count > 1:
                        found |= {"slots": opened.header.slots, "entries": opened.header.entries}
            except DataError:
                continue
    return replace(Sizes(), **found)
