"""What a pass over one file of a journal remembers of it, so that checks of the whole journal need not read the file again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.model.errors import DataError, RawlogError
from rawlog.model.format import File
from rawlog.model.frames import Frames
from rawlog.model.store import Store
from tests.sixth.journal.layouts import ENTRY, FILE_HEADER, NONE, POSITION
from tests.sixth.journal.paths import begin
from tests.sixth.journal.reader import heads, rising
from tests.sixth.journal.writer import encode_positions


@dataclass(frozen=True, slots=True)
class Header:
    """The file header of a segment."""

    first_number: int
    previous_stop: int

    @classmethod
    def read(cls, path: str) -> Header | None:
        """The header of a file; None if it is empty or the header is damaged."""
        with Source(path) as source:
            head = source.read(0, FILE_HEADER.size)
            try:
                begin(head, source.size)
            except DataError:
                return None
        if not head:
            return None
        fields = FILE_HEADER.take(np.frombuffer(head, np.uint8), np.zeros(1, np.int64))[0]
        return cls(int(fields["first_number"]), int(fields["previous_stop"]))


@dataclass(slots=True)
class SegmentSummary:
    """A split of a segment: its header, the numbers of its sound entries, and the index that they give."""

    file: File
    near: Sequence[File]
    start: int = 0
    stop: int | None = None
    header: Header | None = None
    first: int | None = None
    last: int | None = None
    index: bytes = b""
    #: Whether the numbers of this split follow those of the one before.
    rises: bool = True
    pieces: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.start:
            self.header = Header.read(self.file.path)

    def see(self, frames: Frames) -> None:
        """Take the next window of the walk. Called once for each, in order."""
        if not len(frames):
            return
        before = self.file.place.start_offset or 0
        right, last = rising(frames, (before - 1) if self.last is None else self.last)
        numbers = frames.share(heads)["number"].astype(np.int64)[right]
        if numbers.size:
            self.first = int(numbers[0]) if self.first is None else self.first
            self.last = last
            self.pieces.append(encode_positions(numbers, frames.positions[right]))

    def close(self) -> Self:
        """Make it small: it travels from a task to the driver."""
        self.index, self.pieces, self.near = b"".join((self.index, *self.pieces)), [], ()
        return self

    def merge(self, following: SegmentSummary) -> Self:
        """Take in the split that follows. If numbers do not rise from split to split, the file is read again in one."""
        self.rises = following.first is None or self.last is None or following.first > self.last
        self.first = following.first if self.first is None else self.first
        self.last = self.last if following.last is None else following.last
        self.index += following.index
        return self

    @property
    def stop_number(self) -> int:
        """The number after the last sound entry; the first number of the segment if it has none."""
        return (self.file.place.start_offset or 0) if self.last is None else self.last + 1


@dataclass(slots=True)
class IndexSummary:
    """An index: its bytes. It is an eighth of the number of entries long."""

    file: File
    near: Sequence[File]
    start: int = 0
    stop: int | None = None
    index: bytes = b""
    rises: bool = True

    def see(self, frames: Frames) -> None:
        self.index += bytes(frames.data[: frames.reached])
        if frames.last:
            self.index += bytes(frames.data[frames.reached :])  # an unfinished entry: then it differs

    def close(self) -> Self:
        self.near = ()
        return self

    def merge(self, following: IndexSummary) -> Self:
        self.index += following.index
        return self


def summary_of(store: Store, file: File) -> SegmentSummary | IndexSummary | None:
    """The summary of a file: what a pass found, else the file is read now. None if it cannot be read."""
    from tests.sixth.journal import INDEX, SEGMENT

    if file.path not in store.summaries:
        format = SEGMENT if file.format == SEGMENT.name else INDEX
        made = SegmentSummary(file, store) if format is SEGMENT else IndexSummary(file, store)
        try:
            for frames in walk(file, format, errors="skip"):
                made.see(frames)
        except RawlogError:
            pass  # its own rules report it
        store.summaries[file.path] = made.close()
    found: SegmentSummary | IndexSummary = store.summaries[file.path]
    return found


def cuts(file: File, group: Sequence[File], size: int) -> list[int]:
    """Positions of entries about `size` bytes apart, from the index. Each is looked at: an index may be wrong."""
    index = Store.of(group).find("journal.positions", file.place.start_offset, file.place.state)
    if index is None:
        return []
    with Source(index.path) as source:
        data = np.frombuffer(source.read(0, source.size // POSITION.size * POSITION.size), np.uint8)
    rows = POSITION.view(data)
    found: list[int] = []
    with Source(file.path) as source:
        for number, position in zip(rows["number"].tolist(), rows["position"].tolist(), strict=True):
            if position >= (found[-1] if found else 0) + size:
                head = source.read(position, ENTRY.size) if position < file.size else b""
                if len(head) < ENTRY.size or _number(head) != number:
                    return []
                found.append(position)
    return found


def _number(head: bytes) -> int:
    return int.from_bytes(head[ENTRY.at("number") : ENTRY.after("number")], "big", signed=True)


__all__ = ["NONE", "Header", "IndexSummary", "SegmentSummary", "cuts", "summary_of"]
