"""Writing whole stores: log segments as they fill, then index segments and blooms, as a live Ambry leaves them."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import BinaryIO

import numpy as np

from rawlog.errors import CorruptError, EncodeError
from rawlog.format import File
from rawlog.formats.ambry.index_writer import MAX_ENTRIES, PROBABILITY, write_index_files
from rawlog.formats.ambry.layouts import SEGMENT_HEADER
from rawlog.formats.ambry.paths import Segment
from rawlog.formats.ambry.reader import Messages, scan, trouble
from rawlog.formats.ambry.state import fold
from rawlog.formats.ambry.store import Store, read_catalog
from rawlog.formats.ambry.writer import sealed, segment_header

CAPACITY = 1 << 30


class StoreWriter:
    """A new store in a directory that is there and empty. `close` writes what points at the log; nothing is overwritten.

    Without `capacity` the log is one `log_current`.
    """

    def __init__(
        self,
        target: Path,
        *,
        capacity: int | None = CAPACITY,
        max_entries: int = MAX_ENTRIES,
        probability: float = PROBABILITY,
        incarnation_id: str | None = None,
    ) -> None:
        self.target, self.capacity = target, capacity
        self.max_entries, self.probability = max_entries, probability
        self.incarnation_id = incarnation_id or str(uuid.uuid4())
        self.segments: list[Segment] = []
        self.end = 0
        self.file: BinaryIO | None = None

    def append(self, message: bytes) -> tuple[str, int]:
        """Add a message; the name of its segment and its position there.

        EncodeError if no segment can hold it, CorruptError if it is none.
        """
        _check(message)
        self._room(len(message))
        assert self.file is not None
        self.file.write(message)
        at = self.end
        self.end += len(message)
        return self.segments[-1].name, at

    def _room(self, size: int) -> None:
        if self.capacity is not None and size > self.capacity - SEGMENT_HEADER.size:
            raise EncodeError(f"a message of {size:,} bytes in segments of {self.capacity:,}")
        if self.file is None or (self.capacity is not None and self.end + size > self.capacity):
            self.next_segment()

    def next_segment(self, segment: Segment | None = None) -> None:
        """Begin a log segment, by default the next one."""
        if self.file is not None:
            self.file.close()
        if segment is None:
            segment = Segment() if self.capacity is None else Segment(len(self.segments), 0)
        self.segments.append(segment)
        self.file = (self.target / segment.log_name()).open("xb")
        self.end = 0
        if self.capacity is not None:
            self.file.write(segment_header(self.capacity))
            self.end = SEGMENT_HEADER.size

    def abandon(self) -> None:
        """Let go of the open segment; what was written is for the caller to remove."""
        if self.file is not None:
            self.file.close()

    def close(self, *, whole: bool = True) -> None:
        """Write index and bloom files; with `whole` also the descriptor and the marks of a clean stop."""
        if self.file is None:
            self.next_segment()
        assert self.file is not None
        self.file.close()
        logs = [str(self.target / segment.log_name()) for segment in self.segments]
        store = Store(str(self.target), [File(path, Path(path).stat().st_size, format="ambry.log") for path in logs])
        folded = fold(read_catalog(store, errors="raise"))
        write_index_files(
            folded.entries,
            folded.catalog.segment,
            self.segments,
            self.target,
            max_entries=self.max_entries,
            probability=self.probability,
        )
        if whole:
            (self.target / "StoreDescriptor").write_bytes(descriptor(self.incarnation_id))
            (self.target / "remoteTokenTracker").write_bytes(sealed(bytes(2)))
            (self.target / "cleanshutdown").write_bytes(b"")


def descriptor(incarnation_id: str) -> bytes:
    """The bytes of `StoreDescriptor`."""
    raw = incarnation_id.encode()
    return sealed(bytes(2) + len(raw).to_bytes(4, "big") + raw)


def _check(message: bytes) -> None:
    """CorruptError if this is not one whole message."""
    frames = scan(np.frombuffer(message, np.uint8), 0)
    if len(frames) != 1 or int(frames.stops[0]) != len(message):
        raise CorruptError("not one whole message")
    messages = Messages(frames)
    if not messages.sound[0]:
        raise trouble(messages, 0)
