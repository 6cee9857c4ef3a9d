"""Text files of a broker: their lines as frames, checkpoints of rows, and texts that are right or wrong as a whole.

The latter say what a directory is: `partition.metadata`, `meta.properties`, `.kafka_cleanshutdown`, `quorum-state`. Authority:
PartitionMetadataFile, MetaProperties and CleanShutdownFileHandler at apache/kafka 1eb7644349cb (4.0.0-SNAPSHOT).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from rawlog.model.errors import CorruptError, DataError
from rawlog.model.format import File
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status
from rawlog.model.text import whole_number

if TYPE_CHECKING:
    from rawlog.model.explain import Node


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


def scan_rows(data: Bytes, *kinds: int) -> Frames:
    """Lines of a checkpoint: `0`, the number of lines that follow, then rows of fields. Only the rows are frames.

    `kinds` are the bits that the number in each field may take; 0 for a text.
    """
    frames = lines_of(data)
    if not data.size:
        return frames
    if len(frames) < 2 or not _is_number(line(frames, 0), 32) or int(line(frames, 0)) != 0:
        return _refuse(frames, 0, Status.BAD_MAGIC)
    if not _is_number(line(frames, 1), 32):
        return _refuse(frames, 0, Status.BAD_MAGIC)
    rows = frames.slice(2, len(frames))
    for index in range(len(rows)):
        text = line(rows, index)
        parts = _SPACE.split(text.strip())
        sound = len(parts) == len(kinds) and b"\r" not in text  # for Java another line begins there
        sound = sound and all(
            _is_number(part, bits) if bits else _is_text(part) for part, bits in zip(parts, kinds, strict=True)
        )
        if not sound:
            return _refuse(rows, index, Status.BAD_VALUE)
    if int(line(frames, 1)) != len(rows):
        return _refuse(frames, 1, Status.BAD_COUNT)
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


def _refuse(frames: Frames, index: int, status: Status) -> Frames:
    """Nothing of a checkpoint counts that is wrong in one line, as for Kafka; the place is that line."""
    reached = int(frames.starts[index]) if index < len(frames) else 0
    return Frames(frames.data, frames.starts[:0], frames.stops[:0], reached, status)


_WORDS = {
    Status.BAD_MAGIC: "not a checkpoint of version 0",
    Status.BAD_COUNT: "another number of lines than the second line says",
    Status.BAD_VALUE: "a line that is not one of its kind",
}


def fault(frames: Frames) -> DataError:
    """What is wrong where the scan of a text stopped."""
    return CorruptError(_WORDS.get(frames.status, "damage"), position=frames.reached_in_file)


def fields_of(frames: Frames) -> Iterator[list[str]]:
    """The fields of each row."""
    for index in range(len(frames)):
        yield [part.decode("utf-8", "replace") for part in _SPACE.split(line(frames, index).strip())]


def explain(frames: Frames, file: File) -> list[Node]:
    """One line of a text."""
    from rawlog.model.explain import Node

    start, stop = int(frames.starts[0]), int(frames.stops[0])
    shown = line(frames, 0).decode("utf-8", "replace")
    raw = bytes(frames.data[start:stop])
    return [Node(frames.base + start, len(raw), "line", "text", shown, "", raw.hex(" "))]


class WholeText:
    """A kind of text that is right or wrong as a whole: `check` raises ValueError or KeyError for one that is wrong."""

    fault = staticmethod(fault)
    explain = staticmethod(explain)

    def __init__(self, check: Callable[[bytes], object]) -> None:
        self.check = check

    def scan(self, data: Bytes, kind: int) -> Frames:
        """The lines of a text that is right; none of one that is wrong."""
        try:
            self.check(data.tobytes())
        except (ValueError, KeyError, RecursionError):
            return Frames(data, np.empty(0, np.int64), np.empty(0, np.int64), 0, Status.BAD_VALUE)
        return lines_of(data)


# What a directory is -------------------------------------------------------------------------------------------------------------


def topic_id(data: bytes) -> bytes:
    """The 16 bytes of the topic's id in `partition.metadata`. ValueError if the text is not one."""
    match = re.fullmatch(rb"version: *0\r?\ntopic_id: *([A-Za-z0-9_-]{22})\s*", data)
    if match is None:
        raise ValueError("not a partition.metadata")
    try:
        raw = base64.urlsafe_b64decode(match.group(1) + b"==")
    except binascii.Error:
        raise ValueError("not a topic id") from None
    if not any(raw):
        raise ValueError("the topic id is all zeros")
    return raw


def properties(data: bytes) -> dict[str, str]:
    """The settings of a Java properties file as Kafka writes it. ValueError for bytes that are no text."""
    settings: dict[str, str] = {}
    for text in data.decode("utf-8").splitlines():
        if text.strip() and not text.lstrip().startswith(("#", "!")):
            key, _, value = text.partition("=")
            settings[key.strip()] = value.strip()
    return settings


#: The largest id of a node.
MOST_NODE = 0x7FFF_FFFF


def check_meta(data: bytes) -> None:
    """ValueError for bytes that are no `meta.properties`."""
    settings = properties(data)
    if settings.get("version") not in ("0", "1"):
        raise ValueError("version")
    if settings["version"] == "1" and not {"node.id", "cluster.id"} <= settings.keys():
        raise ValueError("node.id and cluster.id")
    for name in ("node.id", "broker.id"):
        number = whole_number(settings.get(name, "0").removeprefix("-"))
        if number is None or number > MOST_NODE:
            raise ValueError(name)


def parse_quorum(data: bytes) -> dict[str, object]:
    """The election state in a `quorum-state`: epoch, vote and, in a static quorum, voters. ValueError if it is invalid."""
    try:
        state = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(state, dict) or state.get("data_version") not in (0, 1):
        raise ValueError("not an election state of version 0 or 1")
    for name in ("leaderId", "leaderEpoch", "votedId"):
        if not isinstance(state.get(name), int) or isinstance(state[name], bool):
            raise ValueError(name)
    return state


def _check_cleanshutdown(data: bytes) -> None:
    if data:
        json.loads(data)


def _check_topic_id(data: bytes) -> None:
    topic_id(data)


PARTITION = WholeText(_check_topic_id)
META = WholeText(check_meta)
CLEAN_SHUTDOWN = WholeText(_check_cleanshutdown)
QUORUM = WholeText(parse_quorum)
