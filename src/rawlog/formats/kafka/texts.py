"""The text files of a log directory: offset checkpoints, leader epochs, and the two that say who the directory is."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from rawlog.formats.kafka.paths import split
from rawlog.io.storage import Source, is_remote, is_view, local_path
from rawlog.kernels import columns
from rawlog.model.errors import CorruptError, DataError, RawlogError
from rawlog.model.explain import Node
from rawlog.model.format import File, Want
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status
from rawlog.model.store import Store

_SPACE = re.compile(rb"\s+")
_NUMBER = re.compile(rb"[+-]?[0-9]{1,25}")


def lines_of(data: Bytes) -> Frames:
    """The lines of a text, with their ends."""
    ends = np.flatnonzero(data == 10).astype(np.int64) + 1
    starts = np.concatenate(([0], ends)).astype(np.int64)
    stops = np.concatenate((ends, [data.size])).astype(np.int64)
    full = starts < data.size
    return Frames(data, starts[full], stops[full], int(data.size), Status.OK)


def line(frames: Frames, index: int) -> bytes:
    """One line without its end."""
    text = bytes(frames.data[int(frames.starts[index]) : int(frames.stops[index])])
    return text.removesuffix(b"\n").removesuffix(b"\r")


def _scan_checkpoint(data: Bytes, *kinds: int) -> Frames:
    """Lines of a checkpoint: `0`, the number of lines that follow, then rows of fields. Only the rows are frames.

    `kinds` are the bits that the number in each field may take; 0 for a text.
    """
    frames = lines_of(data)
    if not data.size:
        return frames
    if len(frames) < 2 or not _is_number(line(frames, 0), 32) or int(line(frames, 0)) != 0:
        return _refused(frames, 0, Status.BAD_MAGIC)
    if not _is_number(line(frames, 1), 32):
        return _refused(frames, 0, Status.BAD_MAGIC)
    rows = frames.slice(2, len(frames))
    for index in range(len(rows)):
        text = line(rows, index)
        parts = _SPACE.split(text.strip())
        sound = len(parts) == len(kinds) and b"\r" not in text  # for Java another line begins there
        sound = sound and all(
            _is_number(part, bits) if bits else _is_text(part) for part, bits in zip(parts, kinds, strict=True)
        )
        if not sound:
            return _refused(rows, index, Status.BAD_VALUE)
    if int(line(frames, 1)) != len(rows):
        return _refused(frames, 1, Status.BAD_COUNT)
    return Frames(data, rows.starts, rows.stops, int(data.size), Status.OK)


def _is_number(text: bytes, bits: int) -> bool:
    """Whether Java would read a number of so many bits here."""
    return _NUMBER.fullmatch(text) is not None and -(1 << bits - 1) <= int(text) < 1 << bits - 1


def _is_text(text: bytes) -> bool:
    """Whether Java would read the line: it takes nothing that is not UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _refused(frames: Frames, index: int, status: Status) -> Frames:
    """Nothing of a checkpoint counts that is wrong in one line, as for Kafka; the place is that line."""
    reached = int(frames.starts[index]) if index < len(frames) else 0
    return Frames(frames.data, frames.starts[:0], frames.stops[:0], reached, status)


def scan_offsets(data: Bytes, kind: int) -> Frames:
    """The `topic partition offset` rows of an offset checkpoint."""
    return _scan_checkpoint(data, 0, 32, 64)


def scan_epochs(data: Bytes, kind: int) -> Frames:
    """The `epoch offset` rows of a leader epoch checkpoint."""
    return _scan_checkpoint(data, 32, 64)


_WORDS = {
    Status.BAD_MAGIC: "not a checkpoint of version 0",
    Status.BAD_COUNT: "another number of lines than the second line says",
    Status.BAD_VALUE: "a line that is not one of its kind",
}


def fault(frames: Frames) -> DataError:
    """What is wrong where the scan of a text stopped."""
    return CorruptError(_WORDS.get(frames.status, "damage"), position=frames.reached_in_file)


def _rows(frames: Frames) -> Iterator[list[str]]:
    for index in range(len(frames)):
        yield [part.decode("utf-8", "replace") for part in _SPACE.split(line(frames, index).strip())]


def decode_offsets(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """The rows of an offset checkpoint."""
    rows = list(_rows(frames))
    name = split(want.file.path)[1].removesuffix("-offset-checkpoint")
    made = {
        "path": columns.constant(want.file.path, "string", len(rows)),
        "topic": pa.array([row[0] for row in rows], pa.string()),
        "partition": pa.array([int(row[1]) for row in rows], pa.int32()),
        "checkpoint": columns.constant(name, "string", len(rows)),
        "offset": pa.array([int(row[2]) for row in rows], pa.int64()),
    }
    if rows:
        yield columns.batch(want.table, made, len(rows))


def decode_epochs(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """The rows of a leader epoch checkpoint."""
    rows = list(_rows(frames))
    made = {
        "path": columns.constant(want.file.path, "string", len(rows)),
        "topic": columns.constant(want.file.place.topic, "string", len(rows)),
        "partition": columns.constant(want.file.place.partition, "int", len(rows)),
        "epoch": pa.array([int(row[0]) for row in rows], pa.int32()),
        "start_offset": pa.array([int(row[1]) for row in rows], pa.int64()),
    }
    if rows:
        yield columns.batch(want.table, made, len(rows))


def explain_line(frames: Frames, file: File) -> list[Node]:
    """One line of a text."""
    start, stop = int(frames.starts[0]), int(frames.stops[0])
    shown = line(frames, 0).decode("utf-8", "replace")
    raw = bytes(frames.data[start:stop])
    return [Node(frames.base + start, len(raw), "line", "text", shown, "", raw.hex(" "))]


def scan_text(check: Callable[[bytes], None]) -> Callable[[Bytes, int], Frames]:
    """A scan for texts that are right or wrong as a whole: `check` raises ValueError or KeyError for those that are wrong."""

    def scan(data: Bytes, kind: int) -> Frames:
        try:
            check(data.tobytes())
        except (ValueError, KeyError, RecursionError):
            return Frames(data, np.empty(0, np.int64), np.empty(0, np.int64), 0, Status.BAD_VALUE)
        return lines_of(data)

    return scan


def topic_id(data: bytes) -> bytes:
    """The 16 bytes of the topic's id in `partition.metadata`. ValueError if the text is not one."""
    found = re.fullmatch(rb"version: *0\r?\ntopic_id: *([A-Za-z0-9_-]{22})\s*", data)
    if found is None:
        raise ValueError("not a partition.metadata")
    try:
        raw = base64.urlsafe_b64decode(found.group(1) + b"==")
    except binascii.Error:
        raise ValueError("not a topic id") from None
    if not any(raw):
        raise ValueError("the topic id is all zeros")
    return raw


def properties(data: bytes) -> dict[str, str]:
    """The settings of a Java properties file as Kafka writes it. ValueError for bytes that are no text."""
    found: dict[str, str] = {}
    for text in data.decode("utf-8").splitlines():
        if text.strip() and not text.lstrip().startswith(("#", "!")):
            key, _, value = text.partition("=")
            found[key.strip()] = value.strip()
    return found


def check_meta(data: bytes) -> None:
    """ValueError for bytes that are no `meta.properties`."""
    found = properties(data)
    if found.get("version") not in ("0", "1"):
        raise ValueError("version")
    if found["version"] == "1" and not {"node.id", "cluster.id"} <= found.keys():
        raise ValueError("node.id and cluster.id")


def parse_quorum(data: bytes) -> dict[str, object]:
    """The election state in a `quorum-state`: epoch, vote and, in a static quorum, voters. ValueError if it is invalid."""
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict) or found.get("data_version") not in (0, 1):
        raise ValueError("not an election state of version 0 or 1")
    for name in ("leaderId", "leaderEpoch", "votedId"):
        if not isinstance(found.get(name), int) or isinstance(found[name], bool):
            raise ValueError(name)
    return found


def _check_cleanshutdown(data: bytes) -> None:
    if data:
        json.loads(data)


def _check_topic_id(data: bytes) -> None:
    topic_id(data)


scan_partition = scan_text(_check_topic_id)
scan_meta = scan_text(check_meta)
scan_cleanshutdown = scan_text(_check_cleanshutdown)


# ----------------------------------------------------------------------------------------------------------------------
# The text files at the top of a log directory that hold an offset for each partition.


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
