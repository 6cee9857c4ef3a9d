"""Mending recordings: every entry that is whole is kept, in a copy that verifies clean.

The format has no checksum, so nothing vouches for what an entry holds: only lengths and times that cannot be are mended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rawlog.core.errors import DataError
from rawlog.core.format import File, Origin
from rawlog.core.frames import Bytes, Frames
from rawlog.core.report import Account
from rawlog.core.status import Status
from rawlog.formats.replay import RECORDING
from rawlog.formats.replay.layouts import ENTRIES, FILE_HEADER, LATEST_CREDIBLE, NO_TIME_SECONDS, VERSIONS
from rawlog.formats.replay.paths import begin
from rawlog.formats.replay.reader import heads, times
from rawlog.formats.replay.writer import file_header
from rawlog.io.output import descendant, new_directory, writing
from rawlog.io.storage import Source
from rawlog.io.walk import HEAD, WINDOW, walk
from rawlog.kernels import byte_view

#: So far from the entries around it, in seconds, an entry among damaged bytes may be; and so many damaged bytes are searched for one.
MONTH = 30 * 86400
LARGEST_HOLE = 4 << 20
NO_TIME = {
    0: b"0001-01-01T00:00:00.000000Z",
    **{kind: NO_TIME_SECONDS.to_bytes(8, "big", signed=True) for kind in VERSIONS},
}


@dataclass(slots=True)
class Mended(Account):
    """What was written, and what was lost on the way: one line each."""

    files: list[str] = field(default_factory=list)
    entries: int = 0
    dropped: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost."""
        return not self.dropped

    def lines(self) -> list[str]:
        """What was lost, then the rest."""
        return [*self.dropped, *Account.lines(self)]


def repair(files: Sequence[File], target: str, options: Mapping[str, str]) -> Mended:
    """Write mended copies of the recordings at the option `source`: of a file a file, of a directory a directory.

    With `dry_run` nothing is written. DataError for a header of no known version, unless all that follows are entries of one.
    """
    account = Mended()
    source = options.get("source", "").rstrip("/")
    is_file = len(files) == 1 and files[0].path == source
    if "dry_run" in options:
        for file in files:
            deque(_mended(file, source, account), maxlen=0)
    elif is_file:
        with writing(target) as out:
            out.writelines(_mended(files[0], source, account))
    else:
        with new_directory(target) as work:
            for file in files:
                path = descendant(work, _name(file, source))
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as out:
                    out.writelines(_mended(file, source, account))
    return account


def _name(file: File, source: str) -> str:
    """The name of a file below the directory that was asked for."""
    inside = file.path.startswith(f"{source}/")
    return file.path[len(source) + 1 :] if inside else file.path.rpartition("/")[2]


def _mended(file: File, source: str, account: Mended) -> Iterator[bytes]:
    """The bytes of a mended recording, in pieces; what is lost goes into the account."""
    name = _name(file, source)
    account.files.append(name)
    with Source(file.path) as opened:
        origin = _origin(file, opened, name, account)
        if origin.kind:
            yield file_header(origin.kind)
        reached, zeros, zeros_from = origin.position, 0, origin.position
        for frames in _pieces(walk(file, RECORDING, origin=origin, errors="skip", source=opened), opened):
            if frames.base > reached:
                account.dropped.append(_lost(name, reached, f"{frames.base - reached:,} damaged bytes"))
            reached = frames.reached_in_file
            data = _with_sound_times(frames, name, account)
            sound = _until_zeros(frames)
            end = int(frames.stops[sound - 1]) if sound else 0
            if sound:
                account.entries += zeros // ENTRIES[frames.kind].size + sound
                yield from _zeros(zeros)
                yield data[:end]
                zeros, zeros_from = 0, frames.base + end
            zeros += frames.reached - end
            if frames.last and reached < opened.size:
                what = "of an unfinished entry" if frames.status is Status.TRUNCATED else "damaged"
                account.dropped.append(_lost(name, reached, f"{opened.size - reached:,} bytes {what}"))
        if zeros:
            account.dropped.append(_lost(name, zeros_from, f"{zeros:,} zero bytes that were never recorded"))


def _pieces(windows: Iterable[Frames], source: Source) -> Iterator[Frames]:
    """The windows of a walk, and between them the few entries that stand alone among damaged bytes."""
    reached: int | None = None
    seconds: list[int] = []
    for frames in _apart(windows):
        times = _times(frames)
        if reached is not None and frames.base > reached:
            yield from _islands(source, reached, frames.base, frames.kind, [*seconds, *times[:1]])
        reached, seconds = frames.reached_in_file, times[-1:] or seconds
        ends = frames.last and frames.status.is_damage
        tail = list(_islands(source, reached, source.size, frames.kind, seconds)) if ends else []
        yield replace(frames, last=frames.last and not tail)
        yield from tail[:-1]
        if tail:
            yield replace(tail[-1], last=True, status=frames.status)


def _times(frames: Frames) -> list[int]:
    """The times of entries, in seconds, as far as they are credible."""
    if frames.kind == 0 or not len(frames):
        return []
    found = heads(frames)["timestamp"].astype(np.int64)
    return found[(found > 0) & (found <= LATEST_CREDIBLE)].tolist()  # type: ignore[no-any-return]


def _islands(source: Source, start: int, stop: int, kind: int, near: Sequence[int]) -> Iterator[Frames]:
    """Entries among damaged bytes that are too few in a row for `resync`."""
    if LARGEST_HOLE >= stop - start > ENTRIES[kind].size:
        data = byte_view(source.read(start, stop - start))
        position = 0
        while (found := next(_likely(data[position:], data.size, kind, near), None)) is not None:
            found = replace(found, base=position + found.base)
            inside = _swallowed(found)
            if inside is not None:
                found = replace(found.slice(0, len(found) - 1), reached=int(found.starts[-1]))
            if len(found):
                yield replace(found, base=start + found.base)
            position = found.reached_in_file if inside is None else inside.base


def _likely(data: Bytes, stop: int, kind: int, near: Sequence[int]) -> Iterator[Frames]:
    """Entries in a row that begin before `stop` and have times like those of entries around them: at least two, or one up to the end."""
    assert RECORDING.scan is not None
    if not near or kind == 0 or data.size < 8:
        return
    seconds = sliding_window_view(data, 8).copy().view(">i8").reshape(-1)
    likely = np.flatnonzero((seconds >= min(near) - MONTH) & (seconds <= max(near) + MONTH))
    position = 0
    for candidate in likely[likely < stop].tolist():
        if candidate < position:
            continue
        found = RECORDING.scan(data[candidate:], kind)
        count = int(np.argmin(np.append(np.isin(found.starts + candidate, likely), False)))
        if count > 1 or (count == 1 and candidate + int(found.stops[0]) == data.size):
            position = candidate + int(found.stops[count - 1])
            yield replace(found.slice(0, count), base=candidate, status=Status.OK, last=False)


def _apart(windows: Iterable[Frames]) -> Iterator[Frames]:
    """The windows of a walk. Where the last entry before damage has swallowed the beginning of sound entries, because its length is wrong
    or bytes of it are missing, it is left out, and those entries are there.
    """
    held: Frames | None = None
    for frames in windows:
        if held is not None:  # up to where the walk goes on
            yield held.slice(0, int(np.searchsorted(held.stops, frames.base - held.base, side="right")))
            held = None
        ends = frames.status.is_damage or (frames.last and frames.status is Status.TRUNCATED)
        found = _swallowed(frames) if ends and len(frames) else None
        if found is None:
            yield frames
            continue
        before = frames.slice(0, len(frames) - 1)
        start = int(frames.starts[-1])
        yield replace(before, reached=start, status=Status.OK, last=False)
        held = found
    if held is not None:
        yield held


def _swallowed(frames: Frames) -> Frames | None:
    """Entries that begin inside the last one of a window and go on after it; None if there are none.

    A value may be a recording itself: then its entries end where the value does.
    """
    start, end = int(frames.starts[-1]), int(frames.stops[-1])
    if end - start > LARGEST_HOLE or frames.kind == 0:
        return None
    near = _times(frames)[-2:]
    data = frames.data[start + 1 : end + LARGEST_HOLE]
    for found in _likely(data, end - start - 1, frames.kind, near):
        edge = end - start - 1 - found.base
        if ((found.starts < edge) & (edge < found.stops)).any():
            return replace(
                found,
                data=found.data.copy(),  # the walk reads on into the same buffer
                base=frames.base + start + 1 + found.base,
                first=frames.first + len(frames) - 1,
                last=frames.last,
                status=frames.status,
            )
    return None


def _zeros(count: int) -> Iterator[bytes]:
    """So many zero bytes, a window at a time."""
    while count:
        yield bytes(min(count, WINDOW))
        count -= min(count, WINDOW)


def _lost(name: str, position: int, what: str) -> str:
    return f"{name}: byte {position:,}: {what}"


def _origin(file: File, source: Source, name: str, account: Mended) -> Origin:
    """Where the entries begin; what a damaged header does not tell is told by the entries."""
    head = source.read(0, HEAD)
    try:
        origin = begin(head, source.size)
    except DataError as error:
        origin = _guessed(file, source, head, error)
        account.dropped.append(_lost(name, 0, "damaged file header written anew"))
        return origin
    if origin.kind and any(head[FILE_HEADER.at("reserved") : FILE_HEADER.size]):
        account.notes.append(_lost(name, FILE_HEADER.at("reserved"), "reserved bytes set to zero"))
    return origin


def _guessed(file: File, source: Source, head: bytes, error: DataError) -> Origin:
    version = int.from_bytes(head[: FILE_HEADER.after("version")], "big", signed=True)
    if source.size < FILE_HEADER.size:
        return Origin(source.size, version if version in VERSIONS else max(VERSIONS))
    for kind in VERSIONS:
        origin = Origin(FILE_HEADER.size, kind)
        *_, last = walk(file, RECORDING, origin=origin, errors="stop", source=source)
        if last.status is Status.OK and last.reached_in_file == source.size:
            return origin
    raise error.at(path=file.path, format=RECORDING.name) from None


def _until_zeros(frames: Frames) -> int:
    """The number of entries up to the last that is more than zeros, which no recorder writes."""
    if frames.kind == 0:
        return len(frames)
    fixed = ENTRIES[frames.kind].size
    filled = np.flatnonzero((frames.sizes > fixed) | (heads(frames)["timestamp"].astype(np.int64) != 0))
    return int(filled[-1]) + 1 if filled.size else 0


def _with_sound_times(frames: Frames, name: str, account: Mended) -> bytes:
    """The bytes of the entries; times that cannot be are those of a record without one, and milliseconds are seconds."""
    data = frames.data[: frames.reached]
    _, valid = times(frames)
    stored = None
    if frames.kind:
        stored = heads(frames)["timestamp"].astype(np.int64)
        valid &= stored <= LATEST_CREDIBLE
    if valid.all():
        return data.tobytes()
    mended = bytearray(data.tobytes())
    field = ENTRIES[frames.kind].fields[0]
    for index in np.flatnonzero(~valid).tolist():
        start, position = int(frames.starts[index]), int(frames.positions[index])
        seconds = -1 if stored is None else int(stored[index]) // 1000
        if 0 <= seconds <= LATEST_CREDIBLE:
            account.notes.append(_lost(name, position, "a time in milliseconds made one in seconds"))
            mended[start : start + field.size] = seconds.to_bytes(field.size, "big")
        else:
            account.dropped.append(_lost(name, position, "a time that cannot be told; the entry is kept without one"))
            mended[start : start + field.size] = NO_TIME[frames.kind]
    return bytes(mended)
