"""Partition directories as a broker leaves them: segments rolled by size and time, and next to them all that is derived from them.

Batches come in encoded, with their headers; the data of a segment is written before anything that points at it.
"""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from rawlog.core.errors import EncodeError
from rawlog.core.frames import Frames
from rawlog.formats.kafka.heads import Heads
from rawlog.formats.kafka.layouts import MAGIC_V2
from rawlog.formats.kafka.paths import directory_place
from rawlog.formats.kafka.store.derived import UNBOUNDED, Derivation, Limits, SegmentIndex
from rawlog.io.output import Folder
from rawlog.io.storage import read_regular

EPOCHS, METADATA = "leader-epoch-checkpoint", "partition.metadata"


def segment_name(offset: int, extension: str) -> str:
    """The name of a segment's file: 20 digits and what it is."""
    return f"{offset:020d}.{extension}"


def metadata_file(topic_id: str) -> bytes:
    """The content of `partition.metadata`."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def new_topic_id() -> str:
    """A topic id as Kafka makes them: random, in 22 characters that do not begin with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


class PartitionWriter:
    """One partition in a directory that exists and is empty. `close` writes what only the end tells.

    Without `limits` a segment ends only where `begin` is called for the next. `log_start` names the first segment of a partition
    that has no batches at all. `derivation` derives what no segment alone tells, by default from the batches that are appended.
    """

    def __init__(
        self,
        folder: Folder | Path,
        limits: Limits | None,
        *,
        topic_id: str | None = None,
        metadata: bytes | None = None,
        log_start: int = 0,
        interval: int = 4096,
        derivation: Derivation | None = None,
    ) -> None:
        """`metadata` is the content of `partition.metadata`; with a `topic_id` it is made."""
        self.folder = folder if isinstance(folder, Folder) else Folder(folder)
        self.limits, self.topic_id, self.metadata = limits, topic_id, metadata
        if limits is None:
            self._limits = np.array([UNBOUNDED, UNBOUNDED, UNBOUNDED, UNBOUNDED, interval], np.int64)
        else:
            self._limits = limits.array
        self.derivation = Derivation() if derivation is None else derivation
        self.end_offset = log_start
        self.batches = self.bytes = self.segments = 0
        #: The files that were written: log segments, and what is derived from them.
        self.logs: list[str] = []
        self.derived: dict[str, None] = {}
        self._has_v2 = False
        self._file: IO[bytes] | None = None
        self._index: SegmentIndex | None = None
        self._modified: float | None = None
        self._log_start = log_start

    def append(self, frames: Frames, head: Heads) -> None:
        """Batches that follow those before them. EncodeError for one that is larger than a segment."""
        if self.limits is not None and len(frames) and int(frames.sizes.max()) > self.limits.segment_bytes:
            at = int(np.argmax(frames.sizes))
            raise EncodeError(
                f"offset {int(head['base_offset'][at]):,}: a batch of {int(frames.sizes[at]):,} bytes, "
                f"segments hold {self.limits.segment_bytes:,}"
            )
        done = 0
        while done < len(frames):
            if self._index is None:
                self.begin(int(head["base_offset"][done]))
            assert self._index is not None
            rest, own = frames.slice(done, len(frames)), head.slice(done, len(head))
            taken = self._index.add(rest.sizes, own)
            if taken:
                self._take(rest.slice(0, taken), own.slice(0, taken))
                done += taken
            if done < len(frames):
                base = int(head["base_offset"][done])
                if self.limits is None:
                    raise EncodeError(f"offset {base:,} is too far from the segment's first, {self._index.base:,}")
                self.begin(base)

    def _take(self, frames: Frames, head: Heads) -> None:
        assert self._file is not None
        start, stop = int(frames.starts[0]), int(frames.stops[-1])
        if (frames.starts[1:] == frames.stops[:-1]).all():
            self._file.write(memoryview(frames.data[start:stop]))  # type: ignore[arg-type]
        else:
            for first, last in zip(frames.starts.tolist(), frames.stops.tolist(), strict=True):
                self._file.write(memoryview(frames.data[first:last]))  # type: ignore[arg-type]
        self.derivation.add(frames, head)
        self._has_v2 |= bool((head["magic"] == MAGIC_V2).any())
        self.end_offset = int(head["last_offset"][-1]) + 1
        self.batches += len(frames)
        self.bytes += int(frames.sizes.sum())

    def begin(self, base: int, modified: float | None = None) -> None:
        """End the segment that is open, and begin one named by an offset. `modified` is the time its file gets: retention goes by
        it where records have no time of their own.
        """
        if self._file is not None:
            self._end_segment()
            self._write(segment_name(base, "snapshot"), self.derivation.snapshot(base))
        self._index, self._modified = SegmentIndex(base, self._limits), modified
        self.logs.append(segment_name(base, "log"))
        self._file = self.folder.create(self.logs[-1])
        self.segments += 1
        self.end_offset = max(self.end_offset, base)

    def _end_segment(self) -> None:
        assert self._file is not None
        assert self._index is not None
        self._file.close()
        if self._modified is not None and not self.folder.dry_run:
            os.utime(self.folder.path / self.logs[-1], (self._modified, self._modified))
        base = self._index.base
        self._write(segment_name(base, "index"), self._index.index())
        self._write(segment_name(base, "timeindex"), self._index.timeindex())
        aborted = self.derivation.end_segment()
        if aborted:
            self._write(segment_name(base, "txnindex"), aborted)
        self._file = self._index = None

    def flush(self) -> None:
        """Hand what was appended to the system: others can read it, and it outlives the process."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Write what is left."""
        if self._file is None:
            self.begin(self._log_start)
        self._end_segment()
        if self.end_offset > 0:
            self._write(segment_name(self.end_offset, "snapshot"), self.derivation.snapshot(self.end_offset))
        if self._has_v2 or not self.batches:
            self._write(EPOCHS, self.derivation.epochs_file())
        metadata = self.metadata if self.topic_id is None else metadata_file(self.topic_id)
        if metadata is not None:
            self.folder.write(METADATA, metadata)

    def abandon(self) -> None:
        """Let go of the open file; what was written is for the caller to remove."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def discard(self) -> None:
        """Remove what was written: it is to be written again in another way."""
        for name in (*self.logs, *self.derived, METADATA):
            self.folder.remove(name)

    def _write(self, name: str, data: bytes) -> None:
        if name in self.derived:  # the snapshot at the end of a log whose last segment is empty
            self.folder.remove(name)
        self.folder.write(name, data)
        self.derived[name] = None


def topic_id_in(target: Path, topic: str) -> str | None:
    """The id that partitions of a topic have in a log directory."""
    from rawlog.formats.kafka.texts import topic_id

    if not target.is_dir():
        return None
    for folder in sorted(target.glob(f"{topic}-*")):
        place = directory_place(str(folder))
        if place.topic != topic or place.state is not None:
            continue
        try:
            found = topic_id(read_regular(folder / METADATA))
        except (OSError, ValueError):
            continue
        return base64.urlsafe_b64encode(found).decode().rstrip("=")
    return None


def check_topic_id(options: Mapping[str, str]) -> str | None:
    """The topic id among options; OptionError if it is invalid."""
    from rawlog.core.errors import OptionError

    text = options.get("topic_id")
    if text is None:
        return None
    try:
        raw = base64.urlsafe_b64decode(f"{text}==")
    except ValueError:
        raw = b""
    if len(text) != 22 or len(raw) != 16 or not any(raw):
        raise OptionError(f"topic_id {text!r}: 22 characters of URL-safe base64 expected")
    return text


__all__ = [
    "EPOCHS",
    "METADATA",
    "PartitionWriter",
    "check_topic_id",
    "metadata_file",
    "new_topic_id",
    "segment_name",
    "topic_id_in",
]
