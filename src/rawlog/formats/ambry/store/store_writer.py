"""Writing whole stores: log segments as they fill, then index segments and blooms, as a live Ambry leaves them."""

from __future__ import annotations

import itertools
import uuid
from pathlib import Path
from typing import BinaryIO

import numpy as np

from rawlog.core.errors import CorruptError, EncodeError
from rawlog.core.format import File
from rawlog.core.frames import Bytes, Frames
from rawlog.formats.ambry.index_writer import MAX_ENTRIES, PROBABILITY, write_index_files
from rawlog.formats.ambry.kernels.encode import place_messages
from rawlog.formats.ambry.layouts import SEGMENT_HEADER
from rawlog.formats.ambry.paths import Segment
from rawlog.formats.ambry.reader import Messages, scan, trouble
from rawlog.formats.ambry.store.state import fold
from rawlog.formats.ambry.store.store import Store, read_catalog
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
        frames = _checked(np.frombuffer(message, np.uint8))
        if len(frames) != 1:
            raise CorruptError("not one whole message")
        self._add(frames)
        return self.segments[-1].name, self.end - len(message)

    def extend(self, data: Bytes) -> None:
        """Add messages that stand end to end. EncodeError if no segment can hold one of them, CorruptError for what is none."""
        if data.size:
            self._add(_checked(data))

    def _add(self, frames: Frames) -> None:
        sizes, first, most = frames.sizes, 0, 1 << 62
        if self.capacity is not None:
            first, most = SEGMENT_HEADER.size, self.capacity
            if sizes.max() > most - first:
                raise EncodeError(
                    f"a message of {int(sizes[np.argmax(sizes > most - first)]):,} bytes in segments of {most:,}"
                )
        if self.file is None:
            self.next_segment()
        segments, positions = np.empty((2, len(frames)), np.int64)
        place_messages(sizes, 0, self.end, most, first, segments, positions)
        bounds = np.flatnonzero(np.diff(segments, prepend=0, append=segments[-1] + 1)).tolist()
        rows = [0, *bounds] if segments[0] == 0 else bounds
        for start, stop in itertools.pairwise(rows):
            if segments[start]:
                self.next_segment()
            assert self.file is not None
            piece = frames.data[int(frames.starts[start]) : int(frames.stops[stop - 1])]
            self.file.write(piece.data)
            self.end += piece.size

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


def _checked(data: Bytes) -> Frames:
    """Where messages that fill `data` stand. CorruptError if they do not, or one of them is not sound."""
    frames = scan(data, 0)
    if not len(frames) or frames.reached != data.size:
        raise CorruptError(
            "not one whole message" if not len(frames) else "not whole messages", position=frames.reached
        )
    messages = Messages(frames)
    if not messages.sound.all():
        raise trouble(messages, int(np.argmin(messages.sound)))
    return frames
