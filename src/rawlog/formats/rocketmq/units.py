"""Files of units of fixed layouts: consume queues, timer log and wheel, checkpoints, DLedger's index. Each kind is an object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.rocketmq import layouts
from rawlog.formats.rocketmq.layouts import (
    BATCH_UNIT,
    CHECKPOINT,
    DLEDGER_INDEX,
    EXT_END,
    EXT_UNIT,
    MAGIC_BLANK,
    TIMER_BLANK,
    TIMER_CHECK,
    TIMER_PRECISION_MS,
    TIMER_UNIT,
    UNIT,
    WHEEL_SLOT,
)
from rawlog.formats.rocketmq.messages import MOST_MS, micros
from rawlog.kernels import columns
from rawlog.model.errors import CorruptError, DataError
from rawlog.model.finding import Rule
from rawlog.model.format import NO_TIME, File, Inspection, Spans, Want
from rawlog.model.frames import Bytes, Frames
from rawlog.model.layout import Layout
from rawlog.model.status import Status

if TYPE_CHECKING:
    from rawlog.model.explain import Node

Meanings = dict[str, Callable[[int], str]]


def fixed_frames(data: Bytes, layout: Layout, valid: NDArray[np.bool_], kind: int = 0) -> Frames:
    """Units of one size up to the first that is not valid: zeros to the end are padding, else damage."""
    count = int(np.argmin(valid)) if not valid.all() else int(valid.size)
    reached = count * layout.size
    starts = np.arange(count, dtype=np.int64) * layout.size
    if reached == data.size:
        status = Status.OK
    elif not data[reached:].any():
        status = Status.PADDING
    elif count == valid.size:
        status = Status.TRUNCATED
    else:
        status = Status.BAD_VALUE
    return Frames(data, starts, starts + layout.size, reached, status, kind=kind)


def units(data: Bytes, layout: Layout) -> NDArray[Any]:
    """The whole units of a stretch of bytes."""
    return layout.view(np.ascontiguousarray(data))


def _size(value: int) -> str:
    return (
        "pre-blank: fills the front of the queue's first file"
        if value == layouts.PRE_BLANK_SIZE
        else "of the whole message"
    )


def _tag(value: int) -> str:
    from rawlog.model.explain import milliseconds

    if value <= layouts.LARGEST_EXT_ADDRESS:
        return f"address {value + (1 << 63)} in the ext files"
    return (
        "no tag" if value == 0 else "hash of the tag" if -(1 << 31) <= value < 1 << 31 else f"due {milliseconds(value)}"
    )


def _due(value: int) -> str:
    from rawlog.model.explain import milliseconds

    return milliseconds(value * TIMER_PRECISION_MS)


def times_of(layout: Layout) -> Meanings:
    """What `explain` says of the times in a layout, which are milliseconds."""
    from rawlog.model.explain import milliseconds

    return {field.name: milliseconds for field in layout.fields if field.name.endswith("timestamp")}


class UnitFile:
    """A kind of file whose units have one layout; `name` is what `explain` calls a unit. See `rawlog.model.format.Codec`."""

    def __init__(self, layout: Layout, name: str, *more: Layout, **meanings: Callable[[int], str]) -> None:
        self.layout, self.name = layout, name
        self.LAYOUTS = (layout, *more)
        self.meanings = meanings

    def fault(self, frames: Frames) -> DataError:
        """Bytes where zeros or another unit belong."""
        return CorruptError("bytes that are no unit of this file", position=frames.reached_in_file)

    def explain(self, frames: Frames, file: File) -> list[Node]:
        """One unit, and what follows its layout."""
        from rawlog.model.explain import Node, layout_nodes, leaf

        start, stop = int(frames.starts[0]), int(frames.stops[0])
        meanings: Meanings = {**times_of(self.layout), **self.meanings}
        children = layout_nodes(self.layout, frames.data, start, frames.base, meanings, stop)
        if stop - start > self.layout.size:
            at = start + self.layout.size
            children.append(leaf(frames.data, at, stop - at, frames.base, "rest", "bytes", bytes(frames.data[at:stop])))
        return [Node(frames.base + start, stop - start, f"{self.name}, number {frames.first}", children=children)]


# Consume queues ---------------------------------------------------------------------------------------------------------


class _Queue(UnitFile):
    def fault(self, frames: Frames) -> DataError:
        """An invalid unit, with sound or foreign bytes after it."""
        return CorruptError(
            "a unit that points to nothing, with other bytes after it; a broker ends the queue here and cuts the rest off",
            position=frames.reached_in_file,
            found=bytes(frames.data[frames.reached : frames.reached + UNIT.size]).hex(" "),
        )


class ConsumeQueue(_Queue):
    """Where the messages of one queue are."""

    def scan(self, data: Bytes, kind: int) -> Frames:
        """Units whose address is not negative and whose size is above zero; the first other one ends the queue."""
        rows = units(data, UNIT)
        return fixed_frames(data, UNIT, (rows["physical_offset"] >= 0) & (rows["size"] > 0), kind)

    def resync(self, data: Bytes, position: int, kind: int) -> int:
        """The next unit that can be, or -1."""
        return _resync(data, position, UNIT, ("physical_offset", "size"))

    def decode(self, frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
        """Rows of `rocketmq.queues`."""
        rows = UNIT.take(frames.data, frames.starts)
        numbers = ((want.file.place.start_offset or 0) + frames.positions) // UNIT.size
        yield _batch(frames, want, "plain", rows, numbers)

    def spans(self, frames: Frames, file: File) -> Spans:
        """The number of each unit."""
        numbers = ((file.place.start_offset or 0) + frames.positions) // UNIT.size
        return Spans(numbers, numbers + 1, records=np.zeros(len(frames), np.int64))

    def rules(self) -> Sequence[Rule[Inspection]]:
        """Checks over the units of a queue."""
        from rawlog.formats.rocketmq import rules

        return rules.consume_queue()


class CompactionQueue(_Queue):
    """The queue of a compaction topic, in units of batches. It has no rows: those of its log are told by the log."""

    def scan(self, data: Bytes, kind: int) -> Frames:
        """Units of batches; the first that points to nothing ends the queue."""
        rows = units(data, BATCH_UNIT)
        valid = (
            (rows["physical_offset"] >= 0) & (rows["size"] > 0) & (rows["base_offset"] >= 0) & (rows["batch_size"] > 0)
        )
        frames = fixed_frames(data, BATCH_UNIT, valid, kind)
        at = frames.reached // BATCH_UNIT.size
        if frames.status is Status.BAD_VALUE and int(rows["physical_offset"][at]) == -1 and int(rows["size"][at]) == 0:
            # The mark after the last unit of a compaction topic's queue.
            frames = Frames(
                data, frames.starts, frames.stops, frames.reached, _end_of(data, frames.reached + BATCH_UNIT.size), kind
            )
        return frames


class BatchQueue(CompactionQueue):
    """A consume queue in units of batches."""

    def resync(self, data: Bytes, position: int, kind: int) -> int:
        """The next unit that can be, or -1."""
        return _resync(data, position, BATCH_UNIT, ("physical_offset", "size", "batch_size"))

    def decode(self, frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
        """Rows of `rocketmq.queues`."""
        rows = BATCH_UNIT.take(frames.data, frames.starts)
        yield _batch(frames, want, "batch", rows, rows["base_offset"].astype(np.int64))

    def spans(self, frames: Frames, file: File) -> Spans:
        """The offsets and the time of each unit."""
        rows = BATCH_UNIT.take(frames.data, frames.starts)
        base, times = rows["base_offset"].astype(np.int64), rows["store_timestamp"].astype(np.int64)
        fits = (times <= MOST_MS) & (times >= -MOST_MS)
        stored = np.where(fits, np.where(fits, times, 0) * 1000, NO_TIME)
        return Spans(base, base + rows["batch_size"], stored, stored, np.zeros(len(frames), np.int64))

    def rules(self) -> Sequence[Rule[Inspection]]:
        """Checks over the units of a queue."""
        from rawlog.formats.rocketmq import rules

        return rules.batch_queue()


class ExtQueue(_Queue):
    """Additions to units of consume queues, of any size. The two bytes that end a file are a unit of which only the size is there."""

    def scan(self, data: Bytes, kind: int) -> Frames:
        """Units, each directly after the one before; a size of -1 ends the file."""
        starts: list[int] = []
        stops: list[int] = []
        position, status = 0, Status.OK
        while position < data.size:
            left = data.size - position
            size = int.from_bytes(bytes(data[position : position + 2]), "big", signed=True)
            if size == 0 and not data[position:].any():
                status = Status.PADDING
                break
            if size == EXT_END and left >= 2:
                starts.append(position)
                position += 2
                stops.append(position)
                # What follows the mark is whatever was there; nobody reads it.
                status = Status.OK if position == data.size else Status.PADDING
                break
            if size < EXT_UNIT.size:
                status = Status.TRUNCATED if left < 2 else Status.BAD_LENGTH
                break
            if left < size:
                status = Status.TRUNCATED
                break
            starts.append(position)
            position += size
            stops.append(position)
        return Frames(data, np.array(starts, np.int64), np.array(stops, np.int64), position, status, kind=kind)

    def decode(self, frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
        """Rows of `rocketmq.queues`; the mark that ends a file gives no row."""
        whole = EXT_UNIT.take(np.concatenate((frames.data, np.zeros(EXT_UNIT.size, np.uint8))), frames.starts)
        keep = whole["size"] != EXT_END
        frames = Frames(
            frames.data, frames.starts[keep], frames.stops[keep], frames.reached, frames.status, base=frames.base
        )
        if len(frames):
            yield _batch(frames, want, "ext", whole[keep], None)


def _end_of(data: Bytes, position: int) -> Status:
    return Status.BAD_VALUE if data[position:].any() else Status.PADDING


def _resync(data: Bytes, position: int, layout: Layout, names: tuple[str, ...]) -> int:
    """The next unit of the same raster that is not zero and can be."""
    first = -(-position // layout.size)
    rows = units(data[first * layout.size :], layout)
    valid = np.ones(len(rows), np.bool_)
    for name in names:
        valid &= rows[name] >= (0 if name == "physical_offset" else 1)
    hits = np.flatnonzero(valid)
    return int(first + hits[0]) * layout.size if hits.size else -1


def _batch(
    frames: Frames, want: Want, kind: str, rows: NDArray[Any], numbers: NDArray[np.int64] | None
) -> pa.RecordBatch:
    count, fields = len(frames), rows.dtype.names or ()

    def number(name: str, type: str) -> pa.Array:
        return (
            columns.integers(rows[name].astype(np.int64), type)
            if name in fields
            else columns.constant(None, type, count)
        )

    arrays = {
        "topic": columns.constant(want.file.place.topic, "string", count),
        "queue_id": columns.constant(want.file.place.partition, "int", count),
        "queue_offset": columns.constant(None, "bigint", count)
        if numbers is None
        else columns.integers(numbers, "bigint"),
        "physical_offset": number("physical_offset", "bigint"),
        "size": number("size", "int"),
        "tag_hash": number("tag_hash", "bigint"),
        "kind": columns.constant(kind, "string", count),
        "batch_size": number("batch_size", "int"),
        "path": columns.constant(want.file.path, "string", count),
        "store_timestamp": columns.constant(None, "timestamp", count),
    }
    if "store_timestamp" in fields:
        arrays["store_timestamp"] = micros(rows["store_timestamp"].astype(np.int64))
    return columns.batch(want.table, arrays, count)


CONSUME_QUEUE = ConsumeQueue(UNIT, "unit", size=_size, tag_hash=_tag)
BATCH_QUEUE = BatchQueue(BATCH_UNIT, "batch unit", tag_hash=_tag)
COMPACTION_QUEUE = CompactionQueue(BATCH_UNIT, "batch unit", tag_hash=_tag)
EXT_QUEUE = ExtQueue(EXT_UNIT, "ext unit", tag_hash=_tag)

# Timers -----------------------------------------------------------------------------------------------------------------


class TimerLog(UnitFile):
    """Timer messages as they were scheduled."""

    def scan(self, data: Bytes, kind: int) -> Frames:
        """Units of 52 bytes; a blank one covers the rest of the file."""
        rows = TIMER_UNIT.view(np.ascontiguousarray(data))
        # A blank one may be as large as a unit; its magic is at the same place.
        frames = fixed_frames(
            data, TIMER_UNIT, (rows["size"] == TIMER_UNIT.size) & (rows["magic"] != MAGIC_BLANK), kind
        )
        left = data[frames.reached :]
        if frames.status in (Status.BAD_VALUE, Status.TRUNCATED) and left.size >= TIMER_BLANK.size:
            blank = np.frombuffer(bytes(left[: TIMER_BLANK.size]), TIMER_BLANK.dtype)[0]
            size = int(blank["size"])
            if int(blank["magic"]) == MAGIC_BLANK and size >= TIMER_BLANK.size:
                if size > left.size:
                    return replace(frames, status=Status.TRUNCATED)
                stop = frames.reached + size
                status = Status.OK if stop == data.size else Status.BAD_VALUE if data[stop:].any() else Status.PADDING
                return replace(
                    frames,
                    starts=np.append(frames.starts, frames.reached),
                    stops=np.append(frames.stops, stop),
                    reached=stop,
                    status=status,
                )
        return frames

    def decode(self, frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
        """Rows of `rocketmq.timers`."""
        keep = frames.sizes == TIMER_UNIT.size
        keep[keep] = TIMER_UNIT.take(frames.data, frames.starts[keep])["magic"] != MAGIC_BLANK
        rows, count = TIMER_UNIT.take(frames.data, frames.starts[keep]), int(keep.sum())
        written = rows["write_timestamp"].astype(np.int64)
        positions = frames.positions[keep] + (want.file.place.start_offset or 0)
        arrays = {
            "path": columns.constant(want.file.path, "string", count),
            "timer_position": columns.integers(positions, "bigint"),
            "previous_position": columns.integers(rows["previous_position"].astype(np.int64), "bigint"),
            "magic": columns.integers(rows["magic"].astype(np.int64), "int"),
            "write_timestamp": micros(written),
            "due_timestamp": micros(_held(written, MOST_MS + (1 << 32)) + rows["delay_ms"]),
            "physical_offset": columns.integers(rows["physical_offset"].astype(np.int64), "bigint"),
            "size": columns.integers(rows["message_size"].astype(np.int64), "int"),
            "topic_hash": columns.integers(rows["topic_hash"].astype(np.int64), "int"),
        }
        yield columns.batch(want.table, arrays, count)

    def explain(self, frames: Frames, file: File) -> list[Node]:
        """One unit, or the blank one that closes a file."""
        from rawlog.formats.rocketmq.explain import blank_nodes
        from rawlog.model.explain import Node

        start, stop, base = int(frames.starts[0]), int(frames.stops[0]), frames.base
        magic = start + TIMER_BLANK.at("magic")
        if int.from_bytes(bytes(frames.data[magic : magic + 4]), "big", signed=True) != MAGIC_BLANK:
            return super().explain(frames, file)
        nodes = blank_nodes(TIMER_BLANK, frames, start, stop)
        return [Node(base + start, stop - start, TIMER_BLANK.name, children=nodes)]


class TimerWheel(UnitFile):
    """Timer messages by the second in which they are due."""

    def scan(self, data: Bytes, kind: int) -> Frames:
        """The used slots; those between were never used."""
        whole = data.size // WHEEL_SLOT.size * WHEEL_SLOT.size
        words = np.ascontiguousarray(data[:whole]).view(np.int64).reshape(-1, WHEEL_SLOT.size // 8)
        starts = np.flatnonzero(words.any(axis=1)).astype(np.int64) * WHEEL_SLOT.size
        status = Status.OK if whole == data.size else Status.TRUNCATED
        return Frames(data, starts, starts + WHEEL_SLOT.size, whole, status, kind=kind)

    def decode(self, frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
        """Rows of `rocketmq.wheel`."""
        rows, count = WHEEL_SLOT.take(frames.data, frames.starts), len(frames)
        arrays = {
            "path": columns.constant(want.file.path, "string", count),
            "position": columns.integers(frames.positions, "bigint"),
            "due_timestamp": micros(_held(rows["time"], MOST_MS // TIMER_PRECISION_MS + 1) * TIMER_PRECISION_MS),
            "first_position": columns.integers(rows["first_position"].astype(np.int64), "bigint"),
            "last_position": columns.integers(rows["last_position"].astype(np.int64), "bigint"),
            "count": columns.integers(rows["count"].astype(np.int64), "int"),
            "magic": columns.integers(rows["magic"].astype(np.int64), "int"),
        }
        yield columns.batch(want.table, arrays, count)


def _held(times: NDArray[np.generic], most: int) -> NDArray[np.int64]:
    """Times beyond `most` brought back to it, so that the next step does not overflow; they stay beyond what a column holds."""
    return np.clip(times.astype(np.int64), -most, most)


class WholeFile(UnitFile):
    """A file that is one unit."""

    def scan(self, data: Bytes, kind: int) -> Frames:
        """One frame at the front of the file, the rest of which is zeros."""
        if data.size < self.layout.size:
            status = Status.TRUNCATED if data.size else Status.OK
            return Frames(data, np.empty(0, np.int64), np.empty(0, np.int64), 0, status, kind=kind)
        status = Status.OK
        if data.size > self.layout.size:
            status = Status.BAD_VALUE if data[self.layout.size :].any() else Status.PADDING
        return Frames(
            data, np.zeros(1, np.int64), np.full(1, self.layout.size, np.int64), self.layout.size, status, kind=kind
        )


TIMER_LOG = TimerLog(TIMER_UNIT, "timer unit", TIMER_BLANK)
TIMER_WHEEL = TimerWheel(WHEEL_SLOT, "slot", time=_due)
TIMER_CHECK_FILE = WholeFile(TIMER_CHECK, "timer checkpoint")

# Others -----------------------------------------------------------------------------------------------------------------


class Checkpoint(WholeFile):
    """Up to where a store is on disk."""

    def decode(self, frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
        """The row of `rocketmq.checkpoint`."""
        rows, count = CHECKPOINT.take(frames.data, frames.starts), len(frames)
        arrays = {"path": columns.constant(want.file.path, "string", count)}
        for field in CHECKPOINT.fields:
            values = rows[field.name].astype(np.int64)
            arrays[field.name] = (
                micros(values) if field.name.endswith("timestamp") else columns.integers(values, "bigint")
            )
        yield columns.batch(want.table, arrays, count)


class DLedgerIndex(UnitFile):
    """The index of a DLedger commit log."""

    def scan(self, data: Bytes, kind: int) -> Frames:
        """Units of 32 bytes up to the zeros."""
        rows = DLEDGER_INDEX.view(np.ascontiguousarray(data))
        return fixed_frames(data, DLEDGER_INDEX, (rows["magic"] == 1) & (rows["size"] > 0), kind)


CHECKPOINT_FILE = Checkpoint(CHECKPOINT, "checkpoint")
DLEDGER_INDEX_FILE = DLedgerIndex(DLEDGER_INDEX, "index unit")
