"""Partitions of a log directory that have no segment, although checkpoints count their records: for `verify` and `repair` alike."""

from __future__ import annotations

import glob
from collections.abc import Container
from dataclasses import dataclass

from rawlog.core.errors import AccessError
from rawlog.formats.kafka.checkpoints import HIGH_WATERMARK, LOG_START, RECOVERY_POINT, offsets_in
from rawlog.formats.kafka.paths import METADATA_TOPIC, directory_place, split
from rawlog.io.storage import exists, listing

#: The checkpoints that a broker writes of the partitions it has, and of no others. (The cleaner's keeps lines of deleted topics.)
COUNTING = (RECOVERY_POINT, HIGH_WATERMARK)


@dataclass(frozen=True, slots=True)
class Missing:
    """A partition of which nothing is there, and the offsets from `first` to before `stop` that a checkpoint counts."""

    directory: str
    checkpoint: str
    first: int
    stop: int

    @property
    def is_certain(self) -> bool:
        """Whether its directory is there: otherwise the others may be a copy of a part of the log directory."""
        return exists(self.directory)

    def __str__(self) -> str:
        name, counted = split(self.directory)[1], split(self.checkpoint)[1]
        what = "has no segment" if self.is_certain else "is not here"
        return f"{name} {what}: offsets {self.first} to {self.stop - 1} are missing, which {counted} counts"


def is_counting(path: str) -> bool:
    """Whether a file is a checkpoint that counts the records of partitions."""
    return split(path)[1] in COUNTING


def missing_partitions(folder: str, known: Container[str]) -> list[Missing]:
    """The partitions of a log directory that have no segment, by name. `known` are directories that have one.

    A partition that a broker has put aside is not missing: it was deleted, or is being moved. Where more directories are gone than there
    are, these were copied alone, and nothing is said of the others.
    """
    starts, found, there = offsets_in(folder, LOG_START), dict[str, Missing](), set[str]()
    for name in COUNTING:
        for (topic, partition), stop in offsets_in(folder, name).items():
            directory, first = f"{folder}/{topic}-{partition}", max(starts.get((topic, partition), 0), 0)
            if directory in known:
                there.add(directory)
            elif topic != METADATA_TOPIC and stop > first and "/" not in topic:
                before = found.get(directory)
                if before is None or before.stop < stop:
                    found[directory] = Missing(directory, f"{folder}/{name}", first, stop)
    gone = [one for _, one in sorted(found.items()) if not has_segment(one.directory) and not _is_aside(one.directory)]
    is_part = sum(not one.is_certain for one in gone) > len(there)
    return [one for one in gone if one.is_certain] if is_part else gone


def has_segment(directory: str) -> bool:
    """Whether a partition directory has a segment that a broker would load."""
    try:
        return any(split(one.path)[1].endswith(".log") for one in listing(directory))
    except AccessError:
        return False


def _is_aside(directory: str) -> bool:
    """Whether a broker has renamed a partition directory."""
    try:
        return any(directory_place(split(one.path)[0]).state for one in listing(f"{glob.escape(directory)}.*"))
    except AccessError:
        return False
