"""The segment, `<first number>.journal`: a file header, then entries with a checksum each. Zeros at its end were allocated in advance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.io.checksums import crc32c_spans
from rawlog.io.output import Output
from rawlog.io.storage import Source
from rawlog.kernels import byte_view, columns
from rawlog.kernels.gather import SLACK
from rawlog.model.errors import (
    CorruptError,
    DataError,
    EncodeError,
    OptionError,
    TruncatedError,
    UnsupportedError,
    unknown,
)
from rawlog.model.explain import Node, layout_nodes, leaf
from rawlog.model.finding import (
    Mark,
    Rule,
    Severity,
    rule,
)
from rawlog.model.format import File, Inspection, Judge, Origin, Spans, Want
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status
from rawlog.model.store import Store
from rawlog.model.text import plain_time
from tests.sixth.journal import kernels, positions
from tests.sixth.journal.layouts import (
    ALIGNMENT,
    ENTRY,
    ENTRY_MAGIC,
    FILE_HEADER,
    FILE_MAGIC,
    LARGEST,
    NO_TIME,
    POSITION,
    VERSION,
)

LAYOUTS = (FILE_HEADER, ENTRY)
BATCH_BYTES = 16 << 20

# Frames -----------------------------------------------------------------------------------------------------------------


def begin(head: bytes, size: int) -> Origin:
    """Where the entries begin, and the version of the file. DataError if the header is cut or damaged."""
    if size == 0:
        return Origin(0, VERSION)  # created, nothing written yet: not damage
    place = {"position": 0, "layout": FILE_HEADER.name}
    if size < FILE_HEADER.size:
        what = f"file header of {size} bytes, {FILE_HEADER.size} expected"
        raise TruncatedError(what, **place, expected=FILE_HEADER.size, found=size)
    magic = head[: FILE_HEADER.after("magic")]
    if magic != FILE_MAGIC:
        what = f"magic is {magic.hex()}, {FILE_MAGIC.hex()} expected"
        raise CorruptError(what, **place, field="magic", expected=FILE_MAGIC.hex(), found=magic.hex())
    version = int.from_bytes(head[FILE_HEADER.at("version") : FILE_HEADER.after("version")], "big", signed=True)
    if version != VERSION:
        what = f"version is {version}, {VERSION} expected"
        raise UnsupportedError(what, **place, field="version", expected=VERSION, found=version)
    return Origin(FILE_HEADER.size, version)


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


# Explain ----------------------------------------------------------------------------------------------------------------


def explain_header(head: bytes, file: File) -> list[Node]:
    """The bytes before the first entry; an empty file has none."""
    if not file.size:
        return []
    nodes = layout_nodes(FILE_HEADER, np.frombuffer(head, np.uint8), 0, 0)
    return [Node(0, FILE_HEADER.size, FILE_HEADER.name, children=nodes)]


def explain(frames: Frames, file: File) -> list[Node]:
    """One entry: its fixed fields, key, value and padding."""
    start, stop = int(frames.starts[0]), int(frames.stops[0])
    right = "right" if is_sound(frames)[0] else f"wrong: {int(sums(frames)[0]):08x} expected"
    meanings = {
        "crc": lambda value: f"{value:08x}, {right}",
        "timestamp": lambda value: "no time" if value == NO_TIME else plain_time(value),
    }
    nodes = layout_nodes(ENTRY, frames.data, start, frames.base, meanings)
    position = start + ENTRY.size
    for name, size in [(node.name.removesuffix("_size"), node.value) for node in nodes if node.name.endswith("_size")]:
        if size > 0:
            content = bytes(frames.data[position : position + size])
            nodes.append(leaf(frames.data, position, size, frames.base, name, "bytes", content))
            position += size
    if stop > position:
        nodes.append(leaf(frames.data, position, stop - position, frames.base, "padding", "bytes", None))
    return [Node(frames.base + start, stop - start, f"{ENTRY.name}, frame {frames.first}", children=nodes)]


# Rules ------------------------------------------------------------------------------------------------------------------


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


def rules() -> Sequence[Rule[Inspection]]:
    """Checks over a segment."""
    return (wrong_checksum, not_rising, padding_not_zero)


# What the checks of a journal need of a segment -------------------------------------------------------------------------


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
            self.pieces.append(positions.encode_entries(numbers, frames.positions[right]))

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


summary = SegmentSummary

# Writing ----------------------------------------------------------------------------------------------------------------

OPTIONS = ("segment_bytes",)
SEGMENT_BYTES = 64 << 20


def segment_bytes(options: Mapping[str, str]) -> int:
    """From which size on a new segment is begun. OptionError for another option, or a value that is not a number."""
    for name in options:
        if name not in OPTIONS:
            raise unknown("option of journal", name, OPTIONS)
    text = options.get("segment_bytes", str(SEGMENT_BYTES))
    if not text.isdecimal() or not int(text):
        raise OptionError(f"segment_bytes {text!r} of journal: a number of bytes above 0 expected")
    return int(text)


def file_header(first_number: int, previous_stop: int) -> bytes:
    """What a segment begins with."""
    return np.array([(FILE_MAGIC, VERSION, first_number, previous_stop)], FILE_HEADER.dtype).tobytes()


def encode_rows(batch: pa.RecordBatch, numbers: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The entries of a batch of `records`, end to end, and where each begins. EncodeError for rows that no entry can hold."""
    (key_ends, keys, has_key), (value_ends, values, has_value) = (
        _binary(batch.column(name)) for name in ("key", "value")
    )
    sizes = ENTRY.size + np.diff(key_ends).astype(np.int64) + np.diff(value_ends)
    stops = np.cumsum(-(-sizes // ALIGNMENT) * ALIGNMENT)
    room = int(stops[-1])
    times = pc.fill_null(batch.column("timestamp").cast(pa.int64()), NO_TIME).to_numpy()
    out = np.empty(room + SLACK, np.uint8)
    done, _, status = kernels.encode_entries(
        numbers, times, key_ends, keys, has_key, value_ends, values, has_value, out
    )
    if status != Status.OK:
        raise EncodeError(f"row {done:,}: a key or value above {LARGEST:,} bytes, the most that an entry holds")
    return out[:room], np.append(0, stops[:-1])


def _binary(array: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.bool_]]:
    """Offsets and bytes of a binary column, and which rows are not null."""
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    array = pc.fill_null(array, b"") if array.null_count else array
    _, offsets, values = array.buffers()
    found = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return found, byte_view(values if values is not None else b""), valid


def losses(options: Mapping[str, str]) -> Judge:
    """Which rows of `records` would read back differently, by column. OptionError for an option that does not exist.

    Where a row has nothing (null), there is nothing to lose.
    """
    segment_bytes(options)
    numbering = Numbering()

    def judge(batch: pa.RecordBatch) -> dict[str, NDArray[np.bool_]]:
        given, written = batch.column("offset"), pa.array(numbering.of(batch))
        return {
            "partition": _mask(pc.not_equal(batch.column("partition"), 0)),
            "offset": _mask(pc.not_equal(given, written)),
            "timestampType": _mask(pc.not_equal(batch.column("timestampType"), 0)),
            "headers": _mask(pc.greater(pc.list_value_length(batch.column("headers")), 0)),
        }

    return judge


def _mask(test: Any) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.fill_null(test, False).to_numpy(zero_copy_only=False)
    return found.copy()


class Numbering:
    """The numbers that rows get: their offsets, as long as these rise in each journal, else the next number."""

    def __init__(self) -> None:
        self.last: dict[str | None, int] = {}

    def of(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """The numbers of the rows of a batch, which follows those that were asked for before."""
        numbers = np.empty(batch.num_rows, np.int64)
        rows = zip(batch.column("topic").to_pylist(), batch.column("offset").to_pylist(), strict=True)
        for row, (topic, offset) in enumerate(rows):
            last = self.last.get(topic, -1)
            numbers[row] = self.last[topic] = offset if offset is not None and offset > last else last + 1
        return numbers


def write(batches: Iterable[pa.RecordBatch], output: Output, options: Mapping[str, str]) -> int:
    """Write rows as journals below a new directory, one per topic. Returns the number of rows."""
    from tests.sixth.journal.store import write_journals

    return write_journals(batches, output, options)
