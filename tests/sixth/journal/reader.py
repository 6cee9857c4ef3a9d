"""Reading segments and indexes: entries found, checked and turned into columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.io.checksums import crc32c_spans
from rawlog.kernels import byte_view, columns
from rawlog.model.errors import CorruptError, DataError
from rawlog.model.format import File, Spans, Want
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status
from tests.sixth.journal import kernels
from tests.sixth.journal.layouts import ENTRY, ENTRY_MAGIC, LARGEST, NO_TIME, POSITION

BATCH_BYTES = 16 << 20

# Frames -----------------------------------------------------------------------------------------------------------------


def scan(data: Bytes, kind: int) -> Frames:
    """The whole entries of a window, by their lengths alone."""
    room = data.size // ENTRY.size + 1
    starts, stops = np.empty(room, np.int64), np.empty(room, np.int64)
    count, reached, status = kernels.scan_entries(byte_view(data), starts, stops)
    return Frames(data, starts[:count], stops[:count], int(reached), Status(status), kind=kind)


def resync(data: Bytes, position: int, kind: int) -> int:
    """The next position at which a whole entry with the right checksum begins, or -1."""
    return int(kernels.find_entry(byte_view(data), position))


def fault(frames: Frames) -> DataError:
    """What is wrong with the bytes at which the scan stopped."""
    place = {"position": frames.reached_in_file, "layout": ENTRY.name}
    magic = _field(frames, "magic")
    if magic is not None and magic != ENTRY_MAGIC:
        what = f"magic is {magic:08x}, {ENTRY_MAGIC:08x} expected"
        return CorruptError(what, **place, field="magic", expected=f"{ENTRY_MAGIC:08x}", found=f"{magic:08x}")
    for name in ("key_size", "value_size"):
        size = _field(frames, name)
        if size is not None and not -1 <= size <= LARGEST:
            what = f"{name} is {size:,}, -1 to {LARGEST:,} expected"
            return CorruptError(what, **place, field=name, expected=f"-1 to {LARGEST}", found=size)
    return CorruptError("the entry ends after the file does, and sound entries lie inside it", **place)


def _field(frames: Frames, name: str) -> int | None:
    """A field of the entry at which the scan stopped; None if the window ends before it."""
    start, stop = frames.reached + ENTRY.at(name), frames.reached + ENTRY.after(name)
    is_signed = "i" in ENTRY.field(name).type
    return None if stop > frames.data.size else int.from_bytes(bytes(frames.data[start:stop]), "big", signed=is_signed)


# What entries say -------------------------------------------------------------------------------------------------------


def heads(frames: Frames) -> NDArray[Any]:
    """The fixed fields of all entries."""
    return ENTRY.take(frames.data, frames.starts)


def ends(frames: Frames) -> NDArray[np.int64]:
    """Where the value of each entry ends in the window, and its padding begins."""
    head = frames.share(heads)
    sizes = np.maximum(head["key_size"], 0).astype(np.int64) + np.maximum(head["value_size"], 0)
    return frames.starts + ENTRY.size + sizes


def sums(frames: Frames) -> NDArray[np.int64]:
    """The checksum that each entry should have."""
    return crc32c_spans(frames.data, frames.starts + ENTRY.after("crc"), frames.share(ends))


def is_sound(frames: Frames) -> NDArray[np.bool_]:
    """Which entries have the right checksum."""
    return frames.share(sums) == frames.share(heads)["crc"]


def rising(frames: Frames, last: int) -> tuple[NDArray[np.bool_], int]:
    """Which sound entries have a number above all sound ones before them, and the highest number; `last` is the highest before."""
    numbers, sound = frames.share(heads)["number"].astype(np.int64), frames.share(is_sound)
    highest = np.maximum.accumulate(np.append(last, np.where(sound, numbers, np.iinfo(np.int64).min)))
    return sound & (numbers > highest[:-1]), int(highest[-1])


def _refuse(frames: Frames, index: int) -> CorruptError:
    """The error for an entry whose checksum is wrong. Its position must be that of the frame: callers go on after it."""
    found, expected = int(frames.share(heads)["crc"][index]), int(frames.share(sums)[index])
    return CorruptError(
        f"checksum is {found:08x}, {expected:08x} expected",
        position=int(frames.positions[index]),
        format="journal.segment",
        layout=ENTRY.name,
        field="crc",
        expected=f"{expected:08x}",
        found=f"{found:08x}",
    )


def _wrong(frames: Frames) -> int:
    """The first entry with a wrong checksum; the number of entries if there is none."""
    sound = frames.share(is_sound)
    return len(frames) if sound.all() else int(np.argmin(sound))


def spans(frames: Frames, file: File) -> Spans:
    """An entry is one record with a number and perhaps a time. Raises as `decode` does."""
    if (wrong := _wrong(frames)) < len(frames):
        raise _refuse(frames, wrong)
    head = frames.share(heads)
    number, time = head["number"].astype(np.int64), head["timestamp"].astype(np.int64)
    return Spans(number, number + 1, time, time, np.ones(len(frames), np.int64))


def decode(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Entries as rows of `records` or `journal.entries`. What comes before a wrong checksum is given first, then it raises."""
    wrong = _wrong(frames)
    start = 0
    while start < wrong:
        stop = int(np.searchsorted(frames.stops[:wrong], frames.starts[start] + BATCH_BYTES, side="right"))
        stop = max(stop, start + 1)
        part = frames.slice(start, stop)
        yield columns.batch(want.table, _columns(part, want), len(part))
        start = stop
    if wrong < len(frames):
        raise _refuse(frames, wrong)


def _columns(frames: Frames, want: Want) -> dict[str, pa.Array]:
    """The wanted columns; those nobody asked for are not built."""
    count, data, head = len(frames), byte_view(frames.data), frames.share(heads)
    key_size, value_size = head["key_size"].astype(np.int64), head["value_size"].astype(np.int64)
    keys = frames.starts + ENTRY.size
    time = head["timestamp"].astype(np.int64)
    made = {
        "key": lambda: columns.nullable_spans(data, keys, key_size),
        "value": lambda: columns.nullable_spans(data, keys + np.maximum(key_size, 0), value_size),
        "offset": lambda: columns.integers(head["number"], "bigint"),
        "number": lambda: columns.integers(head["number"], "bigint"),
        "timestamp": lambda: columns.timestamps(time, time != NO_TIME),
        "crc": lambda: columns.integers(head["crc"], "bigint"),
        "position": lambda: columns.integers(frames.positions, "bigint"),
        "size": lambda: columns.integers(frames.sizes, "bigint"),
        "headers": lambda: columns.empty_headers(count),
        "topic": lambda: columns.constant(want.file.place.topic, "string", count),
        "partition": lambda: columns.constant(want.file.place.partition, "int", count),
        "timestampType": lambda: columns.constant(0, "int", count),
        "path": lambda: columns.constant(want.file.path, "string", count),
    }
    return {name: made[name]() for name in want.table.names}


# The index --------------------------------------------------------------------------------------------------------------


def scan_positions(data: Bytes, kind: int) -> Frames:
    """The whole entries of an index: all have the same size, and every byte belongs to one."""
    starts = np.arange(data.size // POSITION.size, dtype=np.int64) * POSITION.size
    reached = len(starts) * POSITION.size
    status = Status.OK if reached == data.size else Status.TRUNCATED
    return Frames(data, starts, starts + POSITION.size, reached, status, kind=kind)


def positions(frames: Frames) -> NDArray[Any]:
    """The fields of index entries."""
    return POSITION.take(frames.data, frames.starts)


def decode_positions(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Index entries as rows of `journal.positions`."""
    if len(frames):
        rows = positions(frames)
        made = {name: columns.integers(rows[name], "bigint") for name in ("number", "position")}
        made["path"] = columns.constant(want.file.path, "string", len(frames))
        yield columns.batch(want.table, made, len(frames))
