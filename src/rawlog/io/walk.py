"""Walk a file in windows of whole frames: bounded memory, whatever the file holds.

The one loop that reads frames. Readers, counters, verification and planning all go through it, so that an unfinished tail, a zero-filled
tail, damage and the search for what follows it are treated alike everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rawlog.io.storage import Source
from rawlog.model.errors import (
    CorruptError,
    DataError,
    LimitError,
    LostError,
    UnsupportedError,
)
from rawlog.model.format import File, Format, Origin
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status

WINDOW = 4 << 20
FIRST_WINDOW = 256 << 10  # most readers of one row need no more; it doubles from window to window
HEAD = 4096
LARGEST_WHOLE = 64 << 20
"""The largest file of those that are read as a whole: texts, settings, snapshots."""
PAGE = 4096
#: So many beginnings of frames inside one with a wrong length are looked at.
MOST_TRIES = 100


def origin_of(format: Format, source: Source) -> Origin:
    """Where the frames of a file begin; DataError if its header cannot be."""
    if not format.can("begin") and not format.can("survey"):
        return Origin()
    try:
        if format.can("survey"):
            return format.codec.survey(source)
        return format.codec.begin(source.read(0, HEAD), source.size)
    except DataError as error:
        raise error.at(path=source.path, format=format.name) from None


def presumed_origin(format: Format, source: Source) -> Origin | None:
    """Where frames begin after a damaged header, and of what kind they are: the first that are credible. None if nothing tells."""
    origins = [Origin()] if not format.can("presume") and format.can("resync") else []
    if format.can("presume"):
        origins = [origin for origin in format.codec.presume(source) if origin.position <= source.size]
    if not format.can("resync") or not origins:
        return next(iter(origins), None)
    data = np.frombuffer(source.read(0, FIRST_WINDOW), np.uint8)
    candidates = [(format.codec.resync(data, origin.position, origin.kind), origin.kind) for origin in origins]
    credible = [Origin(position, kind) for position, kind in candidates if position >= 0]
    return min(credible, key=lambda origin: origin.position, default=origins[0])


def walk(
    file: File,
    format: Format,
    *,
    start: int | None = None,
    stop: int | None = None,
    first: int = 0,
    errors: str = "raise",
    window: int = WINDOW,
    source: Source | None = None,
    origin: Origin | None = None,
) -> Iterator[Frames]:
    """Yield the frames of `file` from byte `start` to `stop`, a window at a time; the last window has `last` set.

    A window's arrays are valid until the next one is asked for. `errors` says what damage does: `raise` a DataError after
    the whole frames before it, `stop` there, or `skip` to the next credible frame (the next window's `base` then lies
    after this one's `reached_in_file`). An unfinished last frame is never an error: the last window's `status` tells.
    A damaged header of the file is damage like any other: a window without frames at byte 0, of status BAD_HEADER.
    With an `origin` the file's header is not asked.
    """
    if not format.can("scan"):
        raise UnsupportedError("recognised, but cannot be read yet", path=file.path, format=format.name)
    if source is None:
        with Source(file.path) as opened:
            yield from walk(
                file,
                format,
                start=start,
                stop=stop,
                first=first,
                errors=errors,
                window=window,
                source=opened,
                origin=origin,
            )
        return
    if origin is None:
        try:
            origin = origin_of(format, source)
        except DataError as error:
            if errors == "raise":
                raise
            presumed = presumed_origin(format, source) if errors == "skip" else None
            if not start:
                nothing = np.empty(0, np.int64)
                kind = 0 if presumed is None else presumed.kind
                yield Frames(pages(0), nothing, nothing, 0, Status.BAD_HEADER, kind, 0, first, presumed is None, error)
            if presumed is None:
                return
            origin, start = presumed, start or None
    position = origin.position if start is None else start
    if format.whole:
        if source.size > LARGEST_WHOLE:
            raise LimitError(
                f"{source.size:,} bytes of a file that is read as a whole, more than the limit of {LARGEST_WHOLE:,}",
                path=file.path,
                position=0,
                format=format.name,
                expected=LARGEST_WHOLE,
                found=source.size,
            )
        window = max(source.size, 1)
    end = source.size if stop is None else min(stop, source.size)
    yield from _Walk(format, source, origin.kind, end, errors, window, file.place.sealed).run(position, first)


def memory(size: int) -> Bytes:
    """So many bytes of Arrow's pool, nothing in them yet. It keeps their pages for the next file, where the system's would be new ones."""
    import pyarrow as pa

    return np.frombuffer(pa.allocate_buffer(size), np.uint8)


def pages(size: int) -> Bytes:
    """So many bytes, nothing in them yet, from the start of a page on."""
    room = memory(size + PAGE)
    start = -room.ctypes.data % PAGE
    return room[start : start + size]


class _Walk:
    """The state of one walk: a buffer that grows to the window and to the largest frame, and the bytes carried over.

    A byte lies at the same place of a page in the buffer as in the file: the system copies such bytes up to four times as fast.
    """

    def __init__(
        self, format: Format, source: Source, kind: int, end: int, errors: str, window: int, sealed: bool = False
    ) -> None:
        self.format, self.scan, self.source, self.kind = format, format.codec.scan, source, kind
        self.end, self.errors, self.window, self.sealed = end, errors, window, sealed
        self.capacity = window if format.whole else min(window, FIRST_WINDOW)
        self.buffer: Bytes = pages(0)
        self.front = self.filled = 0
        #: The bytes after those that were read, if they cannot be had.
        self.lost: LostError | None = None

    def run(self, base: int, first: int) -> Iterator[Frames]:
        while True:
            data = self.fill(base)
            at_end = base + self.filled >= self.end
            frames = replace(self.scan(data, self.kind), base=base, first=first, last=at_end)
            if self.lost is not None and not frames.status.is_damage:
                frames = replace(frames, status=Status.BAD_VALUE, error=self.lost)
            if frames.status is Status.PADDING and not at_end:
                frames = self.follow_padding(frames)
            if frames.status is Status.PADDING and self.sealed:
                frames = replace(frames, status=Status.TRUNCATED)
            if frames.status is Status.TRUNCATED and at_end and self.hides_frames(frames):
                frames = replace(frames, status=Status.BAD_LENGTH)
            if frames.status.is_damage or (frames.status is Status.TRUNCATED and at_end):
                frames = self.without_wrong_length(frames)
            if frames.status.is_damage and self.is_tail(frames):
                frames = replace(frames, status=Status.TRUNCATED, last=True)
            if frames.status.is_damage:
                following = self.damaged(frames)
                if following is None:
                    yield replace(frames, last=True)
                    self.complain(frames)
                    return
                yield replace(frames, last=False)
                self.skip(following - base)
                base, first = following, first + len(frames)
                continue
            if frames.last or frames.status is Status.PADDING:
                yield replace(frames, last=True)
                self.check_boundary(frames)
                return
            if len(frames):
                yield frames
            if self.capacity < self.window or not len(frames):
                self.capacity *= 2
            base, first = self.carry(frames, base), first + len(frames)

    def fill(self, base: int) -> Bytes:
        """The bytes from `base` on, as many as a window holds."""
        want = max(0, min(self.capacity, self.end - base))
        self.lost = None
        if self.filled < want:
            held, is_small = self.held, self.buffer.size < PAGE + want
            if is_small:
                self.buffer = pages(PAGE + want)
            if is_small or self.front != base % PAGE:
                self.front = base % PAGE
                self.held[:] = held
            room = memoryview(self.buffer.data)[self.front + self.filled : self.front + want]
            got = self.read(base + self.filled, room)
            if self.filled + got < want and self.lost is None:
                self.end = base + self.filled + got
            self.filled += got
        return self.held

    def read(self, position: int, room: memoryview) -> int:
        """Fill `room` from `position` on; the number of bytes that were there. `lost` is set if those that follow cannot be had."""
        self.lost = None
        try:
            return self.source.read_into(position, room)
        except LostError as lost:
            self.lost = lost
            return lost.start - position

    @property
    def held(self) -> Bytes:
        """The bytes that were read and are still needed."""
        return self.buffer[self.front : self.front + self.filled]

    def carry(self, frames: Frames, base: int) -> int:
        """Move what follows the last whole frame to the front; the new base."""
        base += frames.reached
        rest = self.held[frames.reached :].copy()
        self.front, self.filled = base % PAGE, rest.size
        self.held[:] = rest
        return base

    def skip(self, count: int) -> None:
        """Pass over damaged bytes. What was read after them is not read again: a wrong length may have had the whole file read."""
        self.front, self.filled = self.front + count, max(0, self.filled - count)
        self.capacity = min(self.capacity, self.window)

    def follow_padding(self, frames: Frames) -> Frames:
        """Zeros to the end of this window: padding if they go on to the end of the file, else a frame's first bytes, or damage."""
        position = frames.base + self.filled
        piece = pages(self.window)
        while (position := self.source.skip_hole(position)) < self.end:
            got = self.read(position, memoryview(piece.data)[: min(self.window, self.end - position)])
            if got == 0 and self.lost is not None:
                return replace(frames, status=Status.BAD_LENGTH)
            if got == 0:
                break
            if piece[:got].any():
                # A few zeros before the window's end may well be the first bytes of a frame that goes on after it.
                begins = self.filled - frames.reached < HEAD
                return replace(frames, status=Status.TRUNCATED if begins else Status.BAD_LENGTH)
            position += got
        return replace(frames, last=True)

    def hides_frames(self, frames: Frames) -> bool:
        """Whether the unfinished last frame swallows sound ones: then its length is wrong, not its end missing."""
        whole_file = self.end >= self.source.size
        tail = self.held
        if not whole_file or not self.format.can("resync"):
            return False
        return self.format.codec.resync(tail, frames.reached + 1, self.kind) >= 0

    def without_wrong_length(self, frames: Frames) -> Frames:
        """The frames up to one with a wrong length: its checksum is wrong, and a sound frame begins inside it and goes on after it. The
        search for what follows then begins inside of it. What comes after a wrong length may look like frames, too.

        Without checksums nobody knows whose length is wrong: such a format has a rule of its own for it.
        """
        if self.errors != "skip" or not self.format.checked:
            return frames
        resync = self.format.codec.resync
        data, starts, doubtful = self.held, frames.starts, len(frames)
        while doubtful > max(0, len(frames) - MOST_TRIES):
            last = int(starts[doubtful - 1])
            if resync(data, last, self.kind) == last:
                break
            doubtful -= 1
        if doubtful == len(frames):
            return frames
        at = int(starts[doubtful])
        for _ in range(MOST_TRIES):
            at = resync(data, at + 1, self.kind)
            if not 0 <= at < frames.reached:
                break
            hiding = int(np.searchsorted(starts, at, side="right")) - 1
            inner = self.scan(data[at:], self.kind)
            if len(inner) and at + int(inner.stops[0]) > int(frames.stops[hiding]):
                return replace(frames.slice(0, hiding), reached=int(starts[hiding]), status=Status.BAD_LENGTH)
        return frames

    def is_tail(self, frames: Frames) -> bool:
        """Whether the bytes to the end of the file are no frames: what a crash leaves in a file that a system appends to. Not if the file
        has nothing else.
        """
        is_end = self.lost is None and self.end >= self.source.size and frames.reached_in_file > 0
        can_tell = self.format.appended and not self.sealed and is_end
        return can_tell and frames.error is None and self.following(frames) is None and self.lost is None

    def damaged(self, frames: Frames) -> int | None:
        """Where to go on after damage, or None to end there."""
        return self.following(frames) if self.errors == "skip" else None

    def following(self, frames: Frames) -> int | None:
        """Where a frame begins after those of a window; None if there is none."""
        if not self.format.can("resync"):
            return None
        position = frames.reached_in_file + 1
        window = self.held
        base = frames.base
        while True:
            at = self.format.codec.resync(window, position - base, self.kind)
            if at >= 0:
                return base + at
            # Overlap the windows, so that a frame across their border is seen whole in the next.
            following = max(position, base + window.size - self.window // 2)
            position = following if self.lost is None else self.lost.stop
            if base + window.size >= self.end or position >= self.end:
                return None
            base = position
            piece = pages(min(self.window * 2, self.end - base))
            got = self.read(base, memoryview(piece.data))
            window = piece[:got]
            if not got and self.lost is None:
                return None

    def complain(self, frames: Frames) -> None:
        if self.errors == "raise":
            raise frames.error or describe(self.format, frames, self.source.path)

    def check_boundary(self, frames: Frames) -> None:
        if frames.status is Status.TRUNCATED and self.end < self.source.size and self.errors == "raise":
            raise CorruptError(
                f"a frame crosses the planned boundary at byte {self.end:,}: the index disagrees with the log",
                path=self.source.path,
                position=frames.reached_in_file,
                format=self.format.name,
            )


_WORDS = {
    Status.BAD_LENGTH: "an invalid length",
    Status.BAD_MAGIC: "an unknown version",
    Status.BAD_COUNT: "a count that does not fit",
    Status.BAD_VARINT: "a number that does not end",
    Status.BAD_CRC: "a checksum that does not match",
    Status.BAD_CODEC: "an unknown compression",
    Status.BAD_VALUE: "an invalid value",
    Status.BAD_HEADER: "a damaged file header",
    Status.TRAILING: "bytes left over",
}


def describe(format: Format, frames: Frames, path: str) -> DataError:
    """The error for frames that ended in damage, with the bytes there."""
    if frames.error is not None:
        error: DataError = CorruptError(frames.error.message, position=frames.reached_in_file)
    elif format.can("fault"):
        error = format.codec.fault(frames)
    else:
        error = CorruptError(_WORDS.get(frames.status, "damage"), position=frames.reached_in_file)
    if error.context is None:
        error.context = hex_lines(frames.data, frames.reached, frames.base)
    return error.at(path=path, format=format.name, position=frames.reached_in_file)


def hex_lines(data: Bytes, at: int, base: int, count: int = 3) -> str:
    """A few lines of bytes around a place, for error messages."""
    start = max(0, (at // 16 - 1) * 16) if at >= 16 else 0
    lines = []
    for line in range(start, min(start + 16 * count, data.size), 16):
        piece = bytes(data[line : line + 16])
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"  {base + line:>12,}  {piece.hex(' '):<47}  {text}")
    return "\n".join(lines)
