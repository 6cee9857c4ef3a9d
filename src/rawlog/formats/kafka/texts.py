"""The text files of a log directory: offset checkpoints, leader epochs, and the two that say who the directory is."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from rawlog.core.errors import CorruptError, DataError
from rawlog.core.explain import Node
from rawlog.core.format import File, Want
from rawlog.core.frames import Bytes, Frames
from rawlog.core.status import Status
from rawlog.formats.kafka.paths import split
from rawlog.kernels import columns

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
