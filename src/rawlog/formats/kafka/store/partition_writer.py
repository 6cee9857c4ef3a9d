"""Partition directories as a broker leaves them: segments rolled by size and time, and beside them all that is derived from them.

Batches come in encoded, with their headers; data is written and on disk before anything that points at it. A directory is written
under a temporary name and renamed when it is whole.
"""

from __future__ import annotations

import base64
import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from rawlog.core.errors import AccessError, EncodeError
from rawlog.core.frames import Frames
from rawlog.formats.kafka.heads import Heads
from rawlog.formats.kafka.layouts import MAGIC_V2
from rawlog.formats.kafka.paths import directory_place
from rawlog.formats.kafka.store.derived import UNBOUNDED, Derivation, Limits, SegmentIndex
from rawlog.io.output import Output, sync_directory

EPOCHS, METADATA = "leader-epoch-checkpoint", "partition.metadata"


def segment_name(offset: int, extension: str) -> str:
    """The name of a segment's file: 20 digits and what it is."""
    return f"{offset:020d}.{extension}"


def new_topic_id() -> str:
    """A topic id as Kafka makes them: random, in 22 characters that do not begin with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


class PartitionWriter:
    """One partition in a directory that is there and empty. `close` writes what only the end tells.

    Without `limits` a segment ends only where `begin` is called for the next. `log_start` names the first segment of a partition
    that has no batches at all. `derivation` tells what no segment alone does, by default from the batches that are appended.
    """

    def __init__(
        self,
        folder: Path,
        limits: Limits | None,
        *,
        topic_id: str | None = None,
        log_start: int = 0,
        interval: int = 4096,
        derivation: Derivation | None = None,
    ) -> None:
        self.folder, self.limits, self.topic_id = folder, limits, topic_id
        if limits is None:
            self._limits = np.array([UNBOUNDED, UNBOUNDED, UNBOUNDED, UNBOUNDED, interval], np.int64)
        else:
            self._limits = limits.array
        self.derivation = Derivation() if derivation is None else derivation
        self.end_offset = log_start
        self.batches = self.bytes = self.segments = 0
        self._has_v2 = False
        self._file: BinaryIO | None = None
        self._index: SegmentIndex | None = None
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
        if stop - start == int(frames.sizes.sum()):
            self._file.write(memoryview(frames.data[start:stop]))  # type: ignore[arg-type]
        else:
            for first, last in zip(frames.starts.tolist(), frames.stops.tolist(), strict=True):
                self._file.write(memoryview(frames.data[first:last]))  # type: ignore[arg-type]
        self.derivation.add(frames, head)
        self._has_v2 |= bool((head["magic"] == MAGIC_V2).any())
        self.end_offset = int(head["last_offset"][-1]) + 1
        self.batches += len(frames)
        self.bytes += int(frames.sizes.sum())

    def begin(self, base: int) -> None:
        """End the segment that is open, and begin one named by an offset."""
        if self._file is not None:
            self._end_segment()
            self._write(segment_name(base, "snapshot"), self.derivation.snapshot(base))
        self._index = SegmentIndex(base, self._limits)
        self._file = self._open(segment_name(base, "log"))
        self.segments += 1
        self.end_offset = max(self.end_offset, base)

    def _end_segment(self) -> None:
        assert self._file is not None
        assert self._index is not None
        self._shut(self._file)
        base = self._index.base
        self._write(segment_name(base, "index"), self._index.index())
        self._write(segment_name(base, "timeindex"), self._index.timeindex())
        aborted = self.derivation.end_segment()
        if aborted:
            self._write(segment_name(base, "txnindex"), aborted)
        self._file = self._index = None

    def close(self) -> None:
        """Write what is left, and the directory itself, to disk."""
        if self._file is None:
            self.begin(self._log_start)
        self._end_segment()
        if self.end_offset > 0:
            self._write(segment_name(self.end_offset, "snapshot"), self.derivation.snapshot(self.end_offset))
        if self._has_v2 or not self.batches:
            self._write(EPOCHS, self.derivation.epochs_file())
        if self.topic_id is not None:
            self._write(METADATA, f"version: 0\ntopic_id: {self.topic_id}".encode())
        self._sync()

    def abandon(self) -> None:
        """Let go of the open file; what was written is for the caller to remove."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, name: str) -> BinaryIO:
        return (self.folder / name).open("xb")

    def _shut(self, file: BinaryIO) -> None:
        _synced(file)

    def _sync(self) -> None:
        sync_directory(self.folder)

    def _write(self, name: str, data: bytes) -> None:
        with (self.folder / name).open("wb") as file:
            file.write(data)
            _sync(file)


class Pretence(PartitionWriter):
    """A writer that only counts: `names` are the files that it would have written beside the log."""

    def __init__(self, *, log_start: int = 0, interval: int = 4096) -> None:
        super().__init__(Path(), None, log_start=log_start, interval=interval)
        self.names: list[str] = []

    def _open(self, name: str) -> BinaryIO:
        return open(os.devnull, "wb")

    def _shut(self, file: BinaryIO) -> None:
        file.close()

    def _sync(self) -> None:
        pass

    def _write(self, name: str, data: bytes) -> None:
        self.names.append(name)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _synced(file: BinaryIO) -> None:
    try:
        _sync(file)
    finally:
        file.close()


# Directories that appear when they are whole ---------------------------------------------------------------------


@contextlib.contextmanager
def staged(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A log directory to fill with partition directories, which appear in `target` only when the block ends well.

    They are written beside it: a broker would refuse to start on a directory whose name it does not know. AccessError if one of them
    is there already, unless `overwrite` is set; then it is replaced.
    """
    with Output(target, overwrite=overwrite) as output:
        if target.exists() and not target.is_dir():
            raise AccessError(f"{target}: exists already and is not a directory")
        try:
            stage = output.new()
            yield stage
        except OSError as error:
            raise output.unwritable(error) from None
        output.add(stage)


def refuse_existing(path: Path, overwrite: bool) -> None:
    """AccessError for a partition directory that is there, unless it may be replaced."""
    if path.exists() and not overwrite:
        raise AccessError(f"{path}: exists already; choose another name or ask to overwrite it")


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
            found = topic_id((folder / METADATA).read_bytes())
        except (OSError, ValueError):
            continue
        return base64.urlsafe_b64encode(found).decode().rstrip("=")
    return None


def check_topic_id(options: Mapping[str, str]) -> str | None:
    """The id among options; OptionError if it is none."""
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
    "Pretence",
    "check_topic_id",
    "new_topic_id",
    "refuse_existing",
    "segment_name",
    "staged",
    "topic_id_in",
]
