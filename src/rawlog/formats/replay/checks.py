"""What verification looks for in recordings. The format has no checksum: a changed value cannot be noticed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rawlog.core.findings import Mark, Rule, Severity, rule
from rawlog.core.format import Inspection
from rawlog.core.frames import Bytes
from rawlog.formats.replay.layouts import ENTRIES, FILE_HEADER, LATEST_CREDIBLE
from rawlog.formats.replay.reader import are_zeros, ends_in_damage, find_swallowed, heads, times
from rawlog.io.storage import Source


@rule("replay.recording.time", Severity.ERROR)
def invalid_time(seen: Inspection) -> Iterator[Mark]:
    """The stored time is invalid: not a time of the right form in version 0, a number beyond any calendar in the others.

    The entry's value may still be sound, but something else wrote over it or its neighbour. Old readers use the current time instead,
    without a warning.
    """
    _, valid = times(seen.frames)
    for index in np.flatnonzero(~valid).tolist():
        start = int(seen.frames.starts[index])
        raw = bytes(seen.frames.data[start : start + ENTRIES[seen.frames.kind].fields[0].size])
        yield Mark(
            "an invalid time",
            position=int(seen.frames.positions[index]),
            size=len(raw),
            offset=seen.frames.first + index,
            expected="YYYY-MM-DDTHH:MM:SS.ffffffZ" if seen.frames.kind == 0 else "seconds since 1970",
            found=ascii(raw.decode("latin-1")) if seen.frames.kind == 0 else int.from_bytes(raw, "big", signed=True),
        )


@rule("replay.recording.milliseconds", Severity.WARNING)
def milliseconds_as_seconds(seen: Inspection) -> Iterator[Mark]:
    """The time is so large that it must be milliseconds, where the format says seconds.

    The program that wrote the file made a mistake; replaying with the recorded times would send nonsense. Divide the times by
    1000 when converting.
    """
    if seen.frames.kind == 0:
        return
    stored, (_, valid) = heads(seen.frames)["timestamp"].astype(np.int64), times(seen.frames)
    for index in np.flatnonzero(valid & (stored > LATEST_CREDIBLE)).tolist():
        yield Mark(
            "a time in milliseconds where seconds belong",
            position=int(seen.frames.positions[index]),
            offset=seen.frames.first + index,
            expected=f"at most {LATEST_CREDIBLE}",
            found=int(stored[index]),
        )


@rule("replay.recording.trailing-zeros", Severity.WARNING)
def trailing_zeros(seen: Inspection) -> Iterator[Mark]:
    """The file ends in zero bytes, which every reader takes for messages: 1970-01-01, no key, empty value.

    They were never recorded: a preallocated or badly copied file leaves them. Cut the file at the position given.
    """
    if seen.frames.kind == 0:
        return
    frames, memory = seen.frames, seen.memory
    fixed = ENTRIES[frames.kind].size
    sound = np.flatnonzero(~are_zeros(frames))
    if sound.size:
        memory["start"] = int(frames.positions[sound[-1]] + frames.sizes[sound[-1]])
        memory["count"] = len(frames) - 1 - int(sound[-1])
    else:
        memory.setdefault("start", frames.base)
        memory["count"] = memory.get("count", 0) + len(frames)
    if frames.last and memory["count"]:
        yield Mark(
            f"zero bytes at the end, read as {memory['count']:,} messages",
            position=memory["start"],
            size=memory["count"] * fixed,
        )


@rule("replay.recording.covered", Severity.WARNING)
def covered_entries(seen: Inspection) -> Iterator[Mark]:
    """The last entry before damage covers the beginning of other entries: its length is wrong, or bytes of it are missing.

    The finding covers the bytes up to the first entry inside it. `rawlog repair` leaves those bytes out and keeps the entries that follow.
    """
    frames = seen.frames
    found = find_swallowed(frames) if ends_in_damage(frames) else None
    if found is not None:
        start = int(frames.positions[-1])
        number = frames.first + len(frames) - 1
        yield Mark("the length of this entry covers others", start, found.base - start, offset=number)


@rule("replay.recording.reserved", Severity.WARNING)
def reserved_bytes(seen: Inspection) -> Iterator[Mark]:
    """The sixteen reserved bytes of the header are not zero.

    No release writes anything there and none looks at it: the header was damaged, or another program made the file.
    """
    if seen.frames.kind == 0 or seen.memory.get("looked"):
        return
    seen.memory["looked"] = True
    with Source(seen.file.path) as source:
        head = source.read(0, FILE_HEADER.size)
    reserved = head[FILE_HEADER.at("reserved") :]
    if any(reserved):
        yield Mark(
            "reserved bytes are not zero",
            position=FILE_HEADER.at("reserved"),
            size=len(reserved),
            expected="zeros",
            found=reserved.hex(),
        )


@rule("replay.recording.transaction-marker", Severity.INFO)
def transaction_markers(seen: Inspection) -> Iterator[Mark]:
    """Entries that look like Kafka's commit and abort markers, which the recorder takes for messages.

    Replayed, they become ordinary records of a 4-byte key. Messages of aborted transactions are in such a file too, and nothing
    tells them apart.
    """
    frames, memory = seen.frames, seen.memory
    if frames.kind == 2 and len(frames):
        head = heads(frames)
        keys, values = head["key_size"].astype(np.int64), head["value_size"].astype(np.int64)
        maybe = np.flatnonzero((keys == 4) & ((values == 0) | (values == 6)))
        at = frames.starts[maybe] + ENTRIES[2].size
        markers = [i for i, start in zip(maybe.tolist(), at.tolist(), strict=True) if _is_marker(frames.data, start)]
        if markers:
            memory.setdefault("first", int(frames.positions[markers[0]]))
            memory["count"] = memory.get("count", 0) + len(markers)
    if frames.last and memory.get("count"):
        yield Mark(f"{memory['count']:,} transaction markers among the messages", position=memory["first"])


def _is_marker(data: Bytes, start: int) -> bool:
    return bytes(data[start : start + 4]) in (b"\0\0\0\0", b"\0\0\0\1")


def rules() -> Sequence[Rule[Inspection]]:
    """The rules of this module, as its format names them."""
    return (
        invalid_time,
        milliseconds_as_seconds,
        trailing_zeros,
        covered_entries,
        reserved_bytes,
        transaction_markers,
    )
