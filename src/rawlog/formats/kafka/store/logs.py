"""How far a broker reads a log when it loads it: to the first batch that is not sound, or, after a clean stop, as the index leads it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rawlog.core.format import File
from rawlog.core.status import Status
from rawlog.formats.kafka.heads import heads
from rawlog.formats.kafka.layouts import INDEX_ENTRY, OUTLINE
from rawlog.formats.kafka.log import scan
from rawlog.io.storage import Source
from rawlog.io.walk import walk

WINDOW = 4 << 20
#: Entries at the end of an index that a broker looks at first.
_WARM = 8192 // INDEX_ENTRY.size


class End(NamedTuple):
    """Where reading ends: a byte position, and the offset that follows there; None if no batch was read. `is_fatal`: a broker that comes
    to that position gives up, and does not start.
    """

    position: int
    offset: int | None
    is_fatal: bool = False


def sound_end(segment: File) -> End:
    """The end of the sound batches that a segment begins with: where recovery cuts it."""
    from rawlog.formats.kafka import LOG

    position, offset = 0, None
    for frames in walk(segment, LOG, errors="stop"):
        head = heads(frames)
        good = len(frames) if head.all_sound else int(np.argmin(head.sound))
        if good:
            offset = int(head["last_offset"][good - 1]) + 1
            position = int(frames.positions[good - 1] + frames.sizes[good - 1])
        if good < len(frames):
            break
    return End(position, offset)


def trusted_end(segment: File, index: File | None) -> End:
    """The end of the last segment as a broker finds it after a clean stop: from the last entry of the index on, by lengths alone."""
    target, position = _last_entry(segment, index)
    offset: int | None = None
    window = WINDOW
    with Source(segment.path) as source:
        while 0 <= position < source.size:
            part = np.frombuffer(source.read(position, window), np.uint8)
            frames = scan(part, 0)
            if len(frames):
                last = heads(frames)["last_offset"]
                if offset is not None or bool((last >= target).any()):
                    offset = int(last[-1]) + 1
            is_cut = frames.status in (Status.TRUNCATED, Status.PADDING) and position + part.size < source.size
            position += frames.reached
            if not is_cut:
                left = source.size - position
                is_fatal = frames.status.is_damage or (frames.status is Status.PADDING and left > OUTLINE.size)
                return End(position, offset, is_fatal)
            window = WINDOW if len(frames) else window * 2
        return End(max(0, min(position, source.size)), offset)


def _last_entry(segment: File, index: File | None) -> tuple[int, int]:
    """The offset of the last entry of an index, zeros included, and the position at which a broker begins to look for it."""
    base = segment.place.start_offset or 0
    if index is None or index.size < INDEX_ENTRY.size:
        return base, 0
    with Source(index.path) as source:
        data = np.frombuffer(source.read(0, source.size // INDEX_ENTRY.size * INDEX_ENTRY.size), np.uint8)
    raw = INDEX_ENTRY.view(data)
    offsets, positions = raw["relative_offset"].astype(np.int64) + base, raw["position"].astype(np.int64)
    target = int(offsets[-1])
    warm = max(0, len(offsets) - 1 - _WARM)
    if offsets[warm] < target:
        low, high = warm, len(offsets) - 1
    elif offsets[0] > target:
        return target, 0
    else:
        low, high = 0, warm
    while low < high:
        middle = (low + high + 1) // 2
        if offsets[middle] > target:
            high = middle - 1
        elif offsets[middle] < target:
            low = middle
        else:
            low = high = middle
    return target, int(positions[low])
