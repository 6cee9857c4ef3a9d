"""What verification looks for in one file. A rule's docstring is its page in the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.model.finding import (
    Mark,
    Rule,
    Severity,
    rule,
)
from rawlog.model.format import Inspection
from rawlog.model.frames import Frames
from tests.sixth.journal.layouts import ALIGNMENT, FILE_HEADER, STEP
from tests.sixth.journal.reader import ends, heads, is_sound, positions, rising, sums


@rule("journal.segment.checksum", Severity.ERROR)
def wrong_checksum(seen: Inspection) -> Iterator[Mark]:
    """The checksum of an entry is wrong: its number, time, key or value changed after it was written.

    Take the entry from another copy; `rawlog repair` drops it.
    """
    frames = seen.frames
    for index in np.flatnonzero(~frames.share(is_sound)).tolist():
        found, expected = int(frames.share(heads)["crc"][index]), int(frames.share(sums)[index])
        yield _mark(frames, index, "wrong checksum", f"{expected:08x}", f"{found:08x}")


def _merged(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any] | None:
    """What the rule below remembers of two neighbouring splits; None if the file must be checked in one."""
    is_apart = after["first"] > before["last"]
    return {"first": before["first"], "last": after["last"]} if is_apart else None


@rule("journal.segment.order", Severity.ERROR, merge=_merged)
def not_rising(seen: Inspection) -> Iterator[Mark]:
    """The number of an entry is not above those before it, or is below the first number in the file's name: bytes are in the file twice.

    Nothing is lost: the entry that comes first has the number. `rawlog repair` drops the later one.
    """
    frames, memory = seen.frames, seen.memory
    sound = np.flatnonzero(frames.share(is_sound))
    if not sound.size:
        return
    numbers = frames.share(heads)["number"]
    memory.setdefault("first", int(numbers[sound].min()))
    last = memory.get("last", (seen.file.place.start_offset or 0) - 1)
    right, memory["last"] = rising(frames, last)
    for index in sound[~right[sound]].tolist():
        yield _mark(frames, index, "number does not rise", None, int(numbers[index]))


@rule("journal.segment.padding", Severity.WARNING)
def padding_not_zero(seen: Inspection) -> Iterator[Mark]:
    """The bytes between two entries are not zero. No checksum covers them, and no reader looks at them.

    The entries are sound; something else wrote to the file. `rawlog repair` sets the bytes to zero.
    """
    for index in np.flatnonzero(dirty(seen.frames)).tolist():
        yield _mark(seen.frames, index, "padding is not zero")


def dirty(frames: Frames) -> NDArray[np.bool_]:
    """Which sound entries are followed by padding that is not zero."""
    found = np.zeros(len(frames), np.bool_)
    start = frames.share(ends)
    for step in range(ALIGNMENT - 1):
        inside = np.flatnonzero(start + step < frames.stops)
        found[inside] |= frames.data[start[inside] + step] != 0
    return found & frames.share(is_sound)


def _mark(frames: Frames, index: int, what: str, expected: object = None, found: object = None) -> Mark:
    place = int(frames.positions[index]), int(frames.sizes[index]), int(frames.share(heads)["number"][index])
    return Mark(what, *place, expected, found)


@rule("journal.positions.order", Severity.ERROR)
def index_not_rising(seen: Inspection) -> Iterator[Mark]:
    """An index entry is not above the one before it, or its number or position is impossible.

    The index is derived from the segment: delete it, or let `rawlog repair` rebuild it.
    """
    if not len(seen.frames):
        return
    rows = positions(seen.frames)
    numbers, places = rows["number"].astype(np.int64), rows["position"].astype(np.int64)
    wrong = (numbers % STEP != 0) | (places < FILE_HEADER.size) | (places % ALIGNMENT != 0)
    wrong |= numbers <= np.append(seen.memory.get("number", -1), numbers[:-1])
    wrong |= places <= np.append(seen.memory.get("position", 0), places[:-1])
    seen.memory.update(number=int(numbers[-1]), position=int(places[-1]))
    for index in np.flatnonzero(wrong).tolist():
        yield Mark("invalid or not rising", int(seen.frames.positions[index]), int(seen.frames.sizes[index]))


def rules() -> Sequence[Rule[Inspection]]:
    """The rules for segments."""
    return (wrong_checksum, not_rising, padding_not_zero)


def index_rules() -> Sequence[Rule[Inspection]]:
    """The rules for indexes."""
    return (index_not_rising,)
