"""The text files at the top of a log directory that hold an offset for each partition.

Authority: org.apache.kafka.server.common.CheckpointFile at apache/kafka 1eb7644349cb (4.0.0-SNAPSHOT).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

import pyarrow as pa

from rawlog.formats.kafka.paths import split
from rawlog.formats.kafka.texts import explain, fault, fields_of, scan_rows
from rawlog.io.storage import Source, is_remote, is_view, local_path
from rawlog.kernels import columns
from rawlog.model.errors import CorruptError, RawlogError
from rawlog.model.format import File, Want
from rawlog.model.frames import Bytes, Frames
from rawlog.model.store import Store

__all__ = ["decode", "explain", "fault", "scan"]

LARGEST = 64 << 20
_LINE = re.compile("\r\n?|\n")  # as Java; Python's lines end at more than that
LOG_START = "log-start-offset-checkpoint"
CLEANER = "cleaner-offset-checkpoint"
RECOVERY_POINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"


def scan(data: Bytes, kind: int) -> Frames:
    """The `topic partition offset` rows."""
    return scan_rows(data, 0, 32, 64)


def decode(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """The rows of `kafka.checkpoints`."""
    rows = list(fields_of(frames))
    name = split(want.file.path)[1].removesuffix("-offset-checkpoint")
    arrays = {
        "path": columns.constant(want.file.path, "string", len(rows)),
        "topic": pa.array([row[0] for row in rows], pa.string()),
        "partition": pa.array([int(row[1]) for row in rows], pa.int32()),
        "checkpoint": columns.constant(name, "string", len(rows)),
        "offset": pa.array([int(row[2]) for row in rows], pa.int64()),
    }
    if rows:
        yield columns.batch(want.table, arrays, len(rows))


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


def offsets_in(folder: str, name: str) -> Mapping[tuple[str, int], int]:
    """The offsets of a checkpoint file of a log directory; none where it is missing or malformed. A file is read once for all partitions
    that ask, unless it changes.
    """
    path = f"{folder}/{name}"
    if is_remote(path) or is_view(path):
        return _offsets_of(path)
    try:
        stat = os.stat(local_path(path))
    except OSError:
        return {}
    return _cached_offsets(path, (stat.st_mtime_ns, stat.st_size, stat.st_ino))


@lru_cache(maxsize=64)
def _cached_offsets(path: str, stamp: object) -> Mapping[tuple[str, int], int]:
    return MappingProxyType(_offsets_of(path))


def _offsets_of(path: str) -> dict[tuple[str, int], int]:
    try:
        return parse(_content(path))
    except RawlogError:
        return {}


def is_written(folder: str, name: str) -> bool:
    """Whether a checkpoint file of a log directory has been written, perhaps without any partition. A broker that starts makes an empty
    file first.
    """
    try:
        content = _content(f"{folder}/{name}")
        parse(content)
        return bool(content)
    except RawlogError:
        return False


def _content(path: str) -> bytes:
    with Source(path) as source:
        return source.read(0, min(source.size, LARGEST))


def checkpoint_text(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """The file of an offset checkpoint."""
    lines = "".join(f"{topic} {partition} {offset}\n" for (topic, partition), offset in sorted(offsets.items()))
    return f"0\n{len(offsets)}\n{lines}".encode()
