"""The text files at the top of a log directory that hold an offset for each partition."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from rawlog.core.errors import CorruptError, RawlogError
from rawlog.core.format import File
from rawlog.core.store import Store
from rawlog.formats.kafka.paths import split
from rawlog.io.storage import Source, is_remote, is_view, local_path

LARGEST = 64 << 20
_LINE = re.compile("\r\n?|\n")  # as Java; Python's lines end at more than that
LOG_START = "log-start-offset-checkpoint"
CLEANER = "cleaner-offset-checkpoint"
RECOVERY_POINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"


def parse(data: bytes) -> dict[tuple[str, int], int]:
    """The offsets of an offset checkpoint: a version line (0), a count, then `topic partition offset` lines.

    CorruptError if it is anything else, as Kafka would say.
    """
    if not data:
        return {}
    try:
        lines = _LINE.split(data.decode().removesuffix("\n"))
        if int(lines[0]) != 0:
            raise CorruptError(f"version {lines[0]}, 0 expected", position=0, expected=0, found=lines[0])
        rows = [line.split() for line in lines[2:]]
        if len(rows) != int(lines[1]) or any(len(row) != 3 for row in rows):
            raise CorruptError(f"{len(rows)} lines, {lines[1]} expected", position=0)
        return {(topic, int(partition)): int(offset) for topic, partition, offset in rows}
    except (ValueError, IndexError):
        raise CorruptError("not an offset checkpoint", position=0) from None


@lru_cache(maxsize=64)
def _log_starts(folder: str, stamp: object) -> Mapping[tuple[str, int], int]:
    """The log start offsets of a log directory; none where the file is missing or malformed, as for a broker."""
    return offsets_in(folder, LOG_START)


def log_start(file: File, group: Sequence[File]) -> int | None:
    """The first offset that a consumer still gets, where it lies above the segment's own."""
    if not group or file.place.topic is None or file.place.partition is None or file.place.group is None:
        return None
    folder = split(file.place.group)[0]
    offset = _log_starts(folder, Store.of(group).modified).get((file.place.topic, file.place.partition))
    return offset if offset is not None and offset > (file.place.start_offset or 0) else None


def parse_epochs(data: bytes) -> list[tuple[int, int]] | None:
    """The epochs of a leader epoch checkpoint with their first offsets; None if it is anything else."""
    try:
        lines = data.decode("ascii").splitlines()
        rows = [tuple(map(int, line.split())) for line in lines[2:]]
        if (
            (lines and int(lines[0]) != 0)
            or (lines and len(rows) != int(lines[1]))
            or any(len(row) != 2 for row in rows)
        ):
            return None
    except (ValueError, IndexError):
        return None
    return [(epoch, start) for epoch, start in rows]


def offsets_in(folder: str, name: str) -> Mapping[tuple[str, int], int]:
    """The offsets of a checkpoint file of a log directory; none where it is missing or malformed. A file is read once for all partitions
    that ask, unless it changes.
    """
    path = f"{folder}/{name}"
    if is_remote(path) or is_view(path):
        return _offsets_of(path)
    try:
        found = os.stat(local_path(path))
    except OSError:
        return {}
    return _cached_offsets(path, (found.st_mtime_ns, found.st_size, found.st_ino))


@lru_cache(maxsize=64)
def _cached_offsets(path: str, stamp: object) -> Mapping[tuple[str, int], int]:
    return MappingProxyType(_offsets_of(path))


def _offsets_of(path: str) -> dict[tuple[str, int], int]:
    try:
        with Source(path) as source:
            return parse(source.read(0, min(source.size, LARGEST)))
    except RawlogError:
        return {}


def write(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """The file of an offset checkpoint."""
    lines = "".join(f"{topic} {partition} {offset}\n" for (topic, partition), offset in sorted(offsets.items()))
    return f"0\n{len(offsets)}\n{lines}".encode()
