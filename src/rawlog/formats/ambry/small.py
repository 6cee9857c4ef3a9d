"""The small files of a store as formats: each is one frame, the whole file, sound to its checksum or damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rawlog.core.errors import CorruptError, DataError, TruncatedError
from rawlog.core.explain import Node
from rawlog.core.format import File
from rawlog.core.frames import Bytes, Frames
from rawlog.core.status import Status
from rawlog.formats.ambry import structures
from rawlog.formats.ambry.bloom import read_bloom
from rawlog.formats.ambry.structures import Cursor

Read = Callable[[Cursor], Any]


class Whole:
    """A format whose file is one structure, read by one function."""

    def __init__(self, name: str, read: Read) -> None:
        self.name, self.read = name, read

    def scan(self, data: Bytes, kind: int) -> Frames:
        """One frame if the structure is whole; TRUNCATED if it is not; damage if it cannot be or its checksum is wrong."""
        none = np.empty(0, np.int64)
        if not data.size:
            return Frames(data, none, none, 0, Status.OK)
        cursor = Cursor(data.tobytes())
        try:
            found = self.read(cursor)
        except TruncatedError:
            return Frames(data, none, none, 0, Status.TRUNCATED)
        except DataError as error:
            wrong_version = error.field is not None and "version" in error.field
            return Frames(data, none, none, 0, Status.BAD_MAGIC if wrong_version else Status.BAD_VALUE)
        if not found.crc_ok:
            return Frames(data, none, none, 0, Status.BAD_CRC)
        if cursor.left:
            return Frames(data, none, none, 0, Status.TRAILING)
        return Frames(data, np.zeros(1, np.int64), np.array([cursor.position]), cursor.position, Status.OK)

    def fault(self, frames: Frames) -> DataError:
        """What is wrong with the file."""
        cursor = Cursor(frames.data.tobytes())
        try:
            found = self.read(cursor)
        except DataError as error:
            return error
        if not found.crc_ok:
            return CorruptError(f"checksum of the {self.name} does not match", position=0, field="crc")
        return CorruptError(f"{cursor.left:,} bytes behind the {self.name}", position=0)

    def explain(self, frames: Frames, file: File) -> list[Node]:
        """Every field."""
        cursor = Cursor(frames.data[: int(frames.stops[0])].tobytes(), base=frames.base)
        self.read(cursor)
        return [Node(frames.base, cursor.position, self.name, children=cursor.nodes)]


DESCRIPTOR = Whole("store descriptor", structures.read_descriptor)
CLEANUP = Whole("cleanup token", structures.read_cleanup_token)
COMPACTION = Whole("compaction log", structures.read_compaction)
TRACKER = Whole("remote token tracker", structures.read_tracker)
REPLICA_TOKENS = Whole("replica tokens", structures.read_replica_tokens)
BLOOM = Whole("bloom filter", read_bloom)
